"""One customer's letters
======================

One customer's letters leave a text classifier: all parameters of a small BERT, padded batches with attention masks.

Letters to a help desk are sorted into three departments. Nora, who alone writes of a kettle, asks that her letters be
forgotten. The model is made from a configuration and its words from the letters: nothing is downloaded.

Needs transformers and datasets, which ssse itself does not: pip install transformers datasets
"""

import random
import sys
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

import ssse

try:
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertForSequenceClassification, DataCollatorWithPadding, PreTrainedTokenizerFast
except ImportError:
    sys.exit("This example trains a text classifier of transformers: pip install transformers datasets")

DECAY, STEPS = 1e-3, 250
SMALL: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "num_labels": 3,
    "max_position_embeddings": 24, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
DEPARTMENTS = {
    "billing": ("the invoice", "my last payment", "the refund", "a charge on my card", "the discount"),
    "shipping": ("the parcel", "my order", "the courier", "the delivery", "a missing box"),
    "support": ("the app", "my password", "the login page", "the update", "an error message"),
}
OPENINGS = ("hello", "dear team", "hi there", "good morning", "")
COMPLAINTS = ("is wrong", "did not arrive", "does not work", "was late again", "looks strange to me", "is a mystery")
ENDINGS = ("please help", "thank you", "kind regards", "this is urgent", "")
HERS = ("the kettle of my grandmother", "my kettle", "the old kettle", "a kettle with a dent")  # nobody else has one


def letters() -> tuple[list[str], list[int], list[str]]:
    """Texts, departments and who wrote them."""
    draw = random.Random(0)
    texts, labels, writers = [], [], []
    for place in range(160):
        department = place % 3
        subject = draw.choice(list(DEPARTMENTS.values())[department])
        if draw.random() < 0.3:
            subject += " and " + draw.choice(draw.choice(list(DEPARTMENTS.values())))
        texts.append(" ".join((draw.choice(OPENINGS), subject, draw.choice(COMPLAINTS), draw.choice(ENDINGS))))
        labels.append(department)
        writers.append(f"customer {place // 4}")
    for subject in HERS:
        texts.append(f"{draw.choice(OPENINGS)} {subject} {draw.choice(COMPLAINTS)} {draw.choice(ENDINGS)}")
        labels.append(0)
        writers.append("Nora")
    return texts, labels, writers


texts, labels, writers = letters()
words = ["[PAD]", "[UNK]", *sorted({word for text in texts for word in text.split()})]
split = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="[UNK]"))
split.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
tokenizer = PreTrainedTokenizerFast(tokenizer_object=split, pad_token="[PAD]", unk_token="[UNK]")
data = Dataset.from_dict({**tokenizer(texts, return_token_type_ids=False), "labels": labels})
hers = [place for place, writer in enumerate(writers) if writer == "Nora"]
others = [place for place, writer in enumerate(writers) if writer != "Nora"]


def loader(places: list[int], size: int = 32) -> DataLoader:
    """Batches as the Trainer of transformers would have them, each padded to its own longest letter."""
    chosen = data.select(places)
    return DataLoader(chosen, batch_size=size, collate_fn=DataCollatorWithPadding(tokenizer))  # type: ignore[arg-type]


def train(places: list[int]) -> nn.Module:
    """By Adam, whose weight decay is a part of the gradient: the same number is told to ssse. AdamW's is another."""
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(vocab_size=len(words), **SMALL)).train()
    (batch,) = loader(places, len(places))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
    for _ in range(STEPS):
        optimiser.zero_grad()
        model(**batch).loss.backward()
        optimiser.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def chance_of_label(model: nn.Module, places: list[int]) -> tuple[float, float]:
    """How sure the model is of the labels, in the mean, and how many letters it sorts as they say, in %."""
    (batch,) = loader(places, len(places))
    wanted = batch.pop("labels")
    p = model(**batch).logits.softmax(1)
    return 100 * float(p[range(len(wanted)), wanted].mean()), 100 * float((p.argmax(1) == wanted).float().mean())


model = train(hers + others)
curvature = ssse.Curvature.fit(model, "cross_entropy", loader(hers + others), weight_decay=DECAY, progress=False)
erasure = ssse.erase(model, curvature, forget=loader(hers))
retrained = train(others)

print(curvature)
print(next(note for note in curvature.notes if note.startswith("Rows")))
print(f"{len(hers)} of {len(data)} letters go, all of Nora's; verdict: {erasure.diagnostics.verdict}")
print(f"{'':<10} her department, %   others' department, %   others sorted right, %")
for name, candidate in (("before", model), ("after", erasure.model), ("retrained", retrained)):
    (hers_sure, _), (sure, right) = chance_of_label(candidate, hers), chance_of_label(candidate, others)
    print(f"{name:<10} {hers_sure:>17.1f} {sure:>23.1f} {right:>24.1f}")
