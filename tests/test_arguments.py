"""Wrong arguments of the Python API are refused in one line that says what would be right."""

import numpy as np
import pytest
import torch

import qkv
from qkv.errors import QkvError
from qkv.generate.config import GenerationConfig, TranslationConfig
from qkv.model.presets import encoder_decoder, encoder_only, preset
from qkv.pipeline.embed_options import EmbedOptions
from qkv.pipeline.index import Index
from qkv.text.train_tokenizer import train_tokenizer

LETTERS = train_tokenizer("char", ["abcdefgh"], 20)
SIZES = {"vocab_size": LETTERS.vocab_size, "d_model": 16, "layers": 1, "n_heads": 2, "d_ff": 24}
TRANSLATOR = qkv.Translator.from_model(qkv.Transformer(encoder_decoder(**SIZES)), LETTERS, LETTERS)
GENERATOR = qkv.Generator.from_model(qkv.Transformer(preset("llama", **SIZES)), LETTERS)
EMBEDDER = qkv.Embedder(qkv.Transformer(encoder_only(**SIZES)), LETTERS)
CALLS = {  # by name of the argument
    "texts": [TRANSLATOR, TRANSLATOR.translate, EMBEDDER, EMBEDDER.embed, LETTERS.encode_batch],
    "prompts": [GENERATOR, GENERATOR.generate],
    "text": [LETTERS.encode, TRANSLATOR.encode_source, TRANSLATOR.encode_target],
    "prompt": [GENERATOR.stream, GENERATOR.encode_prompt],
}
ONE_TEXT = ("text", "prompt")  # the others take several
NOT_TEXTS = {
    "None (NoneType)": None,
    "3 (int)": 3,
    "b'abc' (bytes)": b"abc",
    "{'a': 'b'} (dict)": {"a": "b"},
}


def line_of(call, *arguments: object, **settings: object) -> str:
    with pytest.raises(QkvError) as error:
        call(*arguments, **settings)
    return str(error.value)


@pytest.mark.parametrize("displayed", NOT_TEXTS)
@pytest.mark.parametrize("name", CALLS)
def test_what_is_not_text_is_refused(name, displayed):
    right = "give a text (str)" if name in ONE_TEXT else "give a list of texts (str)"
    for call in CALLS[name]:
        assert line_of(call, NOT_TEXTS[displayed]) == f"{name}: cannot be {displayed}; {right}"


@pytest.mark.parametrize("name", ["texts", "prompts"])
def test_each_of_several_texts_must_be_text(name):
    for call in CALLS[name]:
        line = f"{name}[1]: cannot be None (NoneType); give a text (str)"
        assert line_of(call, ["a", None]) == line
        line = f"{name}[0]: cannot be tensor(1) (Tensor); give a text (str)"
        assert line_of(call, torch.tensor([1, 2])) == line


def test_one_text_is_not_a_list_of_its_characters():
    for call in (TRANSLATOR.translate, EMBEDDER.embed, LETTERS.encode_batch):
        line = "texts: cannot be 'abc' (str); give a list of texts (str)"
        assert line_of(call, "abc") == line


def test_a_long_value_is_cut_to_one_line():
    line = line_of(LETTERS.encode, torch.zeros(50, 50))
    assert line == "text: cannot be tensor([[0., 0., 0., ..., 0., 0., 0.], [… (Tensor); " + (
        "give a text (str)"
    )


def test_any_iterable_of_texts_is_accepted():
    texts = ["ab", "c"]
    expected = LETTERS.encode_batch(texts)
    for several in (tuple(texts), iter(texts), np.array(texts)):
        assert LETTERS.encode_batch(several) == expected
    assert (EMBEDDER(np.array(texts)) == EMBEDDER(texts)).all()
    assert TRANSLATOR(tuple(texts), max_target_len=3) == TRANSLATOR(texts, max_target_len=3)


