"""The calibration panel: move κ, directions and the other choices of ABC, see the lines, and retrain with them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import ipywidgets as widgets
import pandas as pd
import torch

from abcnb.biases import CLOSED
from abcnb.calibration import AveragedAttention, CalibrationConfig, calibrate_attention
from abcnb.devices import pick_device
from abcnb.evaluation import Score, percent
from abcnb.layout import Steps
from abcnb.lines import DIRECTION_NAMES, FRAMES
from abcnb.show.panels.background import BackgroundTraining
from abcnb.show.panels.drawing import HeadMaps, accuracy_figure, to_png
from abcnb.show.panels.offline import DIRECTIONS, PANEL_MIME, panel_data, panel_fragment
from abcnb.show.panels.panel import Panel, dropdown, picture, slider, table, toggles
from abcnb.show.style import COLOURMAP
from abcnb.study import results
from abcnb.study.experiments import Experiment
from abcnb.study.methods import settings_of
from abcnb.study.runs import Run
from abcnb.study.store import REPORTS
from abcnb.tasks import Task

TESTED_LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 15, 20, 30, 60)
BEFOREHAND = (20, 60)  # digits of the stored scores that are shown beside the controls
FIRST_TARGET = 20  # digits that the biases are first drawn at


@dataclass(frozen=True)
class Lines:
    """What a calibration found for one layer, and its bias at one length.

    Attributes:
        kept: the kept lines: head, attention, direction, operand, offset, support, strength, z_score.
        heads: for each head, how many columns a typical row opens: head, cross_open, self_open (the median
            over rows), cross_transparent, self_transparent.
        cross, self_: the biases at the target length, [heads, rows, columns] and [heads, rows, rows].
    """

    kept: pd.DataFrame
    heads: pd.DataFrame
    cross: torch.Tensor
    self_: torch.Tensor


def chosen_config(base: CalibrationConfig, choices: Mapping) -> CalibrationConfig:
    """The config with some choices made.

    Raises:
        ValueError: no direction is on, or a value that `CalibrationConfig` does not take.
    """
    for name in ("cross", "self"):
        if not choices.get(f"directions_{name}", True):
            raise ValueError(f"No direction is on for {name}-attention: turn on at least one Δ.")
    return replace(base, **choices)


def lines_of(
    average: AveragedAttention, config: CalibrationConfig, task: Task, form: str, length: int, layer: int = 0
) -> Lines:
    """Calibrate, and expand the bias of one layer to a target length.

    Args:
        average: the averaged attention.
        config: the choices.
        task, form: of the run, for the columns of longer inputs.
        length: target length in digits; operands are padded to one more, and to the training width at least.
        layer: index among the layers that are calibrated; 0 where all share the last one's lines.
    """
    found = calibrate_attention(average, config)
    width = max(task.digits_at(length) + 1, average.layout.width)
    columns = task.layout(width, form)
    rows = torch.arange(task.batch(task.smallest(width), form).target.shape[1])
    cross_bias, self_bias = found.cross_biases[layer], found.self_biases[layer]
    cross, self_ = cross_bias(rows, columns), self_bias(rows, Steps.all(len(rows)))
    tables = []
    for name, part in (("cross", found.cross_tables[layer]), ("self", found.self_tables[layer])):
        kept = part.to_dataframe().query("kept")
        in_operand = (kept["direction"] != 0) & (name == "cross") & (config.frame == "places")
        operand = (kept["segment"] + 1).astype(str).where(in_operand, "")
        direction = kept["direction"].map(DIRECTION_NAMES)
        columns_kept = kept[["offset", "support", "strength", "z_score"]]
        tables.append(
            pd.concat(
                [kept[["head"]].assign(attention=name, direction=direction, operand=operand), columns_kept], axis=1
            )
        )
    heads = pd.DataFrame({"head": range(len(cross))})
    for name, bias, values in (("cross", cross_bias, cross), ("self", self_bias, self_)):
        heads[f"{name}_open"] = (values > CLOSED).sum(-1).median(-1).values.numpy()
        heads[f"{name}_transparent"] = heads["head"].isin(bias.transparent_heads)
    return Lines(pd.concat(tables, ignore_index=True), heads, cross, self_)


def note_on(lines: Lines) -> str:
    """A line for the reader where an attention keeps no line at all; nothing otherwise."""
    empty = [name for name in ("cross", "self") if not (lines.kept["attention"] == name).any()]
    if not empty:
        return ""
    which = " and ".join(f"{name}-attention" for name in empty)
    return f"No line is kept in {which}, so all its heads are transparent: lower κ or the minimum support."


def setting_name(config: CalibrationConfig, base: CalibrationConfig) -> str:
    """A setting in short: κ cross/self, Δ cross / self, and what else differs from the run's own config."""
    deltas = (" ".join(map(str, d)) for d in (config.directions_cross, config.directions_self))
    text = f"κ {round(config.kappa_cross, 2)}/{round(config.kappa_self, 2)}, Δ {' / '.join(deltas)}"
    words = {
        "frame": config.frame,
        "statistic": config.statistic,
        "pool": f"pool {config.pool}",
        "threshold_on": f"threshold on {config.threshold_on}",
        "min_support": f"support {config.min_support:g}",
        "layer": f"{config.layer} layer",
    }
    changed = [word for name, word in words.items() if getattr(config, name) != getattr(base, name)]
    return ", ".join([text, *changed]).replace("-", "−")


