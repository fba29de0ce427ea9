"""The panels of a task: what source, label and columns of an input are, and the windows of ABS on it."""

import ipywidgets as widgets
import seaborn as sns
import torch

from abcnb.lines.coordinates import NO_PLACE, Stream
from abcnb.lines.line import windows
from abcnb.model.positions import CyclicColumns
from abcnb.show.figures import operand_places
from abcnb.show.panels.drawing import head_maps, of_heads
from abcnb.show.panels.panel import Panel, control, picture, table, text_field
from abcnb.show.style import PALETTE
from abcnb.tasks.task import TASKS, Task, get_task
from abcnb.tasks.tokens import decode

KINDS = {
    "s": ("start", "0.6"),
    "o": ("operator", PALETTE[4]),
    "a": ("digit of operand 1", PALETTE[0]),
    "b": ("digit of operand 2", PALETTE[1]),
    "d": ("single-digit operand", PALETTE[2]),
    "e": ("end", "0.6"),
}


def example_input(task: Task) -> str:
    """An input in the task's own form, with the paper's digits, each modulo the base."""
    paper = ("078114514", "0241919810")
    first, second = ("".join("0123456789abcdef"[int(digit) % task.base] for digit in text) for text in paper)
    if task.operands == 1:
        return task.symbol + first
    return first + task.symbol + second[: task.widths(len(second))[1]]


def column_kinds(source: str, stream: Stream) -> list[str]:
    """The key in `KINDS` of every source column."""
    kinds = ["s" if c == "$" else "e" if c == "&" else "d" if c.isalnum() else "o" for c in source]
    for key, operand in zip("ab", stream.operands, strict=False):
        for column in operand.tokens(operand.grid()).tolist():
            kinds[column] = key
    return kinds


class TasksPanel(Panel):
    """An input typed by the reader: its source, label and decoder input, and what each column is.

    Args:
        task: its name; ValueError for a task whose output is in rows.
        text: the first input, in the task's own form; empty for an example.
        base: of the digits; None means the task's own.
        form: `natural` or `aligned`, if the task has it.
    """

    def __init__(self, task: str = "addition", text: str = "", base: int | None = None, form: str = "aligned"):
        first = get_task(task, base)
        if first.in_rows:
            raise ValueError(f"expected a task that writes one row, got {task!r}; rows_panel shows a run of it")
        text, names = text or example_input(first), [n for n in TASKS if not TASKS[n].in_rows]
        self.task = control(widgets.Dropdown, "task", options=names, value=task)
        self.base = control(widgets.IntSlider, "base", value=first.base, min=2, max=16)
        form = form if form in first.forms else first.forms[0]
        self.form = control(widgets.Dropdown, "form", options=first.forms, value=form)
        self.input, self.texts, self.cells = text_field(text), widgets.HTML(), widgets.HTML()
        self.task.observe(self._other_task, names="value")
        controls = [self.task, self.base, self.form, self.input]
        super().__init__(controls, [self.texts, self.cells], f"Tasks panel: what the columns of {text} are")

    def _other_task(self, change: dict) -> None:
        task, form = get_task(change["new"]), self.form.value
        self.form.options = task.forms
        self.form.value = form if form in task.forms else task.forms[0]
        self.base.value, self.base.disabled = task.base, len(task.bases) == 1
        try:
            task.parse(self.input.value)
        except ValueError:
            self.input.value = example_input(task)

    def redraw(self) -> None:
        task = get_task(self.task.value, self.base.value)
        batch = task.batch(task.parse(self.input.value), self.form.value)
        source, fed, target = (decode(ids[0]) for ids in (batch.source, batch.decoder_input, batch.target))
        kinds, shades = column_kinds(source, batch.stream), sns.color_palette("cividis", batch.stream.width + 2)
        columns = [["source", *source], ["kind", *((kind, KINDS[kind][1]) for kind in kinds)]]
        for operand, places in enumerate(operand_places(batch.stream).values(), 1):
            cells = ["" if p == NO_PLACE else (str(p).replace("-", "−"), shades[p + 1]) for p in places]
            columns.append([f"place in operand {operand}", *cells])
        legend = ["kinds", *((f"{key} {name}", colour) for key, (name, colour) in KINDS.items() if key in kinds)]
        steps = [["output step", *range(len(target))], ["decoder input", *fed]]
        steps.append(["target", *((token, PALETTE[9]) for token in target)])
        self.cells.value = table(columns) + table([legend]) + table(steps)
        texts = {"source": source, "target (units first)": target, "decoder input": fed}
        self.texts.value = table([*texts.items(), ("the label is read as", task.read(target))])


class WindowPanel(Panel):
    """The window of ABS and cyclic position indexing on an input of zeros: half-width, sides, period, length.

    Args:
        task: its name, shown in aligned form if it has one; ValueError for a task whose output is in rows.
        length: the number of digits at the start.
    """

    def __init__(self, task: str = "addition", length: int = 8):
        self.task = get_task(task)
        if self.task.in_rows:
            raise ValueError(f"expected a task that the paper's windows are for, got {task!r}, which writes rows")
        self.w = control(widgets.IntSlider, "half-width w", value=1, min=0, max=4)
        sides = [("past: w places before", "past"), ("both: w places on either side", "both")]
        self.sides = control(widgets.Dropdown, "cross window", options=sides)
        self.period = control(widgets.IntSlider, "period T", value=3, min=1, max=8)
        self.length = control(widgets.IntSlider, "length (digits)", value=length, min=1, max=max(20, length))
        self.picture, self.phases = picture(), widgets.HTML()
        controls, results = [self.w, self.sides, self.period, self.length], [self.picture, self.phases]
        super().__init__(controls, results, f"Window panel: ABS and cyclic positions on {task}")

    def redraw(self) -> None:
        task, period, w, sides = self.task, self.period.value, self.w.value, self.sides.value
        batch = task.batch(task.smallest(task.digits_at(self.length.value) + 1), task.forms[-1])
        steps, columns = torch.arange(batch.target.shape[1]), batch.stream.columns(crossing=True)
        (own,), (cross,) = windows(batch.stream, 1, w, sides)
        source, fed = decode(batch.source[0]).replace("0", "#"), "$" + "#" * (len(steps) - 1)
        title = f"ABS at {self.length.value} digits: w = {w}, {sides}; grey is closed"
        maps = cross(steps, columns), own(steps, batch.stream.columns())
        self.picture.value = head_maps(*maps, of_heads([0]), title, source, fed, tall=320)
        of_source = _phases("source token", source, CyclicColumns(2, period).phases(columns), period)
        self.phases.value = of_source + _phases("decoder input", fed, steps % period, period)


def _phases(name: str, tokens: str, phases: torch.Tensor, period: int) -> str:
    """Tokens and the coloured phase of each."""
    shades = sns.color_palette("cividis", max(2, period))
    cells = [(phase, shades[phase]) for phase in phases.tolist()]
    return table([[name, *tokens], ["phase", *cells]])
