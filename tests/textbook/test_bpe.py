"""Textbook BPE against the example of its paper and against the fast trainer."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel

from qkv.text.lines import read_lines
from qkv.text.train_tokenizer import train_tokenizer
from qkv.textbook import bpe

CORPORA = ["tiny_shakespeare/input.txt", "zh_hongloumeng/hongloumeng.txt"]
N_SPECIAL = 4  # the ids of <pad> <unk> <bos> <eos> come first
UNKNOWN = 1


def fast_merges(tokenizer) -> list[tuple[str, str]]:
    return [(a, b) for a, b in tokenizer.config["model"]["merges"]]


def words_of(kind: str, text: str) -> list[str]:
    return bpe.byte_words(text) if kind == "byte_bpe" else text.split()


SPLIT = {"bpe": bpe.characters, "byte_bpe": bpe.byte_chars}


def test_the_example_of_the_paper():
    # Sennrich, Haddow and Birch (2016): "lower" is unseen there and becomes low + er</w>.
    merges = [("r", "</w>"), ("l", "o"), ("lo", "w"), ("e", "r</w>")]
    assert bpe.apply([*"lower", bpe.END], merges) == ["low", "er</w>"]


def test_merges_counted_by_hand():
    words = {"low": 5, "lower": 2, "newest": 6, "widest": 3}
    # es: 6 + 3 = 9, and so is s t</w>, but s has a larger number than e; es t</w>: 9; lo: 7.
    # Then five pairs have count 6, all in newest: of their left sides, e has the smallest number.
    assert bpe.train(words, 4) == [("e", "s"), ("es", "t</w>"), ("l", "o"), ("e", "w")]


def test_pairs_overlap_from_left_to_right():
    assert bpe.apply(list("aaaaa"), [("a", "a")]) == ["aa", "aa", "a"]
    assert bpe.apply(list("ababa"), [("a", "b"), ("ab", "ab")]) == ["abab", "a"]


def test_training_ends_when_every_word_is_one_token():
    assert bpe.train({"aba": 2}, 99) == [("a", "b"), ("ab", "a</w>")]
    assert bpe.train({"a": 3}, 9) == []


@given(st.lists(st.text(st.sampled_from("ab好c"), min_size=1, max_size=9), min_size=1, max_size=6))
def test_small_corpora_with_many_ties_give_equal_merges(words):
    for kind in ("bpe", "byte_bpe"):
        text = " ".join(words)
        fast = fast_merges(train_tokenizer(kind, [text], 800))
        counts = Counter(words_of(kind, text))
        assert bpe.train(counts, 400, SPLIT[kind]) == fast


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe"])
@pytest.mark.parametrize("corpus", CORPORA)
def test_five_hundred_merges_and_ids_of_held_out_text_are_equal(shared, corpus, kind):
    lines = list(read_lines(shared / corpus))
    held_out, training = lines[-1000:], lines[:-1000]
    counts = Counter(word for line in training for word in words_of(kind, line))
    merges = bpe.train(counts, 500, SPLIT[kind])
    symbols = sorted(bpe.BYTE_CHARS.values()) if kind == "byte_bpe" else alphabet_of(counts)
    fast = train_tokenizer(kind, training, N_SPECIAL + len(symbols) + 500)
    assert fast_merges(fast) == merges
    numbers = {
        token: N_SPECIAL + n
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
    """All characters, then all characters at the end of a word."""
    return sorted(set("".join(words))) + sorted({word[-1] + bpe.END for word in words})


def test_byte_words_equal_the_librarys_pre_tokenization(shared):
    library = ByteLevel(add_prefix_space=False)
    for corpus in CORPORA:
        for line in list(read_lines(shared / corpus))[:500]:
            ours = ["".join(bpe.byte_chars(word)) for word in bpe.byte_words(line)]
            assert ours == [piece for piece, _ in library.pre_tokenize_str(line)]
