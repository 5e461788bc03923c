"""The scripts of examples/ run as written, outside the repository, with few steps."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import qkv
from qkv.data.builtin import builtin_pairs
from qkv.errors import QkvError
from qkv.pipeline import Generator
from qkv.text.train_tokenizer import train_tokenizer

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
TEXT = "".join(f"{pair.target}\n" for pair in builtin_pairs()[0][:500])


def run(name: str, folder: Path, *arguments: object) -> str:
    """The output of an example in `folder`."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "QKV_LANG": "en"}
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / name, *map(str, arguments)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return done.stdout


@pytest.fixture(scope="module")
def language_model(tmp_path_factory) -> Path:
    """A folder of a decoder-only model with random weights."""
    folder = tmp_path_factory.mktemp("examples") / "model"
    tokenizer = train_tokenizer("byte_bpe", TEXT.splitlines(), 400)
    spec = qkv.preset("lm-0.3m", vocab_size=tokenizer.vocab_size)
    Generator.from_model(qkv.Transformer(spec), tokenizer).save(folder)
    return folder


def test_every_example_is_short_and_tested():
    here = Path(__file__).read_text(encoding="utf-8")
    for script in SCRIPTS:
        assert f'"{script.name}"' in here
        assert len(script.read_text(encoding="utf-8").splitlines()) < 40


def test_training_on_pairs_in_memory(tmp_path):
    output = run("train_in_memory.py", tmp_path, 20)
    assert re.search(r"^step 20: loss [\d.]+$", output, re.M)
    assert output.count("(reference: ") == 5
    assert isinstance(qkv.load(tmp_path / "runs" / "in-memory"), qkv.Translator)


def test_a_custom_position_encoding(tmp_path):
    output = run("custom_positions.py", tmp_path, 20)
    rows = re.findall(r"^(.*) = (.*)   \(reference: .+\)$", output, re.M)
    assert len(rows) == 5 and all(loaded == trained for loaded, trained in rows)
    with pytest.raises(QkvError) as error:
        qkv.load(tmp_path / "runs" / "custom")
    assert str(error.value).startswith("custom_positions:BinaryPositions: a custom part, which ")


def test_attention_maps_of_an_imported_model(tmp_path, shared):
    output = run("attention_maps.py", tmp_path, shared / "stories260K_hf", "Once upon a time")
    for layer in range(5):
        assert f"decoder.layers.{layer}.attn.branch.core.weights (1, 8, " in output
    assert (tmp_path / "attention.png").read_bytes().startswith(b"\x89PNG")


def test_an_exported_model_has_the_logits_of_transformers(tmp_path, language_model):
    output = run("export_to_transformers.py", tmp_path, language_model, tmp_path / "exported")
    ours, theirs = re.findall(r"^ids of \w+: +(\[.*\])$", output, re.M)
    assert ours == theirs
    assert float(output.rpartition(": ")[2]) < 1e-4


def test_search_in_a_vector_index(tmp_path):
    output = run("vector_index.py", tmp_path, 4)
    assert len(re.findall(r"^\S+   -?\d\.\d{3}   line \d+: .+$", output, re.M)) == 6


def test_a_training_loop_from_scratch(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    output = run("training_loop.py", tmp_path, tmp_path / "text.txt", 100)
    first, last = (float(loss) for loss in re.findall(r"loss ([\d.]+)", output))
    assert last < first < 4
