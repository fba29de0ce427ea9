from dataclasses import replace

import pytest
import torch

from abcnb.biases import NO_BIASES
from abcnb.study.methods import METHODS, PRESETS, experiment, has, settings_of
from abcnb.study.runs import new_model, written_biases
from abcnb.study.settings import with_settings
from abcnb.study.stream_methods import SETTINGS, methods_of
from abcnb.tasks import TASKS
from abcnb.tokens import decode
from tests.little import BY_ITSELF, ONE_ROW

DECIMAL = {"successor", "addition", "n-by-1", "listops-sm", "listops-max", "listops-min"}


# Presets of encoder-decoder models, which learn tasks whose output is one number.
ENCODER_DECODERS = ["smoke", "laptop", "paper"]
EXPERIMENTS = [(t, m, p) for t in TASKS for m in METHODS for p in PRESETS if has(t, m, p)]


@pytest.mark.parametrize("task, method, preset", EXPERIMENTS)
def test_every_method_builds_on_every_task(task, method, preset):
    wanted = experiment(task, method, preset, 2)
    assert (wanted.task, wanted.method, wanted.preset, wanted.seed) == (task, method, preset, 2)
    known = methods_of(task, preset) if wanted.in_one_stream else METHODS
    plain = SETTINGS[task].plain_bias if task in SETTINGS and method == "vanilla" else {}
    assert wanted.model.position == known[method].position
    assert wanted.bias == plain.get("bias", known[method].bias)
    batch = wanted.data().train(2, torch.Generator().manual_seed(0))
    if preset != "paper" and wanted.bias != "calibrated":
        logits = new_model(wanted, written_biases(wanted))(batch)
        task = wanted.get_task()
        tokens = task.stream_vocabulary_size if wanted.in_one_stream else task.vocabulary_size
        assert logits.shape == (*batch.target.shape, tokens)
        assert torch.isfinite(logits).all()


def operands_written_in(batch, wanted):
    """The numbers of a source, read back from its characters."""
    task = wanted.get_task()
    for row in batch.source:
        text = decode(row).strip("$&")
        if wanted.form == "aligned":
            digits = text.removeprefix(task.symbol)
            parts = [digits[0::2], digits[1::2]]
            parts = parts if task.name != "n-by-1" else [parts[0], parts[1][-1]]
        elif task.operands == 2:
            parts = text.split(task.symbol)
        else:
            parts = [text.removeprefix(task.symbol)]
        yield [int(part, task.base) for part in parts]


@pytest.mark.parametrize("preset", ENCODER_DECODERS)
@pytest.mark.parametrize("method", ["vanilla", "abs-place", "abc-columns"])
@pytest.mark.parametrize("task", BY_ITSELF)
def test_no_number_beyond_two_to_the_twentieth_is_trained_on(task, method, preset):
    wanted = experiment(task, method, preset)
    batch = wanted.data().train(400, torch.Generator().manual_seed(1))
    numbers = [number for row in operands_written_in(batch, wanted) for number in row]
    assert min(numbers) >= 0 and max(numbers) <= 2**20
    assert max(numbers) >= (100_000 if task in DECIMAL else 2**18), "long numbers are seen"


@pytest.mark.parametrize("task", ["addition", "n-by-1"])
@pytest.mark.parametrize("preset", ENCODER_DECODERS)
def test_abs_is_aligned_and_abc_is_not(task, preset):
    for method in METHODS:
        wanted = experiment(task, method, preset)
        assert wanted.form == ("aligned" if method.startswith("abs-") else "natural")
        if method.startswith("abc-"):
            assert wanted.interpolation.form == "natural"


@pytest.mark.parametrize("preset", ENCODER_DECODERS)
@pytest.mark.parametrize("task", ONE_ROW)
def test_abc_calibrates_the_vanilla_model_which_is_trained_once(task, preset):
    for seed in (0, 2):
        vanilla = experiment(task, "vanilla", preset, seed)
        for method in ("abc-places", "abc-columns"):
            wanted = experiment(task, method, preset, seed)
            padded = (task, method, preset) == ("addition", "abc-columns", "laptop")  # to the test width, 21
            assert (wanted.interpolation.digest == vanilla.digest) != padded
            assert wanted.digest != vanilla.digest
            assert wanted.train_width == wanted.interpolation.train_width


def test_no_two_methods_are_the_same_experiment():
    for task in TASKS:
        for preset in PRESETS:
            methods = [method for method in METHODS if has(task, method, preset)]
            assert len({experiment(task, method, preset).digest for method in methods}) == len(methods)


@pytest.mark.parametrize(
    "arguments, told",
    [
        (("sums", "vanilla"), "expected a task among successor, .*, got 'sums'"),
        (("addition", "gpt"), "expected a method among vanilla, .*, got 'gpt'"),
        (
            ("addition", "vanilla", "desktop"),
            "expected a preset among smoke, laptop, paper, decoder-only, got 'desktop'",
        ),
        (("addition", "vanilla", "smoke", -1), "expected a seed of at least 0, got -1"),
        (("multiplication", "rpe"), "a method among vanilla, .* for multiplication at laptop, got 'rpe'"),
        (("multiplication", "vanilla", "paper"), "preset smoke or laptop for multiplication, got 'paper'"),
        (("addition", "abs-cpi", "decoder-only"), "for addition at decoder-only, got 'abs-cpi'"),
    ],
)
def test_unknown_names_are_listed(arguments, told):
    with pytest.raises(ValueError, match=told):
        experiment(*arguments)


