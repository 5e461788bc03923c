"""Tokenizer training for the five kinds: determinism, streams, options, errors."""

import random
import subprocess
import sys

import pytest

from qkv.errors import QkvError
from qkv.text import train_tokenizer as module
from qkv.text.chunking import TRAINING_CHUNK_CHARS
from qkv.text.train_tokenizer import (
    KINDS,
    FileTexts,
    TokenizerOptions,
    special_tokens,
    train_tokenizer,
)

CORPUS = ["Low lower lowest, newest!", "我们学习机器翻译。", "wide wider widest"] * 2
# All pairs are equally frequent: only deterministic tie-breaking gives the same result twice.
TIES = "qe qd qc qb qa za zb zc zd ba bc bd bb"


def pieces(kind: str, text: str, options: TokenizerOptions | None = None) -> list[str]:
    tokenizer = train_tokenizer(kind, CORPUS, 400, options)
    return tokenizer.tokens(tokenizer.encode(text))


def test_tokens_of_each_kind():
    assert pieces("word", "lower wider, unseen") == ["lower", "wider", ",", "<unk>"]
    assert pieces("char", "low e x") == ["l", "o", "w", " ", "e", " ", "<unk>"]
    assert pieces("bpe", "lower wided") == ["lower</w>", "wid", "e", "<unk>"]
    assert pieces("byte_bpe", "lower 我") == ["low", "er", "Ġ", "æĪ", "ĳ"]
    assert pieces("wordpiece", "lower widewest zzz") == ["lower", "wide", "##west", "[UNK]"]


def test_options_are_saved_in_the_tokenizer():
    assert pieces("word", "LOWER Ｌow", TokenizerOptions(lowercase=True, nfkc=True)) == [
        "lower",
        "low",
    ]
    assert pieces("word", "LOWER") == ["<unk>"]
    assert pieces("bpe", "学习", TokenizerOptions(split_chinese=True)) == ["学</w>", "习</w>"]
    assert pieces("wordpiece", "学习", TokenizerOptions(split_chinese=True)) == ["学", "习"]
    assert pieces("wordpiece", "学习") != ["学", "习"]


@pytest.mark.parametrize("kind", ["word", "bpe", "wordpiece"])
def test_chinese_characters_decode_without_spaces(kind):
    tokenizer = train_tokenizer(kind, CORPUS, 400, TokenizerOptions(split_chinese=True))
    assert tokenizer.decode(tokenizer.encode("我们学习机器翻译。")) == "我们学习机器翻译。"
    assert tokenizer.decode(tokenizer.encode("学习 lower wider")) == "学习 lower wider"


def test_words_decode_with_their_punctuation():
    tokenizer = train_tokenizer("word", ["it's (well-known), “so” they say: yes!"], 40)
    assert (
        tokenizer.decode(tokenizer.encode("it's (well-known), they say: yes!"))
        == "it's (well-known), they say: yes!"
    )


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_training_is_deterministic_across_processes(kind):
    program = (
        "from qkv.text.train_tokenizer import train_tokenizer; "
        f"print(train_tokenizer({kind!r}, [{TIES!r}], 60).fingerprint)"
    )
    others = {
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout.strip()
        for _ in range(2)
    }
    assert others == {train_tokenizer(kind, [TIES], 60).fingerprint}


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_gives_the_same_tokenizer_as_a_list(kind, tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(CORPUS[:3]) + "\n")
    (tmp_path / "b.txt").write_text("\n".join(CORPUS[3:]) + "\n")
    seen = []
    files = FileTexts([tmp_path / "a.txt", tmp_path / "b.txt"], progress=seen.append)
    expected = train_tokenizer(kind, CORPUS, 400).fingerprint
    assert train_tokenizer(kind, (text for text in CORPUS), 400).fingerprint == expected
    assert train_tokenizer(kind, files, 400).fingerprint == expected
    assert sum(seen) % sum(len(line.encode()) + 1 for line in CORPUS) == 0


def test_training_on_eleven_megabytes_needs_less_than_five_of_memory():
    program = """
import resource
from qkv.text.train_tokenizer import train_tokenizer
used = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
text = "the quick brown fox jumps over the lazy dog " * 25
stream = lambda lines: (text + str(i % 99) for i in range(lines))
train_tokenizer("byte_bpe", stream(300), 600)
before = used()
train_tokenizer("byte_bpe", stream(10_000), 600)
print(used() - before)
"""
    kilobytes = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert int(kilobytes) < 5_000


UNSPACED = "".join(random.Random(1).choices([chr(0x4E00 + i) for i in range(40)], k=20_000))


@pytest.mark.parametrize("line", [UNSPACED, "low" * 9_000, " \t" * 9_000])
@pytest.mark.parametrize("kind", KINDS)
def test_no_word_that_the_trainer_gets_is_longer_than_the_limit(kind, line, monkeypatch):
    """The trainer's time is merges x word length; benchmarks/tokenizer_lines.py measures it."""
    given = []
    monkeypatch.setattr(module, "_batches", recorded(module._batches, given))
    train_tokenizer(kind, [line, "some words"], 400)
    chunks = [text for batch in given for text in batch]
    assert "".join(chunks) == (line + "some words") * module.PASSES[kind]
    assert max(map(len, chunks)) <= TRAINING_CHUNK_CHARS


