"""Speed on one thread of a CPU, as ratios within one run: exact match, and a training step."""

from importlib.util import find_spec

import torch

from abcnb.bench.hugging_face import bench_lines
from abcnb.bench.training import bench_many, bench_parts, bench_step, built, matrix_rate, seconds
from abcnb.machine.devices import hardware
from abcnb.model.decoding import greedy_decode, predictions_in_chunks
from abcnb.model.evaluation import wrong_tokens
from abcnb.study.cost import forward_flops
from abcnb.study.methods import experiment
from abcnb.tasks.testsets import random_operands, test_cases

CPU = torch.device("cpu")
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
