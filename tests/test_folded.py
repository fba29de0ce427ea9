from itertools import product

import pandas as pd

from abcnb.show.folded import Folded, at_a_glance, in_words
from abcnb.study import views
from tests.made_up import made_up


def test_a_folded_table_is_behind_its_line_and_whole_in_plain_text():
    folded = Folded("2 rows <of> text", pd.DataFrame({"a": [1, 2]}))
    html = folded._repr_html_()
    assert html.startswith("<details><summary>2 rows &lt;of&gt; text</summary>") and html.endswith("</details>")
    assert html.count("<tr") == 3 and repr(folded).splitlines()[0] == "2 rows <of> text"
    assert repr(folded).count("\n") == 4


def test_the_table_at_a_glance_has_means_over_seeds_and_says_what_was_not_run():
    rows = [
        ("abs", 0, 60, 100),
        ("abs", 1, 60, 90),
        ("vanilla", 0, 60, 0),
        ("rope", 0, 60, 50),
        ("vanilla", 0, 6, 100),
    ]
    rows = [made_up("addition", *row) for row in rows] + [
        made_up("successor", "vanilla", 0, 60, 0, test_set="hard")
    ]
    table = views.with_intervals(pd.DataFrame(rows))
    shown = at_a_glance(table, ["vanilla", "abs", "lora"], 60)
    assert list(shown.data.index) == ["vanilla", "abs"]
    assert list(shown.data.columns) == list(product(("successor", "addition"), ("random", "hard cases")))
    assert shown.data.loc["abs", ("addition", "random")] == 95
    html = shown.to_html()
    assert html.count("not run") == 5 and ">95.00<" in html and "background-color" in html


def test_a_table_of_words_is_aligned_left_and_the_same_each_time():
    table = pd.DataFrame({"cited from": ["a <b>"], 6: [99.5]}, index=pd.Index(["addition"], name="task"))
    html = in_words(table).to_html()
    assert html == in_words(table).to_html() and "text-align: left" in html
    assert ">99.5<" in html and ">addition<" in html and ">task<" not in html


def test_names_of_columns_lose_the_marks_of_code():
    html = in_words(pd.DataFrame({"`abc`": ["100"], "lines": ["`a[place]`"]})).to_html()
    assert ">abc</th>" in html and "<td" in html and "`a[place]`" in html
