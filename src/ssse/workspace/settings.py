"""`ssse.toml`: every option of every command, checked when it is read. Nothing here imports torch."""

from __future__ import annotations

import difflib
import math
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from ssse.erasure.policy import Policy
from ssse.errors import Damaged, InvalidSetting
from ssse.intake.importing import is_spec
from ssse.system.extras import needed_for

with needed_for("A workspace"):
    import tomli_w
    from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
    from pydantic_core import PydanticCustomError

FILE = "ssse.toml"
HEADER = """\
# Settings of this workspace. Paths are relative to this file. Every option of the command line has its place here; one
# given on the command line counts for that command alone. The next command writes a change into the ledger; of [record]
# `ssse upgrade` does, and edits are refused.

"""

CODE = ("model.factory", "model.search", "model.loss", "data.train", "data.test")  # where code may be named
LARGEST = 2**31 - 1  # of what is counted
DEEPEST = 8  # lists and tables within each other, in the arguments of a model


def _without_control_signs(text: str) -> str:
    """Neither a file nor a name has them, and they would travel into the ledger and onto terminals."""
    if any(ord(sign) < 32 or 127 <= ord(sign) < 160 or 0xD800 <= ord(sign) < 0xE000 for sign in text):
        raise PydanticCustomError("text", "should be Unicode text without control characters")
    return text


def _as_toml_and_json_hold_it(value: Any, deep: int = 0) -> Any:
    """The model is built from the same arguments by every command, so they must come back as they were."""
    if deep > DEEPEST:
        raise PydanticCustomError("argument", "should not be nested that deep")
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _as_toml_and_json_hold_it(key, deep + 1)
            _as_toml_and_json_hold_it(inner, deep + 1)
    elif isinstance(value, list):
        for inner in value:
            _as_toml_and_json_hold_it(inner, deep + 1)
    elif isinstance(value, str):
        _without_control_signs(value)
    elif isinstance(value, int):
        if abs(value) >= 2**63:
            raise PydanticCustomError("argument", "should hold whole numbers of 64 bits at most")
    elif not isinstance(value, float) or not math.isfinite(value):
        raise PydanticCustomError("argument", "should hold texts, finite numbers, true, false, lists and tables alone")
    return value


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=LARGEST)]
Bytes = Annotated[int, Field(ge=1, le=2**53)]
Place = Annotated[int, Field(ge=0, le=LARGEST)]
Text = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_without_control_signs)]
Arguments = Annotated[dict[str, Any], AfterValidator(_as_toml_and_json_hold_it)]


class Section(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, strict=True)


class Model(Section):
    """The user's model: `pkg.module:factory`, called with the arguments; where Python looks for it after the installed
    modules; its loss.

    Without a factory the model is one of scikit-learn's in a skops file, which says by itself what it holds.
    """

    factory: Text | None = None
    arguments: Arguments = {}
    search: Text = "."
    loss: Text = "cross_entropy"
    device: Text = "auto"

    def identity(self) -> dict[str, Any]:
        """What makes the function that the weights are of."""
        return self.model_dump(mode="json", include={"factory", "arguments", "loss"})

    @property
    def is_estimator(self) -> bool:
        """Of scikit-learn, and not of torch: here that is decided, for all commands."""
        return self.factory is None or self.factory.startswith("sklearn.")


class Data(Section):
    """The training data, and the names of its parts where they are not the usual ones."""

    train: Text
    test: Text | None = None
    inputs: Text | list[Text] | None = None
    labels: Text | None = None
    ids: Text | None = None
    classes: list[Text] = []
    batch_size: Count = 1024


class Fit(Section):
    """As in `ssse.Curvature.fit`."""

    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    damping: Positive | None = None
    rows: Literal["auto", "expected", "margin", "empirical", "sampled"] = "auto"
    rows_per_batch: Count = 1
    structure: Literal["auto", "dense", "lowrank", "matrix_free", "diagonal", "recurrence"] = "auto"
    blocks: Literal["auto", "one", "parameter", "output"] | Count = "auto"
    rank: Count | None = None
    parameters: Text | list[Text] = "all"
    dtype: Literal["float32", "float64"] | None = None
    memory_budget: Text | Bytes | None = None
    n: Count | None = None
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 0
    preconditioner: Text = "auto"
    tolerance: Positive | None = None
    max_iterations: Count = 1000


