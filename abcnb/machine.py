"""The machine: its devices, what fits into their memory, and progress shown where something takes long.

What does not fit is refused before it begins. The counts are of what is needed at the very least, so that nothing is
refused that could work.
"""

import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Timer

import psutil
import torch
from tqdm import tqdm

from abcnb.configs import ModelConfig


def pick_device(device: str = "auto") -> torch.device:
    """The device of that name; `auto` is CUDA where there is one.

    Raises:
        ValueError: a device that this machine does not have.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, colon, number = device.partition(":")
    if kind not in ("cpu", "cuda") or (colon and not (kind == "cuda" and number.isdecimal())):
        raise ValueError(f"expected a device among auto, cpu, cuda, got {device!r}")
    if kind == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"expected a CUDA device for {device!r}, but torch finds none; use 'cpu' or 'auto'")
        if int(number or 0) >= torch.cuda.device_count():
            raise ValueError(f"expected one of {torch.cuda.device_count()} CUDA devices, got {device!r}")
    return torch.device(device)


def hardware(device: torch.device) -> str:
    """The processor's name and how many threads it runs on, or the name of the GPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        named = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        name = named[0].partition(":")[2].strip() if named else name
    return f"{name}, {torch.get_num_threads()} thread(s)"


CPU = torch.device("cpu")
# Bytes of a token, of a number, and of a trained weight: itself, its gradient and the two moments of AdamW.
PER_TOKEN, PER_FLOAT, PER_WEIGHT = 8, 4, 16

PATIENCE = 5.0  # seconds
# A progress bar on a terminal for what takes longer.
bar = partial(tqdm, delay=PATIENCE, leave=False, disable=None)


@contextmanager
def telling(what: str) -> Iterator[None]:
    """One line on a terminal where something that cannot be counted takes longer."""
    timer = Timer(PATIENCE, lambda: sys.stderr.isatty() and tqdm.write(f"{what} …", file=sys.stderr))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def memory_of(device: torch.device) -> int:
    """Bytes of memory of a device."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return psutil.virtual_memory().total


def check_memory(needed: float, what: str, advice: str, device: torch.device = CPU) -> None:
    """Refuse what takes more memory than there is.

    Raises:
        ValueError: says how much that is, and what to do.
    """
    has = memory_of(device)
    if needed > has:
        raise ValueError(
            f"expected {what} to fit into the {has / 1e9:,.0f} GB of this machine's {device.type} memory, got "
            f"{needed / 1e9:,.0f} GB at the least; {advice}"
        )


def parameters(config: ModelConfig, vocabulary: int) -> int:
    """Weights of a model's layers, embedding and head, without norms, biases and positions."""
    attention, feed_forward = 4 * config.d_model**2, 2 * config.d_model * config.d_ff
    attentions = 1 if config.architecture == "decoder-only" else 2
    decoder = config.decoder_layers * (attentions * attention + feed_forward)
    return decoder + config.encoder_layers * (attention + feed_forward) + 2 * vocabulary * config.d_model


def check_model(config: ModelConfig, vocabulary: int) -> None:
    """Refuse a model whose weights do not fit."""
    needed = PER_FLOAT * parameters(config, vocabulary)
    sizes = f"{config.decoder_layers:,} layers of d_model {config.d_model:,} and d_ff {config.d_ff:,}"
    check_memory(needed, f"a model of {sizes}", "take smaller ones")


def check_training(config: ModelConfig, vocabulary: int, batch: int, rows: int, device: torch.device) -> None:
    """Refuse a training step whose weights, optimizer and activations do not fit.

    Args:
        config, vocabulary: of the model.
        batch: samples of a step.
        rows: output tokens of a sample; a decoder-only model has those of its prompt too, which are not counted.
        device: to train on.
    """
    # Inputs of the layer's products: of the query, key and value, of the output, of both halves of the feed-forward.
    activations = batch * rows * config.decoder_layers * (3 * config.d_model + config.d_ff)
    needed = PER_WEIGHT * parameters(config, vocabulary) + PER_FLOAT * activations
    what = f"a training step on {batch:,} samples of {rows:,} tokens"
    check_memory(needed, what, "take a smaller training.batch_size, width or model", device)


def check_test(samples: int, digits: float, operands: int) -> None:
    """Refuse a test set that does not fit: all digits thrice while distinct samples are sought, and, of a sample that
    is evaluated, its source, target, decoder input and layout."""
    needed = PER_TOKEN * digits * operands * (3 * samples + 4)
    check_memory(needed, f"a test of {samples:,} samples of {digits:,.0f} digits", "ask for fewer or shorter ones")


def check_dense(rows: float, device: torch.device = CPU) -> None:
    """Refuse attention over all pairs of tokens that does not fit; models without lines need it, and its mask."""
    needed = PER_FLOAT * rows**2
    check_memory(
        needed, f"attention over {rows:,.0f} tokens", "ask for shorter inputs, or a model with lines", device
    )
