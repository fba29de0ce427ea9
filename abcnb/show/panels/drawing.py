"""The maps of all heads that the panels draw.

Sixteen matplotlib axes take half a second at every move of a slider; drawing pixels takes a tenth of that.
`pyplot` is left alone: its current figure belongs to the reader, and a panel may draw from a thread.
"""

import io
import textwrap
from collections.abc import Iterable, Sequence

import matplotlib
import numpy as np
import torch
from matplotlib.colors import Normalize
from matplotlib.font_manager import findfont
from PIL import Image, ImageDraw, ImageFont

from abcnb.show.style import CLOSED, COLOURMAP, KEPT

WIDTH, LEFT, RIGHT, TOP = 960, 70, 80, 65  # in pixels, the picture's width and the room around its maps
CAPTION, LABELS, ACROSS = 32, 30, 4  # room above a row of maps and below the last one; maps in a row
TITLE, TEXT = (ImageFont.truetype(findfont("DejaVu Sans"), size) for size in (14, 12))
TOKENS = ImageFont.truetype(findfont("DejaVu Sans Mono"), 10)
_COLOURS = matplotlib.colormaps[COLOURMAP].with_extremes(bad=CLOSED)


def head_maps(
    cross: torch.Tensor,
    self_: torch.Tensor,
    names: Sequence[Sequence[str]],
    title: str,
    source: str,
    fed: str = "",
    written: str = "",
    weights: bool = False,
    tall: int = 115,
    step: int | None = None,
) -> bytes:
    """Maps of cross- and self-attention, or of their biases, as PNG; closed cells (−inf) are grey.

    Args:
        cross, self_: [maps, rows, columns] and [maps, rows, rows].
        names: of the maps of each attention.
        source, fed, written: tokens that label the source's columns, the steps attended to and the steps that write;
            numbers if there are none, or no room.
        weights: whether they are weights from 0 to 1, not biases.
        tall: height of a map, in pixels.
        step: the row outlined on every map.
    """
    lowest = min(float(part[torch.isfinite(part)].min()) for part in (cross, self_))
    norm = Normalize(0.0, 1.0) if weights else Normalize(lowest or -1.0, 0.0)
    (wide, height), corners = _layout(len(cross), len(self_), tall)
    picture = Image.new("RGB", (WIDTH, height), "white")
    pen = ImageDraw.Draw(picture)
    pen.text((WIDTH / 2, 10), textwrap.fill(title, 105), "black", TITLE, "ma", align="center")
    shown = [("source column", cross, source), ("step attended to", self_, fed)]
    for (number, place), (left, top) in corners.items():
        columns_are, values, tokens = shown[number]
        middle, bottom, (rows, columns) = left + wide / 2, top + tall, values.shape[1:]
        picture.paste(_cells(values[place].numpy(), norm, (wide, tall)), (left, top))
        pen.text((middle, top - 6), names[number][place], "black", TEXT, "ms")
        if step is not None:
            side = tall / rows
            pen.rectangle((left, top + step * side, left + wide, top + (step + 1) * side), outline=KEPT, width=2)
        if (number, place + ACROSS) not in corners:
            for i, text in _labels(tokens, columns, wide >= 6.5 * columns):
                pen.text((left + (i + 0.5) * wide / columns, bottom + 4), text, "black", TOKENS, "ma")
            pen.text((middle, bottom + 18), columns_are, "black", TEXT, "ma")
        if left == LEFT or not place:
            for i, text in _labels(written, rows, tall >= 11.5 * rows):
                pen.text((left - 5, top + (i + 0.5) * tall / rows), text, "black", TOKENS, "rm")
            _write_upwards(picture, "output step", left - 44, top, bottom)
    if weights or lowest < 0:
        left, bottom = WIDTH - RIGHT + 10, height - LABELS - CAPTION
        scale = np.linspace(norm.vmax, norm.vmin, 256)[:, None]
        picture.paste(_cells(scale, norm, (12, bottom - TOP)), (left, TOP))
        for share in (0, 0.5, 1):
            where = (left + 16, TOP + share * (bottom - TOP))
            pen.text(where, f"{norm.vmax + share * (norm.vmin - norm.vmax):.2g}", "black", TOKENS, "lm")
        _write_upwards(picture, "attention weight" if weights else "bias", WIDTH - 20, TOP, bottom)
    buffer = io.BytesIO()
    picture.save(buffer, "png", compress_level=1)
    return buffer.getvalue()


def of_heads(heads: Iterable[int]) -> tuple[list[str], list[str]]:
    """Names for the maps of these heads, in cross- and in self-attention."""
    return [f"cross-attention, head {head}" for head in heads], [f"self-attention, head {head}" for head in heads]


def _layout(crossed: int, own: int, tall: int) -> tuple[tuple[int, int], dict[tuple[int, int], tuple[int, int]]]:
    """Width of a map and height of the picture; the upper left corner of each map, by attention and place in it.

    Self-attention is below cross-attention, or beside it if each has one map.
    """
    maps, beside = (crossed, own), crossed == own == 1
    across, gap = (2, 75) if beside else (min(ACROSS, max(maps)), 20)
    wide = (WIDTH - LEFT - RIGHT - gap * (across - 1)) // across
    corners, top = {}, TOP
    for number, count in enumerate(maps):
        for place in range(count):
            row, column = divmod(number if beside else place, across)
            corners[number, place] = LEFT + column * (wide + gap), top + row * (tall + CAPTION)
        if number or not beside:
            top += -(-count // across) * (tall + CAPTION) + LABELS
    return (wide, top), corners


def _cells(values: np.ndarray, norm: Normalize, size: tuple[int, int]) -> Image.Image:
    """A matrix as a picture of coloured cells, closed ones in grey."""
    coloured = Image.fromarray(_COLOURS(norm(np.ma.masked_invalid(values)), bytes=True)[..., :3])
    return coloured.resize(size, Image.Resampling.NEAREST)


def _labels(tokens: str, number: int, room: bool) -> list[tuple[int, str]]:
    """Every token if there is room, else about four numbers."""
    if room and len(tokens) == number:
        return list(enumerate(tokens))
    return [(i, str(i)) for i in range(0, number, max(1, number // 4))]


def _write_upwards(picture: Image.Image, text: str, left: int, top: int, bottom: int) -> None:
    """Write a text from bottom to top, centred between two heights."""
    line = Image.new("RGB", (bottom - top, 16), "white")
    ImageDraw.Draw(line).text((line.width / 2, 8), text, "black", TEXT, "mm")
    picture.paste(line.rotate(90, expand=True), (left, top))