@pytest.mark.parametrize(
    "call, settings, line",
    [
        (TRANSLATOR, {"beam": 3}, "beam: no such setting; did you mean 'beam_size'?"),
        (TRANSLATOR.translate, {"nbest": 3}, "nbest: no such setting; did you mean 'n_best'?"),
        (GENERATOR, {"max_tokens": 3}, "max_tokens: no such setting; "
         "did you mean 'max_new_tokens'?"),
        (GENERATOR.stream, {"topk": 2}, "topk: no such setting; did you mean 'top_k'?"),
        (EMBEDDER, {"batchsize": 3}, "batchsize: no such setting; did you mean 'batch_size'?"),
    ],
)  # fmt: skip
def test_an_unknown_setting_names_the_near_miss(call, settings, line):
    text = "ab" if call is GENERATOR.stream else ["ab"]
    assert line_of(call, text, **settings) == line


@pytest.mark.parametrize(
    "call, kind",
    [
        (TRANSLATOR.translate, "TranslationConfig"),
        (GENERATOR.generate, "GenerationConfig"),
        (EMBEDDER.embed, "EmbedOptions"),
    ],
)
def test_a_dict_of_settings_is_refused(call, kind):
    line = f"config: cannot be {{'beam_size': 2}} (dict); give a {kind}, or its fields by name"
    assert line_of(call, ["ab"], {"beam_size": 2}) == line


@pytest.mark.parametrize(
    "kind, settings, line",
    [
        (GenerationConfig, {"max_new_tokens": 2.5},
         "max_new_tokens: cannot be 2.5 (float); use a whole number"),
        (GenerationConfig, {"n": "2"}, "n: cannot be '2' (str); use a whole number"),
        (GenerationConfig, {"n": True}, "n: cannot be True (bool); use a whole number"),
        (GenerationConfig, {"n": None}, "n: cannot be None (NoneType); use a whole number"),
        (GenerationConfig, {"seed": 1.0}, "seed: cannot be 1.0 (float); use a whole number"),
        (GenerationConfig, {"temperature": "0"}, "temperature: cannot be '0' (str); use a number"),
        (GenerationConfig, {"top_p": True}, "top_p: cannot be True (bool); use a number"),
        (GenerationConfig, {"stop": 5}, "stop: cannot be 5 (int); use a str or a list of str"),
        (GenerationConfig, {"stop": ["a", 5]},
         "stop: cannot be ('a', 5) (tuple); use a str or a list of str"),
        (GenerationConfig, {"suppress_tokens": 5},
         "suppress_tokens: cannot be 5 (int); use a list of whole numbers"),
        (GenerationConfig, {"stop_token_ids": [1.5]},
         "stop_token_ids: cannot be (1.5,) (tuple); use a list of whole numbers"),
        (TranslationConfig, {"beam_size": 2.0},
         "beam_size: cannot be 2.0 (float); use a whole number"),
        (TranslationConfig, {"length_penalty": True},
         "length_penalty: cannot be True (bool); use a number"),
        (TranslationConfig, {"alignment": "yes"},
         "alignment: cannot be 'yes' (str); use True or False"),
        (EmbedOptions, {"dimensions": 8.0}, "dimensions: cannot be 8.0 (float); "
         "use a whole number"),
        (EmbedOptions, {"normalize": 1}, "normalize: cannot be 1 (int); use True or False"),
        (EmbedOptions, {"pooling": 1}, "pooling: cannot be 1 (int); use a str"),
    ],
)  # fmt: skip
def test_settings_of_another_type_are_refused(kind, settings, line):
    assert line_of(kind, **settings) == line


def test_numbers_of_numpy_and_lists_are_accepted():
    config = GenerationConfig(top_k=np.int64(3), top_p=np.float32(0.5), stop_token_ids=[1, 2])
    assert config == GenerationConfig(top_k=3, top_p=0.5, stop_token_ids=(1, 2))
    assert type(config.top_k) is int and type(config.top_p) is float


def test_a_search_checks_queries_and_k(tmp_path):
    (tmp_path / "lines.txt").write_text("ab\ncd\n")
    index = Index.open(EMBEDDER, tmp_path / "lines.txt")
    line = "queries: cannot be 'ab' (str); give a list of texts (str)"
    assert line_of(index.search, "ab") == line
    assert line_of(index.search, ["ab"], k=1.5) == "k: cannot be 1.5 (float); use a whole number"
    assert [hit.text for hit in index.search(["ab"], k=np.int64(1))[0]] == ["ab"]
