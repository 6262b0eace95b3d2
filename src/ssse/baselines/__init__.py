"""The methods that SSSE is compared with, each called like `ssse.erase` and each giving an `Updated`.

retrain                        training anew on D∖S: the gold standard
fine_tuning                    training on from θ*, on D∖S
gradient_ascent                one step up the loss of S
influence                      one Newton step with the true Hessian, by conjugate gradients
influence_unlearning           one step with a WoodFisher inverse over retained samples
diagonal_ssse                  SSSE with the diagonal of its curvature
scrubbing                      noise shaped by the diagonal Fisher matrix
selective_synaptic_dampening   shrink the parameters that matter to S more than to D
"""

from ssse.baselines.diagonal_ssse import diagonal_ssse
from ssse.baselines.fine_tuning import fine_tuning
from ssse.baselines.gradient_ascent import gradient_ascent
from ssse.baselines.influence import influence
from ssse.baselines.influence_unlearning import influence_unlearning
from ssse.baselines.retrain import retrain
from ssse.baselines.scrubbing import scrubbing
from ssse.baselines.selective_synaptic_dampening import selective_synaptic_dampening
from ssse.baselines.update import Updated

__all__ = [
    "Updated",
    "diagonal_ssse",
    "fine_tuning",
    "gradient_ascent",
    "influence",
    "influence_unlearning",
    "retrain",
    "scrubbing",
    "selective_synaptic_dampening",
]
