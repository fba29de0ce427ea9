"""Greedy decoding with a key/value cache, and without one for comparison.

In a stream with lines the cache forgets the keys and values that no later step can reach.
"""

import torch

from abcnb.decoder_only import CHUNK, DecoderOnly, stream_of
from abcnb.layers import OpenTokens
from abcnb.layout import Layout, Steps, locate
from abcnb.limits import bar
from abcnb.model import Transformer
from abcnb.stream import Stream
from abcnb.tasks import Batch
from abcnb.tokens import EQUALS_ID, START_ID


@torch.no_grad()
def greedy_decode(
    model: Transformer, source: torch.Tensor, layout: Layout | Stream, steps: int, cache: bool = True
) -> torch.Tensor:
    """Write an output token by token, each the argmax given those before it.

    Every sample writes `steps` tokens; what follows a written end token means nothing.

    Args:
        model: put in evaluation mode.
        source: [batch, columns], token ids on the model's device.
        layout: the source's columns, or the stream of an output in rows.
        steps: tokens to write, the end token included.
        cache: keep keys and values of earlier steps; False runs the whole prefix again at every step.

    Returns:
        [batch, steps], token ids.

    Raises:
        ValueError: more steps than an output in one stream has.
    """
    model.eval()
    layout = layout.to(source.device)
    if isinstance(model, DecoderOnly):
        stream = stream_of(layout)
        outputs = len(stream.kind)
        if steps > outputs:
            raise ValueError(f"expected at most the {outputs} steps that the stream's output has, got {steps}")
        return _decode_stream(model, source, stream, steps, cache)
    memory = model.memory(source, layout)
    tokens = torch.full((len(source), 1), START_ID, device=source.device)
    past, columns = None, model.positions.coordinates(layout)
    for step in bar(range(steps), desc="writing"):
        seen = Steps(torch.arange(step + 1, device=source.device), steps)
        rows = seen.columns[-1:] if cache else seen.columns
        x = model.embed_target(tokens[:, -1:] if cache else tokens, rows, layout)
        biases = model.biases_of(rows, seen, layout)
        turned = model.positions.angles(rows, layout)
        logits, kept = model.run_decoder(x, turned, seen.columns, memory, columns, biases, past)
        past = kept if cache else None
        tokens = torch.cat([tokens, logits[:, -1:].argmax(-1)], dim=1)
    return tokens[:, 1:]


def write_outputs(model: Transformer, batch: Batch) -> torch.Tensor:
    """Decode the inputs of a batch greedily, to as many tokens as its targets have.

    Returns:
        [batch, steps], token ids on the model's device.
    """
    return greedy_decode(model, batch.source.to(model.device), batch.layout, batch.target.shape[1])


def _decode_stream(
    model: DecoderOnly, source: torch.Tensor, stream: Stream, steps: int, cache: bool
) -> torch.Tensor:
    equals = torch.full_like(source[:, :1], EQUALS_ID)
    tokens = torch.cat([source[:, :-1], equals], dim=1)
    vectors = model.positions.stream(stream)
    forgets = cache and model.opens_few
    dense = None if forgets else model.stream_biases(stream)
    last_readers = _last_readers(model, stream) if forgets else None
    past, kept = None, torch.empty(0, dtype=torch.long, device=source.device)
    for _ in bar(range(steps), desc="writing"):
        total = tokens.shape[1]
        rows = torch.arange(len(kept) and total - 1, total, device=source.device)
        kept = torch.cat([kept, rows])
        x = model._embed(tokens[:, rows], None if vectors is None else vectors[rows])
        following = []
        for number, layer in enumerate(model.decoder):
            if forgets:
                bias = model.self_biases[number % len(model.self_biases)]
                bias = OpenTokens(locate(kept, bias.open_tokens(rows, stream)))
            else:
                bias = dense[number][:, rows][:, :, kept]
            x, keys_values = layer(x, rows, past and past[number], kept, None, None, (bias, None))
            following.append(keys_values)
        tokens = torch.cat([tokens, model.head(model.norm(x[:, -1:])).argmax(-1)], dim=1)
        past = following
        if not cache:
            past, kept = None, kept[:0]
        elif forgets:
            past, kept = _without_unread(past, kept, last_readers, total)
    return tokens[:, stream.prompt :]


def _last_readers(model: DecoderOnly, stream: Stream) -> torch.Tensor:
    """The last row that any line of any layer leads from to each token, [tokens]; −1 where none does."""
    last = torch.full((len(stream),), -1, device=stream.kind.device)
    for bias in model.self_biases:
        for rows in torch.arange(len(stream), device=last.device).split(CHUNK):
            opened = bias.open_tokens(rows, stream)
            readers = rows[:, None].expand(opened.shape)
            last.scatter_reduce_(0, opened[opened >= 0], readers[opened >= 0], "amax")
    return last


def _without_unread(
    past: list, kept: torch.Tensor, last_readers: torch.Tensor, row: int
) -> tuple[list, torch.Tensor]:
    """Keys and values that rows from this one on still read, once they are fewer than half of those kept."""
    alive = last_readers[kept] >= row
    if 2 * int(alive.sum()) > len(kept):
        return past, kept
    return [tuple(part[:, :, alive] for part in pair) for pair in past], kept[alive]
