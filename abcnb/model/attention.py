"""What a model attends to on given inputs.

Step i writes the digit of place i, so its cross-attention has to find place i of every operand: an
anti-diagonal in each operand on an attention map (paper, section 3 and figures 2, 5, 6).
"""

from collections.abc import Iterable

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
    """Every layer's teacher-forced attention (`weights` or `scores`), averaged per shape over equal-sized batches.

    Source: paper, appendix D, step 1, where the model decodes its own training samples; since it interpolates,
    decoding and teacher forcing feed it the same tokens.
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
