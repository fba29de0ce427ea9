# make reproduce   install, train, calibrate, retrain, evaluate; print the table (10 minutes on two cores)
# make reports     execute the notebooks that are not current, write reports/html/
# make test        run the tests, three at a time: some wait for processes of their own
# make oldest      the tests of Hugging Face models and Trainer with the oldest transformers that works
# make attack      kill, damage and fill up what the tests leave alone (some minutes)
# make gpu         a quarter of an hour on a CUDA card; called again it goes on, and all that came of it is in gpu/
# make soak        an hour of random work, memory and files counted (MINUTES=60)
# make lint        ruff
# make lab         JupyterLab on notebooks/

PYTHON ?= python3.11
MINUTES ?= 60
BIN := .venv/bin

.PHONY: reproduce reports test oldest attack gpu soak lint lab

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
	$(BIN)/python -m pytest -n 3 --dist worksteal

oldest: .venv/everything
	$(BIN)/pip install --quiet --no-deps --upgrade --target .venv/oldest 'transformers==4.56.0' 'tokenizers==0.22.0' 'huggingface_hub==0.34.4'
	PYTHONPATH=.venv/oldest $(BIN)/python -c 'import transformers; print("transformers", transformers.__version__)'
	PYTHONPATH=.venv/oldest $(BIN)/python -m pytest tests/test_hugging_face.py tests/test_hugging_face_batches.py tests/test_trainer.py

attack: .venv/everything
	$(BIN)/python -m pytest -m attack -rP tests/test_attacks.py tests/test_schedule.py

# Each part has its limit and leaves what it has, so that an early end costs the later parts alone.
DEVICE ?= cuda
GPU ?= gpu
GPU_SWEEP ?= reports/sweeps/gpu.toml
GPU_PRESET ?= laptop
GPU_BENCH_SECONDS ?= 150

gpu: .venv/everything
	mkdir -p $(GPU)
	-timeout 90 $(BIN)/python -m pytest -m gpu > $(GPU)/tests.txt
	-timeout $(GPU_BENCH_SECONDS) $(BIN)/python -m abcnb bench --device $(DEVICE) > $(GPU)/bench.txt
	-timeout 400 $(BIN)/python -m abcnb sweep $(GPU_SWEEP) --device $(DEVICE) --together 8 --workers 4 --runs $(GPU)/runs --reports $(GPU)
	-for notebook in 03_attention_analysis 05_abc; do \
	    timeout 120 $(BIN)/papermill notebooks/$$notebook.ipynb $(GPU)/$$notebook.ipynb \
	    -p preset $(GPU_PRESET) -p device $(DEVICE) -p runs_dir $(abspath $(GPU))/runs -p stored False; done

soak: .venv/everything
	$(BIN)/python -m tests.soak --minutes $(MINUTES)

lint: .venv/everything
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

lab: .venv/notebooks
	$(BIN)/jupyter lab notebooks
