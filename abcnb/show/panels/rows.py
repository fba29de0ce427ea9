"""The rows panel: an output in rows, such as a product, as a model writes it down."""

from itertools import zip_longest

import ipywidgets as widgets

from abcnb.model.decoding import write_outputs
from abcnb.model.transformer import Transformer
from abcnb.show.panels.panel import Panel, table, text_field
from abcnb.show.style import PALETTE
from abcnb.tasks.tokens import decode
from abcnb.tasks.training_data import TrainingData

MOST_STEPS = 2000  # tokens that are written for one input, a few seconds
WRONG = PALETTE[3]


class RowsPanel(Panel):
    """An input typed by the reader, and each row that the model writes, units first, with its wrong digits marked.

    Args:
        model: of a task whose output is in rows.
        data: what it was trained on.
        text: the first input, in the task's own form.

    Raises:
        ValueError: the task's output is not in rows.
    """

    def __init__(self, model: Transformer, data: TrainingData, text: str):
        if not data.task.in_rows:
            raise ValueError(f"expected a task whose output is in rows, got {data.task.name}")
        self.model, self.task = model, data.task
        self.input, self.written = text_field(text), widgets.HTML()
        super().__init__([self.input], [self.written], f"Rows panel: {text} written out")

    def redraw(self) -> None:
        batch = self.task.batch(self.task.parse(self.input.value))
        steps = batch.target.shape[1]
        if steps > MOST_STEPS:
            raise ValueError(f"expected an output of at most {MOST_STEPS:,} tokens here, got one of {steps:,}")
        written, true = decode(write_outputs(self.model, batch)[0]), decode(batch.target[0])
        pairs = list(zip_longest(*map(self.task.split_rows, (written, true)), fillvalue=""))
        names, rows = self.task.row_names, []
        for number, pair in enumerate(pairs):
            cells = [(a, None if a == b else WRONG) for a, b in zip_longest(*pair, fillvalue=" ")]
            rows.append([f"{names[number % len(names)]} {number // len(names) + 1}", *cells])
        wrong = sum(row != right for row, right in pairs)
        verdict = f"{wrong} of {len(pairs)} rows wrong" if wrong else f"all {len(pairs)} rows right"
        answers = [["written", self.task.read(written)], ["true", self.task.read(true)], ["", verdict]]
        self.written.value = table(rows) + table(answers)
