"""The panels without a front end: controls are moved by setting their values, buttons pressed by clicking them."""

import base64
import json
import re
import shutil
import subprocess
from contextlib import contextmanager
from dataclasses import replace

import pandas as pd
import pytest
import torch

from abcnb import training
from abcnb.calibration import CalibrationConfig, calibrate_attention
from abcnb.lines import DIRECTION_NAMES
from abcnb.show.panels.calibration import TESTED_LENGTHS, lines_of, longest_trained, setting_name
from abcnb.show.panels.explorer import (
    answer,
    attention_panel,
    calibration_panel,
    column_kinds,
    example_input,
    tasks_panel,
    window_of,
    window_panel,
    written_input,
)
from abcnb.show.panels.offline import PANEL_MIME, panel_data, panel_fragment
from abcnb.study.methods import experiment
from abcnb.study.runs import fit, load_run
from abcnb.tasks import TASKS, get_task

# Not those of `methods`: what these tests say must not change when a method does.
PLACES = CalibrationConfig(
    frame="places", directions_cross=(-1, 0), directions_self=(0, 1), kappa_cross=1.0, kappa_self=0.0
)
COLUMNS = CalibrationConfig(
    frame="columns", kappa_cross=2.0, kappa_self=0.0, pool="direction", min_support=0.0, empty_head="transparent",
    closed_rows="transparent",
)  # fmt: skip
PNG = b"\x89PNG\r\n"
VIEW = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("explorer") / "runs"


@pytest.fixture(scope="module")
def run(runs):
    wanted = replace(experiment("addition", "abc-places", "smoke"), calibration=PLACES)
    return fit(wanted, runs, "cpu", progress=False)


@pytest.fixture
def panel(run, runs):
    return calibration_panel(run, runs, "cpu", samples=5)


# --- calibration: controls


def expected_lines(average, config, layer=0):
    """(head, attention, direction, operand, offset, support) of the lines that `calibrate` keeps."""
    found, lines = calibrate_attention(average, config), []
    for name, tables in (("cross", found.cross_tables), ("self", found.self_tables)):
        for row in tables[layer].frame().query("kept").itertuples():
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
    drawn = panel._picture.value
    assert panel.config == panel.base and shown_lines(panel) == expected_lines(panel.average, panel.base)
    control(panel).value = value
    assert panel.config == replace(panel.base, **{name: value})
    assert shown_lines(panel) == expected_lines(panel.average, panel.config)
    assert panel._picture.value != drawn  # the title at least


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
    lines, drawn = shown_lines(panel), panel._picture.value
    panel.length.value = 33
    assert panel.lines.cross.shape == (2, 35, 2 * 34 + 3) and panel.lines.self_.shape == (2, 35, 35)
    assert shown_lines(panel) == lines and panel._picture.value != drawn
    drawn = panel._picture.value
    panel.head.value = 1
    assert shown_lines(panel) == lines and panel._picture.value != drawn
    assert f"<b>{sum(line[0] == 1 for line in lines)} kept lines</b>" in panel._tables.value


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
    assert panel.text in panel._message.value and panel._results.layout.display == "none"
    panel.retrain()
    assert panel.status.value == panel.text and panel.training is None
    panel.directions["self"][1].value = True
    assert panel.text == "" and panel._results.layout.display is None


def test_nothing_kept_is_said_and_heads_are_called_transparent(panel):
    panel.threshold_on.value = "centred"
    assert panel.text == ""  # the strongest line of a head is kept
    panel.base = replace(panel.base, empty_head="transparent")
    panel.kappa["cross"].value = panel.kappa["self"].value = 6.0
    assert panel.text.startswith("No line is kept in cross-attention and self-attention")
    assert panel.lines.kept.empty and panel.lines.heads[["cross_transparent", "self_transparent"]].all(axis=None)
    assert panel._tables.value.count("all: transparent") == 4 and panel._results.layout.display is None


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


# --- calibration: retraining


def wait(panel):
    panel.training.join(timeout=120)
    assert not panel.training.is_alive()


def test_retraining_trains_and_adds_a_curve(panel, runs):
    name, points = next(iter(panel.curves.values()))
    assert name == "κ 1.0/0.0, Δ −1 0 / 0 1 (this run)" and [p[0] for p in points] == list(TESTED_LENGTHS)
    panel.kappa["cross"].value = 0.5
    wanted, drawn = replace(panel.run.experiment, calibration=panel.config), panel._curves_picture.value
    assert not (runs / wanted.digest).exists()
    panel.retrain_button.click()
    assert panel.retrain_button.disabled
    wait(panel)
    assert panel.status.value == "Done: the curve is in the figure."
    assert load_run(runs / wanted.digest).metrics["steps"] == 20
    assert [name for name, _ in panel.curves.values()][1:] == ["κ 0.5/0.0, Δ −1 0 / 0 1"]
    assert [p[0] for p in panel.curves[wanted.digest][1]] == list(TESTED_LENGTHS)
    assert panel._curves_picture.value != drawn and "κ 0.5/0.0" in panel._curves_table.value
    assert panel.progress.value == panel.progress.max == 20
    assert panel.stop_button.disabled and not panel.retrain_button.disabled


