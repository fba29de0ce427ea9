"""One function per figure; each takes results, never models, and returns the matplotlib Figure."""

from abcnb.show.figures.accuracy import (
    accuracy_by_length,
    cost_and_accuracy,
    exact_match_by_shape,
    exact_match_by_told,
    learning_curves,
    number_lengths,
    seeds,
)
from abcnb.show.figures.lines import bias_by_distance, explained_by_lines, line_strengths, reading_by_step
from abcnb.show.figures.maps import attention_maps, bias_maps, offset_maps, score_maps, source_layout

__all__ = [
    "accuracy_by_length",
    "attention_maps",
    "bias_by_distance",
    "bias_maps",
    "cost_and_accuracy",
    "exact_match_by_shape",
    "exact_match_by_told",
    "explained_by_lines",
    "learning_curves",
    "line_strengths",
    "number_lengths",
    "offset_maps",
    "reading_by_step",
    "score_maps",
    "seeds",
    "source_layout",
]
