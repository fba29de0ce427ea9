"""What the panels draw: maps of all heads, and curves.

`pyplot` is left alone: its current figure belongs to the reader, and a panel may draw from a thread.
"""

import io
import textwrap
import threading
from collections.abc import Sequence

import matplotlib
import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from abcnb.show.figures.accuracy import draw_accuracy
from abcnb.show.style import CLOSED, COLOURMAP, KEPT

WIDTH = 9.6  # inches of the maps' figure
_COLOURS = matplotlib.colormaps[COLOURMAP].with_extremes(bad=CLOSED)
_drawing = threading.Lock()


def to_png(figure: Figure) -> bytes:
    """Draw a figure and return it as PNG."""
    buffer = io.BytesIO()
    with _drawing:
        figure.savefig(buffer, format="png", dpi=100, pil_kwargs={"compress_level": 1})
    return buffer.getvalue()


def head_maps(
    cross: torch.Tensor,
    self_: torch.Tensor,
    heads: Sequence[int],
    title: str,
    source: str,
    fed: str = "",
    written: str = "",
    weights: bool = False,
    tall: float = 1.15,
    step: int | None = None,
) -> Figure:
    """Maps of cross- and self-attention, one per head, or of biases, whose closed cells (−inf) are grey.

    All of it is in one coordinate system, inches from the upper left corner, which draws in a third of the time that
    sixteen axes with ticks take.

    Args:
        cross: [all heads, rows, columns].
        self_: [all heads, rows, rows].
        heads: those drawn; a single one has its two maps side by side.
        title: of the figure.
        source, fed, written: tokens that label the source's columns, the steps attended to and the steps that write;
            numbers where there are none, or no room.
        weights: from 0 to 1, where they are not biases.
        tall: height of a map, in inches.
        step: the row outlined on every map; None for none.
    """
    single = len(heads) == 1
    across = 2 if single else min(4, len(heads))
    gap = 0.75 if single else 0.2
    wide = (WIDTH - 1.5 - gap * (across - 1)) / across
    block = -(-len(heads) // across) * (tall + 0.32) + 0.3
    height = 0.65 + block * (1 if single else 2)
    figure = Figure(figsize=(WIDTH, height), facecolor="white")
    paper = figure.add_axes((0, 0, 1, 1))
    paper.axis("off")
    lowest = min(float(part[torch.isfinite(part)].min()) for part in (cross, self_))
    low, high = (0, 1) if weights else (lowest or -1, 0)
    parts = {"cross": (cross, source, "source column"), "self": (self_, fed, "step attended to")}
    for number, (name, (values, tokens, label)) in enumerate(parts.items()):
        top = 0.65 + (0 if single else number * block)
        for place, head in enumerate(heads):
            row, column = (0, number) if single else divmod(place, across)
            left, upper = 0.7 + column * (wide + gap), top + row * (tall + 0.32)
            cells = np.ma.masked_invalid(values[head].numpy())
            extent = (left, left + wide, upper + tall, upper)
            image = paper.imshow(cells, cmap=_COLOURS, vmin=low, vmax=high, aspect="auto", extent=extent)
            paper.text(left + wide / 2, upper - 0.06, f"{name}-attention, head {head}", ha="center", fontsize=9)
            if step is not None:
                side = tall / len(cells)
                outline = Rectangle((left, upper + step * side), wide, side, fill=False, color=KEPT, linewidth=2)
                paper.add_patch(outline)
            if place + across >= len(heads):
                _label_columns(paper, extent, tokens, cells.shape[1], label)
            if column == 0 or single:
                _label_rows(paper, extent, written, len(cells))
        if (weights or lowest < 0) and not (single and number):
            beside = (1 - 0.7 / WIDTH, 1 - (upper + tall) / height, 0.12 / WIDTH, (upper + tall - top) / height)
            figure.colorbar(image, cax=figure.add_axes(beside), label="attention weight" if weights else "bias")
    paper.set(xlim=(0, WIDTH), ylim=(height, 0))
    figure.suptitle(textwrap.fill(title, 105), y=1 - 0.12 / height, fontsize=10, parse_math=False)
    return figure


def _label_columns(paper: Axes, extent: tuple, tokens: str, number: int, label: str) -> None:
    left, right, lower, _ = extent
    cell, style = (right - left) / number, {"ha": "center", "va": "top"}
    for i, text in _labels(tokens, number, cell >= 0.065):
        where = left + (i + 0.5) * cell
        paper.text(where, lower + 0.04, text, fontsize=7.5, family="monospace", parse_math=False, **style)
    paper.text((left + right) / 2, lower + 0.18, label, fontsize=9, **style)


def _label_rows(paper: Axes, extent: tuple, tokens: str, number: int) -> None:
    left, _, lower, upper = extent
    cell, style = (lower - upper) / number, {"va": "center", "ha": "right"}
    for i, text in _labels(tokens, number, cell >= 0.115):
        where = upper + (i + 0.5) * cell
        paper.text(left - 0.05, where, text, fontsize=7.5, family="monospace", parse_math=False, **style)
    paper.text(left - 0.28, (lower + upper) / 2, "output step", rotation=90, fontsize=9, **style)


def _labels(tokens: str, number: int, room: bool) -> list[tuple[int, str]]:
    """Every token where there is room, else about four numbers."""
    if room and len(tokens) == number:
        return list(enumerate(tokens))
    return [(i, str(i)) for i in range(0, number, max(1, number // 4))]


def accuracy_figure(table: pd.DataFrame, train_length: int) -> Figure:
    """Percent exact match against length, one line per setting, its name below; arguments as of `draw_accuracy`."""
    figure = Figure(figsize=(8.5, 3.3 + 0.2 * table["method"].nunique()), layout="constrained")
    axis = figure.subplots()
    draw_accuracy(axis, table, train_length)
    axis.grid(axis="y", color="0.9")
    figure.legend(loc="outside lower left", frameon=False, fontsize=9)
    return figure
