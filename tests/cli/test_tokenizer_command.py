"""`qkv tokenizer`: output and error messages, matched whole."""

import gzip
import io
import json
import os
import pty
import subprocess
import sys

import pytest
import tokenizers

from qkv.cli import main
from qkv.text.files import read_tokenizer
from qkv.text.lines import read_lines
from qkv.text.merge_steps import merge_steps
from qkv.text.report import evaluate_tokenizer
from qkv.text.train_tokenizer import train_tokenizer

TEXT = "Low lower lowest newest widest\n我们学习机器翻译。\n" * 5


@pytest.fixture
def qkv(tmp_path, monkeypatch, capsys):
    """Run a command in a folder with a text and a tokenizer; returns exit code, stdout, stderr."""
    (tmp_path / "a.txt").write_text(TEXT)
    train_tokenizer("byte_bpe", TEXT.splitlines(), 300).save(tmp_path / "tok.json")
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["qkv", "tokenizer", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(stdin))))
        with pytest.raises(SystemExit) as exit_info:
            main()
        return exit_info.value.code, *capsys.readouterr()

    return run


@pytest.mark.parametrize("kind", ["word", "char", "bpe", "byte_bpe", "wordpiece"])
def test_training_writes_a_tokenizer_and_nothing_else(qkv, tmp_path, kind):
    before = {path.name for path in tmp_path.iterdir()}
    assert (
        qkv("train", "a.txt", "--kind", kind, "--vocab-size", "290", "--out", "new/x.json")[0] == 0
    )
    assert {path.name for path in tmp_path.iterdir()} == before | {"new"}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["x.json"]
    reference = tokenizers.Tokenizer.from_file("new/x.json")
    assert reference.encode("lower 学习").ids == read_tokenizer("new/x.json").encode("lower 学习")


def test_training_prints_size_and_kind(qkv, tmp_path):
    code, out, err = qkv("train", "a.txt", "--vocab-size", "280", "--out", "x.json")
    assert (code, out, err) == (0, "x.json: 280 tokens (byte_bpe)\n", "")
    code, out, _ = qkv("train", "a.txt", "--vocab-size", "280", "--out", "x.json", "--json")
    assert json.loads(out) == {
        "file": "x.json",
        "kind": "byte_bpe",
        "vocab_size": 280,
        "fingerprint": read_tokenizer("x.json").fingerprint,
    }


def test_a_terminal_gets_a_progress_bar_and_a_pipe_does_not(qkv, tmp_path):
    screen, end = pty.openpty()
    command = [sys.executable, "-m", "qkv", "tokenizer", "train", "a.txt", "--out", "x.json"]
    environment = {**os.environ, "TERM": "xterm"}
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=end,
        text=True,
        env=environment,
        timeout=60,
        cwd=tmp_path,
    )
    os.close(end)
    assert done.stdout == f"x.json: {read_tokenizer('x.json').vocab_size} tokens (byte_bpe)\n"
    assert "training" in os.read(screen, 10_000).decode()
    assert (
        subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path).stderr
        == ""
    )


def test_options_and_compressed_files_are_supported(qkv, tmp_path):
    (tmp_path / "b.gz").write_bytes(gzip.compress("ＬＯＷ 学习\n".encode()))
    assert (
        qkv(
            "train",
            "a.txt",
            "b.gz",
            "--kind",
            "word",
            "--lowercase",
            "--nfkc",
            "--split-chinese",
            "--special",
            "<mask>",
            "--min-frequency",
            "2",
            "--out",
            "x.json",
        )[0]
        == 0
    )
    code, out, _ = qkv("encode", "x.json", "Ｌow LOWER 学习", "--pieces")
    assert (code, out) == (0, "low lower 学 习\n")
    assert read_tokenizer("x.json").mask_id == 4


def test_encode_and_decode_are_inverse_line_by_line(qkv, tmp_path):
    text = "lower  学习\r\n\nwidest <eos>\n"
    code, ids, _ = qkv("encode", "tok.json", stdin=text.encode())
    assert code == 0 and ids.count("\n") == 3
    assert qkv("decode", "tok.json", stdin=ids.encode()) == (0, "lower  学习\n\nwidest <eos>\n", "")
    (tmp_path / "in.txt").write_text(text)
    (tmp_path / "ids.txt").write_text(ids)
    assert qkv("encode", "tok.json", "--file", "in.txt")[1] == ids
    assert qkv("decode", "tok.json", "--file", "ids.txt")[1] == "lower  学习\n\nwidest <eos>\n"


