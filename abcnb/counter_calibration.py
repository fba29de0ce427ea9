"""ABC in a stream: which counter of the step does each segment follow, and at which offsets?

A plain model decodes its own training samples, of several shapes. For each kind of step, its attention is summed along
every line of every candidate family (which counters a segment's coordinates follow, at which offsets) and divided by
the steps of that kind, all shapes together: d_l is the share of a step's attention that lies on the line.

    a line is kept where    d_l > κ σ + μ    over the candidates of its part of the stream, and it is long enough

The strongest line is kept first and its cells are set to zero before the next is sought: on small shapes every line is
crossed by many others, which would borrow its attention. Lines of all heads are then dealt one to a head
(`counters.dealt`), strongest first; lines of a kind of step beyond the number of heads are left out.

What is told: where segments begin, and the two counters. What is found: which counter each segment follows, and at
which offsets. Rows of the output follow both counters, since they are written by them; every coordinate of another
segment follows the row, the place, or neither (a fixed token), except that the terms of a sum are not sought with
rows and places exchanged.

Source: paper, appendix D, for lines over matrix columns; counters, the rule for crossing lines and dealing are this
project's.
"""

from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

import pandas as pd
import torch

from abcnb.attention import record
from abcnb.biases import Biases
from abcnb.checks import check_types
from abcnb.counters import FOLLOWS, CounterLine, StreamBias, dealt, tokens_on
from abcnb.decoder_only import DecoderOnly, stream_of
from abcnb.stream import Segment, Stream
from abcnb.tasks import Batch


@dataclass(frozen=True)
class CounterConfig:
    """Choices of the calibration in a stream.

    The defaults are those of `many-addition` and `nested`. Tasks with an output of one row have `kappa_prompt=1.0`,
    products `kappa_output=0.0`.

    Attributes:
        kappa_prompt, kappa_output: κ of the threshold κσ + μ for lines to the prompt and to the output so far.
        min_support: share of a kind's steps that a line must cross to be kept.
        longest: the largest offset that is sought, either way.
        layer: whose lines are kept: those of the `last` layer, or of `all` of them.

    Raises:
        ValueError: a field of another type, a share that is none, or an unknown layer.
    """

    kappa_prompt: float = 2.0
    kappa_output: float = 1.0
    min_support: float = 0.5
    longest: int = 3
    layer: str = "last"

    def __post_init__(self):
        check_types(self)
        if not 0 <= self.min_support <= 1 or self.longest < 0:
            raise ValueError(f"expected min_support from 0 to 1 and longest of at least 0, got {self}")
        if self.layer not in ("last", "all"):
            raise ValueError(f"expected layer as last or all, got {self.layer!r}")


class StreamAttention(NamedTuple):
    """A decoder-only model's attention, averaged over samples of one shape: [layers, heads, rows, rows]."""

    stream: Stream
    weights: torch.Tensor

    @property
    def name(self) -> str:
        """The shape as text, `4x3`."""
        return "x".join(map(str, self.stream.shape))


@torch.no_grad()
def average_by_shape(model: DecoderOnly, batches: list[Batch]) -> list[StreamAttention]:
    """The teacher-forced attention weights, averaged over the batches of each shape."""
    sums: dict[Stream, list] = {}
    for batch in batches:
        mean = torch.stack([layer.mean(0) for layer in record(model, batch).self_attention]).cpu()
        known = sums.setdefault(batch.layout, [0, 0])
        known[0], known[1] = known[0] + mean, known[1] + 1
    return [StreamAttention(stream_of(layout).to("cpu"), total / count) for layout, (total, count) in sums.items()]


def families(stream: Stream, segment: Segment) -> list[tuple[str, ...]]:
    """Which counters a segment's coordinates may follow; of several operands their number never follows the place
    while their places follow the row, which would turn the grid over."""
    if not segment.shape:
        return [()]
    if stream.is_output(segment):
        return [segment.counters]
    return [found for found in product(FOLLOWS, repeat=len(segment.shape)) if found != ("place", "row")]


def candidates(streams: list[Stream], step: str, longest: int) -> list[CounterLine]:
    """Every line of every family that steps of a kind may look along, as lines of head 0."""
    found = []
    for segment in streams[0].segments:
        for follows in families(streams[0], segment):
            offsets = product(range(-longest, longest + 1), repeat=len(follows))
            found += [CounterLine(0, step, segment.name, follows, offset) for offset in offsets]
    return found


@dataclass(frozen=True)
class CounterCalibration:
    """What ABC found in a stream.

    Attributes:
        lines: kept lines, strongest first within a kind of step, of all heads.
        table: every line that was kept: layer, head, step, segment, follows, offset, share (d_l), z_score, support.
        bias: the strongest lines of each kind of step, one to a head.
        attention: what was calibrated.
    """

    lines: tuple[CounterLine, ...]
    table: pd.DataFrame = field(repr=False)
    bias: StreamBias = field(repr=False)
    attention: list[StreamAttention] = field(repr=False)

    @property
    def self_biases(self) -> tuple[StreamBias, ...]:
        """The bias of all layers."""
        return (self.bias,)

    @property
    def cross_biases(self) -> tuple:
        """None."""
        return ()

    @property
    def biases(self) -> Biases:
        """As for a model."""
        return Biases((self.bias,))


