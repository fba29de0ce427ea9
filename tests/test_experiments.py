import copy
import json
from dataclasses import asdict, fields, is_dataclass, replace

import pytest
import torch
from abcnb.layout import natural_layout

from abcnb.biases import ALiBi
from abcnb.calibration import CalibrationConfig
from abcnb.study.experiments import Experiment, from_dict
from abcnb.study.methods import METHODS, PRESETS, experiment, has, settings_of
from abcnb.study.runs import Run, check_lengths, written_biases
from abcnb.study.settings import with_settings
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
        bool: lambda: not value, int: lambda: value + 1, float: lambda: max(value, -9.0) + 0.125,
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


def test_equal_configurations_are_written_alike():
    whole, fraction = (CalibrationConfig(kappa_cross=kappa) for kappa in (3, 3.0))
    assert json.dumps(asdict(whole)) == json.dumps(asdict(fraction))
    window = experiment("successor", "abs-place", "laptop", 0)
    assert replace(window, closed=-20).digest == replace(window, closed=-20.0).digest


@pytest.mark.parametrize("strange", [{"seed": "0"}, {"seed": True}, {"width": "7"}, {"closed": "-2"}])
def test_a_value_of_another_type_is_refused(strange):
    with pytest.raises(ValueError, match=f"expected {next(iter(strange))} as"):
        replace(SMOKE, **strange)


def test_the_digest_is_the_same_in_every_process():
    assert SMOKE.digest == from_dict(Experiment, json.loads(json.dumps(asdict(SMOKE)))).digest
    assert len(SMOKE.digest) == 12 and int(SMOKE.digest, 16) >= 0


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
        ({}, "expected the keys of Experiment"),
        ({"task": "successor"}, "expected the keys of Experiment"),
        (asdict(SMOKE) | {"model": {"size": 3}}, "got 'size'"),
    ],
)
def test_from_dict_names_what_is_wrong(content, told):
    with pytest.raises(ValueError, match=told):
        from_dict(Experiment, content)


@pytest.mark.parametrize(
    "wrong, told",
    [
        ({"bias": "lines"}, "got 'lines'"),
        ({"train_numbers": "odd"}, "got 'odd'"),
        ({"bias": "calibrated"}, "calibrat"),
        ({"form": "aligned"}, "aligned"),
        ({"task": "sum"}, "got 'sum'"),
    ],
)
def test_experiments_that_make_no_sense_are_refused(wrong, told):
    with pytest.raises(ValueError, match=told):
        replace(SMOKE, **wrong)


@pytest.mark.parametrize(
    "settings",
    [
        ["biased=self"],
        ["closed=-10.0"],
        ["biased_layers=0"],
        ["model.encoder_layers=1"],
        ["model.position=rotary", "model.random_phase=false"],
    ],
)
def test_a_length_that_needs_the_whole_matrix_is_refused_before_training(settings, small_machine):
    frozen = experiment("successor", "abs-place", "smoke")
    check_lengths(frozen, [200_000], 1)
    with pytest.raises(ValueError, match=r"attention over 200,00\d tokens"):
        check_lengths(with_settings(frozen, settings), [200_000], 1)


def test_an_encoder_decoder_is_not_calibrated_on_several_widths():
    calibrated = experiment("addition", "abc-places", "smoke")
    with pytest.raises(ValueError, match=r"expected interpolation\.train_numbers of one width"):
        with_settings(calibrated, ["interpolation.train_numbers=bucketed"])
    with_settings(experiment("addition", "abc-places", "decoder-only"), ["interpolation.train_numbers=bucketed"])


# --- distances in cross-attention


@pytest.mark.parametrize(
    "method, settings",
    [
        (method, [f"model.{name}"])
        for method in ("rpe", "t5", "kerple", "fire")
        for name in ("cross_distance=right", "cross_distance=places")
    ]
    + [(method, ["model.own_bias_per_layer=true"]) for method in ("t5", "kerple", "fire")]
    + [("alibi-cross", [f"bias={name}"]) for name in ("alibi-right", "alibi-places")]
    + [("rpe", ["model.relative_clip=24"]), ("randomized", ["model.encoder_layers=1"])],
)
def test_a_distance_is_a_setting_with_a_digest_of_its_own(method, settings):
    wanted = experiment("addition", method)
    changed = with_settings(wanted, settings)
    assert changed.digest != wanted.digest
    assert settings_of(changed).lower() == settings[0]
    assert from_dict(Experiment, json.loads(json.dumps(asdict(changed)))) == changed


def test_a_distance_that_is_the_default_leaves_the_digest():
    for method, settings in (
        ("rpe", ["model.cross_distance=left"]),
        ("t5", ["model.cross_distance=left", "model.own_bias_per_layer=false"]),
        ("alibi-cross", ["bias=alibi-cross"]),
    ):
        wanted = experiment("addition", method)
        assert with_settings(wanted, settings).digest == wanted.digest


def test_the_digests_of_before_there_were_distances():
    known = {
        "alibi-cross": "1e19c90e3071",
        "rpe": "9f202aaaad1b",
        "t5": "9ced66daa794",
        "kerple": "0acc546524ad",
        "fire": "e423fd4ee6f1",
        "abc-places": "5cd1db9831b3",
    }
    assert {method: experiment("addition", method).digest for method in known} == known


@pytest.mark.parametrize(
    "bias, cross_distance", [("alibi-cross", "left"), ("alibi-right", "right"), ("alibi-places", "places")]
)
def test_alibi_over_the_source_takes_the_distance_that_it_is_named_after(bias, cross_distance):
    wanted = with_settings(experiment("addition", "alibi-cross"), [f"bias={bias}"])
    (of_steps,), (of_source,) = written_biases(wanted)
    rows, layout = torch.arange(4), natural_layout(3)
    assert torch.equal(of_source(rows, layout), ALiBi(wanted.model.heads, cross_distance)(rows, layout))
    assert of_steps.cross_distance == "left"


# --- biases in a part of the decoder


@pytest.mark.parametrize(
    "method, setting, message",
    [
        ("abs-place", "biased=none", "expected biased as self, cross or both, got 'none'"),
        ("abs-place", "biased_layers=2", "expected biased_layers among 0 to 1, got"),
        ("abs-place", "closed=0", "expected a bias of closed cells below 0, got 0.0"),
        ("vanilla", "biased=self", "are for experiments with a bias"),
        ("alibi", "biased=cross", "expected biased as self or both, .*got cross"),
        ("alibi-cross", "closed=-2", "closed is for biases that close cells, .*got bias 'alibi-cross'"),
    ],
)
def test_a_part_of_the_decoder_that_cannot_be_biased_is_refused(method, setting, message):
    with pytest.raises(ValueError, match=message):
        with_settings(experiment("addition", method), [setting])


def test_a_run_has_its_biases_in_the_part_that_its_experiment_says(tmp_path):
    wanted = with_settings(experiment("addition", "abs-place"), ["biased=cross", "biased_layers=1", "closed=-4"])
    assert wanted.digest != experiment("addition", "abs-place").digest
    selves, crosses = Run(tmp_path, wanted).biases()
    first, second = (bias(torch.arange(4), natural_layout(3)).unique().tolist() for bias in crosses)
    assert (selves, first, second) == ((), [0], [-4, 0])