def test_texts_and_ids_can_be_arguments_and_output_can_be_json(qkv):
    tokenizer = read_tokenizer("tok.json")
    ids = tokenizer.encode("low")
    assert qkv("encode", "tok.json", "low", "wid") == (
        0,
        f"{ids[0]}\n{' '.join(map(str, tokenizer.encode('wid')))}\n",
        "",
    )
    assert json.loads(qkv("encode", "tok.json", "好", "--json")[1])["pieces"] == [
        "好[1/3]",
        "好[2/3]",
        "好[3/3]",
    ]
    assert json.loads(qkv("decode", "tok.json", *map(str, ids), "--json")[1]) == {"text": "low"}
    assert qkv("encode", "tok.json", "<eos>", "--parse-special") == (0, "3\n", "")
    assert qkv("encode", "tok.json", "a\ud800")[0] == 2


def test_show_prints_the_merges_of_a_word_in_order(qkv, tmp_path):
    (tmp_path / "b.txt").write_text("low low lower newest\n")
    qkv("train", "b.txt", "--kind", "bpe", "--vocab-size", "19", "--out", "x.json")
    _, out, _ = qkv("show", "x.json", "low")
    rows = [line.split("│")[1:5] for line in out.splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["0", "", "", "l o w</w>"],
        ["1", "l + o", "1", "lo w</w>"],
        ["2", "lo + w</w>", "3", "low</w>"],
    ]  # rank 2 is w + e
    steps = json.loads(qkv("show", "x.json", "low", "--json")[1])
    assert steps[2] == {"step": 2, "merge": "lo + w</w>", "rank": 3, "pieces": ["low</w>"]}


def test_show_prints_the_tokens_of_models_without_merges(qkv):
    qkv("train", "a.txt", "--kind", "char", "--out", "x.json")
    assert [row["piece"] for row in json.loads(qkv("show", "x.json", "low", "--json")[1])] == [
        "l",
        "o",
        "w",
    ]
    assert "[/b]" in qkv("show", "tok.json", "[/b]")[1].replace(" ", "")


@pytest.mark.parametrize("name", ["gpt2_bpe/gpt2_vocab.json", "llama2_tokenizer/tokenizer.model"])
def test_the_last_merge_step_has_the_tokens_of_published_vocabularies(shared, name):
    tokenizer = read_tokenizer(shared / name)
    lines = [line for file in (shared / "ntrex").iterdir() for line in list(read_lines(file))[:5]]
    for text in [*lines, "  two  spaces 好👍", "x" * 30]:
        assert merge_steps(tokenizer, text)[-1].pieces == tokenizer.tokens(tokenizer.encode(text))


def test_report_counts_each_file(qkv, tmp_path):
    (tmp_path / "b.txt").write_text("aé 好\n\nx  y\n")
    _, out, _ = qkv("report", "tok.json", "a.txt", "b.txt", "--json")
    first, second = json.loads(out)
    assert (first["file"], first["lines"], second["file"], second["lines"]) == (
        "a.txt",
        10,
        "b.txt",
        3,
    )
    tokens = sum(map(len, read_tokenizer("tok.json").encode_batch(["aé 好", "", "x  y"])))
    assert second["tokens"] == tokens
    assert second["tokens_per_word"] == tokens / 4 and second["tokens_per_character"] == tokens / 8
    assert second["bytes_per_token"] == 11 / tokens
    assert (second["unknown_rate"], second["round_trip"]) == (0, 1)
    assert "a.txt" in qkv("report", "tok.json", "a.txt")[1]


def test_report_counts_unknown_words_and_lost_spaces():
    found = evaluate_tokenizer(
        train_tokenizer("word", ["low lower"], 9), ["low lower", "low  low", "high low"]
    ).metrics()
    assert found["unknown_rate"] == 1 / 6 and found["round_trip"] == 1 / 3


