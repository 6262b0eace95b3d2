"""γ and δ: by hand, against plain counting, and on what must be refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ssse import metrics
from ssse.errors import InvalidData
from ssse.metrics.confusion import confusions
from ssse.metrics.scores import Flagged
from tests.support.refusals import INF, NAN, refused

some = settings(max_examples=40, deadline=None)

# ── ten samples by hand: four attributes ──────────────────────────────────────────────────────────────────────────
#
# Negatives have the scores 1, 2, 3, … in every model, so that a positive with score 4.5 wins 4 pairs.
# Attribute 0: samples 0–2 against seven; 1: samples 0–4 against five; 2: nobody has it; 3: sample 9 against nine.

HAVE = np.array([[1, 1, 0, 0]] * 3 + [[0, 1, 0, 0]] * 2 + [[0, 0, 0, 0]] * 4 + [[0, 0, 0, 1]])


def scores(first: list[float], second: list[float], fourth: float) -> np.ndarray:
    found = np.zeros((10, 4))
    found[:, 0] = [*first, 1, 2, 3, 4, 5, 6, 7]
    found[:, 1] = [*second, 1, 2, 3, 4, 5]
    found[:, 2] = np.arange(10)
    found[:, 3] = [1, 2, 3, 4, 5, 6, 7, 8, 9, fourth]
    return found


ORIGINAL = scores([8, 9, 10], [1.5, 2.5, 3.5, 6, 6], 9.5)  #  pairs won: 7+7+7, 1+2+3+5+5, –, 9
RETRAINED = scores([4.5, 2.5, 0], [2.5] * 5, 4.5)  #                     4+2+0, 5 · 2, –, 4
ERASED = scores([5.5, 4, 0], [3] * 5, 9.5)  #                            5+3½+0, 5 · 2½, –, 9

AUC_ORIGINAL = (Fraction(21, 21), Fraction(16, 25), Fraction(0), Fraction(9, 9))
AUC_RETRAINED = (Fraction(6, 21), Fraction(10, 25), Fraction(0), Fraction(4, 9))
AUC_ERASED = (Fraction(17, 42), Fraction(25, 50), Fraction(0), Fraction(9, 9))

AWAY = Fraction(25, 42) + Fraction(7, 50)  # 𝔻(erased, original): 21 − 8½ of 21 and 16 − 12½ of 25
LEFT = Fraction(5, 42) + Fraction(5, 50) + Fraction(5, 9)  # 𝔻(erased, retrained)


@pytest.mark.parametrize(
    ("model", "expected"), [(ORIGINAL, AUC_ORIGINAL), (RETRAINED, AUC_RETRAINED), (ERASED, AUC_ERASED)]
)
def test_auc_by_counting_pairs(model, expected):
    found = metrics.attribute_auc(model, HAVE)
    assert found.values == pytest.approx([float(value) for value in expected], abs=1e-15)
    assert found.absent == (2,)
    assert found.constant == ()
    assert found.flags == ("1 of 4 attributes have samples of one kind only: their AUC counts as 0",)


def test_gamma_by_hand():
    assert metrics.performance_similarity(ERASED, ORIGINAL, HAVE) == pytest.approx(float(AWAY))
    assert metrics.performance_similarity(ERASED, RETRAINED, HAVE) == pytest.approx(float(LEFT))
    gamma = metrics.similarity_ratio(ERASED, ORIGINAL, RETRAINED, HAVE)
    assert gamma == pytest.approx(float(AWAY / (AWAY + LEFT)))
    assert gamma.flags == ("1 of 4 attributes have samples of one kind only: their AUC counts as 0",)


def test_an_attribute_that_everybody_has_is_absent_too():
    labels = HAVE.copy()
    labels[:, 2] = 1
    assert metrics.attribute_auc(ERASED, labels).values[2] == 0
    assert metrics.attribute_auc(ERASED, labels).absent == (2,)


def test_a_constant_score_is_a_tie():
    tied = ERASED.copy()
    tied[:, 0] = 3.0
    found = metrics.attribute_auc(tied, HAVE)
    assert found.values[0] == 0.5
    assert found.constant == (0,)
    flags = metrics.similarity_ratio(tied, ORIGINAL, RETRAINED, HAVE).flags
    assert flags[1] == "1 of 4 attributes have the same score for every sample: their AUC is 0.5"


# ── ten samples by hand: three classes ────────────────────────────────────────────────────────────────────────────

TRUE = [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
SAID = {
    "original": [0, 0, 0, 0, 1, 1, 1, 2, 2, 2],
    "retrained": [0, 0, 1, 2, 1, 1, 1, 2, 2, 0],
    "erased": [1, 0, 1, 1, 2, 1, 1, 0, 2, 2],
}
CONFUSED = {
    "original": [[4, 0, 0], [0, 3, 0], [0, 0, 3]],
    "retrained": [[2, 1, 1], [0, 3, 0], [1, 0, 2]],
    "erased": [[1, 3, 0], [0, 2, 1], [1, 0, 2]],
}


def saying(classes: list[int], width: int = 3) -> np.ndarray:
    """Logits whose largest is that of the class said."""
    return np.eye(width)[classes] - 0.3


@pytest.mark.parametrize("name", list(SAID))
def test_confusions_by_hand(name):
    assert confusions(saying(SAID[name]), TRUE).tolist() == CONFUSED[name]


def test_delta_by_hand():
    erased, original, retrained = (saying(SAID[name]) for name in ("erased", "original", "retrained"))
    assert metrics.confusion_distance(erased, original, TRUE) == 3 + 3 + 0 + 0 + 1 + 1 + 1 + 0 + 1
    assert metrics.confusion_distance(erased, retrained, TRUE) == 1 + 2 + 1 + 0 + 1 + 1 + 0 + 0 + 0
    assert metrics.confusion_distance(original, retrained, TRUE) == 2 + 1 + 1 + 0 + 0 + 0 + 1 + 0 + 1
    assert metrics.normalized_confusion_distance(erased, original, retrained, TRUE) == 6 / (10 + 6)


def test_confusions_of_a_class_that_is_not_there():
    assert confusions(saying([1, 1], 4), [1, 3]).tolist() == [[0] * 4, [0, 1, 0, 0], [0] * 4, [0, 1, 0, 0]]


# ── what holds for all of them ────────────────────────────────────────────────────────────────────────────────────


@st.composite
def attribute_models(draw: Any, models: int = 3) -> tuple[list[np.ndarray], np.ndarray]:
    """Scores with ties of some models, and labels; some attribute has samples of both kinds."""
    shape = draw(st.integers(2, 9)), draw(st.integers(1, 4))
    labels = draw(arrays(np.int64, shape, elements=st.integers(0, 1)))
    kinds = labels.min(0) != labels.max(0)
    assume(kinds.any())
    found = [draw(arrays(np.float64, shape, elements=st.integers(-4, 4))) for _ in range(models)]
    assume(all((one.min(0) != one.max(0))[kinds].any() for one in found))
    return found, labels


@st.composite
def class_models(draw: Any, models: int = 3) -> tuple[list[np.ndarray], np.ndarray]:
    samples, classes = draw(st.integers(1, 9)), draw(st.integers(2, 4))
    labels = draw(arrays(np.int64, samples, elements=st.integers(0, classes - 1)))
    return [draw(arrays(np.float64, (samples, classes), elements=st.integers(-4, 4))) for _ in range(models)], labels


def auc_by_pairs(score: np.ndarray, label: np.ndarray) -> float:
    pairs = [(p > q) + (p == q) / 2 for p in score[label == 1] for q in score[label == 0]]
    return sum(pairs) / len(pairs) if pairs else 0.0


def gamma_by_pairs(erased: np.ndarray, original: np.ndarray, retrained: np.ndarray, labels: np.ndarray) -> float:
    auc = [[auc_by_pairs(s, y) for s, y in zip(one.T, labels.T, strict=True)] for one in (erased, original, retrained)]
    away = sum(abs(a - b) for a, b in zip(auc[0], auc[1], strict=True))
    left = sum(abs(a - b) for a, b in zip(auc[0], auc[2], strict=True))
    return away / (away + left) if away + left else 0.5


def delta_by_counting(erased: np.ndarray, original: np.ndarray, retrained: np.ndarray, labels: np.ndarray) -> float:
    def apart(one: np.ndarray, other: np.ndarray) -> int:
        total, classes = 0, one.shape[1]
        for i in range(classes):
            for j in range(classes):
                first, second = (
                    sum(1 for z, y in zip(m, labels, strict=True) if y == i and z.argmax() == j) for m in (one, other)
                )
                total += abs(first - second)
        return total

    left, away = apart(erased, retrained), apart(erased, original)
    return left / (away + left) if away + left else 0.5


RATIOS = [
    pytest.param(attribute_models(), metrics.similarity_ratio, gamma_by_pairs, id="gamma"),
    pytest.param(class_models(), metrics.normalized_confusion_distance, delta_by_counting, id="delta"),
]


@pytest.mark.parametrize(("problem", "ratio", "plain"), RATIOS)
def test_ratios_against_plain_counting(problem, ratio, plain):
    @some
    @given(problem)
    def check(case):
        (erased, original, retrained), labels = case
        found = ratio(erased, original, retrained, labels)
        assert 0 <= found <= 1
        assert found == pytest.approx(plain(erased, original, retrained, labels), abs=1e-12)

    check()


@pytest.mark.parametrize(("problem", "ratio", "plain"), RATIOS)
def test_ends_of_the_ratios(problem, ratio, plain):
    """Erased = original and erased = retrained are the ends, exactly; three alike are 0.5, and flagged."""
    at_original = 0.0 if ratio is metrics.similarity_ratio else 1.0

    @some
    @given(problem)
    def check(case):
        (original, retrained, _), labels = case
        apart = plain(original, original, retrained, labels) != 0.5
        if apart:
            assert ratio(original, original, retrained, labels) == at_original
            assert ratio(retrained, original, retrained, labels) == 1 - at_original
        same = ratio(original, original, original, labels)
        assert same == 0.5
        assert same.flags[-1] == "no difference to either model: 0/0 counts as 0.5"

    check()


@pytest.mark.parametrize(("problem", "ratio", "plain"), RATIOS)
def test_order_of_samples_and_columns_does_not_matter(problem, ratio, plain):
    @some
    @given(problem, st.randoms(use_true_random=False))
    def check(case, random):
        models, labels = case
        expected = ratio(*models, labels)
        rows, columns = list(range(len(labels))), list(range(models[0].shape[1]))
        random.shuffle(rows)
        assert ratio(*(m[rows] for m in models), labels[rows]) == pytest.approx(expected, abs=1e-12)
        if labels.ndim == 2:
            random.shuffle(columns)
            assert ratio(*(m[:, columns] for m in models), labels[:, columns]) == pytest.approx(expected, abs=1e-12)
        else:
            models = [m + 0.1 * np.arange(m.shape[1]) for m in models]  # no ties, which go to the first class
            expected = ratio(*models, labels)
            random.shuffle(columns)
            renamed = np.argsort(columns)[labels]
            assert ratio(*(m[:, columns] for m in models), renamed) == pytest.approx(expected, abs=1e-12)

    check()


@some
@given(attribute_models(), st.sampled_from([np.exp, np.arctan, lambda s: s**3 - 7.0, lambda s: 0.001 * s]))
def test_gamma_sees_ranks_only(case, monotone: Callable[[np.ndarray], np.ndarray]):
    (erased, original, retrained), labels = case
    expected = metrics.similarity_ratio(erased, original, retrained, labels)
    assert metrics.similarity_ratio(monotone(erased), original, monotone(retrained), labels) == expected


@some
@given(attribute_models())
def test_performance_similarity_is_a_distance(case):
    (a, b, c), labels = case
    between = metrics.performance_similarity
    assert between(a, b, labels) == between(b, a, labels)
    assert between(a, a, labels) == 0
    assert between(a, c, labels) <= between(a, b, labels) + between(b, c, labels) + 1e-12


@some
@given(class_models())
def test_confusion_distance_is_a_distance(case):
    (a, b, c), labels = case
    between = metrics.confusion_distance
    assert between(a, b, labels) == between(b, a, labels)
    assert between(a, a, labels) == 0
    assert between(a, c, labels) <= between(a, b, labels) + between(b, c, labels)


def test_a_flagged_number_is_a_number():
    value = Flagged(0.25, "look")
    assert value == 0.25
    assert value + 1 == 1.25
    assert value.flags == ("look",)


# ── any array ─────────────────────────────────────────────────────────────────────────────────────────────────────

FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "list": lambda a: a.tolist(),
    "float16": lambda a: torch.tensor(a, dtype=torch.float16),
    "bfloat16": lambda a: torch.tensor(a, dtype=torch.bfloat16),
    "float32 with gradient": lambda a: torch.tensor(a, dtype=torch.float32, requires_grad=True),
    "numpy float16": lambda a: a.astype(np.float16),
    "Fortran order": np.asfortranarray,
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_any_form_of_scores(form):
    """The scores are small numbers, which all of these hold exactly."""
    labels = torch.tensor(HAVE, dtype=torch.bfloat16)
    gamma = metrics.similarity_ratio(form(ERASED), form(ORIGINAL), form(RETRAINED), labels)
    assert gamma == metrics.similarity_ratio(ERASED, ORIGINAL, RETRAINED, HAVE)
    logits = {name: form(4 * np.eye(3)[said]) for name, said in SAID.items()}
    for truth in (TRUE, tuple(TRUE), torch.tensor(TRUE, dtype=torch.uint8), np.array(TRUE, dtype=np.float32)):
        three = logits["erased"], logits["original"], logits["retrained"]
        assert metrics.normalized_confusion_distance(*three, truth) == 6 / 16
        assert metrics.accuracy(logits["erased"], truth) == 0.5
        assert metrics.confidences(logits["erased"], truth)[1] == pytest.approx(4 - math.log(2))
        assert metrics.divergences(logits["erased"], [logits["erased"]], truth).max() == 0


# ── what must be refused ──────────────────────────────────────────────────────────────────────────────────────────

BAD_SCORES = {
    "class indices": (ERASED, TRUE, "class indices. For classes use normalized_confusion_distance"),
    "one class only": (ERASED, np.ones((10, 4)), "same for all 10 samples .one class only."),
    "constant": (np.full((10, 4), 0.5), HAVE, "erased: the scores are constant"),
    "wrong width": (ERASED[:, :3], HAVE, r"'erased' has 3 outputs, 'original' has 4"),
    "fewer samples": (ERASED[:9], HAVE, "'erased' has logits of 9 samples and 'original' of 10"),
    "empty": (ERASED[:0], HAVE, "erased: there are no samples"),
    "no outputs": (ERASED[:, :0], HAVE, "erased: there are no samples"),
    "NaN": (np.where(ERASED == 5.5, NAN, ERASED), HAVE, "erased: the logits of sample 0 hold NaN or infinity"),
    "infinity": (np.where(ERASED == 7, INF, ERASED), HAVE, "erased: the logits of sample 6 hold NaN or infinity"),
    "three dimensions": (ERASED[None], HAVE, r"shape \(samples, outputs\); these have \(1, 10, 4\)"),
    "words": ([["a", "b"]], HAVE, "erased: numbers are needed, not <U1"),
    "complex": (ERASED + 1j, HAVE, "erased: numbers are needed, not complex128"),
    "ragged": ([[1.0, 2.0], [3.0]], HAVE, "erased: an array of numbers is needed, with rows of one length"),
    "a number": (3.0, HAVE, "erased: one entry a sample is needed, not a single number"),
    "None": (None, HAVE, "erased: numbers are needed, not object"),
    "labels ±1": (ERASED, 2 * HAVE - 1, "must be 0 or 1; found -1 … 1"),
    "labels NaN": (ERASED, np.where(HAVE, NAN, 0), "must be 0 or 1; found nan"),
    "labels of another width": (ERASED, HAVE[:, :3], r"logits' shape \(10, 4\); these have \(10, 3\)"),
    "too few labels": (ERASED, HAVE[:9], "10 samples of logits and 9 labels"),
}


@pytest.mark.parametrize(("erased", "labels", "message"), BAD_SCORES.values(), ids=BAD_SCORES)
def test_gamma_refuses(erased, labels, message):
    with refused(InvalidData, message):
        metrics.similarity_ratio(erased, ORIGINAL, RETRAINED, labels)


def test_gamma_of_one_sample_is_not_defined():
    with refused(InvalidData, "same for all 1 samples .one class only.*Measure on more samples"):
        metrics.similarity_ratio(ERASED[:1], ORIGINAL[:1], RETRAINED[:1], HAVE[:1])


def test_performance_similarity_refuses_models_that_disagree():
    with refused(InvalidData, "'first' has 4 outputs, 'second' has 2"):
        metrics.performance_similarity(ERASED, ORIGINAL[:, :2], HAVE)


LOGITS = saying(SAID["erased"])
BAD_LOGITS = {
    "attributes": (LOGITS, np.eye(3)[TRUE], "class indices as labels. For 0/1 attributes use similarity_ratio"),
    "one column": (
        LOGITS[:, :1],
        [0, 1] * 5,
        "'erased' has 1 outputs, 'original' has 3. .* still has an output for it",
    ),
    "wrong width": (LOGITS[:, :2], TRUE, "models disagree on the classes: 'erased' has 2 outputs, 'original' has 3"),
    "empty": (LOGITS[:0], TRUE, "erased: there are no samples"),
    "NaN": (np.where(np.arange(10)[:, None] == 4, NAN, LOGITS), TRUE, "erased: the logits of sample 4 hold NaN"),
    "a class too many": (LOGITS, [3, *TRUE[1:]], "3 columns, so labels lie in 0 … 2; found 0 … 3. Logits of the wrong"),
    "a negative class": (LOGITS, [-1, *TRUE[1:]], "found -1 … 2"),
    "half a class": (LOGITS, [0.0, 0.5, *TRUE[2:]], "whole numbers 0 … 2; one of these is 0.5"),
    "class NaN": (LOGITS, [0.0, NAN, *TRUE[2:]], "whole numbers 0 … 2; one of these is nan"),
    "words": (LOGITS, ["cat"] * 10, "labels: numbers are needed, not <U3"),
    "one label": (LOGITS, 1, "labels: one entry a sample is needed"),
    "too many labels": (LOGITS, [*TRUE, 0], "10 samples of logits and 11 labels"),
    "no labels": (LOGITS, [], "10 samples of logits and 0 labels"),
    "a column of labels": (LOGITS, np.array(TRUE)[:, None], r"\(10,\) or 0/1 attributes .* these have \(10, 1\)"),
}


@pytest.mark.parametrize(("erased", "labels", "message"), BAD_LOGITS.values(), ids=BAD_LOGITS)
def test_delta_refuses(erased, labels, message):
    with refused(InvalidData, message):
        metrics.normalized_confusion_distance(erased, saying(SAID["original"]), saying(SAID["retrained"]), labels)


@pytest.mark.parametrize(
    ("labels", "message"),
    [([0, 1, 2], "0 or 1; found 0 … 2. One column of logits cannot tell more than two"), ([0, 1], "3 samples")],
)
def test_one_column_of_logits_has_two_classes(labels, message):
    for measure in (metrics.accuracy, metrics.confidences, lambda z, y: metrics.divergences(z, [z], y)):
        with refused(InvalidData, message):
            measure([0.3, -0.1, 0.2], labels)
    with refused(InvalidData, "a column of logits for each .two at least."):
        metrics.confusion_distance([0.3, -0.1], [0.3, -0.1], [0, 1])


def test_divergences_refuse_models_that_disagree():
    with refused(InvalidData, "'logits' has 3 outputs, 'reference 1' has 2"):
        metrics.divergences(LOGITS, [LOGITS, LOGITS[:, :2]], TRUE)
