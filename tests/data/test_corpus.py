"""Reading pairs and documents from files, and the errors for bad files."""

import gzip
import json
import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.data.corpus import Pairs, check_readable, document_files, fingerprint_of, read_pieces
from qkv.errors import QkvError

PAIRS = [("我爱机器学习", "I love machine learning"), ("今天天气真好", "the weather is fine today")]


def write(path: Path, text: str | bytes) -> Path:
    raw = text.encode() if isinstance(text, str) else text
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def error_of(pairs: Pairs) -> str:
    with pytest.raises(QkvError) as error:
        list(pairs)
    return str(error.value)


def read_documents(paths: list[Path]) -> list[str]:
    """The documents, each concatenated from its pieces."""
    documents = [""]
    for piece, ends in read_pieces(paths):
        documents[-1] += piece
        documents += [""] * ends
    assert documents.pop() == "", "the last piece ends its document"
    return documents


def lines(side: int) -> str:
    return "".join(pair[side] + "\n" for pair in PAIRS)


@pytest.mark.parametrize("end", ["", ".gz"])
def test_pairs_are_the_same_from_two_files_a_tsv_and_a_jsonl(tmp_path, end):
    two = write(tmp_path / f"a.zh{end}", lines(0)), write(tmp_path / f"a.en{end}", lines(1))
    tsv = write(tmp_path / f"a.tsv{end}", "".join(f"{s}\t{t}\n" for s, t in PAIRS))
    jsonl = write(
        tmp_path / f"a.jsonl{end}",
        "".join(json.dumps({"id": 7, "target": t, "source": s}) + "\n" for s, t in PAIRS),
    )
    assert list(Pairs(*two)) == list(Pairs(tsv)) == list(Pairs(jsonl)) == PAIRS


def test_pairs_can_be_read_repeatedly(tmp_path):
    pairs = Pairs(write(tmp_path / "a.zh", lines(0)), write(tmp_path / "a.en", lines(1)))
    assert list(pairs) == list(pairs) == PAIRS


def test_a_byte_order_mark_crlf_and_a_missing_final_newline_change_nothing(tmp_path):
    zh = write(tmp_path / "a.zh", b"\xef\xbb\xbf" + lines(0).replace("\n", "\r\n").encode())
    en = write(tmp_path / "a.en", lines(1).rstrip("\n"))
    assert list(Pairs(zh, en)) == PAIRS


def test_further_columns_of_a_tsv_are_ignored(tmp_path):
    assert list(Pairs(write(tmp_path / "a.tsv", "你好\thello\tCC-BY\n"))) == [("你好", "hello")]


def test_different_line_counts_are_reported(tmp_path):
    zh, en = write(tmp_path / "a.zh", "a\nb\nc\n"), write(tmp_path / "a.en", "a\nb\nc\nd\ne\n")
    right = "line n of one must be the translation of line n of the other"
    assert error_of(Pairs(zh, en)) == f"{zh}, {en}: 3 and 5 lines; {right}"
    assert error_of(Pairs(en, zh)) == f"{en}, {zh}: 5 and 3 lines; {right}"


def test_pairs_with_an_empty_side_are_dropped_and_counted(tmp_path):
    pairs = Pairs(
        write(tmp_path / "a.zh", "a\n\nb\n \t\nc\n"), write(tmp_path / "a.en", "A\nx\n\n\nC\n")
    )
    assert list(pairs) == [("a", "A"), ("c", "C")]
    assert pairs.dropped == 3


def test_an_empty_side_is_an_error_with_its_file_name(tmp_path):
    zh, en = write(tmp_path / "a.zh", "a\nb\n"), write(tmp_path / "a.en", "\n  \n")
    right = "no pair has text on both sides; give a sentence and its translation on each line"
    assert error_of(Pairs(zh, en)) == f"{en}: {right}"
    tsv = write(tmp_path / "a.tsv", "a\t\nb\t\n")
    assert error_of(Pairs(tsv)) == f"{tsv}: {right}"


