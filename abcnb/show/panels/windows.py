"""The window panel: the windows of ABS and cyclic position indexing."""

import ipywidgets as widgets
import torch

from abcnb.lines.line import windows
from abcnb.model.positions import CyclicColumns
from abcnb.show.panels.drawing import head_maps, of_heads
from abcnb.show.panels.panel import Panel, control, picture, table
from abcnb.show.style import shade
from abcnb.tasks.task import get_task
from abcnb.tasks.tokens import decode


class WindowPanel(Panel):
    """The window of ABS and cyclic position indexing on an input of zeros: half-width, sides, period, length.

    Args:
        task: its name; on the aligned form where it has one.
        length: digits at first.

    Raises:
        ValueError: the task's output is in rows.
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
        controls = [self.w, self.sides, self.period, self.length]
        results = [self.picture, self.phases]
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
        of_source = _table("source token", source, CyclicColumns(2, period).phases(columns), period)
        self.phases.value = of_source + _table("decoder input", fed, steps % period, period)


def _table(name: str, tokens: str, phases: torch.Tensor, period: int) -> str:
    """Tokens and the coloured phase of each."""
    cells = [(phase, shade(phase, max(1, period - 1))) for phase in phases.tolist()]
    return table([[name, *tokens], ["phase", *cells]])