def calibrate_stream(attention: list[StreamAttention], config: CounterConfig) -> CounterCalibration:
    """Attention bias calibration of a decoder-only model.

    Args:
        attention: of one or more shapes of a task.
        config: the choices.

    Raises:
        ValueError: no attention, or no line that stands out from the others by κ.
    """
    if not attention:
        raise ValueError("expected averaged attention of at least one shape, got none")
    streams = [shape.stream for shape in attention]
    layers, heads = attention[0].weights.shape[:2]
    chosen = [layers - 1] if config.layer == "last" else list(range(layers))
    rows = []
    for step in streams[0].kinds:
        sought = candidates(streams, step, config.longest)
        in_output = torch.tensor([streams[0].is_output(streams[0].segment(line.segment)) for line in sought])
        cells, support = _cells(streams, step, sought, config.min_support)
        long_enough = support > 0
        if not bool(long_enough.any()):
            continue
        for layer in chosen:
            flat = [shape.weights[layer].flatten(1) for shape in attention]
            for head in range(heads):
                for part, kappa in ((~in_output, config.kappa_prompt), (in_output, config.kappa_output)):
                    allowed = part & long_enough
                    if bool(allowed.any()):
                        for index, share, z in _strongest([f[head] for f in flat], cells, allowed, kappa):
                            rows.append((layer, head, *sought[index][1:], share, z, float(support[index])))
    if not rows:
        raise ValueError(
            f"expected lines that stand out by κ {config.kappa_prompt:g} (prompt) or {config.kappa_output:g} (output), "
            "found none; take a smaller κ or min_support, or train the plain model until it is right"
        )
    columns = ["layer", "head", "step", "segment", "follows", "offset", "share", "z_score", "support"]
    table = pd.DataFrame(rows, columns=columns)
    order = {step: number for number, step in enumerate(streams[0].kinds)}
    table = table.sort_values("share", ascending=False, kind="stable")
    table = table.sort_values("step", key=lambda names: names.map(order), kind="stable").reset_index(drop=True)
    lines = tuple(
        CounterLine(r.head, r.step, r.segment, r.follows, r.offset) for r in table.itertuples(index=False)
    )
    return CounterCalibration(lines, table, dealt(heads, lines, most=heads), attention)


def _cells(
    streams: list[Stream], step: str, sought: list[CounterLine], min_support: float
) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], torch.Tensor]:
    """The cells on each candidate, in each shape's flattened matrix, and the share of the kind's steps with one.

    Returns:
        For each shape the candidates' cells [candidates, steps], −1 where there is none, and how many steps there
        are; and the support, [candidates], 0 where it is below the least.
    """
    parts, crossed, steps = [], torch.zeros(len(sought)), 0
    for stream in streams:
        rows = torch.arange(len(stream))
        kind, row, place = stream.steps_at(rows)
        here = (kind == stream.kinds.index(step)).nonzero().flatten()
        found = torch.stack(
            [
                tokens_on(stream.segment(line.segment), line.follows, line.offset, row[here], place[here])
                for line in sought
            ]
        )
        found = torch.where((found >= 0) & (found <= here), here * len(stream) + found, -1)
        parts.append((found, len(here)))
        crossed += (found >= 0).sum(1)
        steps += len(here)
    support = crossed / max(steps, 1)
    return parts, torch.where(support >= max(min_support, 1e-9), support, 0.0)


def _strongest(flat: list[torch.Tensor], cells: list, allowed: torch.Tensor, kappa: float) -> list[tuple]:
    """Index, share and z-score of the lines of one head that stand out, strongest first."""
    flat, allowed = [weights.clone() for weights in flat], allowed.clone()
    steps = sum(count for _, count in cells)

    def shares() -> torch.Tensor:
        total = sum(
            (weights[found.clamp(min=0)] * (found >= 0)).sum(1)
            for weights, (found, _) in zip(flat, cells, strict=True)
        )
        return total / steps

    d = shares()
    mean, deviation = d[allowed].mean(), d[allowed].std(correction=0)
    threshold, kept = kappa * deviation + mean + 1e-6, []
    while bool(allowed.any()):
        index = int(d.masked_fill(~allowed, -1.0).argmax())
        if d[index] <= threshold:
            break
        allowed[index] = False
        kept.append((index, float(d[index]), float((d[index] - mean) / deviation)))
        for weights, (found, _) in zip(flat, cells, strict=True):
            weights[found[index][found[index] >= 0]] = 0.0
        d = shares()
    return kept
