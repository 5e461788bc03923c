"""tokenizer.json as older software wrote it, GPT-2's own among them, does all that a new one does."""

import json

import pytest

from qkv.text.files import write_vocabulary
from qkv.text.learn import learn
from qkv.text.steps import merge_steps
from qkv.text.tokenizer import Tokenizer

TEXTS = [
    "the lowest of the low",
    "lower and lower, the newest of the new",
    "机器学习很有趣，今天天气真好",
] * 20


def aged(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer in the words of an old file: no type, no new fields, merges as "a b"."""
    rules = json.loads(tokenizer._json)
    model = {
        "vocab": rules["model"]["vocab"],
        "merges": [" ".join(pair) for pair in rules["model"]["merges"]],
    }
    for name in ("unk_token", "end_of_word_suffix"):
        if rules["model"].get(name):
            model[name] = rules["model"][name]
    for part in ("pre_tokenizer", "decoder"):
        for step in (rules[part], *rules[part].get("pretokenizers", [])):
            step.pop("use_regex", None)
    return Tokenizer.from_json(json.dumps({**rules, "model": model}))


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_an_old_file_encodes_shows_and_writes_as_a_new_one(tmp_path, kind):
    new = learn(kind, TEXTS, 400)
    old = aged(new)
    assert "type" not in json.loads(old._json)["model"] and "use_regex" not in old._json
    long = " ".join(TEXTS) * 40  # more than a block
    assert old.encode(long) == new.encode(long) and old.offsets(TEXTS[0]) == new.offsets(TEXTS[0])
    assert old.decode(old.encode(TEXTS[2])) == new.decode(new.encode(TEXTS[2]))
    assert (
        merge_steps(old, "lowest") == merge_steps(new, "lowest")
        and len(merge_steps(old, "lowest")) > 2
    )
    assert old.tokens_for_people(old.encode("好")) == new.tokens_for_people(new.encode("好"))
    files = [
        [path.read_bytes() for path in write_vocabulary(one, tmp_path / name)]
        for name, one in (("old", old), ("new", new))
    ]
    assert files[0] == files[1]


def test_a_file_that_leaves_out_whole_parts_is_read(tmp_path):
    rules = json.loads(learn("bytes", TEXTS, 300)._json)
    bare = Tokenizer.from_json(
        json.dumps(
            {"version": "1.0", "pre_tokenizer": rules["pre_tokenizer"], "model": rules["model"]}
        )
    )
    assert (
        bare.encode("the low")
        and bare.tokens_for_people(bare.encode("the"))
        and bare.rules["added_tokens"] == []
    )
