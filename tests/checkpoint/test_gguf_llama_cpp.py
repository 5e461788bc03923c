"""llama.cpp computes the same logits, greedy text and tokens from exported GGUF files."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf_cases import BYTES, SPECS, TEXTS, like_llama_3, loaded

from qkv.checkpoint.convert import import_folder
from qkv.checkpoint.folder import load_model
from qkv.checkpoint.gguf.export import export_gguf, save_gguf
from qkv.model import spec as s
from qkv.model.presets import decoder_only
from qkv.model.transformer import Transformer
from qkv.text.files import read_sentencepiece
from qkv.text.train_tokenizer import train_tokenizer

GELU_TOLERANCE = 5e-3  # llama.cpp computes GELU by a float16 lookup table


def run_llama_cpp(
    path: Path, texts: list[str] = TEXTS, ids: list[list[int]] | None = None, steps: int = 20
) -> dict[str, Any]:
    request = json.dumps({"path": str(path), "texts": texts, "ids": ids or [], "steps": steps})
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("llama_cpp_reference.py"))],
        input=request,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-1_000:]
    return json.loads(done.stdout)


@torch.no_grad()
def greedy(model: Transformer, ids: torch.Tensor, steps: int = 20) -> list[list[int]]:
    for _ in range(steps):
        ids = torch.cat([ids, model.logits(model.decode(ids))[:, -1:].argmax(dim=-1)], dim=1)
    return ids[:, -steps:].tolist()


@pytest.mark.parametrize("name", SPECS)
@torch.no_grad()
def test_logits_greedy_text_and_tokens_equal_llama_cpp(name, tmp_path):
    native, ids = loaded(SPECS[name][0]), torch.randint(4, BYTES.vocab_size, (2, 10))
    save_gguf(tmp_path / "model.gguf", native)
    result = run_llama_cpp(tmp_path / "model.gguf", ids=ids.tolist())
    atol = GELU_TOLERANCE if SPECS[name][1] in ("gpt2", "gemma") else 1e-4
    torch.testing.assert_close(
        native.model.logits(native.model.decode(ids)),
        torch.tensor(result["logits"]),
        rtol=0,
        atol=atol,
    )
    assert result["greedy"] == greedy(native.model, ids)
    assert result["tokens"] == BYTES.encode_batch(TEXTS)
    assert not result["add_bos"]


def test_stories260k_generates_its_published_text_in_llama_cpp(shared, tmp_path):
    import_folder(shared / "stories260K_hf", tmp_path / "native", 0)
    published = (shared / "stories260K" / "expected_greedy_200steps.txt").read_text()
    tokenizer = load_model(tmp_path / "native").tokenizers["tokenizer"]
    for dtype in ("float32", "float16", "int8"):  # int8 does not change the first line
        _, report = export_gguf(tmp_path / "native", tmp_path / dtype, 8, dtype)
        result = run_llama_cpp(tmp_path / dtype, ids=[[1]], steps=60)
        assert (
            report.same
            and result["add_bos"]
            and published.startswith(tokenizer.decode(result["greedy"][0]))
        )
        assert result["tokens"] == tokenizer.encode_batch(TEXTS)


def test_llama_2_tokens_equal_sentencepiece(shared, tmp_path):
    import sentencepiece

    path = shared / "llama2_tokenizer" / "tokenizer.model"
    tokenizer = read_sentencepiece(path)
    spec = replace(
        decoder_only(tokenizer.vocab_size, 8, 1, s.Attention(1, 1, 8), s.Gated(8)), max_len=64
    )
    save_gguf(tmp_path / "model.gguf", loaded(spec, tokenizer))
    texts = [
        *TEXTS,
        " " * 23 + "x" + " " * 7,
        "\u4e2d\U00020bb7\u0001",
        "def f(x):\n        return x\n",
    ]
    expected = sentencepiece.SentencePieceProcessor(str(path)).Encode(texts)
    assert (
        run_llama_cpp(tmp_path / "model.gguf", texts)["tokens"]
        == expected
        == tokenizer.encode_batch(texts)
    )


def test_the_pre_tokenization_of_llama_3_is_the_same(tmp_path):
    plain = train_tokenizer(
        "byte_bpe", [*TEXTS, *["12345 12345 THEY'LL pay\r\n\r\n"] * 9], BYTES.vocab_size
    )
    tokenizer = like_llama_3(plain)
    save_gguf(tmp_path / "model.gguf", loaded(SPECS["llama"][0], tokenizer))
    texts = [*TEXTS, "THEY'LL pay 12345 in 2024\r\n  then\n\n\tgo"]
    assert (
        run_llama_cpp(tmp_path / "model.gguf", texts)["tokens"]
        == tokenizer.encode_batch(texts)
        != plain.encode_batch(texts)
    )
