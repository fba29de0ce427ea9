import csv
import multiprocessing
from pathlib import Path

import pandas as pd
import pytest

from abcnb.model.evaluation import Score, percent
from abcnb.study import results, views
from abcnb.study.methods import experiment
from abcnb.study.published import Choice
from abcnb.study.results import COLUMNS, SCORES, content_of, read, record
from abcnb.study.settings import settings_of, with_settings
from abcnb.study.sweep import read_sweep
from tests.made_up import made_up

HEADER = "task,method,preset,seed,test_set,length,samples,correct,wrong_digits,train_steps,train_seconds,device"

REPOSITORY = Path(__file__).parents[1]


def test_the_header_begins_as_agreed(tmp_path):
    record(tmp_path / "new" / "accuracy.csv", [made_up()])
    first = (tmp_path / "new" / "accuracy.csv").read_text().splitlines()[0]
    assert first == HEADER or first.startswith(HEADER + ",")


def test_a_row_of_a_run(vanilla_run):
    row = results.row(vanilla_run, "random", Score(6, 100, 40, 75, 800))
    assert list(row) == COLUMNS
    assert (row["task"], row["method"], row["preset"], row["seed"]) == ("successor", "vanilla", "smoke", 0)
    assert (row["length"], row["samples"], row["correct"], row["wrong_digits"]) == (6, 100, 40, 75)
    assert (row["train_steps"], row["device"], row["digits"], row["train_width"]) == (20, "cpu", 800, 7)
    assert row["run"] == vanilla_run.folder.name


def test_a_row_of_the_same_key_is_replaced_and_others_stay(tmp_path):
    file = tmp_path / "accuracy.csv"
    record(file, [made_up(correct=1), made_up(length=10, correct=2)])
    record(file, [made_up(correct=3), made_up(seed=1, correct=4), made_up(test_set="hard", correct=5)])
    table = read(file)
    found = {(row.seed, row.test_set, row.length): row.correct for row in table.itertuples()}
    assert found == {(0, "random", 6): 3, (0, "random", 10): 2, (1, "random", 6): 4, (0, "hard", 6): 5}
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")) == ["accuracy.csv"]
    before = file.read_text()
    record(file, [made_up(correct=3)])
    assert file.read_text() == before


def test_what_is_written_is_read_back(tmp_path):
    file = tmp_path / "accuracy.csv"
    assert list(read(file).columns) == COLUMNS and len(read(file)) == 0
    record(file, [made_up(task="n-by-1"), made_up()])
    assert read(file).to_dict("records") == [made_up(), made_up(task="n-by-1")]


@pytest.mark.parametrize("name, place", [("any.csv", "length"), ("development-learning.csv", "step")])
def test_rows_of_a_configuration_that_is_no_longer_go(tmp_path, name, place):
    file = tmp_path / name

    def rows(run, *places):
        values = made_up() | dict.fromkeys(results.LEARNED, 1.0)
        made = [values | {"run": run, place: at} for at in places]
        return [{key: row[key] for key in content_of(file).columns} for row in made]

    record(file, rows("old", 6, 10, 60))
    record(file, [row | {"seed": 1} for row in rows("old of seed 1", 6)])
    record(file, rows("new", 6))
    table = read(file)
    assert sorted(zip(table["run"], table["seed"], strict=True)) == [("new", 0), ("old of seed 1", 1)]


def write_ten(file, seed):
    for length in range(1, 11):
        record(file, [made_up(seed=seed, length=length)])


def test_four_processes_can_write_at_once(tmp_path):
    file = tmp_path / "accuracy.csv"
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=write_ten, args=(file, seed)) for seed in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    table = read(file)
    assert len(table) == 40 and set(zip(table["seed"], table["length"], strict=True)) == {
        (seed, length) for seed in range(4) for length in range(1, 11)
    }


@pytest.mark.parametrize("text", ["a,b\n1,2\n", HEADER + "\n", ",".join(reversed(COLUMNS)) + "\n"])
def test_foreign_columns_are_refused_and_left_alone(tmp_path, text):
    file = tmp_path / "accuracy.csv"
    file.write_text(text)
    with pytest.raises(ValueError, match="expected the columns task,method"):
        record(file, [made_up()])
    assert file.read_text() == text


