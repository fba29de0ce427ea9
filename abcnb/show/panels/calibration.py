"""The calibration panel: move κ, directions and the other choices of ABC, see the lines, and retrain with them."""

from dataclasses import replace
from pathlib import Path

import ipywidgets as widgets
import pandas as pd
import torch

from abcnb.calibration import AveragedAttention, CalibrationConfig, calibrate_attention
from abcnb.evaluation import Score, percent
from abcnb.layout import Steps
from abcnb.machine import pick_device
from abcnb.show.panels.background import BackgroundTraining
from abcnb.show.panels.drawing import HeadMaps, accuracy_figure, to_png
from abcnb.show.panels.lines_view import PANEL_MIME, LinesView, choices_of, config_of, panel_data, panel_fragment
from abcnb.show.panels.panel import Panel, picture, table
from abcnb.show.style import COLOURMAP
from abcnb.study import results
from abcnb.study.experiments import Experiment
from abcnb.study.methods import experiment as build_experiment
from abcnb.study.runs import Run
from abcnb.study.settings import with_settings
from abcnb.study.store import REPORTS
from abcnb.tasks import Task

TESTED_LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 15, 20, 30, 60)
BEFOREHAND = (20, 60)  # digits of the stored scores that are shown beside the controls
FIRST_TARGET = 20  # digits that the biases are first drawn at


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


def measured_beforehand(experiment: Experiment, scores: pd.DataFrame) -> dict:
    """Stored exact match of an experiment and of others that differ from it in what the panel has controls for.

    Args:
        experiment: of ABC.
        scores: rows of accuracy.csv.

    Returns:
        `beforehand` as of `panel_data`, shares in percent.
    """
    names = ["task", "method", "preset", "seed"]
    same = (scores[names] == [getattr(experiment, name) for name in names]).all(axis=1)
    rows = scores[same & (scores["test_set"] == "random") & scores["length"].isin(BEFOREHAND)]
    frozen, found = build_experiment(*(getattr(experiment, name) for name in names)), []
    for settings, group in rows.groupby("settings"):
        parts = settings.split()
        if not all(part.startswith("calibration.") for part in parts):
            continue
        config = with_settings(frozen, parts).calibration
        if config_of(choices_of(config), frozen.calibration) != config:
            continue  # it differs in what has no control
        by_length = group.set_index("length")
        shares = (100 * by_length["correct"] / by_length["samples"]).to_dict()
        found.append(
            {
                "name": setting_name(config, frozen.calibration) + ("" if parts else " (frozen)"),
                "choices": choices_of(config),
                "shares": [percent(shares[n]) if n in shares else "not run" for n in BEFOREHAND],
            }
        )
    return {"lengths": list(BEFOREHAND), "scores": found}


class CalibrationPanel(Panel):
    """Recalibrates a run of ABC at every move of a control; retrains with what is found at the press of a button.

    Args:
        run: a run of ABC.
        runs: the folder of all runs, into which retrainings go.
        device: `auto`, `cpu` or `cuda`, for retraining and testing.
        samples: test samples per length.
        reports: the folder of committed results, some of which were retrained with other settings.

    Attributes:
        view: the controls, the lines that they find, and exact match after retraining with several settings; its
            `state` holds the choices.
        curves: digest of an experiment to the `curve` of its setting.
        training: the thread that last retrained, or None.
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
        self.training: BackgroundTraining | None = None
        self._make_retraining()
        e = run.experiment
        beforehand = measured_beforehand(e, results.read(Path(reports) / "results" / "accuracy.csv"))
        lengths = sorted({longest_trained(self.task), 10, 15, 20, 30, 60})
        title = f"{e.task}, {e.method}, seed {e.seed}."
        average = run.attention()
        data = panel_data(average, self.base, self.task, e.form, lengths, FIRST_TARGET, title, beforehand)
        self.view, self._fragment = LinesView(data), panel_fragment(data)
        scores = [run.evaluate(n, samples, device=pick_device(device)) for n in TESTED_LENGTHS]
        name = f"{setting_name(self.base, self.base)} (this run)"
        self.curves = {e.digest: curve(name, scores)}
        self._draw_curves()
        buttons = widgets.HBox([self.retrain_button, self.stop_button, self.progress])
        retraining = [buttons, self.status, self.curves_picture, self.curves_table]
        super().__init__([self.view], retraining, f"Calibration panel: {e.task}, {e.method}, seed {e.seed}")
        self.still = self._drawn(average)

    def _drawn(self, average: AveragedAttention) -> bytes:
        """A picture of the run's own lines, for where no browser draws them."""
        found, form = calibrate_attention(average, self.base), self.run.experiment.form
        width = max(self.task.digits_at(FIRST_TARGET) + 1, average.layout.width)
        rows = torch.arange(self.task.batch(self.task.smallest(width), form).target.shape[1])
        cross = found.cross_biases[-1](rows, self.task.layout(width, form))
        self_ = found.self_biases[-1](rows, Steps.all(len(rows)))
        title = f"bias at {FIRST_TARGET} digits: {setting_name(self.base, self.base)}"
        return HeadMaps(range(len(cross)), 1.15, COLOURMAP, "bias").show(cross, self_, title).png()

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
        return config_of(self.view.state, self.base)

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