class Calibrate(Section):
    """As in `ssse.calibrate`."""

    method: Literal["auto", "retrained", "attack_parity", "loss_search", "line_search"] = "auto"
    criterion: Literal["ratio", "divergence"] = "ratio"
    scales: list[Positive] = []
    dampings: list[Positive] = []
    whole_class: bool = False


class Erase(Section):
    """As in `ssse.erase`; and what becomes of what the old model was."""

    scale: Positive | None = None
    leave_out: bool = True
    residual: bool = False
    policy: Policy = "rebase"
    accept: Literal["caution", "ok"] = "caution"
    refit: Literal["when_needed", "never"] | Count = "when_needed"
    probe: Literal["test", "none"] = "test"
    confirm: Literal["when_unsure", "always", "never"] = "when_unsure"
    old_weights: Literal["shred", "keep"] = "shred"
    old_curvature: Literal["shred", "keep"] = "shred"


class Evaluate(Section):
    """As in `ssse.evaluate`."""

    level: Annotated[float, Field(gt=0, lt=1)] = 0.05
    same: Text | Place = "auto"


class Record(Section):
    """Who vouches for the ledger: the private key that signs its entries, and where its heads go."""

    key: Text | None = None
    anchor: Text | None = None
    anchor_command: Text | None = None


class Settings(Section):
    model: Model = Model()
    data: Data
    fit: Fit = Fit()
    calibrate: Calibrate = Calibrate()
    erase: Erase = Erase()
    evaluate: Evaluate = Evaluate()
    record: Record = Record()

    def to_dict(self) -> dict[str, Any]:
        """As TOML and JSON write it; what was not set and has no default is left out."""
        return self.model_dump(mode="json", exclude_none=True)

    def to_toml(self) -> str:
        return HEADER + tomli_w.dumps(self.to_dict())

    def with_record(self, given: Mapping[str, str | None]) -> Settings:
        """`given`: of the section [record]; None takes a setting out."""
        plain = self.to_dict()
        record = {name: value for name, value in {**plain["record"], **given}.items() if value is not None}
        return check({**plain, "record": record}, "The command line")

    def with_options(self, options: Mapping[str, Any]) -> Settings:
        """`options`: "section.key" → value; None means that it was not given."""
        given = {key: value for key, value in options.items() if value is not None}
        if not given:
            return self
        plain = self.to_dict()
        for key, value in given.items():
            _put(plain, key, value)
        return check(plain, "The command line")


def read(path: Path) -> Settings:
    if not path.is_file():
        raise Damaged(f"'{path}' is missing. Restore it from a backup; the ledger has its content.")
    return parse(path.read_bytes(), path.name)


def parse(content: bytes, name: str = FILE) -> Settings:
    try:
        found = tomllib.loads(content.decode("utf-8-sig"))  # some editors put a byte-order mark before it
    except UnicodeDecodeError as error:
        raise InvalidSetting(f"{name} is not UTF-8 text: {error.reason} at byte {error.start}.") from None
    except (ValueError, RecursionError) as error:  # also of numbers with thousands of digits
        raise InvalidSetting(f"{name} is not TOML: {error}.") from None
    return check(found, name)


def check(found: Mapping[str, Any], name: str) -> Settings:
    try:
        return Settings.model_validate(_floats(found))
    except ValidationError as error:
        raise InvalidSetting(_in_words(error, name)) from None


def from_options(options: Mapping[str, Any]) -> Settings:
    """A whole set of settings from "section.key" alone."""
    plain: dict[str, Any] = {}
    for key, value in options.items():
        _put(plain, key, value)
    return check(plain, "The command line")


def changes(before: Settings, after: Settings) -> dict[str, list[Any]]:
    """What differs, as "section.key": [old, new]."""
    old, new = (_flat(settings.to_dict()) for settings in (before, after))
    return {key: [old.get(key), new.get(key)] for key in sorted({*old, *new}) if old.get(key) != new.get(key)}


def refuse_other_code(recorded: Settings, found: Settings) -> None:
    """Whose code a workspace runs is said at `init`, and in the ledger since: an edited text file cannot name another.

    Raises:
        InvalidSetting: the file names another factory, another folder to look in, or another loss or data of code.
    """
    for key, (old, new) in changes(recorded, found).items():
        always = key in ("model.factory", "model.search")
        if key in CODE and (always or any(one is not None and is_spec(one) for one in (old, new))):
            raise InvalidSetting(
                f"{FILE}: '{key}' is {_short(new)}, and was {_short(old)} when the workspace was made. Which code is "
                "run is said at `ssse init`: put it back, or make a new workspace. For one command, --set "
                f"{key}=… says it."
            )


