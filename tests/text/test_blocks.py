"""Long and hostile texts: the same tokens as uncut, with work that grows with the length."""

import random

import pytest

from qkv.text import tokenizer as module
from qkv.text.blocks import BLOCK, blocks
from qkv.text.learn import KINDS, Choices, learn
from qkv.text.lines import read_lines

MIB = 1 << 20
_random = random.Random(0)
HOSTILE = {
    "one letter": "a" * 2 * MIB,
    "spaces": " " * 2 * MIB,
    "digits": "".join(_random.choices("0123456789", k=2 * MIB)),
    "combining marks": "\u0301" * MIB,  # two bytes each
    "one word": "".join(_random.choices("etaoinshrdlu", k=2 * MIB)),
}


@pytest.fixture(scope="module")
def learned():
    corpus = [
        "the quick brown fox, 1234567890 times",
        "aaaa aaaa  e\u0301te\u0301 thought that therein",
    ] * 3
    return {kind: learn(kind, corpus, vocab_size=400) for kind in KINDS}


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("kind", KINDS)
def test_twice_the_hostile_text_is_twice_the_work(learned, kind, case, lines_executed, monkeypatch):
    """The library, whose time grows faster than its text, gets every character once, in small blocks; benchmarks/latency.py measures it."""
    seen, encode = [], module._encode
    monkeypatch.setattr(
        module, "_encode", lambda core, texts: seen.extend(texts) or encode(core, texts)
    )
    long, short = HOSTILE[case][: 9 * BLOCK], HOSTILE[case][: 5 * BLOCK]  # 8 and 4 places to cut
    work = [lines_executed(lambda text=text: learned[kind].encode(text)) for text in (long, short)]
    assert work[0] <= 2.05 * work[1]
    assert "".join(seen) == long + short and max(map(len, seen)) <= BLOCK


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_text_comes_back_from_bytes(learned, case):
    text = HOSTILE[case][: MIB + 3]
    assert learned["bytes"].decode(learned["bytes"].encode(text)) == text


@pytest.mark.parametrize(
    "choices",
    [Choices(), Choices(lowercase=True, nfkc=True, split_chinese=True)],
    ids=["plain", "all"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_long_text_has_the_tokens_it_has_uncut(kind, choices, shared):
    lines = [*read_lines(shared / "tiny_shakespeare/input.txt")][:2500] + [
        *read_lines(shared / "zh_hongloumeng/hongloumeng.txt")
    ][:80]
    tokenizer = learn(kind, lines, vocab_size=6000, choices=choices)
    text = "\n".join(lines) + "  end \n\n "
    assert len(text) > 5 * BLOCK
    whole = tokenizer.core.encode(text, add_special_tokens=False)
    assert tokenizer.encode(text) == whole.ids
    assert tokenizer.offsets(text) == whole.offsets


def test_blocks_join_to_the_text_and_stay_small():
    for text in (
        "",
        "a" * BLOCK,
        "a" * (BLOCK + 1),
        "word " * BLOCK,
        "字\n" * BLOCK,
        HOSTILE["spaces"][: 3 * BLOCK],
    ):
        parts = blocks(text)
        assert "".join(parts) == text and max(map(len, parts)) <= BLOCK
        if text.startswith("word"):
            assert all(part.startswith(" word") for part in parts[1:])


def test_a_foreign_tokenizer_is_never_cut(learned):
    rules = learned["bytes"].rules | {
        "pre_tokenizer": {
            "type": "Metaspace",
            "replacement": "▁",
            "prepend_scheme": "always",
            "split": False,
        }
    }
    assert not module.may_cut(rules)
