"""Training anew on the data that remains: what every other method is an approximation of."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ssse.baselines.update import Updated, read_request
from ssse.curvature.curvature import Curvature
from ssse.erasure.trained import check_trained
from ssse.errors import InvalidModel
from ssse.problem.batches import given_form
from ssse.problem.loaders import Data
from ssse.problem.losses import LossLike

REFERENCE = "Training from scratch on D∖S; the gold standard of Cao & Yang 2015, 'Towards making systems forget'"


def retrain(
    model: nn.Module,
    curvature: Curvature | None,
    loss_fn: LossLike,
    forget: Data,
    *,
    train: Callable[[list[Any]], nn.Module],
    data: Data,
    label_key: str | None = None,
) -> Updated:
    """Train a new model without the forgotten samples, by the user's own training function.

        θ̂ = train(D∖S)

    Two retrained models of different seeds differ as well; a distance to one of them is only read
    against the distance between two.

    Args:
        train: takes the batches of D∖S, (x, y) or with weights (x, y, weight), in the order of the data and on the
            model's device, and returns a new, trained module of the same architecture. It is put into eval mode.
        data: the training data, the forgotten samples among it.
        label_key: where labels are, where no curvature says.

    Raises:
        InvalidModel: `train` returned no module, the model passed in, or one with NaN.
        ModelMismatch: the parameters of the new module are not those of the model.
    """
    request = read_request(model, curvature, loss_fn, forget, label_key=label_key)
    before = request.problem.theta()
    kept, _ = request.retained(data, group=1024)
    trained = train([given_form(batch) for batch in kept])
    check_trained(model, trained)
    trained.eval()
    named = dict(trained.named_parameters())
    theta = request.problem.layout.flatten({name: named[name].detach() for name in request.problem.layout.names})
    if not bool(torch.isfinite(theta).all()):
        raise InvalidModel("The retrained model holds NaN or infinity; its training diverged.")
    note = f"trained on the {sum(len(y) for _, y in kept)} samples that remain"
    seconds = time.perf_counter() - request.started
    return Updated(trained, theta.to(before) - before, None, "retrain", REFERENCE, (note,), seconds)
