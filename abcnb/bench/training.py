"""Speed of a training step, on a CPU or a GPU: against PyTorch's own model, and the rate of matrix products."""

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from abcnb.machine.devices import hardware
from abcnb.model.evaluation import wrong_tokens
from abcnb.model.positions import sinusoid
from abcnb.model.training import in_bf16, learning_rate, loss_of, optimizer_of, training_step
from abcnb.model.transformer import Transformer
from abcnb.study.cost import forward_flops
from abcnb.study.experiments import Experiment
from abcnb.study.methods import experiment
from abcnb.study.runs import new_model, written_biases
from abcnb.tasks.task import Batch


def seconds(work: Callable[[], object], device: torch.device, repeats: int = 1) -> float:
    """Seconds a call: the best of three blocks of `repeats`, each waited for once, after one to warm up."""
    blocks = []
    for _ in range(4):
        started = time.perf_counter()
        for _ in range(repeats):
            work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        blocks.append((time.perf_counter() - started) / repeats)
    return min(blocks[1:])


def matrix_rate(device: torch.device, dtype: torch.dtype = torch.float32, size: int = 1024) -> float:
    """FLOP/s of a square matrix product on this device."""
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2 * size**3 / seconds(lambda: a @ b, device, 10)


def built(e: Experiment, device: torch.device) -> Transformer:
    """A new model of an experiment whose biases are written, in training."""
    return new_model(e, written_biases(e)).to(device).train()


