"""Sums by a GPT-2 and `Trainer`, on padded batches of mixed lengths: `python gpt2_with_trainer.py FOLDER 1000 800`."""

import random
import sys

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from abcnb.yours.hugging_face import attach, calibrate
from abcnb.yours.pytorch import PromptApart, TokenRule

TOKENS, PAD, EQUALS = "0123456789+=$&@", 14, 11
folder, steps, steps_with_lines, *tau = sys.argv[1:]
rule = TokenRule(digits=range(10), prompt_end=EQUALS)


def sums(count, digits, width=None):
    for n in random.choices(digits, k=count):
        a, b, w = random.randrange(10**n), random.randrange(10**n), width or n + 1
        yield f"${a:0{w}}+{b:0{w}}=", f"{a + b:0{w}}"[::-1] + "&"


def collate(pairs, side="right"):
    ids = pad_sequence([torch.tensor([*map(TOKENS.index, "".join(pair))]) for pair in pairs], True, PAD, side)
    prompt = (ids == EQUALS).long().cumsum(1) - (ids == EQUALS).long() == 0
    labels = ids.masked_fill(prompt | (ids == PAD), -100)
    return {"input_ids": ids, "labels": labels, "attention_mask": (ids != PAD).long()}


def trained(heads, lines, steps, width=None, **options):
    sizes = {"vocab_size": 15, "n_embd": 128, "n_layer": 2, "n_head": heads, "resid_pdrop": 0, "embd_pdrop": 0}
    model = GPT2LMHeadModel(GPT2Config(**sizes, attn_pdrop=0, bos_token_id=12, eos_token_id=13))
    attach(model, lines, rule, **options)
    rate = {"learning_rate": 2e-3, "warmup_steps": steps // 10, "lr_scheduler_type": "cosine"}
    rest = {"use_cpu": True, "report_to": [], "save_strategy": "no", "disable_tqdm": True}
    arguments = TrainingArguments(folder, max_steps=steps, per_device_train_batch_size=128, **rate, **rest)
    Trainer(model, arguments, collate, list(sums(128 * steps, range(1, 7), width))).train()
    return model.eval()


random.seed(0), torch.manual_seed(0)
plain = trained(8, PromptApart(heads=8), int(steps), width=7, keep_positions=True)
lines = calibrate(plain, [collate(sums(128, range(1, 7), 7)) for _ in range(20)], rule, *map(float, tau))
model = trained(16, lines.biases(heads=16).self_biases, int(steps_with_lines))
print(lines)
for n in (3, 12, 60):
    prompts, outputs = zip(*sums(100, [n]), strict=True)
    batch = collate(prompts, side="left") | {"labels": None}
    written = model.generate(**batch, max_new_tokens=n + 2, do_sample=False, pad_token_id=PAD)
    right = (written[:, -n - 2 :] == collate(outputs)["input_ids"]).all(1)
    print(f"{n} digits: {right.sum()}%")
