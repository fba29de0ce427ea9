"""Sweeps: a small TOML file that names many experiments.

lengths = [6, 10, 15, 20, 60]        # digits; optional, as is what follows
samples = 10_000                     # of the random test set, a length
hard_samples = 1000                  # of the hard one; 0 leaves it out
results = "development"              # rows go to results/development.csv instead of accuracy.csv, for seeds by which
                                     # something is still chosen; no published table shows them

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
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from abcnb.study.experiments import Experiment
from abcnb.study.methods import experiment
from abcnb.study.published import LENGTHS
from abcnb.study.results import DEVELOPMENT, TABLES
from abcnb.study.runs import evaluations_of
from abcnb.study.settings import with_settings
from abcnb.testsets import HARD_SAMPLES, TEST_SETS

_TOP = {"lengths", "samples", "hard_samples", "results", "test", "grid"}
_TEST = {"set", "lengths", "samples"}
_GRID = {"tasks", "methods", "seeds", "presets", "overrides"}


@dataclass(frozen=True)
class Sweep:
    """What a sweep runs.

    Attributes:
        experiments: in order.
        lengths: of the random and the hard test set, in digits.
        tests: (test set, length, samples) of every evaluation of each.
        results: the name of the CSV file that takes the scores, `accuracy` or `development`.
    """

    experiments: tuple[Experiment, ...]
    lengths: tuple[int, ...]
    tests: tuple[tuple[str, int, int], ...]
    results: str = TABLES


def read_sweep(file: Path) -> Sweep:
    """A sweep from its TOML file.

    Raises:
        ValueError: no such file, not TOML, an unknown or missing key, or a value that no experiment can have.
    """
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"expected a sweep file, got {file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # not TOML, no text, a number of thousands of digits, too deep
        raise ValueError(f"expected TOML in {file}, got: {error}") from None
    _check_keys(content, _TOP, file, "")
    lengths, samples = content.get("lengths", list(LENGTHS)), content.get("samples", 10_000)
    if not _whole_numbers(lengths, 1) or not _whole_numbers([samples], 1):
        raise ValueError(f"expected lengths and samples of at least 1 in {file}, got {lengths} and {samples}")
    hard_samples = content.get("hard_samples", HARD_SAMPLES)
    if not _whole_numbers([hard_samples], 0):
        raise ValueError(f"expected hard_samples of at least 0 in {file}, got {hard_samples}")
    tests = evaluations_of(lengths, samples, hard_samples)
    for number, block in enumerate(_blocks(content, "test", file), 1):
        tests += _tests(block, file, f" of [[test]] number {number}")
    results = content.get("results", TABLES)
    if results not in (TABLES, DEVELOPMENT):
        raise ValueError(f"expected results = {TABLES!r} or {DEVELOPMENT!r} in {file}, got {results!r}")
    if not content.get("grid"):
        raise ValueError(f"expected at least one [[grid]] in {file}")
    found: dict[str, Experiment] = {}  # by digest: a model that two blocks ask for is trained and listed once
    for number, block in enumerate(_blocks(content, "grid", file), 1):
        for wanted in _experiments(block, file, f" of [[grid]] number {number}"):
            found.setdefault(f"{wanted.digest} {wanted.method} {wanted.preset}", wanted)
    return Sweep(tuple(found.values()), tuple(lengths), tuple(dict.fromkeys(tests)), results)


def _blocks(content: dict, name: str, file: Path) -> list[dict]:
    blocks = content.get(name, [])
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise ValueError(f"expected [[{name}]] as tables in {file}, got {blocks!r}")
    return blocks


def _tests(block: dict, file: Path, where: str) -> list[tuple[str, int, int]]:
    _check_keys(block, _TEST, file, where)
    name, lengths, samples = (block.get(key) for key in ("set", "lengths", "samples"))
    if not isinstance(name, str) or name not in TEST_SETS:
        raise ValueError(f"expected a set among {', '.join(TEST_SETS)} in {file}{where}, got {name!r}")
    if not _whole_numbers(lengths, 1) or not _whole_numbers([samples], 1):
        raise ValueError(
            f"expected lengths and samples of at least 1 in {file}{where}, got {lengths!r} and {samples!r}"
        )
    return [(name, length, samples) for length in lengths]


def _experiments(block: dict, file: Path, where: str) -> list[Experiment]:
    _check_keys(block, _GRID, file, where)
    block = {"seeds": [0], "presets": ["laptop"], "overrides": [[]]} | block
    for key in ("tasks", "methods", "presets"):
        if not block.get(key) or not _names(block[key]):
            raise ValueError(f"expected a list of {key} in {file}{where}, got {block.get(key)!r}")
    seeds, overrides = block["seeds"], block["overrides"]
    if not _whole_numbers(seeds, 0):
        raise ValueError(f"expected seeds as whole numbers in {file}{where}, got {seeds!r}")
    if not isinstance(overrides, list) or not overrides or not all(map(_names, overrides)):
        raise ValueError(f"expected overrides as a list of lists in {file}{where}, got {overrides!r}")
    names = product(seeds, block["presets"], block["methods"], block["tasks"], overrides)
    try:
        return [with_settings(experiment(t, m, preset, seed), settings) for seed, preset, m, t, settings in names]
    except ValueError as error:
        raise ValueError(f"{error} (in {file}{where})") from None


def _check_keys(content: dict, allowed: set[str], file: Path, where: str) -> None:
    unknown = sorted(set(content) - allowed)
    if unknown:
        raise ValueError(f"expected keys among {', '.join(sorted(allowed))} in {file}{where}, got {unknown[0]!r}")


def _names(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _whole_numbers(values: object, least: int) -> bool:
    return isinstance(values, list) and bool(values) and all(type(v) is int and v >= least for v in values)
