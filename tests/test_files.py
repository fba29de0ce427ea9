"""Files are written whole or not at all."""

from pathlib import Path

import pytest

from abcnb.files import write_atomically


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

    with pytest.raises(OSError, match="disk full"):
        write_atomically(file, fail)
    assert list(tmp_path.iterdir()) == []
    file.write_text("old")
    with pytest.raises(OSError, match="disk full"):
        write_atomically(file, fail)
    assert list(tmp_path.iterdir()) == [file] and file.read_text() == "old"
