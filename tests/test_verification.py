"""Committed rows are compared with what this code measures."""

import pytest

from abcnb.study import results
from abcnb.study.store import commit_run
from abcnb.study.verification import verify


@pytest.fixture
def reports(vanilla_run, tmp_path):
    """A committed model with a row of its hard cases and its curve."""
    commit_run(vanilla_run, tmp_path / "models")
    score = vanilla_run.evaluate(6, 1000, "hard")
    results.record(tmp_path / "results" / "accuracy.csv", [results.row(vanilla_run, "hard", score)])
    results.record(tmp_path / "results" / "learning.csv", results.learning_rows(vanilla_run))
    return tmp_path


def change(reports, **values):
    file = reports / "results" / "accuracy.csv"
    results.read(file).assign(**values).to_csv(file, index=False)


def test_a_row_that_comes_out_again_agrees(reports, capsys):
    assert verify(reports) == (1, [])
    (told,) = capsys.readouterr().out.splitlines()
    assert told.startswith("successor vanilla seed 0: ")


def test_what_is_no_model_is_passed_over(reports):
    (reports / "models" / ".DS_Store").touch()
    (reports / "models" / ".5cd1db9831b3").mkdir()
    (reports / "models" / ".5cd1db9831b3" / "metrics.json").write_text("{}")
    assert verify(reports) == (1, [])
    (reports / "models" / "5cd1db9831b3").mkdir()  # a model, without its files
    with pytest.raises(ValueError, match="5cd1db9831b3, but it has no config"):
        verify(reports)


@pytest.mark.parametrize("values", [{"wrong_digits": 3, "correct": 500}, {"samples": 7}])
def test_a_row_that_does_not_is_named_with_both_counts(reports, values):
    change(reports, **values)
    agreed, (line,) = verify(reports)
    assert agreed == 0 and line.startswith("successor vanilla seed 0, hard 6: committed ")
    assert all(str(value) in line.partition(", now ")[0] for value in values.values())


def test_a_model_of_a_development_seed_is_compared_with_its_own_rows(reports, abc_run):
    commit_run(abc_run, reports / "models")
    assert verify(reports)[1] == ["successor abc seed 0: no committed row to compare with"]
    row = results.row(abc_run, "random", abc_run.evaluate(6, 20))
    results.record(reports / "results" / "development.csv", [row])
    assert verify(reports) == (2, [])
