"""Special tokens: the post-processing template of the tokenizers library and stored ids."""

import json

import pytest
import tokenizers
from tokenizers.models import WordLevel
from tokenizers.processors import BertProcessing, RobertaProcessing, TemplateProcessing

from qkv.text.special_tokens import (
    SpecialTokenIds,
    Template,
    decoder_start_id,
    encoder_template,
    generation_tokens,
    translation_template,
)
from qkv.text.tokenizer import Tokenizer
from qkv.text.train_tokenizer import train_tokenizer

TEXTS = ["a b c", "b a"]
WORDS = {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "<s>": 3, "</s>": 4, "a": 5, "b": 6}
PROCESSORS = {
    "bert": (BertProcessing(("[SEP]", 2), ("[CLS]", 1)), Template((1,), (2,))),
    "roberta": (RobertaProcessing(("</s>", 4), ("<s>", 3)), Template((3,), (4,))),
    "only before": (
        TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 3)]),
        Template((3,), ()),
    ),
}


@pytest.mark.parametrize("name", PROCESSORS)
def test_the_template_of_tokenizer_json_is_used(name):
    processor, template = PROCESSORS[name]
    core = tokenizers.Tokenizer(WordLevel(WORDS))
    core.add_special_tokens(list(WORDS)[:5])
    core.post_processor = processor
    tokenizer = Tokenizer(core)
    assert encoder_template(tokenizer) == template
    assert template.around(tokenizer.encode("a")) == core.encode("a", add_special_tokens=True).ids


def test_default_template_is_cls_sep_or_bos_eos():
    pieces, letters = train_tokenizer("wordpiece", TEXTS, 30), train_tokenizer("char", TEXTS, 30)
    assert encoder_template(pieces) == Template((pieces.cls_id,), (pieces.sep_id,))
    assert encoder_template(letters) == Template((letters.bos_id,), (letters.eos_id,))
    assert encoder_template(letters).around([7, 8]) == [letters.bos_id, 7, 8, letters.eos_id]


def test_a_vocabulary_without_special_tokens_has_no_template():
    assert (
        encoder_template(Tokenizer(tokenizers.Tokenizer(WordLevel({"a": 0, "b": 1})))) == Template()
    )
    assert encoder_template(Tokenizer(tokenizers.Tokenizer(WordLevel({"!": 0})))).size == 0


def test_a_template_is_found_where_no_token_is_a_word():
    core = tokenizers.Tokenizer(WordLevel({"!": 0, "<unk>": 1, "<s>": 2}, unk_token="<unk>"))
    core.add_special_tokens(["<unk>", "<s>"])
    core.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 2)])
    assert (
        encoder_template(Tokenizer(core))
        == Template((2,))
        == Template(generation_tokens(Tokenizer(core)).begin)
    )


def templated(**template) -> Tokenizer:
    core = tokenizers.Tokenizer.from_str(json.dumps(train_tokenizer("byte_bpe", TEXTS, 262).config))
    if template:
        core.post_processor = TemplateProcessing(
            special_tokens=[("<bos>", 2), ("<eos>", 3)], **template
        )
    return Tokenizer(core)


@pytest.mark.parametrize(
    "template, stored, begin",
    [
        ({"single": "<bos> $A"}, SpecialTokenIds(), (2,)),
        ({"single": "$A <eos>"}, SpecialTokenIds(start_id=2), ()),
        ({}, SpecialTokenIds(start_id=2), (2,)),  # a Llama folder without a template
        ({}, SpecialTokenIds(start_id=3, eos_ids=(3,)), ()),  # GPT-2: one token between texts
        ({}, SpecialTokenIds(), ()),
    ],
)
def test_a_prompt_begins_with_the_template_or_else_with_the_stored_start(template, stored, begin):
    assert generation_tokens(templated(**template), stored).begin == begin


def test_stored_ids_take_precedence_over_the_tokenizer():
    letters = templated()
    assert (letters.bos_id, letters.eos_id, letters.pad_id) == (2, 3, 0)
    assert generation_tokens(letters).ends == (3,) and generation_tokens(letters).first == 3
    stored = SpecialTokenIds(start_id=7, eos_ids=(8, 9))
    assert (
        generation_tokens(letters, stored).ends == (8, 9)
        and generation_tokens(letters, stored).first == 7
    )
    assert decoder_start_id(letters) == 2 and decoder_start_id(letters, stored) == 7


def test_a_translation_ends_with_eos_unless_the_template_differs():
    assert translation_template(templated()) == Template((), (3,))
    assert translation_template(templated(single="<bos> $A <eos>")) == Template((2,), (3,))
