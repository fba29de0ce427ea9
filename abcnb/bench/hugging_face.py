"""What lines cost in a Hugging Face model: both passes of a small Llama with them, against one without."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from abcnb.bench.training import seconds
from abcnb.pipeline import HEADS_WITH_LINES, lines_by_hand
from abcnb.tasks.tokens import CHARACTERS, IDS
from abcnb.tasks.training_data import TrainingData
from abcnb.yours.hugging_face import attach
from abcnb.yours.pytorch import TokenRule

BATCH, WIDTHS = 128, range(2, 10)
CPU = torch.device("cpu")


def kept_bytes(forward: Callable[[], torch.Tensor], weights: set[int]) -> int:
    """Bytes that a forward pass keeps for the backward pass, each storage once, but for weights (their addresses)."""
    storages: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        _loss = forward()  # alive, so that no address is used twice
    return sum(size for address, size in storages.items() if address not in weights)


def batch_of(data: TrainingData, widths: range, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Sums of numbers of several widths, equally many of each, as a data collator pads them."""
    rows = []
    for width in widths:
        operands = [torch.randint(10, (BATCH // len(widths), width), generator=generator) for _ in "ab"]
        batch = data.task.batch([F.pad(digits[:, :-1], (0, 1)) for digits in operands])
        prompt = batch.source.where(batch.source != IDS["&"], IDS["="])
        rows += list(torch.cat([prompt, batch.target], 1))
    ids = pad_sequence(rows, True, IDS["@"])
    given = ids != IDS["@"]
    return {"input_ids": ids, "labels": ids.where(given, -100), "attention_mask": given.long()}


def bench_lines() -> list[str]:
    """Time and memory of both passes with lines, in parts of those without, on one shape and on eight padded ones."""
    import transformers

    data, generator = TrainingData("addition", one_stream=True), torch.Generator().manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(CHARACTERS), hidden_size=128, intermediate_size=512, num_hidden_layers=2,
        num_attention_heads=HEADS_WITH_LINES, num_key_value_heads=HEADS_WITH_LINES,
    )  # fmt: skip
    plain, lined = (transformers.LlamaForCausalLM(config).train() for _ in range(2))
    rule = TokenRule(digits=[IDS[digit] for digit in "0123456789"], prompt_end=IDS["="])
    attach(lined, lines_by_hand(data).self_biases[0], rule)
    told = []
    for name, widths in (("of one shape", WIDTHS[-1:]), (f"of {len(WIDTHS)} shapes, padded", WIDTHS)):
        batch = batch_of(data, widths, generator)
        time, memory = zip(*(_cost(model, batch) for model in (lined, plain)), strict=True)
        told.append(
            f"forward and backward pass of a Llama with lines, batches {name}: {time[0] / time[1]:.2f} of the time and "
            f"{memory[0] / memory[1]:.2f} of the memory of one without"
        )
    return told


def _cost(model: nn.Module, batch: dict[str, torch.Tensor]) -> tuple[float, int]:
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    forward = lambda: model(**batch, use_cache=False).loss  # noqa: E731
    return seconds(lambda: forward().backward(), CPU, 5), kept_bytes(forward, weights)
