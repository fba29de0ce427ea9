"""What was published, as data: the tables, and the choices that the paper's text and the authors' code make.

Source: "Attention Bias as an Inductive Bias: How to Teach Transformers Simple Arithmetic", Tables 1, 2 and 3;
percent exact match by length in digits. ABC on Addition at 15 digits is from the earlier version, "From
Interpolation to Extrapolation". The authors' code is public as AttentionBiasCalibration.
"""

from dataclasses import dataclass

LENGTHS = (6, 10, 15, 20, 60)

# task -> method -> percent at LENGTHS; None where nothing was published.
PUBLISHED: dict[str, dict[str, tuple[float | None, ...]]] = {
    "successor": {
        "vanilla": (100.0, 0.0, 0.0, 0.0, 0.0),
        "abs-sinusoidal": (100.0, 100.0, 100.0, 100.0, 100.0),
        "abs-cpi": (100.0, 100.0, 100.0, 100.0, 100.0),
        "abs-nope": (100.0, 100.0, 100.0, 100.0, 100.0),
        "alibi": (1.3, 0.0, 0.0, 0.0, 0.0),
        "rope": (100.0, 0.0, 0.0, 0.0, 0.0),
        "abc-paper": (100.0, 100.0, None, 100.0, 100.0),
    },
    "addition": {
        "vanilla": (100.0, 0.0, 0.0, 0.0, 0.0),
        "abs-sinusoidal": (100.0, 0.0, 0.0, 0.0, 0.0),
        "abs-cpi": (100.0, 100.0, 100.0, 100.0, 100.0),
        "abs-nope": (99.95, 99.81, 99.84, 99.76, 99.35),
        "alibi": (0.0, 0.0, 0.0, 0.0, 0.0),
        "rope": (100.0, 0.0, 0.0, 0.0, 0.0),
        "abc-paper": (100.0, 100.0, 99.9, 99.9, 99.8),
    },
    "parity": {
        "vanilla": (29.23, 0.29, 0.0, 0.0, 0.0),
        "abs-sinusoidal": (100.0, 100.0, 100.0, 100.0, 100.0),
        "abs-cpi": (100.0, 100.0, 100.0, 100.0, 100.0),
        "abs-nope": (100.0, 100.0, 100.0, 100.0, 100.0),
    },
    "n-by-1": {
        "vanilla": (100.0, 0.0, 0.0, 0.0, 0.0),
        "abs-sinusoidal": (100.0, 6.0, 0.19, 0.0, 0.0),
        "abs-cpi": (100.0, 100.0, 100.0, 100.0, 100.0),
        "abs-nope": (99.89, 99.63, 99.49, 99.39, 98.31),
        "rope": (100.0, 0.0, 0.0, 0.0, 0.0),
        "abc-paper": (100.0, 100.0, None, 100.0, 100.0),
    },
}

# Numbers of Table 1 that the paper itself took from others: not measured there, and not here. Percent by length in
# digits; the two on Parity are over longer inputs as a whole.
CITED = (
    {
        "task": "addition",
        "6": 100.0,
        "10": 99.9,
        "15": 97.2,
        "20": 21.3,
        "cited from": "Jelassi et al. 2023: relative positions, encoder-only",
    },
    {
        "task": "parity-classification",
        "longer inputs": 52.00,
        "cited from": "Deletang et al. 2023: encoder-only, the best of five encodings",
    },
    {
        "task": "parity-classification",
        "longer inputs": 52.60,
        "cited from": "Ruoss et al. 2023: encoder-only, randomized positions",
    },
)

# The row of Tables 1 and 3 that a method stands beside where it has none of its own name: ABC is published once, and
# the variants over places not at all.
BESIDE = {"abs-place": "abs-cpi", "abc-columns": "abc-paper", "abc-places": "abc-paper"}


OTHER_MODELS = ("decoder-only",)  # presets of models that are none of the paper's, which are all encoder-decoder


