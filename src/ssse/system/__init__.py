"""The machine: files, digests, stored folders, memory, progress, versions. Knows nothing of models."""
