"""A soak: random fits, evaluations and sweeps, and a panel moved in JupyterLab, for as long as is asked.

`make soak MINUTES=60` prints, at the beginning, along the way and at the end, the memory and open files of this process
and of JupyterLab with its kernel, and at last what was left running. It fails where processes are left.
"""

import argparse
import gc
import random
import sys
import tempfile
import time
from pathlib import Path

import psutil
import torch
from playwright.sync_api import sync_playwright

from abcnb.study.engines import LocalEngine
from abcnb.study.fitting import fit
from abcnb.study.methods import experiment
from abcnb.study.schedule import run_all
from abcnb.study.settings import with_settings
from tests.lab import CHROMIUM, serve, start_panel

TASKS = ("successor", "addition", "parity", "n-by-1", "many-addition")
METHODS = ("vanilla", "abs", "abc")


def any_experiment(draw: random.Random, seeds: int = 10**6):
    """A tiny one; among so many seeds hardly ever the same twice."""
    wanted = experiment(draw.choice(TASKS), draw.choice(METHODS), "smoke", draw.randrange(seeds))
    return with_settings(wanted, ["training.steps=5"])


def fit_one(draw: random.Random, folder: Path) -> None:
    """Train one and evaluate it at a length."""
    run = fit(any_experiment(draw), folder / "runs", "cpu", progress=False)
    run.evaluate(draw.randint(1, 20), 50, draw.choice(["random", "hard"]))


def sweep_two(draw: random.Random, folder: Path) -> None:
    """A sweep of two in processes of their own."""
    csv = folder / "reports" / "results" / "accuracy.csv"
    wanted = [any_experiment(draw, 5) for _ in range(2)]
    failures = run_all({e: [("random", 3, 20)] for e in wanted}, folder / "runs", csv, LocalEngine(2), "cpu")
    if failures:
        raise RuntimeError(failures[0])


def move_panel(draw: random.Random, page) -> None:
    """Move τ up and down."""
    page.get_by_role("slider").first.focus()
    for _ in range(20):
        page.keyboard.press(draw.choice(["ArrowLeft", "ArrowRight"]))
        page.wait_for_timeout(50)


def counted(name: str, process: psutil.Process) -> str:
    """Memory and open files of a process and its children, in words."""
    every = [process, *process.children(recursive=True)] if name != "this process" else [process]
    memory = sum(part.memory_info().rss for part in every) / 1e6
    return f"{name}: {memory:,.0f} MB, {sum(part.num_fds() for part in every)} open files"


def soak(minutes: float, seed: int) -> int:
    """Do it; returns how many processes were left."""
    torch.set_num_threads(1)
    draw, done, start = random.Random(seed), dict.fromkeys(("fits", "sweeps", "moves"), 0), time.monotonic()
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        with serve(Path(place)) as (address, server):
            page = browser.new_page()
            start_panel(page, address)
            told = -1.0
            while (spent := (time.monotonic() - start) / 60) < minutes:
                if spent - told >= minutes / 6:
                    gc.collect()
                    parts = [
                        counted("this process", psutil.Process()),
                        counted("JupyterLab", psutil.Process(server.pid)),
                    ]
                    print(f"{spent:5.1f} min, {done}: {'; '.join(parts)}", flush=True)
                    told = spent
                kind = draw.choices(("fits", "sweeps", "moves"), (5, 1, 5))[0]
                if kind == "moves":
                    move_panel(draw, page)
                else:
                    (fit_one if kind == "fits" else sweep_two)(draw, Path(place))
                done[kind] += 1
        browser.close()
    time.sleep(2)
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    left = [
        child for child in left if "resource_tracker" not in " ".join(child.cmdline())
    ]  # ends with this process
    print(
        f"{done}; {counted('this process', psutil.Process())}; processes left: {[c.name() for c in left] or 'none'}"
    )
    return len(left)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    sys.exit(bool(soak(asked.minutes, asked.seed)))
