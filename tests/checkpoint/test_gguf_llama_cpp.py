"""llama.cpp itself reads our GGUF files: the same logits, the same greedy text, the same tokens."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf_cases import BYTES, SPECS, TEXTS, loaded

from qkv.checkpoint.convert import import_folder
from qkv.checkpoint.folder import load_model
from qkv.checkpoint.gguf.export import export_gguf, save_gguf
from qkv.model import spec as s
from qkv.model.presets import decoder_only
from qkv.model.transformer import Transformer
from qkv.text.files import read_sentencepiece
from qkv.text.learn import learn
from qkv.text.ranks import PATTERNS
from qkv.text.tokenizer import Tokenizer

GELU = 5e-3  # llama.cpp looks GELU up in a table of float16 numbers


def says(
    path: Path, texts: list[str] = TEXTS, ids: list[list[int]] | None = None, steps: int = 20
) -> dict[str, Any]:
    asked = json.dumps({"path": str(path), "texts": texts, "ids": ids or [], "steps": steps})
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("llama_cpp_says.py"))],
        input=asked,
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
    mine, ids = loaded(SPECS[name][0]), torch.randint(4, BYTES.vocab_size, (2, 10))
    save_gguf(tmp_path / "model.gguf", mine)
    theirs = says(tmp_path / "model.gguf", ids=ids.tolist())
    close = GELU if SPECS[name][1] in ("gpt2", "gemma") else 1e-4
    torch.testing.assert_close(
        mine.model.logits(mine.model.decode(ids)),
        torch.tensor(theirs["logits"]),
        rtol=0,
        atol=close,
    )
    assert theirs["greedy"] == greedy(mine.model, ids)
    assert theirs["tokens"] == BYTES.encode_batch(TEXTS)
    assert not theirs["begins"]


def test_stories260k_tells_its_published_story_in_llama_cpp(shared, tmp_path):
    import_folder(shared / "stories260K_hf", tmp_path / "ours", 0)
    published = (shared / "stories260K" / "expected_greedy_200steps.txt").read_text()
    tokenizer = load_model(tmp_path / "ours").tokenizers["tokenizer"]
    for dtype in ("float32", "float16", "int8"):  # the first line survives 8 bits
        _, report = export_gguf(tmp_path / "ours", tmp_path / dtype, 8, dtype)
        theirs = says(tmp_path / dtype, ids=[[1]], steps=60)
        assert (
            report.same
            and theirs["begins"]
            and published.startswith(tokenizer.decode(theirs["greedy"][0]))
        )
        assert theirs["tokens"] == tokenizer.encode_batch(TEXTS)


def test_llamas_pieces_come_out_as_in_sentencepiece(shared, tmp_path):
    import sentencepiece

    path = shared / "llama2_tokenizer" / "tokenizer.model"
    tokenizer = read_sentencepiece(path)
    spec = replace(
        decoder_only(tokenizer.vocab_size, 8, 1, s.Heads(1, 1, 8), s.Gated(8)), max_len=64
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
        says(tmp_path / "model.gguf", texts)["tokens"] == expected == tokenizer.encode_batch(texts)
    )


def test_llama_3s_pattern_cuts_alike(tmp_path):
    plain = learn("bytes", [*TEXTS, *["12345 12345 THEY'LL pay\r\n\r\n"] * 9], BYTES.vocab_size)
    rules = json.loads(plain.core.to_str())
    rules["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {
                "type": "Split",
                "pattern": {"Regex": PATTERNS["cl100k"]},
                "behavior": "Isolated",
                "invert": False,
            },
            {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": True,
                "use_regex": False,
            },
        ],
    }
    rules["model"]["ignore_merges"] = True
    tokenizer = Tokenizer.from_json(json.dumps(rules))
    save_gguf(tmp_path / "model.gguf", loaded(SPECS["llama"][0], tokenizer))
    texts = [*TEXTS, "THEY'LL pay 12345 in 2024\r\n  then\n\n\tgo"]
    assert (
        says(tmp_path / "model.gguf", texts)["tokens"]
        == tokenizer.encode_batch(texts)
        != plain.encode_batch(texts)
    )
