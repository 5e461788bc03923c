"""CONTRIBUTING.md lists the files that run for `qkv translate`, in order.

`python tests/test_call_path.py` prints the current lists.
"""

import re
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

import pytest
import torch

import qkv
from qkv.cli.app import run
from qkv.model.presets import encoder_decoder
from qkv.model.spec import Spec
from qkv.model.transformer import Transformer
from qkv.pipeline import Translator
from qkv.text.train_tokenizer import train_tokenizer

PACKAGE = str(Path(qkv.__file__).parent)
CONTRIBUTING = Path(__file__).resolve().parents[1] / "CONTRIBUTING.md"
EXCLUDED = {"messages.py", "errors.py", "threads.py"}  # called from all files


def small_spec(vocab_size: int) -> Spec:
    return replace(
        encoder_decoder(vocab_size, 16, layers=1, n_heads=2, d_ff=32, dropout=0.0), max_len=40
    )


def windowed(spec: Spec) -> Spec:
    """The engine does not support sliding windows: such a model decodes with its forward method."""
    layer = spec.decoder.layers[0]
    layers = (replace(layer, mixer=replace(layer.mixer, window=4)),)
    return replace(spec, decoder=replace(spec.decoder, layers=layers))


SPECS = {"engine": small_spec, "plain model": lambda vocab_size: windowed(small_spec(vocab_size))}


def call_path(folder: Path, name: str) -> list[str]:
    """The files of qkv in the order of their first function call in `qkv translate`."""
    torch.manual_seed(1)
    tokenizer = train_tokenizer("char", ["一二三四五"], 16)
    Translator.from_model(
        Transformer(SPECS[name](tokenizer.vocab_size)), tokenizer, tokenizer
    ).save(folder)
    files: dict[str, None] = {}

    def record(frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if (
            event == "call"
            and code.co_filename.startswith(PACKAGE)
            and code.co_flags & 2
            and code.co_name != "<module>"
        ):
            files.setdefault(code.co_filename[len(PACKAGE) + 1 :])

    command = ["translate", str(folder), "一二三", "--max-target-len", "8"]
    run(command)  # first run: imports modules and builds the native library
    sys.setprofile(record)
    try:
        run(command)
    finally:
        sys.setprofile(None)
    return [file for file in files if file not in EXCLUDED]


def listed(name: str) -> list[str]:
    """The files in one of the lists of CONTRIBUTING.md."""
    text = CONTRIBUTING.read_text(encoding="utf-8")
    (block,) = re.findall(rf"<!-- call path: {name} -->\n```text\n(.*?)```", text, re.DOTALL)
    return [line.split()[0] for line in block.splitlines() if line.strip()]


@pytest.mark.native
@pytest.mark.parametrize("name", SPECS)
def test_contributing_lists_the_files_that_run(tmp_path, name):
    assert listed("load") + listed(name) == call_path(tmp_path / "model", name)


if __name__ == "__main__":
    for name in SPECS:
        with TemporaryDirectory() as scratch:
            print(
                f"<!-- call path: {name} -->", *call_path(Path(scratch) / "model", name), sep="\n"
            )
