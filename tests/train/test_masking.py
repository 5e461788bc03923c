"""Masked language modeling (MLM): 80/10/10 replacement, special tokens, whole word masking."""

from itertools import chain

import pytest
import torch

from qkv.errors import QkvError
from qkv.text.normalization import TokenizerOptions
from qkv.text.train_tokenizer import train_tokenizer
from qkv.train.masking import Masking, word_boundaries

TEXTS = [
    "the unbelievable transformers transform sentences",
    "sentences of transformers, unbelievably long: 我爱机器学习",
] * 3
SPECIAL = TokenizerOptions(special_tokens=("<cls>", "<sep>", "<mask>"))


def tokenizer_of(kind, size=120):
    return train_tokenizer(kind, TEXTS, 300 if kind == "byte_bpe" else size, SPECIAL)


def masked(rows=400, length=40, probability=0.15, seed=0, **options):
    tokenizer = tokenizer_of("wordpiece")
    ids = torch.randint(
        len(tokenizer.special_ids),
        tokenizer.vocab_size,
        (rows, length),
        generator=torch.Generator().manual_seed(1),
    )
    ids[:, 0], ids[:, -2], ids[:, -1] = tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id
    return (
        tokenizer,
        Masking(tokenizer, probability, **{"whole_word_mask": False, **options})(
            ids, torch.Generator().manual_seed(seed)
        ),
        ids,
    )


def test_of_the_selected_tokens_80_percent_are_masked_10_random_10_unchanged():
    tokenizer, batch, ids = masked()
    free = 400 * 37
    assert float(batch.selected.sum()) / free == pytest.approx(0.15, abs=0.01)
    replaced = batch.ids[batch.selected]
    hidden, same = (
        (replaced == tokenizer.mask_id).float().mean(),
        (replaced == ids[batch.selected]).float().mean(),
    )
    assert float(hidden) == pytest.approx(0.8, abs=0.03) and float(same) == pytest.approx(
        0.1, abs=0.03
    )


def test_other_tokens_are_unchanged_and_the_targets_are_the_text():
    _, batch, ids = masked()
    assert torch.equal(batch.targets, ids)
    assert torch.equal(batch.ids[~batch.selected], ids[~batch.selected])


def test_special_tokens_are_neither_selected_nor_used_as_replacement():
    tokenizer, batch, _ = masked(probability=0.9)
    special = torch.tensor(sorted(tokenizer.special_ids.values()))
    assert not batch.selected[:, [0, -2, -1]].any()
    others = special[special != tokenizer.mask_id]
    assert not torch.isin(batch.ids[batch.selected], others).any()


def test_every_row_has_a_token_to_predict():
    _, batch, _ = masked(rows=200, length=5, probability=0.001)
    assert (batch.selected.sum(dim=1) >= 1).all()


def test_the_same_generator_masks_the_same_tokens():
    first, again, other = masked()[1], masked()[1], masked(seed=1)[1]
    assert torch.equal(first.ids, again.ids) and not torch.equal(first.selected, other.selected)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "byte_bpe", "word"])
def test_whole_word_masking_selects_all_tokens_of_a_word_or_none(kind):
    tokenizer, words = (
        tokenizer_of(kind),
        ["the", "unbelievable", "longtransformers", "transform", "sentences"],
    )
    parts = [
        tokenizer.encode(f" {word}" if kind == "byte_bpe" else word) for word in words
    ]  # each word alone
    ids = torch.tensor([tokenizer.encode(" " * (kind == "byte_bpe") + " ".join(words))] * 300)
    assert ids[0].tolist() == list(chain(*parts)) and (kind == "word" or max(map(len, parts)) > 1)
    word = torch.tensor([number for number, part in enumerate(parts) for _ in part])
    chosen = Masking(tokenizer, 0.3, whole_word_mask=True)(
        ids, torch.Generator().manual_seed(0)
    ).selected
    for number, part in enumerate(parts):
        together = chosen[:, word == number]
        if tokenizer.unk_id in part:
            continue  # special tokens are never chosen
        assert torch.equal(together.any(dim=1), together.all(dim=1))
        assert (
            0.25 < float(together.any(dim=1).float().mean()) < 0.5
        )  # more than 0.3: each row has at least one


def test_without_spaces_every_character_is_a_word():
    tokenizer = train_tokenizer(
        "byte_bpe", TEXTS, 256 + 4 + 3, SPECIAL
    )  # no merges: a Chinese character is three pieces
    begins, ends = word_boundaries(tokenizer)
    ids = tokenizer.encode("我爱机器学习")
    assert begins[ids].tolist() == [True, False, False] * 6 and not ends[ids].any()


def test_a_vocabulary_without_a_mask_token_is_an_error():
    with pytest.raises(QkvError) as error:
        Masking(train_tokenizer("bpe", TEXTS, 120), 0.15, False)
    assert (
        str(error.value)
        == "tokenizer: no [MASK] in its vocabulary; train one with it, or use mlm_steps 0"
    )
