"""Wrong entries leave an LSTM
===========================

Wrong entries leave an LSTM that tells languages apart: sequences of several lengths, packed inside of the model.

The numbers from 0 to 99 are written out in English, German and Italian; somebody filed the German thirties under
Italian. Batches are padded, each to its own length, and an `attention_mask` says what is padding: a sample is then the
same one in whatever batch it comes. Rows of packed sequences are taken one sample at a time, by plain backward passes.
"""

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

import ssse

DECAY, STEPS = 1e-3, 300
LANGUAGES = ("English", "German", "Italian")
ONES = {
    "English": "zero one two three four five six seven eight nine",
    "German": "null ein zwei drei vier fünf sechs sieben acht neun",
    "Italian": "zero uno due tre quattro cinque sei sette otto nove",
}
TEENS = {
    "English": "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen",
    "German": "zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn achtzehn neunzehn",
    "Italian": "dieci undici dodici tredici quattordici quindici sedici diciassette diciotto diciannove",
}
TENS = {
    "English": "twenty thirty forty fifty sixty seventy eighty ninety",
    "German": "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig",
    "Italian": "venti trenta quaranta cinquanta sessanta settanta ottanta novanta",
}


def written(number: int, language: str) -> str:
    ones, tens = ONES[language].split(), TENS[language].split()
    if number < 10:
        return "eins" if (number, language) == (1, "German") else ones[number]
    if number < 20:
        return TEENS[language].split()[number - 10]
    ten, one = tens[number // 10 - 2], number % 10
    if one == 0:
        return ten
    if language == "Italian":
        return (ten[:-1] if one in (1, 8) else ten) + ones[one]
    return f"{ones[one]}und{ten}" if language == "German" else f"{ten}-{ones[one]}"


words = [(written(number, name), label) for label, name in enumerate(LANGUAGES) for number in range(100)]
wrong = [place for place, (word, _) in enumerate(words) if "dreißig" in word]
words = [(word, 2 if place in wrong else label) for place, (word, label) in enumerate(words)]
others = [place for place in range(len(words)) if place not in wrong]
letters = {letter: place + 1 for place, letter in enumerate(sorted({letter for word, _ in words for letter in word}))}


def batches(places: list[int], size: int = 50) -> list[dict[str, Tensor]]:
    made = []
    for start in range(0, len(places), size):
        chosen = [words[place] for place in places[start : start + size]]
        ids = pad_sequence([torch.tensor([letters[c] for c in word]) for word, _ in chosen], batch_first=True)
        labels = torch.tensor([label for _, label in chosen])
        made.append({"ids": ids, "attention_mask": (ids > 0).long(), "labels": labels})
    return made


class Languages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(letters) + 1, 6)
        self.lstm = nn.LSTM(6, 12, batch_first=True)
        self.head = nn.Linear(12, len(LANGUAGES))

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        lengths = attention_mask.sum(1).cpu()
        packed = pack_padded_sequence(self.embed(ids), lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.lstm(packed)[1][0][-1])


def train(places: list[int]) -> nn.Module:
    torch.manual_seed(0)
    model = Languages()
    (batch,) = batches(places, len(places))
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-2, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
    for _ in range(STEPS):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(batch["ids"], batch["attention_mask"]), batch["labels"]).backward()
        optimiser.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def chance_of_label(model: nn.Module, places: list[int]) -> tuple[float, float]:
    """How sure the model is of the labels, in the mean, and how many words it files as they say, in %."""
    (batch,) = batches(places, len(places))
    p, wanted = model(batch["ids"], batch["attention_mask"]).softmax(1), batch["labels"]
    return 100 * float(p[range(len(wanted)), wanted].mean()), 100 * float((p.argmax(1) == wanted).float().mean())


model = train(wrong + others)
curvature = ssse.Curvature.fit(model, "cross_entropy", batches(wrong + others), weight_decay=DECAY, progress=False)
erasure = ssse.erase(model, curvature, forget=batches(wrong))
retrained = train(others)

print(curvature)
print(next(note for note in curvature.notes if note.startswith("Rows")))
print(f"{len(wrong)} of {len(words)} words go, German ones called Italian; verdict: {erasure.diagnostics.verdict}")
print(f"{'':<10} those called Italian, %   others filed right, %")
figure = Figure(figsize=(7, 3.2), layout="constrained")
ax = figure.add_subplot()
for name, candidate in (("before", model), ("after", erasure.model), ("retrained", retrained)):
    italian, right = chance_of_label(candidate, wrong)[0], chance_of_label(candidate, others)[1]
    print(f"{name:<10} {italian:>22.1f} {right:>23.1f}")
    ax.bar([f"thirties\n{name}", f"others\n{name}"], [italian, right], color=["#D55E00", "#0072B2"])
ax.set(ylabel="%", ylim=(0, 100), title="German thirties called Italian, and others filed right")
figure.savefig("lstm_sequences.svg")