BAD = [
    (["train", "none.txt", "--out", "x.json"], "none.txt: no such file; check the path"),
    (
        ["train", "empty.txt", "--out", "x.json"],
        "empty.txt: empty file; give a text file with at least one line",
    ),
    (
        ["train", "binary.bin", "--out", "x.json"],
        "binary.bin: a binary file, not text; give plain text in UTF-8",
    ),
    (
        ["train", "a.txt", "latin.txt", "--out", "x.json"],
        "latin.txt, line 2, byte 4: 0xe9 is not UTF-8; "
        "convert the file to UTF-8 or use --errors replace",
    ),
    (
        ["train", "a.txt", "--vocab-size", "100", "--out", "x.json"],
        "--vocab-size: 100 is smaller than the alphabet (256 symbols and 4 special tokens); "
        "use at least 260",
    ),
    (
        ["train", "ab.txt", "--kind", "bpe", "--vocab-size", "7", "--out", "x.json"],
        "--vocab-size: 7 is smaller than the alphabet (4 symbols and 4 special tokens); "
        "use at least 8",
    ),
    (
        ["train", "a.txt", "--kind", "byte", "--out", "x.json"],
        "--kind: no tokenizer kind 'byte'; did you mean 'byte_bpe'?",
    ),
    (
        ["train", "a.txt", "--min-frequency", "-1", "--out", "x.json"],
        "--min-frequency: -1 is out of range; use 0 to 2,147,483,647",
    ),
    (
        ["train", "a.txt", "--vocab-size", "99999999999999999999", "--out", "x.json"],
        "--vocab-size: 99,999,999,999,999,999,999 is out of range; use 1 to 4,000,000",
    ),
    (
        ["train", "a.txt", "--errors", "ignore", "--out", "x.json"],
        "--errors: no error handler 'ignore'; choose from strict, replace",
    ),
    (
        ["train", "a.txt", "--special", "mask", "--out", "x.json"],
        "--special: 'mask' could be a word of a text; write <mask> or [mask]",
    ),
    (
        ["train", "a.txt", "--out", "a.txt/x.json"],
        "a.txt/x.json: cannot be written; choose another path",
    ),
    (["train", "a.txt", "--out", "folder"], "folder: a folder; write --out folder/tokenizer.json"),
    (["encode", "none.json", "x"], "none.json: no such file; check the path"),
    (
        ["encode", "cut.json", "x"],
        "cut.json: damaged JSON (line 1, column 12); is the download complete?",
    ),
    (
        ["encode", "config.json", "x"],
        "config.json: JSON, but not a tokenizer; "
        "give a tokenizer.json of qkv or the tokenizers library",
    ),
    (
        ["encode", "tok.json", "x", "--file", "a.txt"],
        "--file: both a text and --file; give one of them",
    ),
    (["encode", "tok.json"], "stdin: empty file; give a text file with at least one line"),
    (
        ["encode", "tok.json", "--file", "latin.txt"],
        "latin.txt, line 2, byte 4: 0xe9 is not UTF-8; "
        "convert the file to UTF-8 or use --errors replace",
    ),
    (["decode", "tok.json", "12", "1x"], "ids: '1x' is not an id; use numbers from 0 to 299"),
    (["decode", "tok.json", "300"], "ids: '300' is not an id; use numbers from 0 to 299"),
    (["report", "tok.json", "none.txt"], "none.txt: no such file; check the path"),
]


@pytest.mark.parametrize(
    ("arguments", "message"), BAD, ids=[message.split(";")[0] for _, message in BAD]
)
def test_bad_input_is_one_line_and_writes_nothing(qkv, tmp_path, arguments, message):
    for name, content in {
        "empty.txt": b"",
        "binary.bin": b"\x7fELF\0\0",
        "latin.txt": b"fine\ncaf\xe9\n",
        "ab.txt": b"ab ba\n",
        "cut.json": b'{"model": {',
        "config.json": b'{"d_model": 512}',
    }.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder").mkdir()
    before = sorted(path.name for path in tmp_path.rglob("*"))
    code, _, err = qkv(*arguments)
    assert (code, err) == (2, message + "\n")
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "value", ["0", "-1", "1e-45", "nan", "inf", str(10**6), str(10**12), str(10**30), "", "x"]
)
@pytest.mark.parametrize("option", ["--vocab-size", "--min-frequency"])
def test_every_number_is_accepted_or_refused_in_one_line(qkv, tmp_path, option, value):
    code, out, err = qkv("train", "a.txt", option, value, "--out", "x.json")
    accepted = value == str(10**6) or (option, value) == ("--min-frequency", "0")
    assert (code, (out + err).count("\n")) == (0 if accepted else 2, 1)
    assert (tmp_path / "x.json").exists() == accepted


def test_ids_of_thousands_of_digits_are_refused_in_one_line(qkv):
    code, _, err = qkv("decode", "tok.json", "9" * 5000)
    assert (code, err) == (2, f"ids: '{'9' * 40}' is not an id; use numbers from 0 to 299\n")


