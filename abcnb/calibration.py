"""Attention bias calibration (ABC): averaged attention in, a `LineBias` for each head out.

For every line l of every direction:     d_l = Σ Ā[i, j] over the line's cells       (or their mean)
A line is kept where                      d_l > κ σ + μ                               (and it is long enough)
and its cells get the bias                d_l − max d                                 (or 0, or d_l)

Two frames. `columns` is the paper's Algorithm 1: lines over matrix columns, anchored at the top-left corner
(Δ ≥ 0) or the top-right one (Δ < 0). `places` is ours: it is told where each operand ends, and follows a
diagonal within an operand; which lines matter is still found from attention alone.

Source: paper, appendix D steps 1 to 3 and Algorithm 1. Read as meant, not as printed: it normalizes Ã_tmp
(not Ã), `size` restarts for each cell, and a negative Δ aligns the top-right corners (a shift by N − n).
"""

from dataclasses import dataclass, field

import pandas as pd
import torch

from abcnb.attention import record
from abcnb.biases import Biases
from abcnb.checks import check_types
from abcnb.layout import Layout, Steps
from abcnb.lines import CLOSED_ROW_RULES, DIRECTION_NAMES, FRAMES, Family, Line, LineBias, trace
from abcnb.model import Transformer
from abcnb.tasks import Batch


def _choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"expected {name} among {', '.join(allowed)}, got {value!r}")


@dataclass(frozen=True)
class CalibrationConfig:
    """Every choice of the calibration, and what the paper's text and the authors' code do.

    The defaults are those of the method `abc-places` on every task but Addition, which needs `kappa_cross=0.0` and
    `min_support=0.75`.

    Attributes:
        frame: `columns` (paper and code) or `places` (ours).
        average: what is averaged over samples: attention `weights` after the softmax (code) or `scores`
            before it (text).
        statistic: a line's strength d_l: the `mean` of its cells (text) or their `sum` (code).
        directions_cross, directions_self: Δ of the lines sought. Text: 1, −1 and 0; code: −1 for cross and
            1 for self.
        kappa_cross, kappa_self: κ of the threshold κσ + μ. Text: 4.5 and 0.87, in an earlier version 2.
        pool: σ and μ over all lines of a `head` (text), or of each `direction` of a head on its own. They
            are taken before short lines are dropped.
        threshold_on: compare the `line`'s strength (code), or the strength `centred` on the maximum (text; with
            attention weights nothing can then survive).
        min_support: share of the matrix's rows that a line must cross to be kept. Text and code: 0.
        value: bias on kept cells: `centred` on the maximum of the `pool` (text), `raw` (code), or `zero`.
        layer: attention of the `last` decoder layer for all layers (text and code), or of `each` its own.
        rows: how many of the first output steps the lines are sought in; 0 is all of them (text). The code takes the
            first 6: with operands padded to 61 digits the later steps of training samples write leading zeros.
        empty_head: a head with no kept line becomes `transparent` (text and code) or keeps its `strongest`
            among those long enough.
        closed_rows: a row that no line reaches becomes `transparent` (code, in effect; silent in the text)
            or opens the `nearest` end of its head's lines.
    """

    frame: str = "places"
    average: str = "weights"
    statistic: str = "sum"
    directions_cross: tuple[int, ...] = (-1, 0)
    directions_self: tuple[int, ...] = (0, 1)
    kappa_cross: float = 1.0
    kappa_self: float = 0.0
    pool: str = "head"
    threshold_on: str = "line"
    min_support: float = 0.5
    value: str = "centred"
    layer: str = "last"
    rows: int = 0
    empty_head: str = "strongest"
    closed_rows: str = "nearest"

    def __post_init__(self):
        check_types(self)
        _choice("frame", self.frame, FRAMES)
        _choice("average", self.average, ("weights", "scores"))
        _choice("statistic", self.statistic, ("sum", "mean"))
        _choice("pool", self.pool, ("head", "direction"))
        _choice("threshold_on", self.threshold_on, ("line", "centred"))
        _choice("value", self.value, ("centred", "raw", "zero"))
        _choice("layer", self.layer, ("last", "each"))
        _choice("empty_head", self.empty_head, ("transparent", "strongest"))
        _choice("closed_rows", self.closed_rows, CLOSED_ROW_RULES)
        for name in ("directions_cross", "directions_self"):
            directions = getattr(self, name)
            if (
                not isinstance(directions, (tuple, list))
                or not directions
                or set(directions) - set(DIRECTION_NAMES)
            ):
                raise ValueError(f"expected {name} as a tuple from {sorted(DIRECTION_NAMES)}, got {directions!r}")
            object.__setattr__(self, name, tuple(directions))
        if not 0 <= self.min_support <= 1:
            raise ValueError(f"expected min_support from 0 to 1, got {self.min_support}")
        if self.rows < 0:
            raise ValueError(f"expected rows of at least 0, got {self.rows}")


