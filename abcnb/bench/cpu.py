"""Speed as ratios within one run on one thread: exact match and the training step."""

import time
from collections.abc import Callable

import torch
from torch import nn

from abcnb.decoding import greedy_decode, predictions_in_chunks
from abcnb.evaluation import wrong_tokens
from abcnb.machine import hardware
from abcnb.positions import sinusoid
from abcnb.study.cost import forward_flops
from abcnb.study.experiments import Experiment
from abcnb.study.methods import experiment
from abcnb.study.runs import new_model, written_biases
from abcnb.tasks import Batch
from abcnb.testsets import random_operands, test_cases
from abcnb.training import optimizer_of, training_step

GEMM_SIZE, EXACT_MATCHES = 1024, 256
# Exact match along lines: task, length and samples; outputs in rows are in one stream.
ALONG_LINES = (
    ("addition", 60, 256),
    ("addition", 600, 32),
    ("addition", 2000, 4),
    ("many-addition", 6, 64),
    ("many-addition", 20, 8),
    ("many-addition", 40, 2),
    ("multiplication", 60, 1),
)


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Median time of a call, after one to warm up."""
    work()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return sorted(times)[len(times) // 2]


def _in_turn(*works: Callable[[], float]) -> list[float]:
    """The median of three measurements of each, taken in turn."""
    rounds = [[work() for work in works] for _ in range(3)]
    return [sorted(column)[1] for column in zip(*rounds, strict=True)]


def _compared(model: nn.Module) -> nn.Module:
    """A model whose lines are a mask over all columns, with queries and keys, as its attention is recorded."""
    model.__class__ = type("Compared", (type(model),), {"gathers": False})
    return model.requires_grad_(True)


def bench_exact_match() -> str:
    """Exact match of Addition at 60 digits, teacher-forced, against greedy decoding."""
    e = experiment("addition", "abs")
    task, model = e.get_task(), new_model(e, written_biases(e)).eval()
    batch = task.batch(random_operands(task, 60, EXACT_MATCHES), e.form)
    steps = batch.target.shape[1]
    forced = seconds(lambda: wrong_tokens(model, batch), 5)
    cached = seconds(lambda: greedy_decode(model, batch.source, batch.stream, steps), 3)
    uncached = seconds(lambda: greedy_decode(model, batch.source, batch.stream, steps, cache=False), 1)
    return (
        f"exact match of {EXACT_MATCHES} × 60 digits: teacher-forced {forced:.2f} s; greedy without cache "
        f"{uncached:.1f} s: {uncached / forced:.1f}×; greedy with cache {cached:.2f} s: {cached / forced:.2f}×"
    )


def bench_along_lines(name: str, length: int, samples: int) -> str:
    """Exact match along lines, in chunks, against the whole attention matrix."""
    e = experiment(name, "abs")
    task = e.get_task()
    model, whole = new_model(e, written_biases(e)).eval(), _compared(new_model(e, written_biases(e))).eval()
    batch = task.batch(test_cases(task, length, samples, "random")["random"], e.form)
    few, all_, rate = _in_turn(
        lambda: seconds(lambda: predictions_in_chunks(model, batch), 3),
        lambda: seconds(lambda: whole.predictions(batch), 3),
        gemm_rate,
    )
    tokens = len(batch.stream) if e.in_one_stream else batch.stream.rows
    products = forward_flops(e, length if task.in_rows else batch.stream.width)
    return (
        f"exact match of {samples} × {length:,} ({name}): along lines {few:.2f} s "
        f"({1e6 * few / samples / tokens:.0f} µs a token, products at {100 * samples * products / few / rate:.0f}% "
        f"of the GEMM rate), over the whole matrix {all_:.2f} s: {all_ / few:.1f}×"
    )


def bench_gathering() -> str:
    """A laptop training step of Addition with one line a head: values gathered, against a mask in SDPA."""
    e = experiment("addition", "abs")
    batch = e.data().train(e.training.batch_size, torch.Generator().manual_seed(0))
    ours = _step_of(new_model(e, written_biases(e)), e, batch)
    masked = _step_of(_compared(new_model(e, written_biases(e))), e, batch)
    gathered, compared = _in_turn(lambda: seconds(ours, 10), lambda: seconds(masked, 10))
    times = f"gathered {1000 * gathered:.0f} ms, masked {1000 * compared:.0f} ms: {compared / gathered:.2f}×"
    return f"training step with one line a head (Addition, batch {e.training.batch_size}): {times}"


class TorchDecoder(nn.Module):
    """The same model as `Transformer`, written with `torch.nn.TransformerDecoder`."""

    def __init__(self, e: Experiment):
        super().__init__()
        c = e.model
        self.embedding = nn.Embedding(e.get_task().vocabulary_size, c.d_model)
        layer = nn.TransformerDecoderLayer(
            c.d_model, c.heads, c.d_ff, c.dropout, batch_first=True, norm_first=True
        )
        self.decoder = nn.TransformerDecoder(layer, c.decoder_layers, nn.LayerNorm(c.d_model))
        self.head = nn.Linear(c.d_model, e.get_task().vocabulary_size)
        self.d_model = c.d_model

    def _embed(self, tokens: torch.Tensor) -> torch.Tensor:
        index = torch.arange(tokens.shape[1], device=tokens.device)
        return self.embedding(tokens) * self.d_model**0.5 + sinusoid(index, self.d_model)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Teacher-forced logits."""
        tokens = batch.decoder_input
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        decoded = self.decoder(self._embed(tokens), self._embed(batch.source), tgt_mask=mask, tgt_is_causal=True)
        return self.head(decoded)