def refuse_other_record(recorded: Settings, found: Settings) -> None:
    """Who vouches for the ledger is said at `init` or `upgrade`, and in the ledger since: an edited text file cannot
    end the signatures, begin them on a ledger that somebody else made, or send the heads elsewhere.

    Raises:
        InvalidSetting: the file names another key or anchor, or none where there was one.
    """
    for key, (old, new) in changes(recorded, found).items():
        section, _, name = key.partition(".")
        if section == "record":
            give_up = f"--without {name} gives it up for good"
            act = give_up if name == "anchor_command" else f"--{name} FILE names one, {give_up}"
            raise InvalidSetting(
                f"{FILE}: '{key}' is {_short(new)}, and in the ledger {_short(old)}. Put it back; to change it, `ssse "
                f"upgrade` with {act}. If the ledger is not the one that you know, restore a backup."
            )


def elsewhere(path: str, of: Path) -> str:
    """A path that does not move with the workspace stays as it is where it is absolute."""
    return path if os.path.isabs(path) else relative(path, of)


def relative(path: str, to: Path) -> str:
    """A path of the command line, as seen from the workspace; "../" must mean the same however both are reached."""
    return Path(os.path.relpath(os.path.join(os.path.realpath("."), path), os.path.realpath(to))).as_posix()


def absolute(path: str, of: Path) -> Path:
    """A path in the settings, from wherever one is."""
    return Path(os.path.normpath(os.path.join(os.path.realpath(of), path)))


def _put(plain: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    place = plain
    for section in sections:
        place = place.setdefault(section, {})
        if not isinstance(place, dict):
            raise InvalidSetting(f"'{key}': '{section}' is not a section.")
    place[last] = value


def _flat(plain: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in plain.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _floats(found: Mapping[str, Any]) -> dict[str, Any]:
    """TOML tells 1 from 1.0; a person who writes `scale = 1` means the number."""
    out = {section: dict(body) if isinstance(body, Mapping) else body for section, body in found.items()}
    for section, field in Settings.model_fields.items():
        body, kind = out.get(section), field.annotation
        if not isinstance(body, dict) or not (isinstance(kind, type) and issubclass(kind, Section)):
            continue
        for key, value in body.items():
            known = kind.model_fields.get(key)
            if known is not None and "float" in str(known.annotation):
                body[key] = _as_float(value)
    return out


def _as_float(value: Any) -> Any:
    return [_number(entry) for entry in value] if isinstance(value, list) else _number(value)


def _number(value: Any) -> Any:
    whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53
    return float(value) if whole else value


def _in_words(error: ValidationError, name: str) -> str:
    """One sentence for the first thing that is wrong; an unknown name with the nearest known one."""
    first = error.errors()[0]
    path = [str(part) for part in first["loc"]]
    place = ".".join(path[:2])
    others = len({e["loc"][:2] for e in error.errors()}) - 1
    more = f" ({others} more.)" if others else ""
    if first["type"] == "extra_forbidden":
        known = list(_section_of(path).model_fields)
        near = difflib.get_close_matches(path[-1], known, 1)
        hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(known)}."
        return f"{name} has an unknown setting '{place}'; {hint}{more}"
    if first["type"] == "missing":
        return f"{name} lacks the setting '{place}'.{more}"
    same = [e for e in error.errors() if e["loc"][: len(path[:2])] == first["loc"][: len(path[:2])]]
    wanted = "; or ".join(dict.fromkeys(e["msg"].removeprefix("Input ").rstrip(".") for e in same))
    return f"{name}: '{place}' is {_short(first['input'])}, and {wanted}."


def _section_of(path: list[str]) -> type[BaseModel]:
    if len(path) < 2:
        return Settings
    kind = Settings.model_fields[path[0]].annotation
    assert isinstance(kind, type)
    assert issubclass(kind, BaseModel)
    return kind


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # thousands of digits, thousands of brackets
        return "too large to be shown"
    return text if len(text) <= 60 else text[:57] + "…"
