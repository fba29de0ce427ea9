"""The methods of decoder-only models: on the outputs in rows, and on the other tasks at the preset `decoder-only`.

Protocol: chosen on development seeds by tests of at most 12 digits (12 × 12, 12 terms of 12, depth 3), then frozen:
`vanilla` and `abc-places` on Addition, Successor, Parity and N×1 (seeds 10 to 12), on products and on sums of many
terms (second rounds, seeds 13 to 15) and on lists in lists (seed 10 alone), and `abs-place` on products and on lists
in lists (seed 10 alone); on sums nothing was chosen for it. A fifth line for it on products was frozen on seeds 19 to
21 and is a setting (`multiplication-fourth-round-development.toml`). Of the position schemes at `decoder-only` the
learning rate was chosen, on Addition and seed 10 (`stream-rivals-development.toml`), and of position coupling in rows
on seeds 10 and 13 (`coupled-development.toml`; the rate is in `coupled.toml`); the other schemes in rows have the rate
that they have on Addition (`row-rivals.toml`).
"""

from dataclasses import dataclass, field, replace

from abcnb.configs import ModelConfig, TrainingConfig
from abcnb.counter_calibration import CounterConfig
from abcnb.rows import RowTask
from abcnb.study.experiments import Experiment
from abcnb.tasks import get_task


@dataclass(frozen=True)
class StreamMethod:
    """What a method is in a stream, for tables and help, its position scheme and its bias."""

    description: str
    position: str
    bias: str = "none"


# Position schemes as they were published, for any task in one stream.
SCHEMES = {
    "nope": StreamMethod("no positions", "none"),
    "alibi": StreamMethod("ALiBi, no positions", "none", "alibi"),
    "rope": StreamMethod("rotary positions", "rotary"),
    "t5": StreamMethod("T5's bucketed relative bias", "t5"),
    "fire": StreamMethod("FIRE's bias", "fire"),
    "abacus": StreamMethod("Abacus embeddings: a digit's place in its number, from a random offset", "abacus"),
}
# Methods in one stream. For outputs in rows the kind of the step is told wherever lines or couplings are.
IN_ROWS = {
    "vanilla": StreamMethod("sinusoidal positions", "sinusoidal"),
    **SCHEMES,
    "coupled": StreamMethod("position coupling: an index for the row and one for the place", "coupled-rows"),
    "abs-place": StreamMethod("lines over rows and places, by hand", "kinds", "by-hand"),
    "abc-places": StreamMethod("lines over rows and places, calibrated", "kinds", "calibrated"),
}
OF_ONE_ROW = {
    "vanilla": StreamMethod("sinusoidal positions", "sinusoidal"),
    **SCHEMES,
    "coupled": StreamMethod("position coupling: one index for the tokens of a place", "coupled"),
    "abc-places": StreamMethod("lines over places, calibrated; no positions", "none", "calibrated"),
}


@dataclass(frozen=True)
class TaskSettings:
    """How the models of a task are trained in one stream.

    Attributes:
        plain, lined: what `vanilla` and the others are trained on, as fields of `Experiment`.
        plain_bias: the bias of `vanilla`, likewise; none by default.
        steps: of training `vanilla` and the others.
        counters: the choices of the calibration.
    """

    plain: dict = field(default_factory=dict)
    lined: dict = field(default_factory=dict)
    plain_bias: dict = field(default_factory=dict)
    steps: tuple[int, int] = (800, 500)
    counters: CounterConfig = field(default_factory=CounterConfig)


# With κ 2 seed 12 lost the first operand's place before (Addition, six digits: 76.33%), which κ 1 keeps.
ONE_ROW = TaskSettings(counters=CounterConfig(kappa_prompt=1.0))
# A first layer that sees its own token alone leaves it to the last one to show which tokens a step needs; inputs of one
# shape spare the model finding out the shape.
OWN_TOKEN = {"bias": "own-token", "biased_layers": (0,)}
SETTINGS = {
    "multiplication": TaskSettings(
        plain={"width": 4, "shapes": "largest"},
        plain_bias=OWN_TOKEN,
        lined={"width": 6},
        steps=(2000, 3000),
        # In the first round, with κ 1, seed 12 lost the product's place before (6 × 6: 67.67%), which κ 0 keeps.
        counters=CounterConfig(kappa_output=0.0),
    ),
    "many-addition": TaskSettings(
        plain={"width": 3, "terms": 6, "shapes": "largest"},
        plain_bias=OWN_TOKEN,
        lined={"width": 6, "train_numbers": "repeated"},
        steps=(1000, 2500),
    ),
    "nested": TaskSettings(steps=(8000, 2000)),
    "n-by-1": replace(ONE_ROW, steps=(2400, 1500)),  # with the others' steps seed 10 had 92.30% at six digits
}
# Of position schemes: more steps than of models with lines, and inputs of several widths, without which nothing tells
# a scheme that distances grow.
SCHEME_STEPS, SCHEME_NUMBERS = 10_000, "bucketed"
BATCH = 128
LEARNING_RATE = 2e-3  # of position schemes the best of three, for each of them
MOST_POSITIONS = 128  # indices of the schemes that count from a random offset


