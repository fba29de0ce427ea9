"""Speed as ratios within one run on one thread: calibration, exact match, the training step, whole jobs."""

import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from abcnb.algorithm1 import Algorithm1Config, calibrate_matrix
from abcnb.bench.algorithm1 import algorithm_1
from abcnb.decoding import greedy_decode, predictions_in_chunks
from abcnb.evaluation import wrong_tokens
from abcnb.layers import OpenTokens, attend_to_open
from abcnb.machine import hardware
from abcnb.positions import sinusoid
from abcnb.study.cost import forward_flops
from abcnb.study.experiments import Experiment
from abcnb.study.methods import experiment
from abcnb.study.reproduction import MAIN_TASKS
from abcnb.study.runs import is_finished, load_run, new_model, written_biases
from abcnb.tasks import Batch, get_task
from abcnb.testsets import random_operands, test_cases
from abcnb.training import optimizer_of, training_step

GEMM_SIZE, EXACT_MATCHES = 1024, 256
OPEN_CELLS = ((60, 256), (600, 32), (2000, 4))  # digits and samples of exact match along open cells
# The same for outputs in rows, in one stream: task, length and samples.
OPEN_ROWS = (
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


def bench_calibration() -> str:
    """Algorithm 1 on a random [8, 62, 125] tensor to 62 × 125, against plain loops."""
    attention = torch.rand(8, 62, 125, generator=torch.Generator().manual_seed(0)).softmax(-1)
    config = Algorithm1Config(kappa_cross=2.0, directions_cross=(-1, 0, 1), rows=0, pool="head")
    columns, rows = get_task("addition").stream(61).columns(crossing=True), torch.arange(62)

    def vectorised() -> torch.Tensor:
        return calibrate_matrix(attention, "cross", config)(rows, columns)

    plain = attention.tolist()
    started = time.perf_counter()
    looped = algorithm_1(plain, 62, 125, config.directions_cross, kappa=2.0, statistic="sum", threshold_on="line")
    loops = time.perf_counter() - started
    if not torch.allclose(vectorised(), torch.tensor(looped), atol=1e-4):
        raise RuntimeError("the vectorised calibration differs from the plain loops")
    fast = seconds(vectorised, 20)
    times = f"loops {loops:.1f} s, ours {1000 * fast:.2f} ms: {loops / fast:,.0f}×"
    return f"Algorithm 1, [8, 62, 125] to 62 × 125: {times}"


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
    started = time.perf_counter()
    greedy_decode(model, batch.source, batch.stream, steps, cache=False)
    uncached = time.perf_counter() - started
    return (
        f"exact match of {EXACT_MATCHES} × 60 digits: teacher-forced {forced:.2f} s; greedy without cache "
        f"{uncached:.1f} s: {uncached / forced:.1f}×; greedy with cache {cached:.2f} s: {cached / forced:.2f}×"
    )


def bench_open_cells(length: int, samples: int) -> str:
    """Exact match of Addition along lines, in chunks, against the whole attention matrix."""
    e = experiment("addition", "abs")
    task = e.get_task()
    model, whole = new_model(e, written_biases(e)).eval(), _compared(new_model(e, written_biases(e))).eval()
    batch = task.batch(random_operands(task, length, samples), e.form)
    return f"exact match of {samples} × {length:,} digits: " + _open_against_whole(
        lambda: predictions_in_chunks(model, batch),
        lambda: whole.predictions(batch),
        samples * batch.stream.rows,
        samples * forward_flops(e, batch.stream.width),
    )


def bench_open_rows(name: str, length: int, samples: int) -> str:
    """Exact match of outputs in rows, in one stream, along lines, in chunks, against the whole attention matrix."""
    e = experiment(name, "abs")
    task = e.get_task()
    model, whole = new_model(e, written_biases(e)).eval(), _compared(new_model(e, written_biases(e))).eval()
    batch = task.batch(test_cases(task, length, samples, "random")["random"])
    by = "terms of" if name == "many-addition" else "by"
    return f"exact match of {samples} × {length} {by} {length} digits in one stream: " + _open_against_whole(
        lambda: predictions_in_chunks(model, batch),
        lambda: whole.predictions(batch),
        samples * len(batch.stream),
        samples * forward_flops(e, length),
    )


def bench_gathering() -> str:
    """A laptop training step of Addition with one line a head: values gathered, against a mask in SDPA."""
    e = experiment("addition", "abs")
    batch = e.data().train(e.training.batch_size, torch.Generator().manual_seed(0))
    ours, masked = new_model(e, written_biases(e)), _compared(new_model(e, written_biases(e)))
    steps = _step_of(ours, e, batch), _step_of(masked, e, batch)
    pairs = [tuple(seconds(step, 10) for step in steps) for _ in range(3)]
    gathered, compared = (sorted(column)[1] for column in zip(*pairs, strict=True))
    times = f"gathered {1000 * gathered:.0f} ms, masked {1000 * compared:.0f} ms: {compared / gathered:.2f}×"
    return f"training step with one line a head (Addition, batch {e.training.batch_size}): {times}"


def bench_gathered() -> str:
    """Attention to two open tokens a head, gathered, against blocks of rows that see a band of columns."""
    heads, size, rows, behind, block = 8, 16, 20_480, 3, 16  # of blocks of 8 to 64 rows the fastest
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 1, heads, rows, size, generator=generator)
    offsets = torch.tensor([(0, 1 + head % behind) for head in range(heads)])
    tokens = torch.arange(rows)[:, None] - offsets[:, None]
    opened = OpenTokens(torch.where(tokens < 0, -1, tokens))
    band = torch.full((heads, block, block + behind), float("-inf"))
    band.scatter_(2, behind + torch.arange(block)[:, None] - offsets[:, None], 0)
    outside = torch.zeros(rows // block, 1, 1, block + behind)
    outside[0, ..., :behind] = float("-inf")  # before the first token

    def in_bands() -> torch.Tensor:
        keys, values = (F.pad(part, (0, 0, behind, 0)).unfold(2, block + behind, block) for part in (key, value))
        scores = query.view(1, heads, -1, block, size) @ keys / size**0.5
        weights = (scores + band[:, None] + outside.transpose(0, 1)).softmax(-1)
        return (weights @ values.transpose(-1, -2)).view(1, heads, rows, size)

    if not torch.allclose(attend_to_open(query, key, value, opened), in_bands(), atol=1e-5):
        raise RuntimeError("attention to gathered tokens differs from that in bands")
    gathered, banded = seconds(lambda: attend_to_open(query, key, value, opened), 5), seconds(in_bands, 5)
    times = f"gathered {1000 * gathered:.0f} ms, in bands {1000 * banded:.0f} ms: {banded / gathered:.1f}×"
    return f"attention alone, {heads} heads of {size}, {rows:,} rows with two open tokens a head: {times}"


def _open_against_whole(
    opened: Callable[[], object], whole: Callable[[], object], tokens: int, products: int
) -> str:
    """Two ways of one evaluation, and what share of the matrix rate the products of the first take."""
    timed = [(seconds(opened, 3), seconds(whole, 3), gemm_rate()) for _ in range(3)]
    few, all_, rate = (sorted(column)[1] for column in zip(*timed, strict=True))
    return (
        f"along lines {few:.2f} s ({1e6 * few / tokens:.0f} µs a token, products at "
        f"{100 * products / few / rate:.0f}% of the GEMM rate), over the whole matrix {all_:.2f} s: {all_ / few:.1f}×"
    )


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
    ours, theirs = new_model(e, written_biases(e)), TorchDecoder(e)
    flops = step_flops(e)
    our_step, their_step = _step_of(ours, e, batch), _step_of(theirs, e, batch)
    pairs = [(seconds(our_step, 10), seconds(their_step, 10), gemm_rate()) for _ in range(3)]
    mine, other, rate = (sorted(column)[1] for column in zip(*pairs, strict=True))
    share = flops / mine / rate
    return (
        f"training step (Addition, batch {e.training.batch_size}, {e.model.decoder_layers} layers, d_model "
        f"{e.model.d_model}): ours {1000 * mine:.0f} ms, torch.nn.TransformerDecoder {1000 * other:.0f} ms: "
        f"{other / mine:.2f}×; {flops / mine / 1e9:.0f} GFLOP/s, {100 * share:.0f}% of this "
        f"machine's fp32 GEMM rate of {rate / 1e9:.0f} GFLOP/s"
    )


def whole_jobs(runs: Path, seed: int) -> list[str]:
    """Steps and minutes from nothing to a complete model, of the finished `laptop` runs."""
    lines = []
    for task in MAIN_TASKS:
        for method in ("abs", "abc"):
            e = experiment(task, method, "laptop", seed)
            if not is_finished(runs / e.digest):
                lines.append(f"{task} {method}: not run (python -m abcnb fit {task} {method} --seed {seed})")
                continue
            parts = [part for part in (e.interpolation, e) if part]
            metrics = [load_run(runs / part.digest).metrics for part in parts]
            steps = " + ".join(str(m["steps"]) for m in metrics)
            minutes = sum(m["seconds"] for m in metrics) / 60
            lines.append(f"{task} {method}: {steps} steps, {minutes:.1f} minutes from nothing, one thread")
    return lines


def bench(runs: Path, seed: int = 0) -> str:
    """All of the above as text.

    Raises:
        ValueError: a negative seed, or a damaged run; said before anything is measured.
    """
    jobs = whole_jobs(runs, seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        parts = [bench_calibration(), bench_exact_match(), *(bench_open_cells(*size) for size in OPEN_CELLS)]
        parts += [*(bench_open_rows(*size) for size in OPEN_ROWS), bench_gathered()]
        parts += [bench_gathering(), bench_training_step()]
        return "\n".join([hardware(torch.device("cpu")), *parts, *jobs])
    finally:
        torch.set_num_threads(threads)
