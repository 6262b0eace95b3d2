"""The user's model and weights in a workspace: built, read, matched; refused in words; no pickle is executed."""

from __future__ import annotations

import io
import pickle
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ssse.errors import InvalidData, InvalidModel, InvalidSetting
from ssse.intake.importing import import_object
from ssse.intake.models import build_model, load_weights, read_weights, weights_of, write_weights
from tests.support.data_files import Bomb

USER = """
import torch
from torch import nn

ready = nn.Linear(3, 2)
number = 7
stuck = nn.Linear(3, 2)
stuck.held = (x for x in ())

def make(width, depth=1):
    import user_helper  # found beside this module also when the factory runs
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(depth)])

def broken(width=3):
    raise RuntimeError(f"no weights for {width}")

def other():
    return torch.zeros(3)

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.head = nn.Linear(4, classes)
"""


@pytest.fixture
def user(tmp_path: Path) -> Path:
    (tmp_path / "user_model.py").write_text(USER, encoding="utf-8")
    (tmp_path / "user_helper.py").write_text("", encoding="utf-8")
    (tmp_path / "raises.py").write_text("raise ValueError('bad day')", encoding="utf-8")
    (tmp_path / "leaves.py").write_text("import sys; sys.exit(3)", encoding="utf-8")
    (tmp_path / "needs.py").write_text("import not_installed_anywhere", encoding="utf-8")
    return tmp_path


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3)
        self.last.weight = self.first.weight


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(a[k].dtype == b[k].dtype and torch.equal(a[k], b[k]) for k in a)


# Building


def test_models_are_built_by_the_users_code(user):
    built = build_model("user_model:make", {"width": 3, "depth": 2}, user)
    assert [tuple(p.shape) for p in built.parameters()] == [(3, 3), (3,), (3, 3), (3,)]
    assert build_model("user_model:Net", {"classes": 5}, user).head.out_features == 5  # type: ignore[union-attr]
    assert build_model("torch.nn:Identity", {}, None).training
    one, two = (build_model("user_model:ready", {}, user) for _ in range(2))
    assert one is not two
    assert one is not sys.modules["user_model"].ready
    assert str(user) not in sys.path


@pytest.mark.parametrize(
    ("factory", "arguments", "error", "words"),
    [
        ("user_model", {}, InvalidSetting, "as pkg.module:name, for instance .*not 'user_model'"),
        ("user model:make", {}, InvalidSetting, "as pkg.module:name"),
        ("../user_model:make", {}, InvalidSetting, "as pkg.module:name"),
        ("user_modle:make", {}, InvalidSetting, "no module 'user_modle' in .*installed.*Did you mean 'user_model'"),
        ("user_model.deeper:make", {}, InvalidSetting, "no module 'user_model.deeper'"),
        ("nowhere.at.all:make", {}, InvalidSetting, "no module 'nowhere' in"),
        ("user_model:mak", {}, InvalidSetting, r"user_model\.py\) has no 'mak'\. Did you mean 'make'"),
        ("sys:mak", {}, InvalidSetting, "built into Python"),
        ("raises:make", {}, InvalidSetting, "importing 'raises' raised ValueError: bad day"),
        ("leaves:make", {}, InvalidSetting, "raised SystemExit: 3"),
        ("needs:make", {}, InvalidSetting, "raised ModuleNotFoundError: No module named 'not_installed.*Install"),
        ("user_model:make", {}, InvalidSetting, r"takes \(width, depth=1\).*missing a required argument: 'width'"),
        ("user_model:make", {"width": 2, "dept": 3}, InvalidSetting, "unexpected keyword argument 'dept'"),
        ("user_model:make", {"width": "a"}, InvalidModel, "raised TypeError: .* called with width='a'"),
        ("user_model:broken", {}, InvalidModel, "raised RuntimeError: no weights for 3 when.*no arguments"),
        ("user_model:other", {}, InvalidModel, "must return a torch.nn.Module; it returned a Tensor"),
        ("user_model:number", {}, InvalidModel, "must be a function or class that makes a model.*not a int"),
        ("user_model:ready", {"width": 2}, InvalidSetting, "is a model already and takes no arguments; got 'width'"),
        ("user_model:stuck", {}, InvalidModel, "cannot be copied: TypeError"),
    ],
)
def test_models_that_cannot_be_built(user, factory, arguments, error, words):
    path = list(sys.path)
    with pytest.raises(error, match=words):
        build_model(factory, arguments, user)
    assert sys.path == path


