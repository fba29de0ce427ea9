"""What the panels draw: maps of all heads, and curves.

A move of a slider changes cells and a title. So a figure without them, the axes and their labels, is drawn once and
kept, and a redraw pastes cells into it, which takes a frame instead of a fifth of a second. `pyplot` is left alone: its
current figure belongs to the reader, and a panel may draw from a thread.
"""

import io
import textwrap
import threading
from collections.abc import Sequence
from functools import lru_cache

import matplotlib
import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont
from PIL import Image, ImageDraw, ImageFont

from abcnb.show.figures.accuracy import draw_accuracy
from abcnb.show.style import CLOSED, COLOURMAP, KEPT, nested_styles

WIDTH, DPI = 9.6, 100  # inches of the maps' figure, and pixels of an inch
_COLOURS = matplotlib.colormaps[COLOURMAP].with_extremes(bad=CLOSED)
_drawing = threading.Lock()


def to_png(figure: Figure) -> bytes:
    """Draw a figure and return it as PNG."""
    buffer = io.BytesIO()
    with _drawing:
        figure.savefig(buffer, format="png", dpi=DPI, pil_kwargs={"compress_level": 1})
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
) -> bytes:
    """Maps of cross- and self-attention, one per head, or of biases, whose closed cells (−inf) are grey, as PNG.

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
    lowest = min(float(part[torch.isfinite(part)].min()) for part in (cross, self_))
    low, high = (0.0, 1.0) if weights else (lowest or -1.0, 0.0)
    bar = (low, high, "attention weight" if weights else "bias") if weights or lowest < 0 else None
    parts = (("cross", source, tuple(cross.shape[1:])), ("self", fed, tuple(self_.shape[1:])))
    frame, boxes = _frame(parts, tuple(heads), written, tall, bar)
    picture, norm = frame.copy(), Normalize(low, high)
    pen = ImageDraw.Draw(picture)
    for (number, head), (left, top, right, bottom) in boxes.items():
        cells = np.ma.masked_invalid((cross, self_)[number][head].numpy())
        coloured = Image.fromarray(_COLOURS(norm(cells), bytes=True)[..., :3])
        picture.paste(coloured.resize((right - left, bottom - top), Image.Resampling.NEAREST), (left, top))
        if step is not None:
            side = (bottom - top) / len(cells)
            pen.rectangle((left, top + step * side, right, top + (step + 1) * side), outline=KEPT, width=2)
    font = ImageFont.truetype(findfont("DejaVu Sans"), 14)
    pen.text((picture.width / 2, 10), textwrap.fill(title, 105), "black", font, "ma", align="center")
    buffer = io.BytesIO()
    picture.save(buffer, "png", compress_level=1)
    return buffer.getvalue()


@lru_cache(maxsize=32)
def _frame(
    parts: tuple[tuple[str, str, tuple[int, int]], ...],
    heads: tuple[int, ...],
    written: str,
    tall: float,
    bar: tuple[float, float, str] | None,
) -> tuple[Image.Image, dict]:
    """The figure without cells and title, and where the cells go: left, top, right and bottom pixel of each map.

    All of it is in one coordinate system, inches from the upper left corner, which draws in a third of the time that
    sixteen axes with ticks take.
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
    boxes = {}
    for number, (name, tokens, (rows, columns)) in enumerate(parts):
        top = 0.65 + (0 if single else number * block)
        for place, head in enumerate(heads):
            row, column = (0, number) if single else divmod(place, across)
            left, upper = 0.7 + column * (wide + gap), top + row * (tall + 0.32)
            extent = (left, left + wide, upper + tall, upper)
            boxes[number, head] = tuple(round(DPI * inch) for inch in (left, upper, left + wide, upper + tall))
            paper.text(left + wide / 2, upper - 0.06, f"{name}-attention, head {head}", ha="center", fontsize=9)
            if place + across >= len(heads):
                label = "source column" if name == "cross" else "step attended to"
                _label_columns(paper, extent, tokens, columns, label)
            if column == 0 or single:
                _label_rows(paper, extent, written, rows)
        if bar and not (single and number):
            beside = (1 - 0.7 / WIDTH, 1 - (upper + tall) / height, 0.12 / WIDTH, (upper + tall - top) / height)
            colours = matplotlib.cm.ScalarMappable(Normalize(*bar[:2]), _COLOURS)
            drawn = figure.colorbar(colours, cax=figure.add_axes(beside))
            drawn.set_label(bar[2], fontsize=9, labelpad=2)
            drawn.ax.tick_params(labelsize=8, pad=1.5)
    paper.set(xlim=(0, WIDTH), ylim=(height, 0))
    return Image.open(io.BytesIO(to_png(figure))).convert("RGB"), boxes


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
    draw_accuracy(axis, table, train_length, nested_styles(table["method"]))
    axis.grid(axis="y", color="0.9")
    figure.legend(loc="outside lower left", frameon=False, fontsize=9)
    return figure
