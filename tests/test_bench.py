"""The benchmark's order and sizes; what it measures is timing, which decides no test."""

import pytest

from abcnb.bench import cpu


def test_a_wrong_seed_is_refused_before_anything_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(cpu, "bench_calibration", lambda: pytest.fail("measured"))
    with pytest.raises(ValueError, match="expected a seed of at least 0, got -1"):
        cpu.bench(tmp_path, -1)


def test_every_part_has_a_line_with_its_ratio(tmp_path, monkeypatch):
    """At small sizes, each piece of work done once instead of timed."""

    def once(work, repeats):
        work()
        return 1.0

    monkeypatch.setattr(cpu, "seconds", once)
    monkeypatch.setattr(cpu, "OPEN_CELLS", ((12, 2),))
    monkeypatch.setattr(cpu, "OPEN_ROWS", (("many-addition", 3, 2),))
    for name in ("bench_calibration", "bench_exact_match", "bench_gathered", "bench_training_step"):
        monkeypatch.setattr(cpu, name, lambda name=name: f"{name} 1.00×")
    lines = cpu.bench(tmp_path).splitlines()
    assert sum("×" in line for line in lines) == 7 and "successor abs: not run" in "\n".join(lines)
