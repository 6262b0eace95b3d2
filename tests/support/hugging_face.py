"""Tiny models of transformers and peft, made from their configurations: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForSequenceClassification,
    PreTrainedModel,
    ViTConfig,
    ViTForImageClassification,
)

from tests.support.zoo import CLASSES, LENGTH, SAMPLES, WORDS, Animal, images, lengths

SMALL: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
SMALL_GPT: dict[str, Any] = {"n_embd": 8, "n_layer": 2, "n_head": 2, "bos_token_id": 1, "eos_token_id": 1}
NAMES: dict[str, Any] = {"vocab_size": WORDS, "num_labels": CLASSES, "pad_token_id": 0}


def sentences(mask: bool = True) -> dict[str, Tensor]:
    keep = torch.arange(LENGTH) < lengths()[:, None]
    ids = torch.randint(1, WORDS, (SAMPLES, LENGTH)) * keep
    return {"input_ids": ids, "attention_mask": keep.long()} if mask else {"input_ids": ids}


def bert() -> PreTrainedModel:
    return BertForSequenceClassification(BertConfig(**NAMES, **SMALL, max_position_embeddings=LENGTH))


def gpt() -> PreTrainedModel:
    return GPT2ForSequenceClassification(GPT2Config(**NAMES, **SMALL_GPT, n_positions=LENGTH))


def llama() -> PreTrainedModel:
    config = LlamaConfig(**NAMES, **SMALL, num_key_value_heads=1, max_position_embeddings=LENGTH)
    return LlamaForSequenceClassification(config)


def lora() -> Animal:
    adapters = LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, task_type="SEQ_CLS")
    model = get_peft_model(gpt(), adapters)
    for name, parameter in model.named_parameters():  # as after training: B is no longer zero
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return Animal(model, sentences())


def vit() -> Animal:
    config = ViTConfig(**SMALL, image_size=8, patch_size=4, num_labels=CLASSES)  # type: ignore[call-arg]
    return Animal(ViTForImageClassification(config), images())


class LastWord(torch.nn.Module):
    """A language model's scores for the word that follows."""

    def __init__(self) -> None:
        super().__init__()
        config = GPT2Config(vocab_size=WORDS, **SMALL_GPT, n_positions=LENGTH, pad_token_id=0)
        self.model = GPT2LMHeadModel(config)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        scores = self.model(input_ids=input_ids, attention_mask=attention_mask).logits
        last = attention_mask.sum(1) - 1  # padding has scores too, which are not the sample's
        return scores.gather(1, last[:, None, None].expand(-1, 1, scores.shape[2])).squeeze(1)


HUGGING_FACE: dict[str, Callable[[], Animal]] = {
    "bert": lambda: Animal(bert(), sentences()),
    "bert without a mask": lambda: Animal(bert(), sentences(mask=False)["input_ids"]),
    "gpt": lambda: Animal(gpt(), sentences()),
    "gpt, tied": lambda: Animal(LastWord(), sentences()),
    "llama": lambda: Animal(llama(), sentences()),
    "lora on gpt": lora,
    "vit": vit,
}