def methods_of(task: str, preset: str) -> dict[str, StreamMethod]:
    """The methods that a task has in one stream at a preset; none where it has another architecture."""
    if isinstance(get_task(task), RowTask):
        return IN_ROWS if preset in ("smoke", "laptop") else {}
    # A stream's output is as wide as its operands, which the answer of a classification is not.
    return OF_ONE_ROW if preset == "decoder-only" and get_task(task).answers_in_places else {}


KIND = "the kind of every step: a row of products, sums or values, or the end of one"
BY_HAND = "which tokens every step has to look at"
COUNTERS = "where operands and rows begin and end, and the row and place of every step"
OUTPUT = "that tokens of the output follow these counters (only their offsets are searched)"
OF_POSITION = {
    "kinds": (KIND,),
    "coupled-rows": (KIND, "which tokens share a row and which a place"),
    "abacus": ("the place of every digit in its number",),
    "coupled": ("which tokens share a place",),
}


def told_in_stream(e: Experiment) -> tuple[str, ...]:
    """What an experiment in one stream is told of an input beyond its tokens and their order."""
    lines = {"by-hand": (COUNTERS, BY_HAND), "calibrated": (COUNTERS, OUTPUT)}.get(e.bias, ())
    return lines + OF_POSITION.get(e.model.position, ())


def described_in_stream(e: Experiment) -> str:
    """One line on the method of an experiment in one stream."""
    text = methods_of(e.task, e.preset)[e.method].description
    return text + ("; the first layer sees its own token alone" if e.bias == "own-token" else "")


def stream_experiment(task: str, method: str, preset: str, seed: int) -> Experiment:
    """The frozen experiment of a method in one stream.

    Raises:
        ValueError: a preset or a method that the task does not have.
    """
    known, in_rows = methods_of(task, preset), isinstance(get_task(task), RowTask)
    if not known:
        presets = "smoke or laptop" if in_rows else "smoke, laptop or paper"
        raise ValueError(f"expected preset {presets} for {task}, got {preset!r}")
    if method not in known:
        raise ValueError(f"expected a method among {', '.join(known)} for {task} at {preset}, got {method!r}")
    chosen, settings = known[method], SETTINGS.get(task, ONE_ROW)
    lined = method != "vanilla" if in_rows else chosen.bias == "calibrated"  # in rows, rivals train as lines do
    model = ModelConfig(decoder_layers=2, position=chosen.position, architecture="decoder-only")
    if chosen.position in ("abacus", "coupled", "coupled-rows"):
        model = replace(model, max_position=MOST_POSITIONS)
    has_scheme = not in_rows and method not in ("vanilla", "abc-places")
    steps = SCHEME_STEPS if has_scheme else settings.steps[lined]
    training = TrainingConfig(steps=steps, batch_size=BATCH, learning_rate=LEARNING_RATE)
    built = Experiment(task, method, preset, seed, model=model, training=training)
    if has_scheme:
        built = replace(built, train_numbers=SCHEME_NUMBERS)
    built = replace(built, **settings.lined if lined else settings.plain)
    if preset == "smoke":
        built = _small(built)
    if chosen.bias == "calibrated":
        plain = stream_experiment(task, "vanilla", preset, seed)
        return replace(built, bias="calibrated", counters=settings.counters, interpolation=plain)
    if method == "vanilla":
        return replace(built, **settings.plain_bias)
    return replace(built, bias=chosen.bias)


def _small(experiment: Experiment) -> Experiment:
    """An experiment of the preset `smoke`."""
    training = TrainingConfig(
        steps=20, batch_size=32, learning_rate=3e-3, warmup_steps=5, validate_every=10, validation_samples=64
    )
    model = replace(experiment.model, d_model=32, d_ff=64, heads=2)
    width = min(3, experiment.get_task().train_length)
    return replace(experiment, model=model, training=training, width=width, terms=0)
