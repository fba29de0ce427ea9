"""One function per figure; each takes results, never models, and returns the matplotlib Figure.

One file, since each is a few seaborn calls, and they share axes and styles.
"""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
import torch
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from abcnb.lines.algorithm1 import DIRECTIONS
from abcnb.lines.coordinates import NO_PLACE, Stream
from abcnb.show import style

TICKS = (1, 2, 4, 6, 10, 20, 60, 100, 200, 500, 600, 1000)  # of lengths, if they were measured
MOST_LABELLED = 30  # most columns of a map that are labelled one by one


# What models score.


def draw_accuracy(axis: Axes, table: pd.DataFrame, train_length: int, styles: Mapping[str, dict]) -> None:
    """Percent exact match against length, on a logarithmic axis without a legend, one line per method.

    Bands are 95% Wilson intervals for one seed, and reach from the worst to the best of several.

    `table`: columns method, length, exact_match, low, high (percent), one row per seed; `train_length`: the longest
    length of which every number may be trained on, marked; `styles`: of the methods, in the order of the legend.
    """
    for method in [name for name in styles if name in set(table["method"])]:
        look, by_length = styles[method], table[table["method"] == method].groupby("length")
        mean, several = by_length["exact_match"].mean(), by_length.size().max() > 1
        low = by_length["exact_match" if several else "low"].min()
        high = by_length["exact_match" if several else "high"].max()
        axis.fill_between(mean.index, low, high, color=look["color"], alpha=0.2, linewidth=0)
        axis.plot(mean.index, mean, label=method, **look)
    axis.axvline(train_length, linestyle=":", color="0.4")
    above = {"transform": axis.get_xaxis_transform(), "ha": "center", "va": "bottom"}
    axis.text(train_length, 1.01, "training length", fontsize=9, color="0.35", **above)
    axis.set(xlabel="length (digits)", ylabel="exact match (%)", ylim=(-3, 103), xscale="log")
    ticks = sorted(set(TICKS) & set(table["length"]))
    axis.set_xticks(ticks, ticks)
    axis.set_xticks([], minor=True)
    axis.spines[["top", "right"]].set_visible(False)


@style.themed()
def accuracy_by_length(
    table: pd.DataFrame, train_length: int, title: str, styles: Sequence[str] | None = None
) -> Figure:
    """Percent exact match against length, one line per method.

    Methods with one seed are marked so, in the title or the legend. `styles`: all methods of a set of figures, so
    that each looks the same in all of them, or None for the table's; the rest is as in `draw_accuracy`.
    """
    figure, axis = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    draw_accuracy(axis, table, train_length, style.nested_styles(styles or table["method"]))
    handles, names = axis.get_legend_handles_labels()
    several = set(table["method"][table.duplicated(["method", "length"])])
    labels = [name if name in several else f"{name} (one seed)" for name in names]
    if not set(labels) & set(names):
        title, labels = f"{title}, one seed", names
    axis.set_title(title, pad=16)
    figure.legend(handles, labels, loc="outside right center")
    return figure


@style.themed()
def learning_curves(histories: dict[str, list[dict]], title: str) -> Figure:
    """Validation exact match against training steps, one line per run (its name and `history`)."""
    figure, axis = plt.subplots(figsize=(7.2, 3.2), layout="constrained")
    for name, look in style.nested_styles(histories).items():
        records = pd.DataFrame(histories[name], columns=["step", "exact_match"])
        axis.plot("step", "exact_match", data=records, label=name, **look)
    axis.set(xlabel="optimizer steps", ylabel="validation exact match (%)", ylim=(-3, 103), title=title)
    figure.legend(loc="outside right center")
    return figure


@style.themed()
def seeds(table: pd.DataFrame, title: str) -> Figure:
    """Every seed's exact match as a point, one row per method, one panel per task.

    `table`: columns task, method, seed, exact_match (percent).
    """
    methods, height = table["method"].unique(), 0.3 * table["method"].nunique() + 0.8
    figure, axes = style.row_of_axes(table["task"].unique(), 2.9, height, most=3, sharex=True, sharey=True)
    colours = {name: look["color"] for name, look in style.line_styles(methods).items()}
    for task, axis in axes.items():
        mine = table[table["task"] == task]
        looks = {"hue": "method", "palette": colours, "jitter": 0.2, "size": 6, "alpha": 0.7, "legend": False}
        sns.stripplot(mine, x="exact_match", y="method", order=methods, ax=axis, **looks)
        axis.set(xlabel="exact match (%)", ylabel="", xlim=(-4, 104))
        axis.label_outer()
        axis.grid(axis="y", color="0.9")
    return style.finish(figure, title)


