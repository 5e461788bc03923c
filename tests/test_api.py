"""The public names of the package `qkv`: documented, typed, and imported on first use."""

import pydoc
import subprocess
import sys
from pathlib import Path

import pytest

import qkv
from qkv.checkpoint.ctranslate2.export import save_ctranslate2
from qkv.checkpoint.folder import load_model, save_model
from qkv.errors import QkvError
from qkv.model.presets import encoder_decoder, encoder_only, preset
from qkv.model.transformer import Transformer
from qkv.text.train_tokenizer import train_tokenizer

ROOT = Path(__file__).resolve().parents[1]
LETTERS = train_tokenizer("char", ["abcdefgh"], 20)
SIZES = {"vocab_size": LETTERS.vocab_size, "d_model": 16, "layers": 1, "n_heads": 2, "d_ff": 24}
SPECS = {
    "translate": encoder_decoder(**SIZES),
    "generate": preset("llama", **SIZES),
    "embed": encoder_only(**SIZES),
}
CLASSES = {"translate": qkv.Translator, "generate": qkv.Generator, "embed": qkv.Embedder}
WRONG_KIND = {
    "translate": "not a translation model; use an encoder-decoder model with a causal decoder",
    "generate": "not a language model; use a decoder-only model with a causal mask",
    "embed": "not an embedding model; use an encoder-only model",
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """A model folder for each task, and the translator exported to CTranslate2."""
    folder = tmp_path_factory.mktemp("models")
    for task, spec in SPECS.items():
        save_model(folder / task, Transformer(spec), {"tokenizer": LETTERS})
    save_ctranslate2(folder / "ctranslate2", load_model(folder / "translate"))
    return {path.name: path for path in folder.iterdir()}


def error_of(*arguments: object, **settings: object) -> str:
    with pytest.raises(QkvError) as error:
        qkv.load(*arguments, **settings)
    return str(error.value)


def test_the_public_names_are_listed_and_can_be_imported():
    assert dir(qkv) == sorted(qkv.__all__)
    for name in qkv.__all__:
        assert getattr(qkv, name) is not None
    with pytest.raises(AttributeError):
        qkv.no_such_name  # noqa: B018


def test_help_shows_an_example_and_the_arguments():
    text = pydoc.plain(pydoc.render_doc(qkv.load))
    assert 'qkv.load("runs/zh-en", task="translate")' in text
    for argument in ("folder:", "device:", "task:", "int8:"):
        assert argument in text
    assert "import qkv" in qkv.__doc__
    for name in set(qkv.__all__) - {"__version__"}:
        assert getattr(qkv, name).__doc__, name


@pytest.mark.parametrize("task", SPECS)
def test_a_task_gives_its_class_and_rejects_other_models(task, folders):
    assert (
        type(qkv.load(folders[task], task=task)) is type(qkv.load(folders[task])) is CLASSES[task]
    )
    for other in set(SPECS) - {task}:
        assert error_of(folders[other], task=task) == f"{folders[other]}: {WRONG_KIND[task]}"


def test_an_exported_folder_is_checked_too(folders):
    exported = folders["ctranslate2"]
    assert type(qkv.load(exported, task="translate")) is qkv.Translator
    assert error_of(exported, task="embed") == f"{exported}: {WRONG_KIND['embed']}"
    assert error_of(exported, task="generate").startswith(f"{exported}: ")
    wrong = "int8: a CTranslate2 folder keeps the type that it was exported in; omit it"
    assert error_of(exported, int8=True) == wrong


def test_an_unknown_task_is_rejected(folders):
    line = "task: no task 'translation'; did you mean 'translate'?"
    assert error_of(folders["translate"], task="translation") == line


@pytest.mark.native
def test_int8_quantizes_translators_and_generators_only(folders):
    assert qkv.load(folders["translate"], int8=True).backend.int8
    assert qkv.load(folders["generate"], int8=True).backend.int8
    assert (
        error_of(folders["embed"], int8=True) == "int8: embeddings are computed in float32; omit it"
    )


USER_SCRIPT = """import qkv

reveal_type(qkv.load("a", task="translate"))
reveal_type(qkv.load("a", task="generate", int8=True))
reveal_type(qkv.load("a", "cuda", task="embed"))
reveal_type(qkv.load("a"))
qkv.load("a").translate(["b"])
texts: list[str] = qkv.load("a", task="translate")(["b"])
"""


def test_a_type_checker_knows_the_class_of_a_task(tmp_path):
    """Without a task the class is unknown, and using one of them needs a cast."""
    (tmp_path / "user.py").write_text(USER_SCRIPT)
    command = [sys.executable, "-m", "mypy", "--no-error-summary", str(tmp_path / "user.py")]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    lines = [line.partition(": ")[2] for line in output.splitlines()]
    translator, generator, embedder = (
        f"qkv.pipeline.{name.lower()}.{name}" for name in ("Translator", "Generator", "Embedder")
    )
    union = f"{translator} | {generator} | {embedder}"
    revealed = [f'note: Revealed type is "{t}"' for t in (translator, generator, embedder, union)]
    assert lines[:4] == revealed
    assert len(lines) == 6 and all('has no attribute "translate"' in line for line in lines[4:])
