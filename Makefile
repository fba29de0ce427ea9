# make reproduce   install, train, calibrate, retrain, evaluate; print the table (15 minutes on two cores)
# make reports     execute the notebooks that are not current, write reports/html/
# make test        run the tests, two at a time
# make oldest      the tests of Hugging Face models with the oldest transformers that works
# make attack      kill, damage and fill up what the tests leave alone (some minutes)
# make soak        an hour of random work, memory and files counted (MINUTES=60)
# make lint        ruff
# make lab         JupyterLab on notebooks/

PYTHON ?= python3.11
MINUTES ?= 60
BIN := .venv/bin

.PHONY: reproduce reports test oldest attack soak lint lab

# Each target installs what it needs: the package alone, with the notebooks, or with everything.
.venv/package: EXTRAS =
.venv/notebooks: EXTRAS = [notebooks]
.venv/everything: EXTRAS = [notebooks,dev,browser,ray,references]

.venv/package .venv/notebooks .venv/everything: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.$(EXTRAS)'
	touch $@

reproduce: .venv/package
	$(BIN)/python -m abcnb reproduce --preset laptop

reports: .venv/notebooks
	$(BIN)/python -m abcnb reports --preset laptop

test: .venv/everything
	$(BIN)/python -m pytest -n 2 --dist worksteal

oldest: .venv/everything
	$(BIN)/pip install --quiet --no-deps --upgrade --target .venv/oldest 'transformers==4.56.0' 'tokenizers==0.22.0' 'huggingface_hub==0.34.4'
	PYTHONPATH=.venv/oldest $(BIN)/python -c 'import transformers; print("transformers", transformers.__version__)'
	PYTHONPATH=.venv/oldest $(BIN)/python -m pytest tests/test_hugging_face.py

attack: .venv/everything
	$(BIN)/python -m pytest -m attack -rP tests/test_attacks.py

soak: .venv/everything
	$(BIN)/python -m tests.soak --minutes $(MINUTES)

lint: .venv/everything
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

lab: .venv/notebooks
	$(BIN)/jupyter lab notebooks
