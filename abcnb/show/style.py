"""How every figure looks: one palette, one set of markers, one theme.

The theme holds only while a figure is made: importing this package leaves the reader's matplotlib settings alone.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, count

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure

PALETTE = tuple(sns.color_palette("colorblind").as_hex())
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h")
DASHES = ("-", "--", ":")
# Methods that look the same in every figure, in the order of their styles; other names get those that are left.
STYLED = (
    "vanilla", "abs-cpi", "abs", "abc", "abs-sinusoidal", "abs-nope", "abc-paper", "rope",
    "rpe", "nope", "alibi", "alibi-cross", "rpe-self", "lora", "t5", "abacus", "fire", "kerple", "coupled", "learned",
    "randomized", "rope-pi",
)  # fmt: skip
KEPT, DROPPED = PALETTE[1], "0.55"  # lines that a calibration keeps, and those that it drops
CLOSED = "0.8"  # cells of a bias that attention cannot use
COLOURMAP = "viridis"  # of weights and biases
THEME = {
    **sns.plotting_context("notebook", font_scale=0.85),
    **sns.axes_style("white"),
    "axes.prop_cycle": cycler(color=PALETTE),
    "figure.titlesize": "medium",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}


def line_style(number: int) -> dict:
    """Colour, marker and dashes of the n-th line; the ten colours repeat with other dashes, three later each time,
    since the eleventh method is often shown beside the first."""
    again, place = divmod(number, len(PALETTE))
    return {
        "color": PALETTE[(place + 3 * again) % len(PALETTE)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": DASHES[again % len(DASHES)],
    }


def line_styles(names: Iterable[str]) -> dict[str, dict]:
    """The style of each line by name: a method's own, or one of those that are left for other names."""
    names = list(dict.fromkeys(names))
    taken = {STYLED.index(name) for name in names if name in STYLED}
    left = (number for number in count() if number not in taken)
    return {name: line_style(STYLED.index(name) if name in STYLED else next(left)) for name in names}


def nested_styles(names: Iterable[str]) -> dict[str, dict]:
    """`line_styles`, with earlier lines wider and their markers larger, so that coinciding lines all show."""
    styles = line_styles(names)
    for later, style in enumerate(reversed(styles.values())):
        wider = later / max(4, len(styles))
        style.update(linewidth=1.4 + 4 * wider, markersize=4.5 + 8 * wider)
    return styles


@contextmanager
def themed() -> Iterator[None]:
    """This theme while a figure is drawn, then the reader's settings again; as a decorator, `@themed()`."""
    # Not rc_context: it would also undo what a kernel's first figure sets up so that figures are shown.
    before = {name: matplotlib.rcParams[name] for name in THEME}
    matplotlib.rcParams.update(THEME)
    try:
        yield
    finally:
        matplotlib.rcParams.update(before)


def row_of_axes(
    names: Collection[str],
    width: float,
    height: float,
    legend: float = 0,
    ylabel: str = "",
    most: int = 8,
    **options,
) -> tuple[Figure, dict[str, Axes]]:
    """A figure with an axis titled by each name, `most` in a row, and room for a legend; sizes in inches."""
    columns = min(most, len(names))
    filled = [*names, *["."] * (-len(names) % columns)]
    rows = np.reshape(filled, (-1, columns))
    size = (width * columns + legend, height * len(rows))
    figure, axes = plt.subplot_mosaic(rows.tolist(), figsize=size, layout="constrained", **options)
    for name, axis in axes.items():
        axis.set_title(name)
    figure.axes[0].set_ylabel(ylabel)
    return figure, axes


def finish(figure: Figure, title: str, **legend) -> Figure:
    """Give a figure its title and the legend of its axes, if any; options as in matplotlib, such as `labels`."""
    entries = [zip(*axis.get_legend_handles_labels(), strict=True) for axis in figure.axes]
    if named := {label: handle for handle, label in chain(*entries)}:
        figure.legend(**{"handles": named.values(), "labels": named, "loc": "outside right center"} | legend)
    figure.suptitle(title)
    return figure
