"""Tables for a page: long ones folded until a reader opens them, one with coloured cells, and ones of words."""

import re
from collections.abc import Sequence
from html import escape

import pandas as pd
from pandas.io.formats.style import Styler

from abcnb.model.evaluation import percent
from abcnb.show.style import COLOURMAP
from abcnb.study import views

TESTS = {"random": "random", "hard": "hard cases"}  # of the table at a glance


class Folded:
    """A table folded behind a one-line summary; in plain text it is written out."""

    def __init__(self, summary: str, table: pd.DataFrame):
        self.summary, self.table = summary, table

    def _repr_html_(self) -> str:
        return f"<details><summary>{escape(self.summary)}</summary>{self.table._repr_html_()}</details>"

    def __repr__(self) -> str:
        return f"{self.summary}\n\n{self.table.to_string()}"


def at_a_glance(table: pd.DataFrame, methods: Sequence[str], length: int) -> Styler:
    """Mean exact match of every method and task at one length, on random digits and hard cases, coloured by percent.

    Args:
        table: rows of `views.with_intervals`, those of frozen experiments of one preset.
        methods: the rows, in this order; those not measured are left out.
        length: in digits.
    """
    rows = table[(table["length"] == length) & table["method"].isin(methods) & table["test_set"].isin(TESTS)]
    means = views.in_order(rows).pivot_table("exact_match", "method", ["task", "test_set"], sort=False)
    shown = [method for method in methods if method in means.index]
    columns = pd.MultiIndex.from_product([list(means.columns.unique(0)), TESTS])
    means = means.reindex(index=shown, columns=columns).rename(columns=TESTS, level=1)
    styled = means.rename_axis(f"{length} digits").style.format(percent, na_rep="not run")
    styled = styled.background_gradient(COLOURMAP, axis=None, vmin=0, vmax=100)
    return styled.highlight_null(props="background-color: #eef0f2; color: #57606a").set_uuid("at-a-glance")


def in_words(table: pd.DataFrame) -> Styler:
    """A table of texts, aligned left; column names lose the backticks that they have in Markdown."""
    table = table.rename(columns=lambda name: str(name).strip("`"))
    name = "-".join(re.sub(r"\W", "-", column) for column in table.columns)
    left = [{"selector": "th, td", "props": "text-align: left; vertical-align: top"}]
    return table.rename_axis(None).style.format(str).set_table_styles(left).set_uuid(name)