def longest_trained(task: Task) -> int:
    """The longest training length in the measure of tests: decimal digits for Parity, too."""
    return max((n for n in range(1, 61) if task.digits_at(n) <= task.train_length), default=1)


def curve(name: str, scores: list[Score]) -> pd.DataFrame:
    """Scores as `draw_accuracy` takes them, under the name of their setting."""
    rows = [(name, score.length, score.exact_match, *score.interval) for score in scores]
    return pd.DataFrame(rows, columns=["method", "length", "exact_match", "low", "high"])


def lines_html(lines: Lines, heads: Sequence[int]) -> str:
    """The kept lines of some heads, and how many columns every head opens, as HTML tables."""

    def columns(count: int, transparent: bool) -> str:
        return "all: transparent" if transparent else str(count)

    kept = lines.kept[lines.kept["head"].isin(heads)].copy()
    kept["strength"] = kept["strength"].map("{:#.4g}".format)
    kept["z-score"] = kept.pop("z_score").map("{:.2f}".format)
    for name in ("offset", "strength", "z-score"):
        kept[name] = kept[name].astype(str).str.replace("-", "−")
    opened = [
        (row.head, columns(row.cross_open, row.cross_transparent), columns(row.self_open, row.self_transparent))
        for row in lines.heads.itertuples()
    ]
    return (
        '<div style="display:flex;flex-wrap:wrap;gap:1em 2em;align-items:flex-start">'
        f"<div><b>{len(kept)} kept lines</b><br>{table(list(kept), kept.values.tolist(), 3)}</div>"
        "<div><b>Columns that a typical row opens</b><br>"
        f"{table(['head', 'cross-attention', 'self-attention'], opened)}</div></div>"
    )


def measured_beforehand(experiment: Experiment, scores: pd.DataFrame) -> dict[str, list[str]]:
    """Stored exact match (percent) at `BEFOREHAND` of an experiment and of others that differ in calibration alone.

    Args:
        experiment: of ABC.
        scores: rows of accuracy.csv.

    Returns:
        The settings that differ, as for `--set`, to a text for each length; empty where nothing is stored.
    """
    names = ["task", "method", "preset", "seed"]
    same = (scores[names] == [getattr(experiment, name) for name in names]).all(axis=1)
    rows = scores[same & (scores["test_set"] == "random") & scores["length"].isin(BEFOREHAND)]
    found = {}
    for settings, group in rows.groupby("settings"):
        if all(part.startswith("calibration.") for part in settings.split()):
            by_length = group.set_index("length")
            shares = (100 * by_length["correct"] / by_length["samples"]).to_dict()
            found[settings] = [percent(shares[n]) if n in shares else "not run" for n in BEFOREHAND]
    return found


