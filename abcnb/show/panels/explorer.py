"""Panels to explore with: inputs and their columns, attention, ABS windows, and the calibration of ABC.

Each is an `ipywidgets.VBox`, made by one call. Where no kernel answers, its mime bundle still holds a figure of
how it started, and that of the calibration panel a fragment that calibrates in the browser.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import ipywidgets as widgets
import torch

from abcnb.attention import record
from abcnb.decoding import greedy_decode
from abcnb.devices import pick_device
from abcnb.layout import NO_PLACE, Layout, Steps
from abcnb.lines import cross_window, self_window
from abcnb.model import Transformer
from abcnb.positions import CyclicColumns, CyclicPlaces
from abcnb.show.panels.calibration import CalibrationPanel
from abcnb.show.panels.drawing import COLOURS, HeadMaps, cell_rows, shade, to_png
from abcnb.show.panels.panel import Panel, dropdown, picture, slider, table, text_field
from abcnb.study.runs import Run
from abcnb.tasks import TASKS, Batch, Task, get_task
from abcnb.tokens import decode

MOST_TOKENS = 104  # of an input that are drawn as cells
KINDS = {
    "s": ("start", "0.6"),
    "o": ("operator", COLOURS[4]),
    "a": ("digit of operand 1", COLOURS[0]),
    "b": ("digit of operand 2", COLOURS[1]),
    "d": ("single-digit operand", COLOURS[2]),
    "e": ("end", "0.6"),
}


def example_input(task: Task) -> str:
    """An input in the task's own form, with the paper's digits as far as its base has them."""
    first, second = (
        "".join("0123456789abcdef"[int(c) % task.base] for c in n) for n in ("078114514", "0241919810")
    )
    if task.operands == 1:
        return task.symbol + first
    return first + task.symbol + second[: task.widths(len(second))[1]]


def column_kinds(source: str, layout: Layout) -> list[str]:
    """The key in `KINDS` of every source column."""
    kinds = []
    for column, character in enumerate(source):
        inside = [
            k for k, columns in enumerate(layout.column_of_place[:, 1:-1]) if bool((columns == column).any())
        ]
        structure = "s" if character == "$" else "e" if character == "&" else "d" if character.isalnum() else "o"
        kinds.append("ab"[inside[0]] if inside else structure)
    return kinds


@dataclass(frozen=True)
class Answer:
    """What a model wrote for one input, and where it looked.

    Attributes:
        source, written, label: texts; outputs are units first and end with `&`.
        cross_attention, self_attention: of each layer, [heads, rows, columns].
    """

    source: str
    written: str
    label: str
    cross_attention: list[torch.Tensor]
    self_attention: list[torch.Tensor]

    @property
    def fed(self) -> str:
        """The decoder's input: the written output behind the start token."""
        return "$" + self.written[:-1]


def answer(model: Transformer, task: Task, form: str, text: str, least_width: int = 1) -> Answer:
    """Decode an input greedily and record the attention of every step.

    Args:
        model: on any device.
        task, form: of the run.
        text: the input, in the task's own form.
        least_width: operands are padded to this many digits at least, as in tests.

    Raises:
        ValueError: the text is not an input of the task.
    """
    batch = task.batch(task.widened(task.parse(text), least_width), form)
    layout = batch.layout.to(model.device)
    source, steps = batch.source.to(model.device), batch.target.shape[1]
    written = greedy_decode(model, source, layout, steps)
    recording = record(model, Batch(source, written, layout))
    return Answer(
        decode(batch.source[0]),
        decode(written[0].cpu()),
        decode(batch.target[0]),
        [layer[0].cpu() for layer in recording.cross_attention],
        [layer[0].cpu() for layer in recording.self_attention],
    )


