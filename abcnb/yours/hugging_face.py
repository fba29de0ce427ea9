"""Lines in Hugging Face decoders: averaging their attention, and attaching lines to them.

transformers is imported only where a cache that keeps every token is needed; all else goes through the model that
is passed in.
Works with transformers 4.56 or later (`make oldest` tests 4.56).
"""

import inspect
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import cache
from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn

from abcnb.lines.biases import Biases
from abcnb.lines.calibration import TAU, AveragedAttention, Calibration, calibrate_attention
from abcnb.lines.line import Line, LineBias
from abcnb.yours.pytorch import Laid, PromptApart, TokenRule, alike, averaged, batch_mask, stream_of_prompt

_ATTACHED = "_abcnb_lines"
_FILLED = "_abcnb_filled"  # on a cache: by which lines it was filled, and with which sequences
# Methods that change the rows of a cache, given their numbers or how often each is repeated.
_MOVES = ("reorder_cache", "batch_select_indices", "batch_repeat_interleave")
_SAVED = "abcnb_lines"  # a buffer: the lines travel with the weights

Batch = torch.Tensor | Mapping[str, torch.Tensor]
Lines = LineBias | PromptApart


def calibrate(model: nn.Module, batches: Iterable[Batch], rule: TokenRule, tau: float = TAU) -> Calibration:
    """The lines that a trained decoder's attention follows, by the one rule; `.biases(heads)` deals them to a new one.

    Arguments and errors are as in `average_attention` and `calibrate_attention`; a line's share exceeds `tau`.
    """
    return calibrate_attention(average_attention(model, batches, rule), tau)


@torch.no_grad()
def average_attention(model: nn.Module, batches: Iterable[Batch], rule: TokenRule) -> list[AveragedAttention]:
    """A Hugging Face decoder's attention on its own training sequences, averaged over the sequences of each shape.

    Args:
        model: a trained decoder; it runs under `eager`, which alone returns weights; its own setting is restored.
        batches: training batches of token ids, [batch, tokens], or what data collators make, with `input_ids` and
            perhaps `attention_mask` and `position_ids`; of any lengths, padded on either side.
        rule: what the tokens are.

    ValueError if the model returns no attention weights, or a batch is not [batch, tokens] or a prompt alone.
    """
    sums = {}
    with _evaluating(model), ExitStack() as after:
        after.callback(model.set_attn_implementation, model.config._attn_implementation)
        model.set_attn_implementation("eager")
        for batch in batches:
            given = {"input_ids": batch} if isinstance(batch, torch.Tensor) else batch
            if not isinstance(given, Mapping) or "input_ids" not in given:
                raise ValueError(f"expected batches of token ids, or with input_ids, got a {type(batch).__name__}")
            read = ("input_ids", "attention_mask", "position_ids")
            given = {name: given[name].to(model.device) for name in read if name in given}
            sequences = rule.sequences(given["input_ids"], given.get("attention_mask"), one_prompt=True)
            if any(laid.start + len(laid.prompt) >= laid.end for laid in sequences):
                raise ValueError("expected sequences with their outputs, got a prompt alone")
            if "position_ids" in inspect.signature(model.forward).parameters:
                given.setdefault("position_ids", _positions(sequences, given["input_ids"]))
            weights = model(**given, output_attentions=True, use_cache=False).attentions
            if not weights or any(layer is None for layer in weights):
                raise ValueError(f"expected attention weights of {type(model).__name__} under eager, got none")
            for laid, rows in alike(sequences).items():
                own = slice(laid.start, laid.end - 1)  # no step of training reads the last token
                shape = laid.prompt, laid.end - laid.start - 1
                average = averaged([layer[rows][..., own, own] for layer in weights], stream_of_prompt(*shape))
                total, count = sums.get(shape, (0.0, 0))
                sums[shape] = total + len(rows) * average.self_attention, count + len(rows)
    return [AveragedAttention(stream_of_prompt(*shape), total / n) for shape, (total, n) in sums.items()]


