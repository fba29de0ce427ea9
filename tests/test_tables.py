from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from abcnb.__main__ import app
from abcnb.study import certificates, results, tables
from abcnb.study.fingerprint import fingerprint
from abcnb.study.published import LENGTHS, published
from abcnb.study.tables import comparison
from tests.made_up import made_up

REPOSITORY = Path(__file__).parents[1]
NONE = results.read(REPOSITORY / "nowhere" / "certificates.csv")


def test_comparison_of_a_made_up_table():
    table = pd.DataFrame(
        [
            made_up("parity", "vanilla", correct=25),
            made_up("parity", "vanilla", length=60, correct=0),
            made_up("n-by-1", "abs-nope", 0, 60, 10_000, 10_000),
            made_up("n-by-1", "abs-nope", 1, 60, 9_998, 10_000),
            made_up("addition", "rpe", length=7, correct=100),
            made_up("addition", "rpe", length=60, correct=1, test_set="hard"),
        ]
    )
    assert comparison(table, (6, 60)).splitlines() == [
        "| task | method | seeds | 6 | 60 |",
        "|---|---|---|---|---|",
        "| parity | vanilla | one seed | 25.00 (29.23) | 0.00 (0) |",
        "| n-by-1 | abs-nope | 2 | not run | 99.99, worst 99.98 (98.31) |",
        "| addition | rpe | one seed | not run | not run |",
    ]
    assert comparison(table, (60,), "hard").splitlines()[2:] == ["| addition | rpe | one seed | 1.00 |"]


ROWS = [
    made_up("addition", "rope", 0, 60, 1, 10_000),
    made_up("n-by-1", "vanilla", 0, 60, 0, 10_000),
    made_up("addition", "fire", 0, 60, 0, 10_000),  # of one task, unpublished: in the long tables alone
    made_up("addition", "vanilla", 0, 60, 3, 10_000),
    made_up("addition", "vanilla", 1, 60, 5, 10_000),
    made_up("addition", "vanilla", 0, 60, 7, 100, test_set="hard"),
    made_up("listops-sm", "vanilla", 0, 60, 9, 100),
    made_up("addition", "vanilla", 2, 60, 10_000, 10_000, settings="width=61"),
]


def lines_of_tables(text):
    return [line for line in text.splitlines() if line.startswith("|")]


def test_the_overview_has_a_row_for_each_task_and_architecture():
    hard = [made_up("addition", "abc", seed, 60, 90 + seed, test_set="hard") for seed in (70, 71)]
    rows = [*ROWS, made_up("addition", "abc", 70, 60, 100), made_up("addition", "abc", 71, 60, 98)]
    rows += [row | {"correct": row["seed"]} for row in hard]
    rows += [made_up("addition", "kerple", 0, 60, 80, settings="model.cross_distance=places")]
    rows += [made_up("addition", "rope", 0, 60, 0, preset="decoder-only")]
    one_look = {"settings": "look_once=True"}
    rows += [made_up("nested", "abs", 70, 10, 7), made_up("nested", "abs", 70, 6, 8)]
    rows += [made_up("multiplication", "abc", 70, 60, 5), made_up("multiplication", "abc", 71, 60, 9, **one_look)]
    known = {"task": "addition", "preset": "laptop", "method": "abc", "settings": "", "pruned": 0}
    proved = [known | {"seed": seed, "outcome": "refused: why"} for seed in (70, 71)]
    proved += [proved[1] | {"pruned": 1, "outcome": "correct"}]
    proved += [part | {"task": "multiplication"} | one_look for part in proved[2:]]
    proved = pd.DataFrame(proved)
    shown = lines_of_tables(tables.overview(pd.DataFrame(rows), proved))
    assert shown == [
        "| task | architecture | vanilla | best rival | `abs` | `abc` | `abc`, hard | `abc`, pruned and proved "
        "| paper's ABC |",
        "|---|---|---|---|---|---|---|---|---|",
        "| addition | encoder-decoder | 0.04, worst 0.03 (2) | kerple* 80.00 (1) | not run | 99.00, worst 98.00 (2) "
        "| 70.50, worst 70.00 (2) | 1 of 1 | 99.8 |",
        "| addition | one stream | not run | none right | not run | not run | not run | not run |  |",
        "| n-by-1 | encoder-decoder | 0.00 (1) | not run | not run | not run | not run | not run | 100 |",
        "| multiplication | rows | not run | not run | not run | 5.00 (1) | not run | 1 of 1, one look |  |",
        "| nested | rows | not run | not run | 7.00 (1) | not run | not run | not run |  |",
    ]


def test_seeds_in_a_row_are_named_by_the_first_and_the_last():
    rows = [made_up("addition", "vanilla", seed, 60) for seed in (0, 1, 2, 3, 5, 7, 8)]
    assert "seeds 0 to 3, 5, 7, 8, at most" in tables.made_with(pd.DataFrame(rows))


