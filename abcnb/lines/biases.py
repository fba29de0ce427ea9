"""Attention biases: the interface they share, causality, and what a task or a method closes.

A bias is a callable `bias(rows, columns) -> [heads, rows, columns]`, added to the attention scores before the softmax.
`rows` are the numbers of the decoder's tokens, [rows]: steps in an encoder-decoder, tokens in one causal sequence.
`columns` are `coordinates.Columns`, of the source for cross-attention and of the decoder for self-attention. The
model closes columns above the diagonal of self-attention for every method. Biases made of lines are in `line`,
those made of distances in `rivals.distances`.
"""

from typing import NamedTuple, Protocol

import torch

from abcnb.lines.coordinates import Columns

CLOSED = float("-inf")


class Bias(Protocol):
    """Anything that can be added to attention scores."""

    def __call__(self, rows: torch.Tensor, columns: Columns) -> torch.Tensor: ...


class Biases(NamedTuple):
    """The biases of a model's decoder; each attention has none, one for all layers, or one per layer."""

    self_biases: tuple[Bias, ...] = ()
    cross_biases: tuple[Bias, ...] = ()


NO_BIASES = Biases()


def unbiased(rows: torch.Tensor, columns: Columns) -> torch.Tensor:
    """The bias that changes nothing: 0 in every cell, [1, rows, columns]."""
    return torch.zeros(1, len(rows), len(columns), device=rows.device)


def causal(rows: torch.Tensor, columns: Columns) -> torch.Tensor:
    """0 where column j ≤ row i, −∞ where it lies in the future; [1, rows, columns]."""
    return unbiased(rows, columns).masked_fill(columns.index > rows[:, None], CLOSED)


def own_token(rows: torch.Tensor, columns: Columns) -> torch.Tensor:
    """0 where column j = row i, −∞ elsewhere; [1, rows, columns]."""
    return unbiased(rows, columns).masked_fill(columns.index != rows[:, None], CLOSED)


def own_token_first(layers: int) -> Biases:
    """In the first of `layers` layers every token sees only itself; in the others, all earlier tokens too."""
    return Biases((own_token, *[unbiased] * (layers - 1)))