def test_the_paper_preset_has_the_published_sizes():
    for method in METHODS:
        wanted = experiment("addition", method, "paper")
        assert wanted.model.d_model == (512 if method in ("rope", "rope-pi") else 128)
        assert (wanted.model.decoder_layers, wanted.model.heads, wanted.model.dropout) == (6, 8, 0.3)
        assert wanted.train_numbers == ("long" if method == "lora-long" else "uniform")
        assert wanted.train_width == 61
    assert experiment("parity", "vanilla", "paper").train_width == 201  # 10^60 − 1 has 200 bits


def test_settings_say_what_differs_and_can_be_applied_again():
    frozen = experiment("addition", "abc-places", "laptop", 1)
    assert settings_of(frozen) == ""
    settings = ["training.steps=7", "calibration.directions_cross=-1,0,1", "base=4"]
    changed = with_settings(frozen, settings)
    told = settings_of(changed).split(" ")
    assert set(told) >= set(settings) and not [entry for entry in told if entry == "interpolation.base=4"]
    assert with_settings(frozen, told) == changed


@pytest.mark.parametrize("method, settings", [
    ("abc-places", ["training.steps=100"]),
    ("abc-places", ["width=30", "interpolation.width=21"]),
    ("abc-places", ["training.steps=100", "interpolation.training.steps=100"]),
    ("abc-places", ["base=2", "width=30", "interpolation.width=0"]),
    ("abc-places", ["interpolation.training.steps=100"]),
    ("abc-places", ["model.d_model=120", "model.heads=5", "interpolation.model.d_model=120"]),
    ("lora", ["model.dropout=0.1", "training.steps=100", "interpolation.training.steps=100"]),
    ("abs-place", ["window.w=2", "model.period=6"]),
])  # fmt: skip
def test_no_two_experiments_have_the_same_settings(method, settings):
    frozen = experiment("parity", method, "laptop")
    changed = with_settings(frozen, settings)
    assert with_settings(frozen, settings_of(changed).split()) == changed


def test_lora_adapts_the_frozen_vanilla_model():
    for method in ("lora", "lora-long", "lora-abc"):
        wanted = experiment("addition", method, "laptop", 2)
        assert wanted.interpolation == experiment("addition", "vanilla", "laptop", 2)
        assert wanted.model == wanted.interpolation.model and wanted.lora.rank == 8
        assert wanted.train_width == (13 if method == "lora-long" else 7)


def test_the_variants_of_rivals_differ_in_cross_attention_alone():
    """ALiBi and Shaw's vectors are published for self-attention; the variants bias the cross-attention too."""
    for name, alone, both in (("cross_biases", "alibi", "alibi-cross"), ("relative", "rpe-self", "rpe")):
        found = [new_model(e, written_biases(e)) for e in (experiment("addition", m) for m in (alone, both))]
        if name == "cross_biases":
            assert [len(model.cross_biases) for model in found] == [0, 1]
            assert [len(model.self_biases) for model in found] == [1, 1]
        else:
            assert [model.decoder[0].cross_attention.relative is not None for model in found] == [False, True]
            assert all(model.decoder[0].self_attention.relative is not None for model in found)


def test_interpolated_rotary_positions_are_rope_but_for_their_width():
    for preset in ENCODER_DECODERS:
        rope, interpolated = experiment("addition", "rope", preset), experiment("addition", "rope-pi", preset)
        assert interpolated.model == replace(rope.model, rotary_width=rope.train_width)
        assert interpolated.training == rope.training


@pytest.mark.parametrize("preset", ENCODER_DECODERS)
@pytest.mark.parametrize("task", ONE_ROW)
@pytest.mark.parametrize("method", ["abacus", "coupled", "randomized"])
def test_there_are_positions_for_training_and_for_a_hundred_digits(method, task, preset):
    wanted = experiment(task, method, preset)
    model = new_model(wanted, NO_BIASES)
    for width in (wanted.train_width, wanted.get_task().digits_at(100) + 1):
        layout = wanted.get_task().layout(width, wanted.form)
        model.positions.source(layout)  # raises where there are too few


@pytest.mark.parametrize("task, width", [("successor", 61), ("addition", 61), ("n-by-1", 61), ("parity", 201)])
def test_the_papers_condition_pads_both_models_to_the_longest_test(task, width):
    wanted = experiment(task, "abc-paper")
    plain = wanted.interpolation
    assert wanted.train_width == plain.train_width == width
    assert (
        wanted.training.batch_size == plain.training.batch_size < experiment(task, "vanilla").training.batch_size
    )
    changes = [f"width={width}", f"training.batch_size={plain.training.batch_size}"]
    changes += [f"training.steps={plain.training.steps}"]
    assert with_settings(experiment(task, "vanilla"), changes).digest == plain.digest
    assert wanted.calibration.rows == 6 and wanted.calibration.directions_self == (1,)
