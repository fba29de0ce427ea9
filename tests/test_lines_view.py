"""The lines of the calibration panel: JavaScript computes what Python computes, and its controls say what they do."""

import json
import re
import shutil
import subprocess
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from abcnb.layout import Steps

from abcnb.biases import CLOSED
from abcnb.calibration import CalibrationConfig, calibrate_attention
from abcnb.show.panels.lines_view import TEMPLATES, choices_of, config_of, panel_data, panel_fragment
from tests.little import PLACES, calibrated_run

COLUMNS = CalibrationConfig(
    frame="columns", kappa_cross=2.0, kappa_self=0.0, pool="direction", min_support=0.0, empty_head="transparent",
    closed_rows="transparent",
)  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("panels") / "runs"


@pytest.fixture(scope="module")
def run(runs):
    return calibrated_run(runs)


@pytest.fixture(scope="module")
def data(run):
    return panel_data(run.attention(), PLACES, run.experiment.get_task(), "natural", LENGTHS, 10, "a run")


def test_the_fragment_is_small_and_loads_nothing(data):
    fragment = panel_fragment(data)
    assert len(fragment.encode()) < 300_000
    assert not re.search(r"https?:|\bsrc\s*=|<link|@import|url\(", fragment)
    assert "needs JavaScript" in fragment
    style = fragment[fragment.index("<style>") + 7 : fragment.index("</style>")]
    rules = re.findall(r"^(.+?) \{", style, re.M)
    assert len(rules) > 10 and all(rule.startswith(".abcnb-panel") for rule in rules)


def test_choices_and_config_are_each_others_inverse():
    for config in CONFIGS.values():
        assert config_of(choices_of(config), config) == config
        assert config_of(json.loads(json.dumps(choices_of(config))), config) == config


