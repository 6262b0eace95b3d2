"""Fifty animals: Figures 3a and 4."""
