"""Devices by name."""

import pytest
import torch

from abcnb.machine.devices import hardware, pick_device


def test_pick_device_without_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == pick_device("cpu") == torch.device("cpu")
    for wanted in ("cuda", "cuda:0"):
        with pytest.raises(ValueError, match=f"expected a CUDA device for '{wanted}', but torch finds none"):
            pick_device(wanted)


@pytest.mark.parametrize("name", ["gpu", "", "cpu:", "cpu:0x", "tpu", "cudaa", "cuda:"])
def test_pick_device_names_the_devices(name):
    with pytest.raises(ValueError, match=f"expected a device among auto, cpu, cuda, got '{name}'"):
        pick_device(name)


@pytest.mark.parametrize("name", ["cuda:7", "cuda:first"])
def test_pick_device_refuses_a_cuda_device_that_is_not_there(monkeypatch, name):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match=name):
        pick_device(name)


def test_a_processor_is_named_with_its_threads(monkeypatch):
    name = hardware(torch.device("cpu"))
    assert name.endswith(f", {torch.get_num_threads()} thread(s)") and len(name.split(", ")[0]) > 2
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"card of {device}")
    assert hardware(torch.device("cuda:1")) == "card of cuda:1"