def test_a_pattern_that_backtracks_exponentially_is_refused_in_one_line(qkv, tmp_path):
    config = json.loads((tmp_path / "tok.json").read_text())
    split = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}}
    config["pre_tokenizer"] = split | {"behavior": "Isolated", "invert": False}
    (tmp_path / "bad.json").write_text(json.dumps(config))
    code, _, err = qkv("encode", "bad.json", "x" * 40)
    assert (code, err) == (
        2,
        "bad.json, pre_tokenizer: the pattern '(x+x+)+y' can take exponential time; "
        "use no ambiguous repeated group\n",
    )


def test_invalid_bytes_can_be_replaced(qkv, tmp_path):
    (tmp_path / "latin.txt").write_bytes(b"fine\ncaf\xe9\n")
    assert (
        qkv("train", "latin.txt", "--errors", "replace", "--kind", "char", "--out", "x.json")[0]
        == 0
    )
    assert (
        qkv("encode", "x.json", "--file", "latin.txt", "--errors", "replace", "--pieces")[1]
        == "f i n e\nc a f \ufffd\n"
    )


def test_a_failed_training_keeps_the_old_tokenizer(qkv, tmp_path):
    before = (tmp_path / "tok.json").read_bytes()
    assert qkv("train", "a.txt", "--vocab-size", "3", "--out", "tok.json")[0] == 2
    assert (tmp_path / "tok.json").read_bytes() == before


def test_the_merge_table_is_that_of_tokenizer_json(qkv, tmp_path):
    code, out, err = qkv("merges", "tok.json", "--json")
    model = json.loads((tmp_path / "tok.json").read_text())["model"]
    rows = json.loads(out)
    assert (code, err) == (0, "") and [row["rank"] for row in rows] == [
        *range(1, len(model["merges"]) + 1)
    ]
    assert [row["id"] for row in rows] == [model["vocab"]["".join(m)] for m in model["merges"]]
    low = rows[[row["piece"] for row in rows].index("low")]
    lines = qkv("merges", "tok.json")[1].splitlines()
    assert lines[0] == "rank\tmerge\tpiece\tid" and len(lines) == len(rows) + 1
    assert lines[low["rank"]].split("\t") == [
        str(low["rank"]),
        " + ".join(low["merge"]),
        "low",
        str(low["id"]),
    ]


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe"])
def test_the_merge_files_give_the_same_ids(qkv, tmp_path, kind):
    qkv("train", "a.txt", "--kind", kind, "--vocab-size", "290", "--out", "x.json")
    files = "m/vocab.json\nm/merges.txt\n"
    assert qkv("merges", "x.json", "--out", "m") == (0, files, "")
    report = json.loads(qkv("merges", "x.json", "--out", "m", "--json")[1])  # written again
    assert report["files"] == files.split() and report["merges"] > 20
    for text in TEXT.splitlines():
        assert read_tokenizer("m").encode(text) == read_tokenizer("x.json").encode(text)


def test_a_tokenizer_without_merges_is_one_line(qkv):
    qkv("train", "a.txt", "--kind", "word", "--out", "x.json")
    line = "tokenizer: WordLevel has no merges; use a BPE tokenizer\n"
    assert qkv("merges", "x.json") == (2, "", line)
    assert qkv("merges", "x.json", "--out", "m") == (2, "", line)


def test_a_tokenizer_is_exported_as_a_sentencepiece_model_and_back(qkv, shared, tmp_path):
    llama = str(shared / "llama2_tokenizer")
    assert qkv("export", llama, "--out", "x.model") == (0, "x.model: 32000 tokens\n", "")
    code, out, _ = qkv("export", "x.model", "--out", "x.json", "--json")
    report = json.loads(out)
    assert (code, report["file"], report["vocab_size"]) == (0, "x.json", 32000)
    assert read_tokenizer("x.json").encode(TEXT) == read_tokenizer(llama).encode(TEXT)


def test_a_tokenizer_that_the_format_cannot_express_is_one_line(qkv, tmp_path):
    line = (
        "tokenizer: the SentencePiece format cannot express this tokenizer: "
        "it has no byte-level BPE; write tokenizer.json\n"
    )
    assert qkv("export", "tok.json", "--out", "x.model") == (2, "", line)
    assert not (tmp_path / "x.model").exists()