def test_stop_stops_and_a_second_press_resumes(panel, runs, monkeypatch):
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", -1.0)
    resumed, resume, told, show = [], training._resume, [], panel._show_progress

    def resuming(*arguments):
        found = resume(*arguments)
        resumed.append(found[0])
        return found

    def press_stop(done, total, text):
        show(done, total, text)
        told.append((done, total, text))
        if done and not resumed:
            panel.stop_button.click()

    monkeypatch.setattr(training, "_resume", resuming)
    monkeypatch.setattr(panel, "_show_progress", press_stop)
    panel.kappa["cross"].value = 0.25
    wanted = replace(panel.run.experiment, calibration=panel.config)
    panel.retrain_button.click()
    wait(panel)
    assert panel.status.value == "Stopped; retraining goes on from its checkpoint."
    assert not (runs / wanted.digest / "metrics.json").exists() and len(panel.curves) == 1
    assert re.fullmatch(r"step 10 of 20, \d+ s left", told[-1][2])
    panel.retrain_button.click()
    wait(panel)
    assert resumed and 0 < resumed[0] <= 10
    assert load_run(runs / wanted.digest).metrics["steps"] == 20 and len(panel.curves) == 2


def test_a_stop_between_tests_says_that_the_model_is_trained(panel, monkeypatch):
    show = panel._show_progress

    def press_stop(done, total, text):
        show(done, total, text)
        if text.startswith("testing"):
            panel.stop_button.click()

    monkeypatch.setattr(panel, "_show_progress", press_stop)
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


# --- attention


def test_the_attention_panel_shows_what_the_model_writes(run):
    found = attention_panel(run, "12+345", "cpu")
    task, e = run.experiment.get_task(), run.experiment
    width = e.train_width  # shorter inputs are padded as in tests
    assert found.answer.source == "$0000012+0000345&" and found.answer.label == "7530000&"
    assert found.answer.cross_attention[0].shape == (2, width + 1, 2 * width + 3)
    assert len(found.answer.cross_attention) == len(found.answer.self_attention) == 2
    assert torch.allclose(found.answer.self_attention[1].sum(-1), torch.ones(2, width + 1), atol=1e-4)
    assert found.step.max == width
    wrong = sum(a != b for a, b in zip(found.answer.written, found.answer.label, strict=True))
    verdict = f"wrong at {wrong} of {width + 1} steps" if wrong else "correct"
    assert verdict in found._steps.value and found._steps.value.count("✗") == wrong
    again = answer(run.model(), task, e.form, "12+345", width)
    assert again.written == found.answer.written


def test_the_step_slider_the_layer_and_the_head_redraw(run):
    found = attention_panel(run, device="cpu")
    assert found.answer.source == "$00078114514+00241919810&"
    for control, value in ((found.step, 3), (found.layer, 0), (found.head, 1), (found.step, 4)):
        drawn = found._picture.value
        control.value = value
        assert found._picture.value != drawn
    found.input.value = "1+1"
    assert found.text == "" and found.step.value == 4 and found.step.max == run.experiment.train_width


def test_wrong_inputs_are_one_clear_line(run):
    found = attention_panel(run, device="cpu")
    for text, message in (("12", "expected NUMBER+NUMBER"), ("1x+2", "got the character 'x'"), ("", "expected")):
        found.input.value = text
        assert message in found.text and "\n" not in found.text
    found.input.value = "<b>+1"
    assert "&lt;" in found._message.value and "<b>" not in found._message.value
    found.input.value = "2+2"
    assert found.text == "" and found.answer.label.startswith("40")


def test_attention_of_a_plain_run_is_shown_too(run, runs):
    plain = load_run(runs / run.experiment.interpolation.digest)
    assert attention_panel(plain, "1+2", "cpu").text == ""


# --- windows and tasks


def test_the_window_of_abs_and_its_phases():
    found = window_of(get_task("addition"), 2, w=1, period=3, sides="past")
    assert found.source == "$+######&" and found.fed == "$###"
    opened = (found.cross[0] > -torch.inf).nonzero().tolist()
    assert [j for i, j in opened if i == 1] == [4, 5, 6, 7] and [j for i, j in opened if i == 0] == [6, 7, 8]
    assert found.by_place == [-1, -1, 2, 2, 1, 1, 0, 0, -1]
    assert found.by_column == [(7 - j) % 3 for j in range(9)]
    assert found.of_steps == [0, 1, 2, 0]
    assert (window_of(get_task("addition"), 2, sides="both").cross > -torch.inf).sum() > len(opened)


