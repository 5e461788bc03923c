"""A FIFO or a device in the place of a file of a model folder is refused at once, in one line."""

import os
import runpy
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.checkpoint.convert import export_folder
from qkv.checkpoint.ctranslate2.export import save_ctranslate2
from qkv.checkpoint.folder import load_model
from qkv.model.presets import encoder_decoder, encoder_only, preset
from qkv.model.transformer import Transformer
from qkv.pipeline import Embedder, Generator, Translator
from qkv.text.train_tokenizer import train_tokenizer

FORKED = runpy.run_path(str(Path(__file__).with_name("forked_commands.py")))
COMMANDS = {  # by model folder; an error of the first must come before the second is needed
    "translator": ["translate {folder} abc", "export {folder} --to gguf --inputs 0 --out {new}"],
    "generator": ["generate {folder} abc", "check {folder}"],
    "embedder": ["embed {folder} {data}/a.txt"],
    "hf_translator": ["translate {folder} abc"],
    "hf_generator": ["import {folder} --inputs 0 --out {new}"],
    "hf_embedder": ["search {folder} {data}/a.txt abc"],
    "ctranslate2": ["translate {folder} abc --engine ctranslate2"],
    "index": ["search {data}/embedder {data}/a.txt abc --index {folder}"],
}
# Not read, or not needed.
UNUSED = {"README.md", "tokenizer_config.json", "config_sentence_transformers.json"}
MODULES = (
    "qkv.check.invariants",
    "qkv.checkpoint.convert",
    "qkv.cli.translate",
    "qkv.pipeline.generator",
    "qkv.pipeline.index",
)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A folder of every kind, untrained."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    letters = train_tokenizer("char", ["abc de"], 20)
    sizes = {"vocab_size": letters.vocab_size, "d_model": 16, "layers": 1, "n_heads": 2, "d_ff": 24}
    translator = Transformer(encoder_decoder(**sizes))
    Translator.from_model(translator, letters, letters).save(folder / "translator")
    Generator.from_model(Transformer(preset("llama", **sizes)), letters).save(folder / "generator")
    Embedder(Transformer(encoder_only(**sizes)), letters).save(folder / "embedder")
    for name in ("translator", "generator", "embedder"):
        export_folder(folder / name, folder / f"hf_{name}", 0)
    save_ctranslate2(folder / "ctranslate2", load_model(folder / "translator"))
    (folder / "a.txt").write_text("abc\nde\n")
    return folder


@pytest.fixture(scope="module")
def run_all() -> Iterator[Any]:
    with FORKED["ForkedCommands"](*MODULES) as forked:
        yield forked.run


def link_to_zero(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("make", [os.mkfifo, link_to_zero])
def test_a_special_file_is_refused_at_once(
    name: str, make: Callable[[Path], None], data, run_all, tmp_path
):
    if name == "index":
        words = COMMANDS[name][0].format(data=data, folder=data / "index").split()
        assert run_all([{"arguments": words}])[0][1]["code"] == 0
    files = [path.relative_to(data / name) for path in (data / name).rglob("*") if path.is_file()]
    cases = []
    for number, file in enumerate(path for path in files if path.name not in UNUSED):
        folder = Path(shutil.copytree(data / name, tmp_path / f"{number}"))
        (folder / file).unlink()
        make(folder / file)
        names = {"data": data, "folder": folder, "new": tmp_path / f"new{number}"}
        cases += [{"arguments": text.format(**names).split()} for text in COMMANDS[name]]
    assert len(cases) >= 2
    for arguments, result in run_all(cases):  # SIGALRM, code -14, ends a command that waits
        assert (result["code"], result["stdout"]) == (2, ""), (arguments, result)
        assert result["stderr"].count("\n") == 1, (arguments, result)