@style.themed()
def number_lengths(table: pd.DataFrame, title: str) -> Figure:
    """How long the numbers are, as bars: percent of the numbers of each kind against their digits.

    `table`: columns numbers (the kind), digits, percent.
    """
    figure, axis = plt.subplots(figsize=(6.4, 2.8), layout="constrained")
    sns.barplot(table, x="digits", y="percent", hue="numbers", ax=axis)
    axis.set(xlabel="length (digits)", ylabel="numbers (%)", title=title)
    axis.legend(title=None)
    return figure


@style.themed()
def exact_match_by_task(table: pd.DataFrame, title: str) -> Figure:
    """Percent exact match (the mean over seeds) of tasks (rows) by length (columns), one panel per method.

    `table`: columns task, method, length, exact_match (percent), in the order in which tasks are shown; grey: not run.
    """
    methods, tasks = table["method"].unique(), table["task"].unique()
    figure, axes = style.row_of_axes(methods, 3.2, 0.9 + 0.3 * len(tasks), 3.4, sharey=True)
    for method, axis in axes.items():
        mine = table[table["method"] == method].pivot_table(index="task", columns="length", values="exact_match")
        looks = {"linewidths": 1, "annot": True, "annot_kws": {"fontsize": 8}, "fmt": ".4g", "cbar": False}
        sns.heatmap(mine.reindex(tasks), vmin=0, vmax=100, cmap=style.COLOURMAP, ax=axis, **looks)
        axis.tick_params(rotation=0, length=0)
        axis.set(xlabel="length", ylabel="", facecolor=style.CLOSED)
    return style.finish(figure, title)


# Lines: their strengths, the biases they become, and what reading along them yields.


@style.themed()
def line_strengths(lines: pd.DataFrame, head: int) -> Figure:
    """Strength d of every line of one head against its offset, one panel per direction, kept lines marked.

    `lines`: from `algorithm1.line_table`.
    """
    mine = lines[lines["head"] == head]
    groups = {DIRECTIONS[direction]: group for direction, group in mine.groupby("direction", sort=False)}
    figure, axes = style.row_of_axes(groups, 2.8, 2.6, ylabel="strength d", sharey=True)
    for axis, group in zip(axes.values(), groups.values(), strict=True):
        dropped, kept = group[~group["kept"]], group[group["kept"]]
        axis.vlines(group["offset"], 0, group["strength"], color="0.7", linewidth=1)
        axis.plot("offset", "strength", "o", data=dropped, color=style.DROPPED, markersize=3.5, label="dropped")
        axis.plot("offset", "strength", "D", data=kept, color=style.KEPT, markersize=6, label="kept")
        axis.set(xlabel="offset")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.axes[0].legend(fontsize=7)
    figure.suptitle(f"head {head}")
    return figure


@style.themed()
def reading_by_step(table: pd.DataFrame, train_length: int, title: str) -> Figure:
    """Attention on the right digits and correctness, step by step, one panel per input length.

    `table`: columns length, step, share (percent of attention on the step's own place), correct (percent).
    """
    by_length = {f"{length} digits": mine for length, mine in table.groupby("length")}
    figure, axes = style.row_of_axes(by_length, 3.6, 3.0, ylabel="percent", sharey=True)
    for axis, mine in zip(axes.values(), by_length.values(), strict=True):
        axis.plot(mine["step"], mine["share"], markersize=4, label="attention on its place", **style.line_style(0))
        axis.plot(mine["step"], mine["correct"], markersize=4, label="digit correct", **style.line_style(1))
        axis.axvline(train_length - 0.5, linestyle=":", color="0.4", label="end of the trained digits")
        axis.set(xlabel="output step (place)", ylim=(-3, 103))
    return style.finish(figure, title, loc="outside lower center", ncols=3)