def test_the_long_tables_show_every_task_length_and_test_set():
    _, _, text = tables.long_tables(pd.DataFrame(ROWS)).partition("### By length, random digits")
    random, _, hard = text.partition("hard cases")
    listed = [line.split(" | ")[:2] for line in lines_of_tables(random)]
    assert listed[2:] == [
        ["| addition", "vanilla"],
        ["| addition", "rope"],
        ["| addition", "fire"],
        ["| n-by-1", "vanilla"],
        ["| listops-sm", "vanilla"],
    ]
    assert lines_of_tables(hard)[1:] == ["|---|---|---|---|", "| addition | vanilla | one seed | 7.00 |"]


def test_here_committed_and_published_stand_below_one_another():
    here = pd.DataFrame([made_up("addition", "vanilla", 0, 60, 4, 10_000), made_up(length=60, test_set="hard")])
    committed = pd.DataFrame([made_up("addition", "vanilla", 0, 60, 0, 10_000)])
    random, hard = tables.three_ways(here, committed, (6, 60)).split("**Hard cases**")
    assert lines_of_tables(random)[2:] == [
        "| addition | vanilla | here | not run | 0.04 |",
        "| addition | vanilla | committed | not run | 0.00 |",
        f"| addition | vanilla | published | {published('addition', 'vanilla', 6):g} | 0 |",
    ]
    assert lines_of_tables(hard)[2:] == [
        "| addition | vanilla | here | not run | 50.00 |",
        "| addition | vanilla | committed | not run | not run |",
    ]


def test_published_numbers_do_not_stand_beside_models_that_the_paper_does_not_have():
    names = ("addition", "vanilla", 0, 60, 3, 10_000)
    table = pd.DataFrame([made_up(*names, preset="decoder-only")])
    for text in (tables.overview(table, NONE), tables.long_tables(table), tables.three_ways(table, table, (60,))):
        assert "(0)" not in text and "published" not in text and "reproduce" not in text
        assert lines_of_tables(text)
    assert "(0)" in tables.long_tables(pd.DataFrame([made_up(*names)]))


@pytest.mark.parametrize(
    ("document", "made"), [("README.md", tables.overview), ("reports/tables.md", tables.long_tables)]
)
def test_the_committed_tables_are_current_in_whatever_order_the_rows_come(document, made):
    text = (REPOSITORY / document).read_text()
    inside = text.partition(tables.TABLE_BEGINS)[2].partition(tables.TABLE_ENDS)[0]
    table = results.read(REPOSITORY / "reports/results/accuracy.csv").sample(frac=1, random_state=0)
    # As when it was written: who changes the code has rows of other code, and a table that would say so.
    proved = results.read(REPOSITORY / "reports/results/certificates.csv")
    more = [proved] if made is tables.overview else []
    assert inside.strip() == made(table.assign(code=fingerprint()), *more).strip()


def test_the_committed_certificates_are_on_their_page():
    text = (REPOSITORY / "reports/right_at_every_length.md").read_text()
    inside = text.partition(tables.TABLE_BEGINS)[2].partition(tables.TABLE_ENDS)[0]
    rows = results.read(REPOSITORY / "reports" / "results" / "certificates.csv")
    assert inside.strip() == tables.markdown(certificates.table(rows))


def test_no_table_is_replaced_by_nothing(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"{tables.TABLE_BEGINS}\na table\n{tables.TABLE_ENDS}\n")
    command = ["table", "--reports", str(tmp_path / "typo"), "--readme", str(readme)]
    with pytest.raises(ValueError, match=r"expected measured results in .*typo.*accuracy\.csv, got none"):
        CliRunner().invoke(app, command, catch_exceptions=False)
    assert "a table" in readme.read_text()


def test_nothing_is_written_where_one_document_is_missing(tmp_path):
    readme, reports = tmp_path / "README.md", tmp_path / "reports"
    readme.write_text(f"{tables.TABLE_BEGINS}\na table\n{tables.TABLE_ENDS}\n")
    results.record(reports / "results" / "accuracy.csv", [made_up()])
    command = ["table", "--reports", str(reports), "--readme", str(readme)]
    with pytest.raises(ValueError, match=r"expected a document to put a table into, got .*tables\.md"):
        CliRunner().invoke(app, command, catch_exceptions=False)
    assert "a table" in readme.read_text() and not (reports / "methods.md").exists()


def test_a_table_needs_its_marks(tmp_path):
    document = tmp_path / "README.md"
    document.write_text("no marks\n")
    with pytest.raises(ValueError, match=r"expected the marks <!-- table.* in .*README\.md"):
        tables.with_table("a table", document)
    document.write_text(f"before\n{tables.TABLE_BEGINS}\nold\n{tables.TABLE_ENDS}\nafter\n")
    new = f"before\n{tables.TABLE_BEGINS}\nnew\n{tables.TABLE_ENDS}\nafter\n"
    assert tables.with_table("new", document) == new


