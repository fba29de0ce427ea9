"""Whether the committed rows are still what this code measures: the committed models, evaluated again.

The committed models are a few of those behind the rows, their weights in half precision; one of a development seed,
which a notebook shows, has no published row and is left out. Rounding tips a few digits of a model that hardly knows
them one way or the other. So a row without a wrong digit must come out again exactly, and any other with as many wrong
digits up to `TOLERANCE` of all. (Other samples would differ by several times that.)
"""

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from abcnb import pipeline
from abcnb.files import write_atomically
from abcnb.rows import RowTask
from abcnb.study import results
from abcnb.study.fingerprint import fingerprint
from abcnb.study.runs import METRICS, load_run
from abcnb.tasks import Task
from abcnb.testsets import HARD_SAMPLES

CELLS = (("random", 6), ("random", 60), ("hard", 6), ("hard", 20), ("hard", 60))
TOLERANCE = 5e-4


def hard_samples(task: Task) -> int:
    """How many hard cases are asked for; a test set may have fewer."""
    return 500 if isinstance(task, RowTask) else HARD_SAMPLES


def verify(reports: Path, tell: Callable[[str], object] = lambda line: None) -> tuple[int, list[str]]:
    """Evaluate every committed model with this code and compare with its committed rows.

    Args:
        reports: folder of `models/` and `results/accuracy.csv`.
        tell: called with one line per model.

    Returns:
        How many rows agree, and a line for each that does not.

    Raises:
        ValueError: there is no folder of models.
    """
    if not (reports / "models").is_dir():
        raise ValueError(f"expected committed models in {reports / 'models'}, got no such folder")
    table = results.read(reports / "results" / "accuracy.csv")
    development = results.read(reports / "results" / "development.csv")
    agreed, disagreements = 0, []
    for folder in sorted(f for f in (reports / "models").glob("[!.]*") if f.is_dir()):
        run = load_run(folder)
        e, rows = run.experiment, table[table["run"] == folder.name]
        if rows.empty and (development["run"] == folder.name).any():
            tell(f"{e.task} {e.method} seed {e.seed}: of a development seed, shown by a notebook and not compared")
            continue
        model, data, same = run.model(), e.data(), 0
        cells = [row for row in rows.itertuples() if (row.test_set, row.length) in CELLS]
        if not cells:
            disagreements.append(f"{e.task} {e.method} seed {e.seed}: no committed row to compare with")
        for row in cells:
            asked = hard_samples(data.task) if row.test_set == "hard" else row.samples
            (score,) = pipeline.evaluate(model, data, [row.length], asked, row.test_set)
            off = abs(score.wrong_digits - row.wrong_digits) / score.digits
            exact = (score.samples, score.correct, score.wrong_digits) == (
                row.samples,
                row.correct,
                row.wrong_digits,
            )
            if exact or (score.samples == row.samples and row.wrong_digits and off <= TOLERANCE):
                agreed, same = agreed + 1, same + exact
            else:
                disagreements.append(
                    f"{e.task} {e.method} seed {e.seed}, {row.test_set} {row.length}: committed {row.correct} of "
                    f"{row.samples} and {row.wrong_digits} wrong digits, now {score.correct} of {score.samples} and "
                    f"{score.wrong_digits}"
                )
        tell(f"{e.task} {e.method} seed {e.seed}: {same} of {len(cells)} rows the same to the digit")
    return agreed, disagreements


def stamp_rows(reports: Path) -> int:
    """Give every committed row and model this code's fingerprint; returns how many rows."""
    code, count = fingerprint(), 0
    for name in (results.TABLES, results.DEVELOPMENT):
        scores = reports / "results" / f"{name}.csv"
        files = {scores: results.SCORES, results.learning_file(scores): results.VALIDATIONS}
        for file, content in files.items():
            if file.exists():
                with results.locked(file):
                    table: pd.DataFrame = results.read(file, content).assign(code=code)
                    write_atomically(file, lambda target, table=table: table.to_csv(target, index=False))
                count += len(table)
    for file in sorted((reports / "models").glob(f"[!.]*/{METRICS}")):
        metrics = json.dumps(json.loads(file.read_text()) | {"code": code}, indent=1)
        write_atomically(file, lambda target, metrics=metrics: target.write_text(metrics))
    return count