def _step_of(model: nn.Module, e: Experiment, batch: Batch) -> Callable[[], object]:
    optimizer = optimizer_of(model, e.training)
    return lambda: training_step(model, optimizer, batch, e.training, e.training.warmup_steps)


def step_flops(e: Experiment) -> int:
    """Floating point operations of a training step, forward and backward."""
    return 3 * e.training.batch_size * forward_flops(e)


def gemm_rate() -> float:
    """FLOP/s of a square fp32 matrix product on this machine."""
    a, b = torch.randn(GEMM_SIZE, GEMM_SIZE), torch.randn(GEMM_SIZE, GEMM_SIZE)
    return 2 * GEMM_SIZE**3 / seconds(lambda: a @ b, 20)


def bench_training_step() -> str:
    """A laptop training step of Vanilla Addition, against `torch.nn.TransformerDecoder`."""
    e = experiment("addition", "vanilla")
    batch = e.data().train(e.training.batch_size, torch.Generator().manual_seed(0))
    ours, theirs = _step_of(new_model(e, written_biases(e)), e, batch), _step_of(TorchDecoder(e), e, batch)
    mine, other, rate = _in_turn(lambda: seconds(ours, 10), lambda: seconds(theirs, 10), gemm_rate)
    reached = step_flops(e) / mine
    return (
        f"training step (Addition, batch {e.training.batch_size}, {e.model.decoder_layers} layers, d_model "
        f"{e.model.d_model}): ours {1000 * mine:.0f} ms, torch.nn.TransformerDecoder {1000 * other:.0f} ms: "
        f"{other / mine:.2f}×; {reached / 1e9:.0f} GFLOP/s, {100 * reached / rate:.0f}% of this machine's fp32 GEMM "
        f"rate of {rate / 1e9:.0f} GFLOP/s"
    )


def bench() -> str:
    """All of the above as text."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        lines = [hardware(torch.device("cpu")), bench_exact_match()]
        lines += [bench_along_lines(*size) for size in ALONG_LINES]
        return "\n".join([*lines, bench_gathering(), bench_training_step()])
    finally:
        torch.set_num_threads(threads)
