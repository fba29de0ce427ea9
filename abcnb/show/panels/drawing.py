"""What the panels draw: figures with fixed margins whose artists are re-used, so that a redraw is fast.

Measured on one core: a constrained layout or sixteen fully ticked axes take 0.3 s per redraw; fixed margins, ticks
on the outer axes only and images that are given new data take a third of it. `pyplot` is left alone: its current
figure belongs to the reader, and a panel may draw from a thread. ipympl was weighed and left: it would bring toolbars,
a second canvas in the kernel and pyplot, and what is saved without a kernel would still have to be drawn here.
"""

import io
import textwrap
import threading
from collections.abc import Sequence

import numpy as np
import pandas as pd
import seaborn as sns
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from abcnb.show.figures.accuracy import draw_accuracy
from abcnb.show.style import CLOSED, KEPT

MOST_TOKENS = 104  # of an input that are drawn as cells
WIDTH = 9.6  # inches of the maps' figure
# A cell's side; where cells are smaller they are pooled, or thin lines would fall between pixels.
LEAST_PIXELS = 1.3
_drawing = threading.Lock()


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), dpi=100, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _encode(figure: Figure) -> bytes:
    size, pixels = figure.canvas.get_width_height(), figure.canvas.buffer_rgba()
    buffer = io.BytesIO()
    Image.frombuffer("RGBA", size, pixels, "raw", "RGBA", 0, 1).convert("RGB").save(
        buffer, "png", compress_level=1
    )
    return buffer.getvalue()


def to_png(figure: Figure) -> bytes:
    """Draw a figure and return it as PNG."""
    with _drawing:
        figure.canvas.draw()
        return _encode(figure)


def stacked(pictures: Sequence[bytes]) -> bytes:
    """PNGs below each other as one."""
    images = [Image.open(io.BytesIO(picture)) for picture in pictures]
    whole = Image.new("RGB", (max(i.width for i in images), sum(i.height for i in images)), "white")
    top = 0
    for image in images:
        whole.paste(image, (0, top))
        top += image.height
    buffer = io.BytesIO()
    whole.save(buffer, "png", optimize=True)
    return buffer.getvalue()


def sentence(text: str) -> Figure:
    """A figure of one line of text, where there is nothing else to show."""
    figure = _figure(9.5, 0.5)
    figure.text(0.01, 0.5, text, va="center", fontsize=10, parse_math=False)
    return figure


