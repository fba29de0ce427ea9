"""The calibration panel: τ of the rule, or κ and directions of Algorithm 1, on the same averaged attention.

In JupyterLab every control redraws the lines, and a button retrains with them. On a page without a kernel the
panel is a fragment of frames drawn beforehand, for several τ and κ, with two sliders that choose among them.
"""

import base64
import io
import math
import threading
import time
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path

import ipywidgets as widgets
import pandas as pd
import torch
from IPython.core.pylabtools import print_figure
from matplotlib.figure import Figure
from PIL import Image
from tqdm import tqdm

from abcnb.lines.algorithm1 import DIRECTIONS, Algorithm1Config, calibrate_matrices
from abcnb.lines.calibration import TAU, calibrate_attention
from abcnb.lines.line import dealt, parted
from abcnb.machine.devices import pick_device
from abcnb.show.figures import draw_accuracy
from abcnb.show.pages import PANEL_MIME, templates
from abcnb.show.panels.drawing import head_maps, of_heads
from abcnb.show.panels.panel import Panel, control, picture, table
from abcnb.show.style import nested_styles
from abcnb.study.experiments import Experiment
from abcnb.study.fitting import fit, steps_to_do
from abcnb.study.runs import Run
from abcnb.tasks.tokens import decode

RULE, ALGORITHM_1 = "the rule: shares above τ", "Algorithm 1: strengths above κσ + μ"
# The frames on a page without a kernel.
TAUS, KAPPAS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5), (0.0, 1.0, 2.0, 3.0, 4.5, 6.0)
TESTED_LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)
# Trainings draw from the same global random generator, so only one panel of a process trains at a time. If a cell
# trains meanwhile, the retrained model comes out different, but no worse.
_one_at_a_time, _drawing = threading.Lock(), threading.Lock()


