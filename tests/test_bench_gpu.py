"""The GPU benchmark at reduced size on a CPU: it times training steps, alone and of many seeds at once."""

import pytest
import torch

from abcnb.bench import gpu
from abcnb.bench.cpu import step_flops
from abcnb.bench.gpu import (
    bench_gpu,
    bench_seeds,
    bench_step,
    matrix_rate,
    seconds_in_processes,
    step_of,
    step_seconds,
)
from abcnb.study.methods import experiment
from abcnb.study.runs import new_model, written_biases
from abcnb.study.settings import with_settings
from abcnb.training import train

CPU = torch.device("cpu")
REDUCED = [
    "training.batch_size=4", "training.learning_rate=0.001", "training.warmup_steps=0", "training.clip=0.1",
    "model.d_model=32", "model.d_ff=64", "model.decoder_layers=2", "model.dropout=0",
]  # fmt: skip


def reduced(method="vanilla", seed=0, *more):
    return with_settings(experiment("successor", method, "smoke", seed), [*REDUCED, *more])


def built(e):
    torch.manual_seed(e.seed)
    return new_model(e, written_biases(e)).train()


def test_the_step_that_is_timed_is_that_of_training():
    e = reduced("vanilla", 0, "training.steps=1000000", "training.validate_every=3")

    class Enough(Exception):
        pass

    def stop(history):
        assert history[-1]["step"] == 3
        raise Enough

    trained, timed = built(e), built(e)
    with pytest.raises(Enough):
        train(trained, e.data(), e.training, e.seed, progress=False, on_validation=stop)
    step = step_of(timed, e, CPU)
    for _ in range(3):
        step()
    for name, weight in timed.named_parameters():
        torch.testing.assert_close(weight, trained.get_parameter(name), rtol=1e-3, atol=1e-5)


def test_a_step_takes_the_best_of_three_blocks_after_one_to_warm_up(monkeypatch):
    """Blocks of two steps that take 1, 9, 3 and 4 seconds by the clock."""
    ticks = iter([0, 1, 10, 19, 20, 23, 30, 34])
    monkeypatch.setattr(gpu.time, "perf_counter", lambda: next(ticks))
    steps = []
    assert step_seconds(lambda: steps.append(1), CPU, 2) == 1.5
    assert len(steps) == 8 and next(ticks, None) is None


def test_the_rate_of_matrix_products_is_in_operations_per_second(monkeypatch):
    monkeypatch.setattr(gpu, "step_seconds", lambda step, device, steps: step() is not None and 0.25)
    assert matrix_rate(CPU, torch.float32, 10) == 2 * 10**3 / 0.25


def test_seeds_are_compared_in_model_steps_per_second(monkeypatch):
    """Four seeds: half a second for a step of one, two for a step of all in processes of their own."""
    monkeypatch.setattr(gpu, "step_seconds", lambda step, device, steps: 0.5)
    monkeypatch.setattr(gpu, "seconds_in_processes", lambda es, device, steps: 2.0 if len(es) == 4 else None)
    assert bench_seeds(reduced(), CPU, 4, 1)[1:] == ["  one after another: 2.0", "  in processes: 2.0"]


def test_forms_are_compared_in_steps_per_second_and_in_shares_of_the_matrix_rate(monkeypatch):
    e = reduced()
    monkeypatch.setattr(gpu, "compiled", lambda model, **mode: model)
    monkeypatch.setattr(gpu, "matrix_rate", lambda device, dtype, size: 4.0 * step_flops(e))
    taken = iter([0.5, 1.0, 2.0])
    monkeypatch.setattr(gpu, "step_seconds", lambda step, device, steps: step() is not None and next(taken))
    assert bench_step(e, CPU, 1, 8)[1:] == [
        "  eager: 2.0 steps/s, 50% of the matrix rate",
        "  torch.compile: 1.0 steps/s, 25% of the matrix rate",
        "  torch.nn.TransformerDecoder: 0.5 steps/s, 12% of the matrix rate",
    ]


def test_seeds_train_in_real_processes_by_the_clock(monkeypatch):
    """The clock stands at 5 when both processes are ready and at 8 when both have done their two steps."""
    ticks = iter([5.0, 8.0])
    monkeypatch.setattr(gpu.time, "perf_counter", lambda: next(ticks))
    assert seconds_in_processes([reduced("vanilla", seed) for seed in range(2)], CPU, 2) == 1.5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_all_of_it_on_a_gpu():
    text = bench_gpu(torch.device("cuda"), "smoke", 2, 2)
    assert "CUDA graphs" in text and "TransformerDecoder" in text and "in processes" in text


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("task", ["successor", "addition", "parity", "n-by-1"])
@pytest.mark.parametrize("method", ["vanilla", "abs", "randomized", "coupled"])
def test_no_training_step_waits_for_the_gpu(task, method):
    e, card = experiment(task, method, "smoke"), torch.device("cuda")
    step = step_of(built(e).to(card), e, card)
    step()  # what is made once for a device may wait
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
