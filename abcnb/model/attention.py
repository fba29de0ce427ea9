"""What a model attends to on given inputs.

Step i writes the digit of place i, so its cross-attention has to find place i of every operand: an
anti-diagonal in each operand on an attention map (paper, section 3 and figures 2, 5, 6).
"""

from collections import defaultdict
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
    """Every layer's teacher-forced attention, averaged per shape over equal-sized batches.

    `what` is `weights`, `scores`, or `varying`: weights, where those of tokens that are the same in every sample of a
    shape are 0. Such tokens show a step nothing in training, whatever stands in their place later.

    Source: paper, appendix D, step 1, where the model decodes its own training samples; since it interpolates,
    decoding and teacher forcing feed it the same tokens.
    """
    shapes: dict[Stream, list[Batch]] = defaultdict(list)
    for batch in batches:
        shapes[batch.stream].append(batch)
    found = []
    for stream, alike in shapes.items():
        sums = [0.0] * (1 + model.crossing)
        for batch in alike:
            recording = record(model, batch, "weights" if what == "varying" else what)
            parts = zip(sums, (recording.self_attention, recording.cross_attention), strict=False)
            sums = [total + torch.stack([layer.mean(0) for layer in layers]) for total, layers in parts]
        means = [total / len(alike) for total in sums]
        if what == "varying":
            read = map(torch.cat, ([model.sequence(batch) for batch in alike], [batch.source for batch in alike]))
            means = [mean * (ids != ids[0]).any(0) for mean, ids in zip(means, read, strict=False)]
        found.append(AveragedAttention(model.stream_of(stream).to("cpu"), *(mean.cpu() for mean in means)))
    return found
