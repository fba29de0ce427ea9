"""The panels of a trained model: what it writes for an input, and where each of its steps looks."""

from itertools import zip_longest

import ipywidgets as widgets

from abcnb.model.attention import record
from abcnb.model.decoding import write_outputs
from abcnb.model.transformer import Transformer
from abcnb.show.panels.drawing import head_maps, of_heads
from abcnb.show.panels.panel import Panel, control, picture, table, text_field
from abcnb.show.panels.tasks import example_input
from abcnb.show.style import KEPT, PALETTE
from abcnb.tasks.task import Batch
from abcnb.tasks.tokens import decode
from abcnb.tasks.training_data import TrainingData

MOST_STEPS = 300  # most steps of an output whose whole attention is kept
MOST_TOKENS = 2000  # most tokens written in rows for one input, in a few seconds
WRONG, WRONG_IN_ROWS = "#f6d5c0", PALETTE[3]


class AttentionPanel(Panel):
    """An input typed by the reader, what the model writes for it, and the attention of every step.

    Args:
        model: a trained encoder-decoder; ValueError for a decoder-only model.
        data: what it was trained on; operands are padded to at least its width, as in tests.
        text: the first input, in the task's own form; empty for an example.
    """

    def __init__(self, model: Transformer, data: TrainingData, text: str = ""):
        if model.config.architecture != "encoder-decoder":
            raise ValueError("expected an encoder-decoder, whose steps look at a source, got a decoder-only model")
        self.model, self.data, self._taken = model, data, None
        layers = model.config.decoder_layers
        self.input = text_field(text or example_input(data.task))
        self.layer = control(widgets.Dropdown, "layer", options=[*range(layers)], value=layers - 1)
        self.head = control(widgets.Dropdown, "head", options=["all", *range(model.config.heads)])
        self.step = control(widgets.IntSlider, "output step", value=0, min=0, max=1)
        self.steps, self.picture = widgets.HTML(), picture()
        controls, results = [self.input, self.layer, self.head, self.step], [self.steps, self.picture]
        described = f"Attention panel: {data.task.name}, what the model writes and where it looks"
        super().__init__(controls, results, described)

    def redraw(self) -> None:
        if self.input.value != self._taken:
            self._take(self.input.value)
        heads = range(self.model.config.heads) if self.head.value == "all" else [self.head.value]
        text = self._taken if len(self._taken) <= 45 else self._taken[:44] + "…"
        right = [a == b for a, b in zip(self.written, self.label, strict=True)]
        read, true = map(self.data.task.read, (self.written, self.label))
        said = f"{text} → {read[:45]} ({'right' if all(right) else 'wrong'})"
        title = f"layer {self.layer.value}: {said}; outlined: the output step"
        tall = round(min(260, max(100, 12.5 * len(self.written))) * (1.6 if len(heads) == 1 else 1))
        maps = (layers[self.layer.value][0, list(heads)].cpu() for layers in self.attention)
        tokens = self.source, "$" + self.written[:-1], self.written
        look = {"weights": True, "tall": tall, "step": self.step.value}
        self.picture.value = head_maps(*maps, of_heads(heads), title, *tokens, **look)
        # Wrong tokens are marked by ✗, the current step by its colour.
        verdict = "correct" if all(right) else f"wrong at {right.count(False)} of {len(right)} steps"
        colours = [None if good else WRONG for good in right]
        colours[self.step.value] = KEPT
        marks = ["✓" if good else "✗" for good in right]
        rows = {"step": range(len(right)), "written": self.written, "label": self.label, "right": marks}
        steps = [[name, *zip(texts, colours, strict=True)] for name, texts in rows.items()]
        self.steps.value = table([["read", read], ["true", true], ["", verdict]]) + table(steps)

    def _take(self, text: str) -> None:
        """Decode an input greedily and record the attention of every step."""
        task, data = self.data.task, self.data
        batch = task.batch(task.widened(task.parse(text), data.width), data.form)
        steps = batch.target.shape[1]
        if steps > MOST_STEPS:
            raise ValueError(
                f"expected an output of at most {MOST_STEPS} tokens, got {steps:,}; predict() has no such limit"
            )
        device, written = self.model.device, write_outputs(self.model, batch)
        recording = record(self.model, Batch(batch.source.to(device), written, batch.stream.to(device)))
        self.attention = recording.cross_attention, recording.self_attention
        self.source, self.written, self.label = (decode(ids[0]) for ids in (batch.source, written, batch.target))
        self._taken, self.step.max = text, steps - 1


class RowsPanel(Panel):
    """An input typed by the reader, and each row that the model writes, units first, with its wrong digits marked.

    Args:
        model: of a task whose output is in rows; ValueError for any other.
        data: what it was trained on.
        text: the first input, in the task's own form.
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
        if steps > MOST_TOKENS:
            raise ValueError(f"expected an output of at most {MOST_TOKENS:,} tokens here, got one of {steps:,}")
        written, true = decode(write_outputs(self.model, batch)[0]), decode(batch.target[0])
        pairs = list(zip_longest(*map(self.task.split_rows, (written, true)), fillvalue=""))
        names, rows = self.task.row_names, []
        for number, pair in enumerate(pairs):
            cells = [(a, None if a == b else WRONG_IN_ROWS) for a, b in zip_longest(*pair, fillvalue=" ")]
            rows.append([f"{names[number % len(names)]} {number // len(names) + 1}", *cells])
        wrong = sum(row != right for row, right in pairs)
        verdict = f"{wrong} of {len(pairs)} rows wrong" if wrong else f"all {len(pairs)} rows right"
        answers = [["written", self.task.read(written)], ["true", self.task.read(true)], ["", verdict]]
        self.written.value = table(rows) + table(answers)