@style.themed()
def plateau(table: pd.DataFrame, chosen: float, title: str) -> Figure:
    """Exact match against τ, one curve per seed, one panel per task; numbers count the lines of the first seed.

    `table`: columns task, seed, tau, lines, exact_match (percent); `chosen`: the τ of the rule, marked.
    """
    figure, axes = style.row_of_axes(table["task"].unique(), 3.2, 2.8, 1.0, "exact match (%)", sharey=True)
    looks = {seed: style.line_style(number) for number, seed in enumerate(sorted(table["seed"].unique()))}
    for task, axis in axes.items():
        mine = table[table["task"] == task]
        for seed, curve in mine.groupby("seed"):
            axis.plot(curve["tau"], curve["exact_match"], label=f"seed {seed}", **looks[seed])
        first = mine[mine["seed"] == mine["seed"].min()]
        for row in first.itertuples():
            axis.annotate(row.lines, (row.tau, row.exact_match), (3, 5), textcoords="offset points", fontsize=7)
        axis.set(xlabel="τ", ylim=(-4, 114), xscale="log")
        axis.set_xticks(list(first["tau"]), [f"{tau:g}" for tau in first["tau"]], fontsize=7)
        axis.set_xticks([], minor=True)
        axis.axvline(chosen, linestyle=":", color="0.4", label=f"τ = {chosen:g}")
    return style.finish(figure, title)


@style.themed()
def shares(table: pd.DataFrame, tau: float, title: str) -> Figure:
    """Every seed's share of each line as a point, one panel per task; τ is marked.

    `table`: columns task, line, share.
    """
    rows = table.groupby("task")["line"].nunique().max()
    figure, axes = style.row_of_axes(table["task"].unique(), 3.1, 0.26 * rows + 0.8, most=4)
    for task, axis in axes.items():
        looks = {"color": style.KEPT, "jitter": 0.2, "size": 5, "alpha": 0.6}
        sns.stripplot(table[table["task"] == task], x="share", y="line", ax=axis, **looks)
        axis.axvline(tau, linestyle=":", color="0.4")
        axis.set(xlabel="share", ylabel="", xlim=(0, 1))
        axis.grid(axis="y", color="0.9")
    return style.finish(figure, title)


@style.themed()
def margins(found: dict[str, torch.Tensor], title: str) -> Figure:
    """Histogram over windows of the lead of the right logit, one panel per model; the least lead is marked.

    `found`: for each model, the lead of the right logit over every other, [windows].
    """
    figure, axes = style.row_of_axes(found, 3.6, 2.6, ylabel="windows")
    for name, axis in axes.items():
        axis.hist(found[name].numpy(), bins=60, log=True, color=style.KEPT, edgecolor=style.KEPT)
        least = float(found[name].min())
        axis.axvline(least, linestyle=":", color="0.4")
        place = {"xycoords": axis.get_xaxis_transform(), "textcoords": "offset points"}
        axis.annotate(f"{least:.2f}", (least, 0.97), (-12, 0), **place, rotation=90, va="top")
        axis.set(xlim=(0, None), xlabel="lead of the right logit")
    return style.finish(figure, title)


# Maps: attention weights, biases and what source columns are.


def _draw_map(
    axis: Axes, values: np.ndarray, rows: Mapping[int, object], columns: Mapping[int, object], **options
) -> QuadMesh:
    """A heat map with labels at some rows and columns; options as in `pcolormesh`. Non-finite cells are left out.

    Not seaborn's, which redraws the whole figure for each map.
    """
    mesh = axis.pcolormesh(np.ma.masked_invalid(values), cmap=style.COLOURMAP, **options)
    axis.set_xticks([column + 0.5 for column in columns], columns.values())
    axis.set_yticks([row + 0.5 for row in rows], rows.values())
    axis.spines[:].set_visible(False)
    axis.set_ylim(len(values), 0)
    return mesh


