"""The interface that every attention bias keeps, and causality.

A bias is a callable `bias(rows, columns) -> [heads, rows, columns]`, added to the attention scores before
the softmax. `rows` are decoder steps, [rows]; `columns` is a `Layout` for cross-attention and `Steps` for
self-attention. Columns above the diagonal of self-attention are closed by the model for every method.

Biases made of lines are in `lines`; biases that depend on a distance alone (ALiBi, T5, KERPLE, FIRE) in
`distance_biases`.
"""

from typing import NamedTuple, Protocol

import torch

from abcnb.layout import Layout, Steps

CLOSED = float("-inf")


class Bias(Protocol):
    """Anything that can be added to attention scores."""

    def __call__(self, rows: torch.Tensor, columns: Layout | Steps) -> torch.Tensor: ...


class Biases(NamedTuple):
    """The biases of a model's decoder: of each attention none, one for all layers, or one for each layer."""

    self_biases: tuple[Bias, ...] = ()
    cross_biases: tuple[Bias, ...] = ()


NO_BIASES = Biases()


def causal(rows: torch.Tensor, columns: Steps) -> torch.Tensor:
    """0 where column j ≤ row i, −inf where it lies in the future; shape [1, rows, columns]."""
    future = columns.columns[None, :] > rows[:, None]
    return torch.zeros(future.shape, device=rows.device).masked_fill(future, CLOSED)[None]
