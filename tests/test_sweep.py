"""Sweep files, and a small real sweep."""

import pytest
from typer.testing import CliRunner

from abcnb.__main__ import app
from abcnb.study.results import read
from abcnb.study.sweep import read_sweep
from tests.inline import InlineEngine

GRID = '[[grid]]\ntasks = ["successor"]\nmethods = ["vanilla"]\npresets = ["smoke"]\n'


def written(tmp_path, text):
    file = tmp_path / "sweep.toml"
    file.write_text(text)
    return file


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """The command in this process, with runs in a folder and results beside it: what it printed."""
    monkeypatch.setattr("abcnb.__main__.open_engine", lambda *_: InlineEngine())

    def run(text, *options, runs="runs"):
        folders = ["--runs", str(tmp_path / runs), "--reports", str(tmp_path)]
        command = ["sweep", str(written(tmp_path, text)), "--device", "cpu", *folders, *options]
        done = CliRunner().invoke(app, command, catch_exceptions=False)
        assert done.exit_code == 0
        return done.stdout

    return run


def test_a_grid_is_a_full_cross_product(tmp_path):
    text = (
        "lengths = [3, 4]\nsamples = 20\n[[grid]]\n"
        'tasks = ["successor", "parity"]\nmethods = ["nope", "vanilla"]\n'
        'presets = ["smoke"]\nseeds = [4, 5]\noverrides = [[], ["training.steps=7"]]\n'
    )
    wanted, name = read_sweep(written(tmp_path, text))
    assert (len(wanted), name) == (16, "accuracy")
    tests = (("random", 3, 20), ("hard", 3, 1000), ("random", 4, 20), ("hard", 4, 1000))
    assert set(wanted.values()) == {tests}
    assert {e.training.steps for e in wanted} == {7, 20}
    assert {e.seed for e in wanted} == {4, 5}


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path):
    """As editors on Windows write it."""
    assert read_sweep(written(tmp_path, "\ufeff" + GRID)) == read_sweep(written(tmp_path, GRID))


@pytest.mark.parametrize(
    "text, told",
    [
        ("grid", "expected TOML"),
        ("", r"at least one \[\[grid\]\]"),
        ("tusks = 1\n" + GRID, "got 'tusks'"),
        ('[[grid]]\nmethods = ["vanilla"]\n', "a list of tasks"),
        (GRID + "seeds = [-1]\n", "seeds as whole numbers"),
        (GRID + 'overrides = ["training.steps=7"]\n', "a list of lists"),
        (GRID + 'overrides = [["training.stops=7"]]\n', "number 1"),
        (GRID.replace("vanilla", "chocolate"), "expected a method among"),
        (GRID + "overrides = []\n", "a list of lists"),
        (GRID + "overrides = [[7]]\n", "a list of lists"),
        (GRID.replace('["smoke"]', "[]"), "a list of presets"),
        (GRID.replace('["smoke"]', '"smoke"'), "a list of presets"),
        (GRID.replace('["vanilla"]', '[["vanilla"]]'), "a list of methods"),
        ("grid = [1]\n", "as tables"),
        ("lengths = [0]\n" + GRID, "at least 1"),
        ("hard_samples = -1\n" + GRID, "hard_samples of at least 0"),
        (
            'results = "elsewhere"\n' + GRID,
            "results among accuracy, development, other-tasks in .*, got 'elsewhere'",
        ),
        ("test = 3\n" + GRID, r"expected \[\[test\]\] as tables"),
        (GRID + '[[test]]\nset = "odd"\n', r"a set among .*padded in .* of \[\[test\]\] number 1, got 'odd'"),
        (GRID + '[[test]]\nset = ["hard"]\nlengths = [3]\nsamples = 9\n', r"a set among .*got \['hard'\]"),
        ("lengths = [" + "9" * 5000 + "]\n" + GRID, "expected TOML in .*toml, got: "),
        (
            GRID + '[[test]]\nset = "hard"\nlength = 3\n',
            "expected keys among lengths, samples, set .*got 'length'",
        ),
        (
            GRID + '[[test]]\nset = "hard"\nlengths = [60]\n',
            r"lengths and samples of at least 1 .*\[60\] and None",
        ),
        (GRID + '[[test]]\nset = "hard"\nlengths = []\nsamples = 1\n', "lengths and samples of at least 1"),
        (GRID + "samples = 0\n", r"lengths and samples of at least 1 in .* of \[\[grid\]\] number 1"),
        (GRID + '[[grid.test]]\nset = "odd"\n', r"of \[\[grid\]\] number 1 of \[\[test\]\] number 1, got 'odd'"),
    ],
)
def test_a_wrong_file_is_refused_with_what_is_wrong(tmp_path, text, told):
    with pytest.raises(ValueError, match=told):
        read_sweep(written(tmp_path, text))


def test_seeds_are_trained_together_where_that_is_asked_for(tmp_path, sweep):
    head = "lengths = [2]\nsamples = 30\nhard_samples = 0\n"
    sweep(head + GRID.replace("vanilla", "abc") + "seeds = [0, 1]\n", "--together", "2")
    table = read(tmp_path / "results" / "accuracy.csv")
    assert list(table["seed"]) == [0, 1] and table["hardware"].str.endswith("2 models at once").all()
    command = ["sweep", str(written(tmp_path, GRID)), "--engine", "ray", "--together", "2"]
    with pytest.raises(ValueError, match="expected --together with the engine local, got it with 'ray'"):
        CliRunner().invoke(app, command, catch_exceptions=False)


