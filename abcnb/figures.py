"""One function a figure; each takes results, never models, and returns the matplotlib Figure."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
import torch
from matplotlib.figure import Figure

from abcnb.lines import DIRECTION_NAMES

sns.set_theme(context="notebook", style="white", palette="colorblind", font_scale=0.85)


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
    if source and columns <= 48:
        axis.set_xticks(np.arange(columns) + 0.5, list(source), rotation=0, fontsize=7)
    else:
        step = max(1, columns // 6)
        axis.set_xticks(np.arange(0, columns, step) + 0.5, range(0, columns, step), rotation=0)
    step = max(1, rows // 8)
    axis.set_yticks(np.arange(0, rows, step) + 0.5, range(0, rows, step), rotation=0)


def attention_maps(attention: torch.Tensor, title: str, source: str | None = None) -> Figure:
    """Heat maps of attention weights, one a head, on one colour scale.

    Args:
        attention: [heads, rows, columns], weights from 0 to 1.
        title: of the figure.
        source: the source's characters, or one stand-in a column, as tick labels.
    """
    heads, rows, columns = attention.shape
    figure, axes = _head_grid(heads, max(2.4, 0.16 * columns), max(2.0, 0.18 * rows))
    for head, axis in zip(range(heads), axes.flat, strict=False):
        last = head == heads - 1
        sns.heatmap(
            attention[head].numpy(),
            vmin=0,
            vmax=1,
            cmap="viridis",
            ax=axis,
            cbar=last,
            cbar_kws={"label": "weight"},
        )
        _tick_every(axis, source, columns, rows)
        axis.set(title=f"head {head}", xlabel="source column", ylabel="output step")
    figure.suptitle(title)
    return figure


def bias_maps(bias: torch.Tensor, title: str, source: str | None = None) -> Figure:
    """Attention biases, one panel a head: closed cells grey, open ones coloured by their bias.

    Args:
        bias: [heads, rows, columns], −inf where closed.
        title: of the figure.
        source: tick labels, one character a column.
    """
    heads, rows, columns = bias.shape
    values = bias.numpy().copy()
    finite = np.isfinite(values)
    values[~finite] = np.nan
    low = min(float(np.nanmin(values)) if finite.any() else 0.0, -1e-6)
    figure, axes = _head_grid(heads, max(2.4, 0.05 * columns + 1.4), max(2.0, 0.045 * rows + 1.2))
    for head, axis in zip(range(heads), axes.flat, strict=False):
        last = head == heads - 1
        axis.set_facecolor("0.85")
        sns.heatmap(values[head], vmin=low, vmax=0, cmap="cividis", ax=axis, cbar=last, cbar_kws={"label": "bias"})
        _tick_every(axis, source, columns, rows)
        axis.set(title=f"head {head}", xlabel="source column", ylabel="output step")
    figure.suptitle(title)
    return figure


def line_strengths(lines: pd.DataFrame, head: int, threshold: float | None = None) -> Figure:
    """The strength d of every line of one head against its offset, one panel a direction; kept lines marked.

    Args:
        lines: from `LineTable.frame()`.
        head: the head shown.
        threshold: κσ + μ, drawn as a dashed line.
    """
    mine = lines[lines["head"] == head]
    groups = list(mine.groupby(["direction", "segment"], sort=False))
    figure, axes = plt.subplots(
        1, len(groups), figsize=(2.8 * len(groups), 2.6), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, ((direction, segment), group) in zip(axes[0], groups, strict=True):
        dropped, kept = group[~group["kept"]], group[group["kept"]]
        axis.vlines(group["offset"], 0, group["strength"], color="0.7", linewidth=1)
        axis.plot(dropped["offset"], dropped["strength"], "o", color="0.55", markersize=3.5, label="dropped")
        axis.plot(kept["offset"], kept["strength"], "D", color="C1", markersize=6, label="kept")
        if threshold is not None:
            axis.axhline(threshold, linestyle="--", color="C0", linewidth=1, label="κσ + μ")
        operand = f", operand {segment + 1}" if direction else ""
        axis.set(title=f"{DIRECTION_NAMES[direction]}{operand}", xlabel="offset", ylabel="line sum")
    axes[0][0].legend(frameon=False, fontsize=7)
    figure.suptitle(f"head {head}")
    return figure


def accuracy_by_length(results: pd.DataFrame, train_length: int, title: str) -> Figure:
    """Percent exact match against length, one line a method, with Wilson intervals.

    Args:
        results: columns method, length, exact_match, low, high (percent).
        train_length: longest training length, marked.
        title: of the figure.
    """
    figure, axis = plt.subplots(figsize=(6.0, 3.4), layout="constrained")
    markers = ["o", "s", "^", "D", "v", "P", "X", "*"]
    for i, (method, group) in enumerate(results.groupby("method", sort=False)):
        group = group.sort_values("length")
        axis.fill_between(group["length"], group["low"], group["high"], color=f"C{i}", alpha=0.2, linewidth=0)
        axis.plot(group["length"], group["exact_match"], marker=markers[i % 8], color=f"C{i}", label=method)
    axis.axvline(train_length, linestyle=":", color="0.4")
    top = axis.get_xaxis_transform()
    axis.text(train_length, 1.01, "longest in training", transform=top, ha="center", fontsize=7, color="0.4")
    axis.set_title(title, pad=16)
    axis.set(xlabel="length (digits)", ylabel="exact match (%)", ylim=(-3, 103))
    axis.legend(frameon=False)
    sns.despine(figure)
    return figure


def learning_curves(histories: dict[str, list[dict]], title: str) -> Figure:
    """Validation exact match against training steps, one line a run.

    Args:
        histories: name to the records that `training.train` returns.
        title: of the figure.
    """
    figure, axis = plt.subplots(figsize=(6.0, 3.0), layout="constrained")
    for name, history in histories.items():
        axis.plot([r["step"] for r in history], [r["exact_match"] for r in history], marker="o", label=name)
    axis.set(xlabel="optimizer steps", ylabel="validation exact match (%)", ylim=(-3, 103), title=title)
    axis.legend(frameon=False)
    sns.despine(figure)
    return figure