def _pooled(matrix: np.ndarray, inches: tuple[float, float]) -> np.ndarray:
    """[rows, columns] with blocks of cells replaced by their largest one, so that they fill a pixel."""
    most = (max(1, int(100 * side / LEAST_PIXELS)) for side in inches)
    rows, columns = (-(-n // m) for n, m in zip(matrix.shape, most, strict=True))
    if rows == columns == 1:
        return matrix
    ends = [(0, -matrix.shape[0] % rows), (0, -matrix.shape[1] % columns)]
    padded = np.pad(matrix, ends, constant_values=-np.inf)
    blocks = padded.reshape(padded.shape[0] // rows, rows, padded.shape[1] // columns, columns)
    return blocks.max((1, 3))


def _ticks(axis, n: int, labels: Sequence[str] | None, inches: float) -> None:
    """Ticks of a matplotlib axis object (x or y): every label where they fit, else about four numbers."""
    is_x = axis.axis_name == "x"
    if labels is not None and len(labels) == n and n * (0.065 if is_x else 0.115) <= inches:
        axis.set_ticks(range(n), labels, fontsize=7.5, family="monospace", parse_math=False)
    else:
        step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, n) if n <= 5 * step or step == n)
        axis.set_ticks(range(0, n, step), [str(i) for i in range(0, n, step)], fontsize=8.5)


class HeadMaps:
    """Maps of cross- and self-attention, one per head, in a grid whose artists live on from draw to draw.

    Args:
        heads: the heads' numbers; a single one gets two large maps.
        row_inches: height of one map.
        colourmap: its name; closed cells (−inf) are grey.
        label: of the colour bars; empty for none.

    Attributes:
        figure: the matplotlib figure.
    """

    def __init__(self, heads: Sequence[int], row_inches: float, colourmap: str, label: str):
        self.heads = tuple(heads)
        across = min(4, len(self.heads))
        down = -(-len(self.heads) // across)
        blocks = 1 if len(self.heads) == 1 else 2
        self._columns = 2 if blocks == 1 else across
        rows = blocks * down
        self._gap = 0.75 if blocks == 1 else 0.2
        self._map_width = (WIDTH - 1.5 - self._gap * (self._columns - 1)) / self._columns
        self._row_inches = row_inches * (1.6 if blocks == 1 else 1)
        height = rows * self._row_inches + (rows - 1) * 0.32 + 0.3 * (blocks - 1) + 1.15
        self.figure = _figure(WIDTH, height)
        self._colourmap = colourmap
        self._title = self.figure.text(
            0.5, 1 - 0.12 / height, "", ha="center", va="top", fontsize=10, parse_math=False
        )
        self._maps: dict[str, list] = {"cross": [], "self": []}
        self._bars: list = []
        self._labelled: tuple = ()  # what the axes are labelled for
        # Pixels: the axes alone, with the colour bars, and with what was shown last.
        self._frame = self._barred = self._background = None
        self._scales: list = []
        for name, maps in self._maps.items():
            for number, head in enumerate(self.heads):
                row, column = divmod(number, across)
                second = name == "self"
                row, column = (0, int(second)) if blocks == 1 else (row + down * second, column)
                maps.append(self._add_map(name, head, row, column, height, blocks == 2 and second))
            if label:
                self._add_bar(name, maps, height, label)

    def _add_map(self, name: str, head: int, row: int, column: int, height: float, second: bool) -> tuple:
        top = 0.65 + row * (self._row_inches + 0.32) + 0.3 * second
        left = 0.7 + column * (self._map_width + self._gap)
        box = (
            left / WIDTH,
            1 - (top + self._row_inches) / height,
            self._map_width / WIDTH,
            self._row_inches / height,
        )
        axis = self.figure.add_axes(box, facecolor=CLOSED)
        axis.spines[:].set_visible(False)
        image = axis.imshow(np.zeros((2, 2)), cmap=self._colourmap, aspect="auto", interpolation="nearest")
        axis.set_title(f"{name}-attention, head {head}", fontsize=9, pad=3)
        axis.tick_params(length=2, pad=1.5, left=True, bottom=True)
        mark = axis.add_patch(Rectangle((0, 0), 1, 1, fill=False, color=KEPT, linewidth=2, visible=False))
        return axis, image, mark

    def _add_bar(self, name: str, maps: list, height: float, label: str) -> None:
        axis, image, _ = maps[0]
        if self._columns == 2 and len(self.heads) == 1 and name == "cross":
            return  # one bar for the two large maps: they share their scale
        box, last = axis.get_position(), maps[-1][0].get_position()
        bar_axis = self.figure.add_axes((1 - 0.7 / WIDTH, last.y0, 0.12 / WIDTH, box.y1 - last.y0))
        bar = self.figure.colorbar(image, cax=bar_axis)
        bar.set_label(label, fontsize=9, labelpad=2)
        bar_axis.tick_params(labelsize=8.5, length=2, pad=1.5)
        self._bars.append(bar_axis)

    def show(
        self,
        cross: torch.Tensor,
        self_: torch.Tensor,
        title: str,
        source: Sequence[str] | None = None,
        fed: Sequence[str] | None = None,
        written: Sequence[str] | None = None,
        high: float | None = None,
    ) -> "HeadMaps":
        """Put attention or biases on the heads' maps, to be drawn by `png` or `mark`.

        Args:
            cross: [all heads, rows, columns].
            self_: [all heads, rows, rows].
            title: of the figure.
            source, fed, written: tokens as tick labels of the source columns, of the steps attended to and of
                the steps that write; numbers where there are none or no room.
            high: upper end of the colour scale, with 0 as its lower one; None takes both from the values.
        """
        self._title.set_text(textwrap.fill(title, 105))
        single = len(self.heads) == 1
        shared = _scale([cross, self_], high) if single else None
        labelled = (cross.shape, self_.shape, *(tuple(tokens or ()) for tokens in (source, fed, written)))
        if relabel := labelled != self._labelled:
            self._labelled, self._frame = labelled, None
        scales = [shared or _scale([values], high) for values in (cross, self_)]
        if relabel or scales != self._scales:
            self._scales, self._barred = scales, None
        for name, values, across, scale in zip(self._maps, (cross, self_), (source, fed), scales, strict=True):
            maps = self._maps[name]
            for number, (head, (axis, image, mark)) in enumerate(zip(self.heads, maps, strict=True)):
                self._fill(axis, image, values[head].numpy(), scale)
                mark.set_visible(False)
                bottom, left = number + self._columns >= len(maps), number % self._columns == 0
                if relabel:
                    self._label(axis, name, values.shape[1:], (across, written), bottom, left or single)
        self._background = None
        return self

    def png(self) -> bytes:
        """The maps as PNG."""
        with _drawing:
            self._draw()
            return _encode(self.figure)

    def _draw(self) -> None:
        """Draw the figure; of one that has been drawn, what changes with the values alone, in a third of the time."""
        every = [part for maps in self._maps.values() for part in maps]
        images, canvas = [image for _, image, _ in every], self.figure.canvas
        changing = [*images, *self._bars, self._title]
        if self._frame is None:
            for artist in changing:
                artist.set_visible(False)
            canvas.draw()
            self._frame = canvas.copy_from_bbox(self.figure.bbox)
            for artist in changing:
                artist.set_visible(True)
        if self._barred is None:
            canvas.restore_region(self._frame)
            for bar in self._bars:
                self.figure.draw_artist(bar)
            self._barred = canvas.copy_from_bbox(self.figure.bbox)
        canvas.restore_region(self._barred)
        for axis, image, _ in every:
            axis.draw_artist(image)
        self.figure.draw_artist(self._title)

    def _fill(self, axis, image, matrix: np.ndarray, scale: tuple[float, float]) -> None:
        image.set_data(np.ma.masked_invalid(_pooled(matrix, (self._row_inches, self._map_width))))
        rows, columns = matrix.shape
        image.set_extent((-0.5, columns - 0.5, rows - 0.5, -0.5))
        axis.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))
        image.set_clim(*scale)

    def _label(self, axis, name: str, shape: Sequence[int], tokens: tuple, bottom: bool, left: bool) -> None:
        rows, columns = shape
        if bottom:
            _ticks(axis.xaxis, columns, tokens[0], self._map_width)
            axis.set_xlabel("source column" if name == "cross" else "step attended to", fontsize=9, labelpad=1)
        else:
            axis.set_xticks([])
        if left:
            _ticks(axis.yaxis, rows, tokens[1], self._row_inches)
            axis.set_ylabel("output step", fontsize=9, labelpad=2)
        else:
            axis.set_yticks([])

    def mark(self, step: int) -> bytes:
        """Outline the row of one output step on all maps, over what was drawn last; returns PNG."""
        every = [part for name in ("cross", "self") for part in self._maps[name]]
        with _drawing:
            canvas = self.figure.canvas
            if self._background is None:
                for _, _, mark in every:
                    mark.set_visible(False)
                self._draw()
                self._background = canvas.copy_from_bbox(self.figure.bbox)
            canvas.restore_region(self._background)
            for axis, _, mark in every:
                left, right = axis.get_xlim()
                mark.set(bounds=(left, step - 0.5, right - left, 1), visible=True, clip_on=False)
                axis.draw_artist(mark)
            return _encode(self.figure)


