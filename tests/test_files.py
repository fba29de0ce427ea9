"""Files are written whole or not at all."""

import os
import platform
import resource
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from abcnb.machine.files import check_writable, write_atomically
from tests.conftest import status_of_child


def test_write_atomically_writes_and_replaces(tmp_path):
    file = tmp_path / "numbers.json"
    for text in ("first", "second"):
        write_atomically(file, lambda name, text=text: name.write_text(text))
        assert file.read_text() == text
        assert list(tmp_path.iterdir()) == [file]


def test_write_atomically_leaves_nothing_behind_when_writing_fails(tmp_path):
    file = tmp_path / "numbers.json"

    def fail(name: Path):
        name.write_text("half")
        assert name.parent == tmp_path and name != file
        raise OSError("disk full")

    with pytest.raises(OSError, match=r"expected to write .*numbers.json, got: disk full; make room or choose"):
        write_atomically(file, fail)
    assert list(tmp_path.iterdir()) == []
    file.write_text("old")
    with pytest.raises(OSError, match="disk full"):
        write_atomically(file, fail)
    assert list(tmp_path.iterdir()) == [file] and file.read_text() == "old"


@pytest.fixture
def little_room():
    """No file of this process may grow beyond 10,000 bytes, as on a disk that is nearly full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    "write",
    [
        lambda name: name.write_text("9" * 20_000),
        lambda name: name.write_bytes(save({"weights": torch.zeros(20_000)})),
    ],
)
def test_a_file_that_finds_no_room_says_where(tmp_path, little_room, write):
    file = tmp_path / "weights"
    file.write_text("old")
    with pytest.raises(
        OSError, match=r"expected to write .*weights, got: .*[Ff]ile too large.*; make room"
    ) as error:
        write_atomically(file, write)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == [file] and file.read_text() == "old"


def test_what_a_killed_writer_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path):
    file = tmp_path / "accuracy.csv"

    def write(name):
        name.write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)

    assert status_of_child(lambda: write_atomically(file, write)) == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    others = [f".accuracy.csv.{n}@{platform.node()}" for n in (1, 10**20)] + [
        ".accuracy.csv.999999@elsewhere",
        ".accuracy.csv.bak",
    ]
    for name in others:
        (tmp_path / name).write_text("another's")
    write_atomically(file, lambda name: name.write_text("whole"))
    assert sorted(found.name for found in tmp_path.iterdir()) == sorted(["accuracy.csv", *others])
    assert file.read_text() == "whole"


def test_a_folder_is_made_and_tried(tmp_path):
    check_writable(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"expected a folder that can be written to, got .*file: "):
        check_writable(tmp_path / "file")
