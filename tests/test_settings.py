import pytest

from abcnb.study.methods import experiment
from abcnb.study.settings import settings_of, with_settings

SMOKE = experiment("successor", "vanilla", "smoke")
PAPER = experiment("successor", "abc-paper", "smoke")


def test_settings_reach_nested_configs():
    wanted = with_settings(
        experiment("addition", "abc-paper", "smoke"),
        ["training.steps=7", "training.learning_rate=0.5e-3", "train_numbers=uniform",
         "algorithm1.directions_cross=(-1, 1)", "algorithm1.kappa_cross=3", "interpolation.training.steps=9"],
    )  # fmt: skip
    assert (wanted.training.steps, wanted.training.learning_rate) == (7, 5e-4)
    assert wanted.train_numbers == "uniform" and wanted.interpolation.train_numbers == "even"
    assert wanted.algorithm1.directions_cross == (-1, 1) and wanted.algorithm1.kappa_cross == 3.0
    assert wanted.interpolation.training.steps == 9
    assert with_settings(wanted, []) == wanted


@pytest.mark.parametrize(
    "setting, name, value",
    [("width=9", "width", 9), ("base=8", "base", 8), ("seed=5", "seed", 5), (" seed = 5 ", "seed", 5)],
)
def test_settings_that_abc_shares_with_what_it_calibrates_are_set_for_both(setting, name, value):
    wanted = with_settings(experiment("addition", "abc", "smoke"), [setting])
    assert getattr(wanted, name) == getattr(wanted.interpolation, name) == value


@pytest.mark.parametrize("setting, of_plain", [("look_once=True", False), ("width=5", 5), ("seed=5", 5)])
def test_settings_that_a_chain_of_models_shares_are_set_for_all_and_named_once(setting, of_plain):
    wanted = with_settings(experiment("multiplication", "abc-pruned"), [setting])
    first = wanted.interpolation
    of_each = [getattr(e, setting.split("=")[0]) for e in (wanted, first, first.interpolation)]
    assert of_each == [of_plain or True, of_plain or True, of_plain]
    assert settings_of(wanted) == ("" if setting == "seed=5" else setting)


@pytest.mark.parametrize(
    "setting, told",
    [
        ("training.steps", "expected a setting of the form key=value, got 'training.steps'"),
        ("training.stepz=3", "expected a key among .*steps.*, got 'training.stepz'"),
        ("stepz=3", "expected a key among seed, base, .*, got 'stepz'"),
        ("steps=3", r"got 'steps'; did you mean training\.steps\?"),
        ("=3", "expected a key among"),
        ("task=parity", "got 'task'"),
        ("method=rope", "got 'method'"),
        ("training.steps=many", "expected int for training.steps, got 'many'"),
        ("training.steps=1.5", "expected int for training.steps, got '1.5'"),
        ("training.learning_rate=fast", "expected float for training.learning_rate, got 'fast'"),
        ("model.own_bias_per_layer=1", "expected true or false for model.own_bias_per_layer, got '1'"),
        ("training=3", "expected a key with a single value such as training.steps, got 'training'"),
        ("training.steps.x=3", "expected a key among steps, .*, got 'training.steps.x'"),
        ("window.w=2", "expected a key that this method has, got 'window.w': it has no window"),
        ("training.steps=0", "at least 1"),
    ],
)
def test_bad_settings_are_named(setting, told):
    with pytest.raises(ValueError, match=told) as error:
        with_settings(SMOKE, [setting])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("method, settings", [
    ("lora", ["base=4"]), ("lora", ["width=10"]), ("lora", ["model.heads=4"]), ("lora", ["model.dropout=0.3"]),
    ("lora", ["training.steps=9"]),
    ("abc", ["base=8", "width=9"]), ("abc", ["width=9", "base=8"]),
    ("abc", ["model.d_model=120", "model.heads=5"]),
    ("abc", ["form=aligned"]),
])  # fmt: skip
def test_settings_of_two_models_are_applied_together(method, settings):
    frozen = experiment("addition", method, "laptop")
    wanted = with_settings(frozen, settings)
    inner = wanted.interpolation
    assert wanted == with_settings(frozen, settings[::-1])
    assert (inner.base, inner.form) == (wanted.base, wanted.form)
    assert inner.model == (wanted.model if method == "lora" else frozen.interpolation.model)
    assert inner.training == frozen.interpolation.training


@pytest.mark.parametrize("method, setting, told", [
    ("abs-cpi", "window.w=-1", "expected w ≥ 0 and sides 'past' or 'both', got -1 and 'past'"),
    ("abs-cpi", "window.sides=left", "got 1 and 'left'"),
    ("lora", "lora.rank=999", "expected a lora.rank of at most d_model 128, got 999"),
    ("lora", "lora.rank=0", "expected rank of at least 1, got 0"),
])  # fmt: skip
def test_windows_and_adapters_that_cannot_be_are_refused_before_anything_is_trained(method, setting, told):
    with pytest.raises(ValueError, match=told):
        with_settings(experiment("addition", method), [setting])


def test_models_that_do_not_go_together_are_refused():
    with pytest.raises(ValueError, match="expected the base of the interpolating model, 4, got 10"):
        with_settings(experiment("addition", "abc"), ["interpolation.base=4"])
    with pytest.raises(ValueError, match="expected the form of the interpolating model, 'aligned', got 'natural'"):
        with_settings(experiment("addition", "abc"), ["interpolation.form=aligned"])


@pytest.mark.parametrize("task", ["successor", "addition", "n-by-1", "listops-sm"])
def test_every_base_has_a_width_that_its_results_fit(task):
    for base in range(2, 17):
        for method in ("vanilla", "abs-cpi", "abc"):
            wanted = with_settings(experiment(task, method), [f"base={base}"])
            assert wanted.train_width <= wanted.get_task().train_length + 2


def test_bad_directions_are_named():
    with pytest.raises(ValueError, match=r"integers separated by commas for algorithm1.directions_self, got 'up'"):
        with_settings(PAPER, ["algorithm1.directions_self=up"])
    with pytest.raises(ValueError, match="expected directions_self as a tuple from"):
        with_settings(PAPER, ["algorithm1.directions_self=7"])


def test_interpolated_rotary_positions_are_of_the_training_width():
    with pytest.raises(ValueError, match=r"expected model\.rotary_width 0 or the training width 7, got 9"):
        with_settings(experiment("successor", "rope-pi", "smoke"), ["model.rotary_width=9"])
