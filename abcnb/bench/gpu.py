"""Speed of a training step on a GPU: against PyTorch's own model, the card's matrix rate, and many seeds at once.

Runs on a CPU too, at a reduced size: that is how it is tested.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.synchronize import Barrier
from threading import BrokenBarrierError

import torch
from torch import multiprocessing, nn

from abcnb.bench.cpu import TorchDecoder, step_flops
from abcnb.machine import hardware
from abcnb.model import Transformer, compiled
from abcnb.study.experiments import Experiment
from abcnb.study.methods import experiment
from abcnb.study.runs import new_model, written_biases
from abcnb.training import optimizer_of, training_step

Step = Callable[[], object]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def step_seconds(step: Step, device: torch.device, steps: int) -> float:
    """Seconds a step: the best of three blocks of `steps`, each waited for once, after one to warm up."""
    blocks = []
    for _ in range(4):
        started = time.perf_counter()
        for _ in range(steps):
            step()
        _wait(device)
        blocks.append((time.perf_counter() - started) / steps)
    return min(blocks[1:])


def matrix_rate(device: torch.device, dtype: torch.dtype, size: int) -> float:
    """FLOP/s of a square matrix product on this device."""
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2 * size**3 / step_seconds(lambda: a @ b, device, 10)


def _build(e: Experiment, device: torch.device) -> Transformer:
    torch.manual_seed(e.seed)
    return new_model(e, written_biases(e)).to(device).train()


def step_of(model: nn.Module, e: Experiment, device: torch.device) -> Step:
    """A step as `training.train` makes it after warm-up, its batch drawn on the device."""
    data, generator = e.data(device), torch.Generator(device).manual_seed(e.seed)
    config, optimizer = e.training, optimizer_of(model, e.training)

    def step() -> torch.Tensor:
        batch = data.train(config.batch_size, generator)
        return training_step(model, optimizer, batch, config, config.warmup_steps)

    return step


def _train_in_process(e: Experiment, device: str, steps: int, barrier: Barrier) -> None:
    try:
        torch.set_num_threads(1)
        where = torch.device(device)
        step = step_of(_build(e, where), e, where)
        step()
        _wait(where)
        barrier.wait()
        for _ in range(steps):
            step()
        _wait(where)
        barrier.wait()
    except BaseException:
        barrier.abort()
        raise


def seconds_in_processes(es: list[Experiment], device: torch.device, steps: int) -> float:
    """Seconds a step of all seeds, each trained in a process of its own on the same device.

    Raises:
        ValueError: a process ended early.
    """
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(len(es) + 1)
    workers = [context.Process(target=_train_in_process, args=(e, str(device), steps, barrier)) for e in es]
    for worker in workers:
        worker.start()
    try:
        barrier.wait(timeout=600)
        started = time.perf_counter()
        barrier.wait(timeout=600)
        return (time.perf_counter() - started) / steps
    except BrokenBarrierError:
        raise ValueError(
            f"expected memory on {device} for {len(es)} models, but a process ended early: its error is above"
        ) from None
    finally:
        for worker in workers:
            worker.join(timeout=30)
            worker.kill()


def bench_step(e: Experiment, device: torch.device, steps: int, size: int) -> list[str]:
    """Steps per second: eager, compiled, and as `torch.nn.TransformerDecoder`; the share of the matrix rate."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    flops, rate = step_flops(e), matrix_rate(device, dtype, size)
    forms = {
        "eager": _build(e, device),
        "torch.compile": compiled(_build(e, device)),
        "torch.compile with CUDA graphs": compiled(_build(e, device), mode="reduce-overhead"),
        "torch.nn.TransformerDecoder": TorchDecoder(e).to(device).train(),
    }
    if device.type != "cuda":
        del forms["torch.compile with CUDA graphs"]
    lines = [
        f"{e.task} {e.method}, preset {e.preset}, batch {e.training.batch_size}, width {e.train_width}; "
        f"{str(dtype).removeprefix('torch.')} matrix rate {rate / 1e12:.2f} TFLOP/s"
    ]
    for name, form in forms.items():
        taken = step_seconds(step_of(form, e, device), device, steps)
        share = 100 * flops / taken / rate
        lines.append(f"  {name}: {1 / taken:.1f} steps/s, {share:.0f}% of the matrix rate")
    return lines


def bench_seeds(e: Experiment, device: torch.device, count: int, steps: int) -> list[str]:
    """Model steps per second of several seeds: one after another, and each in a process of its own."""
    alone = step_seconds(step_of(_build(e, device), e, device), device, steps)
    together = seconds_in_processes([replace(e, seed=seed) for seed in range(count)], device, steps)
    return [
        f"{count} seeds of {e.task} {e.method}, preset {e.preset}, model steps/s:",
        f"  one after another: {1 / alone:.1f}",
        f"  in processes: {count / together:.1f}",
    ]


def bench_gpu(device: torch.device, preset: str = "paper", seeds: int = 8, steps: int = 20) -> str:
    """All of the above for Vanilla Addition and Successor, as text."""
    lines = [hardware(device)]
    for task in ("successor", "addition"):
        e = experiment(task, "vanilla", preset)
        lines += bench_step(e, device, steps, 8192 if device.type == "cuda" else 512)
        lines += bench_seeds(e, device, seeds, steps)
    return "\n".join(lines)
