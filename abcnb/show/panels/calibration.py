"""The calibration panel: τ of the rule, or κ and directions of Algorithm 1, on the same averaged attention.

In JupyterLab every control redraws the lines, and a button retrains with them. On a page without a kernel the panel is
a fragment of frames that were drawn beforehand, for several τ and κ, and two sliders that choose among them.
"""

import base64
import io
from dataclasses import replace
from pathlib import Path

import ipywidgets as widgets
import jinja2
import torch
from PIL import Image

from abcnb.lines.algorithm1 import DIRECTIONS, Algorithm1Config, calibrate_matrices
from abcnb.lines.biases import Biases
from abcnb.lines.calibration import TAU, Calibration, calibrate_attention
from abcnb.lines.line import dealt, parted
from abcnb.show.panels.drawing import head_maps, of_heads
from abcnb.show.panels.panel import Panel, control, picture, table
from abcnb.show.panels.retraining import Retraining
from abcnb.study.experiments import Experiment
from abcnb.study.runs import Run
from abcnb.tasks.tokens import decode

PANEL_MIME = "application/vnd.abcnb.panel+html"
PAGE = Path(__file__).parents[1] / "templates" / "calibration.html.j2"
RULE, ALGORITHM_1 = "the rule: shares above τ", "Algorithm 1: strengths above κσ + μ"
# Frames of a page without a kernel.
TAUS, KAPPAS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5), (0.0, 1.0, 2.0, 3.0, 4.5, 6.0)


class CalibrationPanel(Panel):
    """Finds the lines again at every move of a control; retrains with them at the press of a button.

    Args:
        run: a run of ABC (`abc`) of an encoder-decoder; any other is a ValueError.
        runs: the folder of all runs, into which retrainings go.
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
        choices = [self.kappa_cross, self.kappa_self, self.directions_cross, self.directions_self]
        self._of_algorithm_1 = widgets.VBox(choices)
        self.retraining = Retraining(run, f"τ {e.tau:g} (this run)", self.asked, Path(runs), device, samples)
        controls = [self.mode, self.tau, self._of_algorithm_1, self.length]
        described = f"Calibration panel: {e.task}, {e.method}, seed {e.seed}"
        super().__init__(controls, [self.lines, self.maps, self.retraining], described)
        for choice in choices:
            choice.observe(self.update, names="value")
        self._fragment = self.fragment()

    @property
    def config(self) -> Algorithm1Config:
        """The choices of Algorithm 1; without a direction they are a ValueError."""
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
        """What retraining would train, the run's experiment with the controls' choices, and its name."""
        e = self.run.experiment
        if self.mode.value == RULE:
            return replace(e, tau=self.tau.value), self.name
        model = replace(e.model, heads=e.interpolation.model.heads)  # a matrix for each of the plain model's
        return replace(e, bias="algorithm1", algorithm1=self.config, tau=TAU, model=model), self.name

    def redraw(self) -> None:
        rule = self.mode.value == RULE
        self.tau.layout.display, self._of_algorithm_1.layout.display = (None, "none") if rule else ("none", None)
        if rule:
            found = calibrate_attention(self.attention, self.tau.value)
            biases, names = self._a_map_for_each_line(found)
            head = ["line", "share", "layer", "head"]
            rows = [(str(f.line), f"{f.share:.2f}", f.layer + 1, f.head) for f in found.found]
            self._said = f"{self.name}: " + ", ".join(f"{line} {share}" for line, share, *_ in rows)
        else:
            biases = calibrate_matrices(self.attention[-1], self.config)
            names = of_heads(range(self.run.experiment.interpolation.model.heads))
            head, rows = ["attention", "head", "Δ", "offset", "value"], []
            for bias in biases.cross_biases + biases.self_biases:
                rows += [(bias.attention, *which, f"{value:.2f}") for *which, value in bias.lines]
            self._said = f"Algorithm 1, {self.name}"
        self.lines.value = table(rows, head)
        self.maps.value = self._draw(biases, names)

    def _a_map_for_each_line(self, found: Calibration) -> tuple[Biases, tuple[list[str], list[str]]]:
        """The lines that a new model would have, one to a map, and the maps' names."""
        shares = {f.line: f.share for f in found.found}
        own, crossed = parted(found.strongest(self.run.experiment.model.heads), found.stream)
        biases = (dealt(name, max(1, len(lines)), lines) for name, lines in (("self", own), ("cross", crossed)))
        names = ([f"{line}: {shares[line]:.2f}" for line in lines] or ["no line"] for lines in (crossed, own))
        return Biases(*((bias,) for bias in biases)), tuple(names)

    def _draw(self, biases: Biases, names: tuple[list[str], list[str]]) -> bytes:
        width, form = self.task.digits_at(self.length.value) + 1, self.run.experiment.form
        stream = self.task.stream(width, form)
        steps = torch.arange(stream.rows)
        (own,), (cross,) = biases
        maps = cross(steps, stream.columns(crossing=True)), own(steps, stream.columns())
        source = decode(self.task.source(self.task.smallest(width), form)[0]).replace("0", "#")
        title = f"lines at {self.length.value} digits, {self.name}; above: cross-attention; grey is closed"
        return head_maps(*maps, names, title, source)

    def fragment(self) -> str:
        """A self-contained HTML fragment with frames for several τ and κ; the controls stay where they were."""
        before = self.mode.value, self.tau.value, self.kappa_cross.value
        frames = {"tau": self._frames(RULE, self.tau, TAUS)}
        frames["kappa"] = self._frames(ALGORITHM_1, self.kappa_cross, KAPPAS)
        self.mode.value, self.tau.value, self.kappa_cross.value = before
        start = min(range(len(TAUS)), key=lambda n: abs(TAUS[n] - self.tau.value))
        return jinja2.Template(PAGE.read_text(encoding="utf-8")).render(frames=frames, start=start)

    def _frames(self, mode: str, slider: widgets.FloatSlider, values: tuple[float, ...]) -> list[dict]:
        self.mode.value, frames = mode, []
        for value in values:
            slider.value = value
            png, text = _small(self.maps.value), self.text or self._said
            frames.append({"name": f"{value:g}", "png": png, "text": text})
        return frames

    def _repr_mimebundle_(self, **kwargs) -> dict:
        return super()._repr_mimebundle_(**kwargs) | {PANEL_MIME: self._fragment}


def _small(png: bytes) -> str:
    """A picture of few colours, a fifth of its size, in base64."""
    written = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(16).save(written, "PNG", optimize=True)
    return base64.b64encode(written.getvalue()).decode("ascii")
