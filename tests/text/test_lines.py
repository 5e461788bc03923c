"""Reading text files line by line, and the errors for files that are not text."""

import gc
import gzip
import warnings
from contextlib import suppress
from pathlib import Path

import pytest

from qkv.errors import QkvError
from qkv.text.lines import decode_lines, read_lines, replace_surrogates


def write_file(tmp_path, content: bytes, name: str = "corpus.txt"):
    path = tmp_path / name
    path.write_bytes(content)
    return path


def message_of(path, errors: str | None = "strict") -> str:
    with pytest.raises(QkvError) as caught:
        list(read_lines(path, errors))
    return str(caught.value).replace(f"{path}", path.name)


def test_only_newlines_end_a_line_and_one_carriage_return_is_stripped(tmp_path):
    path = write_file(tmp_path, "a\r\n\r\nb\u2028c\fd\r\r\n\n末".encode())
    assert list(read_lines(path)) == ["a", "", "b\u2028c\fd\r", "", "末"]


def test_a_byte_order_mark_is_stripped(tmp_path):
    assert list(read_lines(write_file(tmp_path, b"\xef\xbb\xbfhello\n\xef\xbb\xbfworld\n"))) == [
        "hello",
        "\ufeffworld",
    ]


@pytest.mark.parametrize("name", ["corpus.txt.gz", "corpus.txt"])
def test_gzip_is_detected_by_name_or_magic_bytes(tmp_path, name):
    assert list(read_lines(write_file(tmp_path, gzip.compress("一\n二\n".encode()), name))) == [
        "一",
        "二",
    ]


def test_each_unreadable_file_has_a_one_line_error(tmp_path):
    assert message_of(tmp_path / "none.txt") == "none.txt: no such file; check the path"
    assert (
        message_of(write_file(tmp_path, b""))
        == "corpus.txt: empty file; give a text file with at least one line"
    )
    assert message_of(write_file(tmp_path, b"\xef\xbb\xbf")).startswith("corpus.txt: empty file")
    assert message_of(write_file(tmp_path, gzip.compress(b""), "empty.gz")).startswith(
        "empty.gz: empty file"
    )
    assert message_of(write_file(tmp_path, b"\x89PNG\r\n\0\0")) == (
        "corpus.txt: a binary file, not text; give plain text in UTF-8"
    )
    assert message_of(write_file(tmp_path, gzip.compress(b"text" * 99)[:-9], "truncated.gz")) == (
        "truncated.gz: damaged gzip file; is the download complete?"
    )
    (tmp_path / "folder").mkdir()
    assert message_of(tmp_path / "folder") == "folder: a folder, not a file; name the files in it"


def test_invalid_bytes_are_reported_by_line_and_byte_or_replaced(tmp_path):
    path = write_file(tmp_path, b"good\n\xe5\xa5\xbd caf\xe9 \xff\n")
    line = "corpus.txt, line 2, byte 8: 0xe9 is not UTF-8; convert the file to UTF-8"
    assert message_of(path) == f"{line} or use --errors replace"
    assert message_of(path, errors=None) == line  # for commands without that option
    assert list(read_lines(path, errors="replace")) == ["good", "好 caf\ufffd \ufffd"]


def test_the_byte_number_counts_the_byte_order_mark(tmp_path):
    assert "line 1, byte 5: 0xff" in message_of(write_file(tmp_path, b"\xef\xbb\xbfa\xff\n"))
    assert list(read_lines(write_file(tmp_path, b"\xef\xbb\xbfa\xff\n"), "replace")) == ["a\ufffd"]


@pytest.mark.parametrize("errors", ["strict", "replace"])
def test_a_lone_surrogate_in_a_file_becomes_one_replacement_character(tmp_path, errors):
    path = write_file(tmp_path, "a\ud800b\udfff\n".encode("utf-8", "surrogatepass"))
    assert (
        list(read_lines(path, errors))
        == ["a\ufffdb\ufffd"]
        == [replace_surrogates("a\ud800b\udfff")]
    )


@pytest.mark.parametrize("content", [b"a\nb\n", b"", b"\0"])
def test_a_file_is_closed_when_its_lines_are_not_read(tmp_path, content):
    (tmp_path / "a.txt").write_bytes(content)
    with warnings.catch_warnings(record=True) as caught, suppress(QkvError):
        warnings.simplefilter("always")
        read_lines(tmp_path / "a.txt")
    gc.collect()
    assert not caught


def test_a_line_beyond_the_limit_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("qkv.text.lines.MAX_LINE_BYTES", 1_000)
    longest = "a" * 999
    assert list(read_lines(write_file(tmp_path, f"b\n{longest}\n".encode()))) == ["b", longest]
    assert message_of(write_file(tmp_path, b"b\n" + b"a" * 1_001)) == (
        "corpus.txt, line 2: more than 1,000 bytes; split it into lines"
    )
    with Path("/dev/zero").open("rb") as endless, pytest.raises(QkvError, match="a binary file"):
        list(decode_lines(endless, "zeros"))
