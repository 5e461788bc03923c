"""Exported encoders in sentence-transformers: the same vectors and special tokens."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sentence_transformers
import torch
import transformers

from qkv.checkpoint.folder import save_model
from qkv.checkpoint.huggingface.export import save_huggingface
from qkv.checkpoint.huggingface.reader import load_huggingface
from qkv.checkpoint.loaded_model import LoadedModel, metadata_of
from qkv.cli.app import run
from qkv.errors import QkvError
from qkv.model import spec as s
from qkv.model.presets import decoder_only, encoder_decoder, encoder_only
from qkv.model.transformer import Transformer
from qkv.pipeline.embedder import Embedder
from qkv.text.normalization import TokenizerOptions
from qkv.text.special_tokens import SpecialTokenIds
from qkv.text.train_tokenizer import train_tokenizer

TEXTS = [
    "The cat sat on the mat.",
    "What is retrieval-augmented generation?",
    "我爱机器学习",
    "Hi",
    "a word " * 60,
]


def trained(folder: Path, kind: str, pooling: dict, **options) -> Path:
    """A folder as written by `qkv train embed --set model=minilm`, with random weights."""
    tokenizer = train_tokenizer(kind, TEXTS, 300, TokenizerOptions(**options))
    torch.manual_seed(2)
    model = Transformer(
        replace(encoder_only(tokenizer.vocab_size, 32, 2, 4, 48), head=None, max_len=40)
    ).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.3)
    save_model(
        folder, model, {"tokenizer": tokenizer}, {"pooling.json": json.dumps(pooling).encode()}
    )
    return folder


@pytest.mark.parametrize(
    "kind, options",
    [("wordpiece", {"lowercase": True}), ("wordpiece", {}), ("byte_bpe", {})],
    ids=str,
)
@pytest.mark.parametrize("pooling, normalize", [("mean", True), ("cls", False), ("max", True)])
def test_sentence_transformers_gives_the_same_vectors(kind, options, pooling, normalize, tmp_path):
    native = trained(
        tmp_path / "native",
        kind,
        {"pooling": pooling, "normalised": normalize, "max_len": 30},
        **options,
    )
    assert (
        run(["export", str(native), "--to", "huggingface", "--out", str(tmp_path / "exported")])
        == 0
    )
    reference = sentence_transformers.SentenceTransformer(
        str(tmp_path / "exported"), device="cpu", local_files_only=True
    )
    np.testing.assert_allclose(
        reference.encode(TEXTS), Embedder.load(native)(TEXTS), rtol=0, atol=2e-5
    )


def test_the_folder_has_the_sentence_transformers_layout(tmp_path):
    native = trained(
        tmp_path / "native", "wordpiece", {"pooling": "mean", "normalised": True, "max_len": 30}
    )
    run(
        [
            "export",
            str(native),
            "--to",
            "huggingface",
            "--out",
            str(tmp_path / "exported"),
            "--inputs",
            "0",
        ]
    )
    modules = json.loads((tmp_path / "exported" / "modules.json").read_text())
    assert [module["path"] for module in modules] == ["", "1_Pooling", "2_Normalize"]
    assert (
        json.loads((tmp_path / "exported" / "1_Pooling" / "config.json").read_text())[
            "pooling_mode_mean_tokens"
        ]
        is True
    )


def test_unsupported_parts_are_named(tmp_path):
    tokenizer = train_tokenizer("wordpiece", TEXTS, 300)
    layer = s.Layer(
        s.Attention(4, 4, 8, qk_norm=True), s.Dense(48, "relu2"), s.Norm("layer", "pre")
    )
    model = Transformer(
        s.Spec(
            tokenizer.vocab_size,
            32,
            s.Stack((layer,), final_norm=True),
            None,
            s.Rotary(),
            None,
            max_len=40,
        )
    )
    save_model(
        tmp_path / "native",
        model,
        {"tokenizer": tokenizer},
        {"pooling.json": b'{"pooling": "mean"}'},
    )
    with pytest.raises(QkvError) as error:
        run(
            [
                "export",
                str(tmp_path / "native"),
                "--to",
                "huggingface",
                "--out",
                str(tmp_path / "exported"),
            ]
        )
    assert "mixer.qk_norm True" in str(error.value) and str(error.value).endswith(
        "; keep this model in the qkv format"
    )
    assert not (tmp_path / "exported").exists()


# ── Special tokens, for all kinds of models ─────────────────────────────────────────────────────
@pytest.mark.parametrize(
    "spec, stored, before, after",
    [
        (encoder_decoder(300, 32, 1, 4, 40), {}, [], ["<eos>"]),
        (decoder_only(300, 32, 1, s.Attention(4, 4, 8), s.Gated(40)), {}, [], []),
        (
            decoder_only(300, 32, 1, s.Attention(4, 4, 8), s.Gated(40)),
            {"generation": SpecialTokenIds(start_id=2, eos_ids=(3,))},
            ["<bos>"],
            [],
        ),
        (encoder_only(300, 32, 1, 4, 40), {}, ["<bos>"], ["<eos>"]),
    ],
    ids=["translator", "language model", "language model with a start token", "encoder"],
)
def test_transformers_adds_the_same_special_tokens(spec, stored, before, after, tmp_path):
    tokenizer = train_tokenizer("byte_bpe", TEXTS, 300)
    model = Transformer(replace(spec, vocab_size=tokenizer.vocab_size))
    save_huggingface(
        tmp_path / "out", LoadedModel(model, {"tokenizer": tokenizer}, metadata_of(model), **stored)
    )
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in TEXTS:
        assert reference(text)["input_ids"] == [
            *map(tokenizer.special_ids.get, before),
            *tokenizer.encode(text),
            *map(tokenizer.special_ids.get, after),
        ]
    again = load_huggingface(tmp_path / "out").tokenizers["tokenizer"]
    assert [again.encode(text) for text in TEXTS] == [tokenizer.encode(text) for text in TEXTS]
