"""Training one experiment in the background, at the press of a button: progress, a stop, and the curves of all.

One panel of a process trains at a time, since trainings draw from the same global random generator; a cell that trains
meanwhile makes the retrained model another one, but no worse.
"""

import math
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import ipywidgets as widgets
import pandas as pd
from tqdm import tqdm

from abcnb.machine.devices import pick_device
from abcnb.model.evaluation import Score
from abcnb.show.panels.drawing import accuracy_figure, to_png
from abcnb.show.panels.panel import picture, table
from abcnb.study.experiments import Experiment
from abcnb.study.fitting import fit, steps_to_do
from abcnb.study.runs import Run

TESTED_LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)
_one_at_a_time = threading.Lock()


class Stopped(Exception):
    """Raised within a training that was asked to stop."""


class Retraining(widgets.VBox):
    """Trains what a panel asks for and tests it by length; interrupted, it goes on from its last checkpoint.

    Args:
        run: a trained run, whose curve is the first one.
        name: of that curve.
        asked: gives the experiment to train and its curve's name, or raises ValueError.
        runs, device, samples: as of `CalibrationPanel`.

    Attributes:
        curves: digest of an experiment to its scores, as `draw_accuracy` takes them.
        thread: what trains at the moment, or trained last.
    """

    def __init__(
        self, run: Run, name: str, asked: Callable[[], tuple[Experiment, str]], runs: Path, device: str, samples: int
    ):  # fmt: skip
        self.asked, self.runs, self.device, self.samples = asked, runs, device, samples
        self.curves: dict[str, pd.DataFrame] = {}
        self._stop_asked, self._longest = threading.Event(), run.experiment.get_task().longest_trained
        look = {"button_style": "primary", "layout": {"width": "16em"}}
        self.start_button = widgets.Button(description="Retrain with these lines", **look)
        self.stop_button = widgets.Button(description="Stop", disabled=True, layout={"width": "7em"})
        self.progress = widgets.IntProgress(value=0, min=0, max=1, layout={"width": "20em"})
        self.status, self.picture, self.table = widgets.Label(""), picture(), widgets.HTML()
        self.start_button.on_click(lambda _: self.start())
        self.stop_button.on_click(lambda _: self.stop())
        buttons = widgets.HBox([self.start_button, self.stop_button, self.progress])
        super().__init__([buttons, self.status, self.picture, self.table])
        self._add_curve(run.experiment, name, self._scores(run))

    def start(self) -> None:
        """Train in the background, and test."""
        try:
            experiment, name = self.asked()
        except ValueError as error:
            self.status.value = str(error)
            return
        self._stop_asked.clear()
        self.start_button.disabled, self.stop_button.disabled = True, False
        self.thread = threading.Thread(target=self._work, args=(experiment, name), daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """Ask the training to stop, which it does within a second, or after the length that is being tested."""
        self._stop_asked.set()
        self.stop_button.disabled = True
        self.status.value = "stopping"

    def show_progress(self, text: str, steps: int = 0) -> None:
        """Count steps, show a line, and heed a stop that was asked for."""
        self.progress.value += steps
        self.status.value = text
        if self._stop_asked.is_set():
            raise Stopped

    def _work(self, experiment: Experiment, name: str) -> None:
        if not _one_at_a_time.acquire(blocking=False):
            self._end("Another panel is training; wait for it or stop it there.")
            return
        try:
            self.progress.max, self.progress.value = steps_to_do(experiment, self.runs), 0
            self._first_report = None
            run = fit(experiment, self.runs, self.device, progress=False, listener=self._listen)
            self.progress.value = self.progress.max
            self._add_curve(experiment, name, self._scores(run))
            text = "Done: the curve is in the figure."
        except Stopped:
            text = "Stopped; the next press goes on from the last checkpoint, if there is one yet."
        except Exception as error:  # whatever it is, the reader sees it; the thread has nobody else to tell
            text = str(error).partition("\n")[0] or type(error).__name__
        finally:
            _one_at_a_time.release()
        self._end(text)

    def _end(self, text: str) -> None:
        self.status.value = text
        self.start_button.disabled, self.stop_button.disabled = False, True

    def _listen(self, steps: int, loss: float) -> None:
        now, done, total = time.monotonic(), self.progress.value + steps, self.progress.max
        # The first report of a resumed training counts the steps of its last time too.
        before, at = self._first_report = self._first_report or (now, done)
        text = f"step {done} of {total}, loss {loss:.3f}"
        if done > at:
            left = (now - before) / (done - at) * max(0, total - done)
            text += f", {tqdm.format_interval(left)} left"
        self.show_progress("another process trains this model" if math.isnan(loss) else text, steps)

    def _scores(self, run: Run) -> Iterable[Score]:
        for length in TESTED_LENGTHS:
            self.show_progress(f"testing {length} digits")
            yield run.evaluate(length, self.samples, device=pick_device(self.device))
        self.status.value = ""

    def _add_curve(self, experiment: Experiment, name: str, scores: Iterable[Score]) -> None:
        rows = [(name, score.length, score.exact_match, *score.interval) for score in scores]
        curve = pd.DataFrame(rows, columns=["method", "length", "exact_match", "low", "high"])
        self.curves.setdefault(experiment.digest, curve)
        curves = pd.concat(self.curves.values())
        self.picture.value = to_png(accuracy_figure(curves, self._longest))
        shares = curves.groupby("method", sort=False)["exact_match"]
        rows = [[name, *map("{:.1f}".format, points)] for name, points in shares]
        self.table.value = table(rows, ["exact match (%) at", *map(str, TESTED_LENGTHS)])
