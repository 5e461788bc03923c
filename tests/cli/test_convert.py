"""`qkv import` and `qkv export` convert and compare; a mismatch exits with 1."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from qkv.checkpoint import convert, parity
from qkv.checkpoint.load import load_folder
from qkv.cli.app import run
from qkv.errors import QkvError
from qkv.messages import set_language
from qkv.pipeline import Translator


@pytest.fixture
def stories(shared) -> Path:
    return shared / "stories260K_hf"


def export(folder: Path, *options: str) -> int:
    """Export folder/ours to folder/theirs in Hugging Face format."""
    ours, theirs = str(folder / "ours"), str(folder / "theirs")
    return run(["export", ours, "--to", "huggingface", "--out", theirs, *options])


def test_import_and_export_print_the_comparison(stories, tmp_path, capsys):
    assert run(["import", str(stories), "--out", str(tmp_path / "ours")]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == f"{tmp_path}/ours: llama, 260,032 parameters, float32"
    assert out[1].startswith("✓ compared with transformers 5.")
    assert out[2].endswith("same greedy output: 8/8")
    assert any(line.startswith("  model.safetensors  1,045,056  sha256 ") for line in out)
    assert export(tmp_path, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (
        report["metadata"]["family"] == "llama"
        and report["report"]["same"]
        and report["report"]["max_difference"] < 1e-4
    )
    assert set(report["report"]["files"]) == {
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_special_tokens_of_an_import_survive_a_round_trip(stories, tmp_path, capsys):
    run(["import", str(stories), "--out", str(tmp_path / "ours"), "--inputs", "0"])
    assert capsys.readouterr().out.splitlines()[1] == "– not compared (--inputs 0)"
    assert json.loads((tmp_path / "ours" / "generation.json").read_text()) == {
        "start_id": 1,
        "eos_ids": [2],
    }
    export(tmp_path, "--inputs", "0")
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"]) == (1, 2)


def test_a_mismatch_exits_with_1_in_both_languages(stories, tmp_path, capsys, monkeypatch):
    original = load_folder

    def load_changed(*arguments, **options):
        loaded = original(*arguments, **options)
        loaded.model.embed.weight.data[5] += 1
        return loaded

    monkeypatch.setattr(convert, "load_folder", load_changed)  # as if a weight had changed
    assert run(["import", str(stories), "--out", str(tmp_path / "ours")]) == 1
    assert "✗ compared with transformers" in capsys.readouterr().out
    set_language("zh")
    try:
        assert run(["import", str(stories), "--out", str(tmp_path / "other")]) == 1
    finally:
        set_language("en")
    assert "✗ 对照：transformers" in capsys.readouterr().out


def test_without_transformers_the_files_are_read_again(stories, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(parity, "has_transformers", lambda: False)
    assert run(["import", str(stories), "--out", str(tmp_path / "ours")]) == 0
    assert (
        "✓ compared with the same files, read again (transformers is not installed)"
        in capsys.readouterr().out
    )


def test_an_unknown_format_is_rejected_with_the_known_ones(digits, tmp_path):
    with pytest.raises(QkvError) as error:
        run(["export", str(digits), "--to", "onnx", "--out", str(tmp_path / "x")])
    assert str(error.value) == "--to: no format 'onnx'; choose from huggingface, ctranslate2, gguf"


def test_an_import_never_overwrites(stories, digits):
    with pytest.raises(QkvError) as error:
        run(["import", str(stories), "--out", str(digits)])
    assert str(error.value) == f"{digits}: already exists; choose another --out"


def test_an_error_is_one_line_and_exit_code_2(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "qkv", "import", str(tmp_path), "--out", str(tmp_path / "x")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == f"{tmp_path}: no model.safetensors; is the download complete?\n"


def test_an_exported_translator_gives_the_same_output_in_transformers(
    digits, digit_pairs, tmp_path
):
    """Marian does not interleave sines and cosines: the export permutes the dimensions."""
    import transformers

    run(["export", str(digits), "--to", "huggingface", "--out", str(tmp_path / "marian")])
    marian = transformers.MarianMTModel.from_pretrained(tmp_path / "marian").eval()
    translator = Translator.load(digits)
    texts = [pair[0] for pair in digit_pairs(30, seed=999)]
    rows = [
        torch.tensor([*translator.source.encode(text), translator.source.eos_id]) for text in texts
    ]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=translator.pad)
    mask = torch.arange(ids.shape[1])[None] < torch.tensor([len(row) for row in rows])[:, None]
    output = marian.generate(
        ids,
        attention_mask=mask.long(),
        max_new_tokens=30,
        num_beams=1,
        do_sample=False,
        bad_words_ids=None,
    )
    assert translator.target.decode_batch(output.tolist()) == translator(texts, beam_size=1)
