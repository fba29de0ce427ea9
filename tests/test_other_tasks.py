"""The table of other tasks."""

import pandas as pd

from abcnb.study import other_tasks, results
from abcnb.study.tables import TABLE_BEGINS, TABLE_ENDS
from tests.test_results import made_up


def scores(**named):
    """Rows at every length of the table and two of the benchmark's, with so many of 100 right."""
    lengths = [*other_tasks.lengths(), 41, 500]
    rows = [made_up(task="reverse-string", samples=100, length=n) | named for n in lengths]
    return pd.DataFrame(rows, columns=results.COLUMNS)


LINE = {"task": "reverse-string", "seed": 0, "attention": "cross", "kind": "digits", "settings": ""}
LINES = [("a[place]", 0.5), ("&", 0.9), ("a[place-1]", 0.3)]


def test_a_row_has_both_methods_by_length_the_score_and_the_lines_that_move():
    table = pd.concat(
        [
            scores(method="vanilla", correct=50),
            scores(method="abc", correct=100),
            scores(method="abc", seed=1, correct=98),
        ]
    )
    found = pd.DataFrame([LINE | {"line": line, "share": share} for line, share in LINES])
    (row,) = other_tasks.table(table, found, ["reverse-string"]).to_dict("records")
    assert row["seeds"] == 2 and row["`vanilla`"] == "50.00 / 50.00 / 50.00 / 50.00"
    assert row["`abc`"] == " / ".join(["99.00, worst 98.00"] * 4) and row["41 to 500"] == "99.00, worst 98.00"
    assert row["their Transformer"] == 62.3 and row["lines"] == "3: a[place] 0.50, a[place-1] 0.30"


def test_minutes_are_those_of_both_trainings_each_of_the_fastest_seed():
    trained = [("vanilla", 0, 60), ("vanilla", 1, 120), ("abc", 0, 30), ("abc", 1, 60)]
    table = pd.concat([scores(method=method, seed=seed, train_seconds=s) for method, seed, s in trained])
    (row,) = other_tasks.table(
        table, pd.DataFrame([LINE | {"line": "&", "share": 1}]), ["reverse-string"]
    ).to_dict("records")
    assert row["minutes"] == "1.5"  # (60 + 30) / 60


def test_of_a_seed_whose_plain_model_was_trained_for_longer_the_last_attempt_counts():
    longer = {"seed": 1, "train_steps": 1600, "correct": 100}
    table = pd.concat(
        [
            *(scores(method="vanilla", seed=seed, train_steps=800, correct=5) for seed in (0, 1)),
            scores(method="abc", seed=0, correct=100),
            scores(method="abc", seed=1, correct=0),
            scores(method="vanilla", settings="training.steps=1600", **longer),
            scores(method="abc", settings="interpolation.training.steps=1600", **longer),
        ]
    )
    found = pd.DataFrame([LINE | {"line": line, "share": share} for line, share in LINES])
    (row,) = other_tasks.table(table, found, ["reverse-string"]).to_dict("records")
    assert row["41 to 500"] == "100" and row["`abc`"] == " / ".join(["100"] * 4)
    assert row["`vanilla`"] == " / ".join(["52.50, worst 5.00"] * 4)
    assert row["plain steps"] == "800 (seed 0), 1,600 (seed 1)"


def test_what_was_not_run_says_so():
    (row,) = other_tasks.table(
        scores(method="vanilla"), pd.DataFrame([LINE | {"line": "&", "share": 1}])[:0], ["copy"]
    ).to_dict("records")
    assert row["`abc`"] == row["lines"] == row["minutes"] == "not run" and row["seeds"] == 0


def test_the_committed_page_is_current(repository):
    text = (repository / "reports" / "other_tasks.md").read_text()
    shown = text.partition(TABLE_BEGINS)[2].partition(TABLE_ENDS)[0].strip()
    assert shown == other_tasks.page(repository / "reports")
