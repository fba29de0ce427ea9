"""The calibration panel: τ of the rule, or κ and directions of Algorithm 1, on the same averaged attention.

In JupyterLab every control redraws the lines, and a button retrains with them. On a page without a kernel the panel is
a fragment of frames that were drawn beforehand, for several τ and κ, and two sliders that choose among them.
"""

import base64
import io
import json
from dataclasses import replace
from pathlib import Path

import ipywidgets as widgets
import pandas as pd
import torch
from PIL import Image

from abcnb.algorithm1 import DIRECTIONS, Algorithm1Config, calibrate_matrices
from abcnb.biases import Biases
from abcnb.calibration import TAU, calibrate_attention
from abcnb.evaluation import Score
from abcnb.machine import pick_device
from abcnb.show.panels.background import BackgroundTraining
from abcnb.show.panels.drawing import HeadMaps, accuracy_figure, to_png
from abcnb.show.panels.panel import Panel, dropdown, picture, slider, table
from abcnb.show.style import COLOURMAP
from abcnb.study.experiments import Experiment
from abcnb.study.runs import Run
from abcnb.tasks import Task
from abcnb.tokens import decode

PANEL_MIME = "application/vnd.abcnb.panel+html"
TESTED_LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)
RULE, ALGORITHM_1 = "the rule: shares above τ", "Algorithm 1: strengths above κσ + μ"
# Frames of a page without a kernel.
TAUS, KAPPAS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5), (0.0, 1.0, 2.0, 3.0, 4.5, 6.0)
PAGE = """<div class="tex2jax_ignore mathjax_ignore calibration">
<p>This panel needs JavaScript: with it, two sliders choose τ and κ.</p>
<script>
(function () {
"use strict";
const frames = FRAMES;
const box = document.currentScript.parentElement;
box.querySelector("p").remove();
const shown = document.createElement("img"), said = document.createElement("p");
shown.style.maxWidth = "100%";
said.setAttribute("role", "status");
function choose(frame) { shown.src = "data:image/png;base64," + frame.png; shown.alt = said.textContent = frame.text; }
for (const [name, list, start] of [["τ (the rule)", frames.tau, 3], ["κ (Algorithm 1)", frames.kappa, 2]]) {
  const label = document.createElement("label"), input = document.createElement("input");
  Object.assign(input, {type: "range", min: 0, max: list.length - 1, value: start});
  label.style.display = "block";
  const value = document.createElement("output");
  const follow = () => { value.textContent = list[input.value].name; choose(list[input.value]); };
  input.addEventListener("input", follow);
  label.append(name + " ", input, " ", value);
  value.textContent = list[start].name;
  box.append(label);
}
box.append(said, shown);
choose(frames.tau[3]);
})();
</script>
</div>"""


def longest_trained(task: Task) -> int:
    """The longest training length in the measure of tests: decimal digits for Parity, too."""
    return max((n for n in range(1, 61) if task.digits_at(n) <= task.train_length), default=1)


def curve(name: str, scores: list[Score]) -> pd.DataFrame:
    """Scores as `draw_accuracy` takes them, under the name of their setting."""
    rows = [(name, score.length, score.exact_match, *score.interval) for score in scores]
    return pd.DataFrame(rows, columns=["method", "length", "exact_match", "low", "high"])


def _small(png: bytes) -> bytes:
    """A picture of few colours, a fifth of its size."""
    written = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(16).save(written, "PNG", optimize=True)
    return written.getvalue()


