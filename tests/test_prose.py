"""Numbers that stand in sentences, and in more than one of them, against the committed rows."""

from pathlib import Path

import pytest

from abcnb.model.evaluation import percent
from abcnb.study import results, views

REPORTS = Path(__file__).parents[1] / "reports"
PAGES = {"README": REPORTS.parent / "README.md"}
PAGES |= {name: REPORTS / f"{name}.md" for name in ("results", "right_at_every_length")}
FOUR, AT_60 = ["successor", "addition", "parity", "n-by-1"], "length == 60 and test_set == 'random'"
TOLD = "model.cross_distance=places"


@pytest.fixture(scope="module")
def rows():
    table = results.read(REPORTS / "results" / "accuracy.csv")
    return table.assign(exact=views.exact_match)


@pytest.fixture(scope="module")
def rule(rows):
    """The evidence for `abc` and `abs`: untouched seeds, as they are by default, at no more than 600 digits."""
    return rows.query(
        "seed >= 70 and settings == '' and length <= 600 and task in @FOUR and method in ['abc', 'abs']"
    )


def sentence(page):
    """A page's text, in one line."""
    return " ".join(PAGES[page].read_text(encoding="utf-8").split())


def tokens(shown):
    """Output tokens, as pages write them."""
    return f"{shown['digits'].sum() / 1e6:.1f} million"


def test_wrong_tokens_of_the_one_rule(rule):
    abc = rule.query("preset == 'laptop' and method == 'abc'")
    wrong, total = int(abc["wrong_digits"].sum()), int(abc["digits"].sum())
    assert abc["run"].nunique() == 120 and sorted(set(abc["seed"])) == [*range(70, 100)]
    assert f"{wrong} of {tokens(abc)} tokens are wrong" in sentence("README")
    assert "On seeds 70 to 99 `abc` was tested as encoder-decoder" in sentence("results")
    assert f"{len(abc):,} rows of random digits" in sentence("results")
    assert f"{wrong} of {total:,} output tokens are wrong" in sentence("results")
    seeds = abc[abc["wrong_digits"] > 0].groupby("task")["seed"].unique()
    assert set(seeds.index) == {"successor", "n-by-1"}
    for of_task in seeds:
        *most, last = map(str, sorted(of_task))
        assert f"{', '.join(most)} and {last}" in sentence("results")
    hard, padded = (abc.query("length == 60 and test_set == @name") for name in ("hard", "padded"))
    lowest = percent(hard["worst_percent"].astype(float).min())
    assert f"at least {lowest}% on every kind of hard case at 60 digits" in sentence("README")
    assert f"the lowest kind of hard case scores {lowest}%" in sentence("results")
    assert f"the lowest padding at 60 digits {percent(padded['worst_percent'].astype(float).min())}%" in sentence(
        "results"
    )
    assert abc.query("length == 60")["exact"].min() >= 99


def test_no_token_is_wrong_by_hand_and_in_one_stream(rule):
    by_hand = rule.query("preset == 'laptop' and method == 'abs'")
    stream = rule.query("preset == 'decoder-only'")
    of_each = {tokens(stream[stream["method"] == method]) for method in ("abc", "abs")}
    assert by_hand["wrong_digits"].sum() == stream["wrong_digits"].sum() == 0
    assert f"`abs` (70 to 79): none of {tokens(by_hand)}" in sentence("README")
    assert of_each == {tokens(by_hand)}
    assert f"nor has `abs` as encoder-decoder (each of {of_each.pop()})" in sentence("results")


@pytest.mark.parametrize("task", ["many-addition", "nested"])
def test_no_token_is_wrong_in_sums_and_lists(rows, task):
    of_task = rows.query("task == @task and settings == '' and seed >= 70 and length <= 60")
    for method in ("abc", "abs"):
        mine = of_task[of_task["method"] == method]
        assert set(mine["seed"]) == {*range(70, 80)} and mine["wrong_digits"].sum() == 0
    assert "no token is wrong in sums of up to 60 terms of 60 digits and in lists 10 deep" in sentence("results")


def test_products_that_are_wrong(rows):
    """The seeds, and where most are wrong."""
    found = rows.query("task == 'multiplication' and settings == '' and length == 60 and seed >= 70")
    found = found.assign(wrong=found["samples"] - found["correct"])
    abc, found = (found[found["method"] == method] for method in ("abc", "abs"))
    of_abc, of_abs = (of.groupby("seed")["wrong"].sum().loc[lambda wrong: wrong > 0] for of in (abc, found))
    seeds = ", ".join(map(str, of_abc.index))
    each = found.query("length == 60").groupby("seed")["samples"].sum().unique()
    told = f"Of {each.item()} products of 60 × 60 `abc` misses up to {of_abc.max()} (seeds {seeds}), `abs` up to "
    assert told + f"{of_abs.max()} (five seeds; [details]" in sentence("README") and len(of_abs) == 5
    wrong = {
        name: of.query("wrong > 0").set_index("seed")["wrong"].to_dict() for name, of in found.groupby("test_set")
    }
    assert found["seed"].nunique() == 10
    assert wrong == {"random": {71: 1, 73: 12, 74: 1, 75: 1}, "unequal": {73: 1}, "hard": {77: 1}}
    assert "one random product on seeds 71, 74 and 75 each, in 12 of 300 and one of 100 unequal on 73" in sentence(
        "results"
    )


