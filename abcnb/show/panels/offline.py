"""The calibration panel for a page without a kernel: one HTML fragment that calibrates in plain JavaScript.

The fragment holds the strength of every line of every direction. κ and the directions are then moved in the browser,
where `calibration_panel.html` does what `calibration.line_table`, `to_bias` and `LineBias` do here; a test holds the
two equal. anywidget was weighed and left: its views start only under a widget manager, which a page that loads nothing
would have to contain.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import torch

from abcnb.calibration import AveragedAttention, CalibrationConfig, line_families, line_table
from abcnb.layout import Steps
from abcnb.lines import DIRECTION_NAMES
from abcnb.show.style import COLOURMAP
from abcnb.tasks import Task

PANEL_MIME = "application/vnd.abcnb.panel+html"
TEMPLATE = Path(__file__).parents[1] / "templates" / "calibration_panel.html"
DIRECTIONS = tuple(sorted(DIRECTION_NAMES))
# Numbers of all layers together; a fragment with more holds the last layer alone, to stay well under 300 kB.
MOST_NUMBERS = 20_000
DIGITS = 7  # what 32-bit numbers hold


def _rounded(values: torch.Tensor) -> list:
    return [[float(f"{value:.{DIGITS}g}") for value in row] for row in values.tolist()]


def _lines_of(
    name: str, attention: Sequence[torch.Tensor], average: AveragedAttention, config: CalibrationConfig
) -> dict:
    """Every line of one attention, of the given layers."""
    columns = average.layout if name == "cross" else Steps.all(attention[0].shape[-1])
    families = line_families(name, DIRECTIONS, config.frame, average.layout.segments)
    tables = [line_table(layer, columns, families, config) for layer in attention]
    return {
        "rows": attention[0].shape[1],
        "families": [[family.direction, family.segment] for family in families],
        "family": tables[0].family.tolist(),
        "offset": tables[0].offset.tolist(),
        "support": tables[0].support.tolist(),
        "strength": [_rounded(table.strength) for table in tables],
    }


def _size(task: Task, form: str, length: int, least_width: int) -> dict:
    """What the lines need to know of an input of this length."""
    width = max(task.digits_at(length) + 1, least_width)
    layout = task.layout(width, form)
    return {
        "name": f"{length} digits",
        "rows": task.batch(task.smallest(width), form).target.shape[1],
        "columns": len(layout),
        "places": layout.column_of_place.tolist(),
        "structural": layout.structural_columns.tolist(),
    }


def panel_data(
    average: AveragedAttention,
    config: CalibrationConfig,
    task: Task,
    form: str,
    lengths: Sequence[int],
    length: int,
    title: str,
) -> dict:
    """The numbers that the fragment needs, ready for JSON.

    Args:
        average: the averaged attention that is calibrated.
        config: the choices; κ and the directions are where the controls start, the others stay.
        task, form: of the run, for the columns at each target length.
        lengths: target lengths to choose from, in digits.
        length: the one to start with.
        title: a line above the controls.
    """
    layers = list(range(len(average.cross_attention)))
    attentions = {"cross": average.cross_attention, "self": average.self_attention}
    found = {name: _lines_of(name, list(values), average, config) for name, values in attentions.items()}
    count = sum(len(part["family"]) * len(part["strength"][0]) * len(layers) for part in found.values())
    if count > MOST_NUMBERS:
        layers = layers[-1:]
        for part in found.values():
            part["strength"] = part["strength"][-1:]
    last = len(average.cross_attention) - 1
    names = [f"layer {layer + 1}" + (" (the last)" if layer == last else "") for layer in layers]
    support = f"at least {config.min_support:.0%} of the rows"
    colours = matplotlib.colormaps[COLOURMAP]
    fixed = ("frame", "pool", "threshold_on", "min_support", "value", "empty_head", "closed_rows")
    return {
        "title": title,
        "note": (
            f"A line's strength is the {config.statistic} of its cells. Lines are kept whose strength exceeds κσ + μ "
            f"of their {config.pool} and that cross {support}."
        ),
        "config": {name: getattr(config, name) for name in fixed},
        "directions": DIRECTIONS,
        "names": DIRECTION_NAMES,
        "layers": names,
        "attentions": found,
        "sizes": [_size(task, form, n, average.layout.width) for n in lengths],
        "colours": [[round(255 * part) for part in colours(i / 15)[:3]] for i in range(16)],
        "state": {
            "kappa": {"cross": config.kappa_cross, "self": config.kappa_self},
            "directions": {"cross": sorted(config.directions_cross), "self": sorted(config.directions_self)},
            "layer": len(layers) - 1,
            "size": list(lengths).index(length),
        },
    }


def panel_fragment(data: dict) -> str:
    """The self-contained HTML fragment: style, script and numbers under one id, nothing from elsewhere."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    name = "abcnb-" + hashlib.sha256(text.encode()).hexdigest()[:10]
    return TEMPLATE.read_text(encoding="utf-8").replace("__ID__", name).replace("__DATA__", text)
