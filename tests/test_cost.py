"""Counted operations against PyTorch's own counter."""

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from abcnb.lines.biases import NO_BIASES
from abcnb.rivals.lora import new_adapted
from abcnb.study.cost import forward_flops, training_flops
from abcnb.study.methods import experiment
from abcnb.study.runs import new_model, written_biases
from abcnb.study.settings import with_settings


@pytest.mark.parametrize(
    "task, method, settings",
    [
        ("addition", "vanilla", []),
        ("addition", "abs", ["train_numbers=even"]),  # of one width
        ("addition", "abs-nope", []),
        ("parity", "nope", []),
        ("n-by-1", "vanilla", ["model.encoder_layers=2", "model.decoder_layers=1"]),
        ("parity-classification", "vanilla", []),
        ("addition", "rpe", []),
        ("addition", "rpe-self", []),
        ("addition", "coupled", ["train_numbers=even"]),
    ],
)
def test_counts_are_those_of_the_model(task, method, settings):
    wanted = with_settings(experiment(task, method, *["decoder-only"] * (method == "coupled")), settings)
    model = new_model(wanted, written_biases(wanted))
    batch = wanted.data().train(3, torch.Generator().manual_seed(0))
    # Fused kernels are not counted on a CPU.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        logits = model(batch)
    assert counter.get_total_flops() == 3 * forward_flops(wanted)
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(logits.flatten(0, 1), batch.target.flatten()).backward()
    assert counter.get_total_flops() == 2 * 3 * forward_flops(wanted)


def test_frozen_weights_need_no_gradients():
    """The counter and ours differ by what the first layer's and the adapters' own gradients take."""
    wanted = experiment("addition", "lora")
    adapted = new_model(wanted.interpolation, NO_BIASES).state_dict()
    model = new_adapted(wanted.get_task(), wanted.model, wanted.seed, wanted.lora, adapted)
    batch = wanted.data().train(3, torch.Generator().manual_seed(0))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        F.cross_entropy(model(batch).flatten(0, 1), batch.target.flatten()).backward()
    own = (training_flops(wanted) - training_flops(wanted.interpolation)) / wanted.training.steps / 256 * 3
    assert own == pytest.approx(counter.get_total_flops(), rel=0.2)


def test_abc_counts_the_model_that_it_calibrates():
    vanilla, abc = experiment("addition", "vanilla"), experiment("addition", "abc")
    step = 3 * 256 * forward_flops(vanilla)
    assert training_flops(vanilla) == vanilla.training.steps * step
    found = training_flops(vanilla) + 3 * abc.training.batch_size * abc.training.steps * forward_flops(abc)
    assert training_flops(abc) == found and forward_flops(abc) < forward_flops(vanilla)
