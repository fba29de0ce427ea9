"""The layers of a Transformer; they share one attention, which takes a bias and can record its weights.

    scores = Q Kᵀ / √d_head + bias        weights = softmax(scores)        output = weights V

Layers normalize before each block (pre-norm), which the paper leaves open.

Source: Vaswani et al. 2017; paper, equation 2 (bias added to the scores).
"""

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

from abcnb.model.configs import ModelConfig
from abcnb.model.positions import Positions


@dataclass
class Recording:
    """What to record of every decoder layer's attention, each [batch, heads, rows, columns].

    `what`: `weights` (after the softmax), `scores` (before it, without any bias) or `bias` (all that is added to the
    scores: line biases, relative positions, causality).
    """

    what: str = "weights"
    self_attention: list[torch.Tensor] = field(default_factory=list)
    cross_attention: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self):
        if self.what not in ("weights", "scores", "bias"):
            raise ValueError(f"expected weights, scores or bias to be recorded, got {self.what!r}")


def is_open(bias: torch.Tensor | None) -> bool:
    """Whether a bias is whole numbers: the few tokens each row attends to, [heads, rows, most open], padded with −1."""
    return bias is not None and not bias.is_floating_point()


def needs_keys(bias: torch.Tensor | None) -> bool:
    """Whether attention with this bias compares queries with keys; not if each row of each head sees one token."""
    return not is_open(bias) or bias.shape[-1] > 1


def gathered(value: torch.Tensor, opened: torch.Tensor) -> torch.Tensor:
    """Attention to one token per row and head, whose softmax is 1: [batch, heads, rows, d_head]."""
    batch, heads, columns, size = value.shape
    # Head by head within each token, as in memory, values are copied as whole vectors: 3× as fast as `gather`.
    values = value.transpose(1, 2).reshape(batch, columns * heads, size)
    at = opened[:, :, 0].T * heads + torch.arange(heads, device=value.device)
    return values.index_select(1, at.flatten()).view(batch, -1, heads, size).transpose(1, 2)


def attend_to_open(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, opened: torch.Tensor
) -> torch.Tensor:
    """Attention over gathered open tokens, [batch, heads, rows, d_head]; as over all with closed cells at −∞."""
    batch, heads, columns, size = key.shape
    # Keys and values as rows of a table, head by head within each token, so that indexing copies whole rows.
    keys, values = (part.transpose(1, 2).reshape(-1, size) for part in (key, value))
    first = torch.arange(0, batch * columns * heads, columns * heads, device=key.device)[:, None, None, None]
    at = first + opened.clamp(min=0) * heads + torch.arange(heads, device=key.device)[:, None, None]
    few = at.shape[-1]
    scores = (query[:, :, :, None] * F.embedding(at, keys)).sum(-1) / math.sqrt(size)
    weights = scores.masked_fill(opened < 0, float("-inf")).softmax(-1)
    mixed = F.embedding_bag(at.view(-1, few), values, per_sample_weights=weights.view(-1, few), mode="sum")
    return mixed.view(query.shape)


def attend_to_all(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    record: tuple[str, list] | None,
) -> torch.Tensor:
    """Attention with a bias, [heads or 1, rows, columns], perhaps batched: [batch, heads, rows, d_head]."""
    if bias is not None:
        bias = bias.to(query.dtype)
        bias = bias[None] if bias.dim() == 3 else bias  # the fused kernels take only four dimensions
    if record is None:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    added = torch.zeros_like(scores) if bias is None else bias.expand_as(scores)
    weights = (scores if bias is None else scores + bias).softmax(-1)
    what, recorded = record
    recorded.append({"weights": weights, "scores": scores, "bias": added}[what])
    return weights @ value


KeysValues = tuple[torch.Tensor | None, torch.Tensor]


