"""Attention biases: the interface that each of them keeps, causality, and what a task or a method closes.

A bias is a callable `bias(rows, columns) -> [heads, rows, columns]`, added to the attention scores before the softmax.
`rows` are numbers of the decoder's tokens, [rows]: the steps of an encoder-decoder, the tokens of one causal sequence.
`columns` are `coordinates.Columns`, of the source for cross-attention and of the decoder for self-attention. Columns
above the diagonal of self-attention are closed by the model for every method. Biases made of lines are in `lines`,
those of distances in `rivals.distances`.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from abcnb.coordinates import Columns

CLOSED = float("-inf")


class Bias(Protocol):
    """Anything that can be added to attention scores."""

    def __call__(self, rows: torch.Tensor, columns: Columns) -> torch.Tensor: ...


class Biases(NamedTuple):
    """The biases of a model's decoder: of each attention none, one for all layers, or one for each layer."""

    self_biases: tuple[Bias, ...] = ()
    cross_biases: tuple[Bias, ...] = ()


NO_BIASES = Biases()


def causal(rows: torch.Tensor, columns: Columns) -> torch.Tensor:
    """0 where column j ≤ row i, −inf where it lies in the future; shape [1, rows, columns]."""
    future = columns.index[None, :] > rows[:, None]
    return torch.zeros(future.shape, device=rows.device).masked_fill(future, CLOSED)[None]


def own_token(rows: torch.Tensor, columns: Columns) -> torch.Tensor:
    """0 where column j = row i, −inf elsewhere; shape [1, rows, columns]."""
    other = columns.index[None, :] != rows[:, None]
    return torch.zeros(other.shape, device=rows.device).masked_fill(other, CLOSED)[None]


@dataclass(frozen=True)
class Softened:
    """A bias whose closed cells have a finite value; open cells keep theirs.

    Beside a cell of bias 0 and the same score, a closed cell has a weight of e^value instead of none.
    """

    bias: Bias
    value: float

    def __call__(self, rows: torch.Tensor, columns: Columns) -> torch.Tensor:
        bias = self.bias(rows, columns)
        return bias.masked_fill(bias == CLOSED, self.value)


def unbiased(rows: torch.Tensor, columns: Columns) -> torch.Tensor:
    """The bias that changes nothing: 0 in every cell, [1, rows, columns]."""
    return torch.zeros(1, len(rows), len(columns), device=rows.device)


def limited(
    biases: Biases, layers: int, attention: str = "both", only: Collection[int] = (), closed: float = CLOSED
) -> Biases:
    """Biases in a part of the decoder, or with closed cells that are not quite closed.

    Args:
        biases: of all layers.
        layers: how many decoder layers there are.
        attention: `self`, `cross` or `both`: which attention keeps its bias.
        only: the layers that keep it, from 0; empty is all.
        closed: the value of closed cells. Causality stays −∞: the model adds it after this.
    """

    def part(name: str, given: tuple[Bias, ...]) -> tuple[Bias, ...]:
        if not given or attention not in (name, "both"):
            return ()
        each = given * (layers // len(given)) if only else given
        each = [unbiased if only and layer not in only else bias for layer, bias in enumerate(each)]
        return tuple(bias if closed == CLOSED or bias is unbiased else Softened(bias, closed) for bias in each)

    return Biases(part("self", biases.self_biases), part("cross", biases.cross_biases))
