"""The calibration panel's fragment for pages without a kernel: it computes in JavaScript what Python computes."""

import json
import re
import shutil
import subprocess
from contextlib import contextmanager
from dataclasses import replace

import pandas as pd
import pytest
import torch

from abcnb.calibration import CalibrationConfig
from abcnb.lines import DIRECTION_NAMES
from abcnb.show.panels import calibration_panel
from abcnb.show.panels.calibration import lines_of
from abcnb.show.panels.offline import PANEL_MIME, panel_data, panel_fragment
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


@pytest.fixture
def panel(run, runs):
    return calibration_panel(run, runs, "cpu", samples=5)


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
