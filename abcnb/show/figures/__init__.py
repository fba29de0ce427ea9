"""One function per figure; each takes results, never models, and returns the matplotlib Figure."""

# ruff: noqa: F401 (the names are for notebooks)
from abcnb.show.figures.accuracy import (
    accuracy_by_length,
    cost_and_accuracy,
    exact_match_by_shape,
    exact_match_by_task,
    exact_match_by_told,
    learning_curves,
    number_lengths,
    seeds,
)
from abcnb.show.figures.lines import (
    bias_by_distance,
    explained_by_lines,
    line_strengths,
    margins,
    plateau,
    reading_by_step,
)
from abcnb.show.figures.maps import attention_maps, bias_maps, offset_maps, score_maps, source_layout
