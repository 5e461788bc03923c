"""Tokenizer files from outside: every damaged or hostile file is one line, in bounded time."""

import base64
import json
import os
import struct
from copy import deepcopy
from pathlib import Path

import pytest

from qkv.errors import QkvError
from qkv.text.chunking import WORD
from qkv.text.files import read_tokenizer
from qkv.text.merge_steps import merge_steps
from qkv.text.regex_safety import unsafe_pattern
from qkv.text.special_tokens import added_template
from qkv.text.tiktoken_format import PATTERNS
from qkv.text.tokenizer import Tokenizer
from qkv.text.train_tokenizer import KINDS, TokenizerOptions, train_tokenizer

CORPUS = ["Low lower lowest, newest!", "我们学习机器翻译。"] * 2
WRONG_VALUES = (None, True, -1, 10**30, 2.5, "", "x", [], [[]], {}, {"type": "x"}, [None])


def message_of(path: Path) -> str:
    with pytest.raises(QkvError) as caught:
        read_tokenizer(path)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(f"{path}", path.name)


def tokenizer_config(kind: str = "byte_bpe", **options: bool) -> dict:
    return json.loads(train_tokenizer(kind, CORPUS, 300, TokenizerOptions(**options))._json)


def save_file(folder: Path, config: object) -> Path:
    (folder / "tokenizer.json").write_text(json.dumps(config), encoding="utf-8")
    return folder / "tokenizer.json"


def split_at(pattern: str) -> dict:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


# ── Regular expressions ──────────────────────────────────────────────────────────────────────────
AMBIGUOUS = (
    "(x+x+)+y",
    "(x+)+y",
    "(xx+)+y",
    "(x*)*y",
    "x**y",
    "(a|a)*b",
    r"(\w|\d)+y",
    "(?i:a|A)+b",
    "(a?){40}a{40}",
    "(?:a{1,3})+b",
    "((ab)*)*c",
    r"(?:(\w+)\1)+",
    "(?=(x+x+)+y)",
    "[x]+|(?:[^x]|[y-z])*a",
)


@pytest.mark.parametrize("pattern", AMBIGUOUS)
def test_a_pattern_with_an_ambiguous_repeated_group_is_refused(tmp_path, pattern):
    config = tokenizer_config() | {"pre_tokenizer": split_at(pattern)}
    assert message_of(save_file(tmp_path, config)) == (
        f"tokenizer.json, pre_tokenizer: the pattern '{pattern}' can take exponential time; "
        "use no ambiguous repeated group"
    )


def test_a_pattern_inside_a_sequence_normalizer_or_decoder_is_checked(tmp_path):
    replace = {"type": "Replace", "pattern": {"Regex": "(x+x+)+y"}, "content": "z"}
    for part, inner in (("normalizer", "normalizers"), ("decoder", "decoders")):
        config = tokenizer_config() | {part: {"type": "Sequence", inner: [replace]}}
        assert message_of(save_file(tmp_path, config)).startswith(f"tokenizer.json, {part}: ")


@pytest.mark.parametrize(
    "pattern",
    [
        *PATTERNS.values(),
        WORD,
        r"\d{1,3}(?=(?:\d{3})*\b)",
        r"(?:\p{L}|\p{N})+",
        r"(?:\r\n)+|[]a]+| {2,}",
        r" ?[^(\s|[.,!?…。，、।۔،])]+",
        r"[\p{L}&&[^\p{Han}]]+(?:-[\p{L}&&[^\p{Han}]]+)*",
        r"(?i:'s|'t|'re)?(?#comment)\x{4e00}+\(\[+",
    ],
)
def test_patterns_of_published_tokenizers_are_accepted(tmp_path, pattern):
    assert unsafe_pattern([pattern]) is None
    config = tokenizer_config() | {"pre_tokenizer": split_at(pattern)}
    assert read_tokenizer(save_file(tmp_path, config)).encode("low") is not None


@pytest.mark.parametrize(
    "pattern",
    ["(" * 5000, "(?:" * 5000 + ")*" * 5000, "(a{100000}b)+", "(a", "[a", "(?:ab)+" * 9999],
)
def test_the_check_of_a_pattern_is_bounded(pattern):
    assert unsafe_pattern([pattern]) == pattern


def test_a_pattern_that_exceeds_the_limit_of_the_engine_is_an_error_of_one_line(tmp_path):
    """Not ambiguous in a repeated group, but with 2^30 ways: the engine gives up (a Rust panic)."""
    pattern = "(?:a?)" * 30 + "a" * 30 + "[bc]"
    config = tokenizer_config() | {"pre_tokenizer": split_at(pattern)}
    tokenizer = read_tokenizer(save_file(tmp_path, config))
    for use in (tokenizer.encode, tokenizer.offsets, lambda text: merge_steps(tokenizer, text)):
        with pytest.raises(QkvError) as caught:
            use("a" * 45)
        assert str(caught.value) == (
            "tokenizer: not a valid tokenizer (Onig: Regex search error: retry-limit-in-match "
            "over); export it again with the program that wrote it"
        )


