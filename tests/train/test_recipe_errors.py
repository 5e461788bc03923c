"""Errors in a recipe are reported before any text is read or stored."""

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

ODD = {"d_model": 12, "n_heads": 4}  # heads of width 3, and rotary embeddings rotate pairs
ODD_WIDTH = "{}.0.mixer: 3 rotated dimensions cannot be paired; use an even number, at least 2"
SMALL = {"layers": 1, "d_model": 16, "n_heads": 2, "d_ff": 32}
ALL_TASKS = [
    (
        {"model": {"d_model": 16, "n_heads": 3}},
        "model.n_heads: 16 does not divide into 3 heads; use 1, 2, 4, 8",
    ),
    ({"model": "gone/model.json"}, "gone/model.json: no such file; give a model.json or a preset"),
    ({"model": "paper-bas"}, "paper-bas: no such preset; did you mean 'paper-base'?"),
    (
        {"model": {"preset": "tiny", "n_head": 2}},
        "model: 'tiny' has no argument 'n_head', and a spec has no such field; "
        "did you mean 'n_heads'?",
    ),
    ({"model": {"layers": 0}}, "model, layers: cannot be 0; use 1 to 4,096"),
    ({"model": {"dropout": 1}}, "model, dropout: 1.0 is not a probability; use 0 <= dropout < 1"),
    (
        {"model": {"vocab_size": 9}},
        "model.vocab_size: comes from the tokenizer; set vocab_size of the recipe",
    ),
]


@pytest.fixture
def error_line(tmp_path, corpus, monkeypatch):
    """error_line(prepare_translation, recipe, changes): the error before any text is read."""
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
        *ALL_TASKS,
        ({"model": ODD}, f"model, {ODD_WIDTH.format('encoder')} | {ODD_WIDTH.format('decoder')}"),
        (
            {"model": "gpt2"},
            "model: 'gpt2' is not an encoder-decoder; "
            "translation needs an encoder and a decoder, as in 'tiny'",
        ),
        *(
            (
                {"bpe_dropout": 0.1, "tokenizer": kind},
                f"bpe_dropout: '{kind}' has no merges to skip; use 0, or tokenizer bpe or byte_bpe",
            )
            for kind in ("wordpiece", "word", "char")
        ),
        ({"bleu_tokenize": "13b"}, "bleu_tokenize: no BLEU tokenizer '13b'; did you mean '13a'?"),
        ({"valid_target": "gone.en"}, "gone.en: no such file; check the path"),
    ],
)
def test_errors_of_a_translation_recipe(error_line, tiny_recipe, changes, line):
    assert error_line(prepare_translation, tiny_recipe(), changes) == line


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        *ALL_TASKS,
        ({"model": ODD}, f"model, {ODD_WIDTH.format('decoder')}"),
        (
            {"model": "tiny"},
            "model: 'tiny' is not a causal language model; "
            "use a decoder-only model, such as 'llama'",
        ),
        (
            {"batch_tokens": 31},
            "batch_tokens: 31 is less than context_length 32; increase it or reduce context_length",
        ),
        ({"valid_text": ("gone.txt",)}, "gone.txt: no such file; check the path"),
        ({"text": ("a.en", "gone.txt")}, "gone.txt: no such file; check the path"),
        ({"tokenizer": "chars"}, "tokenizer: no tokenizer kind 'chars'; did you mean 'char'?"),
    ],
)
def test_errors_of_a_generation_recipe(error_line, changes, line):
    recipe = GenerateRecipe(text=("a.en",), tokenizer="char", context_length=32, model=SMALL)
    assert error_line(prepare_generation, recipe, changes) == line


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        *ALL_TASKS,
        ({"model": ODD}, f"model, {ODD_WIDTH.format('encoder')}"),
        (
            {"model": "gpt2"},
            "model: 'gpt2' is not encoder-only; use an encoder-only model, such as 'minilm'",
        ),
        (
            {"model": SMALL | {"max_len": 2}},
            "model, max_len: max_len 2 leaves no position for tokens between [CLS] and [SEP]; "
            "use 3 or more",
        ),
        ({"valid_target": "gone.en"}, "gone.en: no such file; check the path"),
        ({"text": ("gone.txt",), "mlm_steps": 5}, "gone.txt: no such file; check the path"),
    ],
)
def test_errors_of_an_embedding_recipe(error_line, changes, line):
    recipe = EmbedRecipe(
        source="a.zh", target="a.en", valid_source="v.zh", valid_target="v.en", model=SMALL
    )
    assert error_line(prepare_embedding, recipe, changes) == line
