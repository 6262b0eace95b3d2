"""The table as text, JSON, frame and figure."""

from __future__ import annotations

import io
import json
import math

import numpy as np
import pytest
from rich.console import Console

from ssse.evaluation.table import Evaluation
from tests.support.evaluation_problems import CASES, SIZES, evaluate, family, model, near, number

# ── what is shown ─────────────────────────────────────────────────────────────────────────────────────────────────

EIGHT = {
    **family(2, 2),
    "gradient ascent on the forgotten samples": model(21),
    "SSSE [eps=1, damping=1e-4]": model(22),
    "[/] a name that looks like markup": model(23),
    "influence": model(24),
    "λ = 10⁻⁴": model(25),
}
SHOWN = evaluate(EIGHT, CASES["classes"].splits, loss_fn="cross_entropy")


def test_text_has_everything():
    text = str(SHOWN)
    header = text.splitlines()[1]
    for name in EIGHT:
        assert name in header
    assert "retrained (×2)" in header
    assert "noise floor" in header
    for measure in SHOWN.measures:
        line = next(line for line in text.splitlines() if line.strip().startswith(measure.title))
        assert measure.group in text
        for name in EIGHT:
            cell = SHOWN.cells[measure.key].get(name)
            if cell is not None and cell.value is not None and abs(cell.value) > 0.01:
                assert f"{cell.value:.{measure.digits}f}" in line
                if cell.spread is not None and cell.spread > 0.01:
                    assert f"± {cell.spread:.{measure.digits}f}" in line
        if (floor := SHOWN.floors.get(measure.key, 0.0)) > 0.01:
            assert line.rstrip().endswith(f"{floor:.{measure.digits}f}")
            assert measure.key not in SHOWN.floor_spreads  # two retrained models are each as far from the other
    assert "…" not in text
    assert "\x1b" not in text
    for flag in SHOWN.flags:
        assert flag in " ".join(text.split())


def test_text_is_plain_also_on_a_terminal(monkeypatch):
    expected = str(SHOWN)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    assert str(SHOWN) == expected


def test_small_numbers_are_not_rounded_to_nothing():
    models = family()
    models["erased"] = near(models["retrained"], 9, 1e-5)
    found = evaluate(models, CASES["classes"].splits)
    assert 0 < number(found, "erased", "distance") < 4e-4
    assert f" {found['erased', 'distance']:.1e} " in str(found)


@pytest.mark.parametrize("width", [20, 80, 200])
def test_rich_at_any_width(width):
    """Folded where it must be; what fits is not cut."""
    text = io.StringIO()
    Console(file=text, width=width).print(SHOWN)
    assert max(map(len, text.getvalue().splitlines())) <= width
    text = io.StringIO()
    found = evaluate(family(2), CASES["attributes"].splits)
    Console(file=text, width=width).print(found)
    if width >= 80:
        assert "…" not in text.getvalue()
        for name in found.models:
            assert f"{found[name, 'accuracy_forgotten']:.2f}" in text.getvalue()


def test_narrow_terminals_get_the_models_one_below_the_other():
    text = io.StringIO()
    Console(file=text, width=80).print(SHOWN)
    lines = text.getvalue().splitlines()
    assert sum("accuracy, %" in line for line in lines) > 1  # several tables
    whole = next(line for line in lines if "mean accuracy gap, points" in line)
    assert whole.startswith("   mean accuracy gap, points  ")  # labels and numbers do not break
    for flag in SHOWN.flags:
        assert flag in " ".join(text.getvalue().split())  # what must be known is known here too


def test_three_retrained_models_give_the_floor_a_spread():
    found = evaluate(family(3), CASES["classes"].splits)
    assert found.floor_spreads["mean_gap"] > 0
    line = next(line for line in str(found).splitlines() if "mean accuracy gap" in line)
    assert line.rstrip().endswith(f"{found.floors['mean_gap']:.2f} ± {found.floor_spreads['mean_gap']:.2f}")
    assert found.to_dict()["noise_floor_spread"] == found.floor_spreads


def test_representations_are_short():
    assert repr(SHOWN) == f"Evaluation({len(SHOWN.models)} models × {len(SHOWN.measures)} measures; print it)"
    assert SHOWN._repr_html_().startswith("<pre>")


