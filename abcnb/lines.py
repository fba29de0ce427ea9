"""`LineBias`: a finite set of open lines for each head, the type that ABS writes and ABC reads off attention.

A line crosses the attention matrix in direction (1, Δ): going one row down moves it Δ columns right. It meets
every row in at most one column, so step i opens a constant number of columns whatever the input's length.
Which line a number `offset` means depends on the frame:

    frame    Δ     coordinate x of a cell (i, j)                         line
    columns  ≥ 0   j, counted from the left                              x − Δ·i = offset
    columns  < 0   N − 1 − j, counted from the right                     x − |Δ|·i = offset
    places   < 0   place of column j in the segment, units 0             x − |Δ|·i = offset
    places   > 0   distance of j from just left of the operand           x − Δ·i = offset
    places   = 0   number of the structural token                        x = offset

In the `columns` frame a line with Δ ≥ 0 keeps its distance from the matrix's top-left corner when the matrix
grows and one with Δ < 0 from the top-right corner (paper, Algorithm 1 and its footnote). In the `places`
frame a line belongs to an operand and keeps its distance from that operand's end. In decoder self-attention the
frames differ in vertical lines alone: step `offset` in `columns`, the start token in `places`. Diagonals are distances
between steps, anti-diagonals are counted from the last step.
"""

import json
import math
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch

from abcnb.biases import CLOSED, Biases
from abcnb.layout import Layout, Steps, locate

FRAMES = ("columns", "places")
ATTENTIONS = ("self", "cross")
CLOSED_ROW_RULES = ("transparent", "nearest")
DIRECTION_NAMES = {
    -2: "anti-diagonal Δ=−2",
    -1: "anti-diagonal",
    0: "vertical",
    1: "diagonal",
    2: "diagonal Δ=2",
}


class Family(NamedTuple):
    """Parallel lines: those that differ by their offset alone. `segment` is 0 where it has no meaning."""

    attention: str
    frame: str
    direction: int
    segment: int = 0


class Line(NamedTuple):
    """One open line of one head, with the bias on its cells (0 leaves the scores as they are)."""

    head: int
    frame: str
    direction: int
    segment: int
    offset: int
    value: float = 0.0


