"""Models of peft, transformers and lightning as they come: adapters, bases in half precision, a trainer attached."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ssse
from ssse.errors import InvalidModel, InvalidSetting
from ssse.problem.parts import parts
from ssse.problem.view import ModelView
from tests.support import problems
from tests.support.refusals import fit, refused, snapshot

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
lightning = pytest.importorskip("lightning")

ADAPTERS = tuple(f"base_model.model.0.lora_{side}.default.weight" for side in "AB")
HEAD = tuple(f"base_model.model.2.modules_to_save.default.{name}" for name in ("weight", "bias"))


def adapted(dtype: torch.dtype = torch.float32, **options: Any) -> problems.Sample:
    """A frozen base in some dtype; an adapter that peft keeps in float32, and a head that it trains as a whole."""
    sample = problems.mlp(dtype=torch.float32)
    settings = {"target_modules": ["0"], "modules_to_save": ["2"], "r": 2, "init_lora_weights": False, **options}
    return replace(sample, model=peft.get_peft_model(sample.model.to(dtype), peft.LoraConfig(**settings)).eval())


def test_adapters_are_what_peft_made_trainable():
    sample = adapted()
    trainable = tuple(name for name, p in sample.model.named_parameters() if p.requires_grad)
    assert ModelView(sample.model, "adapters").layout.names == trainable == ADAPTERS + HEAD
    sample.model.get_parameter("base_model.model.0.base_layer.bias").requires_grad_(True)  # not by peft
    assert ModelView(sample.model, "adapters").layout.names == ADAPTERS + HEAD
    assert [part.name for part in parts(sample.model)] == ["adapters", "head"]
    biases = adapted(bias="lora_only")
    assert set(ModelView(biases.model, "adapters").layout.names) == {
        *ADAPTERS, *HEAD, "base_model.model.0.base_layer.bias",
    }  # fmt: skip


def test_prompts_of_peft_are_adapters():
    configuration = transformers.GPT2Config(vocab_size=20, n_positions=16, n_embd=8, n_layer=2, n_head=2)
    settings = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model = peft.get_peft_model(transformers.GPT2LMHeadModel(configuration), settings).eval()
    assert ModelView(model, "adapters").layout.names == ("prompt_encoder.default.embedding.weight",)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_adapter_is_erased_from_and_the_base_stays(dtype):
    sample = adapted(dtype)
    before = snapshot(sample.model)
    erasure = ssse.erase(sample.model, fit(sample, parameters="adapters"), forget=sample.part(slice(0, 2)))
    wide = replace(sample, model=copy.deepcopy(sample.model).float())
    wanted = ssse.erase(wide.model, fit(wide, parameters="adapters"), forget=sample.part(slice(0, 2)))
    torch.testing.assert_close(erasure.direction, wanted.direction)
    assert snapshot(sample.model) == before
    assert type(erasure.model) is type(sample.model)
    given = dict(sample.model.named_parameters())
    changed = {name for name, p in erasure.model.named_parameters() if not torch.equal(p, given[name])}
    assert changed == {*ADAPTERS, *HEAD}
    assert all(p.dtype == given[name].dtype for name, p in erasure.model.named_parameters())
    assert {given[name].dtype for name in ADAPTERS} == {torch.float32}


def test_adapters_that_take_no_part():
    sample = adapted()
    sample.model.merge_adapter()  # type: ignore[operator]
    with refused(InvalidModel, r"'base_model.model.0' are merged into its weights.*unmerge_adapter\(\)", sample.model):
        fit(sample, parameters="adapters")
    sample.model.unmerge_adapter()  # type: ignore[operator]
    fit(sample, parameters="adapters")
    sample.model.base_model.disable_adapter_layers()  # type: ignore[union-attr, operator]
    with refused(InvalidModel, r"'base_model.model.0' are switched off.*enable_adapter_layers\(\)", sample.model):
        fit(sample, parameters="adapters")
    plain = replace(sample, model=adapted().model.merge_and_unload().requires_grad_(True))  # type: ignore[operator]
    with refused(InvalidSetting, "adapters of peft, and this one has none", plain.model):
        fit(plain, parameters="adapters")


def test_blocks_of_transformers():
    sizes = {"hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 8}
    bert = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=20, num_labels=3, **sizes))
    found = parts(bert)
    assert [part.name for part in found] == ["last 3 blocks", "last 2 blocks", "last block", "head"]
    last = {name.split(".")[1] if name.startswith("bert") else name for name in found[2].parameters}
    assert last == {"encoder", "pooler", "classifier.weight", "classifier.bias"}
    assert all("layer.2." in name for name in found[2].parameters if ".encoder." in name)
    gpt = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=20, n_embd=8, n_layer=2, n_head=2))
    named = {part.name: part.parameters for part in parts(gpt)}
    assert set(named) == {"last 2 blocks", "last block", "head"}
    assert named["head"] == ("transformer.wte.weight",)  # to which it is tied
    assert named["last block"][-2:] == ("transformer.ln_f.weight", "transformer.ln_f.bias")


class Lit(lightning.LightningModule):
    def __init__(self, inside: nn.Module):
        super().__init__()
        self.inside = inside

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x)

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.filterwarnings("ignore")
def test_a_lightning_module_with_its_trainer_still_attached(tmp_path):
    sample = problems.mlp(dtype=torch.float32)
    model = Lit(sample.model)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(sample.x, sample.y), batch_size=10)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, default_root_dir=tmp_path, barebones=False, **quiet
    ).fit(model, loader)
    assert model.trainer is not None
    sample = replace(sample, model=model.eval())
    erasure = ssse.erase(model, fit(sample, data=loader), forget=sample.part(slice(0, 2)))
    assert type(erasure.model) is Lit
    assert erasure.model._trainer is None  # the old trainer knows the old model only
    assert model.trainer is not None
    wanted = ssse.erase(model.inside, fit(replace(sample, model=model.inside)), forget=sample.part(slice(0, 2)))
    torch.testing.assert_close(erasure.step, wanted.step)