def recorded(function, results: list):
    def generate(texts):
        for result in function(texts):
            results.append(result)
            yield result

    return generate


@pytest.mark.parametrize(
    ("kind", "prefix"), [*((kind, False) for kind in KINDS), ("byte_bpe", True)]
)
def test_splitting_a_long_line_at_spaces_does_not_change_the_tokenizer(kind, prefix, monkeypatch):
    options = TokenizerOptions(nfkc=True, lowercase=True, add_prefix_space=prefix)
    words = ["Low", "lower", "", "lowest,", "newest!", "wide;", "学习，", "3½", "it's\t-"]
    line = " ".join(random.Random(2).choices(words, k=4000))
    assert len(line) > 4 * TRAINING_CHUNK_CHARS
    trained = train_tokenizer(kind, [line], 400, options).fingerprint
    monkeypatch.setattr(module, "split_for_training", lambda text: [text])
    assert trained == train_tokenizer(kind, [line], 400, options).fingerprint


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "bpe"])
def test_splitting_after_chinese_punctuation_does_not_change_the_tokenizer(kind, monkeypatch):
    words = random.Random(3).choices(
        ["我们学习", "机器翻译", "，今天", "。天气", "！", "”", "low"], k=4000
    )
    line = "".join(words)
    assert len(line) > 2 * TRAINING_CHUNK_CHARS
    trained = train_tokenizer(kind, [line], 400).fingerprint
    monkeypatch.setattr(module, "split_for_training", lambda text: [text])
    assert trained == train_tokenizer(kind, [line], 400).fingerprint


def test_surrogates_in_a_file_are_trained_as_replacement_characters(tmp_path):
    (tmp_path / "a.txt").write_bytes("low \ud800 lower\n".encode("utf-8", "surrogatepass"))
    trained = train_tokenizer("byte_bpe", FileTexts([tmp_path / "a.txt"]), 300)
    assert trained.fingerprint == train_tokenizer("byte_bpe", ["low \ufffd lower"], 300).fingerprint


def test_the_vocabulary_has_the_requested_size():
    for kind, size in [
        ("word", 12),
        ("char", 20),
        ("bpe", 60),
        ("byte_bpe", 290),
        ("wordpiece", 60),
    ]:
        assert train_tokenizer(kind, CORPUS, size).vocab_size == size


def test_min_frequency_excludes_rare_pairs_and_words():
    once = [*CORPUS, "unique"]
    assert "unique" in train_tokenizer("word", once, 99).core.get_vocab()
    assert (
        "unique"
        not in train_tokenizer("word", once, 99, TokenizerOptions(min_frequency=2)).core.get_vocab()
    )
    assert (
        train_tokenizer("byte_bpe", ["abcabd"], 300, TokenizerOptions(min_frequency=2)).vocab_size
        == 4 + 256 + 1
    )


def error_of(kind: str, texts, size: int = 400, options: TokenizerOptions | None = None) -> str:
    with pytest.raises(QkvError) as caught:
        train_tokenizer(kind, texts, size, options)
    return str(caught.value)


def test_each_error_states_the_problem_and_the_remedy():
    assert (
        error_of("wordpeice", CORPUS)
        == "--kind: no tokenizer kind 'wordpeice'; did you mean 'wordpiece'?"
    )
    assert (
        error_of("x", CORPUS)
        == "--kind: no tokenizer kind 'x'; choose from word, char, bpe, byte_bpe, wordpiece"
    )
    assert error_of("byte_bpe", CORPUS, 100) == (
        "--vocab-size: 100 is smaller than the alphabet (256 symbols and 4 special tokens); "
        "use at least 260"
    )
    assert error_of("bpe", ["ab ba"], 5) == (
        "--vocab-size: 5 is smaller than the alphabet (4 symbols and 4 special tokens); "
        "use at least 8"
    )
    assert error_of("bpe", []) == "corpus: no text; give at least one line"
    assert error_of("bpe", iter([])) == "corpus: no text; give at least one line"
    assert error_of("word", ["  "]) == "corpus: no text; give at least one line"
    assert error_of("char", CORPUS, 99, TokenizerOptions(special_tokens=("MASK",))) == (
        "--special: 'MASK' could be a word of a text; write <MASK> or [MASK]"
    )


def test_user_special_tokens_follow_the_default_ones():
    assert special_tokens("byte_bpe", TokenizerOptions(special_tokens=("<mask>", "<eos>"))) == [
        "<pad>",
        "<unk>",
        "<bos>",
        "<eos>",
        "<mask>",
    ]


def test_the_stored_form_of_the_options_does_not_change_between_versions():
    assert TokenizerOptions(min_frequency=2, special_tokens=("<cls>",)).stored_form() == (
        "Choices(lowercase=False, nfkc=False, split_chinese=False, min_count=2, "
        "special_tokens=('<cls>',))"
    )
