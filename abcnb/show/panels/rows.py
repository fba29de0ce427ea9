"""The rows panel: an output in rows, such as a product, as a model writes it down."""

from itertools import zip_longest

import ipywidgets as widgets

from abcnb.decoding import write_outputs
from abcnb.model import Transformer
from abcnb.rows import RowTask
from abcnb.show.panels.drawing import cell_rows, to_png
from abcnb.show.panels.panel import Panel, picture, table, text_field
from abcnb.show.style import PALETTE
from abcnb.tokens import decode
from abcnb.training_data import TrainingData

MOST_STEPS = 2000  # tokens that are written for one input, a few seconds
MOST_ROWS, MOST_COLUMNS = 24, 48  # that are drawn
WRONG = PALETTE[3]


def written_rows(model: Transformer, task: RowTask, text: str) -> tuple[str, str]:
    """What a model writes for an input typed in the task's own form, and what it should write.

    Raises:
        ValueError: no input of the task, or one whose output has more than `MOST_STEPS` tokens.
    """
    batch = task.batch(task.parse(text))
    steps = batch.target.shape[1]
    if steps > MOST_STEPS:
        raise ValueError(f"expected an output of at most {MOST_STEPS:,} tokens here, got one of {steps:,}")
    return decode(write_outputs(model, batch)[0]), decode(batch.target[0])


class RowsPanel(Panel):
    """An input typed by the reader, and each row that the model writes, with its wrong digits marked.

    Args:
        model: of a task whose output is in rows.
        data: what it was trained on.
        text: the first input, in the task's own form.

    Attributes:
        picture, table: the rows, and the answer.

    Raises:
        ValueError: the task's output is not in rows.
    """

    def __init__(self, model: Transformer, data: TrainingData, text: str):
        if not isinstance(data.task, RowTask):
            raise ValueError(f"expected a task whose output is in rows, got {data.task.name}")
        self.model, self.task = model, data.task
        self.input = text_field("input", text)
        self.picture, self.table = picture(), widgets.HTML()
        super().__init__([self.input], [self.picture, self.table], f"Rows panel: {text} written out")
        self.start([self.input], [self.picture])

    def redraw(self) -> str:
        written, true = written_rows(self.model, self.task, self.input.value)
        pairs = list(zip_longest(*map(self.task.split_rows, (written, true)), fillvalue=""))
        columns, wrong = max(len(row) for pair in pairs for row in pair), sum(row != right for row, right in pairs)
        drawn = len(pairs) <= MOST_ROWS and columns <= MOST_COLUMNS
        self.picture.layout.display = None if drawn else "none"
        if drawn:
            names, kinds = self.task.row_names, len(self.task.row_names)
            rows = {f"{names[n % kinds]} {n // kinds + 1}": _cells(*pair, columns) for n, pair in enumerate(pairs)}
            self.picture.value = to_png(cell_rows(rows, columns, {"wrong": WRONG} if wrong else None))
        verdict = f"{wrong} of {len(pairs)} rows wrong" if wrong else f"all {len(pairs)} rows right"
        answers = [("written", self.task.read(written)), ("true", self.task.read(true)), ("", verdict)]
        self.table.value = table(["", "units last"], answers, 2)
        return "" if drawn else f"Its {len(pairs)} rows of up to {columns} digits are not drawn."


def _cells(row: str, true: str, columns: int) -> tuple[list[str], list]:
    """The texts and colours of a row's cells, units first."""
    pairs = list(zip_longest(row.ljust(columns), true.ljust(columns), fillvalue=" "))
    return [a for a, _ in pairs], [None if a == b else WRONG for a, b in pairs]