def published(task: str, method: str, length: int, preset: str = "") -> float | None:
    """The published percentage that a measured cell stands beside, or None."""
    rows = PUBLISHED.get(task, {}) if preset not in OTHER_MODELS else {}
    row = rows.get(method, rows.get(BESIDE.get(method, "")))
    return row[LENGTHS.index(length)] if row and length in LENGTHS else None


@dataclass(frozen=True)
class Choice:
    """A choice on which the paper's text, the authors' code and this project do not all agree.

    Attributes:
        point: what is chosen.
        text, code, here: what each of the three takes.
        tried: settings that choose otherwise than here, each as `results.row` names it.
    """

    point: str
    text: str
    code: str
    here: str
    tried: tuple[str, ...]


CHOICES = (
    Choice(
        "window's sides", "w columns on both", "the digit and w before it", "as the code", ("window.sides=both",)
    ),
    Choice(
        "averaged for ABC",
        "scores before the softmax",
        "weights after it",
        "weights",
        ("calibration.average=scores",),
    ),
    Choice(
        "output rows that ABC reads",
        "all",
        "the first 6",
        "all (abc-paper: the first 6)",
        ("calibration.directions_cross=-1,0,1 calibration.directions_self=-1,0,1 calibration.rows=0",),
    ),
    Choice("a line's strength", "mean", "sum", "sum", ("calibration.statistic=mean calibration.min_support=0.0",)),
    Choice(
        "threshold", "normalize, then cut", "cut", "cut, then normalize", ("calibration.threshold_on=centred",)
    ),
    Choice(
        "κ, cross and self",
        "4.5 and 0.87",
        "4.5 and 0.87",
        "1 and 0 (Addition: 0 and 0)",
        ("calibration.kappa_cross=4.5 calibration.kappa_self=0.87",),
    ),
    Choice(
        "directions of cross-attention",
        "Δ = −1, 0, 1",
        "Δ = −1",
        "Δ = −1, 0",
        ("calibration.directions_cross=-1,0,1", "calibration.directions_cross=-1"),
    ),
    Choice(
        "rows that a line must cross",
        "any",
        "any",
        "half (Addition: three quarters)",
        ("calibration.min_support=0.0",),
    ),
    Choice(
        "a row that no line reaches",
        "silent",
        "attends freely",
        "the nearest line's end",
        ("calibration.closed_rows=transparent",),
    ),
    Choice(
        "a head without lines",
        "transparent",
        "transparent",
        "its strongest line",
        ("calibration.empty_head=transparent",),
    ),
    Choice(
        "learning rate", "1e-5", "1e-4", "2e-3", ("training.learning_rate=1e-05", "training.learning_rate=0.0001")
    ),
    Choice("encoder layers", "1", "0", "0", ("model.encoder_layers=1",)),
    Choice("decoder layers", "6", "6", "2", ("model.decoder_layers=6",)),
    Choice("dropout", "0.3", "0.3", "0", ("model.dropout=0.3",)),
    Choice("operands padded to", "61 digits", "61 digits", "7 digits", ("width=61", "width=21")),
)


@dataclass(frozen=True)
class Question:
    """What a reviewer of the paper asked, and the settings that answer it, each as `results.row` names it."""

    point: str
    tried: tuple[str, ...]


QUESTIONS = (
    Question("a finite bias instead of −∞", ("closed=-20.0", "closed=-10.0", "closed=-5.0", "closed=-2.0")),
    Question("biases in self- or in cross-attention alone", ("biased=self", "biased=cross")),
    Question("biases in one of the two layers", ("biased_layers=0", "biased_layers=1")),
    Question(
        "cyclic positions without a window",
        ("model.position=cyclic-columns", "model.position=cyclic-places model.random_phase=True"),
    ),
    Question("learned positions with a window", ("model.position=learned model.random_phase=False",)),
    Question("encoder layers", ("model.encoder_layers=1", "model.encoder_layers=2")),
    Question("decoder layers", ("model.decoder_layers=1", "model.decoder_layers=4", "model.decoder_layers=6")),
)
