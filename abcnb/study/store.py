"""Finds trained models and scores in `runs/`, else among those committed under `reports/`, and trains only then.

reports/models/<hash>/  a few committed runs: half-precision weights, lines, averaged attention
reports/results/        every measured score, and the validations behind them (`results`)
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from safetensors.torch import load_file, save

from abcnb.machine.files import check_writable, write_atomically
from abcnb.model.evaluation import Score
from abcnb.study import results, runs, views
from abcnb.study.experiments import Experiment
from abcnb.study.fingerprint import fingerprint, older
from abcnb.study.fitting import fit, is_usable
from abcnb.study.runs import RUNS, Run, is_finished
from abcnb.tasks.testsets import sample_count

REPORTS = RUNS.parent / "reports"


def find_run(run: Run | str | Path, where: Path | str = RUNS) -> Run:
    """A run: itself, from its folder, or by the start of its hash, in `where` or among the committed models."""
    if isinstance(run, Run):
        return run
    if os.path.isdir(run) or len(Path(run).parts) != 1:
        return runs.load_run(run)
    places = [place for place in (REPORTS / "models", Path(where)) if place.is_dir()]
    folders = [folder for place in places for folder in place.iterdir() if folder.name.startswith(str(run))]
    # If a run is in both places, take the one in `where`, whose weights are not rounded, unless it is unfinished.
    found = {folder.name: folder for folder in sorted(folders, key=is_finished)}
    if len(found) != 1:
        told = f"expected a run's folder, or the start of one's hash in {where} or {REPORTS / 'models'}"
        raise ValueError(f"{told}, got {str(run)!r}: {f'{len(found)} runs' if found else 'no run'}")
    return runs.load_run(*found.values())


def commit_run(run: Run, models: Path) -> Path:
    """Copy a run to a folder of committed models, with weights in half precision; returns the committed folder.

    Its scores are left out: those of the full weights are in accuracy.csv. Raises ValueError if its averaged
    attention is damaged. If the folder cannot be written, nothing of it remains.
    """
    if (run.folder / runs.ATTENTION).exists():
        run.attention()  # raises if it is damaged
    check_writable(models)
    target, temporary = models / run.experiment.digest, models / f".{run.experiment.digest}"
    shutil.rmtree(temporary, ignore_errors=True)
    left = shutil.ignore_patterns(runs.EVALUATIONS, runs.WEIGHTS, ".*")
    try:
        shutil.copytree(run.folder, temporary, ignore=left)
        halved = {name: value.half() for name, value in load_file(run.folder / runs.WEIGHTS).items()}
        write_atomically(temporary / runs.WEIGHTS, lambda name: name.write_bytes(save(halved)))
        known = {"content": runs.content_hash(temporary, run.experiment)}
        runs.write_json(temporary / runs.METRICS, run.metrics | known)
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


@dataclass(frozen=True)
class Store:
    """Trained models and measured scores, from the cheapest place; results made by other code are reported once."""

    runs: Path  # what is trained lands here
    reports: Path | None  # what is committed; None means to use nothing committed and no run of other code
    device: str = "auto"
    _said: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    def _say(self, codes: set[str]) -> None:
        """Say once, in one line, which results come from other code."""
        if line := older(codes - self._said, "stored=False (`python -m abcnb reports --fresh`)"):
            print(line)
        self._said.update(codes)

    def kept(self, experiment: Experiment) -> Path | None:
        """The folder of a finished run: in `runs`, else the committed one, whose weights are rounded."""
        places = (self.runs, *([self.reports / "models"] if self.reports else []))
        return next(filter(is_finished, (place / experiment.digest for place in places)), None)

    def run(self, experiment: Experiment) -> Run:
        """The trained model: from `runs`, else a committed one, else trained now."""
        kept = self.kept(experiment)
        if kept is None or kept.parent == self.runs:
            run = fit(experiment, self.runs, self.device, fresh=not self.reports)
        else:
            run = runs.load_run(kept, experiment)
        self._say({run.code})
        return run

    def _stored(self, file: str, experiment: Experiment) -> list[Any]:
        """An experiment's rows in a committed CSV; none if a run in `runs`, no older than they, replaces them."""
        if not self.reports:
            return []
        table = results.read(self.reports / "results" / file)
        rows = table[table["run"] == experiment.digest]
        newest = set(rows["code"]) == {fingerprint()}
        return [] if rows.empty or is_usable(experiment, self.runs, fresh=newest) else [*rows.itertuples()]

    def origin(self, experiments: Sequence[Experiment]) -> str:
        """Where stored models and numbers come from: hardware, date and code, in one line."""
        found = set()
        for e in experiments:
            if rows := self._stored("accuracy.csv", e):
                found |= {(row.hardware, row.date, row.code) for row in rows}
            elif kept := self.kept(e):
                run = Run(kept, e)
                found.add((run.metrics["hardware"], run.metrics.get("date", ""), run.code))
        if not found:
            return "Stored: nothing yet."
        hardware, dates, codes = (sorted(set(part)) for part in zip(*found, strict=True))
        when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
        return f"Stored: {', '.join(hardware)}; {when}; code {', '.join(codes)} (this code is {fingerprint()})."

    def history(self, experiment: Experiment) -> list[dict]:
        """Validations over training: step, seconds, loss, exact_match (percent), digit_error_rate."""
        if not (rows := self._stored("learning.csv", experiment)):
            return self.run(experiment).metrics["history"]
        self._say({row.code for row in rows})
        return [{name: getattr(row, name) for name in results.LEARNED} for row in rows]

    def cost(self, experiment: Experiment) -> dict:
        """What its training took: parameters (only trained ones), steps, seconds."""
        if not (rows := self._stored("accuracy.csv", experiment)):
            metrics = self.run(experiment).metrics
            return {name: metrics[name] for name in ("parameters", "steps", "seconds")}
        self._say({row.code for row in rows})
        return {"parameters": rows[0].parameters, "steps": rows[0].train_steps, "seconds": rows[0].train_seconds}

    def scores(self, experiment: Experiment, lengths: Sequence[int], samples: int = 10_000) -> list[Score]:
        """Exact match by length: of the run in `runs`, else committed for as many samples, else measured now."""
        rows, found, run = self._stored("accuracy.csv", experiment), [], None
        known = {row.length: results.score_of(row) for row in rows if row.test_set == "random"}
        for length in lengths:
            score = known.get(length)
            if score is None or score.samples != sample_count(experiment.get_task(), length, samples, "random"):
                run = run or self.run(experiment)  # which reads all its weights
                score = run.evaluate(length, samples, device=self.device, fresh=not self.reports)
            found.append(score)
        self._say({score.code for score in found})
        return found

    def table(
        self,
        experiments: Sequence[Experiment],
        lengths: Sequence[int],
        samples: int = 10_000,
        names: Sequence[str] = (),
    ) -> pd.DataFrame:
        """`scores` of many experiments: one row per experiment (its method, or one of `names`) and length.

        Its columns: those that tell experiments apart, those of a score, exact_match, low and high (its 95% Wilson
        interval), in percent, and digit_error_rate. Raises ValueError if there are no experiments.
        """
        if not experiments:
            raise ValueError("expected at least one experiment, got none; name a task, a method and a seed")
        names = names or [e.method for e in experiments]
        rows = [
            results.names(e) | {"method": name} | vars(score)
            for e, name in zip(experiments, names, strict=True)
            for score in self.scores(e, lengths, samples)
        ]
        print(self.origin(experiments))
        table = views.with_intervals(pd.DataFrame(rows))
        return table.assign(digit_error_rate=table["wrong_digits"] / table["digits"])


def open_store(runs_dir: str = "", reports_dir: str = "", stored: bool = True, device: str = "auto") -> Store:
    """A store from parameters as text; an empty folder name means the repository's own folder."""
    return Store(Path(runs_dir or RUNS), Path(reports_dir or REPORTS) if stored else None, device)
