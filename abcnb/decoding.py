"""Greedy decoding with a key/value cache, and without one for comparison."""

import torch

from abcnb.layout import Layout, Steps
from abcnb.model import Transformer
from abcnb.tokens import START_ID


@torch.no_grad()
def greedy_decode(
    model: Transformer, source: torch.Tensor, layout: Layout, steps: int, cache: bool = True
) -> torch.Tensor:
    """Write an output token by token, each the argmax given those before it.

    Every sample writes `steps` tokens; what follows a written end token means nothing.

    Args:
        model: put in evaluation mode.
        source: [batch, columns], token ids on the model's device.
        layout: the source's columns.
        steps: tokens to write, the end token included.
        cache: keep keys and values of earlier steps; False runs the whole prefix again at every step.

    Returns:
        [batch, steps], token ids.
    """
    model.eval()
    layout = layout.to(source.device)
    memory = model.memory(source, layout)
    tokens = torch.full((len(source), 1), START_ID, device=source.device)
    past, columns = None, model.positions.coordinates(layout)
    for step in range(steps):
        seen = Steps(torch.arange(step + 1, device=source.device), steps)
        rows = seen.columns[-1:] if cache else seen.columns
        x = model.embed_target(tokens[:, -1:] if cache else tokens, rows, layout)
        biases = model.biases_of(rows, seen, layout)
        turned = model.positions.angles(rows, layout)
        logits, kept = model.run_decoder(x, turned, seen.columns, memory, columns, biases, past)
        past = kept if cache else None
        tokens = torch.cat([tokens, logits[:, -1:].argmax(-1)], dim=1)
    return tokens[:, 1:]
