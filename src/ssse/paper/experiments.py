"""The paper's experiments: what each needs. `ssse.paper.reproduce` runs one and writes its page.

Importing this does not import torch, so that a list of the experiments is there at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Literal

from ssse.errors import InvalidSetting

PAST = "past the paper"
Scale = Literal["auto", "full", "small", "classes", "large"]


@dataclass(frozen=True)
class Spec:
    """What an experiment shows and what it asks for, in words.

    `small` is what runs without its data; `sizes` what runs with a --scale of its own, by its name; mostly nothing.
    `several`: networks of several seeds and many methods, of which --seeds and --minutes take fewer.
    """

    name: str
    title: str
    paper: str
    data: str
    memory: str
    time: str
    small: str
    sizes: Mapping[str, str] = field(default_factory=dict[str, str])
    several: bool = False

    @property
    def needs_data(self) -> bool:
        return self.data != "none"


_DIGITS = "a small form on scikit-learn's digits, under 2 min"
EXPERIMENTS: Mapping[str, Spec] = {
    spec.name: spec
    for spec in (
        Spec(
            "illustrative",
            "The decision boundary in the plane, after erasing one sample and many",
            "Figure 1",
            data="none",
            memory="under 1 GB",
            time="under 20 s",
            small="the same",
        ),
        Spec(
            "celeba",
            "Forty attributes of faces: a linear model on features of CelebA",
            "Figure 2, Table 1",
            data="features of CelebA: celeba-features.npz and the two official lists, or faces.npz",
            memory="about 3 GB",
            time="under 40 min on two cores",
            small=_DIGITS,
        ),
        Spec(
            "awa2",
            "Fifty animals: a linear model on features of AwA2",
            "Figures 3a and 4",
            data="features of AwA2: the official files, awa2-features.npz, or pets.npz and animals50.npz",
            memory="about 8 GB",
            time="under 40 min on two cores",
            small=_DIGITS,
        ),
        Spec(
            "cifar10",
            "A network that is not convex: ResNet-20 on CIFAR-10",
            "Figures 3b, 5, 6 and 7",
            data="the files of CIFAR-10",
            memory="a GPU with about 120 GB",
            time="under 10 min; with --scale small --device cpu: minutes",
            small=_DIGITS,
        ),
        Spec(
            "lasting",
            "Networks whose erasure lasts: step and repair, beside the strongest opponents",
            PAST,
            data="the files of CIFAR-10",
            memory="a GPU with about 120 GB; with --scale small about 2 GB",
            time="some tens of minutes; with --scale small --device cpu: hours",
            small=_DIGITS,
            sizes={
                "classes": "as --scale small: five classes by halves, a tenth at random, ours alone; made for a CPU",
                "large": "a network of 11 million parameters, a tenth of the data at random, by projected gradients",
            },
            several=True,
        ),
    )
}


def find(name: str) -> Spec:
    if name in EXPERIMENTS:
        return EXPERIMENTS[name]
    near = get_close_matches(name.lower(), EXPERIMENTS, n=1, cutoff=0.4)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    raise InvalidSetting(f"There is no experiment '{name}'.{hint} There are: {', '.join(EXPERIMENTS)}.")