@dataclass(frozen=True)
class Trace:
    """Where a family's lines run: the line of offset c is at coordinate x = c + slope·i in row i, and
    coordinate x is column `columns[x − low]`."""

    slope: int
    low: int
    columns: torch.Tensor

    def at(self, offsets: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Columns that lines cross in rows: [lines] and [lines or 1, rows] to [lines, rows], −1 outside."""
        index = offsets[:, None] + self.slope * rows - self.low
        inside = (index >= 0) & (index < len(self.columns))
        return torch.where(inside, self.columns[index.clamp(0, len(self.columns) - 1)], -1)

    def offsets(self, rows: int) -> torch.Tensor:
        """The offsets of all lines that cross a matrix of this many rows."""
        return torch.arange(self.low - self.slope * (rows - 1), self.low + len(self.columns))

    def nearest_rows(self, offset: int, rows: torch.Tensor) -> torch.Tensor:
        """For each row the nearest one that the line of this offset crosses."""
        if self.slope == 0:
            return rows
        first = -((offset - self.low) // self.slope)
        last = (self.low + len(self.columns) - 1 - offset) // self.slope
        return rows.clamp(max(first, 0), max(last, 0))


def trace(family: Family, columns: Layout | Steps) -> Trace:
    """The trace of a family over a source's columns or a decoder's steps."""
    delta, total = family.direction, columns.total_columns
    device = columns.columns.device
    if family.attention == "self" or family.frame == "columns":
        if family.frame == "places" and delta == 0:
            return Trace(0, 0, torch.zeros(1, dtype=torch.long, device=device))
        across = torch.arange(total, device=device)
        return Trace(abs(delta), 0, across if delta >= 0 else across.flip(0))
    if delta == 0:
        return Trace(0, 0, columns.structural_columns)
    of_place = columns.column_of_place[family.segment]
    return Trace(-delta, -1, of_place) if delta < 0 else Trace(delta, 0, of_place.flip(0))


@dataclass(frozen=True)
class LineBias:
    """An attention bias made of lines: their cells are open, with the line's value, all others are closed.

    Where lines cross, the larger value counts. A head without lines is transparent: all its cells are 0.

    Attributes:
        attention: `self` or `cross`.
        heads: number of heads.
        lines: the open lines of all heads.
        closed_rows: what a row becomes that none of its head's lines reaches: `transparent` (all 0: what
            the authors' −1e6 on a whole row amounts to after the softmax), or `nearest` (the cell in which
            the closest of the head's lines ends, or, were that in the future, the row's own step).

    Raises:
        ValueError: an unknown attention, frame or rule, a head out of range, a negative segment.
    """

    attention: str
    heads: int
    lines: tuple[Line, ...]
    closed_rows: str = "nearest"

    def __post_init__(self):
        if self.attention not in ATTENTIONS:
            raise ValueError(f"expected an attention among {ATTENTIONS}, got {self.attention!r}")
        if self.closed_rows not in CLOSED_ROW_RULES:
            raise ValueError(f"expected closed_rows among {CLOSED_ROW_RULES}, got {self.closed_rows!r}")
        for line in self.lines:
            if not 0 <= line.head < self.heads:
                raise ValueError(f"expected a head from 0 to {self.heads - 1}, got {line}")
            if line.frame not in FRAMES:
                raise ValueError(f"expected a frame among {FRAMES}, got {line}")
            if line.direction not in DIRECTION_NAMES or line.segment < 0:
                raise ValueError(
                    f"expected a direction among {sorted(DIRECTION_NAMES)} and a segment of at least 0, got {line}"
                )
            if not isinstance(line.offset, int) or not math.isfinite(line.value):
                raise ValueError(f"expected a whole offset and a finite value, got {line}")

    @property
    def transparent_heads(self) -> tuple[int, ...]:
        """Heads without any line."""
        return tuple(sorted(set(range(self.heads)) - {line.head for line in self.lines}))

    @cached_property
    def _families(self) -> list[tuple[Family, list[Line]]]:
        groups: dict[Family, list[Line]] = {}
        for line in self.lines:
            family = Family(self.attention, line.frame, line.direction, line.segment)
            groups.setdefault(family, []).append(line)
        return list(groups.items())

    @cached_property
    def _ordered(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Heads and values of the lines, in the order in which `cells` returns them."""
        ordered = [line for _, lines in self._families for line in lines]
        heads = torch.tensor([line.head for line in ordered], dtype=torch.long)
        return heads, torch.tensor([line.value for line in ordered])

    def cells(self, rows: torch.Tensor, columns: Layout | Steps) -> tuple[torch.Tensor, ...]:
        """The cells on open lines.

        Args:
            rows: [rows], decoder steps.
            columns: the source's layout or the decoder's steps.

        Returns:
            The lines' heads [lines], their columns in each row [lines, rows] (in the whole source, −1 where
            the line is outside it or, in self-attention, in the future) and values [lines].
        """
        heads, values = (part.to(rows.device) for part in self._ordered)
        crossed = [
            self._trace(family, columns).at(
                torch.tensor([line.offset for line in lines], device=rows.device), rows
            )
            for family, lines in self._families
        ]
        where = torch.cat(crossed) if crossed else rows.new_empty(0, len(rows), dtype=torch.long)
        if self.attention == "self":
            where = torch.where(where <= rows, where, -1)
        return heads, where, values

    def _trace(self, family: Family, columns: Layout | Steps) -> Trace:
        if self.attention == "cross" and family.segment >= columns.segments:
            raise ValueError(
                f"a line follows operand {family.segment + 1}, but this source has {columns.segments}; "
                "use the bias on the task and form that it was made for"
            )
        return trace(family, columns)

    def open_cells(self, rows: torch.Tensor, columns: Layout | Steps) -> tuple[torch.Tensor, ...]:
        """`cells`, with the rows that no line of a head reaches opened under the rule `nearest`."""
        heads, where, values = self.cells(rows, columns)
        if self.closed_rows == "transparent" or not len(heads):
            return heads, where, values
        count = torch.zeros(self.heads, len(rows), dtype=torch.long, device=rows.device)
        reached = count.index_add(0, heads, (where >= 0).long()) > 0
        if bool(reached[heads].all()):
            return heads, where, values
        return heads, self._with_nearest(rows, columns, heads, where, reached), values

    def _with_nearest(
        self,
        rows: torch.Tensor,
        columns: Layout | Steps,
        heads: torch.Tensor,
        where: torch.Tensor,
        reached: torch.Tensor,
    ) -> torch.Tensor:
        """`where`, with each unreached row given the cell in which its head's closest line ends."""
        best = torch.full(reached.shape, torch.iinfo(torch.long).max, device=rows.device)
        candidates = []
        for family, lines in self._families:
            along = self._trace(family, columns)
            for line in lines:
                near = along.nearest_rows(line.offset, rows)
                column = along.at(torch.tensor([line.offset], device=rows.device), near[None])[0]
                if self.attention == "self":
                    column = torch.where(column >= 0, torch.minimum(column, rows), -1)
                distance = torch.where(column >= 0, (near - rows).abs(), torch.iinfo(torch.long).max)
                best[line.head] = torch.minimum(best[line.head], distance)
                candidates.append((column, distance))
        filled = where.clone()
        for k, (head, (column, distance)) in enumerate(zip(heads.tolist(), candidates, strict=True)):
            chosen = ~reached[head] & (distance == best[head])
            filled[k] = torch.where(chosen, column, where[k])
        return filled

    def __call__(self, rows: torch.Tensor, columns: Layout | Steps) -> torch.Tensor:
        """The bias of the given rows and columns, [heads, rows, columns]; never a row without open cell."""
        heads, where, values = self.open_cells(rows, columns)
        bias = torch.full((self.heads, len(rows), len(columns)), CLOSED, device=rows.device)
        if len(heads):
            local = where if len(columns) == columns.total_columns else locate(columns.columns, where)
            line, row = (local >= 0).nonzero(as_tuple=True)
            flat = (heads[line] * len(rows) + row) * len(columns) + local[line, row]
            bias.view(-1).scatter_reduce_(0, flat, values[line], "amax")
        closed = torch.isinf(bias).all(-1, keepdim=True)
        bias = bias.masked_fill(closed, 0.0)
        if self.attention == "self":
            bias = bias.masked_fill(columns.columns > rows[:, None], CLOSED)
        return bias

    def open_tokens(self, rows: torch.Tensor, columns: Layout | Steps) -> tuple[torch.Tensor, torch.Tensor]:
        """The columns that each head opens in rows, each once, and the bias on them; for heads with lines.

        Returns:
            Columns of the whole source and values, both [heads, rows, most open]; column −1 fills up.
        """
        heads, where, values = self.open_cells(rows, columns)
        counts = torch.bincount(heads, minlength=self.heads)
        tokens = where.new_full((self.heads, len(rows), int(counts.max())), -1)
        added = torch.zeros(tokens.shape, device=rows.device)
        filled = [0] * self.heads
        # Strongest first, so that a cell on several lines has the largest of their values.
        for line in values.argsort(descending=True).tolist():
            head = int(heads[line])
            known = (tokens[head] == where[line][:, None]).any(-1)
            tokens[head, :, filled[head]] = torch.where(known, -1, where[line])
            added[head, :, filled[head]] = values[line]
            filled[head] += 1
        return tokens, added

    def open_columns(self, step: int, columns: Layout | Steps) -> list[list[int]]:
        """For each head the columns that are open at one step; all visible ones where it is transparent."""
        row = torch.tensor([step], device=columns.columns.device)
        opened = self(row, columns)[:, 0] > CLOSED
        return [columns.columns[head].tolist() for head in opened]

    def save(self, file: Path | str) -> None:
        """Write the lines as JSON."""
        content = asdict(self) | {"lines": [line._asdict() for line in self.lines]}
        Path(file).write_text(json.dumps(content, indent=1) + "\n")

    @staticmethod
    def load(file: Path | str) -> "LineBias":
        """Read what `save` wrote.

        Raises:
            ValueError: the file is not a saved line bias.
            OSError: it cannot be read.
        """
        try:
            content = json.loads(Path(file).read_text())
            content["lines"] = tuple(Line(**line) for line in content["lines"])
            return LineBias(**content)
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"expected the lines of a LineBias as JSON in {file}, got: {error}") from error