def test_what_dealing_adds_to_products():
    """Heads that keep their own lines, at 6 × 6 and 60 × 60 digits, on seeds 70 to 72."""
    kept = results.read(REPORTS / "results" / "why.csv").query(
        "task == 'multiplication' and variant == 'own heads'"
    )
    exact = (
        kept.query("test_set == 'random'").assign(exact=views.exact_match).set_index(["seed", "length"])["exact"]
    )
    assert [exact[seed, 60] for seed in (70, 71, 72)] == [0, 100, 0]
    shares = f"{percent(exact[70, 6])} and {percent(exact[72, 6])}%"
    assert f"{shares} of 6 × 6 are right on seeds 70 and 72, none of 60 × 60; on 71 all are" in sentence("results")
    assert "With several, products fail on two seeds of three" in sentence("README")


@pytest.mark.parametrize("task", FOUR)
def test_a_rival_that_is_told_the_places(rows, task):
    told = rows[rows["settings"].str.contains(TOLD) & rows["method"].eq("kerple") & rows["task"].eq(task)]
    exact = told.query(AT_60)["exact"]
    low, high = percent(exact.min()), percent(exact.max())
    assert len(exact) == 3 and (high if low == high else f"{low} to {high}") + "%" in sentence("results")


def test_kerple_in_short(rows):
    told = rows[rows["settings"].str.contains(TOLD) & rows["method"].eq("kerple") & rows["length"].eq(60)]
    three = told.query("task != 'n-by-1'")
    low = [int(three.query("test_set == @name")["exact"].min()) for name in ("random", "hard")]
    assert f"KERPLE scores {low[0]} to 100% on three tasks of four (hard cases from {low[1]}%)" in sentence(
        "README"
    )


def test_the_papers_windows(rows):
    at_60 = rows.query(f"{AT_60} and settings == '' and preset == 'laptop' and seed in [0, 1, 2]")
    worst = at_60.groupby(["method", "task"])["exact"].min()
    assert f"`abs-cpi` scores at least {percent(worst['abs-cpi'].min())}% on all four tasks" in sentence("README")
    assert f"`abs-nope` on three (N×1: {percent(worst['abs-nope', 'n-by-1'])}%)" in sentence("README")
    assert worst["abs-nope"].drop("n-by-1").min() > 99


def test_longer_training_numbers_move_the_boundary(rows):
    long = rows.query("method == 'vanilla' and train_numbers == 'long' and preset == 'laptop'")
    at_twelve, beyond = (long[long["length"] == length] for length in (12, 13))
    random, hard = (at_twelve.query("test_set == @name")["exact"].min() for name in ("random", "hard"))
    assert sorted(set(at_twelve["task"])) == ["addition", "successor"] and beyond["exact"].max() == 0
    assert f"at least {percent(random)}% at twelve (hard cases: {percent(hard)}%)" in sentence("README")


@pytest.mark.parametrize("method", ["abc-paper", "abc-columns"])
def test_the_papers_condition(rows, method):
    """Percent at 60 random digits with operands padded to 62, seed by seed."""
    shown = rows.query("method == @method and length == 60 and test_set == 'random' and task in @FOUR")
    shown = shown[shown["settings"].str.startswith("width=62")].sort_values("seed")
    assert len(shown) >= 10
    names = {"successor": "Successor", "addition": "Addition", "n-by-1": "N×1"}
    for (task, _), group in shown.groupby(["task", "settings"]):
        *most, last = map(percent, group["exact"])
        told = f"{', '.join(most)} and {last}" if set(most) != {last} else last
        assert f"{told}% on {names[task]}" in sentence("results")


def test_how_many_are_proved():
    table = results.read(REPORTS / "results" / "certificates.csv").query("method == 'abc' and settings == ''")
    for preset, text in (
        ("laptop", "all {all} encoder-decoders"),
        ("decoder-only", "all {all} tried in one stream"),
    ):
        mine = table[table["preset"].eq(preset) & table["task"].isin(FOUR)]
        right, tried = (len(part.groupby(["task", "seed"])) for part in (mine.query("outcome == 'correct'"), mine))
        assert right == tried and text.format(all=tried) in sentence("README")
