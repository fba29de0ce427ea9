"""One function a figure; each takes results, never models, and returns the matplotlib Figure."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from abcnb.layout import NO_PLACE, Layout
from abcnb.lines import DIRECTION_NAMES

sns.set_theme(context="notebook", style="white", palette="colorblind", font_scale=0.85)
plt.rcParams["figure.titlesize"] = "medium"


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


def attention_maps(
    attention: torch.Tensor, title: str, source: str | None = None, columns_are: str = "source column"
) -> Figure:
    """Heat maps of attention weights, one a head, on one colour scale.

    Args:
        attention: [heads, rows, columns], weights from 0 to 1.
        title: of the figure.
        source: the source's characters, or one stand-in a column, as tick labels.
        columns_are: label of the columns.
    """
    heads, rows, columns = attention.shape
    figure, axes = _head_grid(heads, min(max(2.4, 0.16 * columns), 2.9), min(max(2.0, 0.18 * rows), 2.6))
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
        axis.set(title=f"head {head}", xlabel=columns_are, ylabel="output step")
    figure.suptitle(title)
    return figure


def bias_maps(
    bias: torch.Tensor, title: str, source: str | None = None, columns_are: str = "source column"
) -> Figure:
    """Attention biases, one panel a head: closed cells grey, open ones coloured by their bias.

    Args:
        bias: [heads, rows, columns], −inf where closed.
        title: of the figure.
        source: tick labels, one character a column.
        columns_are: label of the columns.
    """
    heads, rows, columns = bias.shape
    values = bias.numpy().copy()
    finite = np.isfinite(values)
    values[~finite] = np.nan
    low = float(np.nanmin(values)) if finite.any() else 0.0
    width = 0.13 * columns + 1.2 if columns <= 30 else 0.05 * columns + 1.4  # few columns are ticked one by one
    figure, axes = _head_grid(heads, max(2.4, width), max(2.0, 0.045 * rows + 1.2))
    for head, axis in zip(range(heads), axes.flat, strict=False):
        scale = head == heads - 1 and low < 0  # a window is open or closed: nothing to grade
        axis.set_facecolor("0.85")
        sns.heatmap(
            values[head], vmin=low or -1, vmax=0, cmap="viridis", ax=axis, cbar=scale, cbar_kws={"label": "bias"}
        )
        _tick_every(axis, source, columns, rows)
        axis.set(title=f"head {head}", xlabel=columns_are, ylabel="output step")
    figure.suptitle(title)
    return figure


def line_strengths(lines: pd.DataFrame, head: int, threshold: float | None = None) -> Figure:
    """The strength d of every line of one head against its offset, one panel a direction; kept lines marked.

    Args:
        lines: from `LineTable.to_dataframe()`.
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
        operand = f", operand {segment + 1}" if direction and mine["segment"].max() else ""
        axis.set(title=f"{DIRECTION_NAMES[direction]}{operand}", xlabel="offset", ylabel="line sum")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0][0].legend(frameon=False, fontsize=7)
    figure.suptitle(f"head {head}")
    return figure


MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h")
DASHES = ("-", "--", ":")