def cross_window(heads: int, segments: int, w: int = 1, sides: str = "past") -> LineBias:
    """ABS: the window of cross-attention, counted in places and the same for every head.

    Args:
        heads: number of heads.
        segments: operands (2 for aligned binary tasks: the window spans and steps two columns).
        w: half-width in places.
        sides: `past` (the current place and w already processed, as in the authors' code) or `both`
            (w places on either side, as in the paper's text).

    Returns:
        Lines of offsets −w to 0 (`past`) or to w (`both`) in every operand, for every head.

    Raises:
        ValueError: fewer heads or segments than 1, w below 0, or unknown sides.

    Source: paper, appendix C.4 "Windowed Attention Biasing".
    """
    if heads < 1 or segments < 1:
        raise ValueError(f"expected heads and segments of at least 1, got {heads} and {segments}")
    if w < 0 or sides not in ("past", "both"):
        raise ValueError(f"expected w ≥ 0 and sides 'past' or 'both', got {w} and {sides!r}")
    offsets = range(-w, w + 1) if sides == "both" else range(-w, 1)
    lines = [
        Line(head, "places", -1, segment, offset)
        for head in range(heads)
        for segment in range(segments)
        for offset in offsets
    ]
    return LineBias("cross", heads, tuple(lines))


def self_window(heads: int, w: int = 1) -> LineBias:
    """ABS: the window of decoder self-attention, the current step and w before it.

    Args:
        heads: number of heads.
        w: how many earlier steps stay visible.

    Returns:
        Lines of distances 0 to w, for every head.

    Raises:
        ValueError: w below 0.

    Source: paper, appendix C.4, B_w: 0 if i − k = j for k = 0 … w.
    """
    if w < 0:
        raise ValueError(f"expected w ≥ 0, got {w}")
    lines = [Line(head, "places", 1, 0, -lag) for head in range(heads) for lag in range(w + 1)]
    return LineBias("self", heads, tuple(lines))


def windows(heads: int, segments: int, w: int = 1, sides: str = "past") -> Biases:
    """ABS: the windows of both attentions, for all layers.

    Args:
        heads: of the model.
        segments, w, sides: as of `cross_window`. With fewer `segments` than the source has operands, the others stay
            unseen.

    Returns:
        One bias for self- and one for cross-attention, as `retrain` takes them.

    Raises:
        ValueError: as of `cross_window`.
    """
    return Biases((self_window(heads, w),), (cross_window(heads, segments, w, sides),))
