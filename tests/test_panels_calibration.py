"""The calibration panel without a front end: the state of its controls is set, buttons are clicked."""

import re
from dataclasses import replace

import pytest

from abcnb.show.panels import calibration_panel
from abcnb.show.panels.calibration import TESTED_LENGTHS, longest_trained, measured_beforehand, setting_name
from abcnb.show.panels.lines_view import choices_of
from abcnb.study import results
from abcnb.study.methods import settings_of
from abcnb.study.runs import load_run
from abcnb.tasks import get_task
from tests.little import PLACES, calibrated_run


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


def choose(panel, **choices):
    """What the browser does when a control moves."""
    panel.view.state = panel.view.state | choices


MOVES = {
    "kappa_cross": 0.3,
    "kappa_self": 1.1,
    "directions_cross": [-2, 1],
    "directions_self": [0],
    "statistic": "mean",
    "pool": "direction",
    "threshold_on": "centred",
    "min_support": 0.9,
    "frame": "columns",
    "layer": "each",
}


@pytest.mark.parametrize("name", MOVES)
def test_every_choice_changes_the_config(panel, name):
    assert panel.config == panel.base
    choose(panel, **{name: MOVES[name]})
    value = tuple(MOVES[name]) if name.startswith("directions") else MOVES[name]
    assert panel.config == replace(panel.base, **{name: value})


def test_what_is_looked_at_is_no_choice(panel):
    choose(panel, head=1, size=0, shown=0)
    assert panel.config == panel.base


def test_no_direction_is_one_clear_line_and_moving_on_mends_it(panel):
    choose(panel, directions_self=[])
    panel.retrain()
    assert panel.status.value == "No direction is on for self-attention: turn on at least one Δ."
    assert panel.training is None
    choose(panel, directions_self=[1])
    assert panel.config.directions_self == (1,)


def test_a_run_without_calibrated_lines_is_refused(run, runs):
    plain = load_run(runs / run.experiment.interpolation.digest)
    with pytest.raises(ValueError, match="expected a run of ABC"):
        calibration_panel(plain, runs)


def test_settings_have_short_names_that_tell_them_apart():
    base = PLACES
    assert setting_name(base, base) == "κ 1.0/0.0, Δ −1 0 / 0 1"
    other = replace(base, kappa_cross=0.3, directions_self=(1,), statistic="mean", pool="direction", layer="each")
    assert setting_name(other, base) == "κ 0.3/0.0, Δ −1 0 / 1, mean, pool direction, each layer"


def test_the_longest_training_length_is_in_digits_of_the_test():
    assert [longest_trained(get_task(name)) for name in ("addition", "parity")] == [6, 6]


# --- retraining


def wait(panel):
    panel.training.join(timeout=120)
    assert not panel.training.is_alive()


def test_retraining_trains_and_adds_a_curve(panel, runs):
    (before,) = panel.curves.values()
    assert set(before["method"]) == {"κ 1.0/0.0, Δ −1 0 / 0 1 (this run)"}
    assert before["length"].tolist() == list(TESTED_LENGTHS)
    choose(panel, kappa_cross=0.5)
    wanted, drawn = replace(panel.run.experiment, calibration=panel.config), panel.curves_picture.value
    assert not (runs / wanted.digest).exists()
    panel.retrain_button.click()
    assert panel.retrain_button.disabled
    wait(panel)
    assert panel.status.value == "Done: the curve is in the figure."
    assert load_run(runs / wanted.digest).metrics["steps"] == 20
    added = panel.curves[wanted.digest]
    assert set(added["method"]) == {"κ 0.5/0.0, Δ −1 0 / 0 1"} and added["length"].tolist() == list(TESTED_LENGTHS)
    assert added["exact_match"].tolist() == [
        load_run(runs / wanted.digest).evaluate(length, 5).exact_match for length in TESTED_LENGTHS
    ]
    assert panel.curves_picture.value != drawn and "κ 0.5/0.0" in panel.curves_table.value
    assert panel.progress.value == panel.progress.max == 20
    assert panel.stop_button.disabled and not panel.retrain_button.disabled


