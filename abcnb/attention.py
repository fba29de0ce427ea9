"""What a model attends to on given inputs, and how much of it lies on the digits that a step must read.

Step i writes the digit of place i, so its cross-attention has to find place i of every operand: on an
attention map an anti-diagonal in each operand (paper, section 3 and figures 2, 5, 6).
"""

from dataclasses import dataclass

import torch

from abcnb.layers import Recording
from abcnb.layout import Layout
from abcnb.model import Transformer
from abcnb.tasks import Batch


@torch.no_grad()
def record(model: Transformer, batch: Batch, what: str = "weights") -> Recording:
    """The teacher-forced attention of every decoder layer, each [batch, heads, rows, columns]."""
    recording = Recording(what)
    model.eval()
    model(batch, recording)
    return recording


def by_distance(bias: torch.Tensor) -> torch.Tensor:
    """Mean over the cells of each distance i − j ≥ 0 of a self-attention bias.

    Args:
        bias: [heads, rows, rows], −inf where closed.

    Returns:
        [heads, rows]: entry k is the mean over all cells k steps back; −inf where they are closed.
    """
    rows = bias.shape[-1]
    return torch.stack([bias.diagonal(-k, dim1=-2, dim2=-1).mean(-1) for k in range(rows)], dim=1)


def share_on_place(weights: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Attention on the digits of each step's own place, all operands together.

    Args:
        weights: cross-attention, [..., rows, columns], with as many rows as the layout has.
        layout: the source's columns.

    Returns:
        Shares from 0 to 1, [..., width]; the last row writes the end token and has no place.
    """
    steps = torch.arange(layout.width)
    columns = layout.column_of_place[:, 1 : layout.width + 1]  # [segments, width], place p at index p
    return torch.stack([weights[..., steps, of_operand[steps]] for of_operand in columns]).sum(0)


@dataclass(frozen=True)
class Reading:
    """How a model reads a batch, step by step.

    Attributes:
        share: [heads, width], attention of the last layer on the step's own place, mean over the batch.
        correct: [width], percent of the batch whose digit the step writes right, teacher-forced.
    """

    share: torch.Tensor
    correct: torch.Tensor


@torch.no_grad()
def reading(model: Transformer, batch: Batch) -> Reading:
    """Where the last layer's heads look and whether the digits come out right."""
    recording = Recording()
    model.eval()
    right = model(batch, recording).argmax(-1) == batch.target
    share = share_on_place(recording.cross_attention[-1].mean(0), batch.layout)
    return Reading(share, 100.0 * right[:, : batch.layout.width].float().mean(0))