@dataclass(frozen=True)
class AveragedAttention:
    """Attention of a trained model, averaged over samples.

    Attributes:
        self_attention: [layers, heads, rows, rows].
        cross_attention: [layers, heads, rows, columns].
        layout: the source's columns.
    """

    self_attention: torch.Tensor
    cross_attention: torch.Tensor
    layout: Layout


@torch.no_grad()
def average_attention(model: Transformer, batches: list[Batch], what: str = "weights") -> AveragedAttention:
    """Average the teacher-forced attention of every decoder layer over batches of one layout.

    Args:
        model: a trained model; it is put in evaluation mode.
        batches: batches of equal width and size.
        what: `weights` or `scores`.

    Raises:
        ValueError: batches of several widths, as `bucketed` numbers have.

    Source: paper, appendix D, step 1. The model decodes its own training samples; as it interpolates,
    decoding and teacher forcing feed it the same tokens.
    """
    widths = sorted({batch.layout.width for batch in batches})
    if len(widths) != 1:
        raise ValueError(
            f"expected batches of one width, such as those of 'even' numbers, got widths {widths}; "
            "matrices of several sizes cannot be averaged"
        )
    sums: list[torch.Tensor] | None = None
    for batch in batches:
        recording = record(model, batch, what)
        means = [
            torch.stack([layer.mean(0) for layer in layers])
            for layers in (recording.self_attention, recording.cross_attention)
        ]
        sums = means if sums is None else [total + mean for total, mean in zip(sums, means, strict=True)]
    self_attention, cross_attention = (total.cpu() / len(batches) for total in sums)
    return AveragedAttention(self_attention, cross_attention, batches[0].layout.to("cpu"))


@dataclass(frozen=True, eq=False)
class LineTable:
    """Every line of one attention of one layer, and whether it was kept; one entry per line and head.

    Attributes:
        families: the families of parallel lines, in order.
        family: [lines], index into `families`.
        offset, support: [lines], the line's offset and how many cells it crosses.
        strength, centred, z_score: [heads, lines], d_l, d_l − max d and (d_l − μ) / σ.
        kept: [heads, lines].
    """

    families: tuple[Family, ...]
    family: torch.Tensor
    offset: torch.Tensor
    support: torch.Tensor
    strength: torch.Tensor
    centred: torch.Tensor
    z_score: torch.Tensor
    kept: torch.Tensor

    def to_dataframe(self) -> pd.DataFrame:
        """The table as head, direction, segment, offset, support, strength, z_score, kept."""
        heads, lines = self.kept.shape
        line = torch.arange(lines).repeat(heads)
        families = [self.families[i] for i in self.family[line].tolist()]
        return pd.DataFrame(
            {
                "head": torch.arange(heads).repeat_interleave(lines).numpy(),
                "direction": [family.direction for family in families],
                "segment": [family.segment for family in families],
                "offset": self.offset[line].numpy(),
                "support": self.support[line].numpy(),
                "strength": self.strength.flatten().numpy(),
                "z_score": self.z_score.flatten().numpy(),
                "kept": self.kept.flatten().numpy(),
            }
        )


@dataclass(frozen=True)
class Calibration:
    """What ABC found.

    Attributes:
        self_biases, cross_biases: the bias of each layer, one for all unless `layer="each"`.
        self_tables, cross_tables: every line that was searched, for each of them.
        average: the averaged attention that was calibrated.
    """

    self_biases: tuple[LineBias, ...]
    cross_biases: tuple[LineBias, ...]
    self_tables: tuple[LineTable, ...] = field(repr=False)
    cross_tables: tuple[LineTable, ...] = field(repr=False)
    average: AveragedAttention = field(repr=False)

    @property
    def biases(self) -> Biases:
        """As for a model."""
        return Biases(self.self_biases, self.cross_biases)


def line_families(attention: str, directions: tuple[int, ...], frame: str, segments: int) -> tuple[Family, ...]:
    """The families of lines sought: each direction, within each operand in the `places` frame."""
    per_segment = attention == "cross" and frame == "places"
    return tuple(
        Family(attention, frame, direction, segment)
        for direction in directions
        for segment in range(segments if per_segment and direction else 1)
    )