class CalibrationPanel(Panel):
    """Finds the lines again at every move of a control; retrains with them at the press of a button.

    Args:
        run: a run of ABC (`abc`) of an encoder-decoder.
        runs: the folder of all runs, into which retrainings go.
        device: `auto`, `cpu` or `cuda`, for retraining and testing.
        samples: test samples per length.

    Attributes:
        curves: digest of an experiment to the `curve` of its setting.
        training: the thread that last retrained, or None.

    Raises:
        ValueError: the run has no lines that were found, or is of one causal stream.
    """

    def __init__(self, run: Run, runs: Path, device: str = "auto", samples: int = 1000):
        e = run.experiment
        if e.bias != "calibrated" or e.in_one_stream:
            raise ValueError(f"expected a run of ABC with an encoder-decoder, got {e.method!r} on {e.task}")
        self.run, self.runs, self.device, self.samples = run, Path(runs), device, samples
        self.task, self.training = e.get_task(), None
        self.attention = run.attention()
        self.mode = dropdown("calibration", [RULE, ALGORITHM_1], RULE)
        self.tau = slider(widgets.FloatSlider, "τ", value=e.tau, min=0.02, max=0.6, step=0.01)
        self.kappa_cross = slider(widgets.FloatSlider, "κ cross", value=2.0, min=-1, max=8, step=0.1)
        self.kappa_self = slider(widgets.FloatSlider, "κ self", value=0.87, min=-1, max=8, step=0.1)
        choices = [(name, delta) for delta, name in DIRECTIONS.items()]
        self.directions_cross, self.directions_self = (
            widgets.SelectMultiple(description=f"Δ {name}", options=choices, value=value, rows=5)
            for name, value in (("cross", (-1, 0, 1)), ("self", (1,)))
        )
        longest = max(60, longest_trained(self.task))
        self.length = slider(widgets.IntSlider, "length (digits)", value=12, min=1, max=longest)
        self.maps, self.lines = picture(), widgets.HTML()
        self._drawing = HeadMaps(range(e.model.heads), 1.15, COLOURMAP, "bias")
        self._make_retraining()
        scores = [run.evaluate(n, samples, device=pick_device(device)) for n in TESTED_LENGTHS]
        self.curves = {e.digest: curve(f"τ {e.tau:g} (this run)", scores)}
        self._draw_curves()
        self._of_algorithm_1 = widgets.VBox(
            [self.kappa_cross, self.kappa_self, widgets.HBox([self.directions_cross, self.directions_self])]
        )
        controls = [self.mode, self.tau, self._of_algorithm_1, self.length]
        buttons = widgets.HBox([self.retrain_button, self.stop_button, self.progress])
        results = [self.lines, self.maps, buttons, self.status, self.curves_picture, self.curves_table]
        super().__init__(controls, results, f"Calibration panel: {e.task}, {e.method}, seed {e.seed}")
        moved = [
            self.mode,
            self.tau,
            self.kappa_cross,
            self.kappa_self,
            self.directions_cross,
            self.directions_self,
        ]
        self.start([*moved, self.length], [self.maps])
        self._fragment = self.fragment()

    @property
    def config(self) -> Algorithm1Config:
        """The choices of Algorithm 1.

        Raises:
            ValueError: no direction is chosen.
        """
        return Algorithm1Config(
            kappa_self=self.kappa_self.value,
            kappa_cross=self.kappa_cross.value,
            directions_self=tuple(self.directions_self.value),
            directions_cross=tuple(self.directions_cross.value),
            rows=0,
        )

    @property
    def experiment(self) -> Experiment:
        """What retraining would train: the run's experiment with the controls' choices."""
        if self.mode.value == RULE:
            return replace(self.run.experiment, tau=self.tau.value)
        return replace(self.run.experiment, bias="algorithm1", algorithm1=self.config, tau=TAU)

    @property
    def name(self) -> str:
        """The controls' choices in short."""
        if self.mode.value == RULE:
            return f"τ {self.tau.value:g}"
        deltas = (" ".join(map(str, delta.value)) for delta in (self.directions_cross, self.directions_self))
        return f"κ {self.kappa_cross.value:g}/{self.kappa_self.value:g}, Δ {' / '.join(deltas)}".replace("-", "−")

    def redraw(self) -> str:
        rule = self.mode.value == RULE
        self.tau.layout.display = None if rule else "none"
        self._of_algorithm_1.layout.display = "none" if rule else None
        if rule:
            found = calibrate_attention(self.attention, self.tau.value)
            shown = [(f.line, f"{f.share:.2f}", f.layer + 1, f.head) for f in found.found]
            self.lines.value = table(["line", "share", "layer", "head"], shown, 1)
            self._draw(found.biases)
        else:
            biases = calibrate_matrices(self.attention[-1], self.config)
            shown = [
                (bias.attention, *line) for bias in biases.cross_biases + biases.self_biases for line in bias.lines
            ]
            texts = [(a, head, delta, offset, f"{value:.2f}") for a, head, delta, offset, value in shown]
            self.lines.value = table(["attention", "head", "Δ", "offset", "value"], texts, 1)
            self._draw(biases)
        return ""

    def _draw(self, biases: Biases) -> None:
        width, form = self.task.digits_at(self.length.value) + 1, self.run.experiment.form
        stream = self.task.stream(width, form)
        rows = torch.arange(stream.rows)
        (own,), (cross,) = biases
        source = decode(self.task.source(self.task.smallest(width), form)[0]).replace("0", "#")
        title = f"lines at {self.length.value} digits, {self.name}; grey is closed"
        drawn = cross(rows, stream.columns(crossing=True)), own(rows, stream.columns())
        self.maps.value = self._drawing.show(*drawn, title, source, None).png()

    def fragment(self) -> str:
        """A self-contained HTML fragment with frames for several τ and κ; the controls stay where they were."""
        before = self.mode.value, self.tau.value, self.kappa_cross.value
        frames: dict[str, list] = {"tau": [], "kappa": []}
        for mode, control, values, key in (
            (RULE, self.tau, TAUS, "tau"),
            (ALGORITHM_1, self.kappa_cross, KAPPAS, "kappa"),
        ):
            self.mode.value = mode
            for value in values:
                control.value = value
                png = base64.b64encode(_small(self.maps.value)).decode("ascii")
                text = self._in_words() if not self.text else self.text
                frames[key].append({"name": f"{value:g}", "png": png, "text": text})
        self.mode.value, self.tau.value, self.kappa_cross.value = before
        return PAGE.replace("FRAMES", json.dumps(frames, ensure_ascii=False).replace("</", "<\\/"))

    def _in_words(self) -> str:
        if self.mode.value == ALGORITHM_1:
            return f"Algorithm 1, {self.name}"
        found = calibrate_attention(self.attention, self.tau.value)
        return f"{self.name}: " + ", ".join(f"{f.line} {f.share:.2f}" for f in found.found)

    def _make_retraining(self) -> None:
        self.retrain_button = widgets.Button(
            description="Retrain with these lines", button_style="primary", layout={"width": "16em"}
        )
        self.stop_button = widgets.Button(description="Stop", disabled=True, layout={"width": "7em"})
        self.progress = widgets.IntProgress(value=0, min=0, max=1, layout={"width": "20em"})
        self.status = widgets.Label("")
        self.curves_picture, self.curves_table = picture(), widgets.HTML()
        self.retrain_button.on_click(lambda _: self.retrain())
        self.stop_button.on_click(lambda _: self.stop())

    def retrain(self) -> None:
        """Train the run's experiment with the controls' lines in the background, and test it."""
        if self.training is not None and self.training.is_alive():
            return
        try:
            experiment, name = self.experiment, self.name
        except ValueError as error:
            self.status.value = str(error)
            return
        self.retrain_button.disabled, self.stop_button.disabled = True, False
        self.training = BackgroundTraining(
            experiment,
            self.runs,
            TESTED_LENGTHS,
            self.samples,
            self.device,
            self.show_progress,
            lambda scores, text: self._finish(experiment, name, scores, text),
        )
        self.training.start()

    def stop(self) -> None:
        """Ask the training to stop, which it does within a second, or after the length that is being tested."""
        if self.training is not None and self.training.is_alive():
            self.training.ask_to_stop()
            self.stop_button.disabled = True
            self.status.value = "stopping"

    def show_progress(self, done: int, total: int, text: str) -> None:
        """Show how many steps of how many are done, and a line for the reader."""
        self.progress.max = max(total, 1)
        self.progress.value = done if total else 1
        self.status.value = text

    def _finish(self, experiment: Experiment, name: str, scores: list[Score] | None, text: str) -> None:
        if scores is not None and experiment.digest not in self.curves:
            self.curves[experiment.digest] = curve(name, scores)
            self._draw_curves()
        self.status.value = text
        self.retrain_button.disabled, self.stop_button.disabled = False, True

    def _draw_curves(self) -> None:
        curves = pd.concat(self.curves.values())
        self.curves_picture.value = to_png(accuracy_figure(curves, longest_trained(self.task)))
        header = ["exact match (%) at", *map(str, TESTED_LENGTHS)]
        rows = [
            [name, *map("{:.1f}".format, points["exact_match"])]
            for name, points in curves.groupby("method", sort=False)
        ]
        self.curves_table.value = table(header, rows, 1)

    def _repr_mimebundle_(self, **kwargs) -> dict:
        return super()._repr_mimebundle_(**kwargs) | {PANEL_MIME: self._fragment}
