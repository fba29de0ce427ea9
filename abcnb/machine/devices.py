"""The machine: its devices, their memory, and progress shown where something takes long."""

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