class AttentionPanel(Panel):
    """An input typed by the reader, what the model writes for it, and the attention of every step.

    Args:
        run: the model.
        text: the first input; empty for an example.
        device: `auto`, `cpu` or `cuda`.
    """

    def __init__(self, run: Run, text: str = "", device: str = "auto"):
        e = run.experiment
        self._experiment, self._task = e, e.get_task()
        self._model = run.model(pick_device(device))
        self.answer: Answer | None = None
        self._answered, self._drawn = None, None
        self._maps: HeadMaps | None = None
        self.input = text_field("input", text or example_input(self._task))
        layers = range(e.model.decoder_layers)
        self.layer = dropdown("layer", [(str(layer + 1), layer) for layer in layers], layers[-1])
        self.head = dropdown("head", ["all", *range(e.model.heads)], "all")
        self.step = slider(widgets.IntSlider, "output step", value=0, min=0, max=1)
        self._steps, self._picture = widgets.HTML(), picture()
        controls = [self.input, self.layer, self.head, self.step]
        described = f"Attention panel: {e.task}, {e.method}, seed {e.seed}"
        super().__init__(controls, [self._steps, self._picture], described)
        self.start(controls, [self._picture])

    def redraw(self) -> str:
        if self.input.value != self._answered:
            e = self._experiment
            self.answer = answer(self._model, self._task, e.form, self.input.value, e.train_width)
            self._answered, self._drawn = self.input.value, None
            self.step.max = len(self.answer.written) - 1
        asked = (self.layer.value, self.head.value)
        if asked != self._drawn:
            self._draw_maps()
            self._drawn = asked
        self._steps.value = steps_table(self.answer, self.step.value, self._task)
        self._picture.value = self._maps.mark(self.step.value)
        return ""

    def _draw_maps(self) -> None:
        found, layer = self.answer, self.layer.value
        rows = len(found.written)
        heads = range(self._experiment.model.heads) if self.head.value == "all" else [self.head.value]
        self._maps = HeadMaps(heads, min(2.6, max(1.0, 0.125 * rows)), "viridis", "attention weight")
        verdict = "right" if found.written == found.label else "wrong"
        text = self._answered if len(self._answered) <= 45 else self._answered[:44] + "…"
        read = self._task.read(found.written)[:45]
        title = f"layer {layer + 1}: {text} → {read} ({verdict}); outlined: the output step"
        cross, self_ = found.cross_attention[layer], found.self_attention[layer]
        self._maps.show(cross, self_, title, found.source, found.fed, found.written, high=1.0)


def steps_table(found: Answer, step: int, task: Task) -> str:
    """Written and right tokens step by step as HTML; wrong ones are marked by ✗, the current step by a frame."""
    right = [a == b for a, b in zip(found.written, found.label, strict=True)]
    verdict = "correct" if all(right) else f"wrong at {right.count(False)} of {len(right)} steps"
    read = f"read {escape(task.read(found.written))}, true {escape(task.read(found.label))}: <b>{verdict}</b>"
    rows = {
        "step": [str(i) for i in range(len(right))],
        "written": list(found.written),
        "label": list(found.label),
        "right": ["✓" if good else "✗" for good in right],
    }
    cells = ""
    for name, texts in rows.items():
        cells += f'<tr><th scope="row" style="text-align:right;padding-right:8px">{name}</th>'
        for i, text in enumerate(texts):
            style = "padding:0 5px;text-align:center;"
            if name != "step" and not right[i]:
                style += "background:#f6d5c0;color:#7a2600;font-weight:700;"
            if i == step:
                style += "border-left:2px solid #de8f05;border-right:2px solid #de8f05;"
            cells += f'<td style="{style}">{escape(text)}</td>'
        cells += "</tr>"
    style = "border-collapse:collapse;font-family:monospace;line-height:1.4"
    return f'{read}<div style="overflow-x:auto"><table style="{style}">{cells}</table></div>'


@dataclass(frozen=True)
class Window:
    """An ABS window with cyclic positions, on an input of zeros.

    Attributes:
        source, fed: the source's and the decoder's tokens, digits as `#`.
        cross, self_: the bias of one head, [1, rows, columns] and [1, rows, rows].
        by_column, by_place: each source column's phase under the paper's CPI and under ours, −1 for none.
        of_steps: each decoder step's phase, the same under both.
    """

    source: str
    fed: str
    cross: torch.Tensor
    self_: torch.Tensor
    by_column: list[int]
    by_place: list[int]
    of_steps: list[int]


