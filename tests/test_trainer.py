"""Lines in a GPT-2 that `Trainer` of transformers trains: a script as a user would write it, and checkpoints."""

import runpy
import sys
from pathlib import Path

import pytest
import torch

from abcnb.lines.line import Line, LineBias
from abcnb.tasks.tokens import IDS, encode
from abcnb.yours.hugging_face import attach
from abcnb.yours.pytorch import PromptApart
from tests.decoders import HEADS, RULE, model_of, transformers

pytest.importorskip("accelerate")
SCRIPT = Path(__file__).with_name("gpt2_with_trainer.py")


@pytest.fixture
def printed_by_the_script(tmp_path, monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(tmp_path), *map(str, arguments)])
        runpy.run_path(str(SCRIPT), run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.mark.slow
def test_the_script_is_right_at_sixty_digits(printed_by_the_script):
    """About five minutes on one thread."""
    printed = printed_by_the_script(1000, 800)
    print(printed)
    assert printed.splitlines()[-3:] == ["3 digits: 100%", "12 digits: 100%", "60 digits: 100%"]


LINES = LineBias("self", HEADS, tuple(Line(head, "digits", "a", ("place",), (-head,)) for head in range(3)))
PAIRS = [
    (f"${n:0{1 + len(str(n))}}=", f"{n + 1:0{1 + len(str(n))}}"[::-1] + "&") for n in (3, 42, 199, 5, 77, 808)
]


def collate(samples):
    ids = [encode(prompt + output) for prompt, output in samples]
    pad = torch.nn.utils.rnn.pad_sequence
    mask = pad([torch.ones_like(row) for row in ids], True)
    ids = pad(ids, True, IDS["@"])
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def gpt2():
    return model_of("GPT2", resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)


def trainer(model, folder, steps):
    arguments = transformers.TrainingArguments(
        str(folder), max_steps=steps, per_device_train_batch_size=3, save_steps=2, report_to=[], use_cpu=True,
        disable_tqdm=True, lr_scheduler_type="constant", seed=0,
    )  # fmt: skip
    return transformers.Trainer(model, arguments, collate, PAIRS)


def test_a_training_that_was_interrupted_goes_on_with_its_lines(tmp_path):
    whole, begun, resumed = gpt2(), gpt2(), gpt2()
    for model in (whole, begun, resumed):
        attach(model, LINES, RULE)
    trainer(whole, tmp_path / "whole", 4).train()
    trainer(begun, tmp_path / "begun", 2).train()
    trainer(resumed, tmp_path / "begun", 4).train(resume_from_checkpoint=str(tmp_path / "begun" / "checkpoint-2"))
    for one, other in zip(whole.state_dict().values(), resumed.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other)


def test_a_checkpoint_of_other_lines_is_refused(tmp_path):
    begun, other = gpt2(), gpt2()
    attach(begun, LINES, RULE)
    attach(other, PromptApart(HEADS), RULE)
    trainer(begun, tmp_path, 2).train()
    with pytest.raises((ValueError, RuntimeError), match=r"abcnb_lines|trained with these lines"):
        trainer(other, tmp_path, 4).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
