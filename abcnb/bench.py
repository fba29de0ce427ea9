"""Speed as ratios within one benchmark: everything on one CPU thread, or training steps on a GPU.

It times training steps against PyTorch's own model and matrix products, exact match, and a Llama with lines.
"""

import time
import timeit
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from abcnb.machine.devices import CPU, hardware
from abcnb.model.decoding import greedy_decode, predictions_in_chunks
from abcnb.model.evaluation import wrong_tokens
from abcnb.model.training import in_bf16, loss_of, optimizer_of, training_step
from abcnb.model.transformer import Transformer
from abcnb.pipeline import HEADS_WITH_LINES, lines_by_hand
from abcnb.study.cost import training_flops
from abcnb.study.experiments import Experiment
from abcnb.study.methods import experiment
from abcnb.study.runs import new_model, written_biases
from abcnb.study.together import Stacked
from abcnb.tasks.task import Batch
from abcnb.tasks.testsets import test_cases
from abcnb.tasks.tokens import CHARACTERS, IDS
from abcnb.tasks.training_data import TrainingData
from abcnb.yours.hugging_face import attach
from abcnb.yours.pytorch import TokenRule

BATCH, WIDTHS = 128, range(2, 10)  # for the Llama
EXACT_MATCHES = 256
# Exact match along lines: task, length and samples; outputs in rows are in one stream.
ALONG_LINES = ("addition", 60, 256), ("addition", 600, 32), ("addition", 2000, 4), ("multiplication", 60, 1)


def seconds(work: Callable[[], object], device: torch.device, repeats: int = 1) -> float:
    """Seconds per call: the best of three blocks of `repeats` calls, each waited for once, after a warm-up."""

    def clock() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    return min(timeit.repeat(work, timer=clock, repeat=4, number=repeats)[1:]) / repeats


def matrix_rate(device: torch.device, dtype: torch.dtype = torch.float32, size: int = 1024) -> float:
    """FLOP/s of a square matrix product on this device."""
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2 * size**3 / seconds(lambda: a @ b, device, 10)


def built(e: Experiment, device: torch.device) -> Transformer:
    """A new model, in training mode, of an experiment whose biases are not found in attention."""
    return new_model(e, written_biases(e)).to(device).train()


class TorchDecoder(Transformer):
    """The same model with `torch.nn.TransformerDecoder` in place of its own layers."""

    def __init__(self, e: Experiment):
        c = e.model
        super().__init__(c, e.get_task().vocabulary_size)
        layer = nn.TransformerDecoderLayer(
            c.d_model, c.heads, c.d_ff, c.dropout, batch_first=True, norm_first=True
        )
        self.decoder = nn.TransformerDecoder(layer, c.decoder_layers)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Teacher-forced logits."""
        x = self.embed(self.sequence(batch), batch.stream.columns())
        memory = self.embed(batch.source, batch.stream.columns(crossing=True))
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        return self.logits(self.decoder(x, memory, tgt_mask=mask, tgt_is_causal=True))


def step_of(model: nn.Module, e: Experiment, device: torch.device) -> Callable[[], torch.Tensor]:
    """A step as `training.train` takes it just after warm-up, drawing its batch on the device."""
    data, generator = e.data(device), torch.Generator(device).manual_seed(e.seed)
    config, optimizer = e.training, optimizer_of(model, e.training)
    draw = partial(data.train, config.batch_size, generator)
    return lambda: training_step(model, optimizer, draw(), config, config.warmup_steps)


def step_of_many(e: Experiment, count: int, device: torch.device) -> Callable[[], torch.Tensor]:
    """The same for models that differ only in their seeds, in one batched pass."""
    each, data = [replace(e, seed=e.seed + number) for number in range(count)], e.data(device)
    stacked = Stacked([built(one, device) for one in each], e.training)
    generators = [torch.Generator(device).manual_seed(one.seed) for one in each]
    draw = partial(data.train, e.training.batch_size)
    return lambda: stacked.step([draw(generator) for generator in generators], e.training.warmup_steps)


def bench_many(e: Experiment, counts: tuple[int, ...], device: torch.device, steps: int = 20) -> list[str]:
    """Steps of several models at once, against one model after another."""
    alone = seconds(step_of(built(e, device), e, device), device, steps)
    each = {count: seconds(step_of_many(e, count, device), device, steps) / count for count in counts}
    return [
        f"  {n} models at once: {taken / alone:.2f} of the time of one after another" for n, taken in each.items()
    ]


def bench_parts(e: Experiment, device: torch.device, steps: int = 20) -> str:
    """How the time of a training step, with its part of a validation, divides, in percent."""
    model, data, config = built(e, device), e.data(device), e.training
    optimizer, generator = optimizer_of(model, config), torch.Generator(device).manual_seed(e.seed)
    draw = partial(data.train, config.batch_size, generator)
    batch, held_out = draw(), data.validation(config.validation_samples, generator)
    forward = partial(loss_of, model, batch, in_bf16(config, device))
    loss = forward()

    def update() -> None:
        nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()

    backward = partial(loss.backward, retain_graph=True)
    parts = {"data": draw, "forward": forward, "backward": backward, "optimizer": update}
    spent = {name: seconds(part, device, steps) for name, part in parts.items()}
    model.eval()
    validation = seconds(lambda: [wrong_tokens(model, part) for part in held_out], device)
    spent["validation"] = validation / config.validate_every
    shares = (f"{name} {100 * part / sum(spent.values()):.0f}%" for name, part in spent.items())
    return "  of its time: " + ", ".join(shares)


def bench_step(e: Experiment, device: torch.device, steps: int = 20) -> list[str]:
    """Steps per second and shares of the matrix rate, ours and PyTorch's, and where the time of ours goes."""
    forms = {"ours": built(e, device), "torch.nn.TransformerDecoder": TorchDecoder(e).to(device).train()}
    if device.type == "cuda":
        forms["ours, compiled"] = torch.compile(built(e, device))
        forms["ours, CUDA graphs"] = torch.compile(built(e, device), mode="reduce-overhead")
    rate = matrix_rate(device, torch.bfloat16, 8192) if device.type == "cuda" else matrix_rate(device)
    lines = [
        f"training step, {e.task} {e.method}, preset {e.preset}, batch {e.training.batch_size}, width "
        f"{e.train_width}; matrix products at {rate / 1e12:.2f} TFLOP/s"
    ]
    for name, form in forms.items():
        taken = seconds(step_of(form, e, device), device, steps)
        share = 100 * training_flops(e) / e.training.steps / taken / rate
        lines.append(f"  {name}: {1 / taken:.1f} steps/s, {share:.0f}% of the matrix rate")
    return [*lines, bench_parts(e, device, steps)]