def _scale(values: Sequence[torch.Tensor], high: float | None) -> tuple[float, float]:
    """The colour scale of some maps: from 0 to `high`, or from their least finite value or 0 to their largest."""
    if high is not None:
        return 0.0, high
    finite = torch.cat([part[torch.isfinite(part)] for part in values])
    low, high = min(float(finite.min()), 0.0), max(float(finite.max()), 0.0)
    return (low, high) if high - low > 1e-6 else (-1.0, 0.0)


def cell_rows(
    rows: dict[str, tuple[Sequence[str], Sequence]], per_block: int = 26, legend: dict[str, object] | None = None
) -> Figure:
    """A table of coloured cells, one row per property and one column per token, wrapped into blocks.

    Of a longer input only the first `MOST_TOKENS` are drawn.

    Args:
        rows: name of the row to its texts and its colours (None leaves a cell white).
        per_block: columns side by side before the table goes on below.
        legend: what colours mean, written under the table.
    """
    columns = min(len(next(iter(rows.values()))[0]), MOST_TOKENS)
    blocks = [range(start, min(start + per_block, columns)) for start in range(0, columns, per_block)]
    cell, left, tall = 0.29, 1.75, 0.28 * len(rows)
    height = len(blocks) * (tall + 0.2) + 0.1 + 0.22 * -(-len(legend or ()) // 3) + (0.1 if legend else 0)
    width = max(left + 0.1 + cell * len(blocks[0]), 7.5)
    figure = _figure(width, height)
    for number, block in enumerate(blocks):
        bottom = height - (number + 1) * (tall + 0.2) + 0.12
        box = (left / width, bottom / height, cell * len(block) / width, tall / height)
        axis = figure.add_axes(box)
        colours = [[to_rgba(rows[name][1][i] or "white") for i in block] for name in rows]
        axis.pcolormesh(np.array(colours), edgecolors="white", linewidth=1)
        axis.invert_yaxis()
        axis.set_xticks([])
        axis.set_yticks(np.arange(len(rows)) + 0.5, list(rows), fontsize=9)
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
        for y, (texts, _) in enumerate(rows.values()):
            for x, i in enumerate(block):
                ink = "white" if np.dot(colours[y][x][:3], (0.3, 0.59, 0.11)) < 0.45 else "black"
                axis.text(
                    x + 0.5, y + 0.5, texts[i], ha="center", va="center", fontsize=9, color=ink,
                    family="monospace", parse_math=False,
                )  # fmt: skip
    if legend:
        _legend(figure, legend, left / width, height)
    return figure


def _legend(figure: Figure, legend: dict[str, object], left: float, height: float) -> None:
    handles = [Rectangle((0, 0), 1, 1, facecolor=colour, edgecolor="0.6") for colour in legend.values()]
    figure.legend(
        handles, list(legend), loc="lower left", bbox_to_anchor=(left, 0.0), ncols=3, frameon=False,
        fontsize=9, borderpad=0.2, handlelength=1.2, columnspacing=1.4,
    )  # fmt: skip


def shade(number: int, of: int) -> tuple[float, ...] | None:
    """The colour of a whole number from 0 to `of` on the cividis scale, None below 0."""
    if number < 0:
        return None
    return tuple(sns.color_palette("cividis", of + 1)[min(number, of)])


def accuracy_figure(table: pd.DataFrame, train_length: int) -> Figure:
    """Percent exact match against length, one line per setting, its name below; arguments as of `draw_accuracy`."""
    names = 0.22 * table["method"].nunique()
    height = 3.3 + names
    figure = _figure(8.5, height)
    axis = figure.add_axes((0.09, (0.6 + names) / height, 0.88, 2.35 / height))
    draw_accuracy(axis, table, train_length)
    axis.grid(axis="y", color="0.9")
    figure.legend(loc="lower left", bbox_to_anchor=(0.08, 0.0), frameon=False, fontsize=9, borderpad=0.2)
    return figure