def window_of(task: Task, length: int, w: int = 1, period: int = 3, sides: str = "past") -> Window:
    """The ABS bias and the phases at one length, on the aligned form where the task has one.

    Raises:
        ValueError: a negative w, a period below 1, an unknown side.
    """
    if period < 1:
        raise ValueError(f"expected a period T of at least 1, got {period}")
    width, form = task.digits_at(length) + 1, task.forms[-1]
    batch = task.batch(task.smallest(width), form)
    rows = torch.arange(batch.target.shape[1])
    cross = cross_window(1, batch.layout.segments, w, sides)(rows, batch.layout)
    return Window(
        decode(batch.source[0]).replace("0", "#"),
        "$" + "#" * (len(rows) - 1),
        cross,
        self_window(1, w)(rows, Steps.all(len(rows))),
        CyclicColumns(2, period).phases(batch.layout).tolist(),
        CyclicPlaces(2, period).phases(batch.layout).tolist(),
        (rows % period).tolist(),
    )


class WindowPanel(Panel):
    """The window of ABS and cyclic position indexing: half-width, sides, period, length.

    Args:
        task: its name.
        length: digits at first, at most 20.
    """

    def __init__(self, task: str = "addition", length: int = 8):
        self._task = get_task(task)
        self.w = slider(widgets.IntSlider, "half-width w", value=1, min=0, max=4)
        self.period = slider(widgets.IntSlider, "period T", value=3, min=1, max=8)
        sides = [("past: w places before", "past"), ("both: w places on either side", "both")]
        self.sides = dropdown("cross window", sides, "past")
        self.length = slider(widgets.IntSlider, "length (digits)", value=length, min=1, max=max(20, length))
        self._maps = HeadMaps([0], 2.0, "viridis", label="")  # open or closed: nothing to grade
        self._picture, self._source, self._steps = picture(), picture(), picture()
        controls = [self.w, self.sides, self.period, self.length]
        described = f"Window panel: ABS and cyclic positions on {task}"
        super().__init__(controls, [self._picture, self._source, self._steps], described)
        self.start(controls, [self._picture, self._source, self._steps])

    def redraw(self) -> str:
        period = self.period.value
        found = window_of(self._task, self.length.value, self.w.value, period, self.sides.value)
        title = f"ABS at {self.length.value} digits: w = {self.w.value}, {self.sides.value}; grey is closed"
        self._picture.value = self._maps.show(found.cross, found.self_, title, found.source, found.fed).png()
        source = {"source token": (found.source, [None] * len(found.source))}
        source |= {"phase over columns": phase_cells(found.by_column, period)}
        source |= {"phase over places": phase_cells(found.by_place, period)}
        steps = {"decoder input": (found.fed, [None] * len(found.fed))}
        steps |= {"phase": phase_cells(found.of_steps, period)}
        self._source.value, self._steps.value = (to_png(cell_rows(_first(rows))) for rows in (source, steps))
        hidden = max(len(found.source), len(found.fed)) - MOST_TOKENS
        return f"The phases of the first {MOST_TOKENS} tokens are shown." if hidden > 0 else ""


def phase_cells(phases: Sequence[int], period: int) -> tuple[list[str], list]:
    """Texts and colours of phases; tokens without a phase are empty."""
    return ["" if p < 0 else str(p) for p in phases], [shade(p, max(1, period - 1)) for p in phases]


def _first(rows: dict) -> dict:
    return {name: (texts[:MOST_TOKENS], colours[:MOST_TOKENS]) for name, (texts, colours) in rows.items()}


@dataclass(frozen=True)
class Written:
    """One input as the model meets it.

    Attributes:
        source, fed, target: texts of source, decoder input and target.
        kinds: the key in `KINDS` of every source column.
        places: for each operand, every column's place in it, `NO_PLACE` outside.
        read: what a person reads off the label.
    """

    source: str
    fed: str
    target: str
    kinds: list[str]
    places: list[list[int]]
    read: str


def written_input(task: Task, text: str, form: str) -> Written:
    """Source, label and columns of an input typed in the task's own form.

    Raises:
        ValueError: not an input of the task, a digit that its base does not have, an unknown form.
    """
    batch = task.batch(task.parse(text), form)
    source, target = decode(batch.source[0]), decode(batch.target[0])
    kinds = column_kinds(source, batch.layout)
    return Written(
        source, decode(batch.decoder_input[0]), target, kinds, batch.layout.places().tolist(), task.read(target)
    )


