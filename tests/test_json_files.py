"""JSON files from outside: regular files of bounded size, depth and encoding, else one line."""

import json
import os
from pathlib import Path

import pytest

from qkv.errors import QkvError
from qkv.json_files import MAX_JSON_DEPTH, read_json, read_regular


def message_of(path: Path, limit: int = 10_000_000) -> str:
    with pytest.raises(QkvError) as caught:
        read_json(path, limit)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(f"{path}", path.name)


def save_file(folder: Path, content: bytes) -> Path:
    (folder / "a.json").write_bytes(content)
    return folder / "a.json"


def test_json_in_utf_8_is_read_with_or_without_a_byte_order_mark(tmp_path):
    for mark in (b"", b"\xef\xbb\xbf"):
        assert read_json(save_file(tmp_path, mark + '{"好": [1, 2.5, null]}'.encode())) == {
            "好": [1, 2.5, None]
        }


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":'])
def test_nesting_of_a_hundred_thousand_levels_is_refused(tmp_path, opening):
    assert message_of(save_file(tmp_path, opening.encode() * 100_000)) == (
        "a.json: JSON nested more than 100 levels deep; is it the right file?"
    )


def test_the_depth_limit_is_exact(tmp_path):
    deepest = "[" * MAX_JSON_DEPTH + "]" * MAX_JSON_DEPTH
    assert read_json(save_file(tmp_path, deepest.encode())) == json.loads(deepest)
    assert "nested" in message_of(save_file(tmp_path, f"[{deepest}]".encode()))


def test_each_unreadable_file_has_a_one_line_error(tmp_path):
    assert message_of(tmp_path / "none.json") == "none.json: no such file; check the path"
    assert message_of(save_file(tmp_path, b'{"a": ')) == (
        "a.json: damaged JSON (line 1, column 7); is the download complete?"
    )
    assert message_of(save_file(tmp_path, b"")).startswith("a.json: damaged JSON")
    assert message_of(save_file(tmp_path, b'{"a": "\xff"}')) == (
        "a.json, byte 8: 0xff is not UTF-8; convert the file to UTF-8"
    )
    assert message_of(save_file(tmp_path, b"[" + b"9" * 5000 + b"]")) == (
        "a.json: a number with too many digits; write it shorter"
    )
    (tmp_path / "folder").mkdir()
    assert message_of(tmp_path / "folder") == (
        "folder: a folder, not a file; give the path of a file"
    )
    assert "cannot be read" in message_of(tmp_path / ("x" * 5000))


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    path = save_file(tmp_path, b"[1, 2, 3]")
    assert read_regular(path, limit=9) == b"[1, 2, 3]"
    assert message_of(path, limit=8) == "a.json: more than 8 bytes; is it the right file?"
    os.truncate(path, 1 << 40)  # a terabyte, of which the disk stores one block
    assert message_of(path).startswith("a.json: more than 10,000,000 bytes")


def test_a_fifo_or_a_device_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    refused = "not a regular file; give the path of a file"
    assert message_of(tmp_path / "pipe.json") == f"pipe.json: {refused}"
    (tmp_path / "link.json").symlink_to("/dev/zero")
    assert message_of(tmp_path / "link.json") == f"link.json: {refused}"
