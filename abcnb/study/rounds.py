"""The rounds of the protocol whose test seeds were opened once, after everything had been fixed."""

import pandas as pd

# Test seeds of the rounds whose configuration was chosen on other seeds and only then evaluated, once, on these
# (reports/round_three.md). Of the paper's tasks all others had been looked at while something was still chosen, so a
# table shows the seeds of one round or the others.
OPENED_ONCE = {"third": range(20, 30), "fourth": range(40, 50)}


def opened_in(seed: int) -> str:
    """The round that opened a test seed, once: a name of `OPENED_ONCE`, or "" for a seed that was looked at before."""
    return next((name for name, seeds in OPENED_ONCE.items() if seed in seeds), "")


def by_round(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The rows by `opened_in` of their seeds, those of "" first.

    A round's rows are without settings where a method has one configuration on each task, the round's own.
    """
    found = {}
    for name in ["", *OPENED_ONCE]:
        rows = table[table["seed"].map(opened_in) == name]
        if name and rows.groupby(["task", "method"])["settings"].nunique().le(1).all():
            rows = rows.assign(settings="")
        found[name] = rows
    return found