def test_a_module_of_one_folder_does_not_answer_for_another(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name / "pack").mkdir(parents=True)
        (tmp_path / name / "user_value.py").write_text(f"value = '{name}'")
        (tmp_path / name / "pack" / "inner.py").write_text(f"value = '{name} inside'")
    for name in ("one", "two", "two", "one"):
        assert import_object("user_value:value", tmp_path / name, "model") == name
        assert import_object("pack.inner:value", tmp_path / name, "model") == f"{name} inside"


def test_installed_modules_stay_where_they_are(tmp_path):
    """Also where the folder to search lies above them."""
    kept = sys.modules["safetensors"]
    import_object("safetensors:safe_open", Path(kept.__file__ or "").parents[1], "model")
    assert sys.modules["safetensors"] is kept


@pytest.mark.parametrize("name", ["safetensors", "json", "sys", "pandas"])
def test_a_module_that_is_called_as_an_installed_one_is_to_be_renamed(name, tmp_path):
    for own in (tmp_path / "file" / f"{name}.py", tmp_path / "package" / name / "__init__.py"):
        own.parent.mkdir(parents=True)
        own.write_text("raise SystemExit('was run')")
        folder = tmp_path / ("file" if own.name != "__init__.py" else "package")
        with pytest.raises(InvalidSetting, match=rf"'{name}' is also an installed module.*Rename '.*{own.name}'"):
            import_object(f"{name}:model", folder, "model")


# Reading and writing weights


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt", "w.pth", "w.bin", "w.ckpt", "W.PT"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_weights_come_back_as_they_were(tmp_path, name, dtype):
    model = network().to(dtype)
    state = dict(model.state_dict())
    if name.endswith("safetensors"):
        write_weights(tmp_path / name, weights_of(model))
    else:
        torch.save(model.state_dict(), tmp_path / name)
    found = read_weights(tmp_path / name)
    assert same(found, state)
    loaded = load_weights(network(1).to(torch.float32), found, name)
    assert same(dict(loaded.state_dict()), state)
    assert not loaded.training
    assert all(p.requires_grad for p in loaded.parameters())


@pytest.mark.parametrize("key", ["state_dict", "model_state_dict", "model"])
def test_weights_inside_a_checkpoint(tmp_path, key):
    state = network().state_dict()
    checkpoint = {key: state, "epoch": 3, "optimizer": {"lr": 0.1, "state": [torch.zeros(2)]}}
    torch.save(checkpoint, tmp_path / "c.ckpt")
    assert same(read_weights(tmp_path / "c.ckpt"), dict(state))


def test_old_files_of_torch(tmp_path):
    torch.save(network().state_dict(), tmp_path / "w.pt", _use_new_zipfile_serialization=False)
    assert same(read_weights(tmp_path / "w.pt"), dict(network().state_dict()))


def test_safetensors_are_known_by_their_content(tmp_path):
    write_weights(tmp_path / "w.bin", weights_of(network()))
    assert same(read_weights(tmp_path / "w.bin"), dict(network().state_dict()))
    torch.save(network().state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(InvalidData, match="cannot be read as a safetensors file"):
        read_weights(tmp_path / "w.safetensors")


def test_the_same_weights_give_the_same_bytes(tmp_path):
    weights = weights_of(network())
    write_weights(tmp_path / "a", weights)
    write_weights(tmp_path / "b", dict(reversed(weights.items())))
    write_weights(tmp_path / "c", read_weights_under(tmp_path, "a"))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes()


def read_weights_under(folder: Path, name: str) -> dict[str, Tensor]:
    return load_file(folder / name)


def test_tied_and_sliced_weights_can_be_written(tmp_path):
    model = Tied()
    whole = torch.randn(4, 6)
    model.register_buffer("part", whole[:, ::2])
    model.register_buffer("rows", whole[1:3])
    weights = weights_of(model)
    assert all(value.is_contiguous() and not value.requires_grad for value in weights.values())
    write_weights(tmp_path / "w.safetensors", weights)
    assert same(read_weights(tmp_path / "w.safetensors"), dict(model.state_dict()))


def save(path: Path, content: Any) -> Path:
    torch.save(content, path)
    return path


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (torch.zeros(3), "holds a Tensor, not tensors by name"),
        ([torch.zeros(3)], "holds a list"),
        ({}, "holds no tensors"),
        ({"model": {}}, "holds no tensors"),
        ({"weight": torch.zeros(2), "epoch": 3}, "'epoch' is a int, not a tensor"),
        ({"model": {"weight": torch.zeros(2), "names": ["a"]}}, "'names' is a list, not a tensor"),
        ({0: torch.zeros(2)}, "'0' is a Tensor, not a tensor with a name"),
        ({"model": {"a": torch.zeros(2)}, "state_dict": {"a": torch.zeros(2)}}, "'state_dict', 'model', and only one"),
        ({"w": torch.zeros(2, 2).to_sparse()}, "'w' is sparse"),
    ],
)
def test_files_that_hold_other_things(tmp_path, content, words):
    with pytest.raises(InvalidData, match=words):
        read_weights(save(tmp_path / "w.pt", content))