def _style(number: int) -> dict:
    """Colour, marker and dashes of the n-th line; the ten colours repeat with other dashes."""
    return {"color": f"C{number % 10}", "marker": MARKERS[number % 12], "linestyle": DASHES[number // 10 % 3]}


def accuracy_by_length(
    table: pd.DataFrame, train_length: int, title: str, styles: Sequence[str] | None = None
) -> Figure:
    """Percent exact match against length, one line a method.

    Bands are 95% Wilson intervals of one seed, or reach from the worst to the best of several.

    Args:
        table: columns method, length, exact_match, low, high (percent), and seed where there are several.
        train_length: the longest length whose every number may be trained on, marked.
        title: of the figure.
        styles: all methods of a set of figures, so that each looks the same in all of them; those of the
            table when None.
    """
    figure, axis = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    styles = list(styles or dict.fromkeys(table["method"]))
    for i, method in enumerate(styles):
        group = table[table["method"] == method]
        if group.empty:
            continue
        by_length = group.groupby("length")["exact_match"]
        mean, several = by_length.mean(), by_length.size().max() > 1
        low = by_length.min() if several else group.groupby("length")["low"].min()
        high = by_length.max() if several else group.groupby("length")["high"].max()
        axis.fill_between(mean.index, low, high, color=f"C{i % 10}", alpha=0.2, linewidth=0)
        axis.plot(mean.index, mean, label=method, markersize=4.5, **_style(i))
    axis.axvline(train_length, linestyle=":", color="0.4")
    top = axis.get_xaxis_transform()
    axis.text(train_length, 1.01, "training length", transform=top, ha="center", fontsize=8, color="0.35")
    axis.set_title(title, pad=16)
    axis.set(xlabel="length (digits)", ylabel="exact match (%)", ylim=(-3, 103))
    figure.legend(frameon=False, loc="outside right center")
    sns.despine(figure)
    return figure


def learning_curves(histories: dict[str, list[dict]], title: str) -> Figure:
    """Validation exact match against training steps, one line a run.

    Args:
        histories: name to the records that `training.train` returns.
        title: of the figure.
    """
    figure, axis = plt.subplots(figsize=(7.2, 3.2), layout="constrained")
    for i, (name, history) in enumerate(histories.items()):
        steps, exact = [r["step"] for r in history], [r["exact_match"] for r in history]
        axis.plot(steps, exact, label=name, markersize=4.5, **_style(i))
    axis.set(xlabel="optimizer steps", ylabel="validation exact match (%)", ylim=(-3, 103), title=title)
    figure.legend(frameon=False, loc="outside right center")
    sns.despine(figure)
    return figure


def source_layout(source: str, layout: Layout) -> Figure:
    """What each source column is: its token, its kind, and its place seen from each operand.

    Args:
        source: the source's characters, one a column.
        layout: its columns.
    """
    places = layout.places()
    digits = (layout.digit_places > NO_PLACE).numpy()
    names = ["kind", *(f"place in operand {k + 1}" for k in range(layout.segments))]
    if layout.segments == 1:
        names[1] = "place"
    texts = [["digit" if digit else "structure" for digit in digits]]
    texts += [["" if place == NO_PLACE else str(int(place)) for place in row] for row in places]
    inside = [np.where(row == NO_PLACE, np.nan, row.numpy().astype(float)) for row in places]
    values = np.stack([np.where(digits, 1.0, np.nan), *inside])
    width = max(5.0, 0.52 * len(layout))
    figure, axes = plt.subplots(len(names), 1, figsize=(width, 0.5 * len(names) + 0.6), layout="constrained")
    for axis, name, row, text in zip(axes, names, values, texts, strict=True):
        axis.set_facecolor("0.93")
        cells = np.array([text])
        if name == "kind":
            cells = np.where(cells == "digit", "d", "s")
        sns.heatmap(
            row[None], annot=cells, fmt="", cmap="cividis_r", vmin=-1.5, vmax=layout.width + 1, cbar=False,
            linewidths=1, linecolor="white", ax=axis, annot_kws={"fontsize": 9},
        )  # fmt: skip
        for column in np.flatnonzero(np.isnan(row)):
            if cells[0][column]:
                axis.text(column + 0.5, 0.5, cells[0][column], ha="center", va="center", fontsize=9, color="0.3")
        axis.set_xticks([])
        axis.set_yticks([0.5], [name], rotation=0)
    axes[0].xaxis.tick_top()
    axes[0].set_xticks(np.arange(len(source)) + 0.5, list(source), fontsize=11, family="monospace")
    return figure


def number_lengths(table: pd.DataFrame, title: str) -> Figure:
    """How long the numbers are, as bars: percent of the numbers of each kind against their digits.

    Args:
        table: columns numbers (the kind), digits, percent.
        title: of the figure.
    """
    figure, axis = plt.subplots(figsize=(6.4, 2.8), layout="constrained")
    sns.barplot(table, x="digits", y="percent", hue="numbers", ax=axis)
    axis.set(xlabel="length (digits)", ylabel="numbers (%)", title=title)
    axis.legend(frameon=False, title=None)
    sns.despine(figure)
    return figure


def reading_by_step(table: pd.DataFrame, train_length: int, title: str) -> Figure:
    """Attention on the right digits and correctness, step by step, one panel an input length.

    Args:
        table: columns length, step, share (percent of attention on the step's own place), correct (percent).
        train_length: longest training length, marked.
        title: of the figure.
    """
    lengths = sorted(table["length"].unique())
    figure, axes = plt.subplots(
        1, len(lengths), figsize=(3.6 * len(lengths), 3.0), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, length in zip(axes[0], lengths, strict=True):
        mine = table[table["length"] == length]
        axis.plot(
            mine["step"], mine["share"], color="C0", marker="o", markersize=4, label="attention on its place"
        )
        axis.plot(mine["step"], mine["correct"], color="C1", marker="s", markersize=4, label="digit correct")
        axis.axvline(train_length - 0.5, linestyle=":", color="0.4")
        axis.set(xlabel="output step (place)", title=f"{length} digits", ylim=(-3, 103))
    axes[0][0].set_ylabel("percent")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, loc="outside lower center", ncols=2)
    figure.suptitle(title)
    sns.despine(figure)
    return figure


def bias_by_distance(panels: dict[str, pd.DataFrame], title: str) -> Figure:
    """What scalar each scheme adds to the attention score of two steps, against their distance.

    Args:
        panels: name of the scheme to a table of head, distance (j − i, in steps), bias.
        title: of the figure.

    Source: paper, figure 12 (schematic there: the factors that determine the bias of RPE and of ABC).
    """
    figure, axes = plt.subplots(
        1, len(panels), figsize=(4.2 * len(panels), 3.2), sharex=True, squeeze=False, layout="constrained"
    )
    for axis, (name, table) in zip(axes[0], panels.items(), strict=True):
        for head, group in table.groupby("head"):
            axis.plot(group["distance"], group["bias"], label=f"head {head}", markersize=4, **_style(int(head)))
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set(title=name, xlabel="distance j − i (steps)", ylabel="added to the score")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, loc="outside right center")
    figure.suptitle(title)
    sns.despine(figure)
    return figure


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
        axis.set_facecolor("0.85")
        sns.heatmap(values, cmap="viridis", ax=axis, cbar_kws={"label": "added to the score"})
        _tick_every(axis, None, matrix.shape[1], matrix.shape[0])
        axis.set(title=name, xlabel="column", ylabel="output step")
    figure.suptitle(title)
    return figure


def digit_error_rates(table: pd.DataFrame, title: str) -> Figure:
    """Digit error rate against length on logarithmic axes; lengths without an error show what that bounds.

    Args:
        table: columns method, length, digit_error_rate, digits (output tokens over all samples).
        title: of the figure.
    """
    figure, axis = plt.subplots(figsize=(7.2, 3.4), layout="constrained")
    for i, (method, group) in enumerate(table.groupby("method", sort=False)):
        group = group.sort_values("length")
        none = group["digit_error_rate"] == 0
        axis.plot(group["length"], group["digit_error_rate"].mask(none), label=method, markersize=5, **_style(i))
        bound = 3.0 / group["digits"]  # 95%: no error among n digits bounds the rate by 3 / n
        # Spread a little, since tests of one length have the same bound.
        spread = group["length"] * 1.08 ** (i - table["method"].nunique() / 2)
        axis.plot(spread[none], bound[none], "v", color=f"C{i % 10}", markersize=7, fillstyle="none")
    axis.set(xscale="log", yscale="log", xlabel="length (digits)", ylabel="wrong digits / digits")
    axis.set_title(f"{title}\nopen triangle: no error among n digits, and the 95% bound 3 / n")
    figure.legend(frameon=False, loc="outside right center")
    sns.despine(figure)
    return figure


def seeds(table: pd.DataFrame, title: str) -> Figure:
    """Every seed's exact match as a point, one row a method, one panel a task.

    Args:
        table: columns task, method, seed, exact_match (percent).
        title: of the figure.
    """
    tasks = list(dict.fromkeys(table["task"]))
    methods = list(dict.fromkeys(table["method"]))
    height = 0.32 * len(methods) + 1.2
    figure, axes = plt.subplots(
        1, len(tasks), figsize=(2.4 * len(tasks) + 1.2, height), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, task in zip(axes[0], tasks, strict=True):
        mine = table[table["task"] == task]
        sns.stripplot(mine, x="exact_match", y="method", order=methods, jitter=0.18, size=6, alpha=0.7, ax=axis)
        axis.set(title=task, xlabel="exact match (%)", ylabel="", xlim=(-4, 104))
        axis.grid(axis="y", color="0.9")
    figure.suptitle(title)
    sns.despine(figure)
    return figure


def cost_and_accuracy(table: pd.DataFrame, cost: str, label: str, title: str) -> Figure:
    """Exact match against a cost of training, one point a run, one panel a task.

    Args:
        table: columns task, method, exact_match (percent) and the cost's.
        cost: the cost's column.
        label: of the cost's axis, with its unit.
        title: of the figure.
    """
    tasks, methods = list(dict.fromkeys(table["task"])), list(dict.fromkeys(table["method"]))
    figure, axes = plt.subplots(
        1, len(tasks), figsize=(2.5 * len(tasks) + 1.6, 3.0), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, task in zip(axes[0], tasks, strict=True):
        for i, method in enumerate(methods):
            mine = table[(table["task"] == task) & (table["method"] == method)]
            style = _style(i) | {"linestyle": "none"}
            axis.plot(mine[cost], mine["exact_match"], label=method, alpha=0.8, **style)
        axis.set(title=task, xlabel=label, xlim=(0, None), ylim=(-4, 104))
    axes[0][0].set_ylabel("exact match (%)")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, loc="outside right center")
    figure.suptitle(title)
    sns.despine(figure)
    return figure
