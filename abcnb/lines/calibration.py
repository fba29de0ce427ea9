"""Attention bias calibration (ABC): averaged attention in, lines out. One rule with one constant, τ.

    1. Average the attention of a plain model over its own training samples of each shape, for each layer and head
       separately; a shape counts no more for being drawn often.
    2. The share of a line is the attention on its cells, divided by the number of steps of its kind.
    3. In each head, take the line with the largest share, if that exceeds τ; set its cells to zero; repeat.
    4. Collect the lines of all heads of all layers, each once, with its largest share.
    5. Deal them to the heads of a new model, strongest first, one line per head, the same in every layer.

The share counts all steps of a kind, not only those that a line meets, so a short line cannot win. Without the
zeros of step 3, lines that cross a strong one would borrow from it. Candidates are all lines that the coordinates
of the tokens allow: every coordinate follows a counter of the step, at slope 1 or 2 and counted from either end,
or none; if two candidates open the same cells, the simpler one is taken.

Source: paper, appendix D, which averages over lines of the attention matrix and keeps those above κσ + μ
(`algorithm1`); coordinates, shares, the zeros and dealing are this project's.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, islice, product
from typing import NamedTuple

import pandas as pd
import torch

from abcnb.lines.biases import Biases
from abcnb.lines.coordinates import COUNTERS, Segment, Stream, of_matrix
from abcnb.lines.line import FOLLOWS, Line, deal, tokens_on

TAU = 0.1  # τ


@dataclass(frozen=True)
class AveragedAttention:
    """Attention of a trained model, averaged over samples of one shape.

    Attributes:
        stream: the coordinates of the samples' tokens.
        self_attention: [layers, heads, rows, rows].
        cross_attention: [layers, heads, rows, columns]; without columns in one causal sequence.
    """

    stream: Stream
    self_attention: torch.Tensor
    cross_attention: torch.Tensor = field(default_factory=lambda: torch.zeros(1, 1, 0, 0))

    @property
    def name(self) -> str:
        """The shape as text, `4x3`."""
        return "x".join(map(str, self.stream.shape))

    def over_columns(self, steps: int) -> "AveragedAttention":
        """The same over the columns of an encoder-decoder's matrix (`of_matrix`), for its first `steps` steps.

        If operands are padded to the longest test, later steps write only zeros; where they look says nothing.
        """
        whole = of_matrix(self.stream)
        stream = replace(whole, kind=whole.kind[:steps], row=whole.row[:steps], place=whole.place[:steps])
        rows = len(stream)
        return AveragedAttention(
            stream, self.self_attention[..., :rows, :rows], self.cross_attention[..., :rows, :]
        )


class Found(NamedTuple):
    """A line that a plain model looks along, its largest share, and the layer and head that have it."""

    line: Line
    share: float
    layer: int
    head: int


@dataclass(frozen=True)
class Calibration:
    """What ABC found, strongest first per kind of step and attention. Prints as a table of lines and shares.

    `attention` is what was calibrated, and `stream` is that of its largest input.
    """

    found: tuple[Found, ...]
    stream: Stream = field(repr=False)
    attention: list[AveragedAttention] = field(repr=False)

    def biases(self, heads: int) -> Biases:
        """The lines dealt to a new model's heads, at most one per head for each kind of step and attention."""
        return deal(self.strongest(heads), self.stream, heads)

    def strongest(self, most: int) -> list[Line]:
        """The strongest lines, at most `most` for each kind of step and attention."""
        parts = groupby(self.found, lambda found: (found.line.step, self.stream.is_crossed(found.line.segment)))
        return [found.line for _, part in parts for found in islice(part, most)]

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per line: attention, step, line, share, layer, head."""
        rows = [
            ("cross" if self.stream.is_crossed(line.segment) else "self", line.step, str(line), *where)
            for line, *where in self.found
        ]
        return pd.DataFrame(rows, columns=["attention", "step", "line", "share", "layer", "head"])

    def __str__(self) -> str:
        shown = self.table if self.stream.source else self.table.drop(columns="attention")
        return shown.to_string(index=False, float_format="{:.2f}".format)


def calibrate_attention(
    attention: list[AveragedAttention], tau: float = TAU, pick: "Pick | None" = None
) -> Calibration:
    """The lines that the averaged attention of one or more shapes of a task follows.

    `pick` picks the lines of one head, in place of step 3.

    Raises:
        ValueError: no attention, weights that are not finite, τ not between 0 and 1, no line above it, or
            shapes with different segments.
    """
    best: dict[Line, Found] = {}
    for found in lines_of_heads(attention, tau, pick):
        if found.line not in best or found.share > best[found.line].share:
            best[found.line] = found
    if not best:
        raise ValueError(
            f"expected lines with a share of more than {tau:g} of a step's attention, found none; take a "
            "smaller tau, or train the plain model until it is right"
        )
    largest = max((shape.stream for shape in attention), key=len)

    def order(found: Found) -> tuple:
        return largest.kinds.index(found.line.step), not largest.is_crossed(found.line.segment), -found.share

    return Calibration(tuple(sorted(best.values(), key=order)), largest, attention)


def lines_of_heads(
    attention: list[AveragedAttention], tau: float = TAU, pick: "Pick | None" = None
) -> list[Found]:
    """The lines of each head of each layer separately, as in `calibrate_attention`; there may be none."""
    if not attention:
        raise ValueError("expected averaged attention of at least one shape, got none")
    if not isinstance(tau, (int, float)) or not 0 < tau < 1:
        raise ValueError(f"expected a least share tau between 0 and 1, got {tau!r}")
    if not all(part.isfinite().all() for of in attention for part in (of.self_attention, of.cross_attention)):
        raise ValueError("expected finite attention weights, got NaN or infinity; did the training diverge?")
    streams, found, pick = [shape.stream for shape in attention], [], pick or Sought.strongest
    if len(names := {", ".join(segment.name for segment in stream.segments) for stream in streams}) > 1:
        raise ValueError(f"expected shapes with the same segments, got {' and '.join(sorted(names))}")
    for step in streams[0].kinds:
        for crossing in (True, False) if streams[0].source else (False,):
            sought = Sought(streams, step, crossing)
            weights = [shape.cross_attention if crossing else shape.self_attention for shape in attention]
            for layer, head in product(*map(range, weights[0].shape[:2])):
                kept = pick(sought, [of_shape[layer, head] for of_shape in weights], tau)
                found += [Found(line, share, layer, head) for line, share in kept]
    return found


class Sought:
    """The candidates of one kind of step in one attention, and their cells in matrices of several shapes.

    Attributes:
        lines: the candidates, simplest first.
        cells: per shape, the cell of each candidate at each step in the flattened matrix, [candidates, steps]; the
            number of cells, one past the last index, where it has none.
        steps: the number of steps of the kind, over all shapes.
    """

    def __init__(self, streams: list[Stream], step: str, crossing: bool):
        self.lines = candidates(streams, step, crossing)
        alike = defaultdict(list)  # candidates that differ only in their offsets
        for number, line in enumerate(self.lines):
            alike[line.segment, line.follows].append(number)
        self.cells: list[torch.Tensor] = []
        self.steps = 0
        for stream in streams:
            first, columns = (0, stream.source) if crossing else (stream.source, len(stream))
            kind, row, place = stream.steps_at(torch.arange(len(stream)))
            here = (kind == stream.kinds.index(step)).nonzero().flatten()
            found = torch.empty(len(self.lines), len(here), dtype=torch.long)
            for numbers in alike.values():
                # all offsets at once: one by one, the thousands of candidates of outputs in rows take a minute
                offsets = torch.tensor([self.lines[number].offset for number in numbers])
                line = self.lines[numbers[0]]._replace(offset=tuple(offsets.T[..., None]))
                found[numbers] = tokens_on(line, stream.segment(line.segment), row[here], place[here]) - first
            seen = (found >= 0) & (found < columns if crossing else found <= here)
            self.cells.append(torch.where(seen, here * columns + found, len(stream) * columns))
            self.steps += len(here)

    def shares(self, flat: list[torch.Tensor]) -> torch.Tensor:
        """The share of each candidate, [candidates], from each shape's flattened weights with a zero appended."""
        sums = [weights[cells].sum(1) for weights, cells in zip(flat, self.cells, strict=True)]
        return torch.stack(sums).sum(0) / max(self.steps, 1)

    def strongest(self, weights: list[torch.Tensor], tau: float) -> list[tuple[Line, float]]:
        """One head's lines with a share above τ, strongest first, each without the cells of those before it."""
        flat, kept = [torch.cat([of_shape.flatten(), torch.zeros(1)]) for of_shape in weights], []
        while self.lines and self.steps:
            shares = self.shares(flat)
            largest = float(shares.max())
            if largest <= tau:
                break
            index = int((shares >= largest - 1e-6).nonzero()[0])  # of those that open the same cells, the simplest
            kept.append((self.lines[index], largest))
            for of_shape, cells in zip(flat, self.cells, strict=True):
                of_shape[cells[index]] = 0.0
        return kept


