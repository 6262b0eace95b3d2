"""The data of the experiments, read and checked; and what stands in for it."""
