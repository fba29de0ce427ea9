"""The paper's Algorithm 1, attention bias calibration as published: a matrix in, a bias of any size out.

For every line l of a direction (1, Δ) through the averaged attention Ā of a head:

    d_l = Σ Ā[i, j] over its cells, or their mean;   l is kept if d_l > κ σ + μ;   its cells get d_l − max d

In a larger matrix, a line with Δ ≥ 0 keeps its distance from the top-left corner and one with Δ < 0 from the
top-right one. A row that no kept line crosses stays open: −1e6 on a whole row changes nothing after the softmax.

Source: paper, appendix D steps 1 to 3 and Algorithm 1. Read as meant, not as printed: it normalizes Ã_tmp (not Ã),
`size` restarts for each cell, and a negative Δ aligns the top-right corners (a shift by N − n).
"""

from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd
import torch

from abcnb.lines.biases import CLOSED, Biases
from abcnb.lines.calibration import AveragedAttention
from abcnb.lines.coordinates import Columns
from abcnb.lines.line import SavedLines
from abcnb.machine.checks import check_among, check_least, check_types

DIRECTIONS = {-2: "anti-diagonal Δ=−2", -1: "anti-diagonal", 0: "vertical", 1: "diagonal", 2: "diagonal Δ=2"}
CHOICES = {
    "average": ("weights", "scores", "varying"),
    "statistic": ("sum", "mean"),
    "threshold_on": ("line", "centred"),
    "pool": ("direction", "head"),
}


@dataclass(frozen=True)
class Algorithm1Config:
    """The choices of Algorithm 1, with the values of the paper's text and the authors' code.

    Attributes:
        kappa_self, kappa_cross: κ of the threshold κσ + μ. Text: 0.87 and 4.5, in an earlier version 2.
        directions_self, directions_cross: the Δ of the lines sought. Code: 1 and −1; text: −1, 0 and 1.
        rows: lines are sought in this many of the first output steps; 0 means all of them (text). The code takes
            the first 6: with operands padded to 61 digits, later steps of training samples write leading zeros.
        average: the attention averaged: `weights` (code), `scores` before the softmax (text), or `varying` (ours).
        statistic: a line's d_l: the `sum` of its cells (code) or their `mean` (text).
        threshold_on: compare the `line`'s d_l (code), or d_l − max d, `centred` (text; weights never survive it).
        pool: take max d, σ and μ over each `direction` (code, which has one) or over the whole `head` (text).

    Raises:
        ValueError: a field of the wrong type, an unknown choice, rows below 0, or directions other than −2 to 2.
    """

    kappa_self: float = 0.87
    kappa_cross: float = 4.5
    directions_self: tuple[int, ...] = (1,)
    directions_cross: tuple[int, ...] = (-1,)
    rows: int = 6
    average: str = "weights"
    statistic: str = "sum"
    threshold_on: str = "line"
    pool: str = "direction"

    def __post_init__(self):
        check_types(self)
        check_among(self, **CHOICES)
        check_least(self, rows=0)
        for name in ("directions_self", "directions_cross"):
            directions = getattr(self, name)
            if not isinstance(directions, (tuple, list)) or not directions or set(directions) - set(DIRECTIONS):
                raise ValueError(f"expected {name} as a tuple from {sorted(DIRECTIONS)}, got {directions!r}")
            object.__setattr__(self, name, tuple(directions))


class MatrixLine(NamedTuple):
    """One kept line: in row i, at column Δ·i + offset from the left, or |Δ|·i + offset from the right (Δ < 0)."""

    head: int
    direction: int
    offset: int
    value: float


def columns_on(direction: int, offset: torch.Tensor, rows: torch.Tensor, total: int) -> torch.Tensor:
    """The column of each line in each row, [lines, rows], of a matrix with `total` columns; −1 outside it."""
    x = offset[:, None] + abs(direction) * rows
    return torch.where((x >= 0) & (x < total), x if direction >= 0 else total - 1 - x, -1)


