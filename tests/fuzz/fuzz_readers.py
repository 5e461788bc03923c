"""The readers of files from outside: their valid files, their mutation, how they are read."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import small_files
from mutations import (
    Mutation,
    mutate_bytes,
    mutate_json,
    mutate_lines,
    mutate_safetensors,
    mutate_yaml,
)

from qkv.checkpoint.gguf.reader import read_gguf
from qkv.checkpoint.load import load_folder, load_spec
from qkv.checkpoint.loaded_model import read_stored
from qkv.model.model_option import build_spec
from qkv.model.spec_io import from_json, to_json
from qkv.text.files import read_tokenizer
from qkv.text.tokenizer import Tokenizer
from qkv.train.recipe import EmbedRecipe, GenerateRecipe, TranslateRecipe
from qkv.train.recipe_reader import read_recipe
from qkv.train.state import load_state

ROOT = Path(__file__).resolve().parents[2]
RECIPES = {"translate": TranslateRecipe, "generate": GenerateRecipe, "embed": EmbedRecipe}


@dataclass(frozen=True)
class Target:
    """A file that each input replaces, its valid content, and the reader of the file."""

    path: Path
    valid: bytes
    read: Callable[[], object]


def target(path: Path, read: Callable[[Path], object], argument: Path | None = None) -> Target:
    """The target of a file that exists; `read` gets the file, or another argument."""
    return Target(path, path.read_bytes(), lambda: read(argument or path))


@dataclass(frozen=True)
class Reader:
    """A kind of file; `targets` writes valid ones to a new folder."""

    mutate: Mutation
    targets: Callable[[Path], Iterator[Target]]


# ── Readers ──────────────────────────────────────────────────────────────────────────────────────
def read_spec_file(folder: Path) -> None:
    """What is read can be written and is read again as the same spec."""
    spec = load_spec(folder)
    assert from_json(to_json(spec)) == spec


def use_tokenizer(tokenizer: Tokenizer) -> None:
    """A tokenizer that is accepted encodes and decodes, or reports an error."""
    ids = tokenizer.encode("the cat 猫 <s>")
    tokenizer.decode(ids)
    tokenizer.display_tokens(ids)


def use_folder(folder: Path) -> None:
    for tokenizer in load_folder(folder).tokenizers.values():
        use_tokenizer(tokenizer)


def read_any_recipe(kind: str) -> Callable[[Path], object]:
    return lambda path: build_spec(read_recipe(RECIPES[kind], path).model)


# ── Their files ──────────────────────────────────────────────────────────────────────────────────
def spec_targets(folder: Path) -> Iterator[Target]:
    for name, spec in small_files.specs().items():
        (folder / name).mkdir(parents=True)
        (folder / name / "model.json").write_text(to_json(spec))
        yield target(folder / name / "model.json", read_spec_file, folder / name)


def recipe_targets(folder: Path) -> Iterator[Target]:
    folder.mkdir()
    for path in sorted((ROOT / "recipes").glob("*.yaml")):
        content = path.read_text(encoding="utf-8")
        kind = next((kind for kind in RECIPES if f"task: {kind}" in content), "translate")
        options = "".join(line for line in content.splitlines(True) if not line.startswith("task:"))
        (folder / path.name).write_text(options, encoding="utf-8")
        yield target(folder / path.name, read_any_recipe(kind))


def tokenizer_json_targets(folder: Path) -> Iterator[Target]:
    folder.mkdir()
    for kind in small_files.TOKENIZERS:
        small_files.tokenizer(kind).save(folder / f"{kind}.json")
    for path in small_files.tokenizer_files(folder / "others"):
        if path.name != "merges.txt":
            read_tokenizer(path).save(folder / f"{path.parent.name}-{path.stem}.json")
    for path in sorted(folder.glob("*.json")):
        yield target(path, lambda path: use_tokenizer(Tokenizer.load(path)))


def vocabulary_targets(*suffixes: str) -> Callable[[Path], Iterator[Target]]:
    def targets(folder: Path) -> Iterator[Target]:
        for path in small_files.tokenizer_files(folder):
            vocabulary = path.with_name("vocab.json") if path.name == "merges.txt" else path
            if path.name.endswith(suffixes):
                yield target(path, lambda path: use_tokenizer(read_tokenizer(path)), vocabulary)

    return targets


def folder_targets(*names: str) -> Callable[[Path], Iterator[Target]]:
    """These files of qkv model folders; with the manifest if that is one of them."""

    def targets(folder: Path) -> Iterator[Target]:
        for kind in ("seq2seq", "causal-lm", "sentence-encoder"):
            small_files.qkv_folder(folder / kind, kind, manifest="manifest.json" in names)
            for name in names:
                if (folder / kind / name).exists():
                    yield target(folder / kind / name, use_folder, folder / kind)

    return targets


def huggingface_targets(*names: str) -> Callable[[Path], Iterator[Target]]:
    def targets(folder: Path) -> Iterator[Target]:
        for made in small_files.huggingface_folders(folder):
            for name in names:
                if (made / name).exists():
                    yield target(made / name, use_folder, made)

    return targets


def index_targets(folder: Path) -> Iterator[Target]:
    source = next(small_files.huggingface_folders(folder / "source"))
    made = small_files.with_index(source, folder / "sharded")
    yield target(made / "model.safetensors.index.json", load_spec, made)


def checkpoint_targets(*names: str) -> Callable[[Path], Iterator[Target]]:
    def targets(folder: Path) -> Iterator[Target]:
        made = small_files.checkpoint(folder)
        yield from (target(made / name, load_state, made) for name in names)

    return targets


def gguf_targets(folder: Path) -> Iterator[Target]:
    yield from (target(path, read_gguf) for path in small_files.gguf_files(folder))


def stored_targets(folder: Path) -> Iterator[Target]:
    """The JSON files stored with a model, read without the weights."""
    made = small_files.qkv_folder(folder)
    spec = load_spec(made)
    for name in STORED:
        yield target(made / name, lambda made: read_stored(made.joinpath, spec), made)


STORED = ("generation.json", "pooling.json", "alignment.json")
HUGGINGFACE_JSON = ("modules.json", "sentence_bert_config.json", "1_Pooling/config.json")
READERS: dict[str, Reader] = {
    "model.json": Reader(mutate_json, spec_targets),
    "model.json with weights": Reader(mutate_json, folder_targets("model.json")),
    "recipe": Reader(mutate_yaml, recipe_targets),
    "tokenizer.json": Reader(mutate_json, tokenizer_json_targets),
    "vocab.json": Reader(mutate_json, vocabulary_targets("vocab.json")),
    "merges.txt and vocab.txt": Reader(mutate_lines, vocabulary_targets(".txt")),
    "SentencePiece .model": Reader(mutate_bytes, vocabulary_targets(".model")),
    "tiktoken ranks": Reader(mutate_lines, vocabulary_targets(".tiktoken")),
    "generation.json": Reader(mutate_json, stored_targets),
    "safetensors": Reader(mutate_safetensors, folder_targets("model.safetensors")),
    "manifest of a model": Reader(mutate_json, folder_targets("manifest.json")),
    "checkpoint": Reader(mutate_json, checkpoint_targets("manifest.json", "state.json")),
    "checkpoint tensors": Reader(mutate_safetensors, checkpoint_targets("model.safetensors")),
    "config.json": Reader(mutate_json, huggingface_targets("config.json")),
    "generation_config.json": Reader(mutate_json, huggingface_targets("generation_config.json")),
    "modules.json": Reader(mutate_json, huggingface_targets(*HUGGINGFACE_JSON)),
    "safetensors of Hugging Face": Reader(
        mutate_safetensors, huggingface_targets("model.safetensors")
    ),
    "index of shards": Reader(mutate_json, index_targets),
    "GGUF": Reader(mutate_bytes, gguf_targets),
}


def make_targets(name: str, folder: Path) -> list[Target]:
    return list(READERS[name].targets(folder / name.replace(" ", "-")))