@torch.inference_mode(False)
def attach(
    model: nn.Module, biases: Lines | Sequence[Lines] | Biases, rule: TokenRule, keep_positions: bool = False
) -> "Attached":
    """Give a Hugging Face decoder lines: from now on its attention sees the tokens on them and nothing else.

    Prompt rows, and steps whose lines lead nowhere, see the first token: begin sequences with a token reserved for
    this. Training, evaluation and `generate` work as before, on batches of any lengths, padded on either side (for
    `generate`, on the left). The lines are saved with the model's weights, as a buffer (`attach_saved`). They work
    when the model itself is called; calling `model.forward(…)` or its body alone raises ValueError. So does
    attaching them to a model that would ignore some of them, or whose sizes they do not fit.

    Args:
        model: a decoder whose forward pass takes `input_ids`, `attention_mask` and `position_ids`.
        biases: one for all layers, one per layer, or what `Calibration.biases` returns; the model's attention
            (eager or sdpa) gets them as a 4-D mask.
        rule: what the tokens are.
        keep_positions: keep the model's own positions, which fail beyond those it was trained on; by default every
            token has position 0, as in `abc`.
    """
    biases = sum(biases, ()) if isinstance(biases, Biases) else biases
    biases = tuple(biases) if isinstance(biases, Sequence) else (biases,)
    _refuse_if_unfit(model, biases, rule, keep_positions)
    heads, first_and_own = biases[0].heads, (("a", ("first",), (0,)), ("digits", ("place",), (-1,)))
    seen = LineBias("self", heads, tuple(Line(n, "digits", *line) for n in range(heads) for line in first_and_own))
    probed = Attached(model, (seen,) * len(biases), rule, keep_positions)
    try:
        _refuse_if_closed_tokens_are_seen(model, rule)
        if len(biases) > 1 and probed.cut != {*range(len(biases))}:
            raise ValueError(
                f"expected {len(biases)} layers, each with a layer_idx of its own, got those of {sorted(probed.cut)}"
            )
    finally:
        probed.detach()
    lines = Attached(model, biases, rule, keep_positions)
    lines.checked = True
    return lines


def _refuse_if_unfit(model: nn.Module, biases: tuple[Lines, ...], rule: TokenRule, keep: bool) -> None:
    """Raise ValueError if these lines cannot be attached to a model, as far as can be told without running it."""
    named = {f"lines of {b.attention}-attention" if isinstance(b, LineBias) else type(b).__name__ for b in biases}
    if strange := named - {"lines of self-attention", "PromptApart"}:
        raise ValueError(
            "expected lines of self-attention, as of calibrate_attention(…).biases(heads), or PromptApart, got "
            f"{', '.join(sorted(strange))}"
        )
    name, config = type(model).__name__, getattr(model, "config", None)
    if not hasattr(model, "set_attn_implementation") or not hasattr(config, "num_attention_heads"):
        raise ValueError(f"expected a Hugging Face decoder, got {name}; for another model take dense_mask")
    if hasattr(model, "get_base_model"):  # of peft
        raise ValueError(
            f"expected the model inside of {name}, whose generate() goes past it: attach to get_base_model(), or before"
        )
    if getattr(model, _ATTACHED, None) is not None:
        raise ValueError(f"expected a {name} without lines, got one that has some: detach() them first")
    heads, layers = config.num_attention_heads, config.num_hidden_layers
    if len(biases) not in (1, layers):
        raise ValueError(f"expected one bias, or one for each of {layers} layers, got {len(biases)}")
    if any(bias.heads != heads for bias in biases):
        raise ValueError(f"expected lines for {heads} heads, got {[bias.heads for bias in biases]}")
    takes = inspect.signature(model.forward).parameters
    if missing := {"input_ids", "attention_mask"} - set(takes):
        raise ValueError(f"expected a forward pass that takes {', '.join(sorted(missing))}, {name}'s does not")
    if not keep and "position_ids" not in takes:
        raise ValueError(
            f"expected a forward pass that takes position_ids, {name}'s does not, so its positions cannot be switched "
            "off: pass keep_positions=True. Where each head has one line ALiBi then decides nothing, since a softmax "
            "over one token is 1; other positions stay what they are beyond the longest training sequence"
        )
    _refuse_if_masks_are_not_taken(config)
    if hasattr(config, "index_topk") or hasattr(config, "index_topk_blocks"):
        raise ValueError(
            f"expected attention to all tokens that a mask opens, {name} picks some of them by an indexer"
        )
    if "local" in getattr(config, "attention_layers", ()):
        raise ValueError(f"expected attention without a window of its own, {name} has layers of local attention")
    tokens = model.get_input_embeddings().num_embeddings
    if len(rule.digits) < 2 or max(*rule.digits, rule.prompt_end) >= tokens:
        raise ValueError(f"expected two digits or more, and ids below the {tokens} of the model, got {rule}")


