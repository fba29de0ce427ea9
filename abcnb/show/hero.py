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

from abcnb.lines.line import dealt, parted
from abcnb.machine.files import check_writable, write_atomically
from abcnb.show.figures.accuracy import draw_accuracy
from abcnb.show.style import STYLED, line_style, themed
from abcnb.study import results, views
from abcnb.study.methods import experiment
from abcnb.study.runs import Run, load_run

WIDE = 20  # digits of the longer input
LONGEST = 100
VANILLA, ABS, ABC = (line_style(STYLED.index(name))["color"] for name in ("vanilla", "abs", "abc"))
NAMES = {"abc": "ABC", "abs": "ABS", "vanilla": "Vanilla"}
STYLES = {
    "ABC": {"color": ABC, "linewidth": 2, "marker": "D", "zorder": 3},
    "ABS": {"color": ABS, "linewidth": 7, "alpha": 0.45},
    "Vanilla": {"color": VANILLA, "linewidth": 2, "marker": "o", "zorder": 2},
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
    calibration = run.calibration()
    shares = {line: share for line, share, *_ in calibration.found}
    _, lines = parted(calibration.strongest(e.model.heads), calibration.stream)
    opened = dealt("cross", len(lines), lines)(torch.arange(stream.rows), stream.columns(crossing=True))
    opened = (opened + torch.tensor([shares[line] for line in lines])[:, None, None]).amax(0)
    figure = Figure(figsize=(10, 3.2), dpi=200, layout="constrained")
    before, found, outcome = figure.subplots(1, 3, width_ratios=(1, 1, 1.15))
    _draw_map(before, attention, sns.light_palette(VANILLA, as_cmap=True), "Vanilla's attention, averaged")
    places = [str(place) for place in range(average.stream.width)]
    tokens = ["$", *reversed(places), "+", *reversed(places), "&"]
    before.set_xticks(range(len(tokens)), tokens, family="monospace", fontsize=10)
    before.set_yticks(range(len(places) + 1), [*places, "&"], family="monospace", fontsize=10)
    before.set_xlabel("source token (a digit by its place)")
    colours = sns.color_palette(f"blend:#f3c9ae,{ABC}", as_cmap=True)
    _draw_map(found, opened, colours, f"The lines found, by share, at {WIDE} digits")
    operand = WIDE + 2  # its digits and the token before it
    middles = {0: "$", operand / 2: "a", operand: "+", 1.5 * operand: "b", 2 * operand: "&"}
    found.set_xticks(list(middles), list(middles.values()), fontsize=10)
    found.set_yticks([0, 5, 10, 15, WIDE + 1], ["0", "5", "10", "15", "&"], family="monospace", fontsize=10)
    rows = table.query("task == 'addition' and preset == 'laptop' and settings == '' and test_set == 'random'")
    rows = rows[rows["method"].isin(NAMES) & (rows["length"] <= LONGEST)]
    rows = views.with_intervals(rows).replace({"method": NAMES})
    draw_accuracy(outcome, rows, task.train_length, STYLES)
    outcome.legend(loc="center right", fontsize=12)
    return figure


def _draw_map(axis: Axes, matrix: torch.Tensor, colours: Colormap, title: str) -> None:
    """Cells of a matrix, grey where they are closed."""
    axis.set_facecolor("0.9")
    axis.imshow(np.ma.masked_invalid(matrix.numpy()), cmap=colours, aspect="auto", interpolation="nearest")
    axis.set(xlabel="source token", ylabel="output step", title=title)
    axis.spines[:].set(visible=True, linewidth=0.8, color="0.4")
    axis.tick_params(pad=2)


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