def test_replacements_that_multiply_the_text_are_refused(tmp_path):
    double = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    config = tokenizer_config() | {"normalizer": {"type": "Sequence", "normalizers": [double] * 40}}
    assert message_of(save_file(tmp_path, config)) == (
        "tokenizer.json, normalizer: replacements can make a text more than 1,000 times as long; "
        "use fewer or shorter replacements"
    )


# ── tokenizer.json ───────────────────────────────────────────────────────────────────────────────
def test_a_deeply_nested_file_is_refused(tmp_path):
    for start in ("[", '{"a":', '{"model": {"type": "BPE", "vocab": {"a": ['):
        path = tmp_path / "tokenizer.json"
        path.write_text(start + "[" * 100_000)
        assert message_of(path) == (
            "tokenizer.json: JSON nested more than 100 levels deep; is it the right file?"
        )


@pytest.mark.parametrize("name", ["tokenizer.json", "a.model", "a.tiktoken", "vocab.txt"])
def test_a_fifo_or_device_is_refused_without_waiting(tmp_path, name):
    os.mkfifo(tmp_path / name)
    assert message_of(tmp_path / name).startswith(f"{name}: not a regular file")
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/zero")
    assert message_of(tmp_path / name).startswith(f"{name}: not a regular file")


def test_fifos_as_vocab_json_and_merges_are_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "merges.txt")
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    with pytest.raises(QkvError, match=r"merges\.txt: not a regular file"):
        read_tokenizer(tmp_path / "vocab.json")
    (tmp_path / "vocab.json").unlink()
    os.mkfifo(tmp_path / "vocab.json")
    assert message_of(tmp_path / "vocab.json").startswith("vocab.json: not a regular file")


def test_an_id_that_is_too_large_is_refused(tmp_path):
    config = tokenizer_config()
    config["model"]["vocab"]["a"] = 4_000_000_000
    assert "the token id 4,000,000,000 is too large" in message_of(save_file(tmp_path, config))


def paths_of(node: object, depth: int = 0) -> list[tuple]:
    """The paths of all values of a JSON tree; of the vocabulary and merges only the first."""
    if depth > 6 or not isinstance(node, dict | list):
        return [()]
    items = list(node.items()) if isinstance(node, dict) else list(enumerate(node))
    items = items[:2] if len(items) > 20 else items
    return [(), *((key, *rest) for key, value in items for rest in paths_of(value, depth + 1))]


def use_everything(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("Low lower 学习 xxx") + tokenizer.encode("low <eos>", parse_special=True)
    tokenizer.offsets("lower 学习")
    tokenizer.decode(ids)
    tokenizer.display_tokens(ids)
    tokenizer.encode("low 学 " * 6000)
    added_template(tokenizer)
    if tokenizer.config["model"]["type"] == "BPE":
        merge_steps(tokenizer, "lower")


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_value_anywhere_in_the_file_is_one_line_or_works(kind):
    config = tokenizer_config(kind, nfkc=True, lowercase=True)
    config["post_processor"] = {"type": "BertProcessing", "sep": ["[SEP]", 1], "cls": ["[CLS]", 2]}
    config["truncation"] = {
        "max_length": 3,
        "strategy": "LongestFirst",
        "stride": 0,
        "direction": "Right",
    }
    refused = 0
    for path in paths_of(config):
        for value in WRONG_VALUES:
            try:
                use_everything(Tokenizer.from_json(json.dumps(replaced(config, path, value))))
            except QkvError as error:
                refused += 1
                assert "\n" not in str(error), (path, value)
    assert refused > 100


def replaced(config: dict, path: tuple, value: object) -> object:
    if not path:
        return value
    changed = deepcopy(config)
    node = changed
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return changed


def test_truncation_and_padding_of_the_file_do_not_apply_to_any_variant():
    config = tokenizer_config()
    plain = Tokenizer.from_json(json.dumps(config))
    config["truncation"] = {
        "max_length": 3,
        "strategy": "LongestFirst",
        "stride": 0,
        "direction": "Right",
    }
    config["padding"] = {
        "strategy": {"Fixed": 50},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<pad>",
    }
    limited = Tokenizer.from_json(json.dumps(config))
    for dropout, parse_special in ((0.0, False), (0.0, True), (1.0, False)):
        text = "low lower lowest newest<eos>"
        assert limited.encode(text, dropout, parse_special) == plain.encode(
            text, dropout, parse_special
        )


# ── Other formats ────────────────────────────────────────────────────────────────────────────────
def varint(number: int) -> bytes:
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])


