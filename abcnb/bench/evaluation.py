"""Speed on one thread of a CPU, as ratios within one run: exact match, a training step, a Llama with lines."""

from collections.abc import Callable
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from abcnb.bench.training import bench_many, bench_parts, bench_step, built, matrix_rate, seconds
from abcnb.machine.devices import hardware
from abcnb.model.decoding import greedy_decode, predictions_in_chunks
from abcnb.model.evaluation import wrong_tokens
from abcnb.pipeline import HEADS_WITH_LINES, lines_by_hand
from abcnb.study.cost import forward_flops
from abcnb.study.methods import experiment
from abcnb.tasks.testsets import random_operands, test_cases
from abcnb.tasks.tokens import CHARACTERS, IDS
from abcnb.tasks.training_data import TrainingData
from abcnb.yours.hugging_face import attach
from abcnb.yours.pytorch import TokenRule

CPU = torch.device("cpu")
BATCH, WIDTHS = 128, range(2, 10)  # of the Llama
EXACT_MATCHES = 256
# Exact match along lines: task, length and samples; outputs in rows are in one stream.
ALONG_LINES = (
    ("addition", 60, 256), ("addition", 600, 32), ("addition", 2000, 4),
    ("many-addition", 6, 64), ("many-addition", 20, 8), ("many-addition", 40, 2), ("multiplication", 60, 1),
)  # fmt: skip


def bench_exact_match() -> str:
    """Exact match of Addition at 60 digits, teacher-forced, against greedy decoding."""
    e = experiment("addition", "abs")
    task, model = e.get_task(), built(e, CPU).eval()
    batch = task.batch(random_operands(task, 60, EXACT_MATCHES), e.form)
    steps = batch.target.shape[1]
    forced = seconds(lambda: wrong_tokens(model, batch), CPU)
    cached = seconds(lambda: greedy_decode(model, batch.source, batch.stream, steps), CPU)
    uncached = seconds(lambda: greedy_decode(model, batch.source, batch.stream, steps, cache=False), CPU)
    return (
        f"exact match of {EXACT_MATCHES} × 60 digits: teacher-forced {forced:.2f} s; greedy without cache "
        f"{uncached:.1f} s: {uncached / forced:.1f}×; greedy with cache {cached:.2f} s: {cached / forced:.2f}×"
    )


def bench_along_lines(name: str, length: int, samples: int) -> str:
    """Exact match along lines, in chunks, against the whole attention matrix."""
    e = experiment(name, "abs")
    task, model, whole = e.get_task(), built(e, CPU).eval(), built(e, CPU).eval()
    # Its lines a mask over all columns, with queries and keys, as its attention is recorded.
    whole.__class__ = type("WholeMatrix", (type(whole),), {"gathers": False})
    batch = task.batch(test_cases(task, length, samples, "random")["random"], e.form)
    few = seconds(lambda: predictions_in_chunks(model, batch), CPU)
    all_ = seconds(lambda: whole.predictions(batch), CPU)
    tokens = len(batch.stream) if e.in_one_stream else batch.stream.rows
    products = samples * forward_flops(e, length if task.in_rows else batch.stream.width)
    return (
        f"exact match of {samples} × {length:,} ({name}): along lines {few:.2f} s "
        f"({1e6 * few / samples / tokens:.0f} µs a token, products at {100 * products / few / matrix_rate(CPU):.0f}% "
        f"of the matrix rate), over the whole matrix {all_:.2f} s: {all_ / few:.1f}×"
    )


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


def bench_cpu() -> str:
    """All of it as text."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        lines = [hardware(CPU), bench_exact_match(), *(bench_along_lines(*size) for size in ALONG_LINES)]
        for e in (experiment("addition", "vanilla"), experiment("addition", "abs")):
            lines += [*bench_step(e, CPU), bench_parts(e, CPU)]
        lines += bench_many(experiment("addition", "vanilla"), (8,), CPU, 3)
        return "\n".join(lines + (bench_lines() if find_spec("transformers") else []))
    finally:
        torch.set_num_threads(threads)
