"""What a model writes: greedy decoding token by token, and teacher-forced predictions on inputs of any length.

Along lines, predictions are made in chunks of steps: exact, in time proportional to the length and, beyond the
tokens themselves, in memory that does not grow. The cache of greedy decoding then drops keys and values that no
later step can reach.
"""

import torch

from abcnb.lines.coordinates import Columns, Stream, locate
from abcnb.machine.devices import bar
from abcnb.model.layers import needs_keys
from abcnb.model.transformer import Transformer
from abcnb.tasks.task import Batch

CHUNK = 2048  # output steps predicted in one pass


def why_not_along_lines(model: Transformer) -> str:
    """Why a model cannot predict in chunks; empty if it can."""
    if model.config.encoder_layers:
        return "a long input needs the identity encoder (encoder_layers=0)"
    if not model.positions.absolute:
        return f"a long input needs absolute or no positions, got {model.config.position!r}"
    return "" if model.along_lines else "a long input needs lines; an attention has another bias or none"


@torch.no_grad()
def predictions_in_chunks(model: Transformer, batch: Batch, chunk: int = CHUNK) -> torch.Tensor:
    """The argmax of teacher-forced logits, [batch, steps], equal to `Transformer.predictions` up to rounding.

    A chunk of steps brings along the earlier tokens that it looks back to, layer by layer, and the source columns
    that its lines open. One sample may have millions of digits. Raises ValueError if the model cannot do so.
    """
    if reason := why_not_along_lines(model):
        raise ValueError(reason)
    model.eval()
    stream, tokens = model.stream_of(batch.stream).to(model.device), model.sequence(batch)
    selves = model.self_biases * (len(model.decoder) // len(model.self_biases))
    first = stream.prompt - 1 - stream.source
    steps = torch.arange(first, len(stream), device=model.device)
    found = torch.empty_like(batch.target, device=model.device)  # many small parts would fragment free memory
    for wanted in bar(steps.split(chunk), desc=f"{stream.rows:,} steps"):
        rows = wanted
        for bias in reversed(selves):  # each layer needs, from the one below, the tokens that it looks back to
            rows = _joined(rows, bias.open_tokens(rows, stream))
        opened = [bias.open_tokens(rows, stream) for bias in model.cross_biases]
        source = _joined(rows[:0], *opened)
        own = [_at(rows, bias.open_tokens(rows, stream)) for bias in model.self_biases]
        crossed = [_at(source, seen) for seen in opened]
        columns, keyed = Columns(stream, source, crossing=True), any(map(needs_keys, crossed))
        memory = model.memory(batch.source[:, source], columns, keyed=keyed)
        x = model.embed(tokens[:, rows], Columns(stream, rows))
        x, _ = model.run_decoder(x, rows, rows, memory, model.by_layer(own, crossed))
        found[:, wanted - first] = model.logits(x[:, locate(rows, wanted)]).argmax(-1)
    return found


def _joined(columns: torch.Tensor, *opened: torch.Tensor) -> torch.Tensor:
    """Columns, and the open tokens of several attentions, each once, sorted."""
    return torch.cat([columns, *(tokens[tokens >= 0] for tokens in opened)]).unique()


def _at(present: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Wanted columns as indices into the present ones, −1 for those that are missing."""
    found = locate(present, wanted)
    # Rows that are there only to be looked back to may open nothing that is present; what they see is not used.
    found[..., 0] = torch.where((found < 0).all(-1), 0, found[..., 0])
    return found


@torch.no_grad()
def greedy_decode(
    model: Transformer, source: torch.Tensor, stream: Stream, steps: int, cache: bool = True
) -> torch.Tensor:
    """Write an output token by token, each the argmax given those before it: [batch, steps] token ids.

    Every sample writes `steps` tokens, at most as many as the output has; those after an end token mean nothing.

    Args:
        source, stream: [batch, columns], token ids on the model's device, and their coordinates.
        cache: keep keys and values of earlier steps; False reruns the whole prefix at every step.
    """
    model.eval()
    stream = model.stream_of(stream).to(source.device)
    if steps > stream.rows:
        raise ValueError(f"expected at most the {stream.rows} steps that the output has, got {steps}")
    along_lines = cache and not why_not_along_lines(model)
    last_readers = _last_readers(model, stream) if along_lines else None
    memory, tokens = model.memory(source, stream.columns(crossing=True)), model.prompt(source)
    written = tokens.shape[1]
    past, kept = None, torch.empty(0, dtype=torch.long, device=source.device)
    for _ in bar(range(steps), desc="writing"):
        total = tokens.shape[1]
        rows = torch.arange(total - 1 if past else 0, total, device=source.device)
        kept = torch.cat([kept, rows])
        columns, seen = Columns(stream, rows), Columns(stream, kept)
        if along_lines:
            opened = model.open_tokens(rows, stream)
            biases = [(_at(kept, own), crossed) for own, crossed in opened]
        else:
            biases = model.biases_of(rows, seen)
        angles = model.positions.angles(columns), model.positions.angles(seen)
        x, past = model.run_decoder(model.embed(tokens[:, rows], columns), *angles, memory, biases, past)
        tokens = torch.cat([tokens, model.logits(x[:, -1:]).argmax(-1)], dim=1)
        if not cache:
            past, kept = None, kept[:0]
        elif along_lines:
            past, kept = _without_unread(past, kept, last_readers, total)
    return tokens[:, written:]


def write_outputs(model: Transformer, batch: Batch) -> torch.Tensor:
    """Decode a batch's inputs greedily, writing as many tokens as its targets have: [batch, steps] token ids."""
    return greedy_decode(model, batch.source.to(model.device), batch.stream, batch.target.shape[1])


def _last_readers(model: Transformer, stream: Stream) -> torch.Tensor:
    """The last row that reads each of the decoder's tokens along a line of any layer, [tokens]; −1 for none."""
    last = torch.full((len(stream),), -1, device=stream.device)
    for bias in model.self_biases:
        for rows in torch.arange(len(stream), device=last.device).split(CHUNK):
            opened = bias.open_tokens(rows, stream)
            readers = rows[:, None].expand(opened.shape)
            last.scatter_reduce_(0, opened[opened >= 0], readers[opened >= 0], "amax")
    return last


def _without_unread(
    past: list, kept: torch.Tensor, last_readers: torch.Tensor, row: int
) -> tuple[list, torch.Tensor]:
    """Keep only keys and values that `row` or later rows read, once they are at most half of those kept."""
    alive = last_readers[kept] >= row
    if 2 * int(alive.sum()) > len(kept):
        return past, kept
    return [tuple(part if part is None else part[:, :, alive] for part in pair) for pair in past], kept[alive]
