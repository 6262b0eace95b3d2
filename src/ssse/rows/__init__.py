"""The vectors that a curvature is the sum of squares of: held in memory, by autograd, of three kinds."""