def piece(text: bytes, score: bytes = struct.pack("<f", -1.0), kind: int = 1) -> bytes:
    inside = b"\x0a" + varint(len(text)) + text + b"\x15" + score + b"\x18" + varint(kind)
    return b"\x0a" + varint(len(inside)) + inside


UNKNOWN = piece(b"<unk>", kind=2)


@pytest.mark.parametrize(
    "content",
    [
        b"\x08" + b"\x80" * 1_000_000,  # an integer of seven million bits
        UNKNOWN + piece(b"a" * 200_000),
        UNKNOWN + piece(b"a", struct.pack("<f", float("nan"))),
        UNKNOWN,
        UNKNOWN + piece(b"a") + b"\x1a\x02\x10\x05",  # the normalization table is a number
        UNKNOWN + piece(b"a") + b"\x1a\x05\x12\x03abc",  # or three bytes
        UNKNOWN + piece(b"a") + b"\x12\x02\x18\x09",
    ],
    ids=range(7),
)
def test_a_hostile_sentencepiece_model_is_one_line(tmp_path, content):
    (tmp_path / "a.model").write_bytes(content)
    assert message_of(tmp_path / "a.model").startswith("a.model: ")


@pytest.mark.parametrize("rank", ["-1", str(10**12), str(10**30), "nan", "1e3", "9" * 5000])
def test_a_rank_that_is_no_id_is_one_line(tmp_path, rank):
    lines = [f"{base64.b64encode(bytes([byte])).decode()} {byte}" for byte in range(256)]
    (tmp_path / "a.tiktoken").write_text("\n".join([*lines, f"YWI= {rank}"]))
    assert message_of(tmp_path / "a.tiktoken") == (
        "a.tiktoken, line 257: not a base64 token and its rank; give a tiktoken rank file"
    )


def test_a_rank_file_with_a_token_of_a_megabyte_is_refused(tmp_path):
    (tmp_path / "a.tiktoken").write_text(base64.b64encode(b"a" * 1_000_000).decode() + " 0\n")
    assert message_of(tmp_path / "a.tiktoken").startswith("a.tiktoken, line 1: ")


@pytest.mark.parametrize(
    "content", ["[" * 100_000, '{"a": 1e99}', '{"a": true}', f'{{"a": {10**30}}}']
)
def test_a_hostile_vocab_json_is_one_line(tmp_path, content):
    (tmp_path / "merges.txt").write_text("a b\n")
    (tmp_path / "vocab.json").write_text(content)
    assert message_of(tmp_path / "vocab.json").startswith("vocab.json: ")


# ── Numbers ──────────────────────────────────────────────────────────────────────────────────────
NUMBERS = (0, -1, 1e-45, float("nan"), float("inf"), 10**6, 10**12, 10**30, 10**5000, "", "x", None)


@pytest.mark.parametrize(
    "value", NUMBERS, ids=lambda value: f"{value!r:.9}" if value != 10**5000 else ""
)
@pytest.mark.parametrize("kind", KINDS)
def test_every_number_of_the_training_is_accepted_or_refused_in_one_line(kind, value):
    accepted = []
    for size, options in (
        (value, TokenizerOptions()),
        (300, TokenizerOptions(min_frequency=value)),
    ):
        try:
            accepted.append(train_tokenizer(kind, CORPUS, size, options).vocab_size)
        except QkvError as error:
            assert "\n" not in str(error) and len(str(error)) < 200
    assert bool(accepted) == (value in (0, 10**6))


def test_a_billion_tokens_are_refused_before_memory_is_allocated():
    with pytest.raises(QkvError) as caught:
        train_tokenizer("byte_bpe", CORPUS, 999_999_999)
    assert str(caught.value) == "--vocab-size: 999,999,999 is out of range; use 1 to 4,000,000"


@pytest.mark.parametrize("value", [-1, 2.5, float("nan"), 2**32, 10**30, "", "x", None])
def test_an_id_that_is_none_is_one_line(value):
    tokenizer = train_tokenizer("byte_bpe", CORPUS, 300)
    for use in (tokenizer.decode, tokenizer.tokens, lambda ids: tokenizer.decode_batch([ids])):
        with pytest.raises(QkvError, match="is not a token id; use whole numbers from 0 on"):
            use([value])


@pytest.mark.parametrize("value", [-1, 1.5, float("nan"), float("inf"), 10**30, "x"])
def test_a_dropout_that_is_no_probability_is_one_line(value):
    tokenizer = train_tokenizer("byte_bpe", CORPUS, 300)
    with pytest.raises(QkvError, match="is not a probability; use 0 to 1"):
        tokenizer.encode("low", dropout=value)
