"""Every example runs as it stands, and what it prints shows what it says it shows.

In this process, because importing torch anew takes longer than most of them. Numbers are read from what is printed and
compared with each other: their last digits differ between machines.
"""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.long

FOLDER = Path(__file__).parent.parent / "examples"
DRAW_NOTHING = {"inbox.py", "lightning_module.py", "lora_secret.py", "transformer_classifier.py"}
OTHER_NAMES = {"choose_the_scale.py": {"scale.svg", "scale_and_damping.svg"}}
Run = Callable[[str], str]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys) -> Run:
    def run_example(name: str) -> str:
        monkeypatch.chdir(tmp_path)
        with torch.random.fork_rng():
            runpy.run_path(str(FOLDER / name), run_name="__main__")
        drawn = set() if name in DRAW_NOTHING else {name.replace(".py", ".svg")}
        assert {path.name for path in tmp_path.glob("*.svg")} == OTHER_NAMES.get(name, drawn)
        assert all(path.stat().st_size > 4_000 for path in tmp_path.glob("*.svg"))
        return capsys.readouterr().out

    return run_example


def numbers_after(label: str, printed: str) -> list[float]:
    """The numbers of the first line that starts so."""
    line = re.search(rf"^ *{re.escape(label)}(.*)$", printed, re.MULTILINE)
    assert line, f"no line starts with {label!r} in:\n{printed}"
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?(?:e[+-]\d+)?", line[1])]


def test_no_example_is_forgotten():
    tested = re.findall(r'run\("(\w+\.py)"\)', Path(__file__).read_text())
    assert sorted(tested) == sorted(path.name for path in FOLDER.glob("*.py"))


def test_choose_the_scale(run, tmp_path):
    printed = run("choose_the_scale.py")
    lines = re.findall(r"^ε = (\S+), λ = (\S+), by (\w+): (.*)$", printed, re.MULTILINE)
    assert [line[2] for line in lines] == ["retrained", "attack_parity", "loss_search", "line_search", "retrained"]
    by_retraining, by_parity, by_loss, by_line, with_damping = (float(line[0]) for line in lines)
    ratio, best = (float(re.findall(r"δ = ([\d.]+)", lines[i][3])[0]) for i in (0, 4))
    assert best <= ratio < 0.5  # the model as it was has 1; λ beside ε can only help
    recognised, chance = map(float, re.findall(r"([\d.]+)%", lines[1][3])[:2])
    assert recognised <= chance
    assert by_parity > 0
    assert by_line < by_loss < by_retraining  # "here they fall short"
    assert with_damping > 0
    assert "forgotten: 139 of 1437" in printed
    assert numbers_after("ε, λ:", printed)[0] == pytest.approx(by_retraining, rel=0.01)  # stored, and used
    before, after = numbers_after("loss on S:", printed)
    assert after > 3 * before
    assert all((tmp_path / name).stat().st_size > 10_000 for name in ("scale.svg", "scale_and_damping.svg"))


def test_compare_methods(run, tmp_path):
    printed = run("compare_methods.py")
    methods = ["original", "SSSE", "SSSE, refined", "SSSE of the paper", "gradient ascent", "fine-tuning", "NegGrad+"]
    table = printed.splitlines()
    titles = re.split(r" {2,}", table[0].strip())
    rows = {cells[0]: cells[1:] for line in table[2:] if len(cells := re.split(r" {2,}", line.strip())) > 5}
    assert {*methods, "SSD", "retrained (×3)"} <= rows.keys()
    divergence, gap = (
        {name: float(rows[name][titles.index(title)]) for name in methods} for title in ("KL on S", "mean gap")
    )
    assert min(divergence, key=lambda name: divergence[name]) == "SSSE, refined"
    assert divergence["SSSE"] < 0.3 * divergence["original"]
    assert divergence["SSSE"] < min(divergence[name] for name in methods[3:])
    assert gap["SSSE, refined"] < gap["SSSE"] < gap["original"]
    assert min(float(rows[name][0]) for name in methods) > 98
    assert {name: rows[name][-1] for name in ("SSSE", "NegGrad+")} == {"SSSE": "no", "NegGrad+": "yes"}
    assert re.search(r"^noise floor +\S+ ± ", printed.replace("\n ", "\n"), re.MULTILINE)
    assert "chosen by looking at the retrained model" in printed
    assert (tmp_path / "compare_methods.svg").stat().st_size > 10_000


