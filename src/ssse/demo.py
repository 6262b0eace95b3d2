"""The whole story on images of digits that come with scikit-learn: what a user brings, and the commands from there."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from ssse.errors import InvalidSetting

WEIGHT_DECAY = 1e-3
LOSS = "cross_entropy"
MARK = ".made-by-ssse-demo"  # only a folder with it is ever made anew


@dataclass(frozen=True)
class Digits:
    """8×8 images of digits, a fifth of them held out (seed 0)."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor

    @classmethod
    def load(cls) -> Digits:
        x, y = load_digits(return_X_y=True)
        parts = train_test_split(x / 16.0, y, test_size=0.2, random_state=0, stratify=y)
        train_x, test_x, train_y, test_y = (torch.from_numpy(part) for part in parts)
        return cls(train_x, train_y, test_x, test_y)

    def members(self, digit: int, fraction: float) -> Tensor:
        """The first part of a digit's training samples."""
        members = (self.y == digit).nonzero()[:, 0]
        return members[: round(fraction * len(members))]

    def retrained(self, *gone: Tensor) -> nn.Linear:
        """Without these samples."""
        keep = torch.ones(len(self.y), dtype=torch.bool)
        keep[torch.cat(gone)] = False
        return train(self.x[keep], self.y[keep])


def softmax() -> nn.Linear:
    """The model; its weights are loaded afterwards."""
    return nn.Linear(64, 10).double()


def train(x: Tensor, y: Tensor) -> nn.Linear:
    """Softmax regression: minimise (1/n) Σ ℓᵢ + (w/2)‖θ‖² to stationarity."""
    model = softmax()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    optimiser = torch.optim.LBFGS(
        model.parameters(), max_iter=2000, history_size=20, tolerance_grad=1e-9, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        penalty = sum((p * p).sum() for p in model.parameters())
        loss = F.cross_entropy(model(x), y) + WEIGHT_DECAY / 2 * penalty
        loss.backward()
        return loss

    optimiser.step(closure)
    return model.eval()


def retrain(batches: list[tuple[Tensor, Tensor]]) -> nn.Linear:
    """The same on batches, for `ssse compare --retrain ssse.demo:retrain`."""
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    return train(x, y)


def prepare(folder: Path) -> None:
    """What somebody has when the first request comes: data, a trained model; and models retrained for comparison."""
    digits = Digits.load()
    ids = np.array([f"img-{place:04d}" for place in range(len(digits.y))])
    np.savez(folder / "train.npz", x=digits.x.numpy(), y=digits.y.numpy(), id=ids)
    np.savez(folder / "test.npz", x=digits.test_x.numpy(), y=digits.test_y.numpy())
    threes, fives, few = digits.members(3, 0.5), digits.members(5, 0.5), torch.tensor([17, 98, 1203])
    np.savez(folder / "threes.npz", x=digits.x[threes].numpy(), y=digits.y[threes].numpy())
    np.savez(folder / "fives.npz", x=digits.x[fives].numpy(), y=digits.y[fives].numpy())
    np.savez(folder / "stranger.npz", x=digits.test_x[:1].numpy(), y=digits.test_y[:1].numpy())
    save_file(train(digits.x, digits.y).state_dict(), folder / "w.safetensors")
    save_file(digits.retrained(fives).state_dict(), folder / "without-fives.safetensors")
    save_file(digits.retrained(threes, few).state_dict(), folder / "retrained.safetensors")


# The story: what is said before a command, and the command.
STORY = (
    (
        "A model, its weights and its training data become a workspace.",
        "ssse init ws --model ssse.demo:softmax --weights w.safetensors --data train.npz --test test.npz "
        "--weight-decay 1e-3",
    ),
    (
        "The curvature, once. From here on a request needs nothing but its own samples.",
        "ssse fit ws",
    ),
    (
        "Is ε = 1 right, or half of it, or twice? A model retrained without half of the fives tells.",
        "ssse calibrate ws --forget fives.npz --retrained without-fives.safetensors --scales 0.25,0.5,1,2,4",
    ),
    (
        "The first request names three images by their ids, and the day by which it is to be answered.",
        "ssse erase ws --request 2026-001 --ids img-0017,img-0098,img-1203 --due 2030-01-31 --by 'A. Person'",
    ),
    (
        "The second one comes with its samples: half of the threes.",
        "ssse erase ws --request 2026-002 --forget threes.npz",
    ),
    (
        "The same request again is no second erasure.",
        "ssse erase ws --request 2026-002 --forget threes.npz",
    ),
    (
        "An image that was never trained on is refused.",
        "ssse erase ws --request 2026-003 --forget stranger.npz",
    ),
    (
        "How good is it? Beside the model from before, and one that was retrained without all of these samples:",
        "ssse evaluate ws --request 2026-002 --original w.safetensors --retrained retrained.safetensors",
    ),
    ("What was done, entry by entry.", "ssse log ws"),
    ("Every byte of it is checked.", "ssse verify ws"),
    (
        "A receipt for whoever asked: `ssse check` checks it with nothing but the hash of the tree above.",
        "ssse receipt ws 2026-002",
    ),
    ("And one page that says of each request whether it may be closed.", "ssse report ws"),
)


def make_folder(folder: Path) -> None:
    """A new folder; one that an earlier demo made is made anew, any other is left alone."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARK).is_file():
            raise InvalidSetting(f"'{folder}' holds something that is not of this demo; name another with --output.")
        shutil.rmtree(folder / "ws", ignore_errors=True)  # the data is written anew, and what is the user's own stays
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).touch()


def arguments(command: str) -> list[str]:
    """Of one line of the story, without the program's name."""
    return shlex.split(command)[1:]