CONFIGS = {
    "places": PLACES,
    "columns": COLUMNS,
    "centred threshold": replace(PLACES, threshold_on="centred", min_support=0.8, value="raw"),
    "mean by direction": replace(PLACES, statistic="mean", pool="direction", value="zero", min_support=0.3),
    "transparent": replace(PLACES, empty_head="transparent", closed_rows="transparent", pool="direction"),
    "first rows": replace(PLACES, rows=5),
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


def in_javascript(data, states, folder):
    """`compute` of the script for each state: by Node.js, or else by Chromium."""
    script = (TEMPLATES / "calibration_panel.js").read_text(encoding="utf-8")
    body = f"{script}; return STATES.map(state => compute(DATA, state));"
    given = f"{json.dumps(data)}, {json.dumps(states)}"
    # JSON has no infinity; biases are null where closed.
    text = f'JSON.stringify(new Function("DATA", "STATES", {json.dumps(body)})({given}))'
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


def in_python(run, config, layer, length):
    """Of each attention the kept lines, as the script names them, and the bias."""
    found, task = calibrate_attention(run.attention(), config), run.experiment.get_task()
    width = max(length + 1, run.attention().layout.width)
    columns = {"cross": task.layout(width, "natural"), "self": Steps.all(width + 1)}
    parts = {
        "cross": (found.cross_tables[layer], found.cross_biases[layer]),
        "self": (found.self_tables[layer], found.self_biases[layer]),
    }
    for name, (table, bias) in parts.items():
        kept = table.to_dataframe().query("kept").rename(columns={"z_score": "z"})
        yield name, kept.to_dict("records"), bias(torch.arange(width + 1), columns[name]), bias.transparent_heads


EXACT = ("head", "direction", "segment", "offset", "support")


@pytest.mark.parametrize("name", CONFIGS)
def test_javascript_computes_what_calibrate_computes(run, tmp_path, name):
    config = CONFIGS[name]
    task = run.experiment.get_task()
    data = panel_data(run.attention(), config, task, "natural", LENGTHS, 10, "a run")
    states = [
        data["state"]
        | {"kappa_cross": kappas[0], "kappa_self": kappas[1], "directions_cross": cross, "directions_self": selves}
        | {"layer": "each", "shown": layer, "size": size}
        for kappas, cross, selves, layer, size in STATES
    ]
    kept = 0
    for state, got in zip(states, in_javascript(data, states, tmp_path), strict=True):
        chosen = config_of(state, config)
        for attention, mine, bias, transparent in in_python(run, chosen, state["shown"], LENGTHS[state["size"]]):
            heads = enumerate(got[attention]["lines"])
            theirs = [line | {"head": head} for head, of_head in heads for line in of_head]
            assert [[line[key] for key in EXACT] for line in theirs] == [[line[k] for k in EXACT] for line in mine]
            assert [line["strength"] for line in theirs] == pytest.approx([m["strength"] for m in mine], rel=1e-5)
            assert [line["z"] for line in theirs] == pytest.approx([m["z"] for m in mine], rel=1e-3, abs=1e-3)
            assert got[attention]["open"] == (bias > CLOSED).sum(-1).median(-1).values.tolist()
            assert got[attention]["transparent"] == list(transparent)
            drawn = [
                [[-torch.inf if v is None else v for v in row] for row in m] for m in got[attention]["biases"]
            ]
            torch.testing.assert_close(torch.tensor(drawn, dtype=torch.float), bias, atol=1e-5, rtol=1e-5)
            kept += len(mine)
    assert kept > 100


def test_of_many_numbers_the_last_layer_alone_is_kept(run, data, monkeypatch):
    monkeypatch.setattr("abcnb.show.panels.lines_view.MOST_NUMBERS", 1)
    last = panel_data(run.attention(), PLACES, run.experiment.get_task(), "natural", LENGTHS, 10, "a run")
    for frame, parts in data["frames"].items():
        for name, part in parts.items():
            assert len(part["strength"]) == 2 and last["frames"][frame][name]["strength"] == part["strength"][-1:]
    assert last["state"]["shown"] == 0 and last["layers"][-1] == [
        "each its own; shown: 2",
        {"layer": "each", "shown": 0},
    ]


def count_kept(run, config):
    return sum(len(kept) for _, kept, *_ in in_python(run, config, -1, 10))


@pytest.mark.browser
def test_every_control_of_the_fragment_does_what_it_says(run, data):
    scores = [{"name": "here", "choices": choices_of(PLACES), "shares": ["100"]}]
    fragment = panel_fragment(data | {"beforehand": {"lengths": [20], "scores": scores}})
    with chromium_page() as page:
        errors = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.set_content(f"<!doctype html><meta charset=utf-8><body>{fragment}{fragment}")
        assert page.get_by_text("needs JavaScript").count() == 0 and page.locator("canvas").count() == 2 * 4
        panel = page.locator(".abcnb-panel").first

        def assert_shows(**choices):
            wanted = count_kept(run, replace(PLACES, **choices))
            assert panel.locator(".lines tbody tr").count() == wanted
            assert panel.get_by_text(f"{wanted} kept lines").is_visible()

        assert_shows()
        assert panel.locator(".beforehand").inner_text().count("→") == 1
        panel.get_by_label("κ cross").fill("0.3")
        assert_shows(kappa_cross=0.3)
        assert "→" not in panel.locator(".beforehand").inner_text()
        assert "not with these settings" in panel.locator(".beforehand").inner_text()
        panel.get_by_label("1", exact=True).first.check()
        assert_shows(kappa_cross=0.3, directions_cross=(-1, 0, 1))
        panel.get_by_label("1", exact=True).first.uncheck()
        panel.get_by_label("κ cross").fill("1")
        panel.get_by_text("More choices").click()
        for label, option, choice in [
            ("Line strength", "mean of its cells", {"statistic": "mean"}),
            ("σ and μ over", "each direction of a head", {"pool": "direction"}),
            ("Threshold on", "strength − maximum", {"threshold_on": "centred"}),
            ("Frame", "columns", {"frame": "columns"}),
            ("Layer", "each its own; shown: 2", {"layer": "each"}),
        ]:
            before = panel.get_by_label(label, exact=True).input_value()
            panel.get_by_label(label, exact=True).select_option(option)
            assert_shows(**choice)
            panel.get_by_label(label, exact=True).select_option(before)
        panel.get_by_label("Minimum support").fill("0.9")
        assert_shows(min_support=0.9)
        panel.get_by_label("Minimum support").fill("0.5")
        panel.get_by_label("Head", exact=True).select_option(label="1")
        assert panel.locator("canvas:visible").count() == 2
        rows = panel.locator(".lines tbody tr").all()
        assert rows and all(row.inner_text().startswith("1") for row in rows)
        panel.get_by_label("Target length").select_option("17 digits")
        assert "19 output steps" in panel.inner_text()
        for box in panel.locator("fieldset").first.locator("input[type=checkbox]").all():
            box.uncheck()
        assert "No direction is on for cross-attention" in panel.locator(".message").inner_text()
        assert panel.locator("canvas:visible").count() == 0 and errors == []
        assert page.locator(".abcnb-panel").last.locator("canvas:visible").count() == 4
