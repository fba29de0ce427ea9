"""The benchmarks at reduced size on a CPU: what they measure is timing, which decides no test."""

import re
import subprocess

import nbformat
import pytest
import torch

from abcnb import bench
from abcnb.bench import (
    batch_of,
    bench_gpu,
    bench_many,
    bench_parts,
    bench_step,
    kept_bytes,
    matrix_rate,
    seconds,
    step_of,
    step_of_many,
)
from abcnb.model.training import train
from abcnb.study import results
from abcnb.study.cost import training_flops
from abcnb.study.methods import experiment
from abcnb.study.runs import new_model, written_biases
from abcnb.study.settings import with_settings
from abcnb.tasks.training_data import TrainingData

CPU = torch.device("cpu")
REDUCED = [
    "training.batch_size=4", "training.learning_rate=0.001", "training.warmup_steps=0", "training.clip=0.1",
    "model.d_model=32", "model.d_ff=64", "model.decoder_layers=2", "model.dropout=0",
]  # fmt: skip


def reduced(*more):
    return with_settings(experiment("successor", "vanilla", "smoke"), [*REDUCED, *more])


def test_every_part_has_a_line(monkeypatch):
    """At small sizes, each piece of work done once instead of timed."""

    def once(work, device, repeats=1):
        work()
        return 1.0

    monkeypatch.setattr(bench, "seconds", once)
    monkeypatch.setattr(bench, "EXACT_MATCHES", 2)
    monkeypatch.setattr(bench, "ALONG_LINES", (("addition", 12, 2), ("many-addition", 3, 2)))
    monkeypatch.setattr(bench, "bench_many", lambda *_: ["  8 models at once"])
    monkeypatch.setattr(bench, "bench_parts", lambda *_: "  of its time")
    monkeypatch.setattr(bench, "bench_lines", lambda: ["a Llama"])
    _, *ratios = (text := bench.bench_cpu()).splitlines()
    assert all("1.0×" in line for line in ratios[:3])
    told = ("addition vanilla", "steps/s", "TransformerDecoder", "addition abs", "models at once", "of its time")
    assert all(part in text for part in (*told, "a Llama"))


def built(e):
    torch.manual_seed(e.seed)
    return new_model(e, written_biases(e)).train()


def test_the_step_that_is_timed_is_that_of_training():
    e = reduced("training.steps=1000000", "training.validate_every=3")

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


def test_the_step_of_many_is_one_of_each():
    assert step_of_many(reduced(), 3, CPU)().shape == (3,)


def test_the_parts_of_a_step_sum_up():
    parts = dict(re.findall(r"(\w+) (\d+)%", bench_parts(reduced(), CPU, 3)))
    assert list(parts) == ["data", "forward", "backward", "optimizer", "validation"]
    assert abs(sum(map(int, parts.values())) - 100) <= 3


def test_many_at_once_are_compared_with_one_after_another(monkeypatch):
    taken = iter([0.5, 3.0])
    monkeypatch.setattr(bench, "seconds", lambda work, device, repeats: work() is not None and next(taken))
    assert bench_many(reduced(), (2,), CPU, 1) == ["  2 models at once: 3.00 of the time of one after another"]


def test_the_best_of_three_blocks_counts_after_one_to_warm_up(monkeypatch):
    """Blocks of two calls that take 1, 9, 3 and 4 seconds by the clock."""
    ticks = iter([0, 1, 10, 19, 20, 23, 30, 34])
    monkeypatch.setattr(bench.time, "perf_counter", lambda: next(ticks))
    calls = []
    assert seconds(lambda: calls.append(1), CPU, 2) == 1.5
    assert len(calls) == 8 and next(ticks, None) is None


def test_the_rate_of_matrix_products_is_in_operations_per_second(monkeypatch):
    monkeypatch.setattr(bench, "seconds", lambda work, device, repeats: work() is not None and 0.25)
    assert matrix_rate(CPU, torch.float32, 10) == 2 * 10**3 / 0.25


