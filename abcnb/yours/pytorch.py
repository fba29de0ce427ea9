"""Lines in a model of your own, in PyTorch: coordinates of its tokens, its averaged attention, and masks.

coordinates   `TokenRule` says which token ids are digits, and which one ends the prompt
attention     `record_attention` for `nn.MultiheadAttention`; `averaged` for any other
lines         `calibration.calibrate_attention`, or by hand (`line.LineBias`, `line.by_hand`)
masks         `dense_mask` for additive masks, `flex` for FlexAttention
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from inspect import signature
from itertools import groupby, product
from typing import NamedTuple

import torch
from torch import nn

from abcnb.lines.biases import CLOSED, Bias
from abcnb.lines.calibration import AveragedAttention
from abcnb.lines.coordinates import Columns, Stream, in_one, of_number, written_before
from abcnb.lines.line import LineBias


@dataclass(frozen=True)
class TokenRule:
    """What the tokens of a sequence are.

    Runs of digit tokens in the prompt are operands, units last; every other prompt token is structure. After the
    first `prompt_end` token comes one number, units first, then whatever ends it.
    """

    digits: tuple[int, ...]  # ids
    prompt_end: int  # the id of the token that ends the prompt

    def __post_init__(self):
        object.__setattr__(self, "digits", tuple(self.digits))
        whole = all(type(token) is int and token >= 0 for token in (*self.digits, self.prompt_end))
        if not whole or not self.digits or self.prompt_end in self.digits:
            raise ValueError(f"expected ids of digits, and an end of the prompt that is none of them, got {self}")

    @classmethod
    def of_tokenizer(cls, tokenizer: object, digits: str = "0123456789", prompt_end: str = "=") -> "TokenRule":
        """The rule for a tokenizer that has `convert_tokens_to_ids`, as in transformers.

        ValueError if a digit or the prompt's end is not a token of its own, or two digits are one token.
        """
        pairs, none = map("".join, product(digits, digits)), (None, getattr(tokenizer, "unk_token_id", None))
        ids = {token: tokenizer.convert_tokens_to_ids(token) for token in (*digits, prompt_end)}
        if missing := [token for token, number in ids.items() if number in none]:
            raise ValueError(f"expected a token for each of {digits} and {prompt_end!r}, got none for {missing}")
        if merged := next((pair for pair in pairs if tokenizer.convert_tokens_to_ids(pair) not in none), ""):
            raise ValueError(f"expected a tokenizer that writes digit by digit, got one with the token {merged!r}")
        return cls(tuple(ids[digit] for digit in digits), ids[prompt_end])

    def stream(self, ids: torch.Tensor) -> Stream:
        """The coordinates of token ids, [tokens] or [batch, tokens]; ValueError if sequences differ in them.

        Row t of the attention matrix belongs to token t and writes token t + 1, so a sequence of n tokens has n rows.
        """
        kinds = alike(self.sequences(torch.atleast_2d(ids)))
        if len(kinds) != 1:
            raise ValueError(
                f"expected digits at the same places of all prompts of a batch, got {len(kinds)} kinds of prompts; "
                "make one batch of each, or take batch_mask"
            )
        return stream_of_prompt(next(iter(kinds)).prompt, ids.shape[-1]).to(ids.device)

    def source(self, ids: torch.Tensor, steps: int) -> Stream:
        """The coordinates of an encoder's source, [columns] or [batch, columns], which has no `prompt_end`.

        The decoder writes `steps` tokens: one number, units first, and its end. ValueError if there are no digits, or
        sources differ in which tokens are digits.
        """
        is_digit = self._are_digits(torch.atleast_2d(ids))
        if not bool(is_digit.any()) or bool((is_digit != is_digit[0]).any()):
            raise ValueError("expected digits at the same places of all sources of a batch, and some at least")
        return stream_of_source(tuple(is_digit[0].tolist()), steps).to(ids.device)

    def sequences(
        self, ids: torch.Tensor, mask: torch.Tensor | None = None, one_prompt: bool = False
    ) -> list["Laid"]:
        """Where the sequence of each row of a batch lies, and which tokens of its prompt are digits.

        ValueError for wrong shapes, padding inside a sequence, or a prompt without its end or without digits.

        Args:
            ids: [batch, tokens], padded on either side.
            mask: [batch, tokens], 1 where a token belongs to the sequence; everywhere by default.
            one_prompt: also refuse a second `prompt_end`, as in packed sequences.
        """
        if ids.dim() != 2:
            raise ValueError(f"expected token ids of [batch, tokens], got {list(ids.shape)}")
        mask = torch.ones_like(ids) if mask is None else mask
        if mask.shape != ids.shape:
            raise ValueError(
                f"expected an attention mask of {list(ids.shape)}, as the ids, got {list(mask.shape)}"
            )
        kinds, found = (self._are_digits(ids), ids == self.prompt_end, mask.bool()), []
        for number, (is_digit, is_end, real) in enumerate(zip(*(kind.tolist() for kind in kinds), strict=True)):
            start, end = (real.index(True), len(real) - real[::-1].index(True)) if any(real) else (0, 0)
            ends = sum(is_end[start:end])
            if not ends or not all(real[start:end]):
                raise ValueError(
                    f"expected sequences padded on either side alone, whose prompts end with token {self.prompt_end}, "
                    f"got one with {'padding inside it' if ends else 'no such token'}, number {number} of the batch"
                )
            if one_prompt and ends > 1:
                raise ValueError(
                    f"expected one sequence in each row, got several packed into number {number} of the batch: "
                    "pad them instead"
                )
            prompt = tuple(is_digit[start : is_end.index(True, start) + 1])
            if True not in prompt:
                raise ValueError(f"expected digits in every prompt, got none in number {number} of the batch")
            found.append(Laid(start, end, prompt))
        return found

    def _are_digits(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.isin(ids, torch.tensor(self.digits, device=ids.device))


class Laid(NamedTuple):
    """Where a sequence lies in its row of a batch, and which tokens of its prompt, its end included, are digits."""

    start: int
    end: int
    prompt: tuple[bool, ...]


def alike(sequences: Sequence[Laid]) -> dict[Laid, list[int]]:
    """The rows of a batch, grouped by how their sequences lie."""
    rows: dict[Laid, list[int]] = {}
    for row, laid in enumerate(sequences):
        rows.setdefault(laid, []).append(row)
    return rows


@lru_cache(maxsize=256)
def stream_of_source(is_digit: tuple[bool, ...], steps: int) -> Stream:
    """The coordinates of a source, given which of its tokens are digits, and of `steps` output tokens."""
    runs = [[column for column, _ in run] for digit, run in groupby(enumerate(is_digit), lambda x: x[1]) if digit]
    operands = tuple(written_before(chr(ord("a") + k), run[-1], len(run)) for k, run in enumerate(runs))
    others = [column for column, digit in enumerate(is_digit) if not digit]
    structure = {f"token {n}": column for n, column in enumerate(others)}
    return of_number(tuple(map(len, runs)), operands, structure, len(is_digit), steps)


@lru_cache(maxsize=256)
def stream_of_prompt(is_digit: tuple[bool, ...], tokens: int) -> Stream:
    """The coordinates of this many tokens, given which ones of the prompt, whose last is `=`, are digits.

    Where the output ends is known only in training, so no line may count from there.
    """
    stream = in_one(stream_of_source(is_digit, tokens - len(is_digit) + 1))
    segments = (replace(s, ends=not stream.is_output(s)) for s in stream.segments)
    return replace(stream, segments=tuple(segments))


# --- attention of a model that is not ours


@contextmanager
def record_attention(model: nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """The attention weights of every `nn.MultiheadAttention` in a model, by module name, [batch, heads, rows, columns].

    Forward passes inside the `with` block fill the dict; the last one counts. ValueError if there is no such module.
    """
    weights: dict[str, torch.Tensor] = {}

    def ask(module, args, kwargs):
        given = signature(module.forward).bind_partial(*args).arguments
        return (), given | kwargs | {"need_weights": True, "average_attn_weights": False}

    def keep(name, module, args, output):
        weights[name] = output[1].detach()

    attentions = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.MultiheadAttention)]
    if not attentions:
        raise ValueError(f"expected a model with nn.MultiheadAttention in it, got {type(model).__name__}")
    with ExitStack() as hooks:
        for name, module in attentions:
            hooks.enter_context(module.register_forward_pre_hook(ask, with_kwargs=True))
            hooks.enter_context(module.register_forward_hook(partial(keep, name)))
        yield weights


def averaged(weights: Sequence[torch.Tensor], stream: Stream) -> AveragedAttention:
    """A decoder-only model's attention weights, averaged as `calibrate_attention` takes them.

    `weights`: those of each layer, [batch, heads, tokens, tokens]; `stream`: the coordinates of these tokens
    (`TokenRule.stream`).
    """
    if not weights:
        raise ValueError("expected the attention weights of at least one layer, got none")
    tokens = len(stream)
    for shape in (layer.shape for layer in weights):
        if len(shape) != 4 or shape[-2:] != (tokens, tokens):
            raise ValueError(
                f"expected weights of shape [batch, heads, {tokens}, {tokens}], as the stream has {tokens} tokens, "
                f"got {list(shape)}"
            )
    return AveragedAttention(
        stream.to("cpu"), torch.stack([layer.detach().float().mean(0).cpu() for layer in weights])
    )


# --- masks


@dataclass(frozen=True)
class PromptApart:
    """The attention of a plain model that is to be calibrated: output steps see everything before them, prompt
    tokens only themselves.

    Otherwise a digit of the prompt can gather what precedes it, and a step that reads it there looks at the wrong
    place for what it gets.
    """

    heads: int

    def __call__(self, rows: torch.Tensor, columns: Columns) -> torch.Tensor:
        """The bias of rows and columns, [heads, rows, columns]; causal."""
        tokens, first = columns.index, columns.stream.prompt - 1
        seen = (tokens <= rows[:, None]) & ((rows >= first)[:, None] | (tokens == rows[:, None]))
        return torch.where(seen, 0.0, CLOSED).expand(self.heads, -1, -1)


def dense_mask(
    bias: Bias,
    columns: Columns,
    rows: torch.Tensor | None = None,
    batch: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Lines as an additive mask: 0 where a token may be seen, the most negative number elsewhere.

    It is causal in self-attention. It has no −∞, which some kernels turn to NaN. `mask == 0` is a boolean mask for
    `scaled_dot_product_attention`; `nn.MultiheadAttention` takes the opposite.

    Args:
        columns: what is attended to: `stream.columns()`, or `stream.columns(crossing=True)` for cross-attention.
        rows: the numbers of the rows wanted, if others are in a cache; all by default.
        batch: the number of samples, for `nn.MultiheadAttention`: the mask is then [batch · heads, rows, columns],
            and else [heads, rows, columns], which broadcasts over a batch of `scaled_dot_product_attention`.
    """
    every = _rows(bias, columns)
    mask = bias(every if rows is None else rows, columns).to(dtype).clamp(min=torch.finfo(dtype).min)
    return mask if batch is None else mask.repeat(batch, 1, 1)


