"""The words of the page of requests: for somebody who has to answer for them and need not know the mathematics."""

from __future__ import annotations

from ssse.workspace.record.decision_words import moment as moment
from ssse.workspace.record.describe import number

HIDDEN = "not shown"
# A sign and a word: readable without colour. The second word is the class of its colour.
STATES = {
    "erased": ("✔ erased", "yes"),
    "held": ("◐ erased, waits for confirmation", "partly"),
    "reverted": ("↶ erased and undone", "no"),
    "unsealed": ("◐ erased, clean-up not recorded", "partly"),
    "refused": ("✘ refused", "no"),
    "pending": ("… pending", "partly"),
    "nothing": ("– all erased before", "word"),
}
UNVOUCHED = ("▲ erased, not vouched for", "partly")
OVERRIDDEN = "▲ caution, overriding {}"
VERDICTS = {"ok": ("✔ ok", "yes"), "caution": ("▲ caution", "partly"), "refused": ("✘ refused", "no")}
KINDS = {
    "created": "workspace made",
    "configured": "settings changed",
    "fitted": "curvature fitted",
    "calibrated": "ε chosen",
    "received": "request received",
    "erased": "samples erased",
    "repaired": "model repaired",
    "sealed": "old files dealt with",
    "refused": "request refused",
    "confirmed": "erasures confirmed",
    "reverted": "erasures undone",
    "evaluated": "models measured",
    "upgraded": "workspace upgraded",
}
ROWS_OF_ESTIMATOR = "the second derivative of the estimator's own objective"
ROWS = {
    "expected": "averaged over the labels that the model holds possible (the true Fisher matrix)",
    "margin": "of each label against all the others together, one row a sample, weighted by how sure the model is",
    "empirical": "from the labels as they are; how far to step must then be measured",
    "sampled": "from labels that were drawn from the model, an estimate of the average over them",
}
POLICIES = {
    "rebase": "each request starts from the model and the curvature that the one before it left",
    "joint": "all requests are taken together, from the first model on, so that their order does not matter; for this "
    "the first weights and the sum of the removed gradients are kept, and the old model can be rebuilt from them",
}
LEAVE_OUT = {
    True: "the curvature is that of the data that stays",
    False: "the curvature is that of all the data, the erased samples included",
}
METHODS = {
    "retrained": "A model was retrained without a set of samples. ε is where erasing that set comes nearest to it.",
    "attack_parity": "Nothing was retrained. ε is the smallest at which the model's confidence no longer tells these "
    "samples from unseen ones; for a whole class, at which they are recognised no better than by chance.",
    "loss_search": "Nothing was retrained. ε is where the loss on the data that stays is lowest along the step.",
    "line_search": "Nothing was retrained. ε is where the loss on the data that stays would be lowest along the step, "
    "were it a parabola.",
}
MEASURES = {
    "accuracy_retained": "training samples that stay",
    "accuracy_forgotten": "the erased samples",
    "accuracy_test_same": "unseen samples of the same kind",
    "accuracy_test_other": "other unseen samples",
    "accuracy_test": "unseen samples",
    "loss": "the loss of one token, on average",
    "perplexity": "among how many tokens the model seems to choose",
    "mean_gap": "the mean difference in accuracy",
    "loss_gap": "the mean difference in the loss of a token",
    "tow": "all accuracies in one number",
    "kl": "how far the predictions are away; 0 = the same",
    "delta": "0: mistakes them as the retrained model does, 1: as the original",
    "gamma": "1: ranks them as the retrained model does, 0: as the original",
    "distance": "0: the retrained model's weights, 1: the original's",
    "attack": "can confidence tell them from unseen samples? 0.5 = cannot",
    "calibrated_attack": "the same, allowing for how hard each sample is",
    "member_rate": "taken for training samples by their confidence",
    "u_lira": "can an attacker tell erased from retrained models?",
    "klom": "how far apart erased and retrained models are on each sample",
    "objective": "the loss of training on the data that stays",
    "gradient_norm": "its slope; 0 = trained to the end",
    "exposure": "how far planted secrets stand out from others; 1 or so: not at all",
    "exposure_max": "of the one that stands out most",
    "relearn": "fewer than the retrained model: something was left",
    "resurfacing": "does it come back, while the model is trained on other samples?",
    "resurfacing_rise": "a retrained model's rise is the model getting better as such; more is memory coming back",
}
PANELS = {
    "γ": "γ on the samples: 1 is as the retrained model ranks them, 0 as the original does.",
    "δ": "δ on the samples: 0 is as the retrained model mistakes them, 1 as the original does.",
    "KL": "How far the predictions on the samples are from the retrained model's. Lower is nearer.",
    "distance": "How far the weights are from the retrained model's: 0 is there, 1 is the original.",
    "attack": "How well confidence tells the samples from unseen ones: 0.5 is not at all.",
    "accuracy": "The accuracy on each set of samples.",
    "gap": "The difference in accuracy to the retrained model, on each set of samples.",
}
SPLIT_NAMES = {
    "retained": "training samples that stay (D∖S)",
    "forgotten": "erased samples (S)",
    "test_other": "other unseen samples (T∖T_a)",
    "test_same": "unseen samples of the same kind (T_a)",
    "test": "unseen samples (T)",
}
SPLITS = (
    "S: the erased samples. D∖S: the training samples that stay. T_a: unseen samples of the same kind as S. "
    "T∖T_a: the other unseen samples. T: all unseen samples."
)


def maybe(value: float | int | None) -> str | None:
    return None if value is None else number(value)


def measure_meaning(key: str) -> str:
    """Of each split by itself there is one meaning: kl_forgotten, kl_test, …"""
    return MEASURES.get(key) or MEASURES.get(key.partition("_")[0], "")


def up_to(value: float | None) -> str:
    """What was measured on samples is rounded up before it is shown, or not shown at all."""
    return HIDDEN if value is None else f"≤ {number(value)}"


def change(before: float | None, after: float | None) -> str:
    return HIDDEN if before is None and after is None else f"{up_to(before)} → {up_to(after)}"
