"""Masked tokens: 80/10/10 of those chosen, special tokens never, whole words if asked, and by the draws alone."""

from itertools import chain

import pytest
import torch

from qkv.errors import QkvError
from qkv.text.learn import learn
from qkv.text.pipeline import Choices
from qkv.train.masking import Masking, word_borders

TEXTS = [
    "the unbelievable transformers transform sentences",
    "sentences of transformers, unbelievably long: 我爱机器学习",
] * 3
SPECIAL = Choices(special_tokens=("<cls>", "<sep>", "<mask>"))


def tokenizer_of(kind, size=120):
    return learn(kind, TEXTS, 300 if kind == "bytes" else size, SPECIAL)


def masked(rows=400, length=40, share=0.15, seed=0, **options):
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
        Masking(tokenizer, share, **{"whole_words": False, **options})(
            ids, torch.Generator().manual_seed(seed)
        ),
        ids,
    )


def test_of_the_chosen_tokens_80_percent_are_hidden_10_swapped_10_stay():
    tokenizer, batch, ids = masked()
    free = 400 * 37
    assert float(batch.chosen.sum()) / free == pytest.approx(0.15, abs=0.01)
    shown = batch.ids[batch.chosen]
    hidden, same = (
        (shown == tokenizer.mask_id).float().mean(),
        (shown == ids[batch.chosen]).float().mean(),
    )
    assert float(hidden) == pytest.approx(0.8, abs=0.03) and float(same) == pytest.approx(
        0.1, abs=0.03
    )


def test_what_is_not_chosen_stays_and_the_targets_are_the_text():
    _, batch, ids = masked()
    assert torch.equal(batch.targets, ids)
    assert torch.equal(batch.ids[~batch.chosen], ids[~batch.chosen])


def test_special_tokens_are_never_chosen_nor_put_in_anothers_place():
    tokenizer, batch, _ = masked(share=0.9)
    special = torch.tensor(sorted(tokenizer.special_ids.values()))
    assert not batch.chosen[:, [0, -2, -1]].any()
    others = special[special != tokenizer.mask_id]
    assert not torch.isin(batch.ids[batch.chosen], others).any()


def test_every_row_has_something_to_guess():
    _, batch, _ = masked(rows=200, length=5, share=0.001)
    assert (batch.chosen.sum(dim=1) >= 1).all()


def test_the_same_draws_hide_the_same_tokens():
    first, again, other = masked()[1], masked()[1], masked(seed=1)[1]
    assert torch.equal(first.ids, again.ids) and not torch.equal(first.chosen, other.chosen)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "bytes", "word"])
def test_the_pieces_of_a_word_are_chosen_together_or_not_at_all(kind):
    tokenizer, words = (
        tokenizer_of(kind),
        ["the", "unbelievable", "longtransformers", "transform", "sentences"],
    )
    parts = [
        tokenizer.encode(f" {one}" if kind == "bytes" else one) for one in words
    ]  # each word alone
    ids = torch.tensor([tokenizer.encode(" " * (kind == "bytes") + " ".join(words))] * 300)
    assert ids[0].tolist() == list(chain(*parts)) and (kind == "word" or max(map(len, parts)) > 1)
    word = torch.tensor([number for number, part in enumerate(parts) for _ in part])
    chosen = Masking(tokenizer, 0.3, whole_words=True)(ids, torch.Generator().manual_seed(0)).chosen
    for number, part in enumerate(parts):
        together = chosen[:, word == number]
        if tokenizer.unk_id in part:
            continue  # special tokens are never chosen
        assert torch.equal(together.any(dim=1), together.all(dim=1))
        assert (
            0.25 < float(together.any(dim=1).float().mean()) < 0.5
        )  # 0.3, and more because each row has one at least


def test_without_spaces_every_character_is_a_word():
    tokenizer = learn(
        "bytes", TEXTS, 256 + 4 + 3, SPECIAL
    )  # no merges: a Chinese character is three pieces
    begins, ends = word_borders(tokenizer)
    ids = tokenizer.encode("我爱机器学习")
    assert begins[ids].tolist() == [True, False, False] * 6 and not ends[ids].any()


def test_a_vocabulary_without_a_mask_is_refused():
    with pytest.raises(QkvError) as error:
        Masking(learn("bpe", TEXTS, 120), 0.15, False)
    assert (
        str(error.value)
        == "tokenizer: no [MASK] in its vocabulary; learn one with it, or use masked_steps 0"
    )
