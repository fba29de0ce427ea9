"""Speed of a training step on a GPU: against PyTorch's own model, the card's matrix rate, and many seeds at once.

Runs on a CPU too, at a reduced size: that is how it is tested.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.synchronize import Barrier
from threading import BrokenBarrierError

import torch
from torch import multiprocessing, nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from abcnb.bench.cpu import TorchDecoder, step_flops
from abcnb.machine import hardware
from abcnb.model import Transformer, compiled
from abcnb.study.experiments import Experiment
from abcnb.study.methods import experiment
from abcnb.study.runs import new_model, written_biases
from abcnb.tasks import Batch
from abcnb.training import in_bf16, loss_of, optimizer_of, training_step

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


def _seeds(e: Experiment, count: int) -> list[Experiment]:
    return [replace(e, seed=seed) for seed in range(count)]


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


def step_of_all(models: list[Transformer], es: list[Experiment], device: torch.device) -> Step:
    """A step of several seeds in one program: their weights stacked, the model mapped over them.

    Each has its own batch and its own gradient norm, as when trained alone.

    Args:
        models: of equal sizes and biases, without a random phase (its draw is one number a batch).
        es: their experiments, which differ in the seed alone.
        device: that they are on.

    Returns:
        A step; it returns the losses, [models].
    """
    data = [e.data(device) for e in es]
    generators = [torch.Generator(device).manual_seed(e.seed) for e in es]
    config, base = es[0].training, models[0]
    weights, buffers = stack_module_state(models)
    trained = list(weights.values())
    optimizer = torch.optim.AdamW(trained, config.learning_rate, fused=True)

    def loss(one, buffer, source, target, layout) -> torch.Tensor:
        forward = partial(functional_call, base, (one, buffer))
        return loss_of(lambda batch: forward((batch,)), Batch(source, target, layout), in_bf16(config, device))

    def step() -> torch.Tensor:
        batches = [d.train(config.batch_size, g) for d, g in zip(data, generators, strict=True)]
        sources, targets = (torch.stack([getattr(b, name) for b in batches]) for name in ("source", "target"))
        mapped = vmap(grad_and_value(loss), in_dims=(0, 0, 0, 0, None), randomness="different")
        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels cannot be mapped where all models share a mask
            gradients, losses = mapped(weights, buffers, sources, targets, batches[0].stream)
        norms = torch.stack([gradients[name].flatten(1).norm(dim=1) for name in weights]).norm(dim=0)
        shrink = (config.clip / (norms + 1e-6)).clamp(max=1.0)
        for name, weight in weights.items():
            weight.grad = gradients[name] * shrink.view(-1, *[1] * (weight.dim() - 1))
        optimizer.step()
        return losses.detach()

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
    """Model steps per second of several seeds: one after another, in one program, in processes."""
    es = _seeds(e, count)
    alone = step_seconds(step_of(_build(e, device), e, device), device, steps)
    together = step_seconds(step_of_all([_build(x, device) for x in es], es, device), device, steps)
    apart = seconds_in_processes(es, device, steps)
    taken = {"one after another": count * alone, "in one program (vmap)": together, "in processes": apart}
    lines = [f"{count} seeds of {e.task} {e.method}, preset {e.preset}, model steps/s:"]
    return lines + [f"  {name}: {count / seconds:.1f}" for name, seconds in taken.items()]


def bench_gpu(device: torch.device, preset: str = "paper", seeds: int = 8, steps: int = 20) -> str:
    """All of the above for Vanilla Addition and Successor, as text."""
    lines = [hardware(device)]
    for task in ("successor", "addition"):
        e = experiment(task, "vanilla", preset)
        lines += bench_step(e, device, steps, 8192 if device.type == "cuda" else 512)
        lines += bench_seeds(e, device, seeds, steps)
    return "\n".join(lines)
