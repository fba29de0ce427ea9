"""Files that are written whole or not at all."""

import os
from collections.abc import Callable
from pathlib import Path


def write_atomically(file: Path, write: Callable[[Path], object]) -> None:
    """Let `write(temporary)` make a file, then give it its name, so that no half-written file is ever seen.

    Args:
        file: the final name; its folder exists.
        write: makes the file it is given.
    """
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        write(temporary)
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)
