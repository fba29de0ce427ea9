import pytest
import torch

from abcnb.tasks.tokens import CHARACTERS, END_ID, PAD_ID, PAPER_VOCABULARY, START_ID, decode, encode


def test_paper_tokens_come_first():
    """The ten digits, + and *, then start, end and padding: fifteen."""
    assert PAPER_VOCABULARY == 15
    assert CHARACTERS[:15] == "0123456789+*$&@"
    assert (START_ID, END_ID, PAD_ID) == (12, 13, 14)


def test_hand_written_ids():
    assert encode("$0123+0748&").tolist() == [12, 0, 1, 2, 3, 10, 0, 7, 4, 8, 13]
    assert decode(torch.tensor([12, 9, 11, 4, 13])) == "$9*4&"


def test_round_trip_of_every_character():
    assert decode(encode(CHARACTERS)) == CHARACTERS
    assert encode(CHARACTERS).dtype == torch.long


@pytest.mark.parametrize("text, wrong", [("12-3", "-"), ("3²", "²"), ("A", "A")])
def test_unknown_character_is_named(text, wrong):
    with pytest.raises(ValueError, match="expected characters among") as error:
        encode(text)
    assert f"got {wrong!r}" in str(error.value)
