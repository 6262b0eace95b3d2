"""Small workspaces for tests: softmax regression on made-up data, trained to the end."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from ssse.workspace import settings as toml
from ssse.workspace.workspace import Workspace

DECAY = 1e-2


@dataclass(frozen=True)
class Made:
    """What a user would have: files in a folder, and the workspace made of them."""

    home: Path
    workspace: Workspace
    x: Tensor
    y: Tensor

    @property
    def path(self) -> Path:
        return self.workspace.folder.path

    def forget_file(self, places: list[int], name: str = "forget.npz") -> Path:
        path = self.home / name
        np.savez(path, x=self.x[places].numpy(), y=self.y[places].numpy())
        return path

    def weights(self) -> dict[str, Tensor]:
        return load_file(self.path / "current" / "weights.safetensors")


def data(n: int = 40, p: int = 4, c: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, p, generator=generator, dtype=torch.float64)
    y = torch.randint(0, c, (n,), generator=generator)
    y[:c] = torch.arange(c)
    return x, y


def train(x: Tensor, y: Tensor, c: int, decay: float = DECAY) -> nn.Linear:
    model = nn.Linear(x.shape[1], c).double()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    optimiser = torch.optim.LBFGS(
        model.parameters(), max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-16, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = F.cross_entropy(model(x), y) + decay / 2 * sum((p * p).sum() for p in model.parameters())
        loss.backward()
        return loss

    optimiser.step(closure)
    return model.eval()


@cache
def _trained(n: int, p: int, c: int) -> dict[str, Tensor]:
    """The same for every workspace of the same size, so that it is trained once."""
    return train(*data(n, p, c), c).state_dict()


def files(home: Path, n: int = 40, p: int = 4, c: int = 3) -> tuple[Tensor, Tensor]:
    """train.npz with ids s0, s1, …; test.npz; w.safetensors."""
    home.mkdir(parents=True, exist_ok=True)
    x, y = data(n, p, c)
    np.savez(home / "train.npz", x=x.numpy(), y=y.numpy(), id=np.array([f"s{i}" for i in range(n)]))
    test_x, test_y = data(30, p, c, seed=1)
    np.savez(home / "test.npz", x=test_x.numpy(), y=test_y.numpy())
    save_file(_trained(n, p, c), home / "w.safetensors")
    return x, y


def make(home: Path, *, fit: bool = True, n: int = 40, p: int = 4, c: int = 3, **options: Any) -> Made:
    """`options`: settings with "__" for the point, such as erase__policy="joint"."""
    x, y = files(home, n, p, c)
    named = {name.replace("__", "."): value for name, value in options.items()}
    settings = toml.from_options(
        {
            "model.factory": "torch.nn:Linear",
            "model.arguments": {"in_features": p, "out_features": c},
            "model.search": "..",
            "model.device": "cpu",
            "data.train": "../train.npz",
            "data.test": "../test.npz",
            "fit.weight_decay": DECAY,
            **named,
        }
    )
    workspace = Workspace.init(home / "ws", settings, home / "w.safetensors").workspace
    if fit:
        workspace.fit()
    return Made(home, workspace, x, y)


def make_estimator(home: Path, *, fit: bool = True, n: int = 40, p: int = 4, c: int = 3, **options: Any) -> Made:
    """The same of a scikit-learn model in model.skops."""
    x, y = files(home, n, p, c)
    model = LogisticRegression(C=1.0, tol=1e-10, max_iter=1000).fit(x.numpy(), y.numpy())
    import skops.io  # here: the tests on a GPU also run where there is none

    skops.io.dump(model, home / "model.skops")
    named = {name.replace("__", "."): value for name, value in options.items()}
    settings = {"data.train": "../train.npz", "data.test": "../test.npz", **named}
    workspace = Workspace.init(home / "ws", settings, home / "model.skops").workspace
    if fit:
        workspace.fit()
    return Made(home, workspace, x, y)


def copy(made: Made, home: Path) -> Made:
    """The same in another folder, byte for byte."""
    shutil.copytree(made.home, home, symlinks=True)
    return Made(home, Workspace(home / "ws"), made.x, made.y)


def snapshot(folder: Path) -> dict[str, bytes | str]:
    """Every file of a folder with its bytes, every link with its target."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_file():
            found[name] = path.read_bytes()
    return found
