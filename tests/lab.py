"""JupyterLab on a small notebook with the calibration panel, as a server and in a browser."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from abcnb.show import cleaning

CHROMIUM = shutil.which("chromium")
TOKEN = "of-this-test"


def panel_notebook(preset: str = "laptop", runs_dir: Path | str = "") -> NotebookNode:
    """A small notebook that shows the calibration panel of a run that it trains."""
    parameters = (
        f'preset = "{preset}"  # smoke, laptop or paper\nruns_dir = "{runs_dir}"  # folder of trained models'
    )
    shown = """from pathlib import Path

from abcnb.show.panels import calibration_panel
from abcnb.study.methods import experiment
from abcnb.study.fitting import fit

runs = Path(runs_dir)
run = fit(experiment("addition", "abc", preset), runs, "cpu", progress=False)
calibration_panel(run, runs, "cpu", 20)"""
    cells = [
        new_markdown_cell("# 5 · A panel\n\n**Question.** Does it move where $\\kappa > 1$?"),
        new_code_cell(parameters, metadata={"tags": ["parameters"]}),
        new_markdown_cell("## The panel\n\n$$d_l = \\sum_{(i,j) \\in l} \\bar{A}_{i,j}$$"),
        new_code_cell(shown),
    ]
    return new_notebook(cells=cells, metadata=cleaning.KERNEL)


@contextmanager
def serve(folder: Path, notebook: NotebookNode | None = None) -> Iterator[tuple[str, subprocess.Popen]]:
    """JupyterLab on a notebook, by default the small one at `smoke`: its address and the server's process."""
    shown = notebook or panel_notebook("smoke", folder / "runs")
    cleaning.write(shown, folder / "shown" / "05_panel.ipynb")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": port,
        "ServerApp.port_retries": 0,
        "IdentityProvider.token": TOKEN,
        "ServerApp.root_dir": folder / "shown",
        "ServerApp.open_browser": False,
        "ServerApp.allow_root": True,
    }
    command = [sys.executable, "-m", "jupyterlab", *(f"--{name}={value}" for name, value in options.items())]
    places = {f"JUPYTER_{name}_DIR": str(folder / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")}
    with open(folder / "lab.log", "w") as log:
        server = subprocess.Popen(command, env=os.environ | places, stdout=log, stderr=log)
        try:
            address = f"http://127.0.0.1:{port}"
            _wait_for(f"{address}/api/status?token={TOKEN}", server, folder / "lab.log")
            yield f"{address}/lab/tree/05_panel.ipynb?token={TOKEN}", server
        finally:
            server.terminate()
            server.wait(20)


def _wait_for(address: str, server: subprocess.Popen, log: Path, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and server.poll() is None:
        try:
            urllib.request.urlopen(address, timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()}")


def start_panel(page, address: str) -> None:
    """Open the notebook in a browser's page, run it, and wait for the panel."""
    page.goto(address)
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    control = page.get_by_role("slider").first
    control.wait_for(timeout=120_000)
    control.scroll_into_view_if_needed()
