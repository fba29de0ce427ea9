"""Small notebooks that need no model."""

from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from abcnb.show.cleaning import KERNEL

PARAMETERS = """preset = "laptop"  # smoke, laptop or paper
runs_dir = ""  # folder of trained models
stored = True  # use what is committed"""
LINKS = {"01_first": "[next](02_second.ipynb)", "02_second": "[before](01_first.ipynb)"}


def little(title, link, *sources):
    cells = [new_markdown_cell(f"# {title}\n\n**Question.** Is {title} right?")]
    cells.append(new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]}))
    cells += [new_code_cell(source) for source in sources]
    return new_notebook(cells=[*cells, new_markdown_cell(link)], metadata=KERNEL)
