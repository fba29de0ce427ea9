"""What a model attends to on given inputs, and how much of it lies on the digits that a step must read.

Step i writes the digit of place i, so its cross-attention has to find place i of every operand: on an
attention map an anti-diagonal in each operand (paper, section 3 and figures 2, 5, 6).
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch

from abcnb.lines.calibration import AveragedAttention
from abcnb.lines.coordinates import Stream
from abcnb.model.layers import Recording
from abcnb.model.transformer import Transformer
from abcnb.tasks.task import Batch


@torch.no_grad()
def record(model: Transformer, batch: Batch, what: str = "weights") -> Recording:
    """The teacher-forced attention of every decoder layer, each [batch, heads, rows, columns]."""
    recording = Recording(what)
    model.eval()
    model(batch, recording)
    return recording


@torch.no_grad()
def average_attention(
    model: Transformer, batches: Iterable[Batch], what: str = "weights"
) -> list[AveragedAttention]:
    """The teacher-forced attention (`weights` or `scores`) of every layer, averaged over equal batches of each shape.

    Source: paper, appendix D, step 1. The model decodes its own training samples; as it interpolates, decoding and
    teacher forcing feed it the same tokens.
    """
    sums: dict[Stream, tuple[int, list[torch.Tensor]]] = {}
    for batch in batches:
        recording = record(model, batch, what)
        recorded = filter(None, (recording.self_attention, recording.cross_attention))
        means = [torch.stack([layer.mean(0) for layer in layers]) for layers in recorded]
        count, known = sums.get(batch.stream, (0, [0.0] * len(means)))
        sums[batch.stream] = count + 1, [total + mean for total, mean in zip(known, means, strict=True)]
    return [
        AveragedAttention(model.stream_of(stream).to("cpu"), *(total.cpu() / count for total in totals))
        for stream, (count, totals) in sums.items()
    ]


def by_distance(bias: torch.Tensor) -> torch.Tensor:
    """Mean of a self-attention bias, [heads, rows, rows], k steps back: [heads, k], −∞ where they are closed."""
    return torch.stack([bias.diagonal(-k, dim1=-2, dim2=-1).mean(-1) for k in range(bias.shape[-1])], dim=1)


def share_on_place(weights: torch.Tensor, stream: Stream) -> torch.Tensor:
    """Cross-attention, [..., steps, columns], on the digits of each step's own place, all operands together.

    Shares from 0 to 1, [..., width]; the last step writes the end token and has no place.
    """
    steps = torch.arange(stream.width)
    return torch.stack([weights[..., steps, operand.tokens([steps])] for operand in stream.operands]).sum(0)


class Reading(NamedTuple):
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
    share = share_on_place(recording.cross_attention[-1].mean(0), batch.stream)
    return Reading(share, 100.0 * right[:, : batch.stream.width].float().mean(0))