def _rows(bias: Bias, columns: Columns) -> torch.Tensor:
    """All rows; raises ValueError if the columns are not those of the lines' attention."""
    if not isinstance(columns, Columns):
        raise ValueError(f"expected columns, such as stream.columns(), got {type(columns).__name__}")
    wanted = getattr(bias, "attention", "self")
    if (wanted == "cross") != columns.crossing:
        raise ValueError(
            f"expected columns of {wanted}-attention for these lines, got stream.columns(crossing={columns.crossing})"
        )
    return torch.arange(len(columns.stream), device=columns.index.device)


def batch_mask(
    bias: Bias,
    sequences: Sequence[Laid],
    tokens: int,
    first: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """Lines of self-attention as an additive mask of a padded batch, in which every sequence has its own.

    Args:
        sequences: how each lies in the batch (`TokenRule.sequences`).
        tokens: of the batch, padding included.
        first: the first row; earlier ones are in a cache.

    Returns:
        [batch, heads, rows, tokens], or [1, heads, rows, tokens] if all lie alike, unpadded. A row of padding,
        which nothing reads, sees its sequence's first token: a padding mask beside this one would close its own.
    """
    groups, closed = alike(sequences), torch.finfo(dtype).min
    alone = len(groups) == 1 and sequences[0][:2] == (0, tokens)
    shape = (1 if alone else len(sequences), bias.heads, tokens - first, tokens)
    mask = torch.full(shape, closed, dtype=dtype, device=device)
    for laid, numbers in groups.items():
        here, start = torch.tensor(numbers[: len(mask)], device=device), max(first, laid.start)
        mask[here, :, :, laid.start] = 0  # for padding; the sequence's own rows follow
        if start < laid.end:
            rows = torch.arange(start - laid.start, laid.end - laid.start, device=device)
            stream = stream_of_prompt(laid.prompt, laid.end - laid.start).to(device)
            own = dense_mask(bias, stream.columns(), rows, dtype=dtype)
            mask[here, :, start - first : laid.end - first, laid.start : laid.end] = own
    return mask


def flex(bias: LineBias, columns: Columns) -> "torch.nn.attention.flex_attention.BlockMask":
    """Lines as the `block_mask` of `flex_attention`, which skips blocks that no line meets; else as `dense_mask`.

    FlexAttention has no backward pass on a CPU: train there with `dense_mask`.
    """
    from torch.nn.attention.flex_attention import create_block_mask

    rows, index = _rows(bias, columns), columns.index
    tokens = bias.open_tokens(rows, columns.stream)

    def seen(b, h, q, k):
        found = tokens[h, q, 0] == index[k]
        for line in range(1, tokens.shape[-1]):
            found = found | (tokens[h, q, line] == index[k])
        return found

    return create_block_mask(seen, None, bias.heads, len(rows), len(columns), device=rows.device)
