"""ssse.toml: every option has its key, every key is checked, and every change is written down."""

from __future__ import annotations

import inspect
from typing import Any, get_args

import pytest

from ssse.cli import inspect as records
from ssse.cli import requests
from ssse.cli.options import assignment
from ssse.errors import InvalidSetting
from ssse.workspace import settings as toml
from ssse.workspace import workspace as api
from ssse.workspace.settings import Settings
from tests.support import workspaces
from tests.support.commands import call, call_error, call_json, init
from tests.support.workspaces import make, snapshot

LEAST = {"model.factory": "a:b", "data.train": "t.npz"}
VALUES: dict[str, tuple[str, Any]] = {  # a key → what one may write after --set KEY=, and what it means
    "model.factory": ("pkg.module:make", "pkg.module:make"),
    "model.arguments": ("{hidden = [3, 4], bias = false}", {"hidden": [3, 4], "bias": False}),
    "model.search": ("../src", "../src"),
    "model.loss": ("mse", "mse"),
    "model.device": ('"cuda:1"', "cuda:1"),
    "data.train": ("../train data.npz", "../train data.npz"),
    "data.test": ("'../test.npz'", "../test.npz"),
    "data.inputs": ('["a", "b"]', ["a", "b"]),
    "data.labels": ("target", "target"),
    "data.ids": ("place", "place"),
    "data.classes": ('["cat", "dog"]', ["cat", "dog"]),
    "data.batch_size": ("64", 64),
    "fit.weight_decay": ("1", 1.0),
    "fit.damping": ("1e-3", 1e-3),
    "fit.rows": ("empirical", "empirical"),
    "fit.rows_per_batch": ("10", 10),
    "fit.structure": ("lowrank", "lowrank"),
    "fit.blocks": ("100", 100),
    "fit.rank": ("1_000", 1000),
    "fit.parameters": ('["head.weight"]', ["head.weight"]),
    "fit.dtype": ("float32", "float32"),
    "fit.memory_budget": ("4 GiB", "4 GiB"),
    "fit.n": ("80", 80),
    "fit.seed": ("3", 3),
    "fit.preconditioner": ("none", "none"),
    "fit.tolerance": ("0.1", 0.1),
    "fit.max_iterations": ("7", 7),
    "calibrate.method": ("loss_search", "loss_search"),
    "calibrate.criterion": ("divergence", "divergence"),
    "calibrate.scales": ("[1, 2.5]", [1.0, 2.5]),
    "calibrate.dampings": ("[0.1]", [0.1]),
    "calibrate.whole_class": ("true", True),
    "erase.scale": ("2", 2.0),
    "erase.leave_out": ("false", False),
    "erase.residual": ("true", True),
    "erase.policy": ("joint", "joint"),
    "erase.accept": ("ok", "ok"),
    "erase.refit": ("7", 7),
    "erase.probe": ("none", "none"),
    "erase.confirm": ("always", "always"),
    "erase.old_weights": ("keep", "keep"),
    "erase.old_curvature": ("keep", "keep"),
    "evaluate.level": ("0.01", 0.01),
    "evaluate.same": ("3", 3),
    "record.key": ("../key.pem", "../key.pem"),
    "record.anchor": ("/mnt/heads.txt", "/mnt/heads.txt"),
    "record.anchor_command": ("curl -T - https://heads.example", "curl -T - https://heads.example"),
}
# Parameters of commands that are no settings: what one request is about, and how it is said.
OF_ONE_CALL = {
    *("workspace", "weights", "argument", "again", "when_needed", "forget", "ids", "retrained", "held_out", "request"),
    *("by", "due"),
    *("original", "resurfacing", "dry_run", "override", "settings", "as_json", "quiet", "verbose", "no_wait"),
}
OPTIONS = {  # of each command: the option, what is given, the key, what it means
    "init": [
        ("--model", "a:b", "model.factory", "a:b"),
        ("--data", "a:b", "data.train", "a:b"),
        ("--loss", "mse", "model.loss", "mse"),
        ("--test", "a:c", "data.test", "a:c"),
        ("--inputs", "u, v", "data.inputs", ["u", "v"]),
        ("--inputs", "u", "data.inputs", "u"),
        ("--labels", "l", "data.labels", "l"),
        ("--ids", "place", "data.ids", "place"),
        ("--classes", "cat,dog", "data.classes", ["cat", "dog"]),
        ("--weight-decay", "1", "fit.weight_decay", 1.0),
        ("--damping", "2", "fit.damping", 2.0),
        ("--rows", "sampled", "fit.rows", "sampled"),
        ("--rows", "margin", "fit.rows", "margin"),
        ("--structure", "diagonal", "fit.structure", "diagonal"),
        ("--parameters", "a.b,c", "fit.parameters", ["a.b", "c"]),
        ("--parameters", "head", "fit.parameters", "head"),
        ("--policy", "joint", "erase.policy", "joint"),
        ("--old-weights", "keep", "erase.old_weights", "keep"),
        ("--old-curvature", "keep", "erase.old_curvature", "keep"),
        ("--device", "cpu", "model.device", "cpu"),
        ("--key", "/keys/key.pem", "record.key", "/keys/key.pem"),
        ("--anchor", "/mnt/heads.txt", "record.anchor", "/mnt/heads.txt"),
    ],
    "fit": [
        ("--damping", "2", "fit.damping", 2.0),
        ("--rows", "sampled", "fit.rows", "sampled"),
        ("--rows", "margin", "fit.rows", "margin"),
        ("--structure", "diagonal", "fit.structure", "diagonal"),
    ],
    "calibrate": [
        ("--whole-class", None, "calibrate.whole_class", True),
        ("--method", "loss_search", "calibrate.method", "loss_search"),
        ("--scales", "1, 2e1", "calibrate.scales", [1.0, 20.0]),
        ("--dampings", "0.1", "calibrate.dampings", [0.1]),
    ],
    "erase": [
        ("--scale", "2", "erase.scale", 2.0),
        ("--leave-out", None, "erase.leave_out", True),
        ("--no-leave-out", None, "erase.leave_out", False),
        ("--policy", "joint", "erase.policy", "joint"),
        ("--accept", "ok", "erase.accept", "ok"),
        ("--old-weights", "keep", "erase.old_weights", "keep"),
        ("--old-curvature", "keep", "erase.old_curvature", "keep"),
    ],
    "evaluate": [("--same", "3", "evaluate.same", "3")],
}
BROKEN = {
    "no-toml": (b"[model\n", "is not TOML"),
    "not-text": (b"\xff\xfe[", "is not UTF-8"),
    "empty": (b"", "lacks the setting 'data'"),
    "deep": (b"a = " + b"[" * 4000, "is not TOML"),
    "digits": (b"a = " + b"9" * 5000, "is not TOML"),
    "no-section": (b'fit = 3\nmodel = {factory = "a:b"}\ndata = {train = "t"}', "'fit' is 3, and should be"),
}


