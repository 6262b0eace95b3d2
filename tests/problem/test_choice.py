"""`parameters=` in all its forms, and the natural parts of a model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ssse.errors import InvalidModel, InvalidSetting
from ssse.problem.choice import ParameterChoice, choose_parameters
from ssse.problem.parts import parts
from tests.support import problems


class Block(nn.Module):
    """With a stack of its own inside, which is no stack of the model."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.feed(self.norm(x))


class Tower(nn.Module):
    """Blocks, and a norm and a head after them."""

    def __init__(self, depth: int = 3, width: int = 4):
        super().__init__()
        self.embed = nn.Linear(5, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class LowRank(nn.Module):
    """As peft's layers look from outside."""

    adapter_layer_names = ("lora_A", "lora_B")

    def __init__(self, base: nn.Linear):
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base.in_features, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, base.out_features, bias=False)})
        self.merged = False
        self.disable_adapters = False

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))


def adapted() -> Tower:
    model = Tower()
    model.embed = LowRank(model.embed)  # type: ignore[assignment]
    return model


def of(model: nn.Module, *beginnings: str) -> tuple[str, ...]:
    return tuple(name for name, _ in model.named_parameters() if name.startswith(beginnings))


EVERYTHING = ("",)
LAST = ("blocks.2.", "norm.", "head.")
CHOICES: list[tuple[ParameterChoice, tuple[str, ...]]] = [
    ("all", EVERYTHING),
    ("trainable", EVERYTHING),
    ("head", ("head.",)),
    ("norm.bias", ("norm.bias",)),
    ("blocks.*", ("blocks.",)),
    ("*.norm.weight", ("blocks.0.norm.weight", "blocks.1.norm.weight", "blocks.2.norm.weight")),
    ("blocks.[02].norm.*", ("blocks.0.norm", "blocks.2.norm")),
    ("last block", LAST),
    ("last 2 blocks", ("blocks.1.", *LAST)),
    (["head.bias", "embed.*"], ("embed.", "head.bias")),
    (("head.bias", "head.bias"), ("head.bias",)),
    (lambda name, parameter: parameter.dim() == 1 and "norm" in name, ()),  # below: what it is asked is what it gets
]


@pytest.mark.parametrize(("choice", "beginnings"), CHOICES, ids=[str(choice)[:20] for choice, _ in CHOICES])
def test_every_form(choice, beginnings):
    model = Tower()
    wanted = of(model, *beginnings) or tuple(n for n, p in model.named_parameters() if p.dim() == 1 and "norm" in n)
    layout = choose_parameters(model, choice)
    assert layout.names == wanted
    assert layout.shapes == tuple(tuple(model.get_parameter(name).shape) for name in wanted)


def test_frozen_parameters_stay_out_of_every_form():
    model = Tower()
    model.blocks[2].norm.requires_grad_(False)  # type: ignore[union-attr]
    for choice in ("all", "blocks.*", "last block", lambda name, parameter: True):
        assert not [n for n in choose_parameters(model, choice).names if n.startswith("blocks.2.norm")]


WRONG: list[tuple[ParameterChoice, type[Exception], str]] = [
    ("heads", InvalidSetting, """parameters must be "all", .*a glob such as "encoder.\\*".*Did you mean 'head'"""),
    ("last 9 blocks", InvalidSetting, "are last 3 blocks, last 2 blocks, last block"),
    ("layers.*", InvalidSetting, r"No parameter of the model matches 'layers.\*'. They are called, .*blocks.0.norm"),
    ("embed.*", InvalidSetting, r"All parameters that match 'embed.\*' are frozen"),
    ("embed.bias", InvalidSetting, "Parameter 'embed.bias' is frozen"),
    (["head.bais"], InvalidSetting, "no parameter 'head.bais'. Did you mean 'head.bias'"),
    (["head.bias", "layers.*"], InvalidSetting, "No parameter of the model matches"),
    ([], InvalidSetting, "empty list"),
    ([3], InvalidSetting, "one entry is 3"),  # type: ignore[list-item]
    (3, InvalidSetting, "parameters must be .*, not a int"),  # type: ignore[arg-type]
    (lambda name, parameter: False, InvalidSetting, "takes none of the model's trainable parameters"),
    ("adapters", InvalidSetting, "for models with adapters of peft, and this one has none"),
]


@pytest.mark.parametrize(("choice", "error", "match"), WRONG, ids=[str(choice)[:20] for choice, *_ in WRONG])
def test_what_names_nothing(choice, error, match):
    model = Tower()
    model.embed.requires_grad_(False)
    with pytest.raises(error, match=match):
        choose_parameters(model, choice)


def test_a_parameter_may_have_a_name_that_looks_like_a_glob():
    model = nn.ParameterDict({"w[0]": torch.zeros(2), "w0": torch.zeros(3)})
    assert choose_parameters(model, "w[0]").names == ("w[0]",)
    assert choose_parameters(model, "w*").names == ("w0", "w[0]")


def test_adapters_are_what_peft_put_there():
    model = adapted()
    assert choose_parameters(model, "adapters").names == of(model, "embed.lora_")
    assert choose_parameters(model, "all").names == tuple(
        n for n, _ in model.named_parameters() if "base_layer" not in n
    )


def test_adapters_that_take_no_part_are_refused_however_they_are_chosen():
    for choice in ("adapters", "all"):
        model = adapted()
        model.embed.merged = True  # type: ignore[assignment]
        with pytest.raises(InvalidModel, match=r"in 'embed' are merged into its weights.*unmerge_adapter\(\)"):
            choose_parameters(model, choice)
        model.embed.merged, model.embed.disable_adapters = False, True  # type: ignore[assignment]
        with pytest.raises(InvalidModel, match=r"in 'embed' are switched off.*enable_adapter_layers\(\)"):
            choose_parameters(model, choice)
    assert choose_parameters(model, "head").names == of(model, "head.")


def test_frozen_adapters_say_how_to_load_them():
    model = adapted()
    model.embed.requires_grad_(False)
    with pytest.raises(InvalidModel, match=r"adapters of the model are frozen.*is_trainable=True"):
        choose_parameters(model, "adapters")


def described(model: nn.Module) -> list[tuple[str, int]]:
    found = parts(model)
    named = dict(model.named_parameters())
    for part in found:  # each name is one that parameters= takes
        assert choose_parameters(model, part.name).names == part.parameters
        assert part.size == sum(named[name].numel() for name in part.parameters)
    return [(part.name, part.size) for part in found]


def test_parts_of_a_tower():
    size = {"block": 8 + 40, "norm": 8, "head": 15}
    end = size["norm"] + size["head"]
    assert described(Tower()) == [
        ("last 3 blocks", 3 * size["block"] + end),
        ("last 2 blocks", 2 * size["block"] + end),
        ("last block", size["block"] + end),
        ("head", 15),
    ]
    assert ("adapters", 18) in described(adapted())


def test_parts_of_other_models():
    plain = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    assert described(plain) == [("head", 21)]  # as are the last block and, in all, the last two
    assert described(nn.Sequential(Tower(2), nn.Linear(3, 2)))[-2:] == [("last 2 blocks", 48 + 8 + 15 + 8), ("head", 8)]
    assert described(problems.conv().model) == [("head", 52)]
    assert described(nn.Linear(4, 3)) == []
    assert described(nn.Conv2d(1, 2, 3)) == []
    tied = problems.tied().model
    assert described(tied) == [("head", 15)]


def test_parts_of_a_wrapped_model_have_the_names_inside():
    model = Tower()
    assert parts(nn.DataParallel(model)) == parts(model)
