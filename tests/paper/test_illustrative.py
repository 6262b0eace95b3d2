"""Figure 1 and Proposition 1: against plain 3×3 matrices and closed forms; the verdicts follow the numbers."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from ssse.paper.illustrative import proposition
from ssse.paper.illustrative import removals as removing
from ssse.paper.illustrative import run as illustrative
from ssse.paper.settings import Settings

FEW = 3
QUIET = Settings(show_progress=False)


@pytest.fixture(scope="module")
def measured() -> tuple[removing.Plane, dict[str, removing.Removal]]:
    plane = removing.draw_plane(5, 0)
    return plane, removing.measure_draw(plane, removing.choose_removals(plane, 5, 0), 5, 0)


@pytest.fixture
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(illustrative, "DRAWS", FEW)


def by_hand(plane: removing.Plane, removal: removing.Removal, weight: str, leave_out: bool) -> np.ndarray:
    """The step at ε = 1 from a dense 3×3 matrix."""
    x = np.column_stack([plane.x.numpy(), np.ones(len(plane.x))])
    y, gone, theta = plane.y[:, 0].numpy(), removal.chosen, removal.original
    n, k, p = len(y), int(gone.sum()), expit(x @ theta)
    g = x[gone].T @ (p - y)[gone] + k * removing.DECAY * theta
    w = p * (1 - p) if weight == "hessian" else (p - y) ** 2
    damping = removing.DECAY * np.eye(3)
    if leave_out:
        return np.linalg.solve((x[~gone].T * w[~gone]) @ x[~gone] + (n - k) * damping, g)
    return n / (n - k) * np.linalg.solve((x.T * w) @ x + n * damping, g)


@pytest.mark.parametrize("name", ["one", "group", "random"])
@pytest.mark.parametrize("place", ["all", "rest"])
def test_updates_and_distances_agree_with_dense_matrices(
    measured: tuple[removing.Plane, dict[str, removing.Removal]], name: str, place: str
) -> None:
    plane, removals = measured
    removal, leave_out = removals[name], place == "rest"
    goal = removal.retrained - removal.original
    whole = np.linalg.norm(goal)
    u = by_hand(plane, removal, "fisher", leave_out)
    grid = np.linspace(0.01, 6, 60001)
    best = grid[np.argmin(np.linalg.norm(grid[:, None] * u - goal, axis=1))]
    expected = {f"influence_{place}": by_hand(plane, removal, "hessian", leave_out), f"ssse_{place}": best * u}
    found = removing.all_measures(removal, plane)
    for method, step in expected.items():
        tolerance = 1e-8 if method.startswith("influence") else 2e-4  # the grid's step
        np.testing.assert_allclose(removal.updates[method][1], removal.original + step, atol=tolerance * 10)
        assert found[method]["distance"] == pytest.approx(np.linalg.norm(step - goal) / whole, abs=tolerance)
    assert found["original"]["distance"] == 1
    scale, theta = removal.updates[f"ssse_{place}_fixed"]
    np.testing.assert_allclose(theta, removal.original + scale * u, atol=1e-9)


def test_both_models_are_stationary(measured: tuple[removing.Plane, dict[str, removing.Removal]]) -> None:
    plane, removals = measured
    for removal in removals.values():
        for keep, theta in ((removal.chosen | True, removal.original), (~removal.chosen, removal.retrained)):
            x, y = (part.numpy() for part in plane.batch(keep))
            x = np.column_stack([x, np.ones(len(x))])
            gradient = x.T @ (expit(x @ theta) - y[:, 0]) / len(x) + removing.DECAY * theta
            assert np.linalg.norm(gradient) < 1e-11


def test_the_default_is_the_influence_update_over_the_rest(
    measured: tuple[removing.Plane, dict[str, removing.Removal]],
) -> None:
    for removal in measured[1].values():
        np.testing.assert_allclose(removal.updates["default"][1], removal.updates["influence_rest"][1], atol=1e-9)


def test_of_one_sample_leaving_out_changes_the_length_of_the_step_alone(
    measured: tuple[removing.Plane, dict[str, removing.Removal]],
) -> None:
    plane, removals = measured
    for weight in ("hessian", "fisher"):
        steps = [by_hand(plane, removals["one"], weight, leave_out) for leave_out in (False, True)]
        cosine = steps[0] @ steps[1] / np.prod([np.linalg.norm(step) for step in steps])
        assert cosine > 0.9999  # not 1: the weight decay's share of g
        assert np.linalg.norm(steps[1]) > 1.05 * np.linalg.norm(steps[0])


def test_boundaries_are_measured_as_lines() -> None:
    assert removing.angle_between(np.array([1.0, 0, 5]), np.array([1.0, 1, 0])) == pytest.approx(45)
    points = np.array([[-2.0, 0], [-0.5, 0], [0.5, 0], [2.0, 0]])
    assert removing.disagreement(np.array([1.0, 0, 0]), np.array([1.0, 0, 1.0]), points) == 25
    assert removing.best_scale(np.array([1.0, 0]), np.array([-1.0, 0])) == removing.SMALLEST


@pytest.mark.parametrize(("c", "eps"), [(2, 0.2), (3, 0.1), (4, 0.0625), (16, 0.001), (64, 1e-5), (16, 0.05)])
def test_errors_of_one_sample_have_a_closed_form(c: int, eps: float) -> None:
    assert proposition.single_sample(c, eps) == pytest.approx(proposition.closed_form(c, eps), rel=1e-9)


def test_errors_over_a_data_set() -> None:
    """Orthogonal inputs: as of one sample. Only shared inputs: Σ_y A_y is F̂/(ε(c−1)) times p_y + (c−2)/c."""
    c, eps = 8, 1 / 64
    apart = proposition.data_set(c, eps, 0.0, 0)
    assert apart["frobenius"] == pytest.approx(proposition.closed_form(c, eps)["frobenius"])
    assert apart["spectral"] == pytest.approx(proposition.closed_form(c, eps)["spectral"])
    shared = proposition.data_set(c, eps, 1e4, 0)
    constant = 1 - (c - 1) * eps + (c - 2) / c
    assert shared["constant"] == pytest.approx(constant, rel=1e-4)
    assert shared["frobenius"] == pytest.approx(abs(1 - 1 / constant), rel=1e-4)
    assert shared["frobenius_best_constant"] < 1e-3


@pytest.mark.parametrize("eps", [0.01, 0.3, 0.5])
def test_the_binary_constant(eps: float) -> None:
    found = proposition.binary(eps, 0)
    assert found["measured"] == pytest.approx((1 - eps) / eps)
    assert found["corrected_error"] < 1e-12
    assert found["printed_error"] == pytest.approx(abs(1 - (eps / (1 - eps)) ** 2), abs=1e-12)


def made_up(distances: dict[str, float], apart: float = 0.1) -> dict[str, Any]:
    """Draws of ten, with one distance a method."""
    draws: dict[str, Any] = {}
    for name in removing.REMOVALS:
        draws[name] = {"original": {"distance": [1.0] * 10, "disagreement": [10.0] * 10}}
        for method in removing.METHODS:
            draws[name][method] = {"distance": [distances.get(method, 0.5)] * 10, "scale": [1.0] * 10}
            draws[name][method] |= {"from_influence": [10 * apart] * 10, "angle_from_influence": [1.0] * 10}
    return draws


def test_the_verdict_on_leaving_out_follows_the_numbers() -> None:
    better = {"influence_rest": 0.1, "ssse_rest": 0.1, "ssse_rest_fixed": 0.1}
    assert illustrative.judge_leave_out(made_up(better)).holds == "yes"
    assert illustrative.judge_leave_out(made_up({})).holds == "no"
    some = illustrative.judge_leave_out(made_up({"influence_rest": 0.1}))
    assert some.holds == "partly"
    assert "0.50 → 0.10" in some.found
    assert "Not for SSSE, best ε" in some.reason
    hardly = illustrative.judge_leave_out(made_up({method: 0.49 for method in better}))
    assert hardly.holds == "no"  # nearer in every draw, and yet not clearly


def test_the_verdict_on_similarity_follows_the_numbers() -> None:
    assert illustrative.judge_similar(made_up({}, apart=0.1)).holds == "yes"
    assert illustrative.judge_similar(made_up({}, apart=0.9)).holds == "no"
    mixed = made_up({}, apart=0.1)
    mixed["group"]["ssse_all"]["from_influence"] = [9.0] * 10
    assert illustrative.judge_similar(mixed).holds == "partly"
    mixed["group"]["ssse_all"]["from_influence"] = [0.8, 9.0] * 5  # mean 4.9 of 10: below half, within the error
    assert illustrative.judge_similar(mixed).holds == "partly"


def test_the_verdicts_on_the_proposition_follow_the_numbers() -> None:
    numbers = proposition.measure_proposition(0)
    assert [finding.holds for finding in proposition.judge(numbers)] == ["partly", "no"]
    falling = copy.deepcopy(numbers)
    falling["data"]["shared"] = falling["data"]["apart"]
    for entry in falling["binary"]:
        entry["printed_error"] = 0.0
    assert [finding.holds for finding in proposition.judge(falling)] == ["yes", "yes"]
    for entry in falling["single"]["vanishing"]:
        entry["frobenius"] = 0.4
    assert proposition.judge(falling)[0].holds == "no"


@pytest.mark.usefixtures("few_draws")
def test_a_run_is_whole_and_the_same_again() -> None:
    first, again = (illustrative.run(QUIET).to_dict() for _ in range(2))
    assert first == again
    assert json.loads(json.dumps(first, allow_nan=False)) == first
    assert (first["experiment"], first["form"]) == ("illustrative", "full")
    assert {finding["paper"][:3] for finding in first["findings"]} == {"For", "Wit", "H ≈", "Two"}
    assert len(first["numbers"]["draws"]["one"]["ssse_all"]["distance"]) == FEW
    for table in first["tables"]:
        assert all(len(row) == len(table["columns"]) for row in table["rows"])


@pytest.mark.usefixtures("few_draws")
def test_another_seed_gives_other_numbers_and_figures_can_be_saved(tmp_path: Any) -> None:
    result = illustrative.run(replace(QUIET, seed=1))
    assert result.numbers["picture"]["one"] != illustrative.measure(QUIET)[0]["picture"]["one"]
    for drawn in result.figures:
        drawn.figure.savefig(tmp_path / f"{drawn.name}.svg")
        assert (tmp_path / f"{drawn.name}.svg").stat().st_size > 1000
