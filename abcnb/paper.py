"""The published tables, as data.

Source: "Attention Bias as an Inductive Bias: How to Teach Transformers Simple Arithmetic", Tables 1, 2 and 3;
percent exact match by length in digits. ABC on Addition at 15 digits is from the earlier version, "From
Interpolation to Extrapolation".
"""

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
        "abc-columns": (100.0, 100.0, None, 100.0, 100.0),
    },
    "addition": {
        "vanilla": (100.0, 0.0, 0.0, 0.0, 0.0),
        "abs-sinusoidal": (100.0, 0.0, 0.0, 0.0, 0.0),
        "abs-cpi": (100.0, 100.0, 100.0, 100.0, 100.0),
        "abs-nope": (99.95, 99.81, 99.84, 99.76, 99.35),
        "alibi": (0.0, 0.0, 0.0, 0.0, 0.0),
        "rope": (100.0, 0.0, 0.0, 0.0, 0.0),
        "abc-columns": (100.0, 100.0, 99.9, 99.9, 99.8),
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
        "abc-columns": (100.0, 100.0, None, 100.0, 100.0),
    },
}

# Numbers that the paper itself took from others (Table 1): Jelassi et al.'s relative positions, encoder-only.
CITED = {"addition": {"rpe (Jelassi et al.)": (100.0, 99.9, 97.2, 21.3, None)}}
# Parity as classification, encoder-only, any length: Deletang et al. and Ruoss et al.
CITED_PARITY_CLASSIFICATION = (52.00, 52.60)

# The row of Tables 1 and 3 that a method of ours stands beside; the `places` methods have no row of their own.
BESIDE = {"abs-place": "abs-cpi", "abc-places": "abc-columns"}


def published(task: str, method: str, length: int) -> float | None:
    """The published percentage that a measured cell stands beside, or None."""
    rows = PUBLISHED.get(task, {})
    row = rows.get(method, rows.get(BESIDE.get(method, "")))
    return row[LENGTHS.index(length)] if row and length in LENGTHS else None
