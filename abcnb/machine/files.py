"""Files that are written whole or not at all."""

import os
import platform
from collections.abc import Callable
from glob import escape
from pathlib import Path
from tempfile import TemporaryFile

import psutil


def write_atomically(file: Path, write: Callable[[Path], object]) -> None:
    """Let `write(temporary)` make a file, then rename it to `file`, so that no half-written file is ever seen.

    Also removes what writers of the same file left behind when they were killed on this machine.

    Raises:
        OSError: it cannot be written, such as on a full disk; an existing file stays, and nothing else is left.
    """
    machine = platform.node()
    for left in file.parent.glob(f".{escape(file.name)}.*@{escape(machine)}"):
        process = left.name.removesuffix(f"@{machine}").rpartition(".")[2]
        if process.isdecimal() and len(process) < 10 and not psutil.pid_exists(int(process)):
            left.unlink(missing_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}@{machine}")
    try:
        write(temporary)
        os.replace(temporary, file)
    except OSError as error:
        reason = error.strerror or str(error).splitlines()[0]
        raise OSError(f"expected to write {file}, got: {reason}; make room or choose another folder") from error
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(folder: Path) -> None:
    """Make a folder; raises OSError if no file can be written in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder) as file:
            file.write(b"?")
    except OSError as error:
        raise OSError(f"expected a folder that can be written to, got {folder}: {error.strerror}") from error
