"""Errors on inputs of any length: output steps in chunks, attention over open cells only.

Exact for an encoder-decoder whose attention is along lines alone; a decoder-only model with lines goes along them by
itself (`decoder_only.DecoderOnly.predictions`).
"""

import torch

from abcnb.layers import OpenTokens
from abcnb.layout import Layout, Steps, locate
from abcnb.limits import bar
from abcnb.lines import LineBias
from abcnb.model import Transformer
from abcnb.stream import Stream
from abcnb.tasks import Batch, Operands, Task

CHUNK = 2048  # output steps counted in one pass
ROWS_CHECKED = 65_536  # rows whose open cells are listed at a time


def why_not_in_chunks(model: Transformer, layout: Layout | Stream, steps: int) -> str:
    """Why chunked evaluation would not be exact for this model on a source of this layout; empty where it is.

    Args:
        model: any.
        layout: the source's columns, or the stream.
        steps: of the output; a classification has fewer than the source has places.
    """
    if model.config.architecture == "decoder-only":
        return "a decoder-only model evaluates long streams along its lines by itself"
    if model.config.encoder_layers:
        return "chunked evaluation needs the identity encoder (encoder_layers=0)"
    if not model.positions.absolute:
        return f"chunked evaluation needs absolute or no positions, got {model.config.position!r}"
    layout = layout.to("cpu")
    parts = torch.arange(steps).split(ROWS_CHECKED)
    for name, biases in (("self", model.self_biases), ("cross", model.cross_biases)):
        if not biases or not all(isinstance(bias, LineBias) for bias in biases):
            return f"chunked evaluation needs line biases; the {name}-attention has another bias or none"
        columns = layout if name == "cross" else Steps.all(steps)
        for bias in biases:
            if bias.transparent_heads:
                return f"chunked evaluation needs lines for every head; {name}-attention head " + (
                    f"{bias.transparent_heads[0]} is transparent"
                )
            for rows in bar(parts, desc="lines of all steps"):
                heads, where, _ = bias.open_cells(rows, columns)
                opened = torch.zeros(bias.heads, len(rows), dtype=torch.long)
                opened.index_add_(0, heads, (where >= 0).long())
                if not bool(opened.all()):
                    head, row = (opened == 0).nonzero()[0].tolist()
                    return (
                        "chunked evaluation needs every row to open finitely many columns; "
                        f"{name}-attention head {head} leaves row {int(rows[row])} open to all"
                    )
    return ""


def count_errors_in_chunks(
    model: Transformer, task: Task, operands: Operands, form: str, chunk: int = CHUNK
) -> torch.Tensor:
    """Teacher-forced errors of each sample, [samples]; beyond the tokens themselves memory does not grow.

    Output steps are processed in chunks. A chunk brings along the earlier steps that its counted ones look back to,
    layer by layer, and the source columns that its lines open, and attends to open cells only, so that time grows
    with the length and not with its square.

    Args:
        model: identity encoder, finite line biases in self- and cross-attention.
        task, operands, form: the inputs; one sample may have millions of digits.
        chunk: steps counted in one pass.

    Raises:
        ValueError: a bias is not finite: not made of lines, a transparent head, a row open to all.
    """
    batch = task.batch(tuple(operand.to(model.device) for operand in operands), form)
    if reason := why_not_in_chunks(model, batch.layout, batch.target.shape[1]):
        raise ValueError(reason)
    model.eval()
    return wrong_tokens_in_chunks(model, Batch(batch.source, batch.target, batch.layout.to(model.device)), chunk)


@torch.no_grad()
def wrong_tokens_in_chunks(model: Transformer, batch: Batch, chunk: int) -> torch.Tensor:
    """Teacher-forced errors of each sample, [batch], of a model that `why_not_in_chunks` has nothing against."""
    layout, tokens, total = batch.layout, batch.decoder_input, batch.target.shape[1]
    everything = Steps.all(total, model.device)
    errors = torch.zeros(len(tokens), dtype=torch.long, device=model.device)
    for start in bar(range(0, total, chunk), desc=f"{total:,} steps"):
        counted = torch.arange(start, min(start + chunk, total), device=model.device)
        rows = counted
        # From the last layer down: each asks the one below for the steps that it looks back to.
        for bias in reversed(model.self_biases * (len(model.decoder) // len(model.self_biases))):
            _, where, _ = bias.open_cells(rows, everything)
            rows = torch.cat([rows, where[where >= 0]]).unique()
        opened = []
        for bias in model.cross_biases:
            _, where, _ = bias.open_cells(rows, layout)
            opened.append(where[where >= 0])
        part = layout.select(torch.cat(opened).unique())
        memory = model.memory(batch.source[:, part.columns], part)
        x = model.embed_target(tokens[:, rows], rows, layout)
        selves = [_opened(bias, rows, everything, rows) for bias in model.self_biases]
        crosses = [_opened(bias, rows, layout, part.columns) for bias in model.cross_biases]
        layers = len(model.decoder)
        biases = list(zip(selves * (layers // len(selves)), crosses * (layers // len(crosses)), strict=True))
        logits, _ = model.run_decoder(x, rows, rows, memory, part.columns, biases)
        predicted = logits[:, locate(rows, counted)].argmax(-1)
        errors += (predicted != batch.target[:, counted]).sum(1)
    return errors


def _opened(bias: LineBias, rows: torch.Tensor, columns: Layout | Steps, present: torch.Tensor) -> OpenTokens:
    """The open cells of rows, as indices into the columns that are present."""
    where, values = bias.open_tokens(rows, columns)
    local = locate(present, where)
    # Rows that are there only for what they look back to may open nothing that is present: what they see is not used.
    nothing = (local < 0).all(-1)
    local[..., 0] = torch.where(nothing, 0, local[..., 0])
    return OpenTokens(local, values if bool(values.any()) else None)
