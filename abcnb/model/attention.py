"""What a model attends to on given inputs."""

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
    model.eval()(batch, recording)
    return recording


@torch.no_grad()
def average_attention(
    model: Transformer, batches: Iterable[Batch], what: str = "weights"
) -> list[AveragedAttention]:
    """Every layer's teacher-forced attention, averaged per shape over equal-sized batches.

    `what` is `weights`, `scores`, or `varying`: weights, but 0 for tokens that are the same in every sample of a shape.
    Such tokens tell a step nothing in training, whatever stands in their place later.

    Source: paper, appendix D, step 1, where the model decodes its own training samples; since it interpolates,
    decoding and teacher forcing feed it the same tokens.
    """
    shapes: dict[Stream, list[Batch]] = defaultdict(list)
    for batch in batches:
        shapes[batch.stream].append(batch)
    found = []
    for stream, alike in shapes.items():
        means = [0.0] * (1 + model.crossing)
        for batch in alike:
            recording = record(model, batch, "weights" if what == "varying" else what)
            parts = zip(means, (recording.self_attention, recording.cross_attention), strict=False)
            means = [total + torch.stack([layer.mean(0) for layer in layers]) for total, layers in parts]
        if what == "varying":
            read = map(torch.cat, ([model.sequence(batch) for batch in alike], [batch.source for batch in alike]))
            means = [mean * (ids != ids[0]).any(0) for mean, ids in zip(means, read, strict=False)]
        averages = [mean.cpu() / len(alike) for mean in means]
        found.append(AveragedAttention(model.stream_of(stream).to("cpu"), *averages))
    return found
