"""What models score: against length, training steps and cost, and seed by seed."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from abcnb.show.style import COLOURMAP, KEPT, finish, line_styles, nested_styles, row_of_axes, themed

TICKS = (1, 2, 4, 6, 10, 20, 60, 100, 200, 500, 600, 1000)  # of lengths, where they were measured


def draw_accuracy(axis: Axes, table: pd.DataFrame, train_length: int, styles: Mapping[str, dict]) -> None:
    """Percent exact match against length, on a logarithmic axis without a legend, one line per method.

    Bands are 95% Wilson intervals of one seed, or reach from the worst to the best of several.

    Args:
        axis: to draw on.
        table: columns method, length, exact_match, low, high (percent), and one row per seed.
        train_length: the longest length whose every number may be trained on, marked.
        styles: name of a method to the style of its line, in the order of the legend.
    """
    for method in [name for name in styles if name in set(table["method"])]:
        style, by_length = styles[method], table[table["method"] == method].groupby("length")
        mean, several = by_length["exact_match"].mean(), by_length.size().max() > 1
        low = by_length["exact_match" if several else "low"].min()
        high = by_length["exact_match" if several else "high"].max()
        axis.fill_between(mean.index, low, high, color=style["color"], alpha=0.2, linewidth=0)
        axis.plot(mean.index, mean, label=method, **{"markersize": 4.5} | style)
    axis.axvline(train_length, linestyle=":", color="0.4")
    above = {"transform": axis.get_xaxis_transform(), "ha": "center", "va": "bottom"}
    axis.text(train_length, 1.01, "training length", fontsize=9, color="0.35", **above)
    axis.set(xlabel="length (digits)", ylabel="exact match (%)", ylim=(-3, 103), xscale="log")
    ticks = sorted(set(TICKS) & set(table["length"]))
    axis.set_xticks(ticks, ticks)
    axis.set_xticks([], minor=True)
    axis.spines[["top", "right"]].set_visible(False)


@themed
def accuracy_by_length(
    table: pd.DataFrame, train_length: int, title: str, styles: Sequence[str] | None = None
) -> Figure:
    """Percent exact match against length, one line per method.

    What is of one seed says so, in the title or the legend.

    Args:
        table, train_length: as for `draw_accuracy`, which also says what the bands are.
        styles: all methods of a set of figures, so that each looks the same in all of them; None: the table's.
    """
    figure, axis = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    draw_accuracy(axis, table, train_length, nested_styles(styles or table["method"]))
    handles, names = axis.get_legend_handles_labels()
    labels = _saying_one_seed(names, table, "length")
    if not set(labels) & set(names):
        title, labels = f"{title}, one seed", names
    axis.set_title(title, pad=16)
    figure.legend(handles, labels, loc="outside right center")
    return figure


def _saying_one_seed(names: Sequence[str], table: pd.DataFrame, measured_at: str) -> list[str]:
    """Names of methods, and *one seed* where a table has one row wherever a method was measured."""
    several = set(table["method"][table.duplicated(["method", measured_at])])
    return [name if name in several else f"{name} (one seed)" for name in names]


@themed
def learning_curves(histories: dict[str, list[dict]], title: str) -> Figure:
    """Validation exact match against training steps, one line per run: its name to its `history`."""
    figure, axis = plt.subplots(figsize=(7.2, 3.2), layout="constrained")
    for name, style in nested_styles(histories).items():
        steps, exact = ([record[key] for record in histories[name]] for key in ("step", "exact_match"))
        axis.plot(steps, exact, label=name, **style)
    axis.set(xlabel="optimizer steps", ylabel="validation exact match (%)", ylim=(-3, 103), title=title)
    figure.legend(loc="outside right center")
    return figure


@themed
def seeds(table: pd.DataFrame, title: str) -> Figure:
    """Every seed's exact match as a point, one row per method, one panel per task.

    Args:
        table: columns task, method, seed, exact_match (percent).
    """
    methods = table["method"].unique()
    figure, axes = row_of_axes(table["task"].unique(), 2.4, 0.32 * len(methods) + 1.2, 1.2, sharey=True)
    for task, axis in axes.items():
        mine = table[table["task"] == task]
        sns.stripplot(mine, x="exact_match", y="method", order=methods, jitter=0.18, size=6, alpha=0.7, ax=axis)
        axis.set(xlabel="exact match (%)", ylabel="", xlim=(-4, 104))
        axis.grid(axis="y", color="0.9")
    figure.suptitle(title)
    return figure


def _points(table: pd.DataFrame, x: str, width: float, height: float) -> tuple[Figure, dict[str, Axes]]:
    """Exact match against a column, one point per run, one axis per task."""
    figure, axes = row_of_axes(table["task"].unique(), width, height, 1.7, sharey=True)
    for task, axis in axes.items():
        for method, style in line_styles(table["method"]).items():
            mine = table[(table["task"] == task) & (table["method"] == method)]
            axis.plot(mine[x], mine["exact_match"], label=method, alpha=0.8, **style | {"linestyle": "none"})
        axis.set_ylim(-4, 104)
    figure.axes[0].set_ylabel("exact match (%)")
    return figure, axes


@themed
def exact_match_by_told(table: pd.DataFrame, reference: pd.DataFrame, title: str) -> Figure:
    """Exact match of schemes by what their distance is taken from, one point per seed, one panel per task.

    Args:
        table: columns task, method, told (categorical), exact_match (percent), of one length.
        reference: the same columns except told; each of its methods is a line at its worst seed.
    """
    told, methods = table["told"].cat.categories, list(table["method"].unique())
    beside = table["method"].map(methods.index) - (len(methods) - 1) / 2
    figure, axes = _points(table.assign(place=table["told"].cat.codes + 0.12 * beside), "place", 3.6, 3.2)
    for task, axis in axes.items():
        worst = reference[reference["task"] == task].groupby("method")["exact_match"].min()
        for method, lowest in worst.items():
            axis.axhline(lowest, color="0.6", linewidth=1, label=f"{method}, worst seed")
        axis.set_xlim(-0.5, len(told) - 0.5)
        axis.set_xticks(range(len(told)), [name.replace(" from", "\nfrom") for name in told])
    return finish(figure, title)


@themed
def cost_and_accuracy(table: pd.DataFrame, cost: str, label: str, title: str) -> Figure:
    """Exact match against a cost of training, one point per run, one panel per task.

    Args:
        table: columns task, method, exact_match (percent) and the cost's.
        cost: the cost's column.
        label: of the cost's axis, with its unit.
    """
    figure, axes = _points(table, cost, 2.5, 3.0)
    for axis in axes.values():
        axis.set(xlabel=label, xlim=(0, None))
    return finish(figure, title, labels=_saying_one_seed(table["method"].unique(), table, "task"))


@themed
def number_lengths(table: pd.DataFrame, title: str) -> Figure:
    """How long the numbers are, as bars: percent of the numbers of each kind against their digits.

    Args:
        table: columns numbers (the kind), digits, percent.
    """
    figure, axis = plt.subplots(figsize=(6.4, 2.8), layout="constrained")
    sns.barplot(table, x="digits", y="percent", hue="numbers", ax=axis)
    axis.set(xlabel="length (digits)", ylabel="numbers (%)", title=title)
    axis.legend(title=None)
    return figure


@themed
def exact_match_by_shape(table: pd.DataFrame, trained: int, title: str) -> Figure:
    """Percent exact match over a square of shapes, such as terms and digits, with the training corner outlined.

    Args:
        table: index and columns are the two sizes, ascending; values in percent.
        trained: the largest size that was trained on, in both directions.
    """
    side = 0.72 * max(table.shape)
    figure, axis = plt.subplots(figsize=(side + 1.6, side + 0.4), layout="constrained")
    sns.heatmap(
        table, annot=True, fmt=".4g", vmin=0, vmax=100, cmap=COLOURMAP, linewidths=1, ax=axis,
        annot_kws={"fontsize": 9}, cbar_kws={"label": "exact match (%)"},
    )  # fmt: skip
    inside = [int((sizes <= trained).sum()) for sizes in (table.columns, table.index)]
    axis.add_patch(Rectangle((0, 0), *inside, fill=False, color=KEPT, linewidth=3, clip_on=False))
    axis.set_title(title)
    axis.tick_params(rotation=0, length=0)
    return figure


@themed
def exact_match_by_task(table: pd.DataFrame, title: str) -> Figure:
    """Percent exact match, the mean over seeds, of tasks (rows) by length (columns), one panel per method.

    Args:
        table: columns task, method, length, exact_match (percent); in the order in which tasks are shown.
        title: above the panels.
    """
    methods, tasks = list(table["method"].unique()), list(table["task"].unique())
    size = (3.4 + 3.2 * len(methods), 0.9 + 0.3 * len(tasks))
    figure, axes = plt.subplots(1, len(methods), figsize=size, sharey=True, squeeze=False, layout="constrained")
    for method, axis in zip(methods, axes[0], strict=True):
        mine = table[table["method"] == method].pivot_table(index="task", columns="length", values="exact_match")
        sns.heatmap(
            mine.reindex(tasks), annot=True, fmt=".4g", vmin=0, vmax=100, cmap=COLOURMAP, linewidths=1, ax=axis,
            annot_kws={"fontsize": 8}, cbar=False,
        )  # fmt: skip
        axis.set(title=method, xlabel="length", ylabel="")
        axis.tick_params(rotation=0, length=0)
    figure.suptitle(title)
    return figure