def line_table(
    attention: torch.Tensor, columns: Layout | Steps, families: tuple[Family, ...], config: CalibrationConfig
) -> LineTable:
    """Sum or average attention along every line and mark the lines that are kept.

    Args:
        attention: [heads, rows, columns], averaged over samples.
        columns: the layout of cross-attention's columns or the steps of self-attention's.
        families: the families of lines sought, all of one attention.
        config: the choices; `kappa_self` or `kappa_cross` applies.

    Raises:
        ValueError: attention has other columns than the layout, or is not finite.
    """
    _, n_rows, n_columns = attention.shape
    if n_columns != len(columns):
        raise ValueError(f"expected attention of {len(columns)} columns, got shape {tuple(attention.shape)}")
    if not torch.isfinite(attention).all():
        raise ValueError("expected finite attention, got NaN or infinite values; average weights or raw scores")
    family, offset, support, strength = line_sums(attention, columns, families)
    if config.statistic == "mean":
        strength = strength / support
    pools = torch.zeros_like(family)
    if config.pool == "direction":
        pools = torch.tensor([f.direction for f in families])[family]
    kappa = config.kappa_self if families[0].attention == "self" else config.kappa_cross
    z_score, centred, threshold = (torch.empty_like(strength) for _ in range(3))
    for pool in pools.unique():
        chosen = pools == pool
        d = strength[:, chosen]
        mean, deviation = d.mean(1, keepdim=True), d.std(1, correction=0, keepdim=True)
        z_score[:, chosen] = (d - mean) / deviation.clamp(min=1e-12)
        centred[:, chosen] = d - d.amax(1, keepdim=True)
        # The margin keeps rounding noise around equal lines from counting as a pattern.
        threshold[:, chosen] = kappa * deviation + mean + 1e-6 * mean.abs()
    long_enough = support >= config.min_support * n_rows
    kept = ((centred if config.threshold_on == "centred" else strength) > threshold) & long_enough
    if config.empty_head == "strongest" and bool(long_enough.any()):
        strongest = strength.masked_fill(~long_enough, float("-inf")).argmax(1)
        empty = ~kept.any(1)
        kept[empty, strongest[empty]] = True
    return LineTable(families, family, offset, support, strength, centred, z_score, kept)


def line_sums(
    attention: torch.Tensor, columns: Layout | Steps, families: tuple[Family, ...]
) -> tuple[torch.Tensor, ...]:
    """The sum of attention along every line that crosses the matrix.

    Args:
        attention: [heads, rows, columns].
        columns: the layout of cross-attention's columns or the steps of self-attention's.
        families: the families of lines sought, all of one attention.

    Returns:
        For each line the index of its family, its offset and how many cells it crosses, each [lines], and its sum,
        [heads, lines].
    """
    heads, n_rows, n_columns = attention.shape
    rows, parts = torch.arange(n_rows), []
    for number, family in enumerate(families):
        along = trace(family, columns)
        offsets = along.offsets(n_rows)
        where = along.at(offsets, rows)
        if family.attention == "self":  # cells above the diagonal are no attention at all
            where = torch.where(where <= rows, where, -1)
        inside = where >= 0
        cells = attention.flatten(1)[:, (rows * n_columns + where.clamp(min=0)).flatten()]
        sums = (cells.view(heads, *where.shape) * inside).sum(-1)
        support = inside.sum(1)
        crossing = support > 0
        line = (torch.full_like(offsets, number), offsets, support)
        parts.append((*(part[crossing] for part in line), sums[:, crossing]))
    return tuple(torch.cat(part, dim=-1) for part in zip(*parts, strict=True))


def to_bias(table: LineTable, config: CalibrationConfig) -> LineBias:
    """The kept lines of a table as a bias."""
    zero = torch.zeros_like(table.strength)
    value = {"raw": table.strength, "centred": table.centred, "zero": zero}[config.value]
    head, line = table.kept.nonzero(as_tuple=True)
    found = zip(
        head.tolist(), table.family[line].tolist(), table.offset[line].tolist(), value[head, line].tolist(),
        strict=True,
    )  # fmt: skip
    families = table.families
    lines = tuple(
        Line(h, families[f].frame, families[f].direction, families[f].segment, c, v) for h, f, c, v in found
    )
    return LineBias(families[0].attention, len(table.strength), lines, config.closed_rows)


def calibrate_attention(average: AveragedAttention, config: CalibrationConfig) -> Calibration:
    """Attention bias calibration of a model's averaged attention.

    Args:
        average: from `average_attention`, of `config.average`.
        config: the choices.

    Source: paper, appendix D, step 2, and Algorithm 1.
    """
    layers = range(len(average.self_attention))
    if config.layer == "last":
        layers = layers[-1:]
    rows = config.rows or average.self_attention.shape[-2]
    selves, crosses = average.self_attention[..., :rows, :], average.cross_attention[..., :rows, :]
    families = {
        "self": line_families("self", config.directions_self, config.frame, 1),
        "cross": line_families("cross", config.directions_cross, config.frame, average.layout.segments),
    }
    steps = Steps.all(selves.shape[-1])
    self_tables = tuple(line_table(selves[i], steps, families["self"], config) for i in layers)
    cross_tables = tuple(line_table(crosses[i], average.layout, families["cross"], config) for i in layers)
    return Calibration(
        tuple(to_bias(table, config) for table in self_tables),
        tuple(to_bias(table, config) for table in cross_tables),
        self_tables,
        cross_tables,
        average,
    )
