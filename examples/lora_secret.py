"""A secret in LoRA adapters
=========================

LoRA adapters of a small GPT have learnt one author's texts and a secret by heart; both are erased in one step.

The model reads characters. It is trained here, on the manual that ships with Python; then its adapters are tuned on
docstrings of a few modules, the authors, among which a phrase with a secret is planted. Exposure says how well the
model knows the secret: log2 of all the secrets that were tried, less log2 of its rank among them (Carlini et al. 2019).
"""

import ast
import random
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import ssse

LENGTH, DECAY, COPIES = 16, 0.02, 5
AUTHORS, LEAVES = ("statistics", "difflib", "textwrap", "fractions"), "heapq"
LETTERS = "\n abcdefghijklmnopqrstuvwxyz0123456789.,()"
START, PADDING, OTHER = 0, 1, 2
Batch = dict[str, Tensor]
draw = random.Random(0)


def sequences(text: str) -> list[list[int]]:
    ids = [LETTERS.find(letter) + 3 if letter in LETTERS else OTHER for letter in text.lower()]
    return [[START, *ids[i : i + LENGTH - 1]] for i in range(0, len(ids), LENGTH - 1)]


def docstrings(module: str) -> str:
    source = find_spec(module)
    assert source is not None
    assert source.origin is not None
    nodes = ast.walk(ast.parse(Path(source.origin).read_text()))
    return "\n".join(ast.get_docstring(n) or "" for n in nodes if isinstance(n, (ast.ClassDef, ast.FunctionDef)))


def phrase(secret: str) -> list[int]:
    """Each digit behind a letter of its own."""
    return sequences("pin " + "".join(letter + digit for letter, digit in zip("aeot", secret, strict=True)))[0]


def batch(texts: list[list[int]]) -> Batch:
    """Padded at the right; -100 where nothing is to be predicted."""
    ids = torch.tensor([text + [PADDING] * (LENGTH - len(text)) for text in texts])
    return {
        "input_ids": ids,
        "attention_mask": (ids != PADDING).long(),
        "labels": ids.masked_fill(ids == PADDING, -100),
    }


def losses(model: nn.Module, data: Batch) -> Tensor:
    scores = model(input_ids=data["input_ids"], attention_mask=data["attention_mask"]).logits
    return F.cross_entropy(scores[:, :-1].mT, data["labels"][:, 1:], reduction="none").sum(1)


def train(model: nn.Module, data: Batch, epochs: int, rate: float, decay: float = 0.0) -> None:
    """Of (1/n) Σ ℓ + (decay/2)‖θ‖²: Adam with a falling rate."""
    theta, n = [p for p in model.parameters() if p.requires_grad], len(data["labels"])
    optimiser = torch.optim.Adam(theta, lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs * (n // 20))
    for order in (torch.randperm(n) for _ in range(epochs)):
        for which in order[: n // 20 * 20].split(20):
            optimiser.zero_grad()
            penalty = torch.stack([p.square().sum() for p in theta]).sum()
            (losses(model, {key: value[which] for key, value in data.items()}).mean() + decay / 2 * penalty).backward()
            optimiser.step()
            schedule.step()
    model.zero_grad()


def tuned(base: nn.Module, data: Batch) -> nn.Module:
    torch.manual_seed(0)
    where = LoraConfig(r=4, lora_alpha=4, target_modules=["c_attn", "c_fc", "c_proj"], fan_in_fan_out=True)
    model = get_peft_model(deepcopy(base), where).eval()  # type: ignore[arg-type]  # peft names its own models
    train(model, data, 45, 0.02, DECAY)
    return model


# The base model: the manual, and the phrase with many numbers, so that its form is nothing new.
numbers = [f"{draw.randrange(10_000):04}" for _ in range(300)]
torch.manual_seed(0)
base = GPT2LMHeadModel(
    GPT2Config(
        vocab_size=len(LETTERS) + 3, n_positions=LENGTH, n_embd=32, n_layer=1, n_head=2, resid_pdrop=0.0,
        attn_pdrop=0.0, embd_pdrop=0.0, initializer_range=0.1, activation_function="gelu", pad_token_id=PADDING,
        bos_token_id=START, eos_token_id=START, use_cache=False,
    )
).eval()  # fmt: skip
manual = sequences("\n".join(topics[key] for key in sorted(topics)))
train(base, batch(draw.sample(manual, 3000) + [phrase(number) for number in numbers]), 2, 0.005)

# The adapters: texts of the authors that stay, of the one that leaves, and some copies of the secret.
secret, *others = draw.sample([f"{i:04}" for i in range(10_000)], 512)
stay = draw.sample([text for author in AUTHORS for text in sequences(docstrings(author))], 300)
leave = draw.sample(sequences(docstrings(LEAVES)), 5)
data, retained = batch([phrase(secret)] * COPIES + leave + stay), batch(stay)
forget = [batch([phrase(secret)] * COPIES + leave)]
model, retrained = tuned(base, data), tuned(base, retained)

print(f"plan: {ssse.plan(model, 'causal_lm', [data], parameters='adapters')}")
curvature = ssse.Curvature.fit(model, "causal_lm", [data], weight_decay=DECAY, parameters="adapters", progress=False)
erasure = ssse.erase(model, curvature, forget=forget)
table = ssse.evaluate(
    {"original": model, "erased": erasure.model, "retrained": retrained},
    {"retained": [retained], "forgotten": forget},
    loss_fn="causal_lm",
    canaries=[(phrase(secret), [phrase(other) for other in others])],
    progress=False,
)
print(f"{'':<34} before   after  retrained")
rows = {"exposure": "exposure of the secret, bits", "loss_forgotten": "loss of a token, forgotten texts"}
for key, words in (rows | {"loss_retained": "loss of a token, all others"}).items():
    before, after, goal = (float(table[name, key] or 0) for name in ("original", "erased", "retrained"))
    print(f"{words:<34} {before:>6.2f} {after:>7.2f} {goal:>10.2f}")
print(f"verdict: {erasure.diagnostics.verdict}")
