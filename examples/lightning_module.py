"""A LightningModule
=================

Images leave a LightningModule: trained with Trainer, fitted and erased from as it is, retrained to compare.

What goes into ssse is the module itself, in eval mode, the loss of its training_step, and the weight decay of its
optimiser. What comes back is a new module of the same class, without the trainer of the old one.

Needs lightning, which ssse itself does not: pip install lightning
"""

import logging
import sys
import tempfile
import warnings

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import ssse

try:
    import lightning
except ImportError:
    sys.exit("This example trains with the Trainer of lightning: pip install lightning")

DECAY, EPOCHS, GONE = 1e-3, 40, 40
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def configure_optimizers(self):
        optimiser = torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.9, weight_decay=DECAY)
        return [optimiser], [torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, EPOCHS)]


def train(data: Subset) -> Digits:
    lightning.seed_everything(0, verbose=False)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_epochs=EPOCHS, accelerator="cpu", default_root_dir=folder, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        model = Digits()
        trainer.fit(model, DataLoader(data, batch_size=128, shuffle=True))
    return model.eval()


@torch.no_grad()
def loss_and_accuracy(model: nn.Module, data: Subset) -> tuple[float, float]:
    ((x, y),) = DataLoader(data, batch_size=len(data))
    z = model(x)
    return float(nn.functional.cross_entropy(z, y)), 100 * float((z.argmax(1) == y).float().mean())


x, y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
wrong = torch.arange(GONE)
y[wrong] = (y[wrong] + 1) % 10  # somebody's labels, and wrong: they are the ones to go
everything = TensorDataset((x / 16).float(), y)
order = torch.randperm(len(y) - GONE, generator=torch.Generator().manual_seed(0)) + GONE
forget, rest, test = (Subset(everything, part.tolist()) for part in (wrong, order[:1200], order[1200:]))
trained_on = Subset(everything, [*forget.indices, *rest.indices])

model = train(trained_on)
loader = DataLoader(trained_on, batch_size=256)  # the same samples; the order does not matter
curvature = ssse.Curvature.fit(model, "cross_entropy", loader, weight_decay=DECAY, progress=False)
erasure = ssse.erase(model, curvature, forget=DataLoader(forget, batch_size=256))
retrained = train(rest)

print(curvature)
print(f"{len(forget)} of {len(trained_on)} images go, all with wrong labels; verdict: {erasure.diagnostics.verdict}")
print(f"{'':<10} loss on them   labelled so, %   test images right, %")
for name, candidate in (("before", model), ("after", erasure.model), ("retrained", retrained)):
    (loss, share), (_, right) = loss_and_accuracy(candidate, forget), loss_and_accuracy(candidate, test)
    print(f"{name:<10} {loss:>12.2f} {share:>16.1f} {right:>22.1f}")
