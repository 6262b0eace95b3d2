"""The methods that SSSE is compared with, each called like `ssse.erase` and each giving an `Updated`.

retrain                        training anew on D∖S: the gold standard
fine_tuning                    training on from θ*, on D∖S
gradient_ascent                one step up the loss of S
gradient_ascent_until          many, until so little of S is recognised
neggrad_plus                   training on from θ*, down the loss of D∖S and up that of S
random_labels                  training on from θ*, with wrong labels on S
salun                          the same, of those parameters alone that matter most to S
scrub                          a student that disobeys the original model on S alone
influence                      one Newton step with the true Hessian, by conjugate gradients
influence_unlearning           one step with a WoodFisher inverse over retained samples
diagonal_ssse                  SSSE with the diagonal of its curvature
scrubbing                      noise shaped by the diagonal Fisher matrix
selective_synaptic_dampening   shrink the parameters that matter to S more than to D

`tune` finds the settings of one that a judge likes best.
"""

from ssse.baselines.diagonal_ssse import diagonal_ssse
from ssse.baselines.fine_tuning import fine_tuning
from ssse.baselines.gradient_ascent import gradient_ascent
from ssse.baselines.gradient_ascent_until import gradient_ascent_until
from ssse.baselines.influence import influence
from ssse.baselines.influence_unlearning import influence_unlearning
from ssse.baselines.neggrad_plus import neggrad_plus
from ssse.baselines.random_labels import random_labels
from ssse.baselines.retrain import retrain
from ssse.baselines.salun import salun
from ssse.baselines.scrub import scrub
from ssse.baselines.scrubbing import scrubbing
from ssse.baselines.selective_synaptic_dampening import selective_synaptic_dampening
from ssse.baselines.tuning import Tuned, tune
from ssse.baselines.update import Updated

__all__ = [
    "Tuned",
    "Updated",
    "diagonal_ssse",
    "fine_tuning",
    "gradient_ascent",
    "gradient_ascent_until",
    "influence",
    "influence_unlearning",
    "neggrad_plus",
    "random_labels",
    "retrain",
    "salun",
    "scrub",
    "scrubbing",
    "selective_synaptic_dampening",
    "tune",
]
