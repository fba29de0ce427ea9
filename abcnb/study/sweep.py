"""Sweeps: a small TOML file that names many experiments.

results = "development"              # rows go to results/development.csv instead of accuracy.csv, for seeds by which
                                     # something is still chosen; no published table shows them; or "other-tasks"
lengths = [6, 10, 15, 20, 60]        # digits; optional, as is what follows
samples = 10_000                     # of the random test set, a length
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
lengths = [60]                       # optional, as are samples, hard_samples and, behind the block, [[grid.test]]: of
                                     # these experiments, in place of the file's
"""

import tomllib
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from abcnb.study.experiments import Experiment
from abcnb.study.methods import experiment
from abcnb.study.published import LENGTHS
from abcnb.study.results import FILES, TABLES
from abcnb.study.runs import Test, evaluations_of
from abcnb.study.settings import with_settings
from abcnb.tasks.testsets import HARD_SAMPLES, TEST_SETS

TESTED = {"lengths": list(LENGTHS), "samples": 10_000, "hard_samples": HARD_SAMPLES, "test": []}


@dataclass(frozen=True)
class Sweep:
    """What a sweep runs: experiments, each with its evaluations, and the name of the CSV that takes the scores."""

    wanted: dict[Experiment, tuple[Test, ...]]
    results: str = TABLES


def read_sweep(file: Path) -> Sweep:
    """A sweep from its TOML file; what it may not hold is refused by its name and place."""
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"expected a sweep file, got {file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # not TOML, no text, a number of thousands of digits, too deep
        raise ValueError(f"expected TOML in {file}, got: {error}") from None
    _check_keys(content, (*TESTED, "results", "grid"), str(file))
    content = TESTED | {"results": TABLES} | content
    name = content["results"]
    _check(name in FILES, f"results among {', '.join(FILES)}", name, str(file))
    of_all = {name: content[name] for name in TESTED}
    _tests(of_all, str(file))
    found: dict[Experiment, dict[Test, None]] = {}  # a model that two blocks ask for is trained and listed once
    for block, where in _blocks(content, "grid", str(file)):
        _check_keys(block, (*TESTED, "tasks", "methods", "seeds", "presets", "overrides"), where)
        tests = dict.fromkeys(_tests(of_all | block, where))
        for wanted in _experiments(block, where):
            found.setdefault(wanted, {}).update(tests)
    if not found:
        raise ValueError(f"expected at least one [[grid]] in {file}")
    return Sweep({wanted: tuple(tests) for wanted, tests in found.items()}, name)


def _tests(block: dict, where: str) -> list[Test]:
    """The evaluations that a block asks for."""
    _check_sizes(block, where)
    hard = block["hard_samples"]
    _check(_whole_numbers([hard], 0), "hard_samples of at least 0", hard, where)
    tests = evaluations_of(block["lengths"], block["samples"], hard)
    for further, place in _blocks(block, "test", where):
        _check_keys(further, ("set", "lengths", "samples"), place)
        name = further.get("set")
        _check(name in list(TEST_SETS), f"a set among {', '.join(TEST_SETS)}", name, place)
        _check_sizes(further, place)
        tests += [(name, length, further["samples"]) for length in further["lengths"]]
    return tests


def _blocks(content: dict, name: str, where: str) -> list[tuple[dict, str]]:
    """Tables of a name, each with its place for a message."""
    blocks = content.get(name, [])
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise ValueError(f"expected [[{name}]] as tables in {where}, got {blocks!r}")
    return [(block, f"{where} of [[{name}]] number {number}") for number, block in enumerate(blocks, 1)]


def _experiments(block: dict, where: str) -> list[Experiment]:
    block = {"seeds": [0], "presets": ["laptop"], "overrides": [[]]} | block
    for key in ("tasks", "methods", "presets"):
        names = block.get(key)
        _check(bool(names) and _names(names), f"a list of {key}", names, where)
    seeds, overrides = block["seeds"], block["overrides"]
    _check(_whole_numbers(seeds, 0), "seeds as whole numbers", seeds, where)
    fits = isinstance(overrides, list) and bool(overrides) and all(map(_names, overrides))
    _check(fits, "overrides as a list of lists", overrides, where)
    names = product(*(block[key] for key in ("seeds", "presets", "methods", "tasks", "overrides")))
    try:
        return [with_settings(experiment(t, m, preset, seed), settings) for seed, preset, m, t, settings in names]
    except ValueError as error:
        raise ValueError(f"{error} (in {where})") from None


def _check(fits: bool, expected: str, got: Any, where: str) -> None:
    if not fits:
        raise ValueError(f"expected {expected} in {where}, got {got!r}")


def _check_sizes(block: dict, where: str) -> None:
    lengths, samples = block.get("lengths"), block.get("samples")
    if not _whole_numbers(lengths, 1) or not _whole_numbers([samples], 1):
        raise ValueError(f"expected lengths and samples of at least 1 in {where}, got {lengths!r} and {samples!r}")


def _check_keys(content: dict, allowed: tuple[str, ...], where: str) -> None:
    if unknown := sorted(set(content) - set(allowed)):
        raise ValueError(f"expected keys among {', '.join(sorted(allowed))} in {where}, got {unknown[0]!r}")


def _names(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _whole_numbers(values: object, least: int) -> bool:
    return isinstance(values, list) and bool(values) and all(type(v) is int and v >= least for v in values)