class CalibrationPanel(Panel):
    """Recalibrates a run of ABC at every move of a control; retrains with what is found at the press of a button.

    Args:
        run: a run of ABC.
        runs: the folder of all runs, into which retrainings go.
        device: `auto`, `cpu` or `cuda`, for retraining and testing.
        samples: test samples per length.
        reports: the folder of committed results, some of which were retrained with other settings.

    Attributes:
        lines: what the controls' calibration finds, or what it last found.
        curves: digest of an experiment to the `curve` of its setting.
        training: the thread that last retrained, or None.
        picture, tables: of the lines that the controls find.
        beforehand: stored exact match after retraining with several settings; that of the controls is marked.
        curves_picture, curves_table: of the exact match of all settings so far.

    Raises:
        ValueError: the run has no calibrated lines.
    """

    def __init__(
        self, run: Run, runs: Path, device: str = "auto", samples: int = 1000, reports: Path | str = REPORTS
    ):
        if run.experiment.calibration is None:
            raise ValueError(f"expected a run of ABC, whose lines are calibrated, got {run.experiment.method!r}")
        self.run, self.runs, self.device, self.samples = run, Path(runs), device, samples
        self.base, self.task = run.experiment.calibration, run.experiment.get_task()
        self.average = run.attention()
        self.lines: Lines | None = None
        self.training: BackgroundTraining | None = None
        self._maps: dict[tuple, HeadMaps] = {}
        self._make_controls()
        self._make_retraining()
        self.picture, self.tables, self.beforehand = picture(), widgets.HTML(), widgets.HTML()
        e = run.experiment
        self._measured = measured_beforehand(e, results.read(Path(reports) / "results" / "accuracy.csv"))
        described = f"Calibration panel: {e.task}, {e.method}, seed {e.seed}"
        retraining = [widgets.HBox([self.retrain_button, self.stop_button, self.progress]), self.status]
        super().__init__(self._rows_of_controls(), [self.beforehand, self.picture, self.tables], described)
        scores = [run.evaluate(n, samples, device=pick_device(device)) for n in TESTED_LENGTHS]
        name = f"{setting_name(self.base, self.base)} (this run)"
        self.curves = {e.digest: curve(name, scores)}
        self._draw_curves()
        self.children = (*self.children, *retraining, self.curves_picture, self.curves_table)
        self.start(self._watched(), [self.picture])
        title = f"{e.task}, {e.method}, seed {e.seed}."
        lengths = sorted({longest_trained(self.task), 10, 15, 20, 30, 60})
        data = panel_data(self.average, self.base, self.task, e.form, lengths, FIRST_TARGET, title)
        self._fragment = panel_fragment(data)

    def _make_controls(self) -> None:
        base = self.base
        self.kappa = {
            name: slider(
                widgets.FloatSlider, f"κ {name}", value=value, min=min(-2.0, value), max=max(6.0, value), step=0.05
            )
            for name, value in (("cross", base.kappa_cross), ("self", base.kappa_self))
        }
        self.directions = {
            name: {
                delta: widgets.ToggleButton(
                    value=delta in on, description=str(delta).replace("-", "−"), layout={"width": "3.6em"}
                )
                for delta in DIRECTIONS
            }
            for name, on in (("cross", base.directions_cross), ("self", base.directions_self))
        }
        self.statistic = dropdown(
            "line strength", [("sum of its cells", "sum"), ("mean of its cells", "mean")], base.statistic
        )
        pools = [("all lines of a head", "head"), ("each direction of a head", "direction")]
        self.pool = dropdown("σ and μ over", pools, base.pool)
        rules = [("strength", "line"), ("strength − maximum", "centred")]
        self.threshold_on = dropdown("threshold on", rules, base.threshold_on)
        support = {"value": base.min_support, "min": 0.0, "max": 1.0, "step": 0.05}
        self.min_support = slider(widgets.FloatSlider, "minimum support", **support)
        self.frame = dropdown("frame", sorted(FRAMES, reverse=True), base.frame)
        count = len(self.average.cross_attention)
        layers = [("last layer, for all", ("last", 0))]
        layers += [(f"each its own; shown: {i + 1}", ("each", i)) for i in range(count)]
        start = layers[0][1] if base.layer == "last" else ("each", count - 1)
        self.layer = dropdown("layer", layers, start)
        heads = self.run.experiment.model.heads
        self.head = dropdown("head", ["all", *range(heads)], "all")
        length = {"value": FIRST_TARGET, "min": 1, "max": 60}
        self.length = slider(widgets.IntSlider, "length (digits)", **length)

    def _rows_of_controls(self) -> list[widgets.Widget]:
        deltas = {name: toggles(f"Δ {name}", list(buttons.values())) for name, buttons in self.directions.items()}
        left = [self.kappa["cross"], deltas["cross"], self.kappa["self"], deltas["self"], self.length, self.head]
        right = [self.statistic, self.pool, self.threshold_on, self.min_support, self.frame, self.layer]
        columns = [widgets.VBox(part, layout={"margin": "0 1em 0 0"}) for part in (left, right)]
        return [widgets.HBox(columns, layout={"flex_flow": "row wrap"})]

    def _watched(self) -> list[widgets.Widget]:
        toggles = [button for buttons in self.directions.values() for button in buttons.values()]
        others = [self.statistic, self.pool, self.threshold_on, self.min_support, self.frame, self.layer]
        return [*self.kappa.values(), *toggles, *others, self.head, self.length]

    def _make_retraining(self) -> None:
        self.retrain_button = widgets.Button(
            description="Retrain with these lines", button_style="primary", layout={"width": "16em"}
        )
        self.stop_button = widgets.Button(description="Stop", disabled=True, layout={"width": "7em"})
        self.progress = widgets.IntProgress(value=0, min=0, max=1, layout={"width": "20em"})
        self.status = widgets.Label("")
        self.curves_picture, self.curves_table = picture(), widgets.HTML()
        self.retrain_button.on_click(lambda _: self.retrain())
        self.stop_button.on_click(lambda _: self.stop())

    @property
    def config(self) -> CalibrationConfig:
        """The run's config with the controls' choices.

        Raises:
            ValueError: no direction is on.
        """
        choices = {f"kappa_{name}": round(control.value, 4) for name, control in self.kappa.items()}
        for name, buttons in self.directions.items():
            choices[f"directions_{name}"] = tuple(delta for delta, button in buttons.items() if button.value)
        for name in ("statistic", "pool", "threshold_on", "frame"):
            choices[name] = getattr(self, name).value
        layer, _ = self.layer.value
        return chosen_config(
            self.base, choices | {"min_support": round(self.min_support.value, 4), "layer": layer}
        )

    def redraw(self) -> str:
        config, (_, layer), form = self.config, self.layer.value, self.run.experiment.form
        self.lines = lines_of(self.average, config, self.task, form, self.length.value, layer)
        heads = tuple(range(len(self.lines.cross))) if self.head.value == "all" else (self.head.value,)
        if heads not in self._maps:
            self._maps[heads] = HeadMaps(heads, 1.15, COLOURMAP, "bias")
        title = f"bias at {self.length.value} digits: {setting_name(config, self.base)}"
        self.picture.value = self._maps[heads].show(self.lines.cross, self.lines.self_, title).png()
        self.tables.value = lines_html(self.lines, heads)
        self.beforehand.value = self._beforehand_html(
            settings_of(replace(self.run.experiment, calibration=config))
        )
        return note_on(self.lines)

    def _beforehand_html(self, here: str) -> str:
        """The stored scores, the row of these settings marked; nothing where none are stored."""
        if not self._measured:
            return ""
        rows = [
            ["→" if settings == here else "", settings.replace("calibration.", "") or "as frozen", *shares]
            for settings, shares in self._measured.items()
        ]
        header = ["", "retrained beforehand with", *(f"{n} digits" for n in BEFOREHAND)]
        summary = "Exact match (%) after retraining, stored" + (
            "" if here in self._measured else "; not with these settings"
        )
        return f"<details open><summary>{summary}</summary>{table(header, rows, 2)}</details>"

    def retrain(self) -> None:
        """Train the run's experiment with the controls' calibration in the background, and test it."""
        if self.training is not None and self.training.is_alive():
            return
        try:
            config = self.config
            experiment = replace(self.run.experiment, calibration=config)
        except ValueError as error:
            self.status.value = str(error)
            return
        self.retrain_button.disabled, self.stop_button.disabled = True, False
        self.training = BackgroundTraining(
            experiment,
            self.runs,
            TESTED_LENGTHS,
            self.samples,
            self.device,
            self.show_progress,
            lambda scores, text: self._finish(experiment, setting_name(config, self.base), scores, text),
        )
        self.training.start()

    def stop(self) -> None:
        """Ask the training to stop, which it does within a second, or after the length that is being tested."""
        if self.training is not None and self.training.is_alive():
            self.training.ask_to_stop()
            self.stop_button.disabled = True
            self.status.value = "stopping"

    def show_progress(self, done: int, total: int, text: str) -> None:
        """Show how many steps of how many are done, and a line for the reader."""
        self.progress.max = max(total, 1)
        self.progress.value = done if total else 1
        self.status.value = text

    def _finish(self, experiment: Experiment, name: str, scores: list[Score] | None, text: str) -> None:
        if scores is not None and experiment.digest not in self.curves:
            self.curves[experiment.digest] = curve(name, scores)
            self._draw_curves()
        self.status.value = text
        self.retrain_button.disabled, self.stop_button.disabled = False, True

    def _draw_curves(self) -> None:
        curves = pd.concat(self.curves.values())
        self.curves_picture.value = to_png(accuracy_figure(curves, longest_trained(self.task)))
        header = ["exact match (%) at", *map(str, TESTED_LENGTHS)]
        rows = [
            [name, *map("{:.1f}".format, points["exact_match"])]
            for name, points in curves.groupby("method", sort=False)
        ]
        self.curves_table.value = table(header, rows, 1)

    def _repr_mimebundle_(self, **kwargs) -> dict:
        return super()._repr_mimebundle_(**kwargs) | {PANEL_MIME: self._fragment}