def keys() -> list[str]:
    found = []
    for section, field in Settings.model_fields.items():
        found += [f"{section}.{key}" for key in field.annotation.model_fields]  # type: ignore[union-attr]
    return found


def least(**more: Any) -> Settings:
    return toml.from_options(LEAST | {name.replace("__", "."): value for name, value in more.items()})


def found_in(settings: Settings, key: str) -> Any:
    section, name = key.split(".")
    return getattr(getattr(settings, section), name)


# Every key


def test_this_file_knows_every_key():
    assert list(VALUES) == keys()


@pytest.mark.parametrize("key", VALUES)
def test_every_key_can_be_set_and_comes_back(key):
    text, meant = VALUES[key]
    settings = least().with_options(dict([assignment(f"{key}={text}")]))
    assert found_in(settings, key) == meant
    assert type(found_in(settings, key)) is type(meant)
    assert found_in(settings, key) != found_in(least(), key)
    assert toml.parse(settings.to_toml().encode()) == settings
    assert toml.check(settings.to_dict(), "The ledger") == settings
    assert set(toml.changes(least(), settings)) <= {key, "model.arguments.hidden", "model.arguments.bias"}
    assert toml.changes(least(), settings)


@pytest.mark.parametrize("key", VALUES)
def test_a_misspelt_key_is_told_its_nearest(key):
    section, name = key.split(".")
    others = [n for n in keys() if n.startswith(section) and n != key]
    for wrong in filter(None, (name + "x", name[:-1], name[0] + name)):  # of one letter none is left
        if f"{section}.{wrong}" in others:
            continue
        with pytest.raises(InvalidSetting, match=f"unknown setting '{section}.{wrong}'; did you mean '{name}'"):
            least().with_options({f"{section}.{wrong}": 1})
        content = least().to_toml().replace(f"[{section}]\n", f"[{section}]\n{wrong} = 1\n")
        if wrong in content:
            with pytest.raises(InvalidSetting, match=f"^ssse.toml has an unknown setting '{section}.{wrong}'; did you"):
                toml.parse(content.encode())