def test_forms_are_compared_in_steps_per_second_and_in_shares_of_the_matrix_rate(monkeypatch):
    e = reduced()
    monkeypatch.setattr(bench, "matrix_rate", lambda device: 4.0 * training_flops(e) / e.training.steps)
    monkeypatch.setattr(bench, "bench_parts", lambda *_: "  of its time")
    taken = iter([0.5, 2.0])
    monkeypatch.setattr(bench, "seconds", lambda work, device, repeats: work() is not None and next(taken))
    assert bench_step(e, CPU, 1)[1:] == [
        "  ours: 2.0 steps/s, 50% of the matrix rate",
        "  torch.nn.TransformerDecoder: 0.5 steps/s, 12% of the matrix rate",
        "  of its time",
    ]


def test_bytes_for_the_backward_pass_are_counted_once_and_without_weights():
    """Of relu(x w): x, [8, 4], for the gradient of w; the result, [8, 3], for that of relu, twice in the sum."""
    weight, x = torch.nn.Parameter(torch.randn(4, 3)), torch.randn(8, 4)

    def forward():
        y = (x @ weight).relu()
        return (y * y).sum()

    assert kept_bytes(forward, {weight.untyped_storage().data_ptr()}) == 4 * (8 * 4 + 8 * 3)


def test_batches_of_several_shapes_are_padded_and_as_many_as_of_one():
    batch = batch_of(TrainingData("addition", one_stream=True), range(2, 10), torch.Generator())
    ids, mask = batch["input_ids"], batch["attention_mask"]
    assert ids.shape == (128, 3 * 9 + 4) and mask.sum(1).unique().tolist() == [3 * n + 4 for n in range(2, 10)]


@pytest.mark.slow
def test_a_quarter_of_an_hour_on_a_gpu_is_rehearsed(repository, tmp_path):
    """`make gpu` at small sizes on a CPU: each part leaves what came of it, and called again the sweep goes on."""
    file = tmp_path / "small.toml"
    text = (repository / "reports" / "sweeps" / "gpu.toml").read_text()
    text = (
        text.replace('"paper"', '"smoke"')
        .replace('"width=62", ', "")
        .replace("seeds = [0, 1, 2, 3]", "seeds = [0, 1]")
    )
    file.write_text(
        re.sub(r"steps=\d+", "steps=3", text).replace("samples = 1000", "samples = 20\nhard_samples = 9")
    )
    small = {"DEVICE": "cpu", "GPU": tmp_path / "gpu", "GPU_SWEEP": file, "GPU_PRESET": "smoke"}
    small["GPU_BENCH_SECONDS"] = 900
    command = ["make", "gpu", *(f"{name}={value}" for name, value in small.items())]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True)
    assert done.returncode == 0 and "Error" not in done.stderr, done.stderr
    folder = tmp_path / "gpu"
    assert "skipped" in (folder / "tests.txt").read_text() and "steps/s" in (folder / "bench.txt").read_text()
    rows = results.read(folder / "results" / "accuracy.csv")
    assert set(rows["method"]) == {"vanilla", "abc", "abc-paper"} and set(rows["length"]) == {6, 20, 60}
    assert rows["hardware"].str.endswith("2 models at once").all()
    for name in ("03_attention_analysis", "05_abc"):
        assert nbformat.read(folder / f"{name}.ipynb", 4).metadata.papermill.exception is None


def test_all_of_it_at_small_size(monkeypatch):
    monkeypatch.setattr(bench, "matrix_rate", lambda *_: 1e11)
    text = bench_gpu(CPU, "smoke", 1, (2,))
    assert "addition vanilla" in text and "TransformerDecoder" in text and "2 models at once" in text


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_all_of_it_on_a_gpu():
    text = bench_gpu(torch.device("cuda"), "smoke", 2, (2,))
    assert "CUDA graphs" in text and "compiled" in text and "2 models at once" in text


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
