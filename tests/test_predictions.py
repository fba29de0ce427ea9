import shutil

import pytest

import abcnb
from abcnb.study.predictions import find_run


def test_a_run_answers_from_its_folder_as_text_or_path_or_itself(vanilla_run):
    answers = [abcnb.predict(run, 199) for run in (vanilla_run, vanilla_run.folder, str(vanilla_run.folder))]
    assert len(set(answers)) == 1
    answer = answers[0]
    assert (answer.source, answer.label, answer.true) == ("$0000199&", "0020000&", "200")
    assert answer.correct == (answer.written == answer.label) and str(answer) == answer.answer


def test_the_model_that_the_readme_asks_is_right(repository):
    answer = abcnb.predict(repository / "reports/models/5cd1db9831b3", "9" * 30 + "+1")
    assert answer.correct and int(answer.answer) == 10**30


def test_a_run_is_found_by_the_start_of_its_hash(vanilla_run):
    folder = vanilla_run.folder
    assert find_run(folder.name[:6], str(folder.parent)).folder == folder
    with pytest.raises(ValueError, match="got 'zz': no run"):
        find_run("zz", folder.parent)


def test_a_committed_run_is_found_too_and_one_in_runs_goes_before_it(repository, tmp_path):
    committed = repository / "reports/models/5cd1db9831b3"
    assert find_run("5cd1db", tmp_path / "nowhere").folder == committed
    with pytest.raises(ValueError, match=r"got '5': \d+ runs"):
        find_run("5", tmp_path)
    shutil.copytree(committed, tmp_path / committed.name)
    assert find_run("5cd1db", tmp_path).folder == tmp_path / committed.name
    (tmp_path / committed.name / "metrics.json").unlink()  # unfinished
    assert find_run("5cd1db", tmp_path).folder == committed


def test_what_is_no_input_is_refused(vanilla_run):
    with pytest.raises(ValueError, match="expected NUMBER with digits 0 to 9, got the character"):
        abcnb.predict(vanilla_run, "12a")