@pytest.mark.parametrize("section", Settings.model_fields)
def test_a_misspelt_section_is_told_its_nearest(section):
    with pytest.raises(InvalidSetting, match=f"unknown setting '{section}s'; did you mean '{section}'"):
        least().with_options({f"{section}s.x": 1})
    with pytest.raises(InvalidSetting, match="unknown setting 'zzz'; there are model, data, fit"):
        least().with_options({"zzz.x": 1})
    with pytest.raises(InvalidSetting, match=f"unknown setting '{section}.qqqq'; there are "):
        least().with_options({f"{section}.qqqq": 1})


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("fit.rank", 0, "greater than or equal to 1"),
        ("fit.rank", True, "valid integer"),
        ("fit.rank", 2**40, "less than or equal to"),
        ("fit.damping", float("nan"), "finite number"),
        ("fit.damping", -1, "greater than 0"),
        ("fit.damping", "1", "valid number"),
        ("fit.rows", "all", "'auto', 'expected', 'margin', 'empirical' or 'sampled'"),
        ("fit.seed", 2**32, "less than or equal to"),
        ("fit.blocks", 1.5, "'auto', 'one', 'parameter' or 'output'; or should be a valid integer"),
        ("calibrate.scales", [1.0, 0.0], "greater than 0"),
        ("calibrate.scales", 3.0, "valid list"),
        ("data.train", "", "at least 1 character"),
        ("data.train", "a\x00b", "without control characters"),
        ("data.train", "a\nb", "without control characters"),
        ("data.train", "\udcff", "should be a valid string"),
        ("data.train", "x" * 5000, "at most 4096"),
        ("data.classes", ["cat", 3], "valid string"),
        ("erase.scale", 10**400, "valid number"),
        ("erase.leave_out", "no", "valid boolean"),
        ("evaluate.level", 1.0, "less than 1"),
        ("evaluate.same", -1, "greater than or equal to 0"),
        ("model.arguments", {"x": float("inf")}, "finite numbers"),
        ("model.arguments", {"x": {"y": [None]}}, "texts, finite numbers"),
        ("model.arguments", {"x": 2**63}, "64 bits"),
        ("model.arguments", {"x\x1b": 1}, "control characters"),
        ("model.arguments", {"x": [[[[[[[[[[1]]]]]]]]]]}, "nested that deep"),
        ("model", 3, "valid dictionary"),
    ],
    ids=lambda part: ascii(part)[:30],
)
def test_values_that_have_no_meaning(key, value, says):
    with pytest.raises(InvalidSetting, match=r"^The command line: ") as caught:
        toml.from_options(LEAST | {key: value})
    assert says in str(caught.value)
    assert f"'{key}" in str(caught.value)
    assert len(str(caught.value)) < 400


def test_dates_are_no_arguments():
    content = least().to_toml().replace("[model.arguments]", "[model.arguments]\nday = 2026-01-01")
    with pytest.raises(InvalidSetting, match=r"model\.arguments"):
        toml.parse(content.encode())


def test_numbers_of_thousands_of_digits():
    with pytest.raises(InvalidSetting, match=r"'fit\.rank' is too large to be shown"):
        toml.parse(least().to_toml().replace("[fit]", "[fit]\nrank = 0x" + "f" * 5000).encode())


def test_several_mistakes_are_counted_once_each():
    with pytest.raises(InvalidSetting, match=r"'fit.blocks' is 1.5, and .*\.$"):
        least(fit__blocks=1.5)
    with pytest.raises(InvalidSetting, match=r"unknown setting 'fit.ranc'; did you mean 'rank'\? \(1 more\.\)$"):
        least(fit__ranc=1, fit__blocs=1)


@pytest.mark.parametrize("text", ["", "=", "fit", "fit=3", "=fit.rank", "rank=3"])
def test_what_set_takes(text):
    with pytest.raises(InvalidSetting, match=r"--set takes SECTION\.KEY=VALUE"):
        assignment(text)


def test_what_set_reads():
    assert assignment("a.b= c = d ") == ("a.b", " c = d ")
    assert assignment("a.b=1\nc = 2") == ("a.b", "1\nc = 2")  # one value, not a page of settings
    assert assignment("a.b=" + "[" * 4000) == ("a.b", "[" * 4000)
    assert assignment(" a.b.c =[1, {d = 2}]") == ("a.b.c", [1, {"d": 2}])


# Options of commands


@pytest.mark.parametrize("command", OPTIONS)
def test_every_option_has_its_key(command):
    function = getattr(records if command == "evaluate" else requests, command)
    named = {option.removeprefix("--no-").removeprefix("--").replace("-", "_") for option, *_ in OPTIONS[command]}
    of_data = {"test", "inputs", "labels", "ids"}  # for `init` what the data is; for others what is asked for
    rest = set(inspect.signature(function).parameters) - named
    assert rest <= OF_ONE_CALL | (of_data if command != "init" else set()), command
    assert {key for _, _, key, _ in OPTIONS[command]} <= set(VALUES)


