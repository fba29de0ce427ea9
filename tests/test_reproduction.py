import pytest
from typer.testing import CliRunner

from abcnb import __main__ as command_line
from abcnb.__main__ import MAIN_METHODS, MAIN_TASKS, app


@pytest.fixture
def reproduce(tmp_path, monkeypatch):
    """The command at the preset `smoke`, where everything fails: its outcome, and what it asked for."""

    def run(*options):
        asked = []
        failed = ["parity vanilla seed 0: the disk is full"]
        monkeypatch.setattr(command_line, "run_all", lambda wanted, *rest: asked.extend(wanted) or failed)
        folders = ["--runs", str(tmp_path / "runs"), "--reports", str(tmp_path / "reports")]
        return CliRunner().invoke(app, ["reproduce", "--preset", "smoke", *folders, *options]), asked

    return run


def test_reproduce_asks_for_everything_vanilla_first(reproduce):
    _, asked = reproduce("--seeds", "0 1")
    assert {(e.task, e.method, e.seed) for e in asked} == {
        (task, method, seed) for task in MAIN_TASKS for method in MAIN_METHODS for seed in (0, 1)
    }
    for seed in (0, 1):
        mine = [e.method for e in asked if e.seed == seed]
        assert mine == sorted(mine, key=MAIN_METHODS.index)
    assert MAIN_METHODS.index("vanilla") < MAIN_METHODS.index("abc")


def test_reproduce_lists_its_failures_even_where_everything_failed(reproduce):
    done, _ = reproduce("--tasks", "parity")
    assert done.exit_code == 1 and "nothing was measured" in done.output
    assert "failed: parity vanilla seed 0: the disk is full" in done.output