class CalibrationPanel(Panel):
    """Finds the lines again whenever a control moves; retrains with them at the press of a button.

    Args:
        run: a run of ABC (`abc`) with an encoder-decoder; ValueError for any other.
        runs: the folder of all runs, where retrained models go.
        device: `auto`, `cpu` or `cuda`, for retraining and testing.
        samples: test samples per length.
    """

    def __init__(self, run: Run, runs: Path, device: str = "auto", samples: int = 1000):
        e = run.experiment
        if e.bias != "calibrated" or e.in_one_stream:
            raise ValueError(f"expected a run of ABC with an encoder-decoder, got {e.method!r} on {e.task}")
        self.run, self.task, self.attention = run, e.get_task(), run.attention()
        self.mode = control(widgets.Dropdown, "calibration", options=[RULE, ALGORITHM_1])
        self.tau = control(widgets.FloatSlider, "τ", value=e.tau, min=0.02, max=0.6, step=0.01)
        self.kappa_cross = control(widgets.FloatSlider, "κ cross", value=2.0, min=-1, max=8, step=0.1)
        self.kappa_self = control(widgets.FloatSlider, "κ self", value=0.87, min=-1, max=8, step=0.1)
        deltas = {"options": [(name, delta) for delta, name in DIRECTIONS.items()], "rows": 5}
        self.directions_cross = control(widgets.SelectMultiple, "Δ cross", value=(-1, 0, 1), **deltas)
        self.directions_self = control(widgets.SelectMultiple, "Δ self", value=(1,), **deltas)
        self.length = control(widgets.IntSlider, "length (digits)", value=12, min=1, max=60)
        self.lines, self.maps = widgets.HTML(), picture()
        self._choices = [self.kappa_cross, self.kappa_self, self.directions_cross, self.directions_self]
        self.retraining = Retraining(self, Path(runs), device, samples)
        described = f"Calibration panel: {e.task}, {e.method}, seed {e.seed}"
        controls = [self.mode, self.tau, *self._choices, self.length]
        super().__init__(controls, [self.lines, self.maps, self.retraining], described)
        self._fragment = self.fragment()

    @property
    def config(self) -> Algorithm1Config:
        """The choices of Algorithm 1; ValueError if they have no direction."""
        names = ("kappa_self", "kappa_cross", "directions_self", "directions_cross")
        return Algorithm1Config(**{name: getattr(self, name).value for name in names}, rows=0)

    @property
    def name(self) -> str:
        """The controls' choices in short."""
        if self.mode.value == RULE:
            return f"τ {self.tau.value:g}"
        deltas = (" ".join(map(str, delta.value)) for delta in (self.directions_cross, self.directions_self))
        return f"κ {self.kappa_cross.value:g}/{self.kappa_self.value:g}, Δ {' / '.join(deltas)}".replace("-", "−")

    def asked(self) -> tuple[Experiment, str]:
        """The experiment that retraining would train, the run's with the controls' choices, and its name."""
        e = self.run.experiment
        if self.mode.value == RULE:
            return replace(e, tau=self.tau.value), self.name
        model = replace(e.model, heads=e.interpolation.model.heads)  # a matrix for each head of the plain model
        return replace(e, bias="algorithm1", algorithm1=self.config, tau=TAU, model=model), self.name

    def redraw(self) -> None:
        rule, e = self.mode.value == RULE, self.run.experiment
        self.tau.layout.display = None if rule else "none"
        for choice in self._choices:
            choice.layout.display = "none" if rule else None
        if rule:  # the lines that a new model would have, one to a map
            found = calibrate_attention(self.attention, self.tau.value)
            shares = {f.line: f.share for f in found.found}
            seen, read = parted(found.strongest(e.model.heads), found.stream)
            own, cross = dealt("self", max(1, len(seen)), seen), dealt("cross", max(1, len(read)), read)
            names = [[f"{line}: {shares[line]:.2f}" for line in lines] or ["no line"] for lines in (read, seen)]
            head = ["line", "share", "layer", "head"]
            rows = [(str(f.line), f"{f.share:.2f}", f.layer, f.head) for f in found.found]
            self._said = f"{self.name}: " + ", ".join(f"{line} {share}" for line, share, *_ in rows)
        else:
            (own,), (cross,) = calibrate_matrices(self.attention[-1], self.config)
            names = of_heads(range(e.interpolation.model.heads))
            head, rows = ["attention", "head", "Δ", "offset", "value"], []
            for bias in (cross, own):
                rows += [(bias.attention, *which, f"{value:.2f}") for *which, value in bias.lines]
            self._said = f"Algorithm 1, {self.name}"
        self.lines.value = table(rows, head)
        width = self.task.digits_at(self.length.value) + 1
        stream = self.task.stream(width, e.form)
        steps = torch.arange(stream.rows)
        maps = cross(steps, stream.columns(crossing=True)), own(steps, stream.columns())
        source = decode(self.task.source(self.task.smallest(width), e.form)[0]).replace("0", "#")
        title = f"lines at {self.length.value} digits, {self.name}; above: cross-attention; grey is closed"
        self.maps.value = head_maps(*maps, names, title, source)

    def fragment(self) -> str:
        """A self-contained HTML fragment with frames for several τ and κ; the controls are put back afterwards."""
        before = self.mode.value, self.tau.value, self.kappa_cross.value
        frames = {"tau": self._frames(RULE, self.tau, TAUS)}
        frames["kappa"] = self._frames(ALGORITHM_1, self.kappa_cross, KAPPAS)
        self.mode.value, self.tau.value, self.kappa_cross.value = before
        start = min(range(len(TAUS)), key=lambda n: abs(TAUS[n] - self.tau.value))
        return templates.get_template("calibration.html.j2").render(frames=frames, start=start)

    def _frames(self, mode: str, slider: widgets.FloatSlider, values: tuple[float, ...]) -> list[dict]:
        self.mode.value, frames = mode, []
        for value in values:
            slider.value = value
            small = io.BytesIO()  # with few colours, a fifth of the size
            Image.open(io.BytesIO(self.maps.value)).convert("RGB").quantize(16).save(small, "PNG", optimize=True)
            png, text = base64.b64encode(small.getvalue()).decode("ascii"), self.text or self._said
            frames.append({"name": f"{value:g}", "png": png, "text": text})
        return frames

    def _repr_mimebundle_(self, **kwargs) -> dict:
        return super()._repr_mimebundle_(**kwargs) | {PANEL_MIME: self._fragment}