def test_head_of_a_network(run):
    printed = run("head_of_a_network.py")
    assert "d=410, n=1,797" in printed  # 40·10 + 10 parameters, not those of the whole network
    assert "note: Only 2.weight, 2.bias can change" in printed
    (nines, rest), (nines_after, rest_after) = (numbers_after(label, printed) for label in ("before:", "after:"))
    assert min(nines, rest, rest_after) > 97
    assert nines_after < 0.7 * nines


def test_network_that_forgets(run):
    printed = run("network_that_forgets.py")
    memory = {
        name: numbers_after(name, printed)[0]
        for name in ("original", "after gradient ascent", "the same, repaired", "after step and repair", "retrained")
    }
    assert memory["original"] > 95
    assert memory["the same, repaired"] > memory["after gradient ascent"] + 20  # hidden, and back
    assert memory["after step and repair"] < (memory["original"] + memory["retrained"]) / 2  # erased, for the most part
    ascended = numbers_after("gradient ascent", printed)
    assert ascended[-1] > ascended[0] + 20
    along = numbers_after("step and repair", printed)
    assert along[-1] < along[0] + 10


def test_refine_a_class(run):
    printed = run("refine_a_class.py")
    far = {label: numbers_after(label, printed)[-2:] for label in ("trained", "erased", "refined, 10 steps")}
    three = numbers_after("refined, 3 steps", printed)
    assert three[0] == 4  # passes, one more than steps
    assert 0.1 > three[1] > far["refined, 10 steps"][0]
    assert far["trained"][0] == 1 > far["erased"][0] > three[1]
    assert far["refined, 10 steps"][0] < 1e-6
    assert numbers_after("refined, 1 step ", printed)[-1] >= far["erased"][1] > far["trained"][1]
    assert "converged" in printed


def test_inbox(run):
    printed = run("inbox.py")
    assert printed.startswith("1437 samples, 650 parameters\n")
    answers = dict(re.findall(r"^(\w+): (.*)$", printed, re.MULTILINE))
    assert answers.pop("dave").startswith("refused. Its only sample was never in the training data")
    assert answers.pop("verified").startswith("True, 13 entries, head ")
    assert answers == {"alice": "erased. ok", "bob": "erased. ok", "carol": "erased, 1 erased before. ok"}


def test_lora_secret(run):
    printed = run("lora_secret.py")
    assert re.search(r"^plan: sampled rows .*, dense, 1 block, float32", printed, re.MULTILINE)
    before, after, goal = numbers_after("exposure of the secret, bits", printed)
    assert before > 5  # of 9: among 512, one of the sixteen likeliest
    assert after < 0.6 * before
    assert goal < before  # of a secret that was never seen chance decides the rest
    before, after, goal = numbers_after("loss of a token, forgotten texts", printed)
    assert abs(after - goal) < 0.6 * (goal - before)
    before, after, _ = numbers_after("loss of a token, all others", printed)
    assert after < before + 0.1
    assert "verdict: caution" in printed  # a network without a probe


def test_many_requests(run):
    printed = run("many_requests.py")
    assert "n=529" in printed  # 569 less 20 times 2
    (difference,) = numbers_after("largest difference to one request of all 40 samples:", printed)
    assert difference < 1e-9


def test_churn_customer(run):
    printed = run("churn_customer.py")
    trained, erased, refit = numbers_after("coefficient of payment = cheque", printed)
    assert trained > 0.1
    assert (erased, refit) == pytest.approx((0, 0), abs=1e-3)
    before, after, without_her = numbers_after("chance that she leaves", printed)
    assert abs(after - without_her) < 0.01 * abs(before - without_her)
    (step,) = numbers_after("the coefficients moved by", printed)
    distance, proved = numbers_after("and are from the refit's now", printed)
    assert distance < proved < step
    assert distance < 0.01 * step
    assert "transformers stay as they are" in printed
    assert "ways to pay  card, cheque, direct debit, transfer\n" in printed  # the encoder still knows of her
    assert numbers_after("A refit with new transformers says the same of", printed)[0] > 99.8


