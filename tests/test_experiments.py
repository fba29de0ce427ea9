import copy
import json
from dataclasses import asdict, fields, is_dataclass, replace

import pytest
import torch

from abcnb.rivals.distances import ALiBi
from abcnb.study.experiments import Experiment, from_dict
from abcnb.study.methods import METHODS, PRESETS, experiment, has
from abcnb.study.runs import check_lengths, written_biases
from abcnb.study.settings import with_settings
from abcnb.tasks.task import TASKS

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
        bool: lambda: not value, int: lambda: value + 1, float: lambda: max(value, -9.0) + 0.125,
        str: lambda: value + "x", tuple: lambda: (*value, 2), type(None): lambda: {"method": "something"},
    }[type(value)]()  # fmt: skip
    object.__setattr__(owner, path[-1], other)
    return result


@pytest.mark.parametrize("method", ["abc", "abc-paper", "abs-cpi", "lora"])
def test_the_digest_ignores_the_labels_but_nothing_else(method):
    wanted = experiment("addition", method, "smoke")
    paths = list(leaves(wanted))
    assert len(paths) > 20
    for path in paths:
        same = changed(wanted, path).digest == wanted.digest
        assert same == (path[-1] in ("method", "preset")), ".".join(path)


def test_equal_configurations_are_written_alike():
    training = replace(experiment("successor", "abs").training, clip=1)
    assert training == replace(training, clip=1.0) and type(training.clip) is float


@pytest.mark.parametrize("strange", [{"seed": "0"}, {"seed": True}, {"width": "7"}, {"tau": "0.2"}])
def test_a_value_of_another_type_is_refused(strange):
    with pytest.raises(ValueError, match=f"expected {next(iter(strange))} as"):
        replace(SMOKE, **strange)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("task", TASKS)
def test_every_experiment_survives_json(task, preset):
    for method in METHODS:
        if not has(task, method, preset):
            continue
        wanted = experiment(task, method, preset, 3)
        again = from_dict(Experiment, json.loads(json.dumps(asdict(wanted))))
        assert again == wanted and again.digest == wanted.digest


@pytest.mark.parametrize(
    "content, told",
    [
        ({"tusk": 1}, "got 'tusk'"),
        (asdict(SMOKE) | {"calibration": {"kappa_cross": 1}}, "got 'calibration'"),
        ({}, "expected the keys of Experiment"),
        ({"task": "successor"}, "expected the keys of Experiment"),
        (asdict(SMOKE) | {"model": {"size": 3}}, "got 'size'"),
    ],
)
def test_from_dict_names_what_is_wrong(content, told):
    with pytest.raises(ValueError, match=told):
        from_dict(Experiment, content)


# --- what cannot be


@pytest.mark.parametrize(
    "wrong, told",
    [
        ({"bias": "lines"}, "got 'lines'"),
        ({"train_numbers": "odd"}, "got 'odd'"),
        ({"bias": "calibrated"}, "an interpolation is given exactly where"),
        ({"bias": "window"}, "window is given exactly where"),
        ({"form": "aligned"}, "aligned"),
        ({"task": "sum"}, "got 'sum'"),
        ({"tau": 0.3}, "expected tau between 0 and 1, and 0.1 unless the bias is 'calibrated', got 0.3"),
        ({"look_once": True}, "expected look_once of a model with lines alone, got it with bias 'none'"),
        ({"task": "multiplication"}, "expected a decoder-only model for multiplication"),
    ],
)
def test_experiments_that_make_no_sense_are_refused(wrong, told):
    with pytest.raises(ValueError, match=told):
        replace(SMOKE, **wrong)


@pytest.mark.parametrize(
    "names, setting, told",
    [
        (("addition", "lora"), "bias=by-hand", "expected bias none of a model with adapters, got 'by-hand'"),
        (("addition", "abc-paper"), "interpolation.train_numbers=bucketed", "train_numbers of one width"),
        (
            ("multiplication", "abs"),
            "bias=window",
            "expected a bias among none, own-token, alibi, by-hand, calibr",
        ),
        (("addition", "alibi", "decoder-only"), "bias=alibi-places", "in decoder-only models, got 'alibi-places'"),
        (("multiplication", "vanilla"), "width=7", "expected a width from 1 to 6"),
    ],
)
def test_settings_that_cannot_be_are_refused(names, setting, told):
    with pytest.raises(ValueError, match=told):
        with_settings(experiment(*names), [setting])


@pytest.mark.parametrize("settings", [["model.encoder_layers=1"], ["model.position=rotary"]])
def test_a_length_that_needs_the_whole_matrix_is_refused_before_training(settings, small_machine):
    frozen = experiment("successor", "abs", "smoke")
    check_lengths(frozen, [200_000], 1)
    with pytest.raises(ValueError, match=r"attention over 200,00\d tokens"):
        check_lengths(with_settings(frozen, settings), [200_000], 1)


def test_lengths_beyond_a_schemes_positions_are_refused_before_training():
    abacus = experiment("addition", "abacus", "smoke")
    check_lengths(abacus, [100], 1)
    with pytest.raises(ValueError, match="at most 128 positions, got 201"):
        check_lengths(abacus, [100, 200], 1)


# --- distances in cross-attention


@pytest.mark.parametrize("bias, cross_distance", [("alibi-cross", "left"), ("alibi-places", "places")])
def test_alibi_over_the_source_takes_the_distance_that_it_is_named_after(bias, cross_distance):
    wanted = with_settings(experiment("addition", "alibi-cross"), [f"bias={bias}"])
    (of_steps,), (of_source,) = written_biases(wanted)
    rows, columns = torch.arange(4), wanted.get_task().stream(3).columns(crossing=True)
    assert torch.equal(of_source(rows, columns), ALiBi(wanted.model.heads, cross_distance)(rows, columns))
    assert of_steps.cross_distance == "left"
