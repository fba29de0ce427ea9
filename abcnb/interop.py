"""Lines in a model of your own, in PyTorch: coordinates of its tokens, its averaged attention, and masks.

    coordinates   `TokenRule` says which token ids are digits, and which one ends the prompt
    attention     `record_attention` of `nn.MultiheadAttention`; `averaged` of any other
    lines         `calibration.calibrate_attention`, or by hand (`lines.LineBias`, `lines.by_hand`)
    masks         `dense_mask` for additive masks, `flex` for FlexAttention

Decoders of Hugging Face transformers: `hugging_face`. Nothing else in the library imports either.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from inspect import signature
from typing import NamedTuple

import torch
from torch import nn

from abcnb.biases import CLOSED, Bias, own_token
from abcnb.calibration import AveragedAttention
from abcnb.coordinates import Columns, Segment, Stream, of_number, written_before
from abcnb.lines import LineBias


@dataclass(frozen=True)
class TokenRule:
    """What the tokens of a sequence are.

    Runs of digit tokens in the prompt are operands, every other token of it is structure, and the prompt ends with the
    first token `prompt_end`. What follows is one number, units first, then whatever ends it. In an operand the units
    are the last digit.

    Attributes:
        digits: the ids of digit tokens.
        prompt_end: the id of the token that ends the prompt.
    """

    digits: tuple[int, ...]
    prompt_end: int

    def __post_init__(self):
        object.__setattr__(self, "digits", tuple(self.digits))
        whole = all(type(token) is int and token >= 0 for token in (*self.digits, self.prompt_end))
        if not whole or not self.digits or self.prompt_end in self.digits:
            raise ValueError(f"expected ids of digits, and an end of the prompt that is none of them, got {self}")

    def stream(self, ids: torch.Tensor) -> Stream:
        """The coordinates of the tokens of [tokens] or [batch, tokens], for which every sequence must have the same.

        Row t of the attention matrix belongs to token t and writes token t + 1, so a sequence of n tokens has n rows.

        Raises:
            ValueError: no token ends the prompt, no digits are in it, or sequences differ in which tokens are digits.
        """
        ids = ids[None] if ids.dim() == 1 else ids
        return stream_of_prompt(self.prompt(ids), ids.shape[1]).to(ids.device)

    def source(self, ids: torch.Tensor, steps: int) -> Stream:
        """The coordinates of an encoder's source, [columns] or [batch, columns], which has no `prompt_end`.

        Args:
            ids: the source.
            steps: output tokens of the decoder, one number, units first, and its end.

        Raises:
            ValueError: as `stream`.
        """
        ids = ids[None] if ids.dim() == 1 else ids
        return _source(self._same_digits(ids), steps).to(ids.device)

    def prompt(self, ids: torch.Tensor) -> tuple[bool, ...]:
        """Which tokens of the prompt of [batch, tokens] are digits, its end included."""
        ends = ids == self.prompt_end
        first = ends.int().argmax(1)
        if not bool(ends.any(1).all()) or int(first.min()) != int(first.max()):
            raise ValueError(
                f"expected the prompts of a batch to end with token {self.prompt_end} at the same place, got ends at "
                f"{sorted(set(torch.where(ends.any(1), first, -1).tolist()))} (−1: none); make one batch per length"
            )
        return self._same_digits(ids[:, : int(first[0]) + 1])

    def _same_digits(self, ids: torch.Tensor) -> tuple[bool, ...]:
        is_digit = torch.isin(ids, torch.tensor(self.digits, device=ids.device))
        if not bool(is_digit.any()) or bool((is_digit != is_digit[0]).any()):
            raise ValueError(
                "expected digits at the same places of all prompts of a batch, and some at least; pad operands with "
                "zeros, and make one batch per length"
            )
        return tuple(is_digit[0].tolist())


def _runs(is_digit: Sequence[bool]) -> list[range]:
    runs, start = [], None
    for column, digit in enumerate([*is_digit, False]):
        if digit and start is None:
            start = column
        elif not digit and start is not None:
            runs, start = [*runs, range(start, column)], None
    return runs


def _parts(is_digit: Sequence[bool]) -> tuple[tuple[Segment, ...], dict[str, int]]:
    """Operands, `a` and so on, and the other tokens by name."""
    operands = tuple(written_before(chr(ord("a") + k), run[-1], len(run)) for k, run in enumerate(_runs(is_digit)))
    others = [column for column, digit in enumerate(is_digit) if not digit]
    return operands, {f"token {n}": column for n, column in enumerate(others)}


def _shape(operands: tuple[Segment, ...]) -> tuple[int, ...]:
    return tuple(operand.shape[0] for operand in operands)


@lru_cache(maxsize=256)
def stream_of_prompt(is_digit: tuple[bool, ...], tokens: int) -> Stream:
    """The coordinates of so many tokens, of whose prompt it is known which are digits; it ends with `=`."""
    operands, structure = _parts(is_digit[:-1])
    prompt, steps = len(is_digit), tokens - len(is_digit) + 1
    output = Segment("digits", prompt, (steps,), (1,), 1, ("place",))
    segments = (*operands, *(Segment(*token) for token in structure.items()), Segment("=", prompt - 1), output)
    zeros, places = torch.zeros(steps, dtype=torch.long), torch.arange(steps)
    return Stream(segments, prompt, ("digits",), _shape(operands), zeros, zeros, places)


@lru_cache(maxsize=256)
def _source(is_digit: tuple[bool, ...], steps: int) -> Stream:
    operands, structure = _parts(is_digit)
    return of_number(_shape(operands), operands, structure, len(is_digit), steps)


# --- attention of a model that is not ours


@contextmanager
def record_attention(model: nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """The attention weights of every `nn.MultiheadAttention` in a model, by module name, [batch, heads, rows, columns].

    What a forward pass inside the `with` left is in the dict; the last pass counts.
    """
    weights: dict[str, torch.Tensor] = {}
    hooks = []
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):

            def ask(module, args, kwargs):
                named = signature(nn.MultiheadAttention.forward).bind_partial(module, *args).arguments
                del named["self"]
                return (), named | kwargs | {"need_weights": True, "average_attn_weights": False}

            def keep(module, args, output, name=name):
                weights[name] = output[1].detach()

            hooks += [module.register_forward_pre_hook(ask, with_kwargs=True), module.register_forward_hook(keep)]
    if not hooks:
        raise ValueError(f"expected a model with nn.MultiheadAttention in it, got {type(model).__name__}")
    try:
        yield weights
    finally:
        for hook in hooks:
            hook.remove()


def averaged(weights: Sequence[torch.Tensor], stream: Stream) -> AveragedAttention:
    """Attention weights of a decoder-only model as `calibrate_attention` takes them.

    Args:
        weights: of each layer, [batch, heads, tokens, tokens].
        stream: the coordinates of these tokens (`TokenRule.stream`).

    Raises:
        ValueError: no layer, weights of other tokens than the stream's, or weights that are not finite.
    """
    if not weights:
        raise ValueError("expected the attention weights of at least one layer, got none")
    tokens = len(stream)
    for layer in weights:
        if layer.dim() != 4 or layer.shape[-2:] != (tokens, tokens):
            raise ValueError(
                f"expected weights of shape [batch, heads, {tokens}, {tokens}], as the stream has {tokens} tokens, "
                f"got {list(layer.shape)}"
            )
    averages = torch.stack([layer.detach().float().mean(0).cpu() for layer in weights])
    if not bool(averages.isfinite().all()):
        raise ValueError("expected finite attention weights, got NaN or infinity; did the training diverge?")
    return AveragedAttention(stream.to("cpu"), averages)


# --- masks


@dataclass(frozen=True)
class PromptApart:
    """The attention of a plain model that is to be calibrated: output steps see all before them, tokens of the prompt
    only themselves.

    In one causal stream a digit of the prompt can collect what is left of it, and a step that reads that digit looks at
    the wrong place for what it gets. So that attention shows where the digits are that it reads, none is collected.

    Attributes:
        heads: number of heads.
    """

    heads: int

    def __call__(self, rows: torch.Tensor, columns: Columns) -> torch.Tensor:
        """The bias of rows and columns, [heads, rows, columns]; causal."""
        tokens, first = columns.index, columns.stream.prompt - 1
        seen = (tokens <= rows[:, None]) & ((rows >= first)[:, None] | (tokens == rows[:, None]))
        return torch.where(seen, 0.0, CLOSED).expand(self.heads, -1, -1)


@dataclass(frozen=True)
class OwnToken:
    """Every token sees itself alone, in each of so many heads."""

    heads: int

    def __call__(self, rows: torch.Tensor, columns: Columns) -> torch.Tensor:
        """The bias of rows and columns, [heads, rows, columns]."""
        return own_token(rows, columns).expand(self.heads, -1, -1)


def dense_mask(
    bias: Bias,
    columns: Columns,
    rows: int | None = None,
    batch: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Lines as an additive mask: 0 where a token may be seen, the most negative number elsewhere.

    Self-attention's masks hold causality. For a boolean mask compare with it: `mask > torch.finfo(dtype).min` is True
    where a token may be seen, as `scaled_dot_product_attention` has it; `nn.MultiheadAttention` takes the opposite.

    Args:
        bias: lines of self- or of cross-attention.
        columns: what is attended to: `stream.columns()`, or `stream.columns(crossing=True)` for cross-attention.
        rows: how many of the first rows; as many as the stream has by default.
        batch: repeat for so many samples.
        dtype: of the model's attention.

    Returns:
        [heads, rows, columns], or [batch · heads, rows, columns], as `nn.MultiheadAttention` wants it. For
        `scaled_dot_product_attention` [heads, rows, columns] broadcasts over the batch.

    Raises:
        ValueError: columns of the other attention than the lines', or more rows than the stream has.
    """
    index = _rows(bias, columns, rows)
    mask = additive(bias(index, columns), dtype)
    return mask if batch is None else mask.repeat(batch, 1, 1)


