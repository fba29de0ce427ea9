"""The training loop: step, schedule, progress; the same for every task and method.

Called again with the same folder after an interruption, training resumes from its last checkpoint and, on a CPU,
ends bit-identical to an uninterrupted run.
"""

import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

from abcnb.machine.devices import check_memory
from abcnb.model.checkpoint import Checkpoint, Progress
from abcnb.model.configs import ModelConfig, TrainingConfig
from abcnb.model.evaluation import wrong_tokens
from abcnb.model.transformer import Transformer
from abcnb.tasks.task import Batch
from abcnb.tasks.training_data import TrainingData, generator_for

CHECKPOINT = "checkpoint.safetensors"
CHECKPOINT_SECONDS = 60.0
TELL_SECONDS = 0.25
# Bytes per number, and per trained weight: the weight, its gradient and AdamW's two moments.
PER_FLOAT, PER_WEIGHT = 4, 16


def parameters(config: ModelConfig, vocabulary: int) -> int:
    """The number of weights in a model's layers, embedding and head, without norms, biases and positions."""
    attention, feed_forward = 4 * config.d_model**2, 2 * config.d_model * config.d_ff
    attentions = 1 if config.architecture == "decoder-only" else 2
    decoder = config.decoder_layers * (attentions * attention + feed_forward)
    return decoder + config.encoder_layers * (attention + feed_forward) + 2 * vocabulary * config.d_model


def check_model(config: ModelConfig, vocabulary: int) -> None:
    """Raise ValueError if a model's weights do not fit into memory."""
    needed = PER_FLOAT * parameters(config, vocabulary)
    sizes = f"{config.decoder_layers:,} layers of d_model {config.d_model:,} and d_ff {config.d_ff:,}"
    check_memory(needed, f"a model of {sizes}", "take smaller ones")


def check_training(config: ModelConfig, vocabulary: int, batch: int, rows: int, device: torch.device) -> None:
    """Raise ValueError if a training step on `batch` samples of `rows` output tokens cannot fit into memory."""
    # Inputs of each layer's products: of query, key and value, of the output, of both halves of the feed-forward.
    activations = batch * rows * config.decoder_layers * (3 * config.d_model + config.d_ff)
    needed = PER_WEIGHT * parameters(config, vocabulary) + PER_FLOAT * activations
    what = f"a training step on {batch:,} samples of {rows:,} tokens"
    check_memory(needed, what, "take a smaller training.batch_size, width or model", device)


def learning_rate(config: TrainingConfig, step: int) -> float:
    """Linear warm-up, then half a cosine down to zero; `step` counts from 0."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    share = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))


def optimizer_of(model: nn.Module, config: TrainingConfig) -> torch.optim.AdamW:
    """AdamW over the parameters that are to be trained."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(trained, config.learning_rate, weight_decay=config.weight_decay, fused=True)


def in_bf16(config: TrainingConfig, device: torch.device) -> bool:
    """Whether the forward pass runs in bf16: if asked for, or `auto` on CUDA."""
    return config.precision == "bf16" or (config.precision == "auto" and device.type == "cuda")


def loss_of(forward: Callable[[Batch], torch.Tensor], batch: Batch, bf16: bool) -> torch.Tensor:
    """The teacher-forced cross-entropy of the target's tokens, over the whole batch."""
    with torch.autocast(batch.target.device.type, dtype=torch.bfloat16, enabled=bf16):
        logits = forward(batch)
    return F.cross_entropy(logits.flatten(0, 1).float(), batch.target.flatten())


def training_step(
    forward: Callable[[Batch], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    config: TrainingConfig,
    step: int,
) -> torch.Tensor:
    """Take one optimizer step, with clipped gradients and the learning rate of `step`; returns the loss."""
    loss = loss_of(forward, batch, in_bf16(config, batch.target.device))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(config, step)
        nn.utils.clip_grad_norm_(group["params"], config.clip)
    optimizer.step()
    return loss.detach()


def train(
    model: Transformer,
    data: TrainingData,
    config: TrainingConfig,
    seed: int,
    folder: Path | str | None = None,
    owner: str = "",
    label: str = "training",
    progress: bool = True,
    on_validation: Callable[[list[dict]], None] | None = None,
    on_step: Callable[[int, float], None] | None = None,
) -> list[dict]:
    """Train a model in place, on its device; returns the records of its validations (`checkpoint.RECORD`).

    Args:
        model, data, config: the model, batches on its device, and the schedule.
        seed: of the batches and of dropout.
        folder: where the checkpoint lives; None keeps none. Training resumes from a checkpoint found there.
        owner: whose training it is, such as an experiment's hash; a checkpoint of another owner is refused.
        progress, label: whether to show a progress bar, and its text.
        on_validation: called after each validation with all records so far.
        on_step: called with the steps done since its last call and the last loss, at most four times a second, and
            after each validation. An exception from it or `on_validation` stops training and saves a checkpoint.

    Raises:
        ValueError: a checkpoint that is damaged, of another owner or kind of device, or a loss that is not finite.
    """
    device = model.device
    generator = torch.Generator(device=device).manual_seed(seed)
    optimizer = optimizer_of(model, config)
    validation = data.validation(config.validation_samples, generator_for("validation", seed, device))
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        seed_dropout(seed, device)
        kept = Checkpoint(Path(folder) / CHECKPOINT, owner, model, optimizer, generator) if folder else None
        before = kept.resume(config.steps, config.validate_every) if kept else Progress()
        step, history = before.step, list(before.history)
        started, heard = time.monotonic(), 0
        saved = told = started

        def seconds() -> float:
            return before.seconds + time.monotonic() - started

        def save() -> None:
            if kept:
                kept.save(Progress(step, tuple(history), seconds()))

        with tqdm(total=config.steps, initial=step, desc=label, disable=not progress, mininterval=1.0) as bar:
            while step < config.steps:
                model.train()
                batch = data.train(config.batch_size, generator)
                loss = training_step(model, optimizer, batch, config, step)
                step += 1
                bar.update()
                validated = step % config.validate_every == 0 or step == config.steps
                if validated:
                    record = {"step": step, "seconds": round(seconds(), 1), "loss": loss.item()}
                    history.append(record | validate(model, validation))
                    bar.set_postfix(loss=f"{record['loss']:.4f}", exact=f"{history[-1]['exact_match']:.1f}%")
                    if not math.isfinite(record["loss"]):
                        raise ValueError(f"the loss is {record['loss']} at step {step}; lower learning_rate")
                try:
                    if on_validation and validated:
                        on_validation(history)
                    if on_step and (validated or time.monotonic() - told > TELL_SECONDS):
                        on_step(step - heard, loss.item())
                        told, heard = time.monotonic(), step
                except BaseException:  # how a listener stops training; no progress is lost
                    save()
                    raise
                if time.monotonic() - saved > CHECKPOINT_SECONDS:
                    save()
                    saved = time.monotonic()
    return history


def seed_dropout(seed: int, device: torch.device) -> None:
    """Seed the global generators of the CPU and of this device, and no others."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


def validate(model: Transformer, batches: list[Batch]) -> dict:
    """The exact match, in percent, and the share of wrong output tokens on held-out samples."""
    model.eval()
    wrong = torch.cat([wrong_tokens(model, batch) for batch in batches])
    return {
        "exact_match": 100.0 * (wrong == 0).float().mean().item(),
        "digit_error_rate": wrong.sum().item() / sum(batch.target.numel() for batch in batches),
    }
