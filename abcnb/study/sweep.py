"""Sweeps: a small TOML file that names many experiments.

lengths = [6, 10, 15, 20, 60]        # digits; optional, as is what follows
samples = 10_000                     # of the random test set, a length
hard_samples = 1000                  # of the hard one; 0 leaves it out
results = "development"              # rows go to results/development.csv instead of accuracy.csv, for seeds by which
                                     # something is still chosen; no published table shows them; or "other-tasks"

[[test]]                             # any number of blocks, all optional: a further test set, or further lengths
set = "unequal"                      # random, hard, unequal or padded
lengths = [60]
samples = 1000

[[grid]]                             # any number of blocks; each is a full cross product
tasks = ["successor", "addition"]
methods = ["abs-cpi", "abs"]
seeds = [0, 1, 2]                    # optional: [0]
presets = ["laptop"]                 # optional
overrides = [[], ["model.period=6"]] # optional: variants, each a list of settings as for `fit --set`
"""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from abcnb.study.experiments import Experiment
from abcnb.study.methods import experiment
from abcnb.study.published import LENGTHS
from abcnb.study.results import FILES, TABLES
from abcnb.study.runs import evaluations_of
from abcnb.study.settings import with_settings
from abcnb.tasks.testsets import HARD_SAMPLES, TEST_SETS


@dataclass(frozen=True)
class Sweep:
    """What a sweep runs."""

    experiments: tuple[Experiment, ...]
    lengths: tuple[int, ...]  # of the random and the hard test set, in digits
    tests: tuple[tuple[str, int, int], ...]  # (test set, length, samples) of every evaluation of each
    results: str = TABLES  # the name of the CSV file that takes the scores


def read_sweep(file: Path) -> Sweep:
    """A sweep from its TOML file; what it may not hold is refused by its name and place."""
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"expected a sweep file, got {file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # not TOML, no text, a number of thousands of digits, too deep
        raise ValueError(f"expected TOML in {file}, got: {error}") from None
    _check_keys(content, ("lengths", "samples", "hard_samples", "results", "test", "grid"), str(file))
    content = {
        "lengths": list(LENGTHS),
        "samples": 10_000,
        "hard_samples": HARD_SAMPLES,
        "results": TABLES,
    } | content
    _check_sizes(content, str(file))
    _check(content, "hard_samples", lambda n: _whole_numbers([n], 0), "hard_samples of at least 0", str(file))
    known = f"results among {', '.join(FILES)}"
    _check(content, "results", lambda name: name in FILES, known, str(file))
    tests = evaluations_of(content["lengths"], content["samples"], content["hard_samples"])
    for block, where in _blocks(content, "test", file):
        _check_keys(block, ("set", "lengths", "samples"), where)
        known = f"a set among {', '.join(TEST_SETS)}"
        _check(block, "set", lambda name: isinstance(name, str) and name in TEST_SETS, known, where)
        _check_sizes(block, where)
        tests += [(block["set"], length, block["samples"]) for length in block["lengths"]]
    found: dict[str, Experiment] = {}  # by digest: a model that two blocks ask for is trained and listed once
    for block, where in _blocks(content, "grid", file):
        for wanted in _experiments(block, where):
            found.setdefault(f"{wanted.digest} {wanted.method} {wanted.preset}", wanted)
    if not found:
        raise ValueError(f"expected at least one [[grid]] in {file}")
    return Sweep(tuple(found.values()), tuple(content["lengths"]), tuple(dict.fromkeys(tests)), content["results"])


def _blocks(content: dict, name: str, file: Path) -> list[tuple[dict, str]]:
    """Tables of a name, each with its place for a message."""
    blocks = content.get(name, [])
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise ValueError(f"expected [[{name}]] as tables in {file}, got {blocks!r}")
    return [(block, f"{file} of [[{name}]] number {number}") for number, block in enumerate(blocks, 1)]


def _experiments(block: dict, where: str) -> list[Experiment]:
    _check_keys(block, ("tasks", "methods", "seeds", "presets", "overrides"), where)
    block = {"seeds": [0], "presets": ["laptop"], "overrides": [[]]} | block
    for key in ("tasks", "methods", "presets"):
        _check(block, key, lambda names: bool(names) and _names(names), f"a list of {key}", where)
    _check(block, "seeds", lambda seeds: _whole_numbers(seeds, 0), "seeds as whole numbers", where)
    lists = "overrides as a list of lists"
    _check(block, "overrides", lambda o: isinstance(o, list) and bool(o) and all(map(_names, o)), lists, where)
    names = product(*(block[key] for key in ("seeds", "presets", "methods", "tasks", "overrides")))
    try:
        return [with_settings(experiment(t, m, preset, seed), settings) for seed, preset, m, t, settings in names]
    except ValueError as error:
        raise ValueError(f"{error} (in {where})") from None


def _check(block: dict, key: str, fits: Callable[[Any], bool], expected: str, where: str) -> None:
    if not fits(block.get(key)):
        raise ValueError(f"expected {expected} in {where}, got {block.get(key)!r}")


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
