"""The store: what is there is used, in order, before anything is trained."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

from abcnb.study import results, store
from abcnb.study.fingerprint import fingerprint
from abcnb.study.fitting import fit
from abcnb.study.methods import experiment
from abcnb.study.runs import load_run
from abcnb.study.store import Store, commit_run, open_store
from tests.conftest import copied

WANTED = experiment("successor", "abc", "smoke")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, abc_run):
    return copied(abc_run, tmp_path_factory.mktemp("runs"))


@pytest.fixture
def no_training(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("trained, though it was there")

    monkeypatch.setattr("abcnb.pipeline.train", refuse)


def reports_with(tmp_path, run, committed=True):
    reports = tmp_path / "reports"
    score = run.evaluate(3, 40)
    results.record(reports / "results" / "accuracy.csv", [results.row(run, "random", score)])
    results.record(reports / "results" / "learning.csv", results.learning_rows(run))
    if committed:
        commit_run(run, reports / "models")
    return reports


def test_a_committed_run_is_used_and_evaluates_nearly_alike(tmp_path, trained, no_training):
    reports = reports_with(tmp_path, trained)
    found = Store(tmp_path / "runs", reports, "cpu").run(WANTED)
    assert found.folder == reports / "models" / WANTED.digest
    assert found.metrics == load_run(reports / "models" / WANTED.digest).metrics
    assert found.biases() == trained.biases()
    for kept, averaged in zip(found.attention(), trained.attention(), strict=True):
        assert torch.equal(kept.cross_attention, averaged.cross_attention)
    for name, value in trained.model().state_dict().items():
        torch.testing.assert_close(found.model().state_dict()[name], value, rtol=1e-3, atol=1e-4)
    assert not (reports / "models" / WANTED.digest / "evaluations.json").exists()


def test_a_committed_run_is_used_where_nothing_can_be_written(tmp_path, trained, no_training):
    reports = reports_with(tmp_path, trained)
    (tmp_path / "runs").write_text("a file, where no folder can be made")
    found = Store(tmp_path / "runs", reports, "cpu").run(WANTED)
    assert found.folder == reports / "models" / WANTED.digest
    assert found.biases() == trained.biases()
    assert found.model().state_dict().keys() == trained.model().state_dict().keys()


def test_nothing_is_trained_from_a_committed_run(tmp_path, trained):
    """What is trained or measured for the tables starts from full weights, whatever a notebook used before."""
    commit_run(
        fit(WANTED.interpolation, trained.folder.parent, "cpu", progress=False), tmp_path / "reports/models"
    )
    reports, runs = reports_with(tmp_path, trained), tmp_path / "runs"
    found = Store(runs, reports, "cpu")
    for wanted in (WANTED, WANTED.interpolation):
        assert found.run(wanted).folder == reports / "models" / wanted.digest
    anew = fit(WANTED, runs, "cpu", progress=False)
    for name, value in trained.model().state_dict().items():
        assert torch.equal(anew.model().state_dict()[name], value)
    assert found.run(WANTED).folder == runs / WANTED.digest


def test_a_run_comes_before_what_is_committed(tmp_path, trained, no_training):
    reports = reports_with(tmp_path, trained)
    assert Store(trained.folder.parent, reports, "cpu").run(WANTED).folder == trained.folder


def test_scores_of_a_run_come_before_what_is_committed(tmp_path, trained, no_training):
    """Who trained a model again, perhaps with other code, sees the scores of that model."""
    reports = reports_with(tmp_path, trained)
    committed = results.row(trained, "random", trained.evaluate(3, 40)) | {"correct": 0, "wrong_digits": 160}
    results.record(reports / "results" / "accuracy.csv", [committed])
    assert Store(tmp_path / "runs", reports, "cpu").scores(WANTED, [3], 40)[0].correct == 0
    found = Store(trained.folder.parent, reports, "cpu")
    assert found.scores(WANTED, [3], 40) == [trained.evaluate(3, 40)]


def test_scores_and_histories_come_from_the_csv_without_a_model(tmp_path, trained, no_training):
    reports = reports_with(tmp_path, trained, committed=False)
    found = Store(tmp_path / "runs", reports, "cpu")
    assert found.scores(WANTED, [3], 40) == [trained.evaluate(3, 40)]
    assert found.cost(WANTED) == {name: trained.metrics[name] for name in ("parameters", "steps", "seconds")}
    kept = [{key: record[key] for key in results.LEARNED} for record in trained.metrics["history"]]
    for known, record in zip(found.history(WANTED), kept, strict=True):
        assert known == pytest.approx(record)
    assert not (tmp_path / "runs").exists()


def test_a_score_of_other_samples_is_measured_anew(tmp_path, trained):
    reports = reports_with(tmp_path, trained)
    assert Store(tmp_path / "runs", reports, "cpu").scores(WANTED, [3], 60)[0].samples == 60


def test_nothing_committed_is_used_where_that_is_asked_for(tmp_path, trained):
    reports = reports_with(tmp_path, trained)
    fresh = replace(Store(tmp_path / "runs", reports, "cpu"), reports=None)
    assert fresh.run(WANTED).folder == tmp_path / "runs" / WANTED.digest


def test_a_table_has_a_row_for_each_run_and_length(tmp_path, trained):
    table = Store(trained.folder.parent, None, "cpu").table([WANTED, WANTED.interpolation], [2, 3], 40)
    assert list(table["method"]) == ["abc"] * 2 + ["vanilla"] * 2
    assert list(table["length"]) == [2, 3, 2, 3] and set(table["settings"]) == {""}
    assert ((table["low"] <= table["exact_match"]) & (table["exact_match"] <= table["high"])).all()


def test_a_table_of_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match="expected at least one experiment, got none"):
        Store(tmp_path, None, "cpu").table([], [2])


def test_the_committed_models_are_small_and_have_rows(repository):
    folders = [folder for folder in (repository / "reports" / "models").iterdir() if folder.is_dir()]
    assert folders
    files = (repository / "reports" / "results" / f"{name}.csv" for name in ("accuracy", "development"))
    assert {folder.name for folder in folders} <= set().union(*(results.read(file)["run"] for file in files))
    size = sum(file.stat().st_size for folder in folders for file in folder.iterdir())
    assert size < 24_000_000


def made_by_other_code(reports):
    """A committed score and curve of other code."""
    for name in ("accuracy.csv", "learning.csv"):
        table = results.read(reports / "results" / name).assign(code="0123456789ab")
        table.to_csv(reports / "results" / name, index=False)


def test_stored_results_of_other_code_are_named_once(tmp_path, trained, no_training, capsys):
    reports = reports_with(tmp_path, trained, committed=False)
    found = Store(tmp_path / "runs", reports, "cpu")
    found.scores(WANTED, [3], 40)
    found.history(WANTED)
    assert capsys.readouterr().out == "", "it is of this code"
    made_by_other_code(reports)
    found = Store(tmp_path / "runs", reports, "cpu")
    assert found.scores(WANTED, [3], 40)[0].code == "0123456789ab"
    assert capsys.readouterr().out.count("0123456789ab") == 1
    found.history(WANTED)
    found.cost(WANTED)
    assert capsys.readouterr().out == ""


def test_the_store_reads_what_is_committed_unless_that_is_left_out():
    assert open_store().reports == store.REPORTS and open_store(stored=False).reports is None


def test_where_stored_numbers_come_from(tmp_path, trained, repository):
    hardware, day = trained.metrics["hardware"], trained.metrics["date"]
    found = Store(trained.folder.parent, None, "cpu").origin([WANTED, replace(WANTED, seed=77)])
    assert found == f"Stored: {hardware}; {day}; code {fingerprint()} (this code is {fingerprint()})."
    assert Store(tmp_path, None, "cpu").origin([WANTED]) == "Stored: nothing yet."
    committed = Store(tmp_path, repository / "reports", "cpu").origin([experiment("successor", "vanilla")])
    assert "1 thread(s); 2026-" in committed and "code " in committed


def test_what_is_of_other_code_is_said_once_and_trained_anew_where_nothing_stored_is_wanted(
    tmp_path, trained, capsys
):
    shutil.copytree(trained.folder.parent, tmp_path / "runs")
    metrics = tmp_path / "runs" / WANTED.digest / "metrics.json"
    metrics.write_text(json.dumps(json.loads(metrics.read_text()) | {"code": "0123456789ab"}))
    found = Store(tmp_path / "runs", tmp_path / "none", "cpu")
    found.run(WANTED), found.run(WANTED)
    said = capsys.readouterr().out
    assert said.count("0123456789ab") == 1 and fingerprint() in said and "stored=False" in said
    fresh = Store(tmp_path / "runs", None, "cpu")
    assert fresh.run(WANTED).code == fingerprint()
    assert [f.name for f in (tmp_path / "runs" / "superseded").iterdir()] == [f"{WANTED.digest}-0123456789ab-1"]
