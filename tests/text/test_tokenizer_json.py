"""tokenizer.json files of older versions, such as GPT-2's, behave like current ones."""

import json

import pytest

from qkv.text.files import write_vocabulary
from qkv.text.merge_steps import merge_steps
from qkv.text.tokenizer import Tokenizer
from qkv.text.train_tokenizer import train_tokenizer

TEXTS = [
    "the lowest of the low",
    "lower and lower, the newest of the new",
    "机器学习很有趣，今天天气真好",
] * 20


def in_old_format(tokenizer: Tokenizer) -> Tokenizer:
    """Return the tokenizer in an old format: no type, no new fields, merges as "a b"."""
    config = json.loads(tokenizer._json)
    model = {
        "vocab": config["model"]["vocab"],
        "merges": [" ".join(pair) for pair in config["model"]["merges"]],
    }
    for name in ("unk_token", "end_of_word_suffix"):
        if config["model"].get(name):
            model[name] = config["model"][name]
    for part in ("pre_tokenizer", "decoder"):
        for step in (config[part], *config[part].get("pretokenizers", [])):
            step.pop("use_regex", None)
    return Tokenizer.from_json(json.dumps({**config, "model": model}))


@pytest.mark.parametrize("kind", ["byte_bpe", "bpe"])
def test_an_old_file_encodes_displays_and_exports_like_a_new_one(tmp_path, kind):
    new = train_tokenizer(kind, TEXTS, 400)
    old = in_old_format(new)
    assert "type" not in json.loads(old._json)["model"] and "use_regex" not in old._json
    long = " ".join(TEXTS) * 40  # more than a chunk
    assert old.encode(long) == new.encode(long) and old.offsets(TEXTS[0]) == new.offsets(TEXTS[0])
    assert old.decode(old.encode(TEXTS[2])) == new.decode(new.encode(TEXTS[2]))
    assert (
        merge_steps(old, "lowest") == merge_steps(new, "lowest")
        and len(merge_steps(old, "lowest")) > 2
    )
    assert old.display_tokens(old.encode("好")) == new.display_tokens(new.encode("好"))
    files = [
        [path.read_bytes() for path in write_vocabulary(tokenizer, tmp_path / name)]
        for name, tokenizer in (("old", old), ("new", new))
    ]
    assert files[0] == files[1]


def test_a_file_without_optional_components_is_read(tmp_path):
    config = json.loads(train_tokenizer("byte_bpe", TEXTS, 300)._json)
    minimal = Tokenizer.from_json(
        json.dumps(
            {"version": "1.0", "pre_tokenizer": config["pre_tokenizer"], "model": config["model"]}
        )
    )
    assert (
        minimal.encode("the low")
        and minimal.display_tokens(minimal.encode("the"))
        and minimal.config["added_tokens"] == []
    )