def test_a_whole_model_is_refused(tmp_path):
    with pytest.raises(
        InvalidData, match=r"more than tensors \(it asks for torch.*never executed\. Save the weights alone"
    ):
        read_weights(save(tmp_path / "w.pt", network()))


@pytest.mark.parametrize("name", ["w.pt", "w.pth", "w.bin", "w.ckpt", "w.safetensors"])
@pytest.mark.parametrize("form", ["zip", "old", "plain", "inside"])
def test_malicious_files_are_never_executed(tmp_path, name, form):
    proof, path = tmp_path / "executed", tmp_path / name
    if form == "plain":
        path.write_bytes(pickle.dumps({"weight": Bomb(proof)}))
    else:
        content = {"state_dict": {"weight": Bomb(proof)}} if form == "inside" else {"weight": Bomb(proof)}
        torch.save(content, path, _use_new_zipfile_serialization=form != "old")
    with pytest.raises(InvalidData, match=r"never executed|never unpickled|cannot be read as a safetensors file"):
        read_weights(path)
    assert not proof.exists()
    pickle.loads(pickle.dumps(Bomb(proof)))
    assert proof.exists()  # the bomb is a real one


def test_weights_that_are_not_there_or_of_no_known_format(tmp_path):
    save(tmp_path / "weights.pt", {})
    with pytest.raises(InvalidData, match=r"is not a file\. Did you mean 'weights\.pt'"):
        read_weights(tmp_path / "weight.pt")
    with pytest.raises(InvalidData, match="is not a file"):
        read_weights(tmp_path)
    (tmp_path / "w.h5").write_bytes(b"")
    with pytest.raises(InvalidData, match=r"one of \.safetensors, \.pt, \.pth, \.bin, \.ckpt, not \.h5"):
        read_weights(tmp_path / "w.h5")
    (tmp_path / "w.pt").write_bytes(b"")
    with pytest.raises(InvalidData, match=r"cannot be read as a file of torch.save|more than tensors"):
        read_weights(tmp_path / "w.pt")


# Loading them


def changed(**changes: Tensor | None) -> dict[str, Tensor]:
    weights = weights_of(network(2))
    for name, value in changes.items():
        key = name.replace("_", ".", 1).lstrip("n")
        weights.pop(key, None)
        if value is not None:
            weights[key] = value
    return weights


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (changed(n0_weight=None), r"'w\.pt' are not this model's: they lack '0\.weight'\. Build"),
        (changed(n3_weight=torch.zeros(2)), r"they hold '3\.weight', which the model does not have"),
        (
            changed(n0_weight=None, n0_wieght=torch.zeros(4, 3)),
            r"lack '0\.weight' and hold '0\.wieght'.*Did you mean '0\.weight'",
        ),
        (
            changed(n0_weight=torch.zeros(4, 5)),
            r"'0\.weight' has the shape \(4, 5\) in 'w\.pt' and \(4, 3\) in the model",
        ),
        (changed(n0_weight=torch.zeros(4, 3).double()), r"must all be of one dtype.*float64.*float32"),
        (changed(n0_weight=torch.zeros(4, 3).long()), r"'0\.weight' is torch\.int64 in 'w\.pt' and torch\.float32"),
        (changed(n1_num_batches_tracked=torch.tensor(1.0)), "'1.num_batches_tracked' is torch.float32"),
        (changed(n0_bias=torch.full((4,), torch.nan)), r"'0\.bias' in 'w\.pt' holds NaN or infinity"),
        (changed(n1_running_var=torch.full((4,), torch.inf)), r"'1\.running_var' in 'w\.pt' holds NaN or infinity"),
        ({k: v.to(torch.float8_e5m2) if v.is_floating_point() else v for k, v in changed().items()}, "float8_e5m2"),
        ({}, "they lack '0.weight', '0.bias', '1.weight', '1.bias', '1.running_mean' and 4 more"),
    ],
)
def test_weights_of_another_model(weights, words):
    model = network()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(InvalidData, match=words):
        load_weights(model, weights, "w.pt")
    assert same(dict(model.state_dict()), before)
    assert model.training