def _test(name: str, length: int, samples: int) -> tuple[Transformer, Batch]:
    """A model of a task with lines by hand, and random inputs of a length."""
    e = experiment(name, "abs")
    operands = test_cases(e.get_task(), length, samples, "random")["random"]
    return built(e, CPU).eval(), e.get_task().batch(operands, e.form)


def bench_exact_match() -> str:
    """Exact match of Addition at 60 digits, teacher-forced, against greedy decoding."""
    model, batch = _test("addition", 60, EXACT_MATCHES)
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
    model, batch = _test(name, length, samples)
    few = seconds(lambda: predictions_in_chunks(model, batch), CPU)
    # The same model with its lines as a mask over all columns, and queries and keys, as when recording attention.
    model.__class__ = type("WholeMatrix", (Transformer,), {"gathers": False})
    whole = seconds(lambda: model.predictions(batch), CPU)
    return (
        f"exact match of {samples} × {length:,} ({name}): along lines {few:.2f} s, over the whole matrix "
        f"{whole:.2f} s: {whole / few:.1f}×"
    )


def kept_bytes(forward: Callable[[], torch.Tensor], weights: set[int]) -> int:
    """Bytes a forward pass keeps for the backward pass, each storage once, except weights (by address)."""
    storages: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        _loss = forward()  # kept alive, so that no address is reused
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
    """Time and memory of both passes with lines, over those without, on one shape and on eight padded ones."""
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
    forward = partial(model, **batch, use_cache=False)
    return seconds(lambda: forward().loss.backward(), CPU, 5), kept_bytes(lambda: forward().loss, weights)


def bench_cpu() -> str:
    """The whole CPU benchmark as text."""
    vanilla, by_hand = experiment("addition", "vanilla"), experiment("addition", "abs")
    lines = [hardware(CPU), bench_exact_match(), *(bench_along_lines(*size) for size in ALONG_LINES)]
    lines += [*bench_step(vanilla, CPU), *bench_step(by_hand, CPU), *bench_many(vanilla, (8,), CPU, 3)]
    return "\n".join(lines + (bench_lines() if find_spec("transformers") else []))


def bench_gpu(device: torch.device, preset: str = "paper", steps: int = 20, counts: tuple = (8, 32)) -> str:
    """Training steps of Vanilla Successor and Addition, and of many Addition models at once, as text."""
    wanted = [experiment(task, "vanilla", preset) for task in ("successor", "addition")]
    lines = [line for e in wanted for line in bench_step(e, device, steps)]
    return "\n".join([hardware(device), *lines, *bench_many(wanted[-1], counts, device, steps)])