def test_json_and_dict():
    assert json.loads(json.dumps(SHOWN.to_dict())) == SHOWN.to_dict()
    found = json.loads(json.dumps(SHOWN.to_dict()))
    assert found["models"] == list(EIGHT)
    assert found["values"]["mean_gap"]["erased"]["value"] == SHOWN["erased", "mean_gap"]
    assert found["values"]["mean_gap"]["erased"]["spread"] == SHOWN.cells["mean_gap"]["erased"].spread
    assert found["noise_floor"] == SHOWN.floors
    assert found["seeds"]["erased"] == 2
    assert [m["key"] for m in found["measures"]] == [m.key for m in SHOWN.measures]


@pytest.mark.parametrize("retrained", [1, 4])
def test_the_table_comes_back_from_json(retrained):
    found = evaluate(family(retrained, retrained), CASES["attributes"].splits, loss_fn="binary_cross_entropy")
    again = Evaluation.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False)))
    assert again == found
    assert str(again) == str(found)


def test_frame():
    frame = SHOWN.to_frame()
    assert list(frame.index) == [*EIGHT, "noise floor"]
    assert frame.index.name == "model"
    assert list(frame.columns) == [measure.key for measure in SHOWN.measures]
    assert (frame.dtypes == "float64").all()
    assert frame.loc["erased", "mean_gap"] == SHOWN["erased", "mean_gap"]
    assert frame.loc["noise floor", "mean_gap"] == SHOWN.floors["mean_gap"]
    assert math.isnan(frame.loc["retrained", "mean_gap"])  # type: ignore[arg-type]
    assert math.isnan(frame.loc["noise floor", "accuracy_retained"])  # type: ignore[arg-type]
    assert list(evaluate(family(), CASES["classes"].splits).to_frame().index) == ["original", "erased", "retrained"]


def test_reading_a_number():
    assert SHOWN["erased", "mean_gap"] == SHOWN.cells["mean_gap"]["erased"].value
    assert SHOWN["retrained", "mean_gap"] is None
    with pytest.raises(
        KeyError, match=r"No measure 'gap' of model 'erased'; models: .*'influence'.*measures: .*mean_gap"
    ):
        SHOWN["erased", "gap"]
    with pytest.raises(KeyError, match="of model 'nobody'"):
        SHOWN["nobody", "mean_gap"]
    with pytest.raises(KeyError, match=r"Ask for evaluation\[model, measure\]"):
        SHOWN["erased"]  # type: ignore[index]


def test_figure():
    figure = SHOWN.figure()
    accuracy, gaps = figure.axes
    assert accuracy.get_xlabel() == "accuracy, %"
    assert "difference to retrained" in gaps.get_xlabel()
    assert [tick.get_text() for tick in accuracy.get_yticklabels()] == ["D∖S", "S", "T∖T_a", "T_a"]
    assert [t.get_text() for t in gaps.get_yticklabels()][:2] == ["mean accuracy gap, points", "KL on D∖S"]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [*EIGHT, "noise floor"]
    dots = [line for line in accuracy.lines if line.get_marker() != "None"]
    bars = [line for line in accuracy.lines if line.get_marker() == "None"]
    assert len({(line.get_color(), line.get_marker(), line.get_fillstyle()) for line in dots}) == len(EIGHT)
    spreads = [SHOWN.cells[f"accuracy_{split}"][name].spread for name in EIGHT for split in SIZES]
    lengths = [float(np.ptp(np.asarray(bar.get_xdata()))) for bar in bars]
    assert lengths == pytest.approx([2 * spread for spread in spreads if spread])
    for line, name in zip(dots, EIGHT, strict=True):
        assert np.asarray(line.get_xdata()).tolist() == [SHOWN[name, f"accuracy_{split}"] for split in SIZES]
    floors = [np.asarray(line.get_xdata()).tolist() for line in gaps.lines if line.get_color() == "black"]
    assert floors == [[SHOWN.floors[key]] * 2 for key in ("mean_gap", *(f"kl_{split}" for split in SIZES))]
    figure.savefig(io.BytesIO(), format="png")


def test_figure_without_a_floor():
    figure = evaluate(family(), CASES["classes"].splits).figure()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["original", "erased", "retrained"]
