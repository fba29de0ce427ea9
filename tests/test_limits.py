"""What takes long says so."""

import sys
import time

import pytest

from abcnb import limits


@pytest.mark.parametrize(("seconds", "terminal", "told"), [(0.3, True, 1), (0.0, True, 0), (0.3, False, 0)])
def test_what_takes_long_says_so_on_a_terminal(monkeypatch, capsys, seconds, terminal, told):
    monkeypatch.setattr(limits, "PATIENCE", 0.1)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    with limits.telling("drawing samples"):
        time.sleep(seconds)
    time.sleep(0.2)
    assert capsys.readouterr().err.count("drawing samples …") == told


def test_an_error_stops_the_waiting(monkeypatch, capsys):
    monkeypatch.setattr(limits, "PATIENCE", 0.1)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with pytest.raises(ValueError, match="wrong"), limits.telling("drawing samples"):
        raise ValueError("wrong")
    time.sleep(0.2)
    assert capsys.readouterr().err == ""
