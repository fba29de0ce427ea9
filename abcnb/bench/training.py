"""Speed of a training step, on a CPU or a GPU: against PyTorch's own model, and the rate of matrix products."""

import time
from collections.abc import Callable

import torch
from torch import nn

from abcnb.machine.devices import hardware
from abcnb.model.positions import sinusoid
from abcnb.model.training import optimizer_of, training_step
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


def step_of(model: nn.Module, e: Experiment, device: torch.device) -> Callable[[], torch.Tensor]:
    """A step as `training.train` makes it after warm-up, its batch drawn on the device."""
    data, generator = e.data(device), torch.Generator(device).manual_seed(e.seed)
    config, optimizer = e.training, optimizer_of(model, e.training)

    def step() -> torch.Tensor:
        batch = data.train(config.batch_size, generator)
        return training_step(model, optimizer, batch, config, config.warmup_steps)

    return step


def step_flops(e: Experiment) -> int:
    """Floating point operations of a training step, forward and backward."""
    return 3 * e.training.batch_size * forward_flops(e)


def bench_step(e: Experiment, device: torch.device, steps: int = 20) -> list[str]:
    """Steps per second and shares of the matrix rate, beside those of `torch.nn.TransformerDecoder`."""

    forms = {"ours": new_model(e, written_biases(e)), "torch.nn.TransformerDecoder": TorchDecoder(e)}
    rate = matrix_rate(device, torch.bfloat16, 8192) if device.type == "cuda" else matrix_rate(device)
    lines = [
        f"training step, {e.task} {e.method}, preset {e.preset}, batch {e.training.batch_size}, width "
        f"{e.train_width}; matrix products at {rate / 1e12:.2f} TFLOP/s"
    ]
    for name, form in forms.items():
        taken = seconds(step_of(form.to(device).train(), e, device), device, steps)
        share = 100 * step_flops(e) / taken / rate
        lines.append(f"  {name}: {1 / taken:.1f} steps/s, {share:.0f}% of the matrix rate")
    return lines


def bench_gpu(device: torch.device, preset: str = "paper", steps: int = 20) -> str:
    """Steps of Vanilla Successor and Addition as text."""
    wanted = [experiment(task, "vanilla", preset) for task in ("successor", "addition")]
    return "\n".join([hardware(device), *(line for e in wanted for line in bench_step(e, device, steps))])