@pytest.mark.parametrize("task", ["addition", "parity", "n-by-1"])
def test_the_window_panel_follows_its_controls(task):
    found = window_panel(task, 3)
    for control, value in ((found.w, 2), (found.period, 5), (found.sides, "both"), (found.length, 12)):
        drawn = (found._picture.value, found._source.value)
        control.value = value
        assert (found._picture.value, found._source.value) != drawn and "Traceback" not in found.text


def test_what_every_column_of_an_input_is():
    found = written_input(get_task("addition"), "123+748", "aligned")
    assert (found.source, found.fed, found.target, found.read) == ("$+00172438&", "$1780", "1780&", "871")
    assert "".join(found.kinds) == "soababababe"
    assert found.places[0] == [-2, 4, 3, -2, 2, -2, 1, -2, 0, -2, -1]
    layout = get_task("n-by-1").layout(2)
    assert "".join(column_kinds("$12*3&", layout)) == "saaode"


def test_the_tasks_panel_takes_tasks_bases_and_forms():
    found = tasks_panel(text="123+748")
    assert found.text == "" and "$+00172438&" in found._texts.value
    found.base.value = 4
    assert "expected NUMBER+NUMBER with digits 0 to 3" in found.text and found._results.layout.display == "none"
    found.base.value, found.form.value = 16, "natural"
    assert found.text == "" and "$0123+0748&" in found._texts.value
    for name in TASKS:
        found.task.value = name
        assert found.text == "" and found.base.value == get_task(name).base
        assert found.base.disabled == name.startswith("parity")
        assert found.form.options == get_task(name).forms
    found.input.value = "7" * 300
    assert "the first" in found.text


@pytest.mark.parametrize("name", TASKS)
def test_example_inputs_are_inputs(name):
    for base in {2, 10, 16} & set(TASKS[name].bases):
        get_task(name, base).parse(example_input(get_task(name, base)))


@pytest.mark.parametrize("name", TASKS)
def test_a_tasks_panel_of_any_task_starts_with_an_example(name):
    assert tasks_panel(name).text == ""


def test_a_panel_that_starts_with_a_wrong_input_says_so():
    found = tasks_panel(text="12")
    assert found.text.startswith("expected NUMBER+NUMBER")
    assert base64.b64decode(found._repr_mimebundle_()["image/png"]).startswith(PNG)


# --- what remains without a kernel


def test_mime_bundles_hold_the_view_a_picture_and_a_line(run, panel):
    for found in (panel, attention_panel(run, device="cpu"), window_panel(), tasks_panel()):
        bundle = found._repr_mimebundle_()
        assert base64.b64decode(bundle["image/png"]).startswith(PNG)
        assert bundle[VIEW]["model_id"] == found.model_id
        assert "panel" in bundle["text/plain"].lower() and "\n" not in bundle["text/plain"]
        assert (PANEL_MIME in bundle) == (found is panel)
    still = panel._repr_mimebundle_()["image/png"]
    panel.kappa["cross"].value = 0.1
    assert panel._repr_mimebundle_()["image/png"] == still


def test_the_fragment_is_small_and_loads_nothing(panel):
    fragment = panel._repr_mimebundle_()[PANEL_MIME]
    assert len(fragment.encode()) < 300_000
    assert not re.search(r"https?:|\bsrc\s*=|<link|@import|url\(", fragment)
    assert "needs JavaScript" in fragment and "__" not in re.sub(r'"[^"]*"', "", fragment)
    name = re.search(r'<div id="([^"]+)"', fragment)[1]
    assert (
        re.findall(r"^(?!#)[^\n{]*\{", fragment[fragment.index("<style>") + 8 : fragment.index("</style>")], re.M)
        == []
    )
    assert fragment.count(f"#{name} ") > 10


CONFIGS = {
    "places": PLACES,
    "columns": COLUMNS,
    "centred threshold": replace(PLACES, threshold_on="centred", min_support=0.8, value="raw"),
    "mean by direction": replace(PLACES, statistic="mean", pool="direction", value="zero", min_support=0.3),
    "transparent": replace(PLACES, empty_head="transparent", closed_rows="transparent", pool="direction"),
}
STATES = [
    (kappas, cross, selves, layer, size)
    for kappas, size in (((1.0, 0.0), 0), ((0.0, -0.5), 1), ((2.5, 1.5), 2), ((6.0, 6.0), 1))
    for cross, selves in (
        ((-1, 0), (0, 1)),
        ((-2, -1, 0, 1, 2), (-2, -1, 0, 1, 2)),
        ((1,), (-1,)),
        ((0, 2), (0,)),
        ((-2,), (2,)),
        ((2,), (-2,)),
    )
    for layer in (0, 1)
]
LENGTHS = (6, 10, 17)


