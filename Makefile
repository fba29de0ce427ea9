# make reproduce   install, train, calibrate, retrain, evaluate; prints the table, writes reports/ (15 to 25 minutes)
# make reports     execute the notebooks that are not current, write reports/html/
# make test        install if needed, run the tests
# make lint        ruff
# make lab         JupyterLab on notebooks/

PYTHON ?= python3.11
BIN := .venv/bin

.PHONY: reproduce reports test lint lab

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[notebooks,dev,browser,ray,references]'
	touch $@

reproduce: .venv/installed
	$(BIN)/python -m abcnb reproduce --preset laptop

reports: .venv/installed
	$(BIN)/python -m abcnb reports --preset laptop

test: .venv/installed
	$(BIN)/python -m pytest

lint: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

lab: .venv/installed
	$(BIN)/jupyter lab notebooks
