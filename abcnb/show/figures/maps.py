"""Maps: attention weights, biases and what source columns are."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from abcnb.coordinates import NO_PLACE, Stream
from abcnb.show.style import CLOSED, COLOURMAP, KEPT, themed


def _head_grid(heads: int, width: float, height: float) -> tuple[Figure, np.ndarray]:
    columns = min(4, heads)
    rows = -(-heads // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(width * columns, height * rows), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[heads:]:
        axis.axis("off")
    return figure, axes


def _tick_every(axis, source: str | None, columns: int, rows: int) -> None:
    if source and columns <= 30:
        axis.set_xticks(np.arange(columns) + 0.5, list(source), rotation=0, fontsize=7 if columns <= 20 else 6)
    else:
        step = max(1, columns // 6)
        axis.set_xticks(np.arange(0, columns, step) + 0.5, range(0, columns, step), rotation=0)
    step = max(1, rows // 8)
    axis.set_yticks(np.arange(0, rows, step) + 0.5, range(0, rows, step), rotation=0)


def _rows_are(columns_are: str) -> str:
    """In one stream a row is a token too, the one before the token that it writes."""
    return "token" if columns_are == "token" else "output step"


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
        title: of the figure.
        source: the source's characters, or one stand-in per column, as tick labels.
        columns_are: label of the columns.
        marked: cells to outline, as (row, column).
    """
    heads, rows, columns = attention.shape
    figure, axes = _head_grid(heads, min(max(2.4, 0.16 * columns), 2.9), min(max(2.0, 0.18 * rows), 2.6))
    for head, axis in zip(range(heads), axes.flat, strict=False):
        last = head == heads - 1
        sns.heatmap(
            attention[head].numpy(),
            vmin=0,
            vmax=1,
            cmap=COLOURMAP,
            ax=axis,
            cbar=last,
            cbar_kws={"label": "weight"},
        )
        for row, column in marked:
            axis.add_patch(Rectangle((column, row), 1, 1, fill=False, color=KEPT, linewidth=1))
        _tick_every(axis, source, columns, rows)
        axis.set(title=f"head {head}", xlabel=columns_are, ylabel=_rows_are(columns_are))
    figure.suptitle(title)
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
        title: of the figure.
        source: tick labels, one character per column.
        columns_are: label of the columns.
        first_head: the number of the first head shown.
    """
    heads, rows, columns = bias.shape
    values = bias.numpy().copy()
    finite = np.isfinite(values)
    values[~finite] = np.nan
    low = float(np.nanmin(values)) if finite.any() else 0.0
    ticked = source and columns <= 30  # one by one, which takes room
    width = 0.13 * columns + 1.2 if ticked else 0.05 * columns + 1.4
    figure, axes = _head_grid(heads, max(2.4, width), max(2.0, 0.045 * rows + 1.2))
    for head, axis in zip(range(heads), axes.flat, strict=False):
        scale = head == heads - 1 and low < 0  # a window is open or closed: nothing to grade
        axis.set_facecolor(CLOSED)
        sns.heatmap(
            values[head], vmin=low or -1, vmax=0, cmap=COLOURMAP, ax=axis, cbar=scale, cbar_kws={"label": "bias"}
        )
        _tick_every(axis, source, columns, rows)
        axis.set(title=f"head {first_head + head}", xlabel=columns_are, ylabel=_rows_are(columns_are))
    figure.suptitle(title)
    return figure


@themed
def score_maps(matrices: dict[str, torch.Tensor], title: str) -> Figure:
    """What several schemes add to the attention scores of one head, one map each, each on its own scale.

    Args:
        matrices: name to [rows, columns], −inf where closed.
        title: of the figure.
    """
    figure, axes = plt.subplots(
        1, len(matrices), figsize=(3.9 * len(matrices), 2.9), squeeze=False, layout="constrained"
    )
    for axis, (name, matrix) in zip(axes[0], matrices.items(), strict=True):
        values = matrix.numpy().copy()
        values[~np.isfinite(values)] = np.nan
        axis.set_facecolor(CLOSED)
        sns.heatmap(values, cmap=COLOURMAP, ax=axis, cbar_kws={"label": "added to the score"})
        _tick_every(axis, None, matrix.shape[1], matrix.shape[0])
        axis.set(title=name, xlabel="column", ylabel="output step")
    figure.suptitle(title)
    return figure


@themed
def offset_maps(panels: dict[str, pd.DataFrame], title: str) -> Figure:
    """Attention weights by how far the token is from the step, in one counter and in the other, one map per panel.

    Args:
        panels: by title, the weights from 0 to 1; index and columns, with their names as labels, are offsets in the two
            counters.
        title: of the figure.
    """
    shapes = [table.shape for table in panels.values()]
    width = 0.32 * sum(columns for _, columns in shapes)
    height = 0.32 * max(rows for rows, _ in shapes) + 1.4
    figure, axes = plt.subplots(
        1, len(panels), figsize=(width, height), squeeze=False, layout="constrained",
        width_ratios=[columns for _, columns in shapes],
    )  # fmt: skip
    for axis, (name, table) in zip(axes.flat, panels.items(), strict=True):
        last = axis is axes.flat[-1]
        sns.heatmap(
            table, vmin=0, vmax=1, cmap=COLOURMAP, linewidths=1, square=True, ax=axis, cbar=last,
            cbar_kws={"label": "weight", "shrink": 0.8},
        )  # fmt: skip
        axis.set_facecolor(CLOSED)
        axis.set_title(name)
        axis.tick_params(rotation=0, length=0)
    figure.suptitle(title)
    return figure


@themed
def source_layout(source: str, stream: Stream) -> Figure:
    """What each source column is: its token, its kind, and its place seen from each operand.

    Args:
        source: the source's characters, one per column.
        stream: its coordinates.
    """
    places = {}
    for operand in stream.operands:
        index = torch.arange(-1, stream.width + 1)
        row = torch.full((len(source),), NO_PLACE)
        row[operand.tokens([index])] = index
        name = f"place in {operand.name}" if len(stream.operands) > 1 else "place"
        places[name] = np.where(row == NO_PLACE, np.nan, row.numpy())
    digits = np.where(stream.own_places[: len(source)].numpy() > NO_PLACE, 1.0, np.nan)
    figure, axes = plt.subplots(
        1 + len(places), 1, figsize=(max(5.0, 0.52 * len(source)), 0.5 * len(places) + 1.1), layout="constrained"
    )
    for axis, (name, row) in zip(axes, {"kind": digits, **places}.items(), strict=True):
        axis.set_facecolor("0.93")
        texts = ["" if np.isnan(value) else "#" if name == "kind" else str(int(value)) for value in row]
        sns.heatmap(
            row[None], annot=np.array([texts]), fmt="", cmap="cividis", vmin=-1.5, vmax=stream.width + 1, cbar=False,
            linewidths=1, linecolor="white", ax=axis, annot_kws={"fontsize": 9},
        )  # fmt: skip
        axis.set_xticks([])
        axis.set_yticks([0.5], [name], rotation=0)
    for column in np.flatnonzero(np.isnan(digits)):
        axes[0].text(column + 0.5, 0.5, "·", ha="center", va="center", fontsize=9, color="0.3")
    axes[0].xaxis.tick_top()
    axes[0].set_xticks(np.arange(len(source)) + 0.5, list(source), fontsize=11, family="monospace")
    return figure
