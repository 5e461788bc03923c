"""Textbook BPE against the example of its paper and against the fast learner, merge by merge and id by id."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel

from qkv.text.learn import learn as learn_fast
from qkv.text.lines import read_lines
from qkv.textbook import bpe

CORPORA = ["tiny_shakespeare/input.txt", "zh_hongloumeng/hongloumeng.txt"]
SPECIALS = 4  # the fast learner numbers its symbols after <pad> <unk> <bos> <eos>
UNKNOWN = 1


def fast_merges(tokenizer) -> list[tuple[str, str]]:
    return [(a, b) for a, b in tokenizer.rules["model"]["merges"]]


def words_of(kind: str, text: str) -> list[str]:
    return bpe.byte_words(text) if kind == "bytes" else text.split()


SPLIT = {"bpe": bpe.characters, "bytes": bpe.byte_signs}


def test_the_example_of_the_paper():
    # Sennrich, Haddow and Birch (2016): "lower" is unseen there and becomes low + er</w>.
    merges = [("r", "</w>"), ("l", "o"), ("lo", "w"), ("e", "r</w>")]
    assert bpe.apply([*"lower", bpe.END], merges) == ["low", "er</w>"]


def test_merges_counted_by_hand():
    words = {"low": 5, "lower": 2, "newest": 6, "widest": 3}
    # es: 6 + 3 = 9, and so is s t</w>, which loses as s was born later than e; es t</w>: 9; lo: 5 + 2 = 7; then
    # five pairs stand 6 times, all in newest: of their left sides e (in e w) has the smallest number.
    assert bpe.learn(words, 4) == [("e", "s"), ("es", "t</w>"), ("l", "o"), ("e", "w")]


def test_pairs_overlap_from_left_to_right():
    assert bpe.apply(list("aaaaa"), [("a", "a")]) == ["aa", "aa", "a"]
    assert bpe.apply(list("ababa"), [("a", "b"), ("ab", "ab")]) == ["abab", "a"]


def test_learning_ends_when_every_word_is_one_piece():
    assert bpe.learn({"aba": 2}, 99) == [("a", "b"), ("ab", "a</w>")]
    assert bpe.learn({"a": 3}, 9) == []


@given(st.lists(st.text(st.sampled_from("ab好c"), min_size=1, max_size=9), min_size=1, max_size=6))
def test_small_corpora_full_of_ties_give_the_fast_merges(words):
    for kind in ("bpe", "bytes"):
        text = " ".join(words)
        fast = fast_merges(learn_fast(kind, [text], 800))
        counts = Counter(words_of(kind, text))
        assert bpe.learn(counts, 400, SPLIT[kind]) == fast


@pytest.mark.parametrize("kind", ["bpe", "bytes"])
@pytest.mark.parametrize("corpus", CORPORA)
def test_five_hundred_merges_and_held_out_ids_equal_the_fast_ones(shared, corpus, kind):
    lines = list(read_lines(shared / corpus))
    held_out, seen = lines[-1000:], lines[:-1000]
    counts = Counter(word for line in seen for word in words_of(kind, line))
    merges = bpe.learn(counts, 500, SPLIT[kind])
    symbols = sorted(bpe.SIGNS.values()) if kind == "bytes" else alphabet_of(counts)
    fast = learn_fast(kind, seen, SPECIALS + len(symbols) + 500)
    assert fast_merges(fast) == merges
    numbers = {
        token: SPECIALS + n
        for n, token in enumerate([*symbols, *dict.fromkeys(a + b for a, b in merges)])
    }
    words = {word for line in held_out for word in words_of(kind, line)}
    pieces = {word: bpe.apply(SPLIT[kind](word), merges) for word in words}
    ids = [
        [numbers.get(piece, UNKNOWN) for word in words_of(kind, line) for piece in pieces[word]]
        for line in held_out
    ]
    assert ids == fast.encode_batch(held_out)


def alphabet_of(words) -> list[str]:
    """Every character, then every character that ends a word."""
    return sorted(set("".join(words))) + sorted({word[-1] + bpe.END for word in words})


def test_byte_words_are_the_cuts_of_the_library(shared):
    cut = ByteLevel(add_prefix_space=False)
    for corpus in CORPORA:
        for line in list(read_lines(shared / corpus))[:500]:
            ours = ["".join(bpe.byte_signs(word)) for word in bpe.byte_words(line)]
            assert ours == [piece for piece, _ in cut.pre_tokenize_str(line)]
