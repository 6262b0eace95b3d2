"""A network forgets for good
==========================

A network forgets a tenth of its data for good: gradient ascent hides it, a long second-order step erases it.

Three in ten labels of scikit-learn's digits are drawn at random, so that there is something to remember that nothing
else teaches. A small convolutional network with BatchNorm learns all of it by heart; then sixty samples must go. How
far the step goes is chosen by a few short repairs, from those samples and some held-out ones: nothing is retrained.
"""

import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import Tensor, nn

import ssse

EPOCHS, RATE, SIZE, DECAY = 40, 0.1, 32, 5e-4
torch.manual_seed(0)
flat, classes = load_digits(return_X_y=True)
x = torch.from_numpy(flat / 16 - 0.3).float().reshape(-1, 1, 8, 8)
y = torch.from_numpy(classes)
y = torch.where(torch.rand(len(y)) < 0.3, torch.randint(10, y.shape), y)
order = torch.randperm(len(x))
forget, retained, held_out, unseen = (order[a:b] for a, b in ((0, 60), (60, 600), (600, 900), (900, len(x))))


def batches(places: Tensor) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x[places].split(100), y[places].split(100), strict=True))


def train(places: Tensor) -> nn.Module:
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, stride=2, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip
    steps = EPOCHS * (len(places) // SIZE)
    optimiser = torch.optim.SGD(model.parameters(), RATE, momentum=0.9, nesterov=True, weight_decay=DECAY)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=steps)
    for _ in range(EPOCHS):
        for some in places[torch.randperm(len(places))].split(SIZE)[: len(places) // SIZE]:
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x[some]), y[some]).backward()
            optimiser.step()
            cycle.step()
    return model.eval()


def right(model: nn.Module, places: Tensor) -> float:
    with torch.no_grad():
        return float((model(x[places]).argmax(1) == y[places]).double().mean())


original = train(torch.cat([forget, retained]))
curvature = ssse.Curvature.fit(
    original, "cross_entropy", batches(torch.cat([forget, retained])), weight_decay=DECAY, rows="margin",
    structure="lowrank", progress=False,
)  # fmt: skip
training = ssse.Training(epochs=EPOCHS, learning_rate=RATE, batch_size=SIZE, weight_decay=DECAY)
erased = ssse.erase_and_repair(
    original, curvature, "cross_entropy", batches(forget), retained=batches(retained), held_out=batches(held_out),
    training=training, progress=False,
)  # fmt: skip
print(erased)

ascended = ssse.baselines.gradient_ascent_until(
    original, None, "cross_entropy", batches(forget), stop_accuracy=0.6, learning_rate=0.01, progress=False
)
hidden = ssse.repair(
    ascended.model, batches(retained), "cross_entropy", forget=batches(forget), training=training, progress=False
)
retrained = train(retained)
print()
for name, model in (
    ("original", original),
    ("after gradient ascent", ascended.model),
    ("the same, repaired", hidden.model),
    ("after step and repair", erased.model),
    ("retrained", retrained),
):
    shares = (right(model, places) for places in (forget, retained, unseen))
    print(f"{name:22}", "S {:6.1%}  D∖S {:6.1%}  unseen {:6.1%}".format(*shares))

print()
print("does it come back? S along eight epochs on what stays:")
figure = Figure(figsize=(7, 3.6), layout="constrained")
ax = figure.add_subplot()
for name, model, style in (
    ("gradient ascent", ascended.model, "s--"),
    ("step and repair", erased.model, "o-"),
    ("retrained", retrained, "^:"),
):
    later = ssse.metrics.resurfacing(
        model, batches(retained), batches(forget), "cross_entropy", held_out=batches(held_out),
        learning_rate=RATE / 8, batch_size=SIZE, weight_decay=DECAY, progress=False,
    )  # fmt: skip
    print(f"{name:22}", "  ".join(f"{moment.accuracy:.1%}" for moment in later.moments))
    epochs, shares = zip(*((moment.epoch, 100 * (moment.accuracy or 0)) for moment in later.moments), strict=True)
    ax.plot(epochs, shares, style, label=name)
ax.set(xlabel="epochs on what stays", ylabel="S right, %", ylim=(0, 100), title="What was hidden comes back")
ax.legend(frameon=False)
figure.savefig("network_that_forgets.svg")