def test_stop_stops_and_a_second_press_resumes(panel, runs, monkeypatch):
    told, show = [], panel.show_progress

    def press_stop_once(done, total, text):
        show(done, total, text)
        told.append((done, text))
        if done and not stopped:
            panel.stop_button.click()

    stopped = False
    monkeypatch.setattr(panel, "show_progress", press_stop_once)
    choose(panel, kappa_cross=0.25)
    wanted = replace(panel.run.experiment, calibration=panel.config)
    panel.retrain_button.click()
    wait(panel)
    assert panel.status.value == "Stopped; training goes on from its checkpoint."
    assert not (runs / wanted.digest / "metrics.json").exists() and len(panel.curves) == 1
    assert re.fullmatch(r"step \d+ of 20, loss \d\.\d{3}, \d+ s left", told[-1][1])
    before = told[-1][0]
    told.clear()
    stopped = True
    panel.retrain_button.click()
    wait(panel)
    again = [done for done, text in told if text.startswith("step")]
    assert again[0] > before and again[-1] == 20, "what was done is not done again"
    assert load_run(runs / wanted.digest).metrics["steps"] == 20 and len(panel.curves) == 2


def test_a_stop_between_tests_says_that_the_model_is_trained(panel, monkeypatch):
    show = panel.show_progress

    def press_stop(done, total, text):
        show(done, total, text)
        if text.startswith("testing"):
            panel.stop_button.click()

    monkeypatch.setattr(panel, "show_progress", press_stop)
    panel.retrain_button.click()
    wait(panel)
    assert panel.status.value == "Stopped; the model is trained, and its tests go on."


def test_an_error_in_the_thread_is_one_line(panel, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("the disk is full\nand more")

    monkeypatch.setattr("abcnb.show.panels.background.fit", fail)
    panel.retrain()
    wait(panel)
    assert panel.status.value == "the disk is full" and len(panel.curves) == 1
    assert not panel.retrain_button.disabled


# --- what was measured beforehand


def test_stored_scores_of_other_calibrations_stand_beside_the_controls(runs, tmp_path):
    e = calibrated_run(runs).experiment
    frozen = settings_of(e)
    text = {name: "" if name in results.TEXTS else 0 for name in results.COLUMNS}
    text |= {"task": "addition", "method": "abc-places", "preset": "smoke"}
    text |= {"seed": 0, "samples": 200, "train_seconds": 1.0, "test_set": "random"}
    lower, raw = (
        settings_of(replace(e, calibration=replace(e.calibration, **choice)))
        for choice in ({"kappa_cross": 0.5}, {"value": "raw"})
    )
    rows = [
        text | {"settings": frozen, "length": 20, "correct": 200, "run": "a"},
        text | {"settings": frozen, "length": 60, "correct": 199, "run": "a"},
        text | {"settings": lower, "length": 20, "correct": 0, "run": "b"},
        text | {"settings": "training.steps=3", "length": 20, "correct": 7, "run": "c"},
        text | {"settings": frozen, "seed": 1, "length": 20, "correct": 7, "run": "d"},
        text | {"settings": raw, "length": 20, "correct": 7, "run": "e"},
    ]
    results.record(tmp_path / "results" / "accuracy.csv", rows)
    found = measured_beforehand(e, results.read(tmp_path / "results" / "accuracy.csv"))
    assert found["lengths"] == [20, 60]
    known = {score["choices"]["kappa_cross"]: score for score in found["scores"]}
    assert len(found["scores"]) == len(known) == 2, "one has another seed, one no control"
    assert known[e.calibration.kappa_cross]["shares"] == ["100", "99.50"]
    assert known[0.5]["shares"] == ["0.00", "not run"]
    assert known[0.5]["choices"] == choices_of(replace(e.calibration, kappa_cross=0.5))
    panel = calibration_panel(calibrated_run(runs), runs, "cpu", 20, tmp_path)
    assert panel.view.data["beforehand"] == found


def test_where_nothing_is_stored_nothing_is_shown(runs, tmp_path):
    panel = calibration_panel(calibrated_run(runs), runs, "cpu", 20, tmp_path)
    assert panel.view.data["beforehand"]["scores"] == []
