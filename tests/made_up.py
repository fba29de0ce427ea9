"""Rows of scores that nobody measured."""


def made_up(task="addition", method="vanilla", seed=0, length=6, correct=50, samples=100, **more):
    values = {
        "task": task, "method": method, "preset": "laptop", "seed": seed, "test_set": "random", "length": length,
        "samples": samples, "correct": correct, "wrong_digits": 7, "train_steps": 20, "train_seconds": 1.5,
        "device": "cpu", "position": "none", "train_width": 7, "train_numbers": "even",
        "form": "natural", "digits": 800, "parameters": 1000, "hardware": "a CPU, 1 thread(s)", "run": "0123abcd",
        "settings": "", "train_flops": 10**9, "code": "cafe", "date": "2026-11-22",
        "worst_kind": "", "worst_percent": "",
    }  # fmt: skip
    return values | more
