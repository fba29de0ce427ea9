"""Small notebooks that need no model, and names of tasks."""

import torch
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from abcnb.model.configs import SCHEMES
from abcnb.tasks.task import TASKS
from abcnb.tasks.tokens import EQUALS_ID

# Tasks whose output is one number, which models of both architectures learn; the others write rows.
ONE_ROW = [name for name, task in TASKS.items() if not task.in_rows]
IN_ROWS = [name for name in TASKS if name not in ONE_ROW]
BY_ITSELF = [name for name in ONE_ROW if name != "four-in-one"]  # its samples are those of others
ENCODER_DECODER = [name for name, scheme in SCHEMES.items() if not scheme.only_in_streams]

PARAMETERS = """preset = "laptop"  # smoke, laptop or paper
runs_dir = ""  # folder of trained models
stored = True  # use what is committed"""
LINKS = {"01_first": "[next](02_second.ipynb)", "02_second": "[before](01_first.ipynb)"}


def little(title, link, *sources):
    from abcnb.show.cleaning import KERNEL

    cells = [new_markdown_cell(f"# {title}\n\n**Question.** Is {title} right?")]
    cells.append(new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]}))
    cells += [new_code_cell(source) for source in sources]
    return new_notebook(cells=[*cells, new_markdown_cell(link)], metadata=KERNEL)


def integers(digits, base=10):
    """Python integers of rows of digits, units first."""
    return [sum(int(d) * base**place for place, d in enumerate(row)) for row in digits.tolist()]


def one_sequence(batch):
    """Token ids of prompt and output as a decoder-only model reads them, [batch, tokens]."""
    return torch.cat(
        [batch.source[:, :-1], torch.full_like(batch.source[:, :1], EQUALS_ID), batch.target[:, :-1]], 1
    )
