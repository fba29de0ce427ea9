"""The machine: its devices, their memory, and progress bars for what takes long."""

import platform
import re
from functools import partial
from pathlib import Path

import psutil
import torch
from tqdm import tqdm


def pick_device(device: str = "auto") -> torch.device:
    """The device of that name; `auto` is CUDA if available. Raises ValueError for one that this machine lacks."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch("cpu|cuda(:[0-9]+)?", device):
        raise ValueError(f"expected a device among auto, cpu, cuda, got {device!r}")
    if device != "cpu" and not torch.cuda.is_available():
        raise ValueError(f"expected a CUDA device for {device!r}, but torch finds none; use 'cpu' or 'auto'")
    if int(device.partition(":")[2] or 0) >= max(1, torch.cuda.device_count()):
        raise ValueError(f"expected one of {torch.cuda.device_count()} CUDA devices, got {device!r}")
    return torch.device(device)


def hardware(device: torch.device) -> str:
    """The processor's name and the number of threads, or the name of the GPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    named = re.search("^model name[^:]*:(.*)", info.read_text() if info.exists() else "", re.MULTILINE)
    name = named[1].strip() if named else platform.processor() or platform.machine()
    return f"{name}, {torch.get_num_threads()} thread(s)"


CPU = torch.device("cpu")
bar = partial(tqdm, delay=5, leave=False, disable=None)  # on a terminal, for what takes longer than five seconds


def memory_of(device: torch.device) -> int:
    """A device's memory in bytes."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return psutil.virtual_memory().total


def check_memory(needed: float, what: str, advice: str, device: torch.device = CPU) -> None:
    """Raise ValueError if `needed` bytes exceed the device's memory, saying how much both are and what to do."""
    if needed > (has := memory_of(device)):
        raise ValueError(
            f"expected {what} to fit into the {has / 1e9:,.0f} GB of this machine's {device.type} memory, got "
            f"{needed / 1e9:,.0f} GB at the least; {advice}"
        )
