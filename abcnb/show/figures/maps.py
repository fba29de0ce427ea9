"""Maps: attention weights, biases and what source columns are."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from abcnb.lines.coordinates import NO_PLACE, Stream
from abcnb.show.style import CLOSED, COLOURMAP, KEPT, row_of_axes, themed

MOST_LABELLED = 30  # columns that are labelled one by one


def _draw_map(axis: Axes, matrix: torch.Tensor, source: str | None, bar: str, **limits) -> None:
    """A heat map with few ticks, or the source's tokens; what is −inf is grey; `bar` labels the colour bar."""
    axis.set_facecolor(CLOSED)
    values, (rows, columns) = matrix.numpy(), matrix.shape
    labelled = source and columns <= MOST_LABELLED
    labels = {"xticklabels": list(source) if labelled else max(1, columns // 6), "yticklabels": max(1, rows // 8)}
    bars = {"cbar": bool(bar), "cbar_kws": {"label": bar}}
    sns.heatmap(values, mask=~np.isfinite(values), cmap=COLOURMAP, ax=axis, **labels, **bars, **limits)
    axis.tick_params(rotation=0)
    if labelled:
        axis.tick_params("x", labelsize=7 if columns <= 20 else 6)


def _head_maps(
    values: torch.Tensor, title: str, source: str | None, columns_are: str, width: float, height: float,
    bar: str, first_head: int = 0, **limits,
) -> Figure:  # fmt: skip
    """A map for every head, four in a row; in one stream a row is a token too, the one before the token it writes."""
    across = min(4, len(values))
    down = -(-len(values) // across)
    figure = plt.figure(figsize=(width * across, height * down), layout="constrained")
    for head, matrix in enumerate(values):
        axis = figure.add_subplot(down, across, head + 1)
        _draw_map(axis, matrix, source, bar if head == len(values) - 1 else "", **limits)
        rows_are = "token" if columns_are == "token" else "output step"
        axis.set(title=f"head {first_head + head}", xlabel=columns_are, ylabel=rows_are)
    figure.suptitle(title)
    return figure


@themed
def attention_maps(
    attention: torch.Tensor,
    title: str,
    source: str | None = None,
    columns_are: str = "source column",
    marked: Sequence[tuple[int, int]] = (),
) -> Figure:
    """Heat maps of attention weights, one per head, on one colour scale.

    Args:
        attention: [heads, rows, columns], weights from 0 to 1.
        source: the source's characters, or one stand-in per column, as tick labels.
        columns_are: label of the columns.
        marked: cells to outline, as (row, column).
    """
    _, rows, columns = attention.shape
    size = np.clip((0.16 * columns, 0.18 * rows), (2.4, 2.0), (2.9, 2.6))
    figure = _head_maps(attention, title, source, columns_are, *size, "weight", vmin=0, vmax=1)
    for axis in figure.axes[: len(attention)]:
        for row, column in marked:
            axis.add_patch(Rectangle((column, row), 1, 1, fill=False, color=KEPT, linewidth=1))
    return figure


@themed
def bias_maps(
    bias: torch.Tensor,
    title: str,
    source: str | None = None,
    columns_are: str = "source column",
    first_head: int = 0,
) -> Figure:
    """Attention biases, one panel per head: closed cells grey, open ones coloured by their bias.

    Args:
        bias: [heads, rows, columns], −inf where closed.
        source: tick labels, one character per column.
        columns_are: label of the columns.
        first_head: the number of the first head shown.
    """
    _, rows, columns = bias.shape
    low = bias[bias.isfinite()].amin().item()
    labelled = source and columns <= MOST_LABELLED
    width = max(2.4, 0.13 * columns + 1.2 if labelled else 0.05 * columns + 1.4)
    bar = "bias" if low < 0 else ""  # a window is open or closed: nothing to grade
    size = width, max(2.0, 0.045 * rows + 1.2)
    return _head_maps(bias, title, source, columns_are, *size, bar, first_head, vmin=low or -1, vmax=0)


@themed
def score_maps(matrices: dict[str, torch.Tensor], title: str) -> Figure:
    """What several schemes add to the attention scores of one head, one map each, each on its own scale.

    Args:
        matrices: name to [rows, columns], −inf where closed.
    """
    figure, axes = row_of_axes(matrices, 3.9, 2.9)
    for name, axis in axes.items():
        _draw_map(axis, matrices[name], None, "added to the score")
        axis.set(xlabel="column", ylabel="output step")
    figure.suptitle(title)
    return figure


@themed
def offset_maps(panels: dict[str, pd.DataFrame], title: str) -> Figure:
    """Attention weights by how far the token is from the step, in one counter and in the other, one map per panel.

    Args:
        panels: by title, the weights from 0 to 1; index and columns, with their names as labels, are offsets in the two
            counters.
    """
    widths = [table.shape[1] for table in panels.values()]
    height = 0.32 * max(len(table) for table in panels.values()) + 1.4
    figure, axes = row_of_axes(panels, 0.32 * sum(widths) / len(widths), height, width_ratios=widths)
    for name, axis in axes.items():
        last = axis is figure.axes[len(panels) - 1]
        sns.heatmap(
            panels[name], vmin=0, vmax=1, cmap=COLOURMAP, linewidths=1, square=True, ax=axis, cbar=last,
            cbar_kws={"label": "weight", "shrink": 0.8},
        )  # fmt: skip
        axis.set_facecolor(CLOSED)
        axis.tick_params(rotation=0, length=0)
    figure.suptitle(title)
    return figure


def operand_places(stream: Stream) -> dict[str, list[int]]:
    """For each operand by name, every source column's place in it, `NO_PLACE` outside."""
    found, index = {}, torch.arange(-1, stream.width + 1)
    for operand in stream.operands:
        places = torch.full((stream.source,), NO_PLACE)
        places[operand.tokens([index])] = index
        found[operand.name] = places.tolist()
    return found


@themed
def source_layout(source: str, stream: Stream) -> Figure:
    """What each source column is: its token, its kind, and its place seen from each operand.

    Args:
        source: the source's characters, one per column.
        stream: its coordinates.
    """
    places = operand_places(stream)
    digits = (stream.own_places[: len(source)] > NO_PLACE).tolist()
    rows = {"kind": [1 if digit else NO_PLACE for digit in digits]}
    rows |= {f"place in {name}" if len(places) > 1 else "place": row for name, row in places.items()}
    values = np.array(list(rows.values()))
    texts = np.vstack([["#"] * len(source), values[1:]])
    size = max(5.0, 0.52 * len(source)), 0.5 * len(rows) + 0.6
    figure, axis = plt.subplots(figsize=size, layout="constrained")
    axis.set_facecolor("0.93")
    sns.heatmap(
        values, annot=texts, fmt="", mask=values == NO_PLACE, cmap="cividis", vmin=-1.5, vmax=stream.width + 1,
        cbar=False, linewidths=1, linecolor="white", ax=axis, annot_kws={"fontsize": 9},
        xticklabels=list(source), yticklabels=list(rows),
    )  # fmt: skip
    for column in np.flatnonzero(~np.array(digits)):
        axis.text(column + 0.5, 0.5, "·", ha="center", va="center", fontsize=9, color="0.3")
    axis.xaxis.tick_top()
    axis.tick_params("x", labelsize=11, labelfontfamily="monospace")
    axis.tick_params("y", rotation=0)
    return figure
