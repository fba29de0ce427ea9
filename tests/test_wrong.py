"""Outputs that a model gets wrong."""

import pytest
import torch

import abcnb
from abcnb.show.wrong import WrongOutputs, wrong_outputs


def test_as_many_are_wrong_as_evaluation_says(vanilla_run):
    model, data = vanilla_run.model(), vanilla_run.experiment.data()
    for test_set in ("random", "hard"):
        (score,) = abcnb.evaluate(model, data, 4, 60, test_set)
        found = wrong_outputs(model, data, 4, 60, test_set)
        wrong = score.samples - score.correct
        assert found.title == f"{wrong} of {score.samples} {test_set} samples wrong at 4 digits"
        assert len(found.rows) == 3
        for source, written, true in found.rows:
            number = int(source.strip("$&"))
            assert written != true and int(true.strip("&")[::-1]) == number + 1
            assert written[: len(true)] == abcnb.predict(vanilla_run, str(number), "cpu").written


def test_data_and_tests_that_make_no_sense_are_refused(vanilla_run):
    model, data = vanilla_run.model(), vanilla_run.experiment.data()
    with pytest.raises(ValueError, match="expected data of what the model was trained on"):
        wrong_outputs(model, abcnb.TrainingData("parity"), 4)
    with pytest.raises(ValueError, match="a sample count"):
        wrong_outputs(model, data, 4, 0)


def test_wrong_digits_are_marked():
    found = WrongOutputs("1 of 2 wrong", (("$<99&", "011&", "001&"),))
    assert repr(found).splitlines()[-3:] == ["written  011&", "true     001&", "          ^"]
    html = found._repr_html_()
    assert "$&lt;99&amp;" in html and html.count("<b ") == 1 and ">1</b>1&amp;" in html


def test_where_nothing_is_wrong_the_title_says_so(vanilla_run, monkeypatch):
    monkeypatch.setattr("abcnb.show.wrong.count_errors", lambda model, task, operands, form: torch.zeros(60))
    found = wrong_outputs(vanilla_run.model(), vanilla_run.experiment.data(), 4, 60)
    assert repr(found) == "0 of 60 random samples wrong at 4 digits"
