"""The GPU benchmark at reduced size on a CPU: it times training steps, alone and of many seeds at once."""

import pytest
import torch

from abcnb.bench.gpu import bench_gpu, bench_seeds, step_of, step_of_all
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


@pytest.mark.parametrize("method", ["vanilla", "abs-cpi"])
def test_seeds_in_one_program_learn_what_each_learns_alone(method):
    seeds = [reduced(method, seed) for seed in range(3)]
    alone = [step_of(built(e), e, CPU) for e in seeds]
    together = step_of_all([built(e) for e in seeds], seeds, CPU)
    for _ in range(4):
        torch.testing.assert_close(together(), torch.stack([step() for step in alone]), rtol=1e-4, atol=1e-5)


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


def test_seeds_are_compared_in_three_ways_in_real_processes():
    lines = bench_seeds(reduced(), CPU, 2, 1)
    assert [line.split(":")[0].strip() for line in lines[1:]] == [
        "one after another",
        "in one program (vmap)",
        "in processes",
    ]
    assert all(float(line.split(":")[1]) > 0 for line in lines[1:])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_all_of_it_on_a_gpu():
    text = bench_gpu(torch.device("cuda"), "smoke", 2, 2)
    assert "CUDA graphs" in text and "TransformerDecoder" in text and "vmap" in text


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("task", ["successor", "addition", "parity", "n-by-1"])
@pytest.mark.parametrize("method", ["vanilla", "abs-place", "randomized", "coupled"])
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
