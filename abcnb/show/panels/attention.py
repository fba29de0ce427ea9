"""The attention panel: what a trained model writes for an input, and where each of its steps looks."""

from dataclasses import dataclass
from html import escape

import ipywidgets as widgets
import torch

from abcnb.attention import record
from abcnb.decoding import write_outputs
from abcnb.machine import pick_device
from abcnb.model import Transformer
from abcnb.show.panels.drawing import HeadMaps
from abcnb.show.panels.panel import Panel, dropdown, picture, slider, text_field
from abcnb.show.panels.tasks import example_input
from abcnb.show.style import COLOURMAP
from abcnb.study.runs import Run
from abcnb.tasks import Batch, Task
from abcnb.tokens import decode
from abcnb.training_data import TrainingData

MOST_STEPS = 300  # of an output whose whole attention is kept


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


def answer(model: Transformer, data: TrainingData, text: str) -> Answer:
    """Decode an input greedily and record the attention of every step.

    Args:
        model: on any device.
        data: what it was trained on; operands are padded to its width at least, as in tests.
        text: the input, in the task's own form.

    Raises:
        ValueError: the text is not an input of the task.
    """
    batch = data.task.batch(data.task.widened(data.task.parse(text), data.width), data.form)
    steps = batch.target.shape[1]
    if steps > MOST_STEPS:
        raise ValueError(
            f"expected an output of at most {MOST_STEPS} tokens, got {steps:,}; predict() has no such limit"
        )
    written = write_outputs(model, batch)
    recording = record(model, Batch(batch.source.to(model.device), written, batch.stream.to(model.device)))
    return Answer(
        decode(batch.source[0]),
        decode(written[0]),
        decode(batch.target[0]),
        [layer[0].cpu() for layer in recording.cross_attention],
        [layer[0].cpu() for layer in recording.self_attention],
    )


class AttentionPanel(Panel):
    """An input typed by the reader, what the model writes for it, and the attention of every step.

    Args:
        model: a trained model, or the run of one, which brings its own data.
        data: what the model was trained on: its task, form and width.
        text: the first input; empty for an example.
        device: `auto`, `cpu` or `cuda`, for the model of a run.

    Attributes:
        answer: to the input that was last taken.
        steps, picture: the table of written tokens and the maps.

    Raises:
        ValueError: a model without its data, or a decoder-only model.
    """

    def __init__(
        self, model: Transformer | Run, data: TrainingData | None = None, text: str = "", device: str = "auto"
    ):
        described = "Attention panel"
        if isinstance(model, Run):
            e = model.experiment
            described += f": {e.task}, {e.method}, seed {e.seed}"
            model, data = model.model(pick_device(device)), e.data()
        if data is None:
            raise ValueError("expected the data that the model was trained on, as attention_panel(model, data)")
        if model.config.architecture != "encoder-decoder":
            raise ValueError("expected an encoder-decoder, whose steps look at a source, got a decoder-only model")
        self.model, self.data, self.task = model, data, data.task
        self.answer: Answer | None = None
        self._answered, self._drawn = None, None
        self._maps: HeadMaps | None = None
        self.input = text_field("input", text or example_input(self.task))
        layers = range(model.config.decoder_layers)
        self.layer = dropdown("layer", [(str(layer + 1), layer) for layer in layers], layers[-1])
        self.head = dropdown("head", ["all", *range(model.config.heads)], "all")
        self.step = slider(widgets.IntSlider, "output step", value=0, min=0, max=1)
        self.steps, self.picture = widgets.HTML(), picture()
        controls = [self.input, self.layer, self.head, self.step]
        super().__init__(controls, [self.steps, self.picture], described)
        self.start(controls, [self.picture])

    def redraw(self) -> str:
        if self.input.value != self._answered:
            self.answer = answer(self.model, self.data, self.input.value)
            self._answered, self._drawn = self.input.value, None
            self.step.max = len(self.answer.written) - 1
        asked = (self.layer.value, self.head.value)
        if asked != self._drawn:
            self._draw_maps()
            self._drawn = asked
        self.steps.value = steps_table(self.answer, self.step.value, self.task)
        self.picture.value = self._maps.mark(self.step.value)
        return ""

    def _draw_maps(self) -> None:
        found, layer = self.answer, self.layer.value
        rows = len(found.written)
        heads = range(self.model.config.heads) if self.head.value == "all" else [self.head.value]
        self._maps = HeadMaps(heads, min(2.6, max(1.0, 0.125 * rows)), COLOURMAP, "attention weight")
        verdict = "right" if found.written == found.label else "wrong"
        text = self._answered if len(self._answered) <= 45 else self._answered[:44] + "…"
        read = self.task.read(found.written)[:45]
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
