"""The calibration panel without a front end: controls are moved by setting their values, buttons are clicked."""

import re
from dataclasses import replace

import pytest
import torch

from abcnb.calibration import calibrate_attention
from abcnb.lines import DIRECTION_NAMES
from abcnb.show.panels import calibration_panel
from abcnb.show.panels.calibration import TESTED_LENGTHS, longest_trained, setting_name
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


def expected_lines(average, config, layer=0):
    """(head, attention, direction, operand, offset, support) of the lines that `calibrate` keeps."""
    found, lines = calibrate_attention(average, config), []
    for name, tables in (("cross", found.cross_tables), ("self", found.self_tables)):
        for row in tables[layer].to_dataframe().query("kept").itertuples():
            places = name == "cross" and config.frame == "places" and row.direction
            operand = str(row.segment + 1) if places else ""
            lines.append((row.head, name, DIRECTION_NAMES[row.direction], operand, row.offset, row.support))
    return lines


def shown_lines(panel):
    columns = ["head", "attention", "direction", "operand", "offset", "support"]
    return [tuple(row) for row in panel.lines.kept[columns].values.tolist()]


MOVES = {
    "kappa_cross": (lambda p: p.kappa["cross"], 0.3),
    "kappa_self": (lambda p: p.kappa["self"], 1.1),
    "statistic": (lambda p: p.statistic, "mean"),
    "pool": (lambda p: p.pool, "direction"),
    "threshold_on": (lambda p: p.threshold_on, "centred"),
    "min_support": (lambda p: p.min_support, 0.9),
    "frame": (lambda p: p.frame, "columns"),
}


@pytest.mark.parametrize("name", MOVES)
def test_every_choice_changes_the_config_and_the_lines(panel, name):
    control, value = MOVES[name]
    drawn = panel.picture.value
    assert panel.config == panel.base and shown_lines(panel) == expected_lines(panel.average, panel.base)
    control(panel).value = value
    assert panel.config == replace(panel.base, **{name: value})
    assert shown_lines(panel) == expected_lines(panel.average, panel.config)
    assert panel.picture.value != drawn  # the title at least


def test_directions_are_toggled(panel):
    for name, delta in (("cross", 1), ("self", -2)):
        before = getattr(panel.config, f"directions_{name}")
        panel.directions[name][delta].value = True
        assert getattr(panel.config, f"directions_{name}") == tuple(sorted({*before, delta}))
        assert shown_lines(panel) == expected_lines(panel.average, panel.config)
    assert set(panel.directions["cross"]) == set(panel.directions["self"]) == {-2, -1, 0, 1, 2}


def test_each_layer_can_be_shown(panel):
    last = shown_lines(panel)
    panel.layer.value = ("each", 0)
    assert panel.config == replace(panel.base, layer="each")
    assert shown_lines(panel) == expected_lines(panel.average, panel.config, 0)
    panel.layer.value = ("each", 1)
    assert shown_lines(panel) == last


def test_length_and_head_change_the_picture_and_not_the_lines(panel):
    lines, drawn = shown_lines(panel), panel.picture.value
    panel.length.value = 33
    assert panel.lines.cross.shape == (2, 35, 2 * 34 + 3) and panel.lines.self_.shape == (2, 35, 35)
    assert shown_lines(panel) == lines and panel.picture.value != drawn
    drawn = panel.picture.value
    panel.head.value = 1
    assert shown_lines(panel) == lines and panel.picture.value != drawn
    assert f"<b>{sum(line[0] == 1 for line in lines)} kept lines</b>" in panel.tables.value


def test_the_bias_and_the_open_columns_are_those_of_the_line_bias(panel):
    width = 21
    columns = panel.task.layout(width, "natural")
    bias = calibrate_attention(panel.average, panel.base).cross_biases[0]
    opened = [[len(bias.open_columns(row, columns)[head]) for row in range(width + 1)] for head in range(2)]
    assert torch.equal(panel.lines.cross, bias(torch.arange(width + 1), columns))
    assert panel.lines.heads["cross_open"].tolist() == [sorted(counts)[width // 2] for counts in opened]


def test_no_direction_is_one_clear_line_and_moving_on_mends_it(panel):
    for button in panel.directions["self"].values():
        button.value = False
    assert panel.text == "No direction is on for self-attention: turn on at least one Δ."
    assert panel.text in panel.message.value and panel.results.layout.display == "none"
    panel.retrain()
    assert panel.status.value == panel.text and panel.training is None
    panel.directions["self"][1].value = True
    assert panel.text == "" and panel.results.layout.display is None


def test_nothing_kept_is_said_and_heads_are_called_transparent(panel):
    panel.threshold_on.value = "centred"
    assert panel.text == ""  # the strongest line of a head is kept
    panel.base = replace(panel.base, empty_head="transparent")
    panel.kappa["cross"].value = panel.kappa["self"].value = 6.0
    assert panel.text.startswith("No line is kept in cross-attention and self-attention")
    assert panel.lines.kept.empty and panel.lines.heads[["cross_transparent", "self_transparent"]].all(axis=None)
    assert panel.tables.value.count("all: transparent") == 4 and panel.results.layout.display is None


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
    panel.kappa["cross"].value = 0.5
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
    panel.kappa["cross"].value = 0.25
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
    text = dict.fromkeys(results.COLUMNS, "") | {"task": "addition", "method": "abc-places", "preset": "smoke"}
    text |= {"seed": 0, "samples": 200, "train_seconds": 1.0, "test_set": "random"}
    lower = settings_of(replace(e, calibration=replace(e.calibration, kappa_cross=0.5)))
    rows = [
        text | {"settings": frozen, "length": 20, "correct": 200, "run": "a"},
        text | {"settings": frozen, "length": 60, "correct": 199, "run": "a"},
        text | {"settings": lower, "length": 20, "correct": 0, "run": "b"},
        text | {"settings": "training.steps=3", "length": 20, "correct": 7, "run": "c"},
        text | {"settings": "calibration.value=raw", "seed": 1, "length": 20, "correct": 7, "run": "d"},
    ]
    results.record(tmp_path / "results" / "accuracy.csv", rows)
    panel = calibration_panel(calibrated_run(runs), runs, "cpu", 20, tmp_path)
    assert panel._measured == {frozen: ["100", "99.50"], lower: ["0.00", "not run"]}
    assert panel.beforehand.value.count("→") == 1 and "not with these settings" not in panel.beforehand.value
    panel.kappa["cross"].value = 0.5
    assert "→" in panel.beforehand.value.partition("kappa_cross=0.5")[0].rpartition("<tr>")[2]
    panel.kappa["cross"].value = 0.75
    assert "→" not in panel.beforehand.value and "not with these settings" in panel.beforehand.value


def test_where_nothing_is_stored_nothing_is_shown(runs, tmp_path):
    assert calibration_panel(calibrated_run(runs), runs, "cpu", 20, tmp_path).beforehand.value == ""