class Attention(nn.Module):
    """Multi-head attention with an additive bias, and positions in queries and keys if the scheme has them.

    `crossing`: whether it attends from the decoder to the source.
    """

    def __init__(self, config: ModelConfig, positions: Positions, crossing: bool = False):
        super().__init__()
        d = config.d_model
        self.heads = config.heads
        self.query, self.key, self.value, self.output = projections = [nn.Linear(d, d) for _ in range(4)]
        for projection in projections:
            nn.init.xavier_uniform_(projection.weight)
            nn.init.zeros_(projection.bias)
        self.turn = positions.turn
        self.relative = positions.relative(d // config.heads, crossing)

    @property
    def cut_heads(self) -> list[int]:
        """Heads whose value is the same whatever they attend to."""
        return (self.value.weight.view(self.heads, -1) == 0).all(1).nonzero()[:, 0].tolist()

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, n, d_model] to [batch, heads, n, d_head]."""
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def keys_values(self, memory: torch.Tensor, columns: torch.Tensor, keyed: bool = True) -> KeysValues:
        """Keys and values of [batch, columns, d_model], each [batch, heads, columns, d_head]; keys only if `keyed`."""
        key = self.turn(self._split(self.key(memory)), columns) if keyed else None
        return key, self._split(self.value(memory))

    def forward(
        self,
        x: torch.Tensor,
        rows: torch.Tensor,
        keys_values: KeysValues,
        columns: torch.Tensor,
        bias: torch.Tensor | None,
        record: tuple[str, list] | None = None,
    ) -> torch.Tensor:
        """Attend from x, [batch, rows, d_model], to keys and values; returns the same shape.

        Args:
            rows, columns: numbers of steps, or coordinates of source columns (`Positions.coordinates`).
            bias: [heads or 1, rows, columns] to add to the scores, the open tokens (`is_open`), or None.
            record: (`weights`, `scores` or `bias`, the list to append them to); computes attention explicitly.
        """
        query = self.turn(self._split(self.query(x)), rows) if needs_keys(bias) else None
        if query is None:
            mixed = gathered(keys_values[1], bias)
        elif is_open(bias):
            mixed = attend_to_open(query, *keys_values, bias)
        else:
            if self.relative is not None:
                relative = self.relative(query, rows, columns)
                bias = relative if bias is None else relative + bias
            mixed = attend_to_all(query, *keys_values, bias, record)
        return self.output(mixed.transpose(1, 2).flatten(2))


def feed_forward(config: ModelConfig) -> nn.Sequential:
    """Linear, ReLU, linear."""
    d, d_ff = config.d_model, config.d_ff
    return nn.Sequential(nn.Linear(d, d_ff), nn.ReLU(), nn.Linear(d_ff, d))


class EncoderLayer(nn.Module):
    """Self-attention over the source, then the feed-forward block."""

    def __init__(self, config: ModelConfig, positions: Positions):
        super().__init__()
        self.attention, self.feed_forward = Attention(config, positions), feed_forward(config)
        self.norm_attention, self.norm_feed_forward = (nn.LayerNorm(config.d_model) for _ in range(2))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        """[batch, columns, d_model] to the same shape."""
        normed = self.norm_attention(x)
        keys_values = self.attention.keys_values(normed, columns)
        x = x + self.dropout(self.attention(normed, columns, keys_values, columns, None))
        return x + self.dropout(self.feed_forward(self.norm_feed_forward(x)))


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention (not in a decoder-only model), then the feed-forward block."""

    def __init__(self, config: ModelConfig, positions: Positions):
        super().__init__()
        self.self_attention = Attention(config, positions)
        self.crossing = config.architecture == "encoder-decoder"
        if self.crossing:
            self.cross_attention = Attention(config, positions, crossing=True)
        self.feed_forward = feed_forward(config)
        self.norm_self, self.norm_feed_forward = nn.LayerNorm(config.d_model), nn.LayerNorm(config.d_model)
        if self.crossing:
            self.norm_cross = nn.LayerNorm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: torch.Tensor,
        rows: torch.Tensor,
        past: KeysValues | None,
        steps: torch.Tensor,
        memory: KeysValues | None,
        columns: torch.Tensor | None,
        biases: tuple[torch.Tensor, torch.Tensor | None],
        recording: Recording | None = None,
    ) -> tuple[torch.Tensor, KeysValues]:
        """The next layer's x, [batch, rows, d_model], and the keys and values of all steps so far.

        Args:
            rows, steps: step numbers of x, and of past and present keys.
            past: keys and values of earlier steps, or None.
            memory, columns: the source's keys and values for this layer, and coordinates; None if decoder-only.
            biases: of self- and of cross-attention.
        """
        normed = self.norm_self(x)
        keys_values = self.self_attention.keys_values(normed, rows, needs_keys(biases[0]))
        if past is not None:
            pairs = zip(past, keys_values, strict=True)
            keys_values = tuple(None if new is None else torch.cat([old, new], dim=2) for old, new in pairs)
        ask = recording and (recording.what, recording.self_attention)
        x = x + self.dropout(self.self_attention(normed, rows, keys_values, steps, biases[0], ask))
        if self.crossing:
            ask = recording and (recording.what, recording.cross_attention)
            crossed = self.cross_attention(self.norm_cross(x), rows, memory, columns, biases[1], ask)
            x = x + self.dropout(crossed)
        return x + self.dropout(self.feed_forward(self.norm_feed_forward(x))), keys_values
