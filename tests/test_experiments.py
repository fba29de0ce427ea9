import copy
import json
from dataclasses import asdict, fields, is_dataclass, replace

import pytest

from abcnb.study.experiments import Experiment, from_dict
from abcnb.study.methods import METHODS, PRESETS, experiment
from abcnb.tasks import TASKS

SMOKE = experiment("successor", "vanilla", "smoke")


# --- digest


def leaves(config, path=()):
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            yield from leaves(value, (*path, field.name))
        else:
            yield (*path, field.name)


def changed(experiment, path):
    """A copy with one value changed, past all checks."""
    result = copy.deepcopy(experiment)
    owner = result
    for name in path[:-1]:
        owner = getattr(owner, name)
    value = getattr(owner, path[-1])
    other = {
        bool: lambda: not value, int: lambda: value + 1, float: lambda: value + 0.125,
        str: lambda: value + "x", tuple: lambda: (*value, 2), type(None): lambda: {"method": "something"},
    }[type(value)]()  # fmt: skip
    object.__setattr__(owner, path[-1], other)
    return result


@pytest.mark.parametrize("method", ["abc-places", "abs-place", "vanilla"])
def test_the_digest_ignores_the_labels_but_nothing_else(method):
    wanted = experiment("addition", method, "smoke")
    paths = list(leaves(wanted))
    assert len(paths) > 20
    for path in paths:
        same = changed(wanted, path).digest == wanted.digest
        assert same == (path[-1] in ("method", "preset")), ".".join(path)


def test_the_digest_is_the_same_in_every_process():
    assert SMOKE.digest == from_dict(Experiment, json.loads(json.dumps(asdict(SMOKE)))).digest
    assert len(SMOKE.digest) == 12 and int(SMOKE.digest, 16) >= 0


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("task", TASKS)
def test_every_experiment_survives_json(task, preset):
    for method in METHODS:
        wanted = experiment(task, method, preset, 3)
        again = from_dict(Experiment, json.loads(json.dumps(asdict(wanted))))
        assert again == wanted and again.digest == wanted.digest


@pytest.mark.parametrize(
    "content, told",
    [
        ({"tusk": 1}, "got 'tusk'"),
        ({}, "expected the keys of Experiment"),
        ({"task": "successor"}, "expected the keys of Experiment"),
        (asdict(SMOKE) | {"model": {"size": 3}}, "got 'size'"),
    ],
)
def test_from_dict_names_what_is_wrong(content, told):
    with pytest.raises(ValueError, match=told):
        from_dict(Experiment, content)


@pytest.mark.parametrize(
    "wrong",
    [{"bias": "lines"}, {"train_numbers": "odd"}, {"bias": "calibrated"}, {"form": "aligned"}, {"task": "sum"}],
)
def test_experiments_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError):
        replace(SMOKE, **wrong)