def test_a_sweep_records_scores_with_their_settings(tmp_path, sweep):
    head = "lengths = [2, 9]\nsamples = 30\nhard_samples = 30\n"
    sweep(head + GRID + 'overrides = [[], ["training.steps=7"]]\n')
    table = read(tmp_path / "results" / "accuracy.csv")
    assert sorted(zip(table["settings"], table["length"], strict=True)) == [
        (settings, length) for settings in ("", "training.steps=7") for length in (2, 2, 9, 9)
    ]
    # Of two digits ten numbers are held out.
    assert set(table["samples"][table["test_set"] == "random"]) == {10, 30}
    learned = read(tmp_path / "results" / "learning.csv")
    assert set(learned["run"]) == set(table["run"])


UNEQUAL = '[[test]]\nset = "unequal"\nlengths = [4, 5]\nsamples = 30\n'


def test_further_tests_are_added_and_asked_for_once(tmp_path):
    head = "lengths = [3]\nsamples = 20\nhard_samples = 0\n"
    again = '[[test]]\nset = "random"\nlengths = [3]\nsamples = 20\n'
    wanted, _ = read_sweep(written(tmp_path, head + GRID + UNEQUAL + again))
    assert list(wanted.values()) == [(("random", 3, 20), ("unequal", 4, 30), ("unequal", 5, 30))]


def test_a_block_may_have_tests_of_its_own(tmp_path):
    head = "lengths = [3]\nsamples = 20\nhard_samples = 0\n" + UNEQUAL
    own = GRID + 'seeds = [1]\nlengths = [7]\n\n[[grid.test]]\nset = "padded"\nlengths = [8]\nsamples = 9\n\n'
    none = GRID + "seeds = [2]\nhard_samples = 5\ntest = []\n"
    wanted, _ = read_sweep(written(tmp_path, head + GRID + own + none))
    assert {e.seed: tests for e, tests in wanted.items()} == {
        0: (("random", 3, 20), ("unequal", 4, 30), ("unequal", 5, 30)),
        1: (("random", 7, 20), ("padded", 8, 9)),
        2: (("random", 3, 20), ("hard", 3, 5)),
    }


def test_what_two_blocks_ask_for_has_the_tests_of_both(tmp_path):
    text = "samples = 20\nhard_samples = 0\n" + GRID + "lengths = [3]\n" + GRID + "lengths = [3, 4]\n"
    assert list(read_sweep(written(tmp_path, text))[0].values()) == [(("random", 3, 20), ("random", 4, 20))]


def test_rows_of_development_seeds_have_files_of_their_own(tmp_path, sweep):
    text = 'results = "development"\nlengths = [2]\nsamples = 10\nhard_samples = 10\n'
    padded = '[[test]]\nset = "padded"\nlengths = [3]\nsamples = 40\n'
    sweep(text + GRID + padded, "--missing")
    files = {file.name for file in (tmp_path / "results").glob("*.csv")}
    assert files == {"development.csv", "development-learning.csv"}
    table = read(tmp_path / "results" / "development.csv").set_index("test_set")
    assert sorted(table.index) == ["hard", "padded", "random"]
    assert table["worst_kind"]["padded"].endswith("zeros") or table["worst_kind"]["padded"] == "1 zero"
    assert table["worst_percent"]["padded"] != ""
    assert table["worst_percent"]["random"] == table["worst_kind"]["random"] == ""
    validations = read(tmp_path / "results" / "development-learning.csv")
    assert set(validations["run"]) == set(table["run"])
    assert sweep(text + GRID + padded, "--missing").startswith("0 of 1 experiments lack rows")


def test_missing_leaves_out_what_has_its_rows_though_its_run_is_gone(tmp_path, sweep):
    def missing(lengths, seeds, runs, samples=9):
        text = f"lengths = {lengths}\nsamples = {samples}\nhard_samples = 0\n{GRID}seeds = {seeds}\n"
        told = sweep(text, "--missing", runs=runs)
        return told.split(" experiments")[0], sum(folder.is_dir() for folder in (tmp_path / runs).glob("*"))

    assert missing([2], [0], "first") == ("1 of 1", 1)
    assert missing([2], [0, 1], "second") == ("1 of 2", 1)
    assert missing([2, 3], [0, 1], "second") == ("2 of 2", 2)
    assert missing([3], [0, 1], "third") == ("0 of 2", 0)
    assert missing([3], [0], "third", 12) == ("1 of 1", 1)
    assert missing([2], [1], "fourth", 10_000) == ("1 of 1", 1)
    assert missing([2], [1], "fourth", 20_000) == ("0 of 1", 1)  # all ten held-out numbers of two digits
    assert sorted(read(tmp_path / "results" / "accuracy.csv")["length"]) == [2, 2, 3, 3]


@pytest.mark.parametrize("options, device", [([], "cpu"), (["--gpu-share", "0.5"], "auto"), (None, "auto")])
def test_without_a_share_of_a_card_ray_runs_on_cpus(monkeypatch, tmp_path, options, device):
    """Ray leaves a machine's cards visible to a task that asked for none."""
    ran = []
    monkeypatch.setattr("abcnb.__main__.open_engine", lambda *_: "engine")
    monkeypatch.setattr("abcnb.__main__.run_all", lambda *given: ran.append(given[4]) or [])
    command = ["sweep", str(written(tmp_path, GRID)), "--reports", str(tmp_path)]
    command += [] if options is None else ["--engine", "ray", *options]
    assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0
    assert ran == [device]
    if options == []:
        with pytest.raises(ValueError, match="expected --gpu-share above 0 for runs on cuda, got 0"):
            CliRunner().invoke(app, [*command, "--device", "cuda"], catch_exceptions=False)
