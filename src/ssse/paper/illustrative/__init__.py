"""The plane: Figure 1 and Proposition 1."""