def _rows(bias: Bias, columns: Columns, rows: int | None) -> torch.Tensor:
    if not isinstance(columns, Columns):
        raise ValueError(f"expected columns, such as stream.columns(), got {type(columns).__name__}")
    wanted = getattr(bias, "attention", "self")
    if (wanted == "cross") != columns.crossing:
        raise ValueError(
            f"expected columns of {wanted}-attention for these lines, got stream.columns(crossing={columns.crossing})"
        )
    most = len(columns.stream)
    if rows is not None and rows > most:
        raise ValueError(f"expected at most the stream's {most} rows, got {rows}")
    return torch.arange(most if rows is None else rows, device=columns.index.device)


def additive(bias: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A bias with the most negative number for −∞, which some kernels turn into NaN."""
    return bias.clamp(min=torch.finfo(dtype).min).to(dtype)


class Flex(NamedTuple):
    """Lines for `torch.nn.attention.flex_attention`: hand over `block_mask`."""

    mask_mod: Callable
    block_mask: object


def flex(bias: LineBias, columns: Columns, rows: int | None = None) -> Flex:
    """Lines as FlexAttention's mask; `block_mask` skips the blocks that no line crosses.

    On a CPU FlexAttention has no backward pass: train there with `dense_mask`.

    Args:
        bias, columns, rows: as for `dense_mask`.

    Raises:
        ValueError: as for `dense_mask`.
    """
    from torch.nn.attention.flex_attention import create_block_mask

    index = _rows(bias, columns, rows)
    tokens = bias.open_tokens(index, columns.stream)

    def mask_mod(b, h, q, k):
        seen = tokens[h, q, 0] == k
        for line in range(1, tokens.shape[-1]):
            seen = seen | (tokens[h, q, line] == k)
        return seen

    block_mask = create_block_mask(mask_mod, None, bias.heads, len(index), len(columns), device=index.device)
    return Flex(mask_mod, block_mask)