class TasksPanel(Panel):
    """An input typed by the reader: its source, label and decoder input, and what each column is.

    Args:
        task: its name.
        text: the first input, in the task's own form; empty for an example.
        base: of the digits; None is the task's own.
        form: `natural` or `aligned`, where the task has it.
    """

    def __init__(self, task: str = "addition", text: str = "", base: int | None = None, form: str = "aligned"):
        first = get_task(task, base)
        base, forms, text = first.base, first.forms, text or example_input(first)
        self.task = dropdown("task", list(TASKS), task)
        self.base = slider(widgets.IntSlider, "base", value=base, min=2, max=16)
        self.form = dropdown("form", forms, form if form in forms else forms[0])
        self.input = text_field("input", text)
        self._source, self._steps, self._texts = picture(), picture(), widgets.HTML()
        self.task.observe(self._other_task, names="value")
        controls = [self.task, self.base, self.form, self.input]
        described = f"Tasks panel: what the columns of {text} are"
        super().__init__(controls, [self._texts, self._source, self._steps], described)
        self.start(controls, [self._source, self._steps])

    def _other_task(self, change: dict) -> None:
        task = get_task(change["new"])
        form = self.form.value
        self.form.options = task.forms
        self.form.value = form if form in task.forms else task.forms[0]
        self.base.value, self.base.disabled = task.default_base, len(task.bases) == 1
        try:
            task.parse(self.input.value)
        except ValueError:
            self.input.value = example_input(task)

    def redraw(self) -> str:
        task = get_task(self.task.value, self.base.value)
        found = written_input(task, self.input.value, self.form.value)
        used = {key: KINDS[key] for key in KINDS if key in found.kinds}
        rows = {"source": (found.source, [None] * len(found.source))}
        rows["kind"] = (found.kinds, [KINDS[kind][1] for kind in found.kinds])
        width = max(map(max, found.places))
        for operand, places in enumerate(found.places, 1):
            texts = ["" if p == NO_PLACE else str(p).replace("-", "−") for p in places]
            rows[f"place in operand {operand}"] = (texts, [shade(p + 1, width + 1) for p in places])
        legend = {f"{key} {name}": colour for key, (name, colour) in used.items()}
        steps = {"output step": ([str(i) for i in range(len(found.target))], [None] * len(found.target))}
        steps["decoder input"] = (found.fed, ["0.9"] * len(found.fed))
        steps["target"] = (found.target, [COLOURS[9]] * len(found.target))
        self._source.value = to_png(cell_rows(_first(rows), legend=legend))
        self._steps.value = to_png(cell_rows(_first(steps)))
        texts = (("source", found.source), ("target (units first)", found.target), ("decoder input", found.fed))
        self._texts.value = table(["", "text"], [*texts, ("the label is read as", found.read)], 2)
        shown = f"Of {len(found.source)} columns the first {MOST_TOKENS} are drawn."
        return shown if len(found.source) > MOST_TOKENS else ""


def calibration_panel(run: Run, runs: Path, device: str = "auto", samples: int = 1000) -> CalibrationPanel:
    """Move ABC's choices and see the lines at once; retrain with them.

    Args:
        run: a run of ABC.
        runs: the folder of all runs, into which retrainings go.
        device: `auto`, `cpu` or `cuda`, for retraining and testing.
        samples: test samples a length.

    Raises:
        ValueError: the run has no calibrated lines.
    """
    return CalibrationPanel(run, runs, device, samples)


def attention_panel(run: Run, text: str = "", device: str = "auto") -> AttentionPanel:
    """Type an input, see what the model writes and where it looks.

    Args:
        run: a run of any method.
        text: the first input; empty for an example.
        device: `auto`, `cpu` or `cuda`.
    """
    return AttentionPanel(run, text, device)


def window_panel(task: str = "addition", length: int = 8) -> WindowPanel:
    """The window of ABS and cyclic position indexing, on a task at a length of up to 20 digits."""
    return WindowPanel(task, length)


def tasks_panel(
    task: str = "addition", text: str = "", base: int | None = None, form: str = "aligned"
) -> TasksPanel:
    """What source, label and columns of an input are; wrong inputs become a line in the panel."""
    return TasksPanel(task, text, base, form)
