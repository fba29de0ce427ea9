import pandas as pd
import pytest
import torch

from abcnb.lines.calibration import calibrate_attention, lines_of_heads
from abcnb.lines.line import Line
from abcnb.study import results, why
from abcnb.tasks.task import get_task
from tests.conftest import copied


def test_each_choice_is_undone(abc_run):
    found, tau = why.variants(abc_run), abc_run.experiment.tau
    attention = abc_run.attention()
    rule = calibrate_attention(attention, tau)
    assert found["rule"][0] == abc_run.biases() == rule.biases(abc_run.experiment.model.heads)
    everything = {f.line for f in lines_of_heads(attention, tau, why.without_zeros)}
    assert {f.line for f in rule.found} < everything
    biases = found["last layer"][0]
    kept = {line._replace(head=0) for bias in (*biases.self_biases, *biases.cross_biases) for line in bias.lines}
    assert kept <= {f.line for f in lines_of_heads(attention, tau) if f.layer == 1}
    own = found["own heads"][0].cross_biases
    assert len(own) == 2 and max(bias.most for bias in own) > 1
    assert found["places modulo 3"][1].position == "cyclic-columns"
    near = found["nearest lines"][0].cross_biases[0].lines
    assert sorted(map(str, near)) == ["a[place+1]", "a[place-1]", "a[place-2]", "a[place]"]


def test_a_row_without_a_line():
    stream = get_task("successor").stream(3)
    rows = torch.arange(stream.rows)
    lines = (Line(0, "digits", "digits", ("place",), (-3,)),)
    own = why.OwnToken("self", 1, lines).open_tokens(rows, stream)
    assert own[0, :, 0].tolist() == [0, 1, 0, 1]  # two steps have no token three places before
    opened = why.OpenRow(why.LineBias("self", 1, lines))(rows, stream.columns(crossing=False))
    assert (opened[0, :2] == 0).all() and (opened[0, 2] == 0).sum() == 1


def test_rows_come_one_variant_at_a_time_and_are_not_measured_again(abc_run, tmp_path, monkeypatch):
    run = copied(abc_run, tmp_path)
    csv = tmp_path / "why.csv"
    monkeypatch.setattr(why, "TESTS", (("random", 3, 20),))
    why.measure(run, csv, only=["rule"])
    assert set(results.read(csv)["variant"]) == {"rule"}
    with pytest.raises(ValueError, match=r"expected variants among rule, last layer, .*, got 'rules'"):
        why.measure(run, csv, only=["rules"])
    why.measure(run, csv)
    table = results.read(csv)
    assert set(table["variant"]) == set(why.variants(run)) and (table["samples"] == 20).all()
    monkeypatch.setattr(why.pipeline, "retrain", None)
    why.measure(run, csv)
    pd.testing.assert_frame_equal(results.read(csv), table)
