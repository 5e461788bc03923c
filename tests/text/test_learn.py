"""Learning the five kinds: determinism, streams, choices, mistakes."""

import subprocess
import sys

import pytest

from qkv.errors import QkvError
from qkv.text.learn import KINDS, Choices, FileTexts, learn, special_tokens

CORPUS = ["Low lower lowest, newest!", "我们学习机器翻译。", "wide wider widest"] * 2
# Every pair is as frequent as every other: only a fixed rule for ties gives the same result twice.
TIES = "qe qd qc qb qa za zb zc zd ba bc bd bb"


def pieces(kind: str, text: str, choices: Choices | None = None) -> list[str]:
    tokenizer = learn(kind, CORPUS, 400, choices)
    return tokenizer.tokens(tokenizer.encode(text))


def test_each_kind_cuts_in_its_own_way():
    assert pieces("word", "lower wider, unseen") == ["lower", "wider", ",", "<unk>"]
    assert pieces("char", "low e x") == ["l", "o", "w", " ", "e", " ", "<unk>"]
    assert pieces("bpe", "lower wided") == ["lower</w>", "wid", "e", "<unk>"]
    assert pieces("bytes", "lower 我") == ["low", "er", "Ġ", "æĪ", "ĳ"]
    assert pieces("wordpiece", "lower widewest zzz") == ["lower", "wide", "##west", "[UNK]"]


def test_choices_are_kept_in_the_tokenizer():
    assert pieces("word", "LOWER Ｌow", Choices(lowercase=True, nfkc=True)) == ["lower", "low"]
    assert pieces("word", "LOWER") == ["<unk>"]
    assert pieces("bpe", "学习", Choices(split_chinese=True)) == ["学</w>", "习</w>"]
    assert pieces("wordpiece", "学习", Choices(split_chinese=True)) == ["学", "习"]
    assert pieces("wordpiece", "学习") != ["学", "习"]


@pytest.mark.parametrize("kind", ["word", "bpe", "wordpiece"])
def test_chinese_characters_come_back_without_spaces(kind):
    tokenizer = learn(kind, CORPUS, 400, Choices(split_chinese=True))
    assert tokenizer.decode(tokenizer.encode("我们学习机器翻译。")) == "我们学习机器翻译。"
    assert tokenizer.decode(tokenizer.encode("学习 lower wider")) == "学习 lower wider"


def test_words_come_back_with_their_punctuation():
    tokenizer = learn("word", ["it's (well-known), “so” they say: yes!"], 40)
    assert (
        tokenizer.decode(tokenizer.encode("it's (well-known), they say: yes!"))
        == "it's (well-known), they say: yes!"
    )


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_another_process_learns_the_same_tokenizer(kind):
    program = (
        f"from qkv.text.learn import learn; print(learn({kind!r}, [{TIES!r}], 60).fingerprint)"
    )
    others = {
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout.strip()
        for _ in range(2)
    }
    assert others == {learn(kind, [TIES], 60).fingerprint}


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_teaches_what_a_list_teaches(kind, tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(CORPUS[:3]) + "\n")
    (tmp_path / "b.txt").write_text("\n".join(CORPUS[3:]) + "\n")
    seen = []
    files = FileTexts([tmp_path / "a.txt", tmp_path / "b.txt"], progress=seen.append)
    expected = learn(kind, CORPUS, 400).fingerprint
    assert learn(kind, (text for text in CORPUS), 400).fingerprint == expected
    assert learn(kind, files, 400).fingerprint == expected
    assert sum(seen) % sum(len(line.encode()) + 1 for line in CORPUS) == 0


def test_eleven_megabytes_of_text_pass_through_five_of_memory():
    program = """
import resource
from qkv.text.learn import learn
used = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
stream = lambda lines: ("the quick brown fox jumps over the lazy dog " * 25 + str(i % 99) for i in range(lines))
learn("bytes", stream(300), 600)
before = used()
learn("bytes", stream(10_000), 600)
print(used() - before)
"""
    kilobytes = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert int(kilobytes) < 5_000


def test_surrogates_written_into_a_file_teach_the_replacement_sign(tmp_path):
    (tmp_path / "a.txt").write_bytes("low \ud800 lower\n".encode("utf-8", "surrogatepass"))
    learned = learn("bytes", FileTexts([tmp_path / "a.txt"]), 300)
    assert learned.fingerprint == learn("bytes", ["low \ufffd lower"], 300).fingerprint


def test_the_vocabulary_is_as_large_as_asked():
    for kind, size in [("word", 12), ("char", 20), ("bpe", 60), ("bytes", 290), ("wordpiece", 60)]:
        assert learn(kind, CORPUS, size).vocab_size == size


def test_rare_pairs_and_words_are_left_out_on_request():
    once = [*CORPUS, "unique"]
    assert "unique" in learn("word", once, 99).core.get_vocab()
    assert "unique" not in learn("word", once, 99, Choices(min_count=2)).core.get_vocab()
    assert learn("bytes", ["abcabd"], 300, Choices(min_count=2)).vocab_size == 4 + 256 + 1


def refused(kind: str, texts, size: int = 400, choices: Choices | None = None) -> str:
    with pytest.raises(QkvError) as caught:
        learn(kind, texts, size, choices)
    return str(caught.value)


def test_mistakes_are_named_with_their_remedy():
    assert (
        refused("wordpeice", CORPUS)
        == "--kind: no kind of tokenizer 'wordpeice'; did you mean 'wordpiece'?"
    )
    assert (
        refused("x", CORPUS)
        == "--kind: no kind of tokenizer 'x'; choose from word, char, bpe, bytes, wordpiece"
    )
    assert refused("bytes", CORPUS, 100) == (
        "--vocab-size: 100 is smaller than the alphabet (256 symbols and 4 special tokens); use at least 260"
    )
    assert refused("bpe", ["ab ba"], 5) == (
        "--vocab-size: 5 is smaller than the alphabet (4 symbols and 4 special tokens); use at least 8"
    )
    assert refused("bpe", []) == "corpus: no text; give at least one line"
    assert refused("bpe", iter([])) == "corpus: no text; give at least one line"
    assert refused("word", ["  "]) == "corpus: no text; give at least one line"
    assert refused("char", CORPUS, 99, Choices(special_tokens=("MASK",))) == (
        "--special: 'MASK' could be a word of the text; write <MASK> or [MASK]"
    )


def test_added_special_tokens_follow_the_usual_ones():
    assert special_tokens("bytes", Choices(special_tokens=("<mask>", "<eos>"))) == [
        "<pad>",
        "<unk>",
        "<bos>",
        "<eos>",
        "<mask>",
    ]
