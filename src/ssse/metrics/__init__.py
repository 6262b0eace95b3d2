"""The measures: the paper's, and those that came after it. Most work on logits or confidences of any model."""

from ssse.metrics.attacks import Attack, member_rate, reference_attack, threshold_attack
from ssse.metrics.confusion import confusion_distance, normalized_confusion_distance
from ssse.metrics.distance import normalized_parameter_distance, remaining_distance
from ssse.metrics.exposure import Exposure, exposure
from ssse.metrics.gaps import accuracy, divergences, mean_gap, tug_of_war
from ssse.metrics.klom import Klom, klom
from ssse.metrics.objective import Objective, objective
from ssse.metrics.relearning import Relearn, anamnesis, relearn_time
from ssse.metrics.resurfacing import Moment, Resurfacing, resurfacing
from ssse.metrics.scores import Flagged, confidences
from ssse.metrics.similarity import AttributeAuc, attribute_auc, performance_similarity, similarity_ratio
from ssse.metrics.ulira import ULira, u_lira

__all__ = [
    "Attack",
    "AttributeAuc",
    "Exposure",
    "Flagged",
    "Klom",
    "Moment",
    "Objective",
    "Relearn",
    "Resurfacing",
    "ULira",
    "accuracy",
    "anamnesis",
    "attribute_auc",
    "confidences",
    "confusion_distance",
    "divergences",
    "exposure",
    "klom",
    "mean_gap",
    "member_rate",
    "normalized_confusion_distance",
    "normalized_parameter_distance",
    "objective",
    "performance_similarity",
    "reference_attack",
    "relearn_time",
    "remaining_distance",
    "resurfacing",
    "similarity_ratio",
    "threshold_attack",
    "tug_of_war",
    "u_lira",
]
