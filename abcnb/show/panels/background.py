"""Training and evaluating one experiment in a background thread: progress, time left, and a stop.

One panel of a process trains at a time, since trainings draw from the same global random generator. A cell that
builds or trains a model meanwhile draws from it too; the retrained model is then another one, but no worse.
"""

import math
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from abcnb.evaluation import Score
from abcnb.machine import pick_device
from abcnb.study.experiments import Experiment
from abcnb.study.fitting import fit, steps_to_do
from abcnb.study.runs import Run, is_finished
from abcnb.training import CHECKPOINT

_one_at_a_time = threading.Lock()


class Stopped(Exception):
    """Raised within a training that was asked to stop."""


def time_left(seconds: float) -> str:
    """A duration in words: `40 s`, `3 min 20 s`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


class BackgroundTraining(threading.Thread):
    """Trains an experiment and evaluates it by length; interrupted, it resumes from its last checkpoint next time.

    Args:
        experiment: what to train; one that is trained already is only evaluated.
        runs: the folder of all runs.
        lengths: tested lengths, in digits.
        samples: test samples per length.
        device: `auto`, `cpu` or `cuda`.
        on_progress: called with the steps done, the steps in all, and one line for the reader.
        on_end: called once with the scores (None unless it came to its end) and one line for the reader.
    """

    def __init__(
        self,
        experiment: Experiment,
        runs: Path,
        lengths: Sequence[int],
        samples: int,
        device: str,
        on_progress: Callable[[int, int, str], None],
        on_end: Callable[[list[Score] | None, str], None],
    ):
        super().__init__(daemon=True, name=f"training {experiment.digest}")
        self.experiment, self.runs, self.device = experiment, runs, device
        self.lengths, self.samples = tuple(lengths), samples
        self._on_progress, self._on_end = on_progress, on_end
        self._stop_asked = threading.Event()
        self._total, self._done = steps_to_do(experiment, runs), 0
        self._heard: list[tuple[float, int]] = []

    def ask_to_stop(self) -> None:
        """Let it end within a second of training, or after the length that is being tested."""
        self._stop_asked.set()

    def run(self) -> None:
        """Train, evaluate, report; every error becomes the reader's line."""
        scores = None
        if not _one_at_a_time.acquire(blocking=False):
            self._on_end(None, "Another panel is training; wait for it or stop it there.")
            return
        try:
            scores = self._evaluate(self._fit())
            message = "Done: the curve is in the figure."
        except Stopped:
            message = f"Stopped; {self._next_time()}."
        except Exception as error:  # whatever it is, the reader sees it; the thread has nobody else to tell
            message = (str(error).splitlines() or [""])[0] or type(error).__name__
        finally:
            _one_at_a_time.release()
        self._on_end(scores, message)

    def _next_time(self) -> str:
        if is_finished(self.runs / self.experiment.digest):
            return "the model is trained, and its tests go on"
        if self._has_checkpoint():
            return "training goes on from its checkpoint"
        return "training starts anew: no checkpoint yet"

    def _has_checkpoint(self) -> bool:
        parts = (self.experiment, self.experiment.interpolation)
        return any((self.runs / part.digest / CHECKPOINT).exists() for part in parts if part)

    def _fit(self) -> Run:
        # The first report of a resumed training counts the steps of its last time too, and says nothing of speed.
        self._heard = [] if self._has_checkpoint() else [(time.monotonic(), 0)]
        self._on_progress(0, self._total, "training")
        return fit(self.experiment, self.runs, self.device, progress=False, listener=self._listen)

    def _listen(self, steps: int, loss: float) -> None:
        self._done += steps
        self._heard = [*self._heard[:1], (time.monotonic(), self._done)]
        (first, before), (now, done) = self._heard[0], self._heard[-1]
        left = ""
        if done > before and len(self._heard) > 1:
            left = f", {time_left((now - first) / (done - before) * max(0, self._total - done))} left"
        text = f"step {done} of {self._total}, loss {loss:.3f}{left}"
        self._on_progress(done, self._total, "another process trains this model" if math.isnan(loss) else text)
        self._heed()

    def _heed(self) -> None:
        if self._stop_asked.is_set():
            raise Stopped

    def _evaluate(self, run: Run) -> list[Score]:
        scores = []
        for number, length in enumerate(self.lengths, 1):
            self._heed()
            text = f"testing {length} digits ({number} of {len(self.lengths)} lengths)"
            self._on_progress(self._total, self._total, text)
            scores.append(run.evaluate(length, self.samples, device=pick_device(self.device)))
        return scores
