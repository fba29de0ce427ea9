"""The device that a model is trained on: chosen by name, and described."""

import platform
from pathlib import Path

import torch


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
