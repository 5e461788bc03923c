"""Weights stored in half precision are computed in float32 on a CPU, whichever command loads the folder."""

from pathlib import Path

import numpy as np
import pytest
import torch

import qkv
from qkv.checkpoint.folder import save_model
from qkv.checkpoint.load import load_folder, widen_halves
from qkv.cli.explore import open_explorer
from qkv.model import spec as s
from qkv.model.presets import decoder_only, encoder_decoder, encoder_only
from qkv.model.transformer import Transformer
from qkv.pipeline import Generator, Translator
from qkv.pipeline.embedder import Embedder
from qkv.text.learn import learn
from qkv.text.tokenizer import Tokenizer

TEXT = "the cat sat on the mat"
FAMILIES = {
    "generator": (
        Generator,
        lambda vocab: decoder_only(vocab, 32, 1, s.Heads(4, 2, 8), s.Gated(48)),
    ),
    "translator": (Translator, lambda vocab: encoder_decoder(vocab, 32, 1, 4, 48)),
    "embedder": (Embedder, lambda vocab: encoder_only(vocab, 32, 1, 4, 48)),
}


def stored(folder: Path, family: str, dtype: torch.dtype) -> tuple[Transformer, Tokenizer]:
    """A folder whose weights are of this type; gives the same weights in float32."""
    torch.manual_seed(0)
    tokenizer = learn("wordpiece" if family == "embedder" else "char", [TEXT] * 3, 60)
    model = Transformer(FAMILIES[family][1](tokenizer.vocab_size)).to(dtype)
    save_model(folder, model, {"tokenizer": tokenizer})
    return model.float().eval(), tokenizer


def dtypes(model: Transformer) -> set[torch.dtype]:
    return {one.dtype for one in [*model.parameters(), *model.buffers()]}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_stored_in_halves_is_computed_in_float32(family, dtype, tmp_path):
    model, tokenizer = stored(tmp_path, family, dtype)
    kind = FAMILIES[family][0]
    for opened in (qkv.load(tmp_path), kind.load(tmp_path), open_explorer(tmp_path).subject):
        assert dtypes(opened.model) == {torch.float32}
    if family == "embedder":
        np.testing.assert_array_equal(kind.load(tmp_path)(TEXT), Embedder(model, tokenizer)(TEXT))
    elif family == "translator":
        for int8 in (False, True):
            ours = Translator.from_model(model, tokenizer, tokenizer, int8=int8)
            assert kind.load(tmp_path, int8=int8)(TEXT, max_length=9) == ours(TEXT, max_length=9)
    else:
        for int8 in (False, True):
            wish = {"max_new_tokens": 9, "temperature": 0}
            assert kind.load(tmp_path, int8=int8)(TEXT, **wish) == Generator.from_model(
                model, tokenizer, int8=int8
            )(TEXT, **wish)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_whole_numbers_stay_as_they_are_stored(dtype, tmp_path):
    stored_model, _ = stored(tmp_path, "generator", dtype)
    assert dtypes(load_folder(tmp_path).model) == {dtype}
    assert dtypes(stored_model) == {torch.float32}


def test_halves_stay_halves_elsewhere_than_on_a_cpu():
    model = Transformer(FAMILIES["generator"][1](60)).to("meta", torch.bfloat16)
    assert dtypes(widen_halves(model)) == {torch.bfloat16}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_fingerprint_of_an_embedder_is_that_of_its_numbers(dtype, tmp_path):
    model, tokenizer = stored(tmp_path, "embedder", dtype)
    whole = Embedder(model, tokenizer).fingerprint
    assert (
        Embedder(model.to(dtype), tokenizer).fingerprint
        == whole
        == Embedder.load(tmp_path).fingerprint
    )