@pytest.mark.parametrize(
    "damage, told",
    [
        (lambda text: text.replace("\n", "\n<<<<<<< HEAD\n", 2), "expected a number as seed in line 2 of"),
        (lambda text: text[: len(text) // 2 + len(HEADER) // 2], "expected a number as .* in line 2 of"),
        (lambda text: "", "expected a table in .*accuracy.csv, got: "),
        (lambda text: text + "1," * 99 + "\n", "expected a table in .*accuracy.csv, got: "),
    ],
)
def test_a_damaged_file_is_named_and_left_alone(tmp_path, damage, told):
    file = tmp_path / "accuracy.csv"
    record(file, [made_up()])
    file.write_text(damage(file.read_text()))
    text = file.read_text()
    with pytest.raises(ValueError, match=told):
        record(file, [made_up(seed=3)])
    assert file.read_text() == text


@pytest.mark.parametrize(
    "value, text",
    [(100.0, "100"), (99.999, "99.99"), (99.9999999, "99.99"), (99.991, "99.99"), (99.98, "99.98"), (0.0, "0.00"),
     (29.23, "29.23")],
)  # fmt: skip
def test_a_hundred_percent_is_shown_only_where_nothing_was_missed(value, text):
    assert percent(value) == text


def test_a_score_shows_its_interval():
    told = "6 digits: 50.00% of 100 exact (95% interval 40.38 to 59.62), 70 of 800 digits wrong"
    assert str(Score(6, 100, 50, 70, 800)) == told
    assert " 100% " not in str(Score(6, 10**6, 10**6 - 1, 1, 10**7))


def test_committed_results_are_in_order(repository):
    file = repository / "reports" / "results" / "accuracy.csv"
    with file.open() as opened:
        assert opened.readline().startswith(HEADER)
        opened.seek(0)
        rows = list(csv.DictReader(opened))
    assert rows
    for row in rows:
        assert 0 <= int(row["correct"]) <= int(row["samples"])
        assert int(row["samples"]) - int(row["correct"]) <= int(row["wrong_digits"]) <= int(row["digits"])
    keys = [tuple(row[name] for name in SCORES.key) for row in rows]
    assert len(set(keys)) == len(keys)


def test_every_committed_number_can_be_asked_for_by_name_and_by_a_sweep():
    asked = set()
    for spec in sorted((REPOSITORY / "reports/sweeps").glob("*.toml")):
        for wanted in read_sweep(spec)[0]:
            asked |= {wanted.digest} | ({wanted.interpolation.digest} if wanted.interpolation else set())
    folder = REPOSITORY / "reports/results"
    scores = [folder / f"{name}.csv" for name in results.FILES]
    files = [*scores, *(file for name in scores for file in results.beside(name)), folder / "certificates.csv"]
    assert {file for file in files if file.exists()} == set(folder.glob("*.csv")) - {folder / "why.csv"}
    rows = pd.concat([read(file)[[*results.NAMES, "run"]] for file in files]).drop_duplicates()
    alike = [name for name in results.NAMES if name != "seed"]
    # Of rows that differ in their seeds alone, one; below, every run is one that a sweep asks for.
    for task, method, preset, seed, settings, run in rows.drop_duplicates(alike).itertuples(index=False):
        wanted = with_settings(experiment(task, method, preset, seed), settings.split())
        assert (wanted.digest, settings_of(wanted)) == (run, settings)
    assert set(rows["run"]) <= asked
    models = {folder.name for folder in (REPOSITORY / "reports/models").iterdir()}
    assert models and models <= asked


def test_a_hash_that_looks_like_a_number_stays_a_hash(tmp_path):
    file = tmp_path / "accuracy.csv"
    record(file, [made_up(run="012345678901")])
    record(file, [made_up(run="012345678901", length=7)])
    assert list(read(file)["run"]) == ["012345678901"] * 2
    record(tmp_path / "other.csv", [made_up(run="1234567e8901")])
    assert list(read(tmp_path / "other.csv")["run"]) == ["1234567e8901"]


def test_a_run_that_was_trained_again_has_one_time(tmp_path):
    file = tmp_path / "accuracy.csv"
    other = made_up(seed=1, run="4567")
    elsewhere = made_up(length=15, hardware="a GPU")
    record(file, [made_up(samples=200), made_up(length=10), other, elsewhere])
    record(file, [made_up(train_seconds=2.5)])
    found = {(row.seed, row.length): (row.samples, row.train_seconds) for row in read(file).itertuples()}
    assert found == {(0, 6): (200, 2.5), (0, 10): (100, 2.5), (0, 15): (100, 1.5), (1, 6): (100, 1.5)}


def test_more_samples_of_the_same_run_stay(tmp_path):
    """A later sweep with fewer samples does not replace a better measurement; another model's always does."""
    file = tmp_path / "accuracy.csv"
    record(file, [made_up(samples=1000, correct=400)])
    record(file, [made_up(samples=100, correct=50)])
    assert read(file)["samples"].tolist() == [1000]
    record(file, [made_up(samples=1000, correct=500)])
    assert read(file)["correct"].tolist() == [500]
    record(file, [made_up(samples=100, correct=50, run="fedcba")])
    assert read(file)[["samples", "run"]].values.tolist() == [[100, "fedcba"]]


def test_a_curve_is_of_the_same_seeds_throughout():
    rows = [("vanilla", 0, 6), ("vanilla", 1, 6), ("vanilla", 0, 7), ("rope", 0, 7)]
    table = pd.DataFrame([dict(task="addition", method=m, seed=s, length=n) for m, s, n in rows])
    kept = views.every_seed(table)
    assert list(kept[["method", "seed", "length"]].itertuples(index=False, name=None)) == [*rows[:2], rows[3]]


def test_effects_stand_beside_the_frozen_rows_of_the_same_seeds():
    def scores(settings, seed, length, correct, task="successor"):
        return dict(
            task=task, method="abs-cpi", seed=seed, settings=settings, length=length, samples=200, correct=correct
        )

    table = pd.DataFrame(
        [
            scores("", 0, 6, 200),
            scores("", 0, 60, 198),
            scores("", 1, 60, 0),  # nobody tried seed 1 otherwise: it counts nowhere
            scores("window.sides=both", 0, 6, 199),
            scores("window.sides=both", 0, 60, 100),
            scores("window.sides=both", 0, 6, 50, task="parity"),  # nothing frozen to stand beside
        ]
    )
    choices = [
        Choice("sides", "both", "past", "past", ("window.sides=both",)),
        Choice("w", "1", "1", "1", ("window.w=2",)),
    ]
    found = views.effects(table, choices, (6, 20, 60))
    assert found.to_dict("records") == [
        {"task": "successor", "method": "abs-cpi", "point": "sides", "tried": "window.sides=both", "seeds": 1}
        | {
            "6": "100\N{NO-BREAK SPACE}→\N{NO-BREAK SPACE}99.50",
            "20": "not run",
            "60": "99.00\N{NO-BREAK SPACE}→\N{NO-BREAK SPACE}50.00",
        },
        {"task": "not run", "method": "not run", "point": "w", "tried": "window.w=2", "seeds": "not run"}
        | dict.fromkeys(("6", "20", "60"), "not run"),
    ]


def test_a_row_of_newer_code_replaces_one_of_more_samples(tmp_path):
    file = tmp_path / "accuracy.csv"
    record(file, [made_up(samples=1000, correct=400, train_seconds=9.0), made_up(length=10, train_seconds=9.0)])
    record(file, [made_up(samples=20, correct=20, code="beef")])
    found = {row.length: (row.samples, row.code, row.train_seconds) for row in read(file).itertuples()}
    assert found == {6: (20, "beef", 1.5), 10: (100, "cafe", 9.0)}


def test_the_validations_of_a_run_are_those_of_its_last_training(tmp_path):
    names = {"task": "addition", "method": "vanilla", "preset": "laptop", "seed": 0, "settings": "", "run": "0123"}
    values = {"seconds": 1.0, "loss": 0.5, "exact_match": 0.0, "digit_error_rate": 0.5, "code": "a", "date": ""}
    file = tmp_path / "learning.csv"
    record(file, [names | values | {"step": step} for step in (10, 20, 30)])
    record(file, [names | values | {"step": step, "code": "b"} for step in (10, 20)])
    assert read(file)[["step", "code"]].values.tolist() == [[10, "b"], [20, "b"]]


def test_a_score_becomes_a_row_and_a_score_again(vanilla_run, tmp_path):
    file = tmp_path / "accuracy.csv"
    scores = [Score(6, 90, 40, 75, 800, "a", "b", "chain", 33.3333), Score(7, 90, 40, 75, 800, "a", "b")]
    record(file, [results.row(vanilla_run, "hard", score) for score in scores])
    assert [results.score_of(row) for row in read(file).itertuples()] == scores