def test_the_prefix_of_data_parallel():
    state = network(3).state_dict()
    loaded = load_weights(network(), {f"module.{key}": value for key, value in state.items()}, "w")
    assert same(dict(loaded.state_dict()), dict(state))
    own = nn.ModuleDict({"module": nn.Linear(3, 2)})  # a name of the model's own
    assert same(dict(load_weights(own, weights_of(own), "w").state_dict()), weights_of(own))
    half = {("module." if key.startswith("0") else "") + key: value for key, value in state.items()}
    with pytest.raises(InvalidData, match=r"hold 'module\.0\.weight', 'module\.0\.bias'"):
        load_weights(network(), half, "w")


def test_tied_weights_need_one_name_and_one_value():
    state = weights_of(Tied())
    once = {key: value for key, value in state.items() if key != "last.weight"}
    loaded = load_weights(Tied(), once, "w")
    assert same(weights_of(loaded), state)
    assert loaded.last.weight is loaded.first.weight  # type: ignore[union-attr]
    with pytest.raises(
        InvalidData, match=r"'first\.weight' and 'last\.weight' are one tensor in the model, but differ"
    ):
        load_weights(Tied(), state | {"last.weight": torch.zeros(3, 3)}, "w")


class WithState(nn.Linear):
    def get_extra_state(self) -> Any:
        return {"step": 3}

    def set_extra_state(self, state: Any) -> None:
        raise AssertionError


class Picky(nn.Linear):
    def _load_from_state_dict(self, *args: Any, **more: Any) -> None:
        raise RuntimeError("not today")


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, dtype=torch.complex64))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: nn.LazyLinear(2), "'weight' of the model is not initialised"),
        (lambda: nn.LazyBatchNorm1d(), "not initialised"),
        (lambda: nn.Linear(3, 2, device="meta"), "not initialised"),
        (lambda: WithState(3, 2), "state holds '_extra_state', a dict"),
        (lambda: Picky(3, 2), "does not take the weights of 'w': RuntimeError: not today"),
        (lambda: Complex(), "'weight' of the model is torch.complex64"),
    ],
    ids=["lazy", "lazy-norm", "meta", "extra-state", "picky", "complex"],
)
def test_models_that_cannot_take_weights(model, words):
    with pytest.raises(InvalidModel, match=words):
        load_weights(model(), weights_of(nn.Linear(3, 2)), "w")


# Damaged files

quick = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def whole_file(form: str) -> bytes:
    state = {"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.zeros(2)}
    held = io.BytesIO()
    if form == "safetensors":
        from safetensors.torch import save as save_bytes

        return save_bytes(state)
    torch.save(state, held, _use_new_zipfile_serialization=form == "pt")
    return held.getvalue()


WHOLE = {form: whole_file(form) for form in ("safetensors", "pt", "pth")}  # .pth: the format before zip files
every_form = pytest.mark.parametrize("form", list(WHOLE))


def survives(folder: Path, form: str, content: bytes) -> None:
    path = folder / f"w.{form}"
    path.write_bytes(content)
    try:
        load_weights(nn.Linear(3, 2), read_weights(path), path.name)
    except InvalidData as error:
        str(error).encode()


@every_form
@quick
@given(content=st.binary(max_size=300))
def test_random_bytes(tmp_path, form, content):
    survives(tmp_path, form, content)
    survives(tmp_path, form, b"\x80\x02" + content)


@every_form
@quick
@given(part=st.floats(0, 1, exclude_max=True))
def test_truncations(tmp_path, form, part):
    survives(tmp_path, form, WHOLE[form][: int(part * len(WHOLE[form]))])


@every_form
@settings(quick, max_examples=100)
@given(part=st.floats(0, 1, exclude_max=True), change=st.integers(1, 255))
def test_a_changed_byte(tmp_path, form, part, change):
    held = bytearray(WHOLE[form])
    held[int(part * len(held))] ^= change
    survives(tmp_path, form, bytes(held))


@quick
@given(part=st.floats(0, 1, exclude_max=True), change=st.integers(1, 255))
def test_a_changed_byte_in_the_pickle_itself(tmp_path, part, change):
    """With checksums that fit, so that it is the pickle that is read."""
    held = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(WHOLE["pt"])) as old, zipfile.ZipFile(held, "w") as new:
        for name in old.namelist():
            member = bytearray(old.read(name))
            if name.endswith("data.pkl"):
                member[int(part * len(member))] ^= change
            new.writestr(name, bytes(member))
    survives(tmp_path, "pt", held.getvalue())


def test_weights_of_safetensors_are_known_by_name(tmp_path):
    save_file({"weight": torch.zeros(2, 3)}, tmp_path / "w.safetensors")
    with pytest.raises(InvalidData, match="lack 'bias'"):
        load_weights(nn.Linear(3, 2), read_weights(tmp_path / "w.safetensors"), "w.safetensors")