class TorchDecoder(nn.Module):
    """The same model as `Transformer`, written with `torch.nn.TransformerDecoder`."""

    def __init__(self, e: Experiment):
        super().__init__()
        c, vocabulary = e.model, e.get_task().vocabulary_size
        self.embedding, self.d_model = nn.Embedding(vocabulary, c.d_model), c.d_model
        sizes = (c.d_model, c.heads, c.d_ff, c.dropout)
        layer = nn.TransformerDecoderLayer(*sizes, batch_first=True, norm_first=True)
        self.decoder = nn.TransformerDecoder(layer, c.decoder_layers, nn.LayerNorm(c.d_model))
        self.head = nn.Linear(c.d_model, vocabulary)

    def _embed(self, tokens: torch.Tensor) -> torch.Tensor:
        index = torch.arange(tokens.shape[1], device=tokens.device)
        return self.embedding(tokens) * self.d_model**0.5 + sinusoid(index, self.d_model)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Teacher-forced logits."""
        tokens = batch.decoder_input
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        decoded = self.decoder(self._embed(tokens), self._embed(batch.source), tgt_mask=mask, tgt_is_causal=True)
        return self.head(decoded)


def step_of(model: nn.Module, e: Experiment, device: torch.device) -> Callable[[], torch.Tensor]:
    """A step as `training.train` makes it after warm-up, its batch drawn on the device."""
    data, generator = e.data(device), torch.Generator(device).manual_seed(e.seed)
    config, optimizer = e.training, optimizer_of(model, e.training)

    def step() -> torch.Tensor:
        batch = data.train(config.batch_size, generator)
        return training_step(model, optimizer, batch, config, config.warmup_steps)

    return step


def step_of_many(e: Experiment, count: int, device: torch.device) -> tuple[Callable[[], torch.Tensor], dict]:
    """A step of models that differ in their seeds alone, in one batched pass; and their weights, [count, …]."""
    each, config = [replace(e, seed=e.seed + number) for number in range(count)], e.training
    models = [built(one, device) for one in each]
    weights = {name: weight.detach() for name, weight in stack_module_state(models)[0].items()}
    optimizer = torch.optim.AdamW(
        weights.values(), config.learning_rate, weight_decay=config.weight_decay, fused=True
    )
    data, generators = e.data(device), [torch.Generator(device).manual_seed(one.seed) for one in each]

    def step() -> torch.Tensor:
        batches = [data.train(config.batch_size, generator) for generator in generators]

        def loss(learned: dict, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            forward = lambda batch: functional_call(models[0], learned, (batch,))  # noqa: E731
            return loss_of(forward, Batch(source, target, batches[0].stream), in_bf16(config, device))

        sources, targets = (torch.stack([getattr(b, part) for b in batches]) for part in ("source", "target"))
        with sdpa_kernel(SDPBackend.MATH):  # the one that has a rule for batches of models
            gradients, losses = vmap(grad_and_value(loss), randomness="different")(weights, sources, targets)
        norms = sum(gradient.flatten(1).square().sum(1) for gradient in gradients.values()).sqrt()
        shares = (config.clip / (norms + 1e-6)).clamp(max=1)
        for name, gradient in gradients.items():
            weights[name].grad = gradient * shares.view(-1, *[1] * (gradient.dim() - 1))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, config.warmup_steps)
        optimizer.step()
        return losses

    return step, weights


def bench_many(e: Experiment, counts: tuple[int, ...], device: torch.device, steps: int = 20) -> list[str]:
    """Steps of several models at once, against as many one after another."""
    alone, lines = seconds(step_of(built(e, device), e, device), device, steps), []
    for count in counts:
        taken = seconds(step_of_many(e, count, device)[0], device, steps)
        lines.append(f"  {count} models at once: {taken / count / alone:.2f} of the time of one after another")
    return lines


def bench_parts(e: Experiment, device: torch.device, steps: int = 20) -> str:
    """Where the time of a training step goes, and that of a validation, as shares of both."""
    model, data, config = built(e, device), e.data(device), e.training
    optimizer, generator = optimizer_of(model, config), torch.Generator(device).manual_seed(e.seed)
    held_out, spent = data.validation(config.validation_samples, generator), {}

    def timed(name: str, work: Callable[[], object], share: float = 1.0) -> object:
        started = time.perf_counter()
        found = work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        spent[name] = spent.get(name, 0.0) + share * (time.perf_counter() - started)
        return found

    for number in range(steps + 1):
        if number == 1:  # the first warms up
            spent.clear()
        model.train()
        batch = timed("data", lambda: data.train(config.batch_size, generator))
        loss = timed("forward", lambda batch=batch: loss_of(model, batch, in_bf16(config, device)))
        optimizer.zero_grad(set_to_none=True)
        timed("backward", loss.backward)
        timed("optimizer", lambda: (nn.utils.clip_grad_norm_(model.parameters(), config.clip), optimizer.step()))
        model.eval()
        if number in (0, steps):  # one of as many steps as a training has between two
            validate = lambda: [wrong_tokens(model, part) for part in held_out]  # noqa: E731
            timed("validation", validate, steps / config.validate_every)
    total = sum(spent.values())
    return "  of its time: " + ", ".join(f"{name} {100 * part / total:.0f}%" for name, part in spent.items())


def step_flops(e: Experiment) -> int:
    """Floating point operations of a training step, forward and backward."""
    return 3 * e.training.batch_size * forward_flops(e)


def bench_step(e: Experiment, device: torch.device, steps: int = 20) -> list[str]:
    """Steps per second and shares of the matrix rate, beside those of `torch.nn.TransformerDecoder`."""
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
        share = 100 * step_flops(e) / taken / rate
        lines.append(f"  {name}: {1 / taken:.1f} steps/s, {share:.0f}% of the matrix rate")
    return lines


def bench_gpu(device: torch.device, preset: str = "paper", steps: int = 20, counts: tuple = (8, 32)) -> str:
    """Steps of Vanilla Successor and Addition, and of many models of Addition at once, as text."""
    wanted = [experiment(task, "vanilla", preset) for task in ("successor", "addition")]
    lines = [hardware(device)]
    for e in wanted:
        lines += [*bench_step(e, device, steps), bench_parts(e, device, steps)]
    return "\n".join([*lines, *bench_many(wanted[-1], counts, device, steps)])
