"""Digests of tensors, independent of how and where they are stored."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor


def digest_tensor(tensor: Tensor) -> str:
    """SHA-256 of dtype, shape and values; independent of how and where the tensor is stored."""
    hasher = hashlib.sha256(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    if tensor.numel():
        hasher.update(bytes_of(tensor.reshape(1, -1)).data)
    return hasher.hexdigest()


def bytes_of(tensor: Tensor) -> np.ndarray:
    """The raw values, one line of bytes per entry of the first dimension; without a copy where possible."""
    lines = tensor.detach().cpu().reshape(len(tensor), -1)
    if lines.stride() != (lines.shape[1], 1):  # a dimension of size one may have any stride
        lines = torch.empty(lines.shape, dtype=lines.dtype).copy_(lines)
    return lines.view(torch.uint8).numpy()


def digest_tensors(tensors: Mapping[str, Tensor]) -> str:
    hasher = hashlib.sha256()
    for name in sorted(tensors):
        hasher.update(f"{name}={digest_tensor(tensors[name])};".encode())
    return hasher.hexdigest()
