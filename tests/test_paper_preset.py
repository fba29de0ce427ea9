"""The `paper` preset at reduced size: everything but the sizes and the number of steps is as a GPU runs it."""

import pytest

from abcnb.study.fitting import fit
from abcnb.study.methods import experiment
from abcnb.study.settings import with_settings

REDUCED = [
    "training.steps=2", "training.batch_size=4", "training.validation_samples=4", "training.warmup_steps=1",
    "training.precision=bf16", "model.d_model=32", "model.d_ff=64", "model.decoder_layers=2",
]  # fmt: skip


def reduced(task, method, *more):
    wanted = experiment(task, method, "paper")
    settings = [*REDUCED, *more]
    if wanted.interpolation:
        settings += [f"interpolation.{setting}" for setting in REDUCED]
    return with_settings(wanted, settings)


@pytest.mark.parametrize(
    "task, method", [("addition", "abs-cpi"), ("successor", "abc"), ("parity", "abs"), ("n-by-1", "rope")]
)
def test_it_trains_and_is_tested_at_the_width_of_sixty_digits(tmp_path, task, method):
    wanted = reduced(task, method, *["tau=0.02"] * (method == "abc"))
    assert wanted.train_width == wanted.get_task().digits_at(60) + 1 and wanted.model.dropout == 0.3
    run = fit(wanted, tmp_path, "cpu", progress=False)
    short, long = run.evaluate(6, 5), run.evaluate(60, 5)
    assert short.digits == long.digits  # as the paper does: shorter numbers are padded to the same width
