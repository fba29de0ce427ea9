"""Every part of the benchmark runs; what it measures is timing, which decides no test."""

from abcnb.bench import cpu


def test_every_part_has_a_line_with_its_ratio(monkeypatch):
    """At small sizes, each piece of work done once instead of timed."""

    def once(work, repeats):
        work()
        return 1.0

    monkeypatch.setattr(cpu, "seconds", once)
    monkeypatch.setattr(cpu, "EXACT_MATCHES", 2)
    monkeypatch.setattr(cpu, "ALONG_LINES", (("addition", 12, 2), ("many-addition", 3, 2)))
    lines = cpu.bench().splitlines()[1:]
    assert len(lines) == 5 and all("×" in line for line in lines)
