"""The lines of attention maps: their strengths, the biases they become, and what reading along them yields."""

import matplotlib.pyplot as plt
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from abcnb.lines.algorithm1 import DIRECTIONS
from abcnb.show.style import DROPPED, KEPT, PALETTE, finish, line_style, row_of_axes, themed


@themed
def line_strengths(lines: pd.DataFrame, head: int) -> Figure:
    """Strength d of every line of one head against its offset, one panel per direction, kept lines marked.

    Args:
        lines: from `algorithm1.line_table`.
        head: the head shown.
    """
    mine = lines[lines["head"] == head]
    groups = {DIRECTIONS[direction]: group for direction, group in mine.groupby("direction", sort=False)}
    figure, axes = row_of_axes(groups, 2.8, 2.6, sharey=True)
    for name, axis in axes.items():
        group = groups[name]
        dropped, kept = group[~group["kept"]], group[group["kept"]]
        axis.vlines(group["offset"], 0, group["strength"], color="0.7", linewidth=1)
        axis.plot(dropped["offset"], dropped["strength"], "o", color=DROPPED, markersize=3.5, label="dropped")
        axis.plot(kept["offset"], kept["strength"], "D", color=KEPT, markersize=6, label="kept")
        axis.set(xlabel="offset", ylabel="strength d")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.axes[0].legend(fontsize=7)
    figure.suptitle(f"head {head}")
    return figure


@themed
def bias_by_distance(panels: dict[str, pd.DataFrame], title: str) -> Figure:
    """What scalar each scheme adds to the attention score of two steps, against their distance.

    Args:
        panels: name of the scheme to a table of head, distance (j − i, in steps), bias.

    Source: paper, figure 12 (schematic there: the factors that determine the bias of RPE and of ABC).
    """
    figure, axes = row_of_axes(panels, 4.2, 3.2, sharex=True)
    for name, axis in axes.items():
        for head, group in panels[name].groupby("head"):
            axis.plot(group["distance"], group["bias"], label=f"head {head}", markersize=4, **line_style(head))
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set(xlabel="distance j − i (steps)", ylabel="added to the score")
    return finish(figure, title)


@themed
def reading_by_step(table: pd.DataFrame, train_length: int, title: str) -> Figure:
    """Attention on the right digits and correctness, step by step, one panel per input length.

    Args:
        table: columns length, step, share (percent of attention on the step's own place), correct (percent).
        train_length: longest training length, marked.
    """
    lengths = sorted(table["length"].unique())
    figure, axes = row_of_axes([f"{length} digits" for length in lengths], 3.6, 3.0, sharey=True)
    for axis, length in zip(axes.values(), lengths, strict=True):
        mine = table[table["length"] == length]
        axis.plot(mine["step"], mine["share"], markersize=4, label="attention on its place", **line_style(0))
        axis.plot(mine["step"], mine["correct"], markersize=4, label="digit correct", **line_style(1))
        axis.axvline(train_length - 0.5, linestyle=":", color="0.4", label="end of the training places")
        axis.set(xlabel="output step (place)", ylim=(-3, 103))
    figure.axes[0].set_ylabel("percent")
    return finish(figure, title, "outside lower center", ncols=3)


@themed
def explained_by_lines(curve: pd.DataFrame, title: str) -> Figure:
    """What a plain model gets right when it sees its own lines alone, against τ; numbers are how many lines.

    Args:
        curve: columns tau, lines, exact_match (percent).
    """
    figure, axis = plt.subplots(figsize=(5.2, 3.0), layout="constrained")
    _draw_against_tau(axis, curve, numbered=True, color=PALETTE[0], marker="o", markersize=5)
    axis.set(ylabel="exact match (%)", title=title)
    return figure


def _draw_against_tau(axis: Axes, curve: pd.DataFrame, numbered: bool, **style) -> None:
    """Exact match against τ; where `numbered`, with how many lines there are."""
    axis.plot(curve["tau"], curve["exact_match"], **style)
    for row in curve.itertuples() if numbered else ():
        where = {"xytext": (0, 7), "textcoords": "offset points", "ha": "center"}
        axis.annotate(row.lines, (row.tau, row.exact_match), fontsize=7, **where)
    axis.set(xlabel="τ", ylim=(-4, 114), xscale="log")
    if numbered:
        axis.set_xticks(list(curve["tau"]), [f"{tau:g}" for tau in curve["tau"]], fontsize=7)
        axis.set_xticks([], minor=True)


@themed
def plateau(table: pd.DataFrame, chosen: float, title: str) -> Figure:
    """Exact match against τ, a curve per seed and an axis per task; numbers are how many lines the first seed has.

    Args:
        table: columns task, seed, tau, lines, exact_match (percent).
        chosen: the τ of the rule, marked.
    """
    figure, axes = row_of_axes(table["task"].unique(), 3.2, 2.8, 1.0, sharey=True)
    for task, axis in axes.items():
        for number, (seed, curve) in enumerate(table[table["task"] == task].groupby("seed")):
            _draw_against_tau(axis, curve, not number, label=f"seed {seed}", **line_style(number))
        axis.axvline(chosen, linestyle=":", color="0.4")
    figure.axes[0].set_ylabel("exact match (%)")
    return finish(figure, title)


@themed
def margins(found: dict[str, torch.Tensor], title: str) -> Figure:
    """How many windows have which lead of the right logit, an axis per model; the least lead is marked.

    Args:
        found: for each model the lead of the right logit over every other, [windows].
    """
    figure, axes = row_of_axes(found, 3.6, 2.6)
    for name, axis in axes.items():
        axis.hist(found[name].numpy(), bins=60, log=True, color=KEPT, edgecolor=KEPT)
        least = float(found[name].min())
        axis.axvline(least, linestyle=":", color="0.4")
        place = {
            "xycoords": axis.get_xaxis_transform(),
            "textcoords": "offset points",
            "rotation": 90,
            "va": "top",
        }
        axis.annotate(f"{least:.2f}", (least, 0.97), (-12, 0), **place)
        axis.set(xlim=(0, None), xlabel="lead of the right logit")
    figure.axes[0].set_ylabel("windows")
    return finish(figure, title)
