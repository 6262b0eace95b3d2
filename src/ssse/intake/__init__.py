"""What the user brings as files: data, weights, and names of Python objects. A pickle is never loaded."""
