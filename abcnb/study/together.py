"""Models that differ only in their seeds, trained as one batched model: small ones fill a GPU only together.

Each has its own weights, batches, optimizer state, validations and checkpoint, and turns out as it does alone, up
to rounding; with dropout, other values are dropped. Models whose batches have the same shape share a pass.
"""

import math
import time
from pathlib import Path

import torch
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from tqdm import tqdm

from abcnb.lines.coordinates import Stream
from abcnb.model.checkpoint import Checkpoint, Progress
from abcnb.model.configs import TrainingConfig
from abcnb.model.positions import Positions
from abcnb.model.training import (
    CHECKPOINT,
    CHECKPOINT_SECONDS,
    in_bf16,
    learning_rate,
    loss_of,
    optimizer_of,
    seed_dropout,
    validate,
)
from abcnb.model.transformer import LayerBiases, Transformer
from abcnb.tasks.task import Batch
from abcnb.tasks.training_data import TrainingData, generator_for


class Stacked:
    """Several models whose trained weights are slices of stacked ones, [models, …], and one optimizer for these.

    Attributes:
        weights: the stacked weights by name; a step changes them, and with them the models.
        optimizers: one per model, with its part of the state, for its checkpoint.

    Raises:
        ValueError: positions that are drawn at random for each batch, which models cannot do in one pass, or that
            have a learned bias along with lines, which may differ between models.
    """

    def __init__(self, models: list[Transformer], config: TrainingConfig):
        if type(models[0].positions).draw is not Positions.draw:
            position = models[0].config.position
            raise ValueError(f"expected positions that are not drawn anew for each batch, got {position!r}")
        if models[0].positions.biased and (models[0].self_biases or models[0].cross_biases):
            raise ValueError("expected lines, or positions with a learned bias, got both")
        self.models, self.config = models, config
        self.weights, named = {}, [dict(model.named_parameters()) for model in models]
        for name in (name for name, weight in named[0].items() if weight.requires_grad):
            self.weights[name] = torch.stack([weights[name].detach() for weights in named])
            for weights, part in zip(named, self.weights[name], strict=True):
                weights[name].data = part
        self.optimizer = torch.optim.AdamW(
            self.weights.values(), config.learning_rate, weight_decay=config.weight_decay, fused=True
        )
        for weight in self.weights.values():
            state = {"step": torch.zeros((), device=weight.device)}
            self.optimizer.state[weight] = state | {n: torch.zeros_like(weight) for n in ("exp_avg", "exp_avg_sq")}
        self.optimizers = [optimizer_of(model, config) for model in models]
        for number, optimizer in enumerate(self.optimizers):
            for own, state in zip(optimizer.param_groups[0]["params"], self.optimizer.state.values(), strict=True):
                optimizer.state[own] = {n: part if n == "step" else part[number] for n, part in state.items()}

    def step(self, batches: list[Batch], step: int) -> torch.Tensor:
        """One step of each model on its batch, gradients clipped per model; the losses before it, [models]."""
        alike: dict[Stream, list[int]] = {}
        for number, batch in enumerate(batches):
            alike.setdefault(batch.stream, []).append(number)
        losses = torch.empty(len(batches), device=self.models[0].device)
        for weight in self.weights.values():
            weight.grad = torch.empty_like(weight)
        for numbers in alike.values():
            gradients, losses[numbers] = self._pass(numbers, [batches[number] for number in numbers])
            norms = sum(
                gradient.reshape(len(numbers), -1).square().sum(1) for gradient in gradients.values()
            ).sqrt()
            shares = (self.config.clip / (norms + 1e-6)).clamp(max=1)
            for name, gradient in gradients.items():
                self.weights[name].grad[numbers] = gradient * shares.view(-1, *[1] * (gradient.dim() - 1))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config, step)
        self.optimizer.step()
        return losses

    def _pass(self, numbers: list[int], batches: list[Batch]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Gradients and losses of some models, each on its batch, all of one shape."""
        first, stream, device = self.models[0], batches[0].stream, batches[0].source.device
        columns, some = first.stream_of(stream).columns(), [self.models[number] for number in numbers]
        # Biases with parameters are made within the pass.
        biases = [[] if model.positions.biased else model.kept_biases(columns, model.gathers) for model in some]
        bf16 = in_bf16(self.config, device)

        def loss(learned: dict, source: torch.Tensor, target: torch.Tensor, opened: list) -> torch.Tensor:
            given = {"biases": with_tensors(biases[0], opened)}
            forward = lambda batch: functional_call(first, learned, (batch,), given)  # noqa: E731
            return loss_of(forward, Batch(source, target, stream), bf16)

        learned = {name: weight[numbers] for name, weight in self.weights.items()}
        sources, targets = (torch.stack([getattr(b, part) for b in batches]) for part in ("source", "target"))
        opened = [torch.stack(parts) for parts in zip(*map(tensors_of, biases), strict=True)]
        with sdpa_kernel(SDPBackend.MATH):  # the only one that vmap has a rule for
            return vmap(grad_and_value(loss), randomness="different")(learned, sources, targets, opened)


def tensors_of(biases: LayerBiases) -> list[torch.Tensor]:
    """The tensors in the biases of all layers, in order."""
    return [part for layer in biases for part in layer if part is not None]


def with_tensors(biases: LayerBiases, tensors: list[torch.Tensor]) -> LayerBiases:
    """Biases with their tensors replaced, in order."""
    left = iter(tensors)
    return [tuple(None if part is None else next(left) for part in layer) for layer in biases]


def train_together(
    models: list[Transformer],
    data: TrainingData,
    config: TrainingConfig,
    seeds: list[int],
    folders: list[Path],
    owners: list[str],
    label: str = "training",
    progress: bool = True,
) -> list[list[dict]]:
    """Train models in place, each as `training.train` does with its seed, folder and owner; returns their records.

    The seconds of each are its equal share of the total time.

    Raises:
        ValueError: as in `training.train`, or checkpoints of different steps.
    """
    device, everyone = models[0].device, range(len(models))
    generators = [torch.Generator(device=device).manual_seed(seed) for seed in seeds]
    validations = [
        data.validation(config.validation_samples, generator_for("validation", seed, device)) for seed in seeds
    ]
    stacked = Stacked(models, config)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        seed_dropout(seeds[0], device)
        files = (folder / CHECKPOINT for folder in folders)
        parts = zip(files, owners, models, stacked.optimizers, generators, strict=True)
        kept = [Checkpoint(*own) for own in parts]
        before = [one.resume(config.steps, config.validate_every) for one in kept]
        if len({one.step for one in before}) > 1:
            raise ValueError(f"expected checkpoints of one step, got those of {[one.step for one in before]}")
        step, histories = before[0].step, [list(one.history) for one in before]
        saved = started = time.monotonic()

        def seconds(number: int) -> float:
            return before[number].seconds + (time.monotonic() - started) / len(models)

        with tqdm(total=config.steps, initial=step, desc=label, disable=not progress, mininterval=1.0) as bar:
            while step < config.steps:
                for model in models:
                    model.train()
                losses = stacked.step([data.train(config.batch_size, own) for own in generators], step)
                step += 1
                bar.update()
                if step % config.validate_every == 0 or step == config.steps:
                    for number, loss in zip(everyone, losses.tolist(), strict=True):
                        record = {"step": step, "seconds": round(seconds(number), 1), "loss": loss}
                        histories[number].append(record | validate(models[number], validations[number]))
                        if not math.isfinite(loss):
                            raise ValueError(
                                f"the loss of seed {seeds[number]} is {loss} at step {step}; lower learning_rate"
                            )
                if time.monotonic() - saved > CHECKPOINT_SECONDS:
                    for number, one in zip(everyone, kept, strict=True):
                        one.save(Progress(step, tuple(histories[number]), seconds(number)))
                    saved = time.monotonic()
    return histories
