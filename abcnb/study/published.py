"""Published results as data: the tables, and the choices that the paper's text and the authors' code make.

Source: "Attention Bias as an Inductive Bias: How to Teach Transformers Simple Arithmetic", Tables 1, 2 and 3; percent
exact match by length in digits. ABC on Addition at 15 digits is from the earlier version, "From Interpolation to
Extrapolation". The authors' code is public as AttentionBiasCalibration."""

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

# Numbers in Table 1 that the paper took from others: measured neither there nor here. Percent by length in digits;
# the two on Parity are over all longer inputs together.
CITED = (
    {"task": "addition", "6": 100.0, "10": 99.9, "15": 97.2, "20": 21.3}
    | {"cited from": "Jelassi et al. 2023: relative positions, encoder-only"},
    {"task": "parity-classification", "longer inputs": 52.00}
    | {"cited from": "Deletang et al. 2023: encoder-only, the best of five encodings"},
    {"task": "parity-classification", "longer inputs": 52.60}
    | {"cited from": "Ruoss et al. 2023: encoder-only, randomized positions"},
)

# The row of Tables 1 and 3 that a method is compared with if none has its name.
BESIDE = {"abs": "abs-cpi", "abc": "abc-paper", "abc-columns": "abc-paper"}
OTHER_MODELS = ("decoder-only",)  # presets whose models are unlike the paper's, which are all encoder-decoders


def published(task: str, method: str, length: int, preset: str = "") -> float | None:
    """The published percentage to compare a measured cell with, or None."""
    rows = PUBLISHED.get(task, {}) if preset not in OTHER_MODELS else {}
    row = rows.get(method, rows.get(BESIDE.get(method, "")))
    return row[LENGTHS.index(length)] if row and length in LENGTHS else None


@dataclass(frozen=True)
class Choice:
    """A choice on which the paper's text, the authors' code and this project do not all agree."""

    point: str
    text: str
    code: str
    here: str
    tried: tuple[str, ...] = ()  # settings that choose differently, as `results.row` names them


BOTH_DIRECTIONS = "algorithm1.directions_self=-1,0,1 algorithm1.directions_cross=-1,0,1"
CHOICES = (
    Choice("window's sides", "w columns on both", "the digit and w before it", "as the code", ("window.sides=both",)),
    Choice("averaged for ABC", "scores before the softmax", "weights after it", "weights"),
    Choice("output rows that ABC reads", "all", "the first 6", "`abc-paper` as the code, `abc` all",
           ("algorithm1.rows=0",)),
    Choice("directions of lines", "Δ = −1, 0, 1", "Δ = −1 in cross-attention, 1 in self-attention",
           "`abc-paper` as the code, `abc` every coordinate at slope 1 and 2",
           (BOTH_DIRECTIONS, f"{BOTH_DIRECTIONS} algorithm1.rows=0")),
    Choice("a line's strength", "mean", "sum", "`abc-paper` as the code, `abc` a share of all steps"),
    Choice("threshold", "normalize, then cut at κσ + μ", "cut", "`abc-paper` as the code, `abc` one share τ"),
    Choice("a row that no line reaches", "silent", "attends freely", "`abc-paper` as the code, `abc` the start token"),
    Choice("learning rate", "1e-5", "1e-4", "2e-3", ("training.learning_rate=1e-05", "training.learning_rate=0.0001")),
    Choice("encoder layers", "1", "0", "0", ("model.encoder_layers=1",)),
    Choice("decoder layers", "6", "6", "2", ("model.decoder_layers=6",)),
    Choice("dropout", "0.3", "0.3", "0", ("model.dropout=0.3",)),
    Choice("operands padded to", "61 digits", "61 digits", "7 digits, `abc-paper` 61", ("width=61",)),
)  # fmt: skip
