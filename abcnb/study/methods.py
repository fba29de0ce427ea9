"""Methods and presets by name: one frozen experiment per method, task and preset."""

from dataclasses import dataclass, replace

from abcnb.lines.algorithm1 import Algorithm1Config
from abcnb.model.configs import ModelConfig, TrainingConfig
from abcnb.pipeline import HEADS_WITH_LINES, PLAIN, RETRAINING
from abcnb.rivals.lora import LoRAConfig
from abcnb.study.experiments import FOUND, ONE_A_HEAD, RULE, Experiment, WindowConfig
from abcnb.tasks.numbers import LONG_FACTOR
from abcnb.tasks.task import full_name, get_task

PRESETS = {
    "smoke": "seconds; for tests, its numbers mean nothing",
    "laptop": "real results on two CPU cores",
    "paper": "the paper's sizes, dropout, padding and numbers, for a GPU",
    "decoder-only": "input and output in one causal stream, sizes as of laptop",
}


# Optimizer steps at laptop size, by architecture and role: plain models, methods as others published them, models
# with lines; "" stands for every other task. In an encoder-decoder only the paper's windows count as published;
# position schemes count as plain.
STEPS = {
    ("encoder-decoder", "plain"): {"successor": 500, "addition": 900, "parity": 1200, "n-by-1": 1000, "": 800},
    ("encoder-decoder", "published"): {"successor": 400, "addition": 1500, "parity": 300, "n-by-1": 1200, "": 500},
    ("encoder-decoder", "lines"): {"": RETRAINING.steps},
    ("one stream", "plain"): {"n-by-1": 2400, "": 800},
    ("one stream", "published"): {"": 10_000},
    ("one stream", "lines"): {"": RETRAINING.steps},
    ("rows", "plain"): {"multiplication": 2000, "nested": 8000, "": 1000},
    ("rows", "published"): {"multiplication": 3000, "nested": 2000, "": 2500},
    ("rows", "lines"): {"": 2500},
}
# Biases that strings do not have: they have no lines by hand, and lengths of their own, which cannot be padded.
OF_NUMBERS = ("by-hand", "window", "algorithm1", "varying")
# What models in rows are trained on, except plain ones, which use the task's `for_plain`.
IN_ROWS = {"multiplication": {"width": 6}, "many-addition": {"width": 6, "train_numbers": "repeated"}}
LEARNING_RATE = 2e-3
# Schemes that count from a random offset, so that each index is rarely seen, and other later work.
LATER, LATER_STEPS = ("learned", "randomized", "t5", "kerple", "fire", "abacus", "coupled"), 3000
PUBLISHED_NUMBERS = {"successor": "uniform", "addition": "uniform"}  # of the paper's windows and Algorithm 1
# The paper's condition: operands padded to the longest test, in training too. Steps without and with lines.
PADDED = {"successor": (1000, 1600), "addition": (2000, 800), "parity": (1200, 300), "n-by-1": (2000, 4000)}
PADDED_ELSE, PADDED_BATCH = (2000, 1500), 64
OVER_COLUMNS = ("abc-paper", "abc-columns")  # in the paper's condition at the preset `laptop`
SMOKE_TAU = 0.02  # after a few steps attention is spread evenly, and no share exceeds the usual τ
LONGEST = 60  # digits of the paper's longest test
# Indices that schemes counting from a random offset have beyond those of 100 digits, and randomized positions have
# beyond four times as many; the former's total in decoder-only models.
OFFSETS, RANDOM_POSITIONS_MORE, MOST_POSITIONS = 28, 112, 128


@dataclass(frozen=True)
class Method:
    """What defines a method, apart from sizes and schedules."""

    description: str
    position: str  # position scheme in an encoder-decoder, and in one stream
    in_rows: str = ""  # the same for outputs in rows; empty if decoder-only models do not have the method
    bias: str = "none"
    adapts: bool = False  # adapters on the frozen Vanilla model


