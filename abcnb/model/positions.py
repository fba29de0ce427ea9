"""Position schemes: how a model is told where a token stands. One class per scheme; `SCHEMES` has them by name.

A scheme overrides only what it needs of `Positions`; its constructor's parameters are the fields of `ModelConfig`
that it reads. Defined here are no positions, the paper's, and kinds of steps; `rivals` adds those of other papers.
"""

import math

import torch
from torch import nn

from abcnb.lines.coordinates import Columns, Stream


def sinusoid(index: torch.Tensor, d_model: int) -> torch.Tensor:
    """PE(i, 2k) = sin(i / 10000^(2k/d)), PE(i, 2k+1) = cos(i / 10000^(2k/d)); shape [..., d_model].

    Source: Vaswani et al. 2017, section 3.5.
    """
    rate = torch.exp(torch.arange(0, d_model, 2, device=index.device) * (-math.log(10000.0) / d_model))
    angle = index[..., None] * rate
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)


class Positions(nn.Module):
    """No positions (NoPE), and what every scheme can override.

    Attributes:
        absolute: a token's position depends on that token only, so parts of an input can be evaluated separately.
        biased: the scheme has `biases`.
        in_streams, only_in_streams: it can be used in a decoder-only model, and in no other.
    """

    absolute, biased = True, False
    in_streams, only_in_streams = True, False

    def draw(self, stream: Stream, batch: int) -> int | torch.Tensor:
        """What is drawn at random for each training batch and passed to `vectors`; 0 in evaluation."""
        return 0

    def vectors(self, columns: Columns, draw: int | torch.Tensor = 0) -> torch.Tensor | None:
        """What to add to these tokens' embeddings, [tokens, d_model] or [batch, tokens, d_model], or None."""
        return None

    def angles(self, columns: Columns) -> torch.Tensor:
        """The index by which `turn` turns each token."""
        return columns.index

    def turn(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """Queries or keys, [batch, heads, n, d_head], with positions put into them."""
        return x

    def coordinates(self, columns: Columns) -> torch.Tensor:
        """The coordinate of each source column from which `relative` takes its distance, [columns]."""
        return columns.index

    def relative(self, d_head: int, crossing: bool) -> nn.Module | None:
        """The relative vectors of one attention; `crossing` if it attends to the source."""
        return None

    def biases(self, rows: torch.Tensor, columns: Columns) -> list[torch.Tensor]:
        """What to add to attention scores, [heads, rows, columns]: none, one for all layers, or one per layer."""
        return []


class Sinusoidal(Positions):
    """The sinusoid of the column number on the source side, and of the step number on the target side.

    Source: Vaswani et al. 2017, section 3.5; paper: Vanilla.
    """

    def __init__(self, d_model: int):
        super().__init__()
        self.d_model = d_model

    def vectors(self, columns, draw=0):
        return sinusoid(columns.index, self.d_model)


class CyclicColumns(Positions):
    """Cyclic position indexing (CPI): the sinusoid of the step, or column from the units digit, modulo T.

    Source: paper, appendix C.4 (`period`: T). Counting from the units digit on both sides is our reading; without
    it the phase shifts with the width.
    """

    in_streams = False

    def __init__(self, d_model: int, period: int = 3):
        super().__init__()
        self.d_model, self.period = d_model, period

    def phases(self, columns: Columns) -> torch.Tensor:
        """The phase of each source column, [columns]."""
        units = max(operand.start for operand in columns.stream.operands)
        return (units - columns.index) % self.period

    def vectors(self, columns, draw=0):
        phases = self.phases(columns) if columns.crossing else columns.index % self.period
        return sinusoid(phases, self.d_model)


class Kinds(Positions):
    """A learned vector per kind of step that a token makes (`coordinates`), one for the prompt; no positions."""

    only_in_streams = True
    MOST = 8  # kinds of steps that have a vector

    def __init__(self, d_model: int):
        super().__init__()
        self.table = nn.Embedding(self.MOST + 1, d_model)

    def vectors(self, columns, draw=0):
        kind, _, _ = columns.stream.steps_at(columns.index)
        return self.table(kind + 1)


SCHEMES: dict[str, type[Positions]] = {
    "none": Positions,
    "sinusoidal": Sinusoidal,
    "cyclic-columns": CyclicColumns,
    "kinds": Kinds,
}  # and those of `rivals`
