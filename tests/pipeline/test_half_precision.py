"""Weights stored in half precision are converted to float32 on a CPU by every loader."""

from pathlib import Path

import numpy as np
import pytest
import torch

import qkv
from qkv.checkpoint.folder import save_model
from qkv.checkpoint.load import half_to_float32, load_folder
from qkv.cli.explore import open_explorer
from qkv.model import spec as s
from qkv.model.presets import decoder_only, encoder_decoder, encoder_only
from qkv.model.transformer import Transformer
from qkv.pipeline import Generator, Translator
from qkv.pipeline.embedder import Embedder
from qkv.text.tokenizer import Tokenizer
from qkv.text.train_tokenizer import train_tokenizer

TEXT = "the cat sat on the mat"
FAMILIES = {
    "generator": (
        Generator,
        lambda vocab: decoder_only(vocab, 32, 1, s.Attention(4, 2, 8), s.Gated(48)),
    ),
    "translator": (Translator, lambda vocab: encoder_decoder(vocab, 32, 1, 4, 48)),
    "embedder": (Embedder, lambda vocab: encoder_only(vocab, 32, 1, 4, 48)),
}


def stored(folder: Path, family: str, dtype: torch.dtype) -> tuple[Transformer, Tokenizer]:
    """Write a folder with weights of this dtype; return the model in float32."""
    torch.manual_seed(0)
    tokenizer = train_tokenizer("wordpiece" if family == "embedder" else "char", [TEXT] * 3, 60)
    model = Transformer(FAMILIES[family][1](tokenizer.vocab_size)).to(dtype)
    save_model(folder, model, {"tokenizer": tokenizer})
    return model.float().eval(), tokenizer


def dtypes(model: Transformer) -> set[torch.dtype]:
    return {tensor.dtype for tensor in [*model.parameters(), *model.buffers()]}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_stored_in_half_precision_is_computed_in_float32(family, dtype, tmp_path):
    model, tokenizer = stored(tmp_path, family, dtype)
    kind = FAMILIES[family][0]
    for opened in (qkv.load(tmp_path), kind.load(tmp_path), open_explorer(tmp_path).explored):
        assert dtypes(opened.model) == {torch.float32}
    if family == "embedder":
        np.testing.assert_array_equal(kind.load(tmp_path)(TEXT), Embedder(model, tokenizer)(TEXT))
    elif family == "translator":
        for int8 in (False, True):
            ours = Translator.from_model(model, tokenizer, tokenizer, int8=int8)
            expected = ours(TEXT, max_target_len=9)
            assert kind.load(tmp_path, int8=int8)(TEXT, max_target_len=9) == expected
    else:
        for int8 in (False, True):
            settings = {"max_new_tokens": 9, "temperature": 0}
            assert kind.load(tmp_path, int8=int8)(TEXT, **settings) == Generator.from_model(
                model, tokenizer, int8=int8
            )(TEXT, **settings)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_float32_and_float64_stay_as_stored(dtype, tmp_path):
    stored_model, _ = stored(tmp_path, "generator", dtype)
    assert dtypes(load_folder(tmp_path).model) == {dtype}
    assert dtypes(stored_model) == {torch.float32}


def test_half_precision_stays_on_other_devices():
    model = Transformer(FAMILIES["generator"][1](60)).to("meta", torch.bfloat16)
    assert dtypes(half_to_float32(model)) == {torch.bfloat16}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_fingerprint_does_not_depend_on_the_storage_dtype(dtype, tmp_path):
    model, tokenizer = stored(tmp_path, "embedder", dtype)
    expected = Embedder(model, tokenizer).fingerprint
    assert (
        Embedder(model.to(dtype), tokenizer).fingerprint
        == expected
        == Embedder.load(tmp_path).fingerprint
    )