def _maps(
    matrices: dict[str, torch.Tensor],
    title: str,
    size: tuple[float, float],
    bar: str,
    source: str = "",
    columns_are: str = "column",
    **limits,
) -> Figure:
    """Heat maps by name, four in a row, with few ticks or the source's tokens; −inf is grey.

    They share axes and a scale, and the last one has a colour bar, labelled `bar`; none if that is empty.
    In one stream a row is a token too, the one before the token it writes.
    """
    figure, axes = style.row_of_axes(matrices, *size, most=4, sharex=True, sharey=True)
    for name, axis in axes.items():
        axis.set_facecolor(style.CLOSED)
        values, (rows, columns) = matrices[name].numpy(), matrices[name].shape
        labelled = source and columns <= MOST_LABELLED
        some = {column: column for column in range(0, columns, max(1, columns // 6))}
        down = {row: row for row in range(0, rows, max(1, rows // 8))}
        mesh = _draw_map(axis, values, down, dict(enumerate(source)) if labelled else some, **limits)
        if labelled:
            axis.tick_params("x", labelsize=7 if columns <= 20 else 6)
        axis.set(xlabel=columns_are, ylabel="token" if columns_are == "token" else "output step")
        axis.label_outer()
    if bar:
        figure.colorbar(mesh, ax=[*axes.values()], label=bar).outline.set_visible(False)
    return style.finish(figure, title)


@style.themed()
def attention_maps(
    attention: torch.Tensor,
    title: str,
    source: str = "",
    columns_are: str = "source column",
    marked: Sequence[tuple[int, int]] = (),
) -> Figure:
    """Heat maps of attention weights, one per head, on one colour scale.

    `attention`: [heads, rows, columns]; `source`: the source's characters, or one stand-in per column, as tick labels;
    `columns_are`: label of the columns; `marked`: cells to outline, as (row, column).
    """
    _, rows, columns = attention.shape
    size = np.clip((0.16 * columns, 0.18 * rows), (2.2, 1.9), (2.6, 2.4))
    heads = {f"head {head}": weights for head, weights in enumerate(attention)}
    figure = _maps(heads, title, size, "weight", source, columns_are, vmin=0, vmax=1)
    for axis in figure.axes[: len(attention)]:
        for row, column in marked:
            axis.add_patch(Rectangle((column, row), 1, 1, fill=False, color=style.KEPT, linewidth=1))
    return figure


@style.themed()
def bias_maps(
    bias: torch.Tensor,
    title: str,
    source: str = "",
    columns_are: str = "source column",
    names: Sequence[str] = (),
) -> Figure:
    """Attention biases, one panel per head: closed cells grey, open ones coloured by their bias.

    `bias`: [heads, rows, columns], −inf where closed; `source` and `columns_are` as in `attention_maps`; `names`: of
    the panels, all different; by default `head 0` and so on.
    """
    _, rows, columns = bias.shape
    low = bias[bias.isfinite()].amin().item()
    labelled = source and columns <= MOST_LABELLED
    width = max(2.2, 0.14 * columns + 0.3 if labelled else 0.03 * columns + 0.7)
    bar = "bias" if low < 0 else ""  # a window is open or closed: nothing to grade
    size = width, max(1.9, 0.04 * rows + 0.8)
    heads = dict(zip(names or [f"head {head}" for head in range(len(bias))], bias, strict=True))
    return _maps(heads, title, size, bar, source, columns_are, vmin=low or -1, vmax=0)


@style.themed()
def offset_maps(panels: dict[str, pd.DataFrame], title: str) -> Figure:
    """Attention weights by the token's offset from the step in each of two counters, one map per panel.

    `panels`: title to weights from 0 to 1; index and columns are offsets in the counters, their names the labels.
    """
    widths = [table.shape[1] for table in panels.values()]
    height = 0.32 * max(len(table) for table in panels.values()) + 1.4
    figure, axes = style.row_of_axes(panels, 0.32 * sum(widths) / len(widths), height, width_ratios=widths)
    for name, axis in axes.items():
        table = panels[name]
        labels = dict(enumerate(table.index)), dict(enumerate(table.columns))
        mesh = _draw_map(axis, table.to_numpy(), *labels, vmin=0, vmax=1, edgecolors="white", linewidth=1)
        axis.set(aspect="equal", xlabel=table.columns.name, ylabel=table.index.name, facecolor=style.CLOSED)
        axis.tick_params(length=0)
    figure.colorbar(mesh, ax=axis, label="weight", shrink=0.8).outline.set_visible(False)
    return style.finish(figure, title)


def operand_places(stream: Stream) -> dict[str, list[int]]:
    """For each operand by name, every source column's place in it, `NO_PLACE` outside."""
    index, outside = torch.arange(-1, stream.width + 1), torch.full((stream.source,), NO_PLACE)
    return {a.name: outside.index_put((a.tokens([index]),), index).tolist() for a in stream.operands}


@style.themed()
def source_layout(source: str, stream: Stream) -> Figure:
    """What each source column is: its token, its kind, and its place seen from each operand.

    `source`: the source's characters, one per column; `stream`: its coordinates.
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
