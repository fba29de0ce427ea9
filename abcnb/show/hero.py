"""The figure that opens the README, drawn from committed files: attention, the lines found in it, and the outcome.

Each part has the colour of its method: the attention of Vanilla, the lines of ABC.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import seaborn as sns
import torch
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.figure import Figure

from abcnb.files import check_writable, write_atomically
from abcnb.show.figures.accuracy import draw_accuracy
from abcnb.show.style import STYLED, line_style, themed
from abcnb.study import results, views
from abcnb.study.methods import experiment
from abcnb.study.runs import Run, load_run

WIDE = 20  # digits of the longer input
LONGEST = 100
VANILLA, ABS, ABC = (line_style(STYLED.index(name))["color"] for name in ("vanilla", "abs", "abc"))
STYLES = {
    "abc": ("ABC", {"color": ABC, "linewidth": 2, "marker": "D", "zorder": 3}),
    "abs": ("ABS", {"color": ABS, "linewidth": 7, "alpha": 0.45}),
    "vanilla": ("Vanilla", {"color": VANILLA, "linewidth": 2, "marker": "o", "zorder": 2}),
}


@themed
def hero(run: Run, table: pd.DataFrame) -> Figure:
    """Averaged attention of all heads, the lines found in it at more digits, and exact match against length.

    Args:
        run: of ABC on Addition; the attention is that of the plain model that it was calibrated from.
        table: rows of accuracy.csv.
    """
    e, (average,) = run.experiment, run.attention()
    task = e.get_task()
    attention = average.cross_attention.mean((0, 1))
    stream = task.stream(WIDE + 1, e.form)
    (bias,) = run.biases().cross_biases
    opened = bias(torch.arange(stream.rows), stream.columns(crossing=True)).amax(0)
    figure = Figure(figsize=(10, 3.2), dpi=200, layout="constrained")
    axes = figure.subplots(1, 3, width_ratios=(1, 1, 1.15))
    _draw_map(axes[0], attention, sns.light_palette(VANILLA, as_cmap=True))
    _draw_map(axes[1], opened, sns.color_palette(f"blend:#f3c9ae,{ABC}", as_cmap=True))
    _label_places(axes[0], average.stream.width)
    _label_operands(axes[1], stream.width)
    _draw_outcome(axes[2], table, task.train_length)
    axes[0].set_title("Vanilla's attention, averaged")
    axes[0].set_xlabel("source token (a digit by its place)")
    axes[1].set_title(f"The lines found, at {WIDE} digits")
    return figure


def _draw_map(axis: Axes, matrix: torch.Tensor, colours: Colormap) -> None:
    """Cells of a matrix, grey where they are closed."""
    axis.set_facecolor("0.9")
    cells = np.ma.masked_invalid(matrix.numpy())
    axis.imshow(cells, cmap=colours, aspect="auto", interpolation="nearest")
    axis.set(xlabel="source token", ylabel="output step")
    axis.spines[:].set(linewidth=0.8, color="0.4")
    axis.tick_params(pad=2)


def _label_places(axis: Axes, width: int) -> None:
    """Every token of `$a…a+b…b&`, digits by their place: 0 for units."""
    places = [str(place) for place in range(width)]
    tokens = ["$", *reversed(places), "+", *reversed(places), "&"]
    axis.set_xticks(range(len(tokens)), tokens, family="monospace", fontsize=10)
    axis.set_yticks(range(width + 1), [*places, "&"], family="monospace", fontsize=10)


def _label_operands(axis: Axes, width: int) -> None:
    """The tokens around the operands, and the operands by name."""
    ticks = {
        0: "$",
        0.5 * (width + 1): "a",
        width + 1: "+",
        1.5 * (width + 1): "b",
        2 * width + 2: "&",
    }
    axis.set_xticks(list(ticks), list(ticks.values()), fontsize=10)
    axis.set_yticks([0, 5, 10, 15, width], ["0", "5", "10", "15", "&"], family="monospace", fontsize=10)


def _draw_outcome(axis: Axes, table: pd.DataFrame, train_length: int) -> None:
    """Exact match against length of three methods, from the worst to the best seed."""
    chosen = (table["task"] == "addition") & (table["preset"] == "laptop") & (table["settings"] == "")
    chosen &= (table["test_set"] == "random") & (table["length"] <= LONGEST) & table["method"].isin(STYLES)
    rows = views.with_intervals(table[chosen])
    names = {method: name for method, (name, _) in STYLES.items()}
    draw_accuracy(axis, rows.assign(method=rows["method"].map(names)), train_length, dict(STYLES.values()))
    axis.legend(frameon=False, loc="center right", fontsize=12)


def write_hero(reports: Path, out: Path) -> None:
    """Draw the figure from the committed models and results of a reports folder.

    Raises:
        ValueError: the model or the results are not there.
        OSError: the file cannot be written; what was there before stays.
    """
    run = load_run(reports / "models" / experiment("addition", "abc", "laptop", 0).digest)
    table = results.read(reports / "results" / "accuracy.csv")
    if table.empty:
        raise ValueError(f"expected measured results in {reports / 'results' / 'accuracy.csv'}, got none")
    check_writable(out.parent)
    figure = hero(run, table)
    write_atomically(out, lambda file: figure.savefig(file, format="png"))
