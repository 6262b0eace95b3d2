"""The monkeypatch of these tests notices patches without effect."""

from __future__ import annotations

import tempfile

import pytest
import torch

from tests.support.patches import CheckedMonkeyPatch, Forbidden

patches = CheckedMonkeyPatch.context


def test_a_replacement_that_is_never_called_fails():
    with pytest.raises(AssertionError, match=r"never called: ssse\.metrics\.klom\.klom"), patches() as patch:
        patch.setattr("ssse.metrics.klom.klom", lambda: None)


def test_one_that_is_called_passes_and_is_taken_back():
    before = tempfile.gettempdir
    with patches() as patch:
        patch.setattr(tempfile, "gettempdir", lambda: "elsewhere")
        assert tempfile.gettempdir() == "elsewhere"
    assert tempfile.gettempdir is before


def test_methods_are_bound():
    class Thing:
        size = 3

        def twice(self) -> int:
            return 2 * self.size

    with patches() as patch:
        patch.setattr(Thing, "twice", lambda self: 4 * self.size)
        assert Thing().twice() == 12


def test_a_constant_that_nothing_reads_fails():
    with patches() as patch:
        patch.setattr("ssse.metrics.klom.CHUNK", 7)
        with pytest.raises(AssertionError, match=r"Nothing looks up ssse\.metrics\.gaps\.CHUNK"):
            patch.setattr("ssse.metrics.gaps.CHUNK", 7)


def test_what_must_not_be_called_must_be_looked_up_where_it_is_said():
    with patches() as patch:
        patch.setattr(torch.linalg, "cholesky_ex", Forbidden("solved", by="ssse.curvature.gram"))
        with pytest.raises(pytest.fail.Exception, match="solved"):
            torch.linalg.cholesky_ex(torch.eye(2))
        with pytest.raises(AssertionError, match="gaps never looks up"):
            patch.setattr(torch.linalg, "cholesky", Forbidden("solved", by="ssse.metrics.gaps"))
        with pytest.raises(AssertionError, match="scan never looks up"):
            patch.setattr("ssse.erasure.erase.erase", Forbidden("erased", by="ssse.evaluation.scan"))
