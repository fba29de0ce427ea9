"""What models score: against length, training steps and cost, and seed by seed."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from abcnb.show.style import COLOURMAP, KEPT, line_styles, mark_training_length, nested_styles, themed

TICKS = (1, 2, 4, 6, 10, 20, 60, 100, 200, 500, 600, 1000)  # of lengths, where they were measured


def draw_accuracy(
    axis: Axes, table: pd.DataFrame, train_length: int, styles: Mapping[str, dict] | None = None
) -> None:
    """Percent exact match against length, on a logarithmic axis, one line per method.

    Bands are 95% Wilson intervals of one seed, or reach from the worst to the best of several.

    Args:
        axis: to draw on; a legend is left to the caller.
        table: columns method, length, exact_match, low, high (percent), and one row per seed.
        train_length: the longest length whose every number may be trained on, marked.
        styles: name of a method to the style of its line, in the order of the legend; None gives each its own.
    """
    for method, style in (styles or nested_styles(table["method"])).items():
        group = table[table["method"] == method]
        if group.empty:
            continue
        by_length = group.groupby("length")["exact_match"]
        mean, several = by_length.mean(), by_length.size().max() > 1
        low = by_length.min() if several else group.groupby("length")["low"].min()
        high = by_length.max() if several else group.groupby("length")["high"].max()
        axis.fill_between(mean.index, low, high, color=style["color"], alpha=0.2, linewidth=0)
        axis.plot(mean.index, mean, label=method, **{"markersize": 4.5} | style)
    mark_training_length(axis, train_length)
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

    Bands are 95% Wilson intervals of one seed, or reach from the worst to the best of several. What is of one seed
    says so, in the title or the legend.

    Args:
        table, train_length: as for `draw_accuracy`.
        title: of the figure.
        styles: all methods of a set of figures, so that each looks the same in all of them; those of the
            table when None.
    """
    figure, axis = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    draw_accuracy(axis, table, train_length, nested_styles(styles or table["method"]))
    handles, names = axis.get_legend_handles_labels()
    single = _of_one_seed(table)
    if single == set(names):
        title += ", one seed"
    else:
        names = _saying_one_seed(names, single)
    axis.set_title(title, pad=16)
    figure.legend(handles, names, frameon=False, loc="outside right center")
    return figure


def _of_one_seed(table: pd.DataFrame, measured_at: str = "length") -> set[str]:
    """The methods of which a table has one row wherever they were measured: at a length, or on a task."""
    return set(table["method"]) - set(table["method"][table.duplicated(["method", measured_at])])


def _saying_one_seed(names: Sequence[str], single: set[str]) -> list[str]:
    return [f"{name} (one seed)" if name in single else name for name in names]


@themed
def learning_curves(histories: dict[str, list[dict]], title: str) -> Figure:
    """Validation exact match against training steps, one line per run.

    Args:
        histories: name to the records that `training.train` returns.
        title: of the figure.
    """
    figure, axis = plt.subplots(figsize=(7.2, 3.2), layout="constrained")
    for (name, history), style in zip(histories.items(), nested_styles(histories).values(), strict=True):
        steps, exact = [r["step"] for r in history], [r["exact_match"] for r in history]
        axis.plot(steps, exact, label=name, **style)
    axis.set(xlabel="optimizer steps", ylabel="validation exact match (%)", ylim=(-3, 103), title=title)
    figure.legend(frameon=False, loc="outside right center")
    sns.despine(figure)
    return figure


@themed
def seeds(table: pd.DataFrame, title: str) -> Figure:
    """Every seed's exact match as a point, one row per method, one panel per task.

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


@themed
def exact_match_by_told(table: pd.DataFrame, reference: pd.DataFrame, title: str) -> Figure:
    """Exact match of schemes by what their distance is taken from, one point per seed, one panel per task.

    Args:
        table: columns task, method, told (categorical), exact_match (percent), of one length.
        reference: the same columns except told; each of its methods is a line at its worst seed.
        title: of the figure.
    """
    tasks, told = list(dict.fromkeys(table["task"])), list(table["told"].cat.categories)
    figure, axes = plt.subplots(
        1, len(tasks), figsize=(3.6 * len(tasks) + 1.8, 3.2), sharey=True, squeeze=False, layout="constrained"
    )
    styles = line_styles(table["method"])
    for axis, task in zip(axes[0], tasks, strict=True):
        for i, (method, style) in enumerate(styles.items()):
            mine = table[(table["task"] == task) & (table["method"] == method)]
            place = mine["told"].cat.codes + 0.12 * (i - (len(styles) - 1) / 2)
            axis.plot(place, mine["exact_match"], label=method, alpha=0.8, **style | {"linestyle": "none"})
        worst = reference[reference["task"] == task].groupby("method")["exact_match"].min()
        for method, lowest in worst.items():
            axis.axhline(lowest, color="0.6", linewidth=1, label=f"{method}, worst seed")
        axis.set(title=task, ylim=(-4, 104), xlim=(-0.5, len(told) - 0.5))
        axis.set_xticks(range(len(told)), [name.replace(" from", "\nfrom") for name in told])
    axes[0][0].set_ylabel("exact match (%)")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, loc="outside right center")
    figure.suptitle(title)
    sns.despine(figure)
    return figure


@themed
def cost_and_accuracy(table: pd.DataFrame, cost: str, label: str, title: str) -> Figure:
    """Exact match against a cost of training, one point per run, one panel per task.

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
        for method, style in line_styles(methods).items():
            mine = table[(table["task"] == task) & (table["method"] == method)]
            axis.plot(mine[cost], mine["exact_match"], label=method, alpha=0.8, **style | {"linestyle": "none"})
        axis.set(title=task, xlabel=label, xlim=(0, None), ylim=(-4, 104))
    axes[0][0].set_ylabel("exact match (%)")
    handles, labels = axes[0][0].get_legend_handles_labels()
    labels = _saying_one_seed(labels, _of_one_seed(table, "task"))
    figure.legend(handles, labels, frameon=False, loc="outside right center")
    figure.suptitle(title)
    sns.despine(figure)
    return figure


@themed
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


@themed
def exact_match_by_shape(table: pd.DataFrame, trained: int, title: str) -> Figure:
    """Percent exact match over a square of shapes, such as terms and digits, with the training corner outlined.

    Args:
        table: index and columns are the two sizes, ascending; values in percent.
        trained: the largest size that was trained on, in both directions.
        title: of the figure.
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
