"""A network that is not convex: Figures 3b, 5, 6 and 7."""
