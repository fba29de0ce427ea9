"""Sums by a GPT-2 and `Trainer`, on padded batches of mixed lengths: `python gpt2_with_trainer.py FOLDER 1000 800`."""

import random
import sys

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from abcnb.yours.hugging_face import attach, calibrate
from abcnb.yours.pytorch import PromptApart, TokenRule

TOKENS, BATCH = "0123456789+=$&@", 128
folder, steps, steps_with_lines, *tau = sys.argv[1:]
rule = TokenRule(digits=range(10), prompt_end=TOKENS.index("="))


def sums(count, digits, width=None):
    for n in random.choices(digits, k=count):
        a, b, w = random.randrange(10**n), random.randrange(10**n), width or n + 1
        yield f"${a:0{w}}+{b:0{w}}=", f"{a + b:0{w}}"[::-1] + "&"


def collate(samples, side="right"):
    ids = [torch.tensor([TOKENS.index(c) for c in prompt + output]) for prompt, output in samples]
    labels = [row.clone() for row in ids]
    for row, (prompt, _) in zip(labels, samples, strict=True):
        row[: len(prompt)] = -100
    ids, labels = pad_sequence(ids, True, 14, side), pad_sequence(labels, True, -100, side)
    return {"input_ids": ids, "labels": labels, "attention_mask": (ids != 14).long()}


def trained(model, steps, **numbers):
    schedule = {
        "learning_rate": 2e-3,
        "lr_scheduler_type": "cosine",
        "warmup_steps": steps // 10,
        "max_steps": steps,
    }
    where = {"report_to": [], "save_strategy": "no", "use_cpu": True, "disable_tqdm": True}
    arguments = TrainingArguments(folder, per_device_train_batch_size=BATCH, **schedule, **where)
    Trainer(model, arguments, collate, list(sums(BATCH * steps, range(1, 7), **numbers))).train()
    return model.eval()


def gpt2(heads):
    sizes = {
        "vocab_size": 15,
        "n_embd": 128,
        "n_layer": 2,
        "n_head": heads,
        "bos_token_id": 12,
        "eos_token_id": 13,
    }
    return GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))


random.seed(0), torch.manual_seed(0)
plain, model = gpt2(heads=8), gpt2(heads=16)
attach(plain, PromptApart(heads=8), rule, keep_positions=True)
trained(plain, int(steps), width=7)
lines = calibrate(plain, [collate(list(sums(BATCH, range(1, 7), 7))) for _ in range(20)], rule, *map(float, tau))
attach(model, lines.biases(heads=16).self_biases, rule)
trained(model, int(steps_with_lines))

tests = [pair for n in (3, 12, 60) for pair in sums(100, [n])]
prompts = collate([(prompt, "") for prompt, _ in tests], side="left")
del prompts["labels"]
outputs = model.generate(**prompts, max_new_tokens=62, do_sample=False, pad_token_id=14)
right = [
    "".join(TOKENS[i] for i in o[prompts["input_ids"].shape[1] :]).rstrip("@") == true
    for o, (_, true) in zip(outputs, tests, strict=True)
]
print(lines, *(f"{n} digits: {sum(right[i : i + 100])}%" for i, n in ((0, 3), (100, 12), (200, 60))), sep="\n")