@dataclass(frozen=True)
class MatrixLines(SavedLines):
    """Kept lines as a bias of any size: their values on their cells, the larger where they cross, −∞ elsewhere.

    A head without lines, and a row that no line of its head crosses, is 0 everywhere.
    """

    line_type = MatrixLine
    attention: str
    heads: int
    lines: tuple[MatrixLine, ...]

    def __call__(self, rows: torch.Tensor, columns: Columns) -> torch.Tensor:
        """The bias of rows and columns, [heads, rows, columns]."""
        bias = torch.full((self.heads, len(rows), columns.total), CLOSED, device=rows.device)
        for line in self.lines:
            offset = torch.tensor([line.offset], device=rows.device)
            at = columns_on(line.direction, offset, rows, columns.total)[0]
            here = ((at >= 0) if self.attention == "cross" else (at >= 0) & (at <= rows)).nonzero().flatten()
            cells = bias[line.head]
            cells[here, at[here]] = cells[here, at[here]].clamp(min=line.value)
        bias = bias.masked_fill(torch.isinf(bias).all(-1, keepdim=True), 0.0)[..., columns.index]
        return bias if self.attention == "cross" else bias.masked_fill(columns.index > rows[:, None], CLOSED)


def line_table(attention: torch.Tensor, name: str, config: Algorithm1Config) -> pd.DataFrame:
    """Every line that crosses a matrix, and whether it is kept.

    Args:
        attention: [heads, rows, columns], averaged over samples.
        name: `self` or `cross`; lines of self-attention end at its diagonal.
        config: the choices of Algorithm 1.

    Returns:
        One row for each line and head: head, direction, offset, strength (d_l), centred (d_l − max d) and kept.

    Raises:
        ValueError: attention that is not finite.
    """
    if not torch.isfinite(attention).all():
        raise ValueError("expected finite attention, got NaN or infinite values; average weights or raw scores")
    rows, total, parts = torch.arange(attention.shape[1]), attention.shape[2], []
    for direction in getattr(config, f"directions_{name}"):
        offset = torch.arange(-abs(direction) * (len(rows) - 1), total)
        at = columns_on(direction, offset, rows, total)
        inside = (at >= 0) if name == "cross" else (at >= 0) & (at <= rows)
        cells = attention.flatten(1)[:, (rows * total + at.clamp(min=0)).flatten()]
        sums, support = (cells.view(-1, *at.shape) * inside).sum(-1), inside.sum(1)
        strength = sums / support.clamp(min=1) if config.statistic == "mean" else sums
        parts.append([part[..., support > 0] for part in (torch.full_like(offset, direction), offset, strength)])
    direction, offset, d = (torch.cat(part, -1) for part in zip(*parts, strict=True))
    centred, kept = torch.empty_like(d), torch.empty_like(d, dtype=torch.bool)
    pools = direction if config.pool == "direction" else torch.zeros_like(direction)
    for pool in pools.unique():
        some = pools == pool
        mean, deviation = d[:, some].mean(1, keepdim=True), d[:, some].std(1, correction=0, keepdim=True)
        centred[:, some] = d[:, some] - d[:, some].amax(1, keepdim=True)
        # The margin keeps rounding noise among equal lines from counting as a pattern.
        threshold = getattr(config, f"kappa_{name}") * deviation + mean + 1e-6 * mean.abs()
        kept[:, some] = (centred if config.threshold_on == "centred" else d)[:, some] > threshold
    heads, lines = d.shape
    columns = {
        "head": torch.arange(heads).repeat_interleave(lines),
        "direction": direction.repeat(heads),
        "offset": offset.repeat(heads),
        "strength": d,
        "centred": centred,
        "kept": kept,
    }
    return pd.DataFrame({name: values.flatten().numpy() for name, values in columns.items()})


def calibrate_matrix(attention: torch.Tensor, name: str, config: Algorithm1Config) -> MatrixLines:
    """The kept lines of one averaged attention, [heads, rows, columns], as a bias of any size."""
    rows = attention[:, : config.rows] if config.rows else attention
    kept = line_table(rows, name, config).query("kept")[["head", "direction", "offset", "centred"]]
    return MatrixLines(name, len(attention), tuple(map(MatrixLine._make, kept.itertuples(index=False))))


def calibrate_matrices(average: AveragedAttention, config: Algorithm1Config) -> Biases:
    """Algorithm 1 on the last decoder layer's averaged attention (`config.average`), for all layers of a new model."""
    of_self, of_cross = average.self_attention[-1], average.cross_attention[-1]
    return Biases((calibrate_matrix(of_self, "self", config),), (calibrate_matrix(of_cross, "cross", config),))
