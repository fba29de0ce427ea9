"""The figure that opens the README, drawn from committed files: attention, the lines found in it, and the outcome."""

from pathlib import Path

import pandas as pd
import seaborn as sns
import torch
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from abcnb.machine.files import write_atomically
from abcnb.show.figures import draw_accuracy
from abcnb.show.style import PALETTE, line_styles, nested_styles, themed
from abcnb.study import results, views
from abcnb.study.methods import experiment
from abcnb.study.runs import Run, load_run

WIDE = 20  # digits of the longer input
NAMED = 6  # lines that the legend names
FIRST_SEED = 70  # nothing was chosen on seeds from here on
TASKS = {"successor": "Successor", "addition": "Addition", "parity": "Parity", "n-by-1": "N×1"}
ROWS = {"multiplication": "products, n × n", "many-addition": "sums of n terms", "nested": "lists, n deep"}
TASKS |= ROWS
PLAIN = "plain models"


@themed()
def hero(run: Run, table: pd.DataFrame) -> Figure:
    """Averaged attention of all heads, the strongest lines found in it, and exact match against length.

    `run` is a run of ABC on Addition; `table` has the rows of accuracy.csv.
    """
    (average,) = run.attention()
    figure = Figure(figsize=(10, 3.2), dpi=200, layout="constrained")
    before, found, outcome = figure.subplots(1, 3, width_ratios=(1, 1.35, 1.5))
    colours = sns.light_palette(line_styles(["vanilla"])["vanilla"]["color"], as_cmap=True)
    _draw_map(before, average.cross_attention.mean((0, 1)), colours, "A plain model's attention")
    places = [str(place) for place in range(average.stream.width)]
    tokens = ["$", *reversed(places), "+", *reversed(places), "&"]
    before.set_xticks(range(len(tokens)), tokens, family="monospace", fontsize=9)
    before.set_yticks(range(len(places) + 1), [*places, "&"], family="monospace", fontsize=9)
    before.set_xlabel("source token, by place")
    _draw_lines(found, run)
    rows = table[(table["settings"] == "") & (table["preset"] == "laptop") & (table["seed"] >= FIRST_SEED)]
    rows = rows[(rows["test_set"] == "random") & rows["task"].isin(TASKS) & rows["length"].between(6, 60)]
    # Plain models of outputs in rows were trained on fewer than six digits.
    shown = (rows["method"] == "abc") | ((rows["method"] == "vanilla") & ~rows["task"].isin(ROWS))
    rows = views.with_intervals(views.in_order(rows[shown]))
    lined = rows["method"] == "abc"
    rows["method"] = rows["task"].map(TASKS).where(lined, PLAIN)
    styles = nested_styles([*rows["method"][lined], PLAIN])
    styles[PLAIN] |= {"color": "0.35", "linestyle": "--", "marker": "o"}
    draw_accuracy(outcome, rows, run.experiment.get_task().train_length, styles)
    counts = rows[lined].groupby("task")["seed"].nunique()
    outcome.texts[0].set(text="trained to 6 (lists: 2)", ha="left")
    outcome.set_title(f"ABC by length, {views.span(counts)} seeds a task", pad=16)
    outcome.set_xlabel("length n (digits, terms, depth)")
    outcome.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=9)
    return figure


def _draw_lines(axis: Axes, run: Run) -> None:
    """Draw the lines of cross-attention at more digits: the strongest named and coloured, the others grey."""
    stream = run.experiment.get_task().stream(WIDE + 1, run.experiment.form)
    shares = {line: share for line, share, *_ in run.calibration().found}
    (bias,) = run.biases().cross_biases
    lines = list(dict.fromkeys(line._replace(head=0) for line in bias.lines))  # strongest first, one to a head
    opened = bias.on_lines(torch.arange(stream.rows), stream)[..., 0]
    numbers = torch.full((stream.rows, stream.source), torch.nan)
    for number in reversed(range(len(lines))):  # the strongest last, on top of the others
        rows = (opened[number] >= 0).nonzero().flatten()
        numbers[rows, opened[number][rows]] = min(number, NAMED)
    colours = [*PALETTE[1 : NAMED + 1], "0.6"]
    _draw_map(axis, numbers, ListedColormap(colours), f"The lines found, at {WIDE} digits", vmin=0, vmax=NAMED)
    named = [Patch(color=c, label=f"{n} {shares[n]:.2f}") for n, c in zip(lines, colours[:NAMED], strict=False)]
    named.append(Patch(color=colours[-1], label="others"))
    font = {"family": "monospace", "size": 8}
    axis.legend(handles=named, loc="center left", bbox_to_anchor=(1, 0.5), handlelength=1, prop=font)
    operand = WIDE + 2  # its digits and the token before it
    middles = {0: "$", operand / 2: "a", operand: "+", 1.5 * operand: "b", 2 * operand: "&"}
    axis.set_xticks(list(middles), list(middles.values()), fontsize=10)
    axis.set_yticks([0, 5, 10, 15, WIDE + 1], ["0", "5", "10", "15", "&"], family="monospace", fontsize=9)


def _draw_map(axis: Axes, matrix: torch.Tensor, colours: Colormap, title: str, **limits) -> None:
    """Draw the cells of a matrix, closed ones in light grey."""
    axis.set_facecolor("0.94")
    axis.imshow(matrix.numpy(), cmap=colours, aspect="auto", interpolation="nearest", **limits)
    axis.set(xlabel="source token", ylabel="output step", title=title)
    axis.spines[:].set(visible=True, linewidth=0.8, color="0.4")
    axis.tick_params(pad=2)


def write_hero(reports: Path, out: Path) -> None:
    """Draw the figure from a reports folder; ValueError if its model is missing."""
    run = load_run(reports / "models" / experiment("addition", "abc", "laptop", 0).digest)
    figure = hero(run, results.read(reports / "results" / "accuracy.csv"))
    write_atomically(out, lambda file: figure.savefig(file, format="png"))