METHODS = {
    "vanilla": Method("sinusoidal positions", "sinusoidal", "sinusoidal"),
    "nope": Method("no positions", "none", "none"),
    "alibi": Method("ALiBi (Press et al. 2022) in self-attention, no positions", "none", "none", "alibi"),
    "alibi-cross": Method("ALiBi in self- and cross-attention, no positions", "none", bias="alibi-cross"),
    "rope": Method("rotary positions (Su et al. 2021)", "rotary", "rotary"),
    "rpe": Method("relative positions (Shaw et al. 2018) in self- and cross-attention", "relative"),
    "rpe-self": Method("the same in self-attention alone", "relative-self"),
    "abs-sinusoidal": Method("the paper's ABS, w=1, sinusoidal positions (+ w=1)", "sinusoidal", bias="window"),
    "abs-cpi": Method("the paper's ABS, w=1, CPI T=3 (+ T=3)", "cyclic-columns", bias="window"),
    "abs-nope": Method("the paper's ABS, w=1, no positions (NoPE + w=1)", "none", bias="window"),
    "abs": Method("ABS: lines written by hand", "none", "kinds", "by-hand"),
    "abc-paper": Method("the paper's ABC, Algorithm 1, operands padded to 61 digits", "none", bias="algorithm1"),
    "abc-columns": Method("ABC over matrix columns that vary, padded to 61 digits", "none", bias="varying"),
    "abc": Method("ABC: lines found in the attention of Vanilla", "none", "kinds", "calibrated"),
    "abc-pruned": Method("ABC, retrained with the lines that pruning leaves", "none", "kinds", "pruned"),
    "learned": Method("a learned vector for each position (Gehring et al. 2017)", "learned"),
    "randomized": Method(
        "randomized positions (Ruoss et al. 2023): sinusoidal at sorted random ones", "randomized"
    ),
    "rope-pi": Method("rotary, interpolated to the training width (Chen et al. 2023; no fine-tuning)", "rotary"),
    "t5": Method("T5's bucketed relative bias (Raffel et al. 2020)", "t5", "t5"),
    "kerple": Method("KERPLE's logarithmic bias (Chi et al. 2022) in self- and cross-attention", "kerple"),
    "fire": Method("FIRE's bias (Li et al. 2024)", "fire", "fire"),
    "abacus": Method(
        "Abacus embeddings (McLeish et al. 2024): a digit's place, from a random offset", "abacus", "abacus"
    ),
    "coupled": Method(
        "position coupling (Cho et al. 2024): one index for the tokens of a place, in rows one of a row as well",
        "coupled",
        "coupled-rows",
    ),
    "lora": Method("LoRA (Hu et al. 2022) on W_Q, W_K of the frozen Vanilla model", "sinusoidal", adapts=True),
    "lora-long": Method("LoRA, trained on lengths of 1 to 12 digits", "sinusoidal", adapts=True),
}


def architecture_of(task: str, preset: str) -> str:
    """The architecture for a task at a preset, as in `STEPS`; empty if the preset does not have the task."""
    if get_task(task).in_rows:
        return "rows" if preset in ("smoke", "laptop") else ""
    if preset == "decoder-only":
        return "one stream" if get_task(task).answers_in_places else ""
    return "encoder-decoder" if preset != "paper" or get_task(task).lines_by_hand else ""


def position_of(task: str, method: str, preset: str = "laptop") -> str:
    """The position scheme of a method on a task; empty if the task does not have the method at that preset."""
    chosen = METHODS[method]
    if (chosen.bias in OF_NUMBERS or method == "lora-long") and not get_task(task).lines_by_hand:
        return ""
    where = architecture_of(task, preset)
    if where == "encoder-decoder" or (where == "one stream" and chosen.in_rows):
        return chosen.position
    return chosen.in_rows if where == "rows" else ""


def has(task: str, method: str, preset: str = "laptop") -> bool:
    """Whether a task has a method at a preset."""
    return method in METHODS and bool(position_of(task, method, preset))