def test_an_empty_and_a_missing_file_are_reported(tmp_path):
    zh, nothing = write(tmp_path / "a.zh", "a\n"), write(tmp_path / "a.en", "")
    assert error_of(Pairs(zh, nothing)).startswith(f"{nothing}: empty file; ")
    assert (
        error_of(Pairs(zh, tmp_path / "b.en")) == f"{tmp_path}/b.en: no such file; check the path"
    )


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ('{"source": "x"}', "no 'target'"),
        ("{}", "no 'source', 'target'"),
        ('{"source": "x", "target": 3}', "'target' is not text"),
        ('["x", "y"]', "not a JSON object"),
        ('{"source": "x"', "not JSON"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_bad_line_of_a_jsonl_is_reported(tmp_path, line, wrong):
    path = write(tmp_path / "a.jsonl", '{"source": "a", "target": "b"}\n\n' + line + "\n")
    assert (
        error_of(Pairs(path))
        == f'{path}, line 3: {wrong}; write {{"source": "...", "target": "..."}}'
    )


def test_a_tsv_line_without_a_second_column_is_reported(tmp_path):
    path = write(tmp_path / "a.tsv", "a\tb\n\nonly this\n")
    assert error_of(Pairs(path)) == f"{path}, line 3: no second column; write source<TAB>target"


def test_three_files_are_not_a_pair(tmp_path):
    with pytest.raises(QkvError) as error:
        Pairs("a", "b", "c")
    assert str(error.value) == "a, b, c: 3 files; give two aligned files, or one TSV or JSONL"


def test_a_lone_surrogate_in_json_is_replaced(tmp_path):
    path = write(tmp_path / "a.jsonl", r'{"source": "a\ud800b", "target": "c"}')
    assert list(Pairs(path)) == [("a\ufffdb", "c")]


def test_a_large_corpus_is_read_in_little_memory(tmp_path):
    for side in ("zh", "en"):
        write(
            tmp_path / f"a.{side}", "a line of some forty characters, or so it is\n" * 100_000
        )  # 4.5 MB
    tracemalloc.start()
    count = sum(1 for _ in Pairs(tmp_path / "a.zh", tmp_path / "a.en"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 100_000 and peak < 500_000


def test_the_fingerprint_depends_on_contents_not_names(tmp_path):
    a, b, c = (
        write(tmp_path / name, text) for name, text in [("a", "x\n"), ("b", "x\n"), ("c", "y\n")]
    )
    assert fingerprint_of([a, c]) == fingerprint_of([b, c])
    assert len({fingerprint_of(paths) for paths in ([a], [c], [a, c], [c, a], [])}) == 5
    with pytest.raises(QkvError, match="missing: cannot be read; No such file or directory"):
        fingerprint_of([tmp_path / "missing"])


def test_documents_of_files_folders_and_jsonl_have_a_fixed_order(tmp_path):
    write(tmp_path / "d" / "b.md", "# two\n\ntext")
    write(tmp_path / "d" / "a.txt.gz", "one\r\n")
    write(tmp_path / "d" / "deep" / "c.jsonl", '{"text": "three\\n"}\n\n{"text": "four"}\n')
    write(tmp_path / "d" / "picture.png", b"\0\1")
    single = write(tmp_path / "any.name", "zero\n")
    found = read_documents([single, tmp_path / "d"])
    assert found == ["zero\n", "one\n", "# two\n\ntext\n", "three\n", "four"]


def test_a_document_without_text_and_an_empty_folder_are_reported(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"txt": "x"}\n')
    with pytest.raises(QkvError) as error:
        read_documents([path])
    assert str(error.value) == f'{path}, line 1: no \'text\'; write {{"text": "..."}}'
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(QkvError) as error:
        document_files([empty])
    assert (
        str(error.value)
        == f"{empty}: no text files in this folder; put .txt, .md or .jsonl files there"
    )


def test_pieces_of_a_large_document_concatenate_to_it(tmp_path):
    text = "".join(f"line {n}\n" for n in range(200_000))  # 2.3 MB
    pieces = list(read_pieces([write(tmp_path / "a.txt", text), write(tmp_path / "b.txt", "b\n")]))
    assert "".join(piece for piece, _ in pieces[:-1]) == text
    assert [ends for _, ends in pieces] == [False, False, True, True]
    assert max(len(piece) for piece, _ in pieces) < 1.1e6


def test_a_pipe_is_rejected_where_files_are_read_twice(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for function in (check_readable, document_files):
        with pytest.raises(QkvError) as error:
            function([tmp_path / "pipe"])
        assert (
            str(error.value)
            == f"{tmp_path}/pipe: a pipe, which can be read only once; write it to a file first"
        )


@settings(deadline=None, max_examples=40)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1))
def test_any_text_round_trips_through_jsonl(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("jsonl") / "a.jsonl"
    write(path, "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts))
    assert read_documents([path]) == texts