def _refuse_if_masks_are_not_taken(config: object) -> None:
    if config._attn_implementation not in ("eager", "sdpa"):
        raise ValueError(
            f"expected eager or sdpa attention, got {config._attn_implementation!r}, which takes no 4-D mask"
        )


def attach_saved(model: nn.Module, folder: Path | str) -> "Attached":
    """Attach the lines that `save_pretrained`, or a checkpoint of `Trainer`, saved with the weights in a folder.

    ValueError if the folder has no weights in safetensors, or they hold no lines.
    """
    for file in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(file, "pt") as weights:
            if _SAVED in weights.keys():  # noqa: SIM118  not a dict
                content = json.loads(bytes(weights.get_tensor(_SAVED).tolist()))
                break
    else:
        raise ValueError(f"expected weights that were saved with lines, as *.safetensors, in {folder}, got none")
    biases = [PromptApart(b["heads"]) if set(b) == {"heads"} else LineBias.of_dict(b) for b in content["biases"]]
    return attach(model, biases, TokenRule(**content["rule"]), content["keep_positions"])


def _refuse_if_closed_tokens_are_seen(model: nn.Module, rule: TokenRule) -> None:
    """Raise ValueError if the last token's output depends on any but the first and its own, which lines open."""
    padding = getattr(model.config, "pad_token_id", None)
    digits, embedded = [token for token in rule.digits if token != padding], []  # padding's vector may be 0
    ids = torch.tensor([[digits[0], digits[-1], rule.prompt_end, digits[0]]], device=model.device)
    hook = model.get_input_embeddings().register_forward_hook(
        lambda module, args, output: embedded.append(output.detach().requires_grad_()) or embedded[0]
    )
    try:
        with torch.compiler.set_stance("force_eager"), torch.enable_grad(), _evaluating(model):
            said = model(input_ids=ids, use_cache=False)[0][0, -1].float()
            weighted = (said * torch.linspace(1, 2, len(said), device=said.device)).sum()
            (reached,) = torch.autograd.grad(weighted, embedded)
    except (ValueError, RuntimeError, IndexError, TypeError, AttributeError, AssertionError) as error:
        raise ValueError(
            f"expected a model that takes a mask of [batch, heads, rows, tokens], {type(model).__name__} does not "
            f"({error}); some make ALiBi from the padding mask. Give lines to a model of another family"
        ) from error
    finally:
        hook.remove()
    if bool(reached[0, 1:3].any()):
        raise ValueError(
            f"{type(model).__name__} sees tokens that the mask closes: it ignores attention_mask, or mixes tokens "
            "outside its attention, so lines would mean nothing"
        )


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model in evaluation mode, and restore the mode of every module afterwards."""
    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training


def _positions(sequences: Sequence[Laid], ids: torch.Tensor, first: int = 0) -> torch.Tensor:
    """The position of each token in its own sequence, [batch, tokens]; the first column is number `first`."""
    starts = torch.tensor([[laid.start] for laid in sequences], device=ids.device)
    return (torch.arange(first, first + ids.shape[1], device=ids.device) - starts).clamp(min=0)


@cache
def _moving(kind: type) -> type:
    """A subclass of a cache's class whose methods that move rows move the sequences of these rows likewise."""

    def moved(name: str) -> Callable[[object, torch.Tensor | int], None]:
        def move(self, how):
            getattr(kind, name)(self, how)
            mark, laid = getattr(self, _FILLED)
            rows = [n for n in range(len(laid)) for _ in range(how)] if isinstance(how, int) else how.tolist()
            setattr(self, _FILLED, (mark, [laid[n] for n in rows]))

        return move

    methods = {name: moved(name) for name in _MOVES if hasattr(kind, name)}
    return type(kind.__name__, (kind,), methods | {"__reduce__": lambda self: (_restored, (kind, vars(self)))})