@pytest.mark.parametrize(
    ("command", "option", "given", "key", "meant"),
    [(command, *rest) for command, options in OPTIONS.items() for rest in options],
    ids=lambda part: ascii(part)[:24],
)
def test_options_arrive_under_their_keys(tmp_path, monkeypatch, command, option, given, key, meant):
    """And win over --set, which wins over the file."""
    seen: list[Any] = []

    def stop(_: Any, *positional: Any, options: Any = None, **__: Any) -> None:
        seen.append(positional[1] if command == "init" else options or positional[0])
        raise InvalidSetting("seen")

    monkeypatch.setattr(api.Workspace, command, classmethod(stop) if command == "init" else stop)
    words = {
        "init": ["--model", "a:b", "--data", "a:b", "--weights", "w"],
        "erase": ["--request", "r"],
    }.get(command, [])
    other = "keep" if meant == "shred" else "shred"
    sets = ["--set", f"{key}={other}"] if isinstance(meant, str) else ["--set", f"{key}=7"]
    call(command, tmp_path / "ws", *words, *sets, option, *([] if given is None else [given]), code=2)
    found = seen[0] if command == "init" else least().with_options(seen[0])
    assert found_in(found, key) == meant


def test_the_same_choices_on_the_command_line_and_in_the_file():
    for choices, key in (
        (requests.Rows, "fit.rows"),
        (requests.Structure, "fit.structure"),
        (requests.Policy, "erase.policy"),
        (requests.Fate, "erase.old_weights"),
        (requests.Fate, "erase.old_curvature"),
        (requests.Method, "calibrate.method"),
    ):
        section, name = key.split(".")
        field = Settings.model_fields[section].annotation.model_fields[name]  # type: ignore[union-attr]
        assert get_args(choices) == get_args(field.annotation), key


def test_set_reaches_what_init_would_choose_itself(tmp_path):
    workspaces.files(tmp_path)
    init(tmp_path, "--set", "model.search=/nowhere", "--set", "model.arguments.bias=true", "--set", "data.batch_size=7")
    written = toml.read(tmp_path / "ws" / "ssse.toml")
    assert (written.model.search, written.data.batch_size) == ("/nowhere", 7)
    assert written.model.arguments == {"in_features": 4, "out_features": 3, "bias": True}


# The file


def test_an_edited_file_is_written_down_by_the_next_command(tmp_path):
    made = make(tmp_path)
    path = made.path / "ssse.toml"
    path.write_text(path.read_text().replace('old_weights = "shred"', 'old_weights = "keep"\nscale = 0.5'))
    assert call_json("erase", made.path, "--request", "a", "--ids", "s1", "--dry-run")["details"]["scale"] == 0.5
    answer = call_json("erase", made.path, "--request", "a", "--ids", "s1", "--set", "erase.residual=true")
    assert answer["details"]["scale"] == 0.5
    configured = [entry for entry in made.workspace.log().entries if entry.kind == "configured"]
    assert [entry.details["changes"] for entry in configured] == [
        {"erase.old_weights": ["shred", "keep"], "erase.scale": [None, 0.5]}
    ]
    assert configured[0].seq + 1 == answer["entries"][0]["seq"]
    assert configured[0].details["settings"] == made.workspace.settings().to_dict()
    assert "erase.scale: not set → 0.5" in call("log", made.path)[0].replace("\n", "")
    assert call_json("verify", made.path)["ok"]
    path.write_text(path.read_text().replace("scale = 0.5\n", "# a remark\n"))
    call("evaluate", made.path)
    configured = [entry for entry in made.workspace.log().entries if entry.kind == "configured"]
    assert [entry.details["changes"] for entry in configured[1:]] == [{"erase.scale": [0.5, None]}]
    call("erase", made.path, "--request", "b", "--ids", "s2")
    assert sum(entry.kind == "configured" for entry in made.workspace.log().entries) == 2
    assert "# a remark" in path.read_text()  # it is the user's file


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_one_line(tmp_path, name):
    made = make(tmp_path)
    content, says = BROKEN[name]
    (made.path / "ssse.toml").write_bytes(content)
    before = snapshot(made.path)
    for command, *rest in (
        *(["fit", "--again"], ["erase", "--request", "a", "--ids", "s1"]),
        *(["calibrate", "--ids", "s1"], ["evaluate"]),
    ):
        said = call_error(command, made.path, *rest)
        assert said.startswith("ssse.toml")
        assert says in said
    assert snapshot(made.path) == before
    assert call_json("log", made.path)["entries"]
    assert call_json("verify", made.path, code=4)["damages"][0]["file"] == "ssse.toml"


def test_a_byte_order_mark_is_no_mistake():
    assert toml.parse(b"\xef\xbb\xbf" + least().to_toml().encode()) == least()
