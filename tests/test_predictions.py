import shutil

import pytest

import abcnb
from abcnb.study.fitting import fit
from abcnb.study.methods import experiment
from abcnb.study.settings import with_settings
from abcnb.study.store import find_run


def test_a_run_answers_from_its_folder_as_text_or_path_or_itself(vanilla_run):
    answers = [abcnb.predict(run, 199) for run in (vanilla_run, vanilla_run.folder, str(vanilla_run.folder))]
    assert len(set(answers)) == 1
    answer = answers[0]
    assert (answer.source, answer.label, answer.true) == ("$0000199&", "0020000&", "200")
    assert answer.correct == (answer.written == answer.label) and str(answer) == answer.answer


def test_an_input_in_one_stream_is_shown_up_to_the_equals_sign(product_run, shared_runs):
    assert abcnb.predict(product_run, "12*34").source == "$12*34="
    settings = ["training.steps=3", "training.validate_every=3", "training.batch_size=8", "model.d_model=32"]
    wanted = with_settings(experiment("addition", "abs", "decoder-only"), settings)
    answer = abcnb.predict(fit(wanted, shared_runs, "cpu", progress=False), "99+1")
    assert (answer.source, answer.true) == ("$0000099+0000001=", "100")


def test_a_run_is_found_by_the_start_of_its_hash(vanilla_run):
    folder = vanilla_run.folder
    assert find_run(folder.name[:6], str(folder.parent)).folder == folder
    with pytest.raises(ValueError, match="got 'zz': no run"):
        find_run("zz", folder.parent)


def test_a_committed_run_is_found_too_and_one_in_runs_goes_before_it(repository, tmp_path):
    committed = repository / "reports/models/5fc0a29fb2ed"
    assert find_run("5fc0a2", tmp_path / "nowhere").folder == committed
    with pytest.raises(ValueError, match=r"got '5': \d+ runs"):
        find_run("5", tmp_path)
    shutil.copytree(committed, tmp_path / committed.name)
    assert find_run("5fc0a2", tmp_path).folder == tmp_path / committed.name
    (tmp_path / committed.name / "metrics.json").unlink()  # unfinished
    assert find_run("5fc0a2", tmp_path).folder == committed