def _restored(kind: type, content: dict) -> object:
    """A copied or unpickled cache."""
    found = object.__new__(_moving(kind))
    vars(found).update(content)
    return found


class Attached:
    """Lines at work in a Hugging Face decoder (`attach`); `detach()` removes them."""

    def __init__(self, model: nn.Module, biases: tuple[Lines, ...], rule: TokenRule, keep_positions: bool):
        self.model, self.biases, self.rule, self.keep_positions = model, biases, rule, keep_positions
        self.checked = False  # whether to raise if a pass went past the lines
        self.cut: set[int] = set()  # the layers that were given their own part of the mask
        self.mark = uuid.uuid4().hex  # for caches; copies keep it
        self.takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        of_biases = [bias.as_dict() if isinstance(bias, LineBias) else asdict(bias) for bias in biases]
        content = json.dumps({"biases": of_biases, "rule": asdict(rule), "keep_positions": keep_positions})
        self.saved = torch.tensor(list(content.encode()), dtype=torch.uint8)
        model.register_buffer(_SAVED, self.saved.to(model.device, copy=True))  # loaded weights overwrite it
        self.hooks = [
            model.register_forward_pre_hook(self._prepare, with_kwargs=True),
            model.register_forward_hook(self._remember, with_kwargs=True),
            model.register_load_state_dict_post_hook(self._check_loaded),
        ]
        layers = [module for module in model.modules() if hasattr(module, "layer_idx")]
        self.hooks += [layer.register_forward_pre_hook(self._of_layer, with_kwargs=True) for layer in layers]
        setattr(model, _ATTACHED, self)

    def detach(self) -> None:
        """Give the model back its own mask and positions; a second call does nothing."""
        if getattr(self.model, _ATTACHED, None) is not self:
            return
        for hook in self.hooks:
            hook.remove()
        delattr(self.model, _ATTACHED)
        delattr(self.model, _SAVED)

    def _check_loaded(self, model: nn.Module, keys: object) -> None:
        """After weights are loaded: raise ValueError if they were saved with other lines."""
        if not torch.equal(getattr(model, _SAVED).cpu(), self.saved):
            raise ValueError(
                "expected weights that were trained with these lines, got some of others: attach_saved()"
            )

    @torch.compiler.disable
    def _prepare(self, model: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """Before each forward pass: set new tokens' mask, one layer's heads after another's, and position 0."""
        if getattr(model, "_is_replica", False):
            raise ValueError("expected one model a process, got a replica of DataParallel: use one GPU, or DDP")
        ids = args[0] if args else kwargs.get("input_ids")
        given, past = kwargs.get("attention_mask"), kwargs.get("past_key_values")
        if ids is None or len(args) > 1:
            raise ValueError("expected input_ids, from which lines take their coordinates, and all else by name")
        if isinstance(given, dict) or getattr(past, "is_compileable", False):
            raise ValueError(
                "expected a cache that grows with the text, got a static one: leave cache_implementation out"
            )
        _refuse_if_masks_are_not_taken(model.config)
        if kwargs.get("output_router_logits", getattr(model.config, "output_router_logits", False)):
            raise ValueError(
                "expected no loss of routing, which reads the padding mask: leave output_router_logits out"
            )
        if given is not None and given.dim() != 2:
            raise ValueError("expected an attention mask of [batch, tokens], got one of your own beside the lines")
        places, restarts = kwargs.get("position_ids"), False
        if places is not None and places.dim() == 2 and places.shape[1] == ids.shape[1]:
            real = torch.ones_like(ids) if given is None else given[:, -ids.shape[1] :]
            restarts = bool(((places[:, 1:] == 0) & real[:, 1:].bool() & real[:, :-1].bool()).any())
        if restarts or "cu_seq_lens_q" in kwargs or (given is not None and int(given.max()) > 1):
            raise ValueError(
                "expected one sequence in each row, got several packed into one, or position_ids that begin again: "
                "pad sequences instead, and leave position_ids out"
            )
        seen = int(past.get_seq_length()) if past is not None else 0
        padding = getattr(model.config, "pad_token_id", None)
        if given is None and not seen and len({token == padding for token in ids[:, 0].tolist()}) > 1:
            raise ValueError("expected an attention mask of sequences that are padded on the left, got none")
        tokens = seen + ids.shape[1]
        if not seen:
            sequences = self.rule.sequences(ids, given, model.training or kwargs.get("labels") is not None)
        else:
            filled, before = getattr(past, _FILLED, (None, []))
            if filled != self.mark or len(before) != len(ids):
                raise ValueError("expected a cache that was filled with these lines attached, got one of before")
            if not all(self._goes_on(laid, seen, row) for laid, row in zip(before, ids, strict=True)):
                raise ValueError(
                    "expected a cache of whole prompts, padded on the left, to go on from, or what is left of them, "
                    "got other tokens"
                )
            if given is not None and not bool(given[:, seen:].all()):
                raise ValueError("expected new tokens without padding after a cache, got some: go on row by row")
            sequences = [laid._replace(end=tokens) for laid in before]
        if self.keep_positions and not self.takes_positions and any(laid.start for laid in sequences):
            raise ValueError(
                f"expected sequences padded on the right, since {type(model).__name__} counts positions with the "
                "padding"
            )
        where = {"tokens": tokens, "first": seen, "dtype": model.dtype, "device": ids.device}
        masks = torch.cat([batch_mask(bias, sequences, **where) for bias in self.biases], 1)
        changed = {"input_ids": ids, "attention_mask": masks.expand(len(ids), -1, -1, -1)}
        changed["attention_mask"].laid = sequences  # with the mask, since passes may run concurrently
        if not self.keep_positions:
            changed["position_ids"] = torch.zeros_like(ids)
        elif places is None and self.takes_positions:
            changed["position_ids"] = _positions(sequences, ids, seen)
        if not seen and self._forgets(past, kwargs.get("use_cache")):
            from transformers import DynamicCache

            changed["past_key_values"] = DynamicCache()
        return (), kwargs | changed

    def _of_layer(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """Before each layer and its attention: select the layer's own mask from those of all layers. Raises
        ValueError if there is none: the pass went past the lines."""
        mask, heads = kwargs.get("attention_mask"), self.biases[0].heads
        if self.checked and "attention_mask" in kwargs and (mask is None or mask.shape[1] % heads):
            raise ValueError(
                f"expected a call of the {type(self.model).__name__} that has the lines, got one of its forward() or "
                "its body alone, as LoRA of peft before 0.21 makes it"
            )
        if mask is not None and mask.shape[1] > heads:
            if not torch.compiler.is_compiling():
                self.cut.add(module.layer_idx)
            kwargs = kwargs | {"attention_mask": mask.unflatten(1, (-1, heads))[:, module.layer_idx]}
        return args, kwargs

    def _goes_on(self, laid: Laid, seen: int, new: torch.Tensor) -> bool:
        """Whether new tokens follow a cache of `seen`: after a prompt, or, if it was cropped, with the rest of one."""
        left = laid.prompt[max(0, seen - laid.start) :]
        again = [(token in self.rule.digits, token == self.rule.prompt_end) for token in new[: len(left)].tolist()]
        wanted = [(is_digit, n == len(left)) for n, is_digit in enumerate(left, 1)]
        return laid.start < seen <= laid.end and again == wanted

    def _forgets(self, cache: object, wanted: bool | None) -> bool:
        """Whether the model would cache only the last tokens of a window, which lines lead beyond."""
        if cache is not None:
            return any(getattr(cache, "is_sliding", ()))
        config = self.model.config
        kept = getattr(config, "use_cache", True) if wanted is None else wanted
        return kept and any(getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size"))

    @torch.compiler.disable
    def _remember(self, model: nn.Module, args: tuple, kwargs: dict, output: object) -> None:
        """After each forward pass: note on its cache whose prompts it holds, since several may be used in turn."""
        for part in output if isinstance(output, tuple) else output.values():
            if hasattr(part, "get_seq_length"):
                if not hasattr(part, _FILLED):
                    part.__class__ = _moving(type(part))
                setattr(part, _FILLED, (self.mark, kwargs["attention_mask"].laid))