def in_javascript(fragment, states, folder):
    """`compute` of a fragment for each state: by Node.js, or else by Chromium."""
    script = re.search(r"<script>(.*)</script>", fragment, re.DOTALL)[1]
    body = f"const module = {{}}; {script}; return STATES.map(state => module.exports.compute(state));"
    # JSON has no infinity; biases are null where closed.
    text = (
        f'JSON.stringify(new Function("document", "STATES", {json.dumps(body)})(undefined, {json.dumps(states)}))'
    )
    if shutil.which("node"):
        file = folder / "panel.js"
        file.write_text(f"process.stdout.write({text});")
        done = subprocess.run(["node", file], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
    with chromium_page() as page:
        return json.loads(page.evaluate(text))


@contextmanager
def chromium_page():
    """A page of a headless Chromium, where there is one."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if not found:
        pytest.skip("Chromium is not installed")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser.new_page()
        browser.close()


@pytest.mark.parametrize("name", CONFIGS)
def test_javascript_computes_what_calibrate_computes(run, tmp_path, name):
    average, task, config = run.attention(), run.experiment.get_task(), CONFIGS[name]
    fragment = panel_fragment(panel_data(average, config, task, "natural", LENGTHS, 10, "a run"))
    states = [
        {
            "kappa": {"cross": kappas[0], "self": kappas[1]},
            "directions": {"cross": cross, "self": selves},
            "layer": layer,
            "size": size,
        }
        for kappas, cross, selves, layer, size in STATES
    ]
    kept = 0
    for (kappas, cross, selves, layer, size), got in zip(
        STATES, in_javascript(fragment, states, tmp_path), strict=True
    ):
        chosen = replace(
            config, kappa_cross=kappas[0], kappa_self=kappas[1], directions_cross=cross, directions_self=selves,
            layer="each",
        )  # fmt: skip
        lines = lines_of(average, chosen, task, "natural", LENGTHS[size], layer)
        for attention, bias in (("cross", lines.cross), ("self", lines.self_)):
            mine = lines.kept[lines.kept["attention"] == attention]
            theirs = pd.DataFrame(
                [
                    line | {"head": head}
                    for head, of_head in enumerate(got[attention]["lines"])
                    for line in of_head
                ],
                columns=["head", "direction", "segment", "offset", "support", "strength", "z"],
            )
            assert theirs["head"].tolist() == mine["head"].tolist()
            assert theirs["direction"].map(DIRECTION_NAMES).tolist() == mine["direction"].tolist()
            for column in ("offset", "support"):
                assert theirs[column].tolist() == mine[column].tolist()
            assert theirs["strength"].tolist() == pytest.approx(mine["strength"].tolist(), rel=1e-5)
            assert theirs["z"].tolist() == pytest.approx(mine["z_score"].tolist(), rel=1e-3, abs=1e-3)
            assert got[attention]["open"] == lines.heads[f"{attention}_open"].tolist()
            transparent = lines.heads.query(f"{attention}_transparent")["head"].tolist()
            assert got[attention]["transparent"] == transparent
            drawn = [
                [[-torch.inf if v is None else v for v in row] for row in m] for m in got[attention]["biases"]
            ]
            torch.testing.assert_close(torch.tensor(drawn, dtype=torch.float), bias, atol=1e-5, rtol=1e-5)
            kept += len(mine)
    assert kept > 100


@pytest.mark.browser
def test_the_fragment_works_in_a_browser(panel):
    fragment = panel._repr_mimebundle_()[PANEL_MIME]
    with chromium_page() as page:
        errors = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.set_content(f"<!doctype html><meta charset=utf-8><body>{fragment}{fragment}")
        assert page.locator(".waiting").count() == 0 and page.locator("canvas").count() == 2 * 4
        first = page.locator(".abcnb-panel").first
        assert f"{len(panel.lines.kept)} kept lines" in first.inner_text()
        first.locator("input[type=range]").first.fill("0.3")
        panel.kappa["cross"].value = 0.3
        assert first.locator("tbody tr").count() == len(panel.lines.kept)
        first.get_by_label("1", exact=True).first.check()
        panel.directions["cross"][1].value = True
        assert first.locator("tbody tr").count() == len(panel.lines.kept)
        for box in first.locator("fieldset").first.locator("input[type=checkbox]").all():
            box.uncheck()
        assert "No direction is on for cross-attention" in first.locator(".message").inner_text()
        assert errors == []