# From the candidates, a head's weights for each shape, [rows, columns], and τ to its lines and their shares.
Pick = Callable[[Sought, list[torch.Tensor], float], list[tuple[Line, float]]]


def candidates(streams: list[Stream], step: str, crossing: bool) -> list[Line]:
    """Every line along which steps of a kind may look in one attention, simplest first, as lines of head 0."""
    found, highest = [], _highest_counters(streams, step)
    for name in [s.name for s in streams[0].segments if streams[0].is_crossed(s.name) == crossing]:
        of_shapes = [stream.segment(name) for stream in streams]
        for ways in product(*(_axis(of_shapes, i, highest) for i in range(len(of_shapes[0].shape)))):
            found.append(Line(0, step, name, tuple(follows for follows, _ in ways), tuple(n for _, n in ways)))
    return sorted(found, key=_complexity)


def _highest_counters(streams: list[Stream], step: str) -> dict[str, int]:
    """The largest value of each counter that varies among the steps of a kind."""
    found = {}
    for counter in COUNTERS:
        values = torch.cat([getattr(s, counter)[s.kind == s.kinds.index(step)] for s in streams])
        if len(values.unique()) > 1:
            found[counter] = int(values.max())
    return found


def _axis(of_shapes: list[Segment], i: int, highest: dict[str, int]) -> Iterable[tuple[str, int]]:
    """What the i-th coordinate of a segment may follow, and at which offsets: all that meet it at some step."""
    size = max(segment.shape[i] for segment in of_shapes)
    reach = of_shapes[0].reach if i == len(of_shapes[0].shape) - 1 else 0
    for name, (counter, slope, from_first) in FOLLOWS.items():
        if from_first and not (of_shapes[0].ends and of_shapes[0].strides):  # rows of a table may end anywhere
            continue
        if not counter:
            yield from product([name], range(size))
        elif counter in highest:
            yield from product([name], range(-reach - slope * highest[counter], size + reach))


def _complexity(line: Line) -> tuple:
    ways = [FOLLOWS[follows] for follows in line.follows]
    return sum(way.slope for way in ways), sum(map(abs, line.offset)), sum(way.from_first for way in ways)
