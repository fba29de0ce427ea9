"""The calibration panel without a front end: its controls are set, its buttons clicked."""

import json
import re

import pytest

from abcnb.show.panels import calibration_panel
from abcnb.show.panels.calibration import ALGORITHM_1, KAPPAS, TAUS, TESTED_LENGTHS
from abcnb.study.runs import load_run
from abcnb.tasks.task import get_task
from tests.little import calibrated_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("panels") / "runs"


@pytest.fixture(scope="module")
def run(runs):
    return calibrated_run(runs)


@pytest.fixture
def panel(run, runs):
    return calibration_panel(run, runs, "cpu", samples=5)


# --- controls


def test_tau_draws_the_lines_above_it(panel):
    few, drawn = panel.lines.value, panel.maps.value
    panel.tau.value = 0.04
    assert panel.maps.value != drawn and panel.lines.value.count("<tr>") < few.count("<tr>")
    panel.tau.value = 0.6
    assert panel.text.startswith("expected lines with a share of more than 0.6")
    panel.tau.value = 0.04
    assert panel.text == "" and panel.asked()[0].tau == 0.04


def test_algorithm_1_on_the_same_attention(panel):
    panel.mode.value = ALGORITHM_1
    drawn = panel.maps.value
    panel.kappa_cross.value = 1.0
    assert panel.maps.value != drawn
    panel.directions_self.value = ()
    assert panel.text.startswith("expected directions_self as a tuple")
    panel.directions_self.value = (0, 1)
    assert panel.asked()[0].algorithm1.directions_self == (0, 1) and panel.asked()[0].bias == "algorithm1"


def test_the_page_has_a_frame_for_each_choice(panel):
    data = json.loads(re.search(r"const frames = (.*);\n", panel.fragment())[1])
    assert [frame["name"] for frame in data["tau"]] == [f"{tau:g}" for tau in TAUS]
    assert [frame["name"] for frame in data["kappa"]] == [f"{kappa:g}" for kappa in KAPPAS]
    assert panel.tau.value == panel.run.experiment.tau, "the controls stay where they were"


def test_a_run_without_calibrated_lines_is_refused(run, runs):
    plain = load_run(runs / run.experiment.interpolation.digest)
    with pytest.raises(ValueError, match="expected a run of ABC"):
        calibration_panel(plain, runs)


def test_the_longest_training_length_is_in_digits_of_the_test():
    assert [get_task(name).longest_trained for name in ("addition", "parity")] == [6, 6]


# --- retraining


def wait(panel):
    panel.retraining.thread.join(timeout=120)
    assert not panel.retraining.thread.is_alive()


def test_retraining_trains_and_adds_a_curve(panel, runs):
    (before,) = panel.retraining.curves.values()
    assert set(before["method"]) == {"τ 0.02 (this run)"}
    assert before["length"].tolist() == list(TESTED_LENGTHS)
    panel.tau.value = 0.03
    wanted, drawn = panel.asked()[0], panel.retraining.picture.value
    assert not (runs / wanted.digest).exists()
    panel.retraining.start_button.click()
    assert panel.retraining.start_button.disabled
    wait(panel)
    assert panel.retraining.status.value == "Done: the curve is in the figure."
    assert load_run(runs / wanted.digest).metrics["steps"] == 20
    added = panel.retraining.curves[wanted.digest]
    assert set(added["method"]) == {"τ 0.03"} and added["length"].tolist() == list(TESTED_LENGTHS)
    assert added["exact_match"].tolist() == [
        load_run(runs / wanted.digest).evaluate(length, 5).exact_match for length in TESTED_LENGTHS
    ]
    assert panel.retraining.picture.value != drawn and "τ 0.03" in panel.retraining.table.value
    assert panel.retraining.progress.value == panel.retraining.progress.max == 20
    assert panel.retraining.stop_button.disabled and not panel.retraining.start_button.disabled


def press_stop(retraining, monkeypatch, when):
    """Let a reader press stop once, at the first line for which `when` holds; returns all lines, as they come."""
    told, show = [], retraining.show_progress

    def show_and_press(text, steps=0):
        told.append(text)
        if when(text) and not any(map(when, told[:-1])):
            retraining.stop_button.click()
        show(text, steps)

    monkeypatch.setattr(retraining, "show_progress", show_and_press)
    return told


def test_stop_stops_and_a_second_press_resumes(panel, runs, monkeypatch):
    told = press_stop(panel.retraining, monkeypatch, lambda text: text.startswith("step"))
    panel.tau.value = 0.04
    wanted, _ = panel.asked()
    panel.retraining.start_button.click()
    wait(panel)
    assert panel.retraining.status.value.startswith("Stopped; the next press goes on from the last checkpoint")
    assert not (runs / wanted.digest / "metrics.json").exists() and len(panel.retraining.curves) == 1
    assert all(re.fullmatch(r"step \d+ of 20, loss \d\.\d{3}(, \d\d:\d\d left)?", text) for text in told)
    before = len(told)
    panel.retraining.start_button.click()
    wait(panel)
    done = [int(text.split()[1]) for text in told if text.startswith("step")]
    assert done[before] > done[before - 1] and done[-1] == 20, "what was done is not done again"
    assert load_run(runs / wanted.digest).metrics["steps"] == 20 and len(panel.retraining.curves) == 2


def test_a_stop_between_tests_ends_them(panel, monkeypatch):
    told = press_stop(panel.retraining, monkeypatch, lambda text: text.startswith("testing"))
    panel.retraining.start_button.click()
    wait(panel)
    assert panel.retraining.status.value.startswith("Stopped") and told == ["testing 1 digits"]


def test_an_error_in_the_thread_is_one_line(panel, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("the disk is full\nand more")

    monkeypatch.setattr("abcnb.show.panels.calibration.fit", fail)
    panel.retraining.start()
    wait(panel)
    assert panel.retraining.status.value == "the disk is full" and len(panel.retraining.curves) == 1
    assert not panel.retraining.start_button.disabled
