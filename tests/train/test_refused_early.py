"""A mistake that the recipe alone shows is said before any text is read, learned from or kept."""

from dataclasses import replace

import pytest

from qkv.data.corpus import Pairs
from qkv.data.documents import Documents
from qkv.data.groups import Groups
from qkv.errors import QkvError
from qkv.train.prepare import prepare_translation
from qkv.train.prepare_embed import prepare_embedding
from qkv.train.prepare_text import prepare_generation
from qkv.train.recipe import EmbedRecipe, GenerateRecipe

ODD = {"d_model": 12, "n_heads": 4}  # heads of width 3, and rotary positions turn numbers in pairs
TURNED = "{}.0.mixer: 3 turned dimensions do not pair up; use an even number, at least 2"
SMALL = {"layers": 1, "d_model": 16, "n_heads": 2, "d_ff": 32}
EVERYWHERE = [
    (
        {"model": {"d_model": 16, "n_heads": 3}},
        "model.n_heads: 16 does not divide into 3 heads; use 1, 2, 4, 8",
    ),
    ({"model": "gone/model.json"}, "gone/model.json: no such file; give a model.json or a preset"),
    ({"model": "paper-bas"}, "paper-bas: no such preset; did you mean 'paper-base'?"),
    (
        {"model": {"preset": "tiny", "n_head": 2}},
        "model: 'tiny' has no argument 'n_head', nor has a spec such a field; did you mean 'n_heads'?",
    ),
    ({"model": {"layers": 0}}, "model, layers: cannot be 0; use at least 1"),
    ({"model": {"dropout": 1}}, "model, dropout: 1.0 is no share; use 0 <= dropout < 1"),
    (
        {"model": {"vocab_size": 9}},
        "model.vocab_size: comes from the tokenizer; set vocab_size of the recipe",
    ),
]


@pytest.fixture
def refused(tmp_path, corpus, monkeypatch):
    """refused(prepare_translation, recipe, changes): the line that is said, before anything is read or written."""
    monkeypatch.chdir(corpus)
    for texts in (Pairs, Documents, Groups):
        monkeypatch.setattr(texts, "__iter__", lambda self: pytest.fail("text was read"))

    def attempt(prepare, recipe, changes):
        with pytest.raises(QkvError) as error:
            prepare(replace(recipe, **changes), tmp_path / "data")
        assert not (tmp_path / "data").exists()
        return str(error.value)

    return attempt


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        *EVERYWHERE,
        ({"model": ODD}, f"model, {TURNED.format('encoder')} | {TURNED.format('decoder')}"),
        (
            {"model": "gpt2"},
            "model: 'gpt2' is no encoder-decoder; translation needs both stacks, as in 'tiny'",
        ),
        *(
            (
                {"bpe_dropout": 0.1, "tokenizer": kind},
                f"bpe_dropout: '{kind}' has no merges to leave out; use 0, or tokenizer bpe or bytes",
            )
            for kind in ("wordpiece", "word", "char")
        ),
        ({"bleu_tokenize": "13b"}, "bleu_tokenize: no BLEU tokenizer '13b'; did you mean '13a'?"),
        ({"valid_target": "gone.en"}, "gone.en: no such file; check the path"),
    ],
)
def test_translate(refused, tiny_recipe, changes, line):
    assert refused(prepare_translation, tiny_recipe(), changes) == line


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        *EVERYWHERE,
        ({"model": ODD}, f"model, {TURNED.format('decoder')}"),
        (
            {"model": "tiny"},
            "model: 'tiny' is no language model; it needs a decoder alone, as in 'llama'",
        ),
        (
            {"batch_tokens": 31},
            "batch_tokens: 31 is less than one window of 32; raise it or shorten context",
        ),
        ({"valid_text": ("gone.txt",)}, "gone.txt: no such file; check the path"),
        ({"text": ("a.en", "gone.txt")}, "gone.txt: no such file; check the path"),
        ({"tokenizer": "chars"}, "tokenizer: no kind of tokenizer 'chars'; did you mean 'char'?"),
    ],
)
def test_generate(refused, changes, line):
    recipe = GenerateRecipe(text=("a.en",), tokenizer="char", context=32, model=SMALL)
    assert refused(prepare_generation, recipe, changes) == line


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        *EVERYWHERE,
        ({"model": ODD}, f"model, {TURNED.format('encoder')}"),
        (
            {"model": "gpt2"},
            "model: 'gpt2' is no encoder alone; sentence vectors need one, as in 'minilm'",
        ),
        (
            {"model": SMALL | {"max_len": 2}},
            "model, max_len: 2 places leave none between [CLS] and [SEP]; use 3 or more",
        ),
        ({"valid_target": "gone.en"}, "gone.en: no such file; check the path"),
        ({"text": ("gone.txt",), "masked_steps": 5}, "gone.txt: no such file; check the path"),
    ],
)
def test_embed(refused, changes, line):
    recipe = EmbedRecipe(
        source="a.zh", target="a.en", valid_source="v.zh", valid_target="v.en", model=SMALL
    )
    assert refused(prepare_embedding, recipe, changes) == line
