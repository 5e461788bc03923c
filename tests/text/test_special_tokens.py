"""What stands around a sentence is what the tokenizer's own library puts there."""

import pytest
import tokenizers
from tokenizers.models import WordLevel
from tokenizers.processors import BertProcessing, RobertaProcessing, TemplateProcessing

from qkv.text.frame import Frame, frame_of
from qkv.text.learn import learn
from qkv.text.tokenizer import Tokenizer

TEXTS = ["a b c", "b a"]
WORDS = {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "<s>": 3, "</s>": 4, "a": 5, "b": 6}
RULES = {
    "bert": (BertProcessing(("[SEP]", 2), ("[CLS]", 1)), Frame((1,), (2,))),
    "roberta": (RobertaProcessing(("</s>", 4), ("<s>", 3)), Frame((3,), (4,))),
    "only before": (TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 3)]), Frame((3,), ())),
}


@pytest.mark.parametrize("name", RULES)
def test_the_rules_of_tokenizer_json_decide(name):
    rule, frame = RULES[name]
    core = tokenizers.Tokenizer(WordLevel(WORDS))
    core.add_special_tokens(list(WORDS)[:5])
    core.post_processor = rule
    tokenizer = Tokenizer(core)
    assert frame_of(tokenizer) == frame
    assert frame.around(tokenizer.encode("a")) == core.encode("a", add_special_tokens=True).ids


def test_ours_stand_between_cls_and_sep_or_bos_and_eos():
    pieces, letters = learn("wordpiece", TEXTS, 30), learn("char", TEXTS, 30)
    assert frame_of(pieces) == Frame((pieces.cls_id,), (pieces.sep_id,))
    assert frame_of(letters) == Frame((letters.bos_id,), (letters.eos_id,))
    assert frame_of(letters).around([7, 8]) == [letters.bos_id, 7, 8, letters.eos_id]


def test_a_vocabulary_without_special_tokens_has_no_frame():
    assert frame_of(Tokenizer(tokenizers.Tokenizer(WordLevel({"a": 0, "b": 1})))) == Frame()
    assert frame_of(Tokenizer(tokenizers.Tokenizer(WordLevel({"!": 0})))).size == 0
