"""Checks that this code still measures the committed rows, by evaluating the committed models again.

Their weights are in half precision, which flips a few digits that a model is unsure of. So a row without a wrong
digit must come out exactly the same; in any other, wrong digits may differ by up to `TOLERANCE` of all digits.
(Other samples would differ by several times that.)"""

from pathlib import Path

import pandas as pd

from abcnb import pipeline
from abcnb.study import results
from abcnb.study.runs import load_run
from abcnb.tasks.testsets import HARD_SAMPLES

CELLS = [(name, length) for name in ("random", "hard") for length in (3, 6, 12, 60)]  # 3 is a depth of lists
TOLERANCE = 5e-4


def verify(reports: Path) -> tuple[int, list[str]]:
    """Evaluate every committed model with this code, compare its rows, and print how many are exactly the same.

    Returns how many rows agree, and a line for each that does not.
    """
    folders = sorted(folder for folder in (reports / "models").glob("[!.]*") if folder.is_dir())
    if not folders:
        raise ValueError(f"expected committed models in {reports / 'models'}, got none")
    table = pd.concat(results.read(reports / "results" / f"{name}.csv") for name in results.FILES)
    agreed, disagreements = 0, []
    for folder in folders:
        run = load_run(folder)
        model, data, same = run.model(), run.experiment.data(), 0
        name = f"{run.experiment.task} {run.experiment.method} seed {run.experiment.seed}"
        rows = table[table["run"] == folder.name].itertuples()
        cells = [row for row in rows if (row.test_set, row.length) in CELLS]
        if not cells:
            disagreements.append(f"{name}: no committed row to compare with")
        for row in cells:
            asked = HARD_SAMPLES if row.test_set == "hard" else row.samples
            (score,) = pipeline.evaluate(model, data, [row.length], asked, row.test_set)
            off = abs(score.wrong_digits - row.wrong_digits) / score.digits
            known, now = ((s.samples, s.correct, s.wrong_digits) for s in (row, score))
            exact = known == now
            if exact or (score.samples == row.samples and row.wrong_digits and off <= TOLERANCE):
                agreed, same = agreed + 1, same + exact
            else:
                told = " now ".join("{1} of {0} and {2} wrong digits,".format(*counts) for counts in (known, now))
                disagreements.append(f"{name}, {row.test_set} {row.length}: committed {told[:-1]}")
        print(f"{name}: {same} of {len(cells)} rows the same to the digit")
    return agreed, disagreements
