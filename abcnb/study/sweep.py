"""Sweeps: a small TOML file that names many experiments.

results = "development"              # rows go to results/development.csv, not accuracy.csv: for seeds on which
                                     # choices are still made, in no published table; or "other-tasks"
lengths = [6, 10, 15, 20, 60]        # digits; optional, as is what follows
samples = 10_000                     # of the random test set, per length
hard_samples = 1000                  # of the hard one; 0 leaves it out

[[test]]                             # any number of blocks: a further test set, or further lengths
set = "unequal"                      # random, hard, unequal or padded
lengths = [60]
samples = 1000

[[grid]]                             # any number of blocks; each is a full cross product
tasks = ["successor", "addition"]
methods = ["abs-cpi", "abs"]
seeds = [0, 1, 2]                    # optional: [0]
presets = ["laptop"]                 # optional
overrides = [[], ["model.period=6"]] # optional: variants, each a list of settings as for `fit --set`
lengths = [60]                       # optional, as are samples, hard_samples and, after the block, [[grid.test]]:
                                     # for these experiments, in place of the file's
"""

import tomllib
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from abcnb.study.experiments import Experiment
from abcnb.study.methods import experiment
from abcnb.study.published import LENGTHS
from abcnb.study.results import FILES, TABLES
from abcnb.study.runs import Test, evaluations_of
from abcnb.study.settings import with_settings
from abcnb.tasks.testsets import HARD_SAMPLES, TEST_SETS

TESTED = {"lengths": list(LENGTHS), "samples": 10_000, "hard_samples": HARD_SAMPLES, "test": []}
GRID = {"tasks": None, "methods": None, "seeds": [0], "presets": ["laptop"], "overrides": [[]]}


def read_sweep(file: Path) -> tuple[dict[Experiment, tuple[Test, ...]], str]:
    """The experiments of a sweep file, each with its evaluations, and the name of the CSV for the scores.

    A ValueError names what the file may not hold, and where it is.
    """
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ValueError(f"expected a sweep file, got {file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # not TOML, not text, a number of thousands of digits, too deep
        raise ValueError(f"expected TOML in {file}, got: {error}") from None
    content = _checked(content, TESTED | {"results": TABLES, "grid": []}, str(file))
    of_all = {name: content[name] for name in TESTED}
    _tests(of_all, str(file))
    found: dict[Experiment, dict[Test, None]] = {}  # a model that two blocks ask for is trained and listed once
    for block, where in _blocks(content, "grid", of_all | GRID, str(file)):
        tests = dict.fromkeys(_tests(block, where))
        names = product(*(block[key] for key in ("seeds", "presets", "methods", "tasks", "overrides")))
        try:
            for seed, preset, method, task, settings in names:
                found.setdefault(with_settings(experiment(task, method, preset, seed), settings), {}).update(tests)
        except ValueError as error:
            raise ValueError(f"{error} (in {where})") from None
    if not found:
        raise ValueError(f"expected at least one [[grid]] in {file}")
    return {wanted: tuple(tests) for wanted, tests in found.items()}, content["results"]


def _tests(block: dict, where: str) -> list[Test]:
    """The evaluations that a block asks for."""
    tests = evaluations_of(block["lengths"], block["samples"], block["hard_samples"])
    for further, _ in _blocks(block, "test", dict.fromkeys(("set", "lengths", "samples")), where):
        tests += [(further["set"], length, further["samples"]) for length in further["lengths"]]
    return tests


def _blocks(content: dict, name: str, defaults: dict, where: str) -> Iterator[tuple[dict, str]]:
    """The tables of a name, `_checked`, each with its place for error messages."""
    blocks = content[name]
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise ValueError(f"expected [[{name}]] as tables in {where}, got {blocks!r}")
    for number, block in enumerate(blocks, 1):
        place = f"{where} of [[{name}]] number {number}"
        yield _checked(block, defaults, place), place


def _whole_numbers(values: object, least: int) -> bool:
    return isinstance(values, list) and bool(values) and all(type(v) is int and v >= least for v in values)


def _texts(values: object, least: int = 1) -> bool:
    return isinstance(values, list) and len(values) >= least and all(isinstance(value, str) for value in values)


# What a key's value must be, in words and as a check.
KINDS = {
    "tasks": ("a list of tasks", _texts),
    "methods": ("a list of methods", _texts),
    "presets": ("a list of presets", _texts),
    "seeds": ("seeds as whole numbers", lambda seeds: _whole_numbers(seeds, 0)),
    "overrides": (
        "overrides as a list of lists",
        lambda of: isinstance(of, list) and of and all(_texts(v, 0) for v in of),
    ),
    "hard_samples": ("hard_samples of at least 0", lambda size: _whole_numbers([size], 0)),
    "set": (f"a set among {', '.join(TEST_SETS)}", lambda name: name in list(TEST_SETS)),
    "results": (f"results among {', '.join(FILES)}", lambda name: name in FILES),
}


def _checked(content: dict, defaults: dict, where: str) -> dict:
    """A table with defaults for what it leaves out; ValueError for other keys or values of another kind."""
    if unknown := sorted(set(content) - set(defaults)):
        raise ValueError(f"expected keys among {', '.join(sorted(defaults))} in {where}, got {unknown[0]!r}")
    content = defaults | content
    for key, (expected, fits) in KINDS.items():
        if key in content and not fits(content[key]):
            raise ValueError(f"expected {expected} in {where}, got {content[key]!r}")
    lengths, samples = content["lengths"], content["samples"]
    if not _whole_numbers(lengths, 1) or not _whole_numbers([samples], 1):
        raise ValueError(f"expected lengths and samples of at least 1 in {where}, got {lengths!r} and {samples!r}")
    return content
