"""Chunking of long and adversarial texts: the same tokens, in linear time."""

import random

import pytest

from qkv.text import tokenizer as module
from qkv.text.chunking import CHUNK_CHARS, split_chunks
from qkv.text.lines import read_lines
from qkv.text.train_tokenizer import KINDS, TokenizerOptions, train_tokenizer

MIB = 1 << 20
_random = random.Random(0)
ADVERSARIAL = {
    "one letter": "a" * 2 * MIB,
    "spaces": " " * 2 * MIB,
    "digits": "".join(_random.choices("0123456789", k=2 * MIB)),
    "combining marks": "\u0301" * MIB,  # two bytes each
    "one word": "".join(_random.choices("etaoinshrdlu", k=2 * MIB)),
}


@pytest.fixture(scope="module")
def trained():
    corpus = [
        "the quick brown fox, 1234567890 times",
        "aaaa aaaa  e\u0301te\u0301 thought that therein",
    ] * 3
    return {kind: train_tokenizer(kind, corpus, vocab_size=400) for kind in KINDS}


@pytest.mark.parametrize("case", ADVERSARIAL)
@pytest.mark.parametrize("kind", KINDS)
def test_work_is_linear_in_the_length_of_adversarial_text(
    trained, kind, case, lines_executed, monkeypatch
):
    """The library, whose time is superlinear, gets each character once, in small chunks.

    benchmarks/latency.py measures the time.
    """
    seen, encode = [], module.encode_texts
    monkeypatch.setattr(
        module, "encode_texts", lambda core, texts: seen.extend(texts) or encode(core, texts)
    )
    long, short = (
        ADVERSARIAL[case][: 9 * CHUNK_CHARS],
        ADVERSARIAL[case][: 5 * CHUNK_CHARS],
    )  # 8 and 4 boundaries
    work = [lines_executed(lambda text=text: trained[kind].encode(text)) for text in (long, short)]
    assert work[0] <= 2.05 * work[1]
    assert "".join(seen) == long + short and max(map(len, seen)) <= CHUNK_CHARS


@pytest.mark.parametrize("case", ADVERSARIAL)
def test_byte_bpe_round_trips_adversarial_text(trained, case):
    text = ADVERSARIAL[case][: MIB + 3]
    assert trained["byte_bpe"].decode(trained["byte_bpe"].encode(text)) == text


@pytest.mark.parametrize(
    "options",
    [TokenizerOptions(), TokenizerOptions(lowercase=True, nfkc=True, split_chinese=True)],
    ids=["plain", "all"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_chunked_text_has_the_tokens_of_the_whole_text(kind, options, shared):
    lines = [*read_lines(shared / "tiny_shakespeare/input.txt")][:2500] + [
        *read_lines(shared / "zh_hongloumeng/hongloumeng.txt")
    ][:80]
    tokenizer = train_tokenizer(kind, lines, vocab_size=6000, options=options)
    text = "\n".join(lines) + "  end \n\n "
    assert len(text) > 5 * CHUNK_CHARS
    whole = tokenizer.core.encode(text, add_special_tokens=False)
    assert tokenizer.encode(text) == whole.ids
    assert tokenizer.offsets(text) == whole.offsets


def test_chunks_concatenate_to_the_text_within_the_limit():
    for text in (
        "",
        "a" * CHUNK_CHARS,
        "a" * (CHUNK_CHARS + 1),
        "word " * CHUNK_CHARS,
        "字\n" * CHUNK_CHARS,
        ADVERSARIAL["spaces"][: 3 * CHUNK_CHARS],
    ):
        parts = split_chunks(text)
        assert "".join(parts) == text and max(map(len, parts)) <= CHUNK_CHARS
        if text.startswith("word"):
            assert all(part.startswith(" word") for part in parts[1:])


def test_a_metaspace_tokenizer_is_not_chunked(trained):
    config = trained["byte_bpe"].config | {
        "pre_tokenizer": {
            "type": "Metaspace",
            "replacement": "▁",
            "prepend_scheme": "always",
            "split": False,
        }
    }
    assert not module.can_chunk(config)
