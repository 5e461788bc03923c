"""SentencePiece models that qkv writes: the sentencepiece library reads the same ids."""

import pytest
import sentencepiece
from tokenizers import Tokenizer as Core
from tokenizers import models, pre_tokenizers, trainers

from qkv.errors import QkvError
from qkv.text import sentencepiece_format as spm
from qkv.text.files import read_tokenizer
from qkv.text.lines import read_lines
from qkv.text.sentencepiece_writer import sentencepiece_bytes
from qkv.text.tokenizer import Tokenizer
from qkv.text.train_tokenizer import train_tokenizer

SPECIALS = ["<unk>", "<s>", "</s>"]
PIECES = tuple(spm.Piece(text, 0.0, spm.CONTROL) for text in SPECIALS)


@pytest.fixture(scope="module")
def lines(shared) -> list[str]:
    """2,000 lines of news in four languages."""
    files = sorted((shared / "ntrex").glob("*.txt"))
    return [line for file in files for line in list(read_lines(file))[:500]]


def exported(tokenizer: Tokenizer) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_bytes(tokenizer))


@pytest.mark.parametrize(
    "name",
    [
        "llama2_tokenizer/tokenizer.model",
        "spm_models/wmtende.model",
        "spm_models/botchan_unigram_1k.model",
        "stories260K_hf/tokenizer.json",
    ],
)
def test_real_models_are_written_with_identical_ids(shared, lines, tmp_path, name):
    ours = read_tokenizer(shared / name)
    theirs, expected = exported(ours), ours.encode_batch(lines)
    assert theirs.encode(lines) == expected
    assert theirs.decode(expected) == ours.decode_batch(expected) or ours.unk_id is not None
    ids = theirs.unk_id(), theirs.bos_id(), theirs.eos_id(), theirs.vocab_size()
    assert ids == (ours.unk_id, ours.bos_id, ours.eos_id, ours.vocab_size)
    (tmp_path / "x.model").write_bytes(sentencepiece_bytes(ours))
    assert read_tokenizer(tmp_path / "x.model").encode_batch(lines) == expected


@pytest.mark.parametrize(
    "options",
    [
        {"model_type": "bpe", "byte_fallback": True},
        {"model_type": "bpe", "user_defined_symbols": ["<sep>", "ing", "a|b"], "pad_id": 3},
        {"model_type": "unigram", "add_dummy_prefix": False, "normalization_rule_name": "identity"},
        {"model_type": "unigram", "control_symbols": ["<x>"], "remove_extra_whitespaces": False},
    ],
    ids=str,
)
def test_a_model_trained_by_sentencepiece_is_written_again(shared, lines, tmp_path, options):
    sentencepiece.SentencePieceTrainer.train(
        input=str(shared / "spm_models/botchan.txt"),
        model_prefix=str(tmp_path / "m"),
        vocab_size=700,
        minloglevel=2,
        **options,
    )
    first = sentencepiece.SentencePieceProcessor(str(tmp_path / "m.model"))
    again = exported(read_tokenizer(tmp_path / "m.model"))
    sample = [*lines, "  sing<sep>ing  <x> ring a|b ", ""]
    assert again.encode(sample) == first.encode(sample)
    assert again.pad_id() == first.pad_id()


def like_sentencepiece(model: models.Model) -> Core:
    """A tokenizer with this model and the normalizer of SentencePiece."""
    reference = spm.convert(spm.Model((spm.Piece("<unk>", 0.0, spm.UNKNOWN), spm.Piece("a"))))
    core = Core(model)
    core.normalizer, core.decoder = reference.normalizer, reference.decoder
    return core


def test_bpe_trained_by_the_tokenizers_library_is_written_with_identical_ids(lines):
    core = like_sentencepiece(models.BPE(unk_token="<unk>", fuse_unk=True))
    core.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # for training only
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=SPECIALS, show_progress=False, limit_alphabet=300
    )
    core.train_from_iterator(lines[::2], trainer)
    core.pre_tokenizer = None
    tokenizer = Tokenizer(core)
    expected = tokenizer.encode_batch(lines)
    assert exported(tokenizer).encode(lines) == expected
    assert sum(map(len, expected)) < 0.8 * sum(map(len, lines))  # merges are used


def test_unigram_trained_by_the_tokenizers_library_is_written_with_the_same_tokens(lines):
    core = like_sentencepiece(models.Unigram())
    trainer = trainers.UnigramTrainer(
        vocab_size=4000, special_tokens=SPECIALS, unk_token="<unk>", show_progress=False
    )
    core.train_from_iterator(lines[::2], trainer)
    core.pre_tokenizer = spm._pre_tokenizer(spm.Model(PIECES))
    tokenizer = Tokenizer(core)
    pairs = list(zip(exported(tokenizer).encode(lines), tokenizer.encode_batch(lines), strict=True))
    assert sum(theirs == ours for theirs, ours in pairs) >= 0.99 * len(pairs)
    # Of segmentations with equal scores, such as 0 00 and 00 0, rounding decides.
    assert all(sorted(theirs) == sorted(ours) for theirs, ours in pairs)


PREFIX = "tokenizer: the SentencePiece format cannot express this tokenizer: "


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("bpe", "it has only BPE and unigram models, not BPE (</w>)"),
        ("byte_bpe", "it has no byte-level BPE"),
        ("char", "it has only BPE and unigram models, not WordLevel"),
        ("wordpiece", "it has only BPE and unigram models, not WordPiece"),
    ],
)
def test_the_kinds_of_qkv_are_refused_in_one_line(kind, reason):
    with pytest.raises(QkvError) as error:
        sentencepiece_bytes(train_tokenizer(kind, ["low lower lowest"], 300))
    assert str(error.value) == f"{PREFIX}{reason}; write tokenizer.json"


def bpe(merges: list[tuple[str, str]], **options: object) -> Tokenizer:
    """A BPE tokenizer with the letters a to d and these merges."""
    tokens = ["<unk>", *"abcd▁", *dict.fromkeys(a + b for a, b in merges)]
    ids = {token: id for id, token in enumerate(tokens)}
    core = like_sentencepiece(models.BPE(ids, merges, unk_token="<unk>", **options))
    core.add_special_tokens(["<unk>"])
    return Tokenizer(core)


@pytest.mark.parametrize(
    ("tokenizer", "reason"),
    [
        # "abc" is never reached: bc is merged first; SentencePiece would merge a + bc.
        (
            bpe([("b", "c"), ("a", "b"), ("ab", "c")], fuse_unk=True),
            "1 tokens that merges do not produce ('abc')",
        ),
        (
            bpe([("a", "b"), ("ab", "c"), ("b", "c"), ("d", "d"), ("a", "bc")], fuse_unk=True),
            "the merges of one token are not adjacent in the merge table",
        ),
        (bpe([("a", "b")]), "it replaces a run of unknown characters by one token"),
    ],
)
def test_merges_that_sentencepiece_would_apply_differently_are_refused(tokenizer, reason):
    with pytest.raises(QkvError) as error:
        sentencepiece_bytes(tokenizer)
    assert str(error.value) == f"{PREFIX}{reason}; write tokenizer.json"


def test_another_normalizer_is_refused():
    tokenizer = bpe([("a", "b")], fuse_unk=True)
    core = Core.from_str(tokenizer.core.to_str())
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(QkvError) as error:
        sentencepiece_bytes(Tokenizer(core))
    assert str(error.value) == f"{PREFIX}its pre_tokenizer would be none; write tokenizer.json"
