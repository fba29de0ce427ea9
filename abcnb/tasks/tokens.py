"""The character-level vocabulary: text to token ids and back.

Source: paper, version "From Interpolation to Extrapolation", section 3.2: fifteen tokens, the ten digits,
`+`, `*`, and `$`, `&`, `@` for start, end and padding. Bases above ten add the digits `a` to `f`; ListOps
adds its three operators, and a decoder-only model's single stream `=` between input and output. The paper's
fifteen come first, so a decimal task's ids are the paper's.
"""

from functools import lru_cache

import torch

START, END, PAD, EQUALS = "$", "&", "@", "="
CHARACTERS = "0123456789+*$&@" + "abcdef" + "%><" + "=" + "[]"
IDS = {character: i for i, character in enumerate(CHARACTERS)}
START_ID, END_ID, PAD_ID, EQUALS_ID = IDS[START], IDS[END], IDS[PAD], IDS[EQUALS]
PAPER_VOCABULARY = 15

DIGITS = "0123456789abcdef"  # the character of each digit, 0 to 15


def encode(text: str) -> torch.Tensor:
    """Token ids of a text, shape [len(text)].

    Raises:
        ValueError: a character is not in the vocabulary.
    """
    unknown = sorted(set(text) - set(CHARACTERS))
    if unknown:
        raise ValueError(f"expected characters among {CHARACTERS!r}, got {''.join(unknown)!r} in {text[:60]!r}")
    return torch.tensor([IDS[character] for character in text], dtype=torch.long)


@lru_cache(maxsize=64)
def on_device(text: str, device: torch.device) -> torch.Tensor:
    """Token ids of a text, kept on a device: copied there in training, they would make every step wait."""
    return encode(text).to(device)


def decode(ids: torch.Tensor) -> str:
    """Text of a one-dimensional tensor of token ids."""
    return "".join(CHARACTERS[i] for i in ids.tolist())
