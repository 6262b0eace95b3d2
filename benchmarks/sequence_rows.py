"""Rows of sequence models: per-sample gradients of a small BERT and a small GPT, against ordinary backward passes.

With an attention mask, as they are used: taken layer by layer, against one ordinary gradient of the same batch.
Where no way sees all samples at once (here: an LSTM) there is a loop, against the plain loop that one would write.
The models are made from their configurations, and the words are noise; neither changes the work.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2ForSequenceClassification

from record import Report, best_of, run_alone
from ssse.problem.cores import DenseCores
from ssse.problem.derivatives.loop import Loop
from ssse.problem.problem import Problem
from ssse.rows.kinds import RowKind, measure_held

BATCH, LENGTH, WORDS, CLASSES = 32, 64, 1000, 4
WIDTH, LAYERS, HEADS = 128, 4, 4

Words = dict[str, Tensor]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.recurrent = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        h = self.recurrent(self.embed(input_ids))[0] * attention_mask[:, :, None]
        return self.head(h.sum(1))


def bert() -> nn.Module:
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
            intermediate_size=4 * WIDTH, max_position_embeddings=LENGTH,
            num_labels=CLASSES,  # type: ignore[call-arg]  # taken by the class above it
        )
    )  # fmt: skip


def gpt() -> nn.Module:
    return GPT2ForSequenceClassification(
        GPT2Config(
            vocab_size=WORDS, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=LENGTH, num_labels=CLASSES,  # type: ignore[call-arg]
            pad_token_id=0, bos_token_id=1, eos_token_id=1,
        )
    )  # fmt: skip


def sentences() -> Words:
    generator = torch.Generator().manual_seed(1)
    keep = torch.arange(LENGTH) < torch.randint(LENGTH // 2, LENGTH + 1, (BATCH, 1), generator=generator)
    ids = torch.randint(1, WORDS, (BATCH, LENGTH), generator=generator) * keep
    return {"input_ids": ids, "attention_mask": keep.long()}


def outputs(model: nn.Module, x: Words) -> Tensor:
    z = model(**x)
    return z if isinstance(z, Tensor) else z.logits


def measure(name: str, model: nn.Module, x: Words, y: Tensor, rounds: int) -> tuple[dict[str, float], float, Problem]:
    problem = Problem(model, "cross_entropy", "all", (x, y))
    parameters = list(model.parameters())
    loop = Loop()

    def rows() -> Tensor:
        return measure_held(problem, RowKind("empirical"), (x, y))[0].matrix()

    def ordinary() -> None:
        model.zero_grad()
        F.cross_entropy(outputs(model, x), y, reduction="sum").backward()

    def plain_loop() -> Tensor:
        gradients = []
        for i in range(len(y)):
            one = {key: value[i : i + 1] for key, value in x.items()}
            loss = F.cross_entropy(outputs(model, one), y[i : i + 1])
            parts = torch.autograd.grad(loss, parameters, allow_unused=True)
            pairs = zip(parts, parameters, strict=True)
            gradients.append(torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in pairs]))
        return torch.stack(gradients)

    def our_loop() -> Tensor:
        return loop.rows(problem, x, lambda z, which: DenseCores(problem.loss.gradient(z, y[which]).unsqueeze(1)))[0]

    true = plain_loop()
    error = float((rows() - true).norm(dim=1).max() / true.norm(dim=1).max())
    best = best_of(rounds, rows=rows, ordinary=ordinary, plain_loop=plain_loop, our_loop=our_loop)
    return best, error, problem


def main(_: Path) -> None:
    report = Report("sequence_rows", f"Rows of sequence models, batch of {BATCH} × {LENGTH} words, float32")
    torch.manual_seed(0)
    x = sentences()
    y = torch.arange(BATCH) % CLASSES
    table = []
    for name, make in {"BERT": bert, "GPT-2": gpt, "LSTM": Recurrent}.items():
        best, error, problem = measure(name, make().eval(), x, y, 8)
        way = problem.derivatives.row_way
        whole, single = best["rows"] / best["ordinary"], best["our_loop"] / best["plain_loop"]
        table.append(
            (
                f"{name}, {problem.layout.dim:,} parameters", str(way), best["ordinary"], best["rows"], whole,
                best["plain_loop"], best["our_loop"], single, f"{error:.0e}",
            )
        )  # fmt: skip
        if not isinstance(way, Loop):
            report.at_most(f"{name}: rows against a plain forward and backward", whole, 2.5, "×")
        report.at_most(f"{name}: our loop against a plain loop of single backward passes", single, 1.3, "×")
        report.numbers[name] = {**best, "relative_error": error, "way": str(way)}
    report.table(
        "Seconds, best of 8 interleaved rounds",
        ("model", "way", "plain backward", "rows", "ratio", "plain loop", "our loop", "ratio", "error"),
        table,
    )
    report.notes.append("error: of the rows, against the plain loop's, relative to the longest.")
    report.finish()


if __name__ == "__main__":
    run_alone(main, __doc__)
