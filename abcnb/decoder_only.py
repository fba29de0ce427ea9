"""The decoder-only Transformer: input and output in one causal stream, `$123+748=1780&`.

It shares layers, embedding, position schemes and recording with the encoder-decoder. Its biases are those of
self-attention, called with the stream (`counters.StreamBias`) or with the steps of a stream (ALiBi, T5, FIRE).
"""

from functools import lru_cache

import torch

from abcnb.biases import causal
from abcnb.counters import StreamBias
from abcnb.layers import OpenTokens, Recording
from abcnb.layout import Layout, Steps
from abcnb.limits import bar
from abcnb.lines import LineBias
from abcnb.model import Transformer, sums_of
from abcnb.stream import Stream, one_row
from abcnb.tasks import Batch

CHUNK = 4096  # tokens whose open tokens are gathered at a time
SHAPES_KEPT = 64  # shapes of a training whose biases are kept


def stream_of(layout: Layout | Stream) -> Stream:
    """The stream of a batch: of an output in rows as it is, otherwise that of one row."""
    return layout if isinstance(layout, Stream) else one_row(layout)


class DecoderOnly(Transformer):
    """Token ids of a prompt and its output in, logits of the output's next tokens out; arguments as of `Transformer`.

    Raises:
        ValueError: a cross-attention bias, or lines of an encoder-decoder.
    """

    def __init__(self, config, vocabulary_size, self_biases=(), cross_biases=()):
        if cross_biases:
            raise ValueError(
                "expected no cross-attention bias in a decoder-only model, which has no cross-attention"
            )
        if any(isinstance(bias, LineBias) for bias in self_biases):
            raise ValueError("expected lines of a stream (StreamBias) in a decoder-only model, got a LineBias")
        super().__init__(config, vocabulary_size, self_biases)
        if self.positions.biased:  # the scheme has one for cross-attention too, which nothing here would train
            self.positions.cross_bias.requires_grad_(False)

    @property
    def opens_few(self) -> bool:
        """Whether all attention is along lines, so that every row opens a bounded number of tokens."""
        of_lines = bool(self.self_biases) and all(isinstance(bias, StreamBias) for bias in self.self_biases)
        return of_lines and not self.positions.biased

    def forward(self, batch: Batch, recording: Recording | None = None) -> torch.Tensor:
        """Teacher-forced logits of the output, [batch, rows, vocabulary]: row i predicts target i."""
        stream = stream_of(batch.layout)
        tokens = batch.in_one_stream
        rows = torch.arange(tokens.shape[1], device=tokens.device)
        draw = self._draw(stream, len(tokens)) if self.training else 0
        x = self._embed(tokens, self.positions.stream(stream, draw))
        if self.positions.biased:
            biases = self.stream_biases(stream)
        else:
            biases = self._kept(stream, lambda: self.stream_biases(stream), SHAPES_KEPT)
        for layer, bias in zip(self.decoder, biases, strict=True):
            x, _ = layer(x, rows, None, rows, None, None, (bias, None), recording)
        return self.head(self.norm(x[:, stream.prompt - 1 :]))

    def stream_biases(self, stream: Stream) -> list[torch.Tensor]:
        """The bias of each layer over the whole stream, causality included, [heads or 1, tokens, tokens]."""
        rows = torch.arange(len(stream), device=self.device)
        steps = Steps(rows, len(rows))
        mask = causal(rows, steps)
        given = [bias(rows, stream if isinstance(bias, StreamBias) else steps) + mask for bias in self.self_biases]
        found = sums_of(given or [mask], self.positions.biases(rows, steps))
        return found * (len(self.decoder) // len(found))

    @torch.no_grad()
    def predictions(self, batch: Batch) -> torch.Tensor:
        """The argmax of teacher-forced logits, [batch, rows]; with lines alone over open tokens, in linear time."""
        if not self.opens_few:
            return super().predictions(batch)
        stream, tokens = stream_of(batch.layout), batch.in_one_stream
        x = self._embed(tokens, self.positions.stream(stream))
        rows = torch.arange(tokens.shape[1], device=tokens.device)
        biases = self.self_biases * (len(self.decoder) // len(self.self_biases))
        for layer, bias in zip(self.decoder, biases, strict=True):
            keys_values = layer.self_attention.keys_values(layer.norm_self(x), rows)
            parts = []
            for part in bar(rows.split(max(1, CHUNK // len(tokens))), desc=f"{len(rows):,} tokens, each layer"):
                opened, here = OpenTokens(_opened(bias, part, stream)), x[:, part[0] : part[-1] + 1]
                parts.append(
                    layer.attend(here, layer.norm_self(here), part, keys_values, rows, biases=(opened, None))
                )
            x = torch.cat(parts, 1)
        # Logits take as many numbers per token as there are tokens to tell apart: only the argmax is kept.
        outputs = x[:, stream.prompt - 1 :].split(CHUNK, 1)
        return torch.cat([self.head(self.norm(part)).argmax(-1) for part in outputs], 1)


@lru_cache(maxsize=64)
def _opened_at(bias: StreamBias, first: int, last: int, stream: Stream) -> torch.Tensor:
    return bias.open_tokens(torch.arange(first, last + 1, device=stream.kind.device), stream)


def _opened(bias: StreamBias, rows: torch.Tensor, stream: Stream) -> torch.Tensor:
    """Open tokens of consecutive rows; those of short streams are found once for all batches."""
    if len(stream) > 4 * CHUNK:
        return bias.open_tokens(rows, stream)
    return _opened_at(bias, int(rows[0]), int(rows[-1]), stream)
