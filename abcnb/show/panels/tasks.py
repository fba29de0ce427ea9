"""The tasks panel: what source, label and columns of an input are."""

from dataclasses import dataclass

import ipywidgets as widgets
import torch

from abcnb.coordinates import NO_PLACE, Stream
from abcnb.rows import RowTask
from abcnb.show.panels.drawing import MOST_TOKENS, cell_rows, shade, to_png
from abcnb.show.panels.panel import Panel, dropdown, picture, slider, table, text_field
from abcnb.show.style import PALETTE
from abcnb.tasks import TASKS, Task, get_task
from abcnb.tokens import decode

KINDS = {
    "s": ("start", "0.6"),
    "o": ("operator", PALETTE[4]),
    "a": ("digit of operand 1", PALETTE[0]),
    "b": ("digit of operand 2", PALETTE[1]),
    "d": ("single-digit operand", PALETTE[2]),
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


def column_kinds(source: str, stream: Stream) -> list[str]:
    """The key in `KINDS` of every source column."""
    kinds = ["s" if c == "$" else "e" if c == "&" else "d" if c.isalnum() else "o" for c in source]
    for key, operand in zip("ab", stream.operands, strict=False):
        for column in operand.tokens(operand.grid()).tolist():
            kinds[column] = key
    return kinds


def places_of(stream: Stream) -> list[list[int]]:
    """For each operand, every source column's place in it, `NO_PLACE` outside."""
    found, index = [], torch.arange(-1, stream.width + 1)
    for operand in stream.operands:
        places = torch.full((stream.source,), NO_PLACE)
        places[operand.tokens([index])] = index
        found.append(places.tolist())
    return found


@dataclass(frozen=True)
class WrittenInput:
    """One input as the model meets it.

    Attributes:
        source, fed, target: texts of source, decoder input and target.
        kinds: the key in `KINDS` of every source column.
        places: for each operand, every column's place in it, `NO_PLACE` outside.
        read: the label as a person writes it.
    """

    source: str
    fed: str
    target: str
    kinds: list[str]
    places: list[list[int]]
    read: str


def written_input(task: Task, text: str, form: str) -> WrittenInput:
    """Source, label and columns of an input typed in the task's own form.

    Raises:
        ValueError: not an input of the task, a digit that its base does not have, an unknown form.
    """
    batch = task.batch(task.parse(text), form)
    source, target = decode(batch.source[0]), decode(batch.target[0])
    kinds, places = column_kinds(source, batch.stream), places_of(batch.stream)
    return WrittenInput(source, decode(batch.decoder_input[0]), target, kinds, places, task.read(target))


class TasksPanel(Panel):
    """An input typed by the reader: its source, label and decoder input, and what each column is.

    An input that the task does not take becomes a line in the panel.

    Args:
        task: its name.
        text: the first input, in the task's own form; empty for an example.
        base: of the digits; None is the task's own.
        form: `natural` or `aligned`, where the task has it.

    Attributes:
        source, steps, texts: the cells of the source's columns and of the output's steps, and the texts.
    """

    def __init__(self, task: str = "addition", text: str = "", base: int | None = None, form: str = "aligned"):
        first = get_task(task, base)
        if isinstance(first, RowTask):
            raise ValueError(f"expected a task that writes one row, got {task!r}; rows_panel shows a run of it")
        base, forms, text = first.base, first.forms, text or example_input(first)
        self.task = dropdown("task", [name for name in TASKS if not issubclass(TASKS[name], RowTask)], task)
        self.base = slider(widgets.IntSlider, "base", value=base, min=2, max=16)
        self.form = dropdown("form", forms, form if form in forms else forms[0])
        self.input = text_field("input", text)
        self.source, self.steps, self.texts = picture(), picture(), widgets.HTML()
        self.task.observe(self._other_task, names="value")
        controls = [self.task, self.base, self.form, self.input]
        described = f"Tasks panel: what the columns of {text} are"
        super().__init__(controls, [self.texts, self.source, self.steps], described)
        self.start(controls, [self.source, self.steps])

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
            drawn = places[:MOST_TOKENS]
            texts = ["" if p == NO_PLACE else str(p).replace("-", "−") for p in drawn]
            rows[f"place in operand {operand}"] = (texts, [shade(p + 1, width + 1) for p in drawn])
        legend = {f"{key} {name}": colour for key, (name, colour) in used.items()}
        steps = {"output step": ([str(i) for i in range(len(found.target))], [None] * len(found.target))}
        steps["decoder input"] = (found.fed, ["0.9"] * len(found.fed))
        steps["target"] = (found.target, [PALETTE[9]] * len(found.target))
        self.source.value = to_png(cell_rows(rows, legend=legend))
        self.steps.value = to_png(cell_rows(steps))
        texts = (("source", found.source), ("target (units first)", found.target), ("decoder input", found.fed))
        self.texts.value = table(["", "text"], [*texts, ("the label is read as", found.read)], 2)
        shown = f"The first {MOST_TOKENS} of {len(found.source)} columns are drawn."
        return shown if len(found.source) > MOST_TOKENS else ""
