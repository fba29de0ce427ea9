"""The Transformer: an encoder-decoder, or a decoder alone on one causal sequence.

The encoder is the identity by default, as in the authors' published code: the decoder then attends to the embedded
source itself. The paper's text has one encoder layer (`encoder_layers=1`). A decoder-only model reads `$123+748=1780&`;
it has the same layers without cross-attention.

Source: Vaswani et al. 2017; paper, appendix B (sizes).
"""

import math

import torch
from torch import nn

from abcnb.lines.biases import Bias, causal
from abcnb.lines.coordinates import Columns, Stream, in_one
from abcnb.lines.line import LineBias
from abcnb.model.configs import ModelConfig
from abcnb.model.layers import DecoderLayer, EncoderLayer, KeysValues, OpenTokens, Recording, needs_keys
from abcnb.tasks.task import Batch
from abcnb.tasks.tokens import EQUALS_ID, START_ID

SHAPES_KEPT = 64  # shapes of a training whose biases are kept
Memory = list[KeysValues]
LayerBiases = list[tuple[torch.Tensor | OpenTokens, torch.Tensor | OpenTokens | None]]


class Transformer(nn.Module):
    """Token ids in, logits of the next token out.

    Args:
        config: sizes, architecture and position scheme.
        vocabulary_size: tokens told apart; `Task.vocabulary_size`.
        self_biases, cross_biases: none, one bias for all decoder layers, or one for each layer.

    Attributes:
        history: the validations of its training, in order; empty for a model that was not trained here.
        trained_on: the task, base and form that it was trained on; empty where that is not known.

    Raises:
        ValueError: there are biases, but neither one nor one for each decoder layer, a bias is for the other attention
            or another number of heads, or a decoder-only model has one of cross-attention.
    """

    def __init__(
        self,
        config: ModelConfig,
        vocabulary_size: int,
        self_biases: tuple[Bias, ...] = (),
        cross_biases: tuple[Bias, ...] = (),
    ):
        super().__init__()
        self.crossing = config.architecture == "encoder-decoder"
        if cross_biases and not self.crossing:
            raise ValueError(
                "expected no cross-attention bias in a decoder-only model, which has no cross-attention"
            )
        for name, biases in (("self", self_biases), ("cross", cross_biases)):
            if len(biases) not in (0, 1, config.decoder_layers):
                raise ValueError(
                    f"expected 1 or {config.decoder_layers} {name}-attention biases, got {len(biases)}"
                )
            for bias in biases:
                if getattr(bias, "attention", name) != name:
                    raise ValueError(f"expected a {name}-attention bias, got one of {bias.attention}-attention")
                if getattr(bias, "heads", config.heads) != config.heads:
                    raise ValueError(f"expected a {name}-attention bias of {config.heads} heads, got {bias.heads}")
        self.config = config
        self.self_biases, self.cross_biases = self_biases, cross_biases
        self.history: list[dict] = []
        self.trained_on = ""
        self.embedding = nn.Embedding(vocabulary_size, config.d_model)
        nn.init.normal_(self.embedding.weight, std=config.d_model**-0.5)
        self.positions = config.positions()
        self.encoder = nn.ModuleList(EncoderLayer(config, self.positions) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config, self.positions) for _ in range(config.decoder_layers))
        self.norm = nn.LayerNorm(config.d_model)
        self.head = nn.Linear(config.d_model, vocabulary_size)
        self.dropout = nn.Dropout(config.dropout)
        self._known_biases: dict[tuple[int, Stream, bool], LayerBiases] = {}
        if self.positions.biased and not self.crossing:  # the scheme's bias of an attention that is not there
            self.positions.cross_bias.requires_grad_(False)
        if self.gathers:  # nothing is compared, so nothing would train what queries and keys are made with
            for layer in self.decoder:
                unread = [layer.self_attention.query, layer.self_attention.key]
                if self.crossing:
                    unread += [layer.cross_attention.query, layer.cross_attention.key, layer.norm_cross]
                for module in unread:
                    module.requires_grad_(False)

    @property
    def along_lines(self) -> bool:
        """Whether all attention is along lines."""
        biases = (*self.self_biases, *self.cross_biases)
        has_all = self.self_biases and (self.cross_biases or not self.crossing)
        return bool(has_all) and all(isinstance(bias, LineBias) for bias in biases)

    @property
    def gathers(self) -> bool:
        """Whether every head attends to one token at a time, so that values are gathered and nothing is compared."""
        biases = (*self.self_biases, *self.cross_biases)
        return self.along_lines and not self.positions.biased and all(bias.most == 1 for bias in biases)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.head.weight.device

    def stream_of(self, stream: Stream) -> Stream:
        """The coordinates of a task's input as this architecture has it.

        Raises:
            ValueError: an encoder-decoder, and an input that is one sequence.
        """
        if not self.crossing:
            return in_one(stream)
        if not stream.source:
            raise ValueError(
                "expected a decoder-only model for inputs that are one sequence, got an encoder-decoder"
            )
        return stream

    def prompt(self, source: torch.Tensor) -> torch.Tensor:
        """What the decoder reads before its first output, [batch, tokens]: the start token, or the input up to `=`."""
        if self.crossing:
            return torch.full_like(source[:, :1], START_ID)
        return torch.cat([source[:, :-1], torch.full_like(source[:, :1], EQUALS_ID)], dim=1)

    def sequence(self, batch: Batch) -> torch.Tensor:
        """What the decoder reads in teacher forcing, [batch, tokens]: the prompt and all outputs but the last."""
        return torch.cat([self.prompt(batch.source), batch.target[:, :-1]], dim=1)

    def embed(self, tokens: torch.Tensor, columns: Columns, draw: int | torch.Tensor = 0) -> torch.Tensor:
        """[batch, n] token ids to [batch, n, d_model], with their positions."""
        x, vectors = self.embedding(tokens) * math.sqrt(self.config.d_model), self.positions.vectors(columns, draw)
        return self.dropout(x if vectors is None else x + vectors)

    def memory(
        self, source: torch.Tensor, columns: Columns, draw: int | torch.Tensor = 0, keyed: bool = True
    ) -> Memory:
        """The keys and values of source columns for each decoder layer; `keyed` as of `Attention.keys_values`."""
        x, angles = self.embed(source, columns, draw), self.positions.angles(columns)
        for layer in self.encoder:
            x = layer(x, angles)
        return [layer.cross_attention.keys_values(x, angles, keyed) for layer in self.decoder]

    def biases_of(self, rows: torch.Tensor, columns: Columns) -> LayerBiases:
        """The expanded (self, cross) biases of each decoder layer, causality included.

        Args:
            rows: [rows], numbers of the decoder's tokens.
            columns: those that self-attention sees.
        """
        mask, layers = causal(rows, columns), len(self.decoder)
        selves = [bias(rows, columns) + mask for bias in self.self_biases] or [mask]
        selves = sums_of(selves, self.positions.biases(rows, columns))
        crosses = [None]
        if self.crossing:
            source = columns.stream.columns(crossing=True)
            crosses = [bias(rows, source) for bias in self.cross_biases]
            crosses = sums_of(crosses, self.positions.biases(rows, source)) or [None]
        selves, crosses = selves * (layers // len(selves)), crosses * (layers // len(crosses))
        return list(zip(selves, crosses, strict=True))

    def run_decoder(
        self,
        x: torch.Tensor,
        rows: torch.Tensor,
        steps: torch.Tensor,
        memory: Memory | None,
        columns: torch.Tensor | None,
        biases: LayerBiases,
        past: list | None = None,
        recording: Recording | None = None,
    ) -> tuple[torch.Tensor, list]:
        """Run the decoder layers over embedded tokens; returns hidden states and each layer's keys and values."""
        kept = []
        for i, layer in enumerate(self.decoder):
            before, crossed = past[i] if past else None, memory[i] if memory else None
            x, keys_values = layer(x, rows, before, steps, crossed, columns, biases[i], recording)
            kept.append(keys_values)
        return x, kept

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Hidden states to logits of the next token."""
        return self.head(self.norm(x))

    def forward(self, batch: Batch, recording: Recording | None = None) -> torch.Tensor:
        """Teacher-forced logits, [batch, steps, vocabulary]: step i predicts target i from targets before it."""
        stream, tokens = self.stream_of(batch.stream), self.sequence(batch)
        columns = Columns(stream, torch.arange(tokens.shape[1], device=tokens.device))
        draw = self.positions.draw(stream, len(tokens)) if self.training else 0
        gathers = self.gathers and recording is None
        kept = not self.positions.biased
        biases = self._kept(columns, gathers) if kept else self.biases_of(columns.index, columns)
        memory = coordinates = None
        if self.crossing:
            source = stream.columns(crossing=True)
            memory = self.memory(batch.source, source, draw, needs_keys(biases[0][1]))
            coordinates = self.positions.coordinates(source)
        x, angles = self.embed(tokens, columns, draw), self.positions.angles(columns)
        x, _ = self.run_decoder(x, angles, angles, memory, coordinates, biases, None, recording)
        return self.logits(x[:, stream.prompt - 1 - stream.source :])

    @torch.no_grad()
    def predictions(self, batch: Batch) -> torch.Tensor:
        """The argmax of teacher-forced logits, [batch, steps]."""
        return self(batch).argmax(-1)

    def open_tokens(self, rows: torch.Tensor, stream: Stream) -> LayerBiases:
        """The open tokens of each layer's attentions, of a model whose attention is along lines alone."""
        layers = len(self.decoder)
        selves = [OpenTokens(bias.open_tokens(rows, stream)) for bias in self.self_biases]
        crosses = [OpenTokens(bias.open_tokens(rows, stream)) for bias in self.cross_biases] or [None]
        return list(zip(selves * (layers // len(selves)), crosses * (layers // len(crosses)), strict=True))

    def _kept(self, columns: Columns, gathers: bool) -> LayerBiases:
        """Biases without parameters, which are the same at every step of one shape: the last ones are kept."""
        key = len(columns), columns.stream, gathers
        if key not in self._known_biases:
            while len(self._known_biases) >= SHAPES_KEPT:
                del self._known_biases[next(iter(self._known_biases))]
            with torch.inference_mode(False):  # they may be trained with later
                made = self.open_tokens(columns.index, columns.stream) if gathers else None
                self._known_biases[key] = made or self.biases_of(columns.index, columns)
        return self._known_biases[key]


def sums_of(some: list[torch.Tensor], others: list[torch.Tensor]) -> list[torch.Tensor]:
    """The sums of two lists of biases, each of them empty, one for all layers, or one for each layer."""
    if not some or not others:
        return some or others
    count = max(len(some), len(others))
    pairs = zip(some * (count // len(some)), others * (count // len(others)), strict=True)
    return [one + other for one, other in pairs]