def test_beside_the_paper_stand_its_lengths_alone():
    table = pd.DataFrame([made_up(length=length) for length in (7, 10, 60)])
    assert "| task | method | seeds | 10 | 60 |" in tables.long_tables(table)


def test_outputs_in_rows_have_tables_of_their_own_with_all_lengths_that_were_measured():
    rows = [made_up("multiplication", "abs", 0, n, c) for n, c in ((12, 99), (180, 0))]
    rows += [made_up("nested", "abc", 0, 3, 7), made_up("addition", "vanilla", 0, 600, 1)]
    before, _, after = tables.long_tables(pd.DataFrame(rows)).partition("## Outputs in rows")
    assert "multiplication" not in before and "nested" not in before and "| 600 |" not in before
    assert lines_of_tables(after) == [
        "| task | method | seeds | 12 | 180 |",
        "|---|---|---|---|---|",
        "| multiplication | abs | one seed | 99.00 | 0.00 |",
        "| task | method | seeds | 3 |",
        "|---|---|---|---|",
        "| nested | abc | one seed | 7.00 |",
    ]
    assert "reproduce" not in after


def scores_at_60(correct, task="addition", method="abc", **more):
    """A row per seed with so many of 100 right."""
    return [made_up(task, method, seed, 60, right, **more) for seed, right in enumerate(correct)]


def test_completeness_counts_seeds_and_has_their_exact_intervals():
    rows = scores_at_60([100, 99, 98, 100, 100]) + scores_at_60([0], "addition", "vanilla")
    rows += scores_at_60([0, 99], "parity")
    known = [("chain", "98.5"), ("unequal", "12.5"), ("", ""), ("chain", "100.0"), ("chain", "50.0")]
    rows += [
        row | {"worst_kind": kind, "worst_percent": worst}
        for row, (kind, worst) in zip(scores_at_60([100] * 5, test_set="hard"), known, strict=True)
    ]
    rows += [made_up("addition", "rope", length=20, test_set="padded")]  # of another length: nowhere
    found = tables.completeness(pd.DataFrame(rows))
    assert found.to_dict("records") == [
        {"task": "addition", "method": "abc", "random digits": "4 of 5"}
        | {"hard cases": "5 of 5", "worst kind of hard cases": "unequal: 12.50"},
        {"task": "parity", "method": "abc", "random digits": "1 of 2"}
        | {"hard cases": "not run", "worst kind of hard cases": "not known"},
    ]
    told = tables.seed_intervals(found).partition(": ")[2]
    assert told == "1 of 2, 1.3 to 98.7; 4 of 5, 28.4 to 99.5; 5 of 5, 47.8 to 100."


def test_rows_that_reproduce_are_close_at_every_published_length():
    measured = {6: 100.0, 10: 100.0, 60: 98.5}
    rows = [made_up("successor", "abs-cpi", seed, n, c) for n, c in measured.items() for seed in (0, 1)]
    rows += [made_up("successor", "abs-nope", 0, n, 100) for n in LENGTHS]
    rows += [made_up("successor", "abs-nope", 1, n, 98) for n in LENGTHS]
    rows += [made_up("successor", "abs-sinusoidal", 0, 6, 100)]  # the other lengths are missing
    rows += [made_up("successor", "rope", 0, 6, 40), made_up("successor", "rope", 0, 10, 3)]
    found = tables.reproduction(pd.DataFrame(rows)).set_index("task").loc["successor"]
    assert found["reproduces"] == "abs-nope"
    assert found["does not"] == "abs-cpi (98.50 at 60, published 100), rope (40.00 at 6, published 100)"
    assert "abs-sinusoidal" in found["not run"] and "abc-paper" in found["not run"]


def test_a_method_that_is_complete_nowhere_leaves_no_empty_table():
    text = tables.long_tables(pd.DataFrame(scores_at_60([50, 98])))
    assert "On how many seeds" not in text and "| addition | abc | 2 |" in text


def test_the_short_table_has_no_rows_of_other_presets():
    rows = scores_at_60([100, 100])
    alone = tables.overview(pd.DataFrame(rows), NONE)
    more = pd.DataFrame(rows + scores_at_60([0], preset="smoke"))
    assert "100 (2)" in alone and tables.overview(more, NONE) == alone


def test_a_single_seed_is_marked():
    rows = scores_at_60([100, 100]) + scores_at_60([7], "parity")
    rows += [made_up("addition", "abc", 0, 20, 98), made_up("parity", "rope", 0, 60)]
    text = tables.long_tables(pd.DataFrame(rows))
    assert "| addition | abc | 2 | 98.00, one seed (99.9) | 100 (99.8) |" in text
    assert "| parity | rope | one seed | not run | 50.00 |" in text


def test_markup_in_a_row_does_not_reach_the_page():
    harmful = made_up(length=60, hardware="<svg onload=alert(1)>")
    text = tables.overview(pd.DataFrame([harmful]), NONE)
    assert "<svg" not in text and "&lt;svg onload=alert(1)&gt;" in text
