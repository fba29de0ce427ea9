from abcnb.study import reproduction
from abcnb.study.reproduction import MAIN_METHODS, MAIN_TASKS, reproduce


def test_reproduce_asks_for_everything_vanilla_first(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(reproduction, "run_all", lambda wanted, *rest: asked.extend(wanted) or ["all failed"])
    reproduce("smoke", tmp_path / "runs", tmp_path / "reports", seeds=(0, 1))
    assert {(e.task, e.method, e.seed) for e in asked} == {
        (task, method, seed) for task in MAIN_TASKS for method in MAIN_METHODS for seed in (0, 1)
    }
    for seed in (0, 1):
        mine = [e.method for e in asked if e.seed == seed]
        assert mine == sorted(mine, key=MAIN_METHODS.index)
    assert MAIN_METHODS.index("vanilla") < MAIN_METHODS.index("abc")


def test_reproduce_lists_its_failures_even_where_everything_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(reproduction, "run_all", lambda *_: ["parity vanilla seed 0: the disk is full"])
    _, failures = reproduce("smoke", tmp_path / "runs", tmp_path / "reports", tasks=("parity",))
    assert failures == ["parity vanilla seed 0: the disk is full"]
