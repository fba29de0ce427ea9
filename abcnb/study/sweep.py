"""Sweeps: a small TOML file that names many experiments.

lengths = [6, 10, 15, 20, 60]        # digits; optional, as is what follows
samples = 10_000                     # of the random test set, a length
hard_samples = 1000                 # of the hard one; 0 leaves it out

[[grid]]                             # any number of blocks; each is a full cross product
tasks = ["successor", "addition"]
methods = ["abs-cpi", "abs-place"]
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
from abcnb.study.settings import with_settings
from abcnb.testsets import HARD_SAMPLES

_TOP = {"lengths", "samples", "hard_samples", "grid"}
_GRID = {"tasks", "methods", "seeds", "presets", "overrides"}


@dataclass(frozen=True)
class Sweep:
    """What a sweep runs: experiments in order, test lengths in digits, samples per length of either test set."""

    experiments: tuple[Experiment, ...]
    lengths: tuple[int, ...]
    samples: int
    hard_samples: int


def read_sweep(file: Path, preset: str = "") -> Sweep:
    """A sweep from its TOML file.

    Args:
        file: the specification.
        preset: run it at this one instead of those it names.

    Raises:
        ValueError: not TOML, an unknown or missing key, or a value that no experiment can have; says which.
    """
    try:
        content = tomllib.loads(file.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"expected TOML in {file}, got: {error}") from None
    _check_keys(content, _TOP, file, "")
    lengths, samples = content.get("lengths", list(LENGTHS)), content.get("samples", 10_000)
    if not _whole_numbers(lengths, 1) or not _whole_numbers([samples], 1):
        raise ValueError(f"expected lengths and samples of at least 1 in {file}, got {lengths} and {samples}")
    hard_samples = content.get("hard_samples", HARD_SAMPLES)
    if not _whole_numbers([hard_samples], 0):
        raise ValueError(f"expected hard_samples of at least 0 in {file}, got {hard_samples}")
    if not isinstance(content.get("grid"), list) or not content["grid"]:
        raise ValueError(f"expected at least one [[grid]] in {file}")
    found: dict[str, Experiment] = {}  # by digest: a model that two blocks ask for is trained and listed once
    for number, block in enumerate(content["grid"], 1):
        if not isinstance(block, dict):
            raise ValueError(f"expected [[grid]] as tables in {file}, got {block!r}")
        block = block | ({"presets": [preset]} if preset else {})
        for wanted in _experiments(block, file, f" of [[grid]] number {number}"):
            found.setdefault(f"{wanted.digest} {wanted.method} {wanted.preset}", wanted)
    return Sweep(tuple(found.values()), tuple(lengths), samples, hard_samples)


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
