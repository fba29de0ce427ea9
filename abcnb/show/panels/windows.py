"""The window panel: the windows of ABS and cyclic position indexing."""

from collections.abc import Sequence
from dataclasses import dataclass

import ipywidgets as widgets
import torch

from abcnb.lines import windows
from abcnb.positions import CyclicColumns
from abcnb.rows import RowTask
from abcnb.show.panels.drawing import MOST_TOKENS, HeadMaps, cell_rows, shade, to_png
from abcnb.show.panels.panel import Panel, dropdown, picture, slider
from abcnb.show.style import COLOURMAP
from abcnb.tasks import Task, get_task
from abcnb.tokens import decode


@dataclass(frozen=True)
class Window:
    """An ABS window with cyclic positions, on an input of zeros.

    Attributes:
        source, fed: the source's and the decoder's tokens, digits as `#`.
        cross, self_: the bias of one head, [1, rows, columns] and [1, rows, rows].
        by_column: each source column's phase under CPI.
        of_steps: each decoder step's phase.
    """

    source: str
    fed: str
    cross: torch.Tensor
    self_: torch.Tensor
    by_column: list[int]
    of_steps: list[int]


def window_of(task: Task, length: int, w: int = 1, period: int = 3, sides: str = "past") -> Window:
    """The ABS bias and the phases at one length, on the aligned form where the task has one.

    Raises:
        ValueError: a task in rows, a negative w, a period below 1, an unknown side.
    """
    if isinstance(task, RowTask):
        raise ValueError(f"expected a task that the paper's windows are for, got {task.name!r}, which writes rows")
    if period < 1:
        raise ValueError(f"expected a period T of at least 1, got {period}")
    width, form = task.digits_at(length) + 1, task.forms[-1]
    batch = task.batch(task.smallest(width), form)
    rows, source = torch.arange(batch.target.shape[1]), batch.stream.columns(crossing=True)
    (own,), (cross,) = windows(batch.stream, 1, w, sides)
    return Window(
        decode(batch.source[0]).replace("0", "#"),
        "$" + "#" * (len(rows) - 1),
        cross(rows, source),
        own(rows, batch.stream.columns()),
        CyclicColumns(2, period).phases(source).tolist(),
        (rows % period).tolist(),
    )


class WindowPanel(Panel):
    """The window of ABS and cyclic position indexing: half-width, sides, period, length.

    Args:
        task: its name.
        length: digits at first.

    Attributes:
        picture, source, steps: the windows, and the phases of the source's tokens and of the decoder's steps.
    """

    def __init__(self, task: str = "addition", length: int = 8):
        self._task = get_task(task)
        self.w = slider(widgets.IntSlider, "half-width w", value=1, min=0, max=4)
        self.period = slider(widgets.IntSlider, "period T", value=3, min=1, max=8)
        sides = [("past: w places before", "past"), ("both: w places on either side", "both")]
        self.sides = dropdown("cross window", sides, "past")
        self.length = slider(widgets.IntSlider, "length (digits)", value=length, min=1, max=max(20, length))
        self._maps = HeadMaps([0], 2.0, COLOURMAP, label="")  # open or closed: nothing to grade
        self.picture, self.source, self.steps = picture(), picture(), picture()
        controls = [self.w, self.sides, self.period, self.length]
        described = f"Window panel: ABS and cyclic positions on {task}"
        super().__init__(controls, [self.picture, self.source, self.steps], described)
        self.start(controls, [self.picture, self.source, self.steps])

    def redraw(self) -> str:
        period = self.period.value
        found = window_of(self._task, self.length.value, self.w.value, period, self.sides.value)
        title = f"ABS at {self.length.value} digits: w = {self.w.value}, {self.sides.value}; grey is closed"
        self.picture.value = self._maps.show(found.cross, found.self_, title, found.source, found.fed).png()
        source = {"source token": (found.source, [None] * len(found.source))}
        source |= {"phase": phase_cells(found.by_column, period)}
        steps = {"decoder input": (found.fed, [None] * len(found.fed))}
        steps |= {"phase": phase_cells(found.of_steps, period)}
        self.source.value, self.steps.value = (to_png(cell_rows(rows)) for rows in (source, steps))
        hidden = max(len(found.source), len(found.fed)) - MOST_TOKENS
        return f"The phases of the first {MOST_TOKENS} tokens are shown." if hidden > 0 else ""


def phase_cells(phases: Sequence[int], period: int) -> tuple[list[str], list]:
    """Texts and colours of phases; tokens without a phase are empty."""
    return ["" if p < 0 else str(p) for p in phases], [shade(p, max(1, period - 1)) for p in phases]
