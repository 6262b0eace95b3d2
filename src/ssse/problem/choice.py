"""Which parameters make up θ: `parameters=` in all its forms → a layout."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from torch import nn

from ssse.errors import InvalidModel, InvalidSetting
from ssse.problem.adapters import choose_adapters, refuse_idle_adapters
from ssse.problem.parameters import Layout
from ssse.problem.parts import head_names, last_blocks, trainable_parameters
from ssse.problem.unusable import refuse_in_theta, refuse_quantised

ParameterChoice = str | Sequence[str] | Callable[[str, nn.Parameter], bool]

FORMS = (
    '"all", "head", "adapters", "last block", a name or a glob such as "encoder.*", a list of them, or a function of '
    "(name, parameter)"
)


def choose_parameters(model: nn.Module, choice: ParameterChoice, known_as: Mapping[str, str] | None = None) -> Layout:
    """Names → layout, in `named_parameters()` order; frozen parameters stay out.

    Args:
        choice: "all" or "trainable"; "head", the last linear layer; "adapters", what peft made trainable; "last block",
            "last 3 blocks", … as `ssse.problem.parts` finds them; a name; a glob, in which `*` also stands for points;
            a list of names and globs; or a function of (name, parameter), asked about every trainable one.
        known_as: other names of the same parameters, such as those in a wrapper.
    """
    trainable = trainable_parameters(model)
    if not trainable:
        refuse_quantised(model)
        raise InvalidModel("No parameter of the model has requires_grad=True, so there is nothing to change.")
    if isinstance(choice, str):
        names = set(_by_word(model, choice, trainable, known_as or {}))
    elif callable(choice):
        names = {name for name, p in trainable.items() if choice(name, p)}
        if not names:
            raise InvalidSetting("parameters is a function that takes none of the model's trainable parameters.")
    else:
        names = set(_by_list(model, choice, trainable, known_as or {}))
    refuse_idle_adapters(model, names)
    refuse_in_theta({name: p for name, p in trainable.items() if name in names})
    ordered = [name for name in trainable if name in names]
    return Layout(tuple(ordered), tuple(tuple(trainable[name].shape) for name in ordered))


def _by_word(
    model: nn.Module, word: str, trainable: Mapping[str, nn.Parameter], known_as: Mapping[str, str]
) -> Iterable[str]:
    match word:
        case "all" | "trainable":
            return trainable
        case "head":
            return head_names(model)
        case "adapters":
            return choose_adapters(model, trainable)
    if known_as.get(word, word) in dict(model.named_parameters()) or _is_glob(word):
        return _by_list(model, [word], trainable, known_as)
    blocks = last_blocks(model)
    if word in blocks:
        return blocks[word]
    if word.startswith("last ") and blocks:
        raise InvalidSetting(f"parameters={word!r}: the model's parts of this kind are {', '.join(blocks)}.")
    near = difflib.get_close_matches(word, ["all", "trainable", "head", "adapters", *blocks, *trainable], 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise InvalidSetting(f"parameters must be {FORMS}, not {word!r}.{hint}")


def _by_list(
    model: nn.Module, choice: Iterable[str], trainable: Mapping[str, nn.Parameter], known_as: Mapping[str, str]
) -> set[str]:
    known = dict(model.named_parameters())
    chosen: set[str] = set()
    try:
        asked = list(choice)
    except TypeError:
        raise InvalidSetting(f"parameters must be {FORMS}, not a {type(choice).__name__}.") from None
    for given in asked:
        if not isinstance(given, str):
            raise InvalidSetting(f"parameters lists names, which are texts; one entry is {given!r}.")
        name = given if given in known else known_as.get(given, given)
        if name in known or not _is_glob(name):
            chosen.add(_one(name, known, trainable))
            continue
        found = {one for one in trainable if fnmatchcase(one, name)}
        if not found:
            frozen = any(fnmatchcase(one, name) for one in known)
            raise InvalidSetting(
                f"All parameters that match '{name}' are frozen (requires_grad=False)."
                if frozen
                else f"No parameter of the model matches '{name}'. They are called, for instance, "
                f"{', '.join(list(trainable)[:3])}."
            )
        chosen |= found
    if not chosen:
        raise InvalidSetting("parameters is an empty list; name at least one.")
    return chosen


def _one(name: str, known: Mapping[str, nn.Parameter], trainable: Mapping[str, nn.Parameter]) -> str:
    if name in trainable:
        return name
    near = difflib.get_close_matches(name, trainable, 1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    raise InvalidSetting(
        f"Parameter '{name}' is frozen (requires_grad=False)."
        if name in known
        else f"The model has no parameter '{name}'.{hint}"
    )


def _is_glob(text: str) -> bool:
    return any(sign in text for sign in "*?[")