class Retraining(widgets.VBox):
    """Trains what a panel asks for in the background, and tests it by length; resumes from the last checkpoint.

    The first curve is the panel's own run; the other arguments are as in `CalibrationPanel`.
    """

    def __init__(self, panel: CalibrationPanel, runs: Path, device: str, samples: int):
        self.panel, self.runs, self.device, self.samples = panel, runs, device, samples
        self.curves: dict[str, pd.DataFrame] = {}  # by digest of the experiment, as `draw_accuracy` takes them
        self._stop_asked = threading.Event()
        look = {"button_style": "primary", "layout": {"width": "16em"}}
        self.start_button = widgets.Button(description="Retrain with these lines", **look)
        self.stop_button = widgets.Button(description="Stop", disabled=True, layout={"width": "7em"})
        self.progress = widgets.IntProgress(value=0, min=0, max=1, layout={"width": "20em"})
        self.status, self.picture, self.table = widgets.Label(""), picture(), widgets.HTML()
        self.start_button.on_click(lambda _: self.start())
        self.stop_button.on_click(lambda _: self.stop())
        buttons = widgets.HBox([self.start_button, self.stop_button, self.progress])
        super().__init__([buttons, self.status, self.picture, self.table])
        self._add_curve(panel.run, f"τ {panel.run.experiment.tau:g} (this run)")

    def start(self) -> None:
        """Train in the background, and test."""
        try:
            experiment, name = self.panel.asked()
        except ValueError as error:
            self.status.value = str(error)
            return
        self._stop_asked.clear()
        self.start_button.disabled, self.stop_button.disabled = True, False
        self.thread = threading.Thread(target=self._work, args=(experiment, name), daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """Ask the training to stop, which it does within a second, or after the length being tested."""
        self._stop_asked.set()
        self.stop_button.disabled = True
        self.status.value = "stopping"

    def show_progress(self, text: str, steps: int = 0) -> None:
        """Count steps and show a line; raises CancelledError if a stop was asked for."""
        self.progress.value += steps
        self.status.value = text
        if self._stop_asked.is_set():
            raise CancelledError

    def _work(self, experiment: Experiment, name: str) -> None:
        text = "Another panel is training; wait for it or stop it there."
        if _one_at_a_time.acquire(blocking=False):
            try:
                self.progress.max, self.progress.value = steps_to_do(experiment, self.runs), 0
                self._first_report = None
                run = fit(experiment, self.runs, self.device, progress=False, listener=self._listen)
                self.progress.value = self.progress.max
                self._add_curve(run, name)
                text = "Done: the curve is in the figure."
            except CancelledError:
                text = "Stopped; the next press goes on from the last checkpoint, if there is one yet."
            except Exception as error:  # show any error to the reader: the thread cannot report it otherwise
                text = str(error).partition("\n")[0] or type(error).__name__
            finally:
                _one_at_a_time.release()
        self.status.value = text
        self.start_button.disabled, self.stop_button.disabled = False, True

    def _listen(self, steps: int, loss: float) -> None:
        now, done, total = time.monotonic(), self.progress.value + steps, self.progress.max
        # The first report of a resumed training also counts the steps done before.
        before, at = self._first_report = self._first_report or (now, done)
        text = f"step {done} of {total}, loss {loss:.3f}"
        if done > at:
            left = (now - before) / (done - at) * max(0, total - done)
            text += f", {tqdm.format_interval(left)} left"
        self.show_progress("another process trains this model" if math.isnan(loss) else text, steps)

    def _add_curve(self, run: Run, name: str) -> None:
        rows = []
        for length in TESTED_LENGTHS:
            self.show_progress(f"testing {length} digits")
            score = run.evaluate(length, self.samples, device=pick_device(self.device))
            rows.append((name, length, score.exact_match, *score.interval))
        self.status.value = ""
        curve = pd.DataFrame(rows, columns=["method", "length", "exact_match", "low", "high"])
        self.curves.setdefault(run.experiment.digest, curve)
        curves = pd.concat(self.curves.values())
        figure = Figure(figsize=(8.5, 3.3 + 0.2 * curves["method"].nunique()), layout="constrained")
        axis, styles = figure.subplots(), nested_styles(curves["method"])
        draw_accuracy(axis, curves, self.panel.task.longest_trained, styles)
        axis.grid(axis="y", color="0.9")
        figure.legend(loc="outside lower left", frameon=False, fontsize=9)
        with _drawing:
            self.picture.value = print_figure(figure, bbox_inches=None, dpi=100, pil_kwargs={"compress_level": 1})
        shares = curves.groupby("method", sort=False)["exact_match"]
        rows = [[name, *map("{:.1f}".format, points)] for name, points in shares]
        self.table.value = table(rows, ["exact match (%) at", *map(str, TESTED_LENGTHS)])
