"""What the calibration panel shows of the lines, drawn and calibrated in the browser.

One script (`calibration_panel.js`) does what `calibration.line_table`, `to_bias` and `LineBias` do here, so that the
picture follows κ at once; a test holds the two equal. In JupyterLab anywidget runs it, and the kernel hears the
choices; on a page without a kernel it runs by itself, from one HTML fragment that loads nothing.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import anywidget
import matplotlib
import torch
import traitlets

from abcnb.calibration import AveragedAttention, CalibrationConfig, line_families, line_sums
from abcnb.layout import Layout, Steps
from abcnb.lines import DIRECTION_NAMES, FRAMES
from abcnb.show.style import COLOURMAP
from abcnb.tasks import Task

PANEL_MIME = "application/vnd.abcnb.panel+html"
TEMPLATES = Path(__file__).parents[1] / "templates"
DIRECTIONS = tuple(sorted(DIRECTION_NAMES))
# Numbers of all layers together; a fragment with more holds the last layer alone, to stay well under 300 kB.
MOST_NUMBERS = 40_000
DIGITS = 7  # what 32-bit numbers hold
# The choices of a `CalibrationConfig` that have a control; the others stay as they are.
CHOICES = (
    "kappa_cross", "kappa_self", "directions_cross", "directions_self", "statistic", "pool", "threshold_on",
    "min_support", "frame", "layer",
)  # fmt: skip

WIDGET = """
export default {
  render({model, el}) {
    const follow = show(el, model.get("data"), model.get("state"), state => {
      model.set("state", state);
      model.save_changes();
    });
    model.on("change:state", () => follow(model.get("state")));
  }
};
"""
PAGE = """<div class="tex2jax_ignore mathjax_ignore">
<style>{style}</style>
<div>
<p>This panel needs JavaScript: with it, moving κ or a direction redraws the lines of every head.</p>
<script>
(function () {{
"use strict";
{script}
const data = {data};
show(document.currentScript.parentElement, data, data.state, () => {{}});
}})();
</script>
</div>
</div>"""


def _template(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def choices_of(config: CalibrationConfig) -> dict:
    """The choices that have a control, as the script takes them."""
    choices = {name: getattr(config, name) for name in CHOICES}
    return choices | {name: sorted(choices[name]) for name in ("directions_cross", "directions_self")}


def config_of(state: Mapping, base: CalibrationConfig) -> CalibrationConfig:
    """A config with the choices of a state.

    Raises:
        ValueError: no direction is on, or a value that `CalibrationConfig` does not take.
    """
    for name in ("cross", "self"):
        if not state[f"directions_{name}"]:
            raise ValueError(f"No direction is on for {name}-attention: turn on at least one Δ.")
    chosen = {name: state[name] for name in CHOICES}
    numbers = {name: float(chosen[name]) for name in ("kappa_cross", "kappa_self", "min_support")}
    return replace(base, **chosen | numbers)


def _table(name: str, frame: str, layers: Sequence[torch.Tensor], columns: Layout | Steps, segments: int) -> dict:
    """The sums along every line of one attention, of each layer."""
    families = line_families(name, DIRECTIONS, frame, segments)
    found = [line_sums(layer, columns, families) for layer in layers]
    family, offset, support, _ = found[0]
    sums = [strength.tolist() for *_, strength in found]
    return {
        "rows": layers[0].shape[1],
        "families": [[family.direction, family.segment] for family in families],
        "family": family.tolist(),
        "offset": offset.tolist(),
        "support": support.tolist(),
        "strength": [[[float(f"{d:.{DIGITS}g}") for d in head] for head in layer] for layer in sums],
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
    beforehand: Mapping | None = None,
) -> dict:
    """The numbers that the script needs, ready for JSON.

    Args:
        average: the averaged attention that is calibrated.
        config: where the controls start.
        task, form: of the run, for the columns at each target length.
        lengths: target lengths to choose from, in digits.
        length: the one to start with.
        title: a line above the controls.
        beforehand: `lengths` and `scores` of models retrained with several choices: of each its `name`, `choices`
            (as of `choices_of`) and `shares`, a text per length.
    """
    steps = average.self_attention.shape[-1]
    rows = config.rows or steps
    attentions = {
        "cross": average.cross_attention[..., :rows, :],
        "self": average.self_attention[..., :rows, :],
    }
    columns = {"cross": average.layout, "self": Steps.all(steps)}
    layers = list(range(len(average.cross_attention)))
    found = {
        frame: {
            name: _table(name, frame, list(values), columns[name], average.layout.segments)
            for name, values in attentions.items()
        }
        for frame in FRAMES
    }
    parts = [part for frame in found.values() for part in frame.values()]
    if sum(len(head) for part in parts for layer in part["strength"] for head in layer) > MOST_NUMBERS:
        layers = layers[-1:]
        for part in parts:
            part["strength"] = part["strength"][-1:]
    colours = matplotlib.colormaps[COLOURMAP]
    fixed = ("value", "empty_head", "closed_rows")
    shown = len(layers) - 1
    names = [["the last, for all", {"layer": "last", "shown": shown}]]
    names += [
        [f"each its own; shown: {layer + 1}", {"layer": "each", "shown": i}] for i, layer in enumerate(layers)
    ]
    return {
        "title": title,
        "note": "Lines are kept whose strength exceeds κσ + μ and that cross enough of the rows.",
        "config": {name: getattr(config, name) for name in fixed},
        "directions": DIRECTIONS,
        "names": DIRECTION_NAMES,
        "layers": names,
        "frames": found,
        "sizes": [_size(task, form, n, average.layout.width) for n in lengths],
        "colours": [[round(255 * part) for part in colours(i / 15)[:3]] for i in range(16)],
        "beforehand": beforehand or {"lengths": [], "scores": []},
        "state": choices_of(config) | {"shown": shown, "size": list(lengths).index(length), "head": -1},
    }


def panel_fragment(data: dict) -> str:
    """A self-contained HTML fragment: style, script and numbers, nothing from elsewhere."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    style, script = _template("calibration_panel.css"), _template("calibration_panel.js")
    return PAGE.format(style=style, script=script, data=text)


class LinesView(anywidget.AnyWidget):
    """The controls and the lines that they find, as a widget.

    Args:
        data: as of `panel_data`.

    Attributes:
        state: what the controls say: the choices of `choices_of`, and which layer (`shown`), target length (`size`)
            and head are looked at.
    """

    _esm = _template("calibration_panel.js") + WIDGET
    _css = _template("calibration_panel.css")
    data = traitlets.Dict().tag(sync=True)
    state = traitlets.Dict().tag(sync=True)

    def __init__(self, data: dict):
        super().__init__(data=data, state=data["state"])
