"""Tasks in files of your own: `my_task.py:Double`, or `my_task.py` if the file has only one.

Such a file is Python, and is run like any other module; nothing is fetched. The full name of its task,
`/home/me/my_task.py:Double@1f0c9e3b2a44`, has the file's path and a hash of its text and of the modules beside it
that it imports, which tells a changed file from the one that a model was trained with.
"""

import hashlib
import re
import sys
from contextlib import suppress
from functools import lru_cache
from importlib.util import module_from_spec, spec_from_file_location
from modulefinder import ModuleFinder
from pathlib import Path
from types import ModuleType

ENDING = ".py"  # in a task's name, says that it is in a file
NAME = re.compile(r"(?P<file>.+?\.py)(:(?P<wanted>\w+))?(@(?P<known>\w+))?")


def _beside(file: Path) -> dict[str, Path]:
    """The modules in a file's folder that it imports, and those that they import."""
    finder = ModuleFinder([str(file.parent)], excludes=["abcnb"])
    with suppress(SyntaxError):  # reported when it is run
        finder.run_script(str(file))
    return {
        name: Path(m.__file__) for name, m in sorted(finder.modules.items()) if m.__file__ and name != "__main__"
    }


@lru_cache(maxsize=64)
def _run(file: Path, digest: str, beside: tuple[str, ...]) -> ModuleType:
    for name in beside:  # left over from running another version of the file
        sys.modules.pop(name, None)
    spec = spec_from_file_location(f"{file.stem}_{digest}", file)
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(file.parent))  # where it finds the modules beside it
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[spec.name]
        raise ValueError(f"expected {file} to run, got {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(file.parent))
    return module


def in_file(name: str, kind: type) -> tuple[str, type]:
    """The full name of a task in a file, and its class, a subclass of `kind`.

    Raises ValueError if the file is missing, does not run or has changed, or if its class is missing or ambiguous.
    """
    if not (parts := NAME.fullmatch(name)):
        raise ValueError(f"expected a task file, such as my_task.py:Double, got {name!r}")
    file, wanted, known = Path(parts["file"]).expanduser().resolve(), parts["wanted"], parts["known"]
    try:
        beside = _beside(file)
        digest = hashlib.sha256(b"".join(map(Path.read_bytes, (file, *beside.values())))).hexdigest()[:12]
    except OSError as error:
        raise ValueError(f"expected a task file, such as my_task.py:Double, got {name!r}: {error}") from None
    if known and known != digest:
        raise ValueError(
            f"expected {file}, with what it imports from its folder, as it was when the model was trained, with the "
            f"hash {known}, got {digest}: undo the change, or train again"
        )
    module = _run(file, digest, tuple(beside))
    own = {label: value for label, value in vars(module).items() if isinstance(value, type)}
    found = {n: c for n, c in own.items() if issubclass(c, kind) and c.__module__ == module.__name__}
    if wanted not in found and (wanted or len({*found.values()}) != 1):
        names = ", ".join(found) or "none"
        raise ValueError(f"expected one class of a task in {file}, named as in my_task.py:Double, got {names}")
    wanted = wanted or next(iter(found))
    return f"{file}:{wanted}@{digest}", found[wanted]
