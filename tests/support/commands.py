"""Requests as a user makes them: commands called in this process, and small models that are not softmax regression."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typer.testing import CliRunner

from ssse.cli.app import app
from ssse.cli.console import CAUTION, HINT
from ssse.verdict import BOUNDS

OVERRIDES = [word for bound in BOUNDS for word in ("--override", bound)]  # any step that can be taken


def call(*arguments: object, code: int | None = None) -> tuple[str, str]:
    """What is printed on stdout and stderr. Errors are one line, and none is of the kind nobody thought of.

    `code`: if not given, the command is done, with whichever verdict.
    """
    done = CliRunner().invoke(app, [str(one) for one in arguments])
    assert done.exit_code in ((0, CAUTION) if code is None else (code,)), (done.stdout, done.stderr, done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert HINT not in done.stderr
    if code in (1, 2, 4, 5) and arguments[0] not in ("verify", "check"):  # which say it as their result
        assert re.fullmatch(r"Error: [^\n]*\n", done.stderr), done.stderr
    return done.stdout, done.stderr


def call_json(*arguments: object, code: int | None = None) -> dict[str, Any]:
    """The one object that --json prints."""
    return json.loads(call(*arguments, "--json", code=code)[0])


def exact(workspace: Path, request: str) -> list[dict[str, Any]]:
    """The entries of a request with all their numbers."""
    return call_json("log", workspace, "--request", request, "--exact")["entries"]


def call_error(*arguments: object, code: int = 2) -> str:
    """An error is said on stderr and, with --json, in the object."""
    text, complaint = call(*arguments, "--json", code=code)
    said = json.loads(text)
    assert said == {"error": complaint.removeprefix("Error: ").removesuffix("\n"), "exit": code}
    assert call(*arguments, code=code) == ("", complaint)
    return said["error"]


def init(home: Path, *arguments: object, code: int = 0) -> str:
    """The workspace `ws` of the files that `workspaces.files` made."""
    return call(
        *("init", home / "ws", "--model", "torch.nn:Linear"),
        *("--argument", "in_features=4", "--argument", "out_features=3"),
        *("--weights", home / "w.safetensors", "--data", home / "train.npz", "--weight-decay", "0.01"),
        *("--device", "cpu", *arguments),
        code=code,
    )[0]


class TwoInputs(nn.Module):
    """Takes its inputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 2), nn.Linear(2, 2)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.left(a) + self.right(b)


def two_inputs() -> nn.Module:
    return _fixed(TwoInputs())


def batch_norm() -> nn.Module:
    """A network whose statistics are not those of a fresh one."""
    model = _fixed(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)))
    model.train()(torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(6, 4))
    return model.eval()


def linear(inputs: int, outputs: int) -> nn.Module:
    return _fixed(nn.Linear(inputs, outputs))


def _fixed(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model.double().eval()


def smoothed(z: Tensor, y: Tensor) -> Tensor:
    """A loss of the user's own."""
    return F.cross_entropy(z, y, reduction="none", label_smoothing=0.1)


NOT_A_FUNCTION = 3


def raises(z: Tensor, y: Tensor) -> Tensor:
    raise RuntimeError("two\nlines")


def leaves(z: Tensor, y: Tensor) -> Tensor:
    raise SystemExit(0)


def talkative(in_features: int, out_features: int) -> nn.Module:
    print("building the model")
    return nn.Linear(in_features, out_features)
