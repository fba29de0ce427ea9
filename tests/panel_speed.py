"""How long the calibration panel takes in JupyterLab from a move of κ to its picture: `python -m tests.panel_speed`.

It prints medians of 25 moves, in milliseconds: until the script has drawn, and until the browser has painted.
"""

import tempfile
from pathlib import Path

from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import sync_playwright

from abcnb.show import cleaning
from abcnb.study.store import REPORTS
from tests.lab import CHROMIUM, KAPPA, serve, start_panel

CELL = """from abcnb.show.panels import calibration_panel
from abcnb.study.runs import load_run
calibration_panel(load_run("{run}"), "{runs}", "cpu", 20)"""
MOVES = """slider => new Promise(finish => {
  const drawn = [], painted = [];
  const median = times => times.sort((a, b) => a - b)[12];
  function move() {
    if (painted.length === 25) return finish([median(drawn), median(painted)]);
    const start = performance.now();
    slider.value = Number(slider.value) + (painted.length % 2 ? -0.5 : 0.5);
    slider.dispatchEvent(new Event("input"));
    drawn.push(performance.now() - start);
    requestAnimationFrame(() => setTimeout(() => {
      painted.push(performance.now() - start);
      setTimeout(move, 200);
    }, 0));
  }
  move();
})"""


def main() -> None:
    """Print a line for each of two target lengths."""
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        cell = CELL.format(run=REPORTS / "models" / "5cd1db9831b3", runs=Path(place) / "runs")
        notebook = new_notebook(cells=[new_code_cell(cell)], metadata=cleaning.KERNEL)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        with serve(Path(place), notebook) as (address, _):
            page = browser.new_page(viewport={"width": 1300, "height": 1400})
            start_panel(page, address)
            for length in ("20 digits", "60 digits"):
                page.get_by_label("Target length", exact=True).select_option(length)
                page.wait_for_timeout(1000)
                drawn, painted = page.get_by_label(KAPPA).evaluate(MOVES)
                print(f"{length}: drawn after {drawn:.0f} ms, painted after {painted:.0f}")
        browser.close()


if __name__ == "__main__":
    main()