def test_mislabelled_points(run):
    printed = run("mislabelled_points.py")
    rows = [numbers_after(f"{count} ", printed) for count in (0, 72)]
    trained, *_ = rows[0]
    assert rows[0] == [trained] * 3
    assert min(rows[1]) > trained + 1  # accuracy in %: it comes back
    alone, refined = (numbers_after(label, printed) for label in ("erase alone", "then refine"))
    assert 50 < alone[0] < refined[0]  # % of the way to the refit
    assert refined[0] > 90
    assert re.search(r"^then refine .*at most \S+$", printed, re.MULTILINE)
    assert "Shown: erasing 72 wrong labels wins" in printed
    assert "The figure: mislabelled_points.svg\n" in printed


def test_thousand_deletions(run):
    printed = run("thousand_deletions.py")
    moved, rebased, *_, joint, bound = numbers_after("1000 ", printed)
    assert max(rebased, joint) < 0.02 * moved
    assert joint < bound  # which is still one, after a thousand
    assert numbers_after("Shown: after 1000 requests the error is", printed)[0] < 2  # %
    refined, proved = numbers_after("", printed[printed.index("it is\n") + 6 :])
    assert max(refined, proved) < 1e-6
    assert len(re.findall(r"^  (?:rebase|joint) +[\d.]+ ms +[\d.]+ ms +\d+ ms$", printed, re.MULTILINE)) == 2


def test_whole_class(run):
    printed = run("whole_class.py")
    for kind, part in zip(("ridge", "softmax"), re.split("^LogisticRegression", printed, flags=re.M), strict=True):
        classes, threes, others, same, distance, *proved = numbers_after("erased", part)
        assert (classes, threes) == (9, 0)
        assert others > 90
        assert same > (99.9 if kind == "ridge" else 98)
        if kind == "ridge":
            assert distance < proved[0] < 1e-8  # to rounding
        else:
            assert not proved
            assert "nothing" in part
            before = numbers_after("trained", part)[4]
            assert distance < before
            after = numbers_after("refined, 5 more", part)
            assert after[4] < 1e-5
            assert after[5] < 1e-4


def test_transformer_classifier(run):
    pytest.importorskip("transformers")
    pytest.importorskip("datasets")
    printed = run("transformer_classifier.py")
    assert "Rows are taken layer by layer" in printed
    assert "4 of 164 letters go" in printed
    assert "verdict: caution" in printed
    before, after, retrained = (numbers_after(label, printed) for label in ("before", "after", "retrained"))
    assert before[0] > 95  # sure of her department
    assert retrained[0] < after[0] < before[0] - 5  # on the way to what a retrained model says
    assert min(before[2], after[2], retrained[2]) > 95


def test_lstm_sequences(run):
    printed = run("lstm_sequences.py")
    assert "Rows are taken one sample at a time" in printed
    assert "10 of 300 words go" in printed
    assert "verdict: caution" in printed
    before, after, retrained = (numbers_after(label, printed) for label in ("before", "after", "retrained"))
    assert before[0] > 90
    assert max(after[0], retrained[0]) < 0.5 * before[0]
    assert min(before[1], after[1], retrained[1]) > 95


def test_lightning_module(run):
    pytest.importorskip("lightning")
    printed = run("lightning_module.py")
    assert "40 of 1240 images go" in printed
    assert "verdict: caution" in printed
    before, after, retrained = (numbers_after(label, printed) for label in ("before", "after", "retrained"))
    assert before[0] < after[0]  # wrong labels are less likely, as after retraining
    assert abs(after[0] - retrained[0]) < abs(before[0] - retrained[0])
    assert min(before[2], after[2], retrained[2]) > 90


NEEDS = {
    "churn_customer.py": ("pandas", "This example makes a table with pandas: pip install pandas"),
    "transformer_classifier.py": (
        "transformers", "This example trains a text classifier of transformers: pip install transformers datasets"
    ),
    "lightning_module.py": (
        "lightning", "This example trains with the Trainer of lightning: pip install lightning"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NEEDS)
def test_an_example_says_which_library_it_needs(name, tmp_path):
    library, sentence = NEEDS[name]
    (tmp_path / f"{library}.py").write_text("raise ImportError('as if it were not there')")
    script = shutil.copy(FOLDER / name, tmp_path)
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 1
    assert done.stderr == f"{sentence}\n"
