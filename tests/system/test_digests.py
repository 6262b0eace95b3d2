"""Digests are stored and compared with those of old files: each is written down here as it has always been."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest
import torch

from ssse.problem.sample_digests import digest_samples, digest_to_count
from ssse.system import digests

X = torch.arange(24.0).reshape(2, 3, 4)


def sha(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()


def test_of_bytes_texts_and_json():
    assert digests.digest_bytes("ε") == digests.digest_bytes("ε".encode()) == sha("ε".encode())
    assert digests.digest_parts(["a", b"b", memoryview(b"c")]) == sha(b"abc")
    assert digests.digest_json({"b": [1, None], "a": "ε"}) == sha('{"a": "ε", "b": [1, null]}'.encode())
    assert digests.digest_named({"b": "2", "a": "1"}) == sha(b"a=1;b=2;")


def test_of_tensors():
    values = np.arange(24, dtype=np.float32).tobytes()
    assert digests.digest_tensor(X) == sha(b"torch.float32(2, 3, 4)", values)
    assert digests.digest_tensor(torch.empty(0, 3)) == sha(b"torch.float32(0, 3)")
    assert digests.digest_tensors({"x": X}) == sha(f"x={digests.digest_tensor(X)};".encode())


def test_of_files_and_folders(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "b").write_bytes(b"two")
    (tmp_path / "a").write_bytes(b"one")
    assert digests.digest_file(tmp_path / "a") == sha(b"one")
    assert digests.digest_folder(tmp_path) == {"a": sha(b"one"), "inner/b": sha(b"two")}
    with pytest.raises(OSError, match="none"):
        digests.digest_file(tmp_path / "none")


def test_of_samples():
    form = repr([("x", "torch.float32", (3, 4))]).encode()
    for label in (torch.tensor([1, 0]), torch.tensor([1.0, -0.0]), torch.tensor([True, False])):
        for i, digest in enumerate(digest_samples((X, label), b"salt")):
            hasher = hashlib.blake2b(form, digest_size=8, key=b"salt")
            hasher.update(np.float64(1 - i).tobytes() + X[i].numpy().tobytes())
            assert int(digest) == int.from_bytes(hasher.digest(), "little")


@pytest.mark.parametrize("width", [3, digests.LONG])
def test_of_samples_that_are_counted_and_forgotten(width: int):
    """Equal where the samples are, and only there; never what is stored."""
    x = torch.arange(3 * width).reshape(3, width).float() % 7
    x[2] = x[0]
    found = digest_to_count((x, torch.tensor([1, 0, 1])))
    assert found[0] == found[2] != found[1]
    assert digest_to_count((x[[0]], torch.tensor([0])))[0] not in found
    assert found[0] != digest_samples((x, torch.tensor([1, 0, 1])), b"salt")[0]


def test_nothing_of_it_imports_torch():
    script = (
        "import sys, ssse.problem.sample_digests, ssse.erasure.policy; assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
