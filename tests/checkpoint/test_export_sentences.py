"""Encoders of ours in sentence-transformers: the same vectors; and what our exports put around a text."""

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
from qkv.text.learn import learn
from qkv.text.pipeline import Choices
from qkv.text.special_tokens import SpecialTokenIds

TEXTS = [
    "The cat sat on the mat.",
    "What is retrieval-augmented generation?",
    "我爱机器学习",
    "Hi",
    "a word " * 60,
]


def trained(folder: Path, kind: str, pooling: dict, **choices) -> Path:
    """A folder as `qkv train embed --set model=minilm` leaves it, with random weights."""
    tokenizer = learn(kind, TEXTS, 300, Choices(**choices))
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
    "kind, choices", [("wordpiece", {"lowercase": True}), ("wordpiece", {}), ("bytes", {})], ids=str
)
@pytest.mark.parametrize("pooling, normalised", [("mean", True), ("cls", False), ("max", True)])
def test_sentence_transformers_gives_the_same_vectors(kind, choices, pooling, normalised, tmp_path):
    ours = trained(
        tmp_path / "ours",
        kind,
        {"pooling": pooling, "normalised": normalised, "max_len": 30},
        **choices,
    )
    assert run(["export", str(ours), "--to", "huggingface", "--out", str(tmp_path / "theirs")]) == 0
    theirs = sentence_transformers.SentenceTransformer(
        str(tmp_path / "theirs"), device="cpu", local_files_only=True
    )
    np.testing.assert_allclose(theirs.encode(TEXTS), Embedder.load(ours)(TEXTS), rtol=0, atol=2e-5)


def test_the_folder_has_sentence_transformers_layout(tmp_path):
    ours = trained(
        tmp_path / "ours", "wordpiece", {"pooling": "mean", "normalised": True, "max_len": 30}
    )
    run(
        [
            "export",
            str(ours),
            "--to",
            "huggingface",
            "--out",
            str(tmp_path / "theirs"),
            "--inputs",
            "0",
        ]
    )
    modules = json.loads((tmp_path / "theirs" / "modules.json").read_text())
    assert [one["path"] for one in modules] == ["", "1_Pooling", "2_Normalize"]
    assert (
        json.loads((tmp_path / "theirs" / "1_Pooling" / "config.json").read_text())[
            "pooling_mode_mean_tokens"
        ]
        is True
    )


def test_a_shape_that_bert_does_not_have_is_refused_by_name(tmp_path):
    tokenizer = learn("wordpiece", TEXTS, 300)
    layer = s.Layer(s.Heads(4, 4, 8, qk_norm=True), s.Dense(48, "relu2"), s.Norm("layer", "pre"))
    model = Transformer(
        s.Spec(
            tokenizer.vocab_size,
            32,
            s.Stack((layer,), "all", True),
            None,
            s.Rotary(),
            None,
            max_len=40,
        )
    )
    save_model(
        tmp_path / "ours", model, {"tokenizer": tokenizer}, {"pooling.json": b'{"pooling": "mean"}'}
    )
    with pytest.raises(QkvError) as error:
        run(
            [
                "export",
                str(tmp_path / "ours"),
                "--to",
                "huggingface",
                "--out",
                str(tmp_path / "theirs"),
            ]
        )
    assert "mixer.qk_norm True" in str(error.value) and str(error.value).endswith(
        "; such a model stays in our own format"
    )
    assert not (tmp_path / "theirs").exists()


# ── What stands around a text, for all kinds of models ───────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    "spec, stored, before, after",
    [
        (encoder_decoder(300, 32, 1, 4, 40), {}, [], ["<eos>"]),
        (decoder_only(300, 32, 1, s.Heads(4, 4, 8), s.Gated(40)), {}, [], []),
        (
            decoder_only(300, 32, 1, s.Heads(4, 4, 8), s.Gated(40)),
            {"generation": SpecialTokenIds(start_id=2, eos_ids=(3,))},
            ["<bos>"],
            [],
        ),
        (encoder_only(300, 32, 1, 4, 40), {}, ["<bos>"], ["<eos>"]),
    ],
    ids=["translator", "language model", "language model that begins", "encoder"],
)
def test_transformers_puts_the_same_tokens_around_a_text_as_we(
    spec, stored, before, after, tmp_path
):
    tokenizer = learn("bytes", TEXTS, 300)
    model = Transformer(replace(spec, vocab_size=tokenizer.vocab_size))
    save_huggingface(
        tmp_path / "out", LoadedModel(model, {"tokenizer": tokenizer}, metadata_of(model), **stored)
    )
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in TEXTS:
        assert theirs(text)["input_ids"] == [
            *map(tokenizer.special_ids.get, before),
            *tokenizer.encode(text),
            *map(tokenizer.special_ids.get, after),
        ]
    again = load_huggingface(tmp_path / "out").tokenizers["tokenizer"]
    assert [again.encode(text) for text in TEXTS] == [tokenizer.encode(text) for text in TEXTS]