def experiment(task: str, method: str, preset: str = "laptop", seed: int = 0) -> Experiment:
    """The frozen experiment of a method on a task; ValueError if names are unknown or do not go together."""
    task = full_name(task)
    asked, presets = get_task(task), [name for name in PRESETS if architecture_of(task, name)]
    if preset not in presets:
        raise ValueError(f"expected a preset among {', '.join(presets)} for {task}, got {preset!r}")
    methods = [name for name in METHODS if has(task, name, preset)]
    if method not in methods:
        raise ValueError(f"expected a method among {', '.join(methods)} for {task} at {preset}, got {method!r}")
    chosen, where = METHODS[method], architecture_of(task, preset)
    over_columns = method in OVER_COLUMNS and preset == "laptop"
    parts = _trained_on(task, method, where) | {"bias": chosen.bias}
    if where == "rows" and method == "vanilla" and asked.first_layer_apart:
        parts["bias"] = "own-token"
    if chosen.bias == "window":
        parts |= {"window": WindowConfig(), "form": "aligned" if asked.operands == 2 else "natural"}
    if chosen.bias == "algorithm1":  # N×1's single digit is on no anti-diagonal
        parts["algorithm1"] = Algorithm1Config(**{"directions_cross": (-1, 0, 1)} if task == "n-by-1" else {})
    if chosen.bias in FOUND or chosen.adapts:
        first = experiment(task, "abc" if chosen.bias == "pruned" else "vanilla", preset, seed)
        parts["interpolation"] = padded(first) if over_columns else first
        parts["lora"] = LoRAConfig() if chosen.adapts else None
    model = ModelConfig(
        decoder_layers=2,
        heads=HEADS_WITH_LINES if chosen.bias in ONE_A_HEAD else PLAIN.heads,
        position=position_of(task, method, preset),
        architecture="encoder-decoder" if where == "encoder-decoder" else "decoder-only",
    )
    model, training, changed = _sized(task, method, preset, where, model)
    parts |= changed
    if method == "lora-long":
        width = max(LONG_FACTOR * asked.train_length + 1, parts.get("width", 0))
        parts |= {"train_numbers": "long", "width": width}
    longest = asked.digits_at(100)
    if model.position in ("abacus", "coupled", "coupled-rows"):
        model = replace(model, max_position=longest + OFFSETS if where == "encoder-decoder" else MOST_POSITIONS)
    if model.position == "randomized":
        model = replace(model, max_position=4 * longest + RANDOM_POSITIONS_MORE)
    built = Experiment(task, method, preset, seed, model=model, training=training, **parts)
    if method == "rope-pi":
        return replace(built, model=replace(model, rotary_width=built.train_width))
    return padded(built) if over_columns else built


def _role(method: str, where: str) -> str:
    """A method's role, as in `STEPS`."""
    if METHODS[method].bias in ONE_A_HEAD:
        return "lines"
    published = METHODS[method].bias == "window" if where == "encoder-decoder" else method != "vanilla"
    return "published" if published else "plain"


def _trained_on(task: str, method: str, where: str) -> dict:
    """The training numbers, as fields of `Experiment`."""
    if where == "rows":
        numbers = get_task(task).for_plain if method == "vanilla" else IN_ROWS.get(task, {})
        return {name: value for name, value in numbers.items() if name != "numbers"}
    if method == "abc-paper" or METHODS[method].bias == "window":
        return {"train_numbers": PUBLISHED_NUMBERS.get(task, "even")}
    # Several widths: with only one, nothing tells a scheme that distances grow, and a line counted from the other
    # end of a number is as good as one counted from the units.
    role = _role(method, where)
    several = role == "lines" or (where == "one stream" and role == "published")
    return {"train_numbers": "bucketed" if several and method not in OVER_COLUMNS else "even"}


def _sized(
    task: str, method: str, preset: str, where: str, model: ModelConfig
) -> tuple[ModelConfig, TrainingConfig, dict]:
    """A model of a preset's size, its training, and the fields of `Experiment` that the preset changes."""
    bias, role, changed = METHODS[method].bias, _role(method, where), {}
    if preset == "smoke":
        training = TrainingConfig(20, 32, 3e-3, warmup_steps=5, validate_every=10, validation_samples=64)
        if where == "encoder-decoder" and role != "lines":
            changed = {"train_numbers": "even"}
        if where == "rows":
            changed = {"width": min(3, get_task(task).train_length), "terms": 0}
        if bias in RULE:
            changed["tau"] = SMOKE_TAU
        return replace(model, d_model=32, d_ff=64, heads=model.heads // 4), training, changed
    if preset == "paper":
        d_model = 512 if task == "addition" and model.position == "rotary" else 128
        model = replace(model, decoder_layers=6, d_model=d_model, d_ff=4 * d_model, dropout=0.3)
        steps = 7_000 if bias in (*FOUND, "window", "by-hand") else 60_000
        training = TrainingConfig(steps, batch_size=512, learning_rate=1e-4, warmup_steps=1000)
        return model, training, {"train_numbers": "uniform", "width": get_task(task).digits_at(LONGEST) + 1}
    steps = STEPS[where, role].get(task, STEPS[where, role][""])
    if where == "encoder-decoder" and method in LATER:
        steps = LATER_STEPS
    small = where != "encoder-decoder" or task == "parity" or role == "lines"
    return model, TrainingConfig(steps, batch_size=128 if small else 256, learning_rate=LEARNING_RATE), changed


def padded(experiment: Experiment) -> Experiment:
    """A `laptop` experiment in the paper's condition: operands padded to the longest test."""
    training = replace(experiment.training, batch_size=PADDED_BATCH)
    if experiment.method != "abc-columns":
        steps = PADDED.get(experiment.task, PADDED_ELSE)[experiment.method != "vanilla"]
        training = replace(training, steps=steps)
    return replace(experiment, training=training, width=experiment.get_task().digits_at(LONGEST) + 1)
