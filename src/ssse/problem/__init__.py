"""What the user brings: batches, a loss, a model with its parameters; checked before the long pass."""
