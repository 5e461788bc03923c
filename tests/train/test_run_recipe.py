"""qkv.train.run: data in memory trains the same model as the same data in files."""

import hashlib
import json
import signal
from dataclasses import replace

import pytest

import qkv
from qkv.data.builtin import builtin_pairs
from qkv.errors import QkvError
from qkv.train import EmbedRecipe, GenerateRecipe, TrainingStep, TranslateRecipe, run

MODEL = {"layers": 1, "d_model": 16, "n_heads": 2, "d_ff": 32, "max_len": 64}
COMMON = {"model": MODEL, "steps": 4, "save_every": 4, "validate_every": 4, "threads": 1}
TRANSLATE = TranslateRecipe(**COMMON, vocab_size=400, batch_tokens=400)
GENERATE = GenerateRecipe(**COMMON, tokenizer="char", context_length=16, batch_tokens=64)
EMBED = EmbedRecipe(**COMMON, tokenizer="char", batch_groups=8)
PAIRS = [(pair.source, pair.target) for pair in builtin_pairs()[0][:300]]
HELD_OUT = [(pair.source, pair.target) for pair in builtin_pairs()[1][:12]]
TEXTS = [source for source, _ in PAIRS]


def weights(folder) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def write_lines(path, lines) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def write_pairs(path, pairs) -> str:
    return write_lines(path, ["\t".join(pair) for pair in pairs])


def test_pairs_in_memory_train_the_model_of_the_same_files(tmp_path):
    sources, targets = zip(*PAIRS, strict=True)
    files = {"source": write_lines(tmp_path / "a.zh", sources)}
    files["target"] = write_lines(tmp_path / "a.en", targets)
    run(replace(TRANSLATE, **files), out=tmp_path / "files")
    steps: list[TrainingStep] = []
    translator = run(TRANSLATE, PAIRS, out=tmp_path / "memory", on_step=steps.append)
    assert weights(tmp_path / "memory") == weights(tmp_path / "files")
    assert type(translator) is qkv.Translator
    assert [step.step for step in steps] == [1, 2, 3, 4] and steps[0].loss > steps[-1].loss > 0
    assert (tmp_path / "memory" / "README.md").is_file()  # the model card


def test_held_out_pairs_in_memory_are_those_of_a_file(tmp_path):
    files = {"source": write_pairs(tmp_path / "train.tsv", PAIRS)}
    files["valid_source"] = write_pairs(tmp_path / "valid.tsv", HELD_OUT)
    run(replace(TRANSLATE, **files), out=tmp_path / "files")
    run(TRANSLATE, iter(PAIRS), valid=iter(HELD_OUT), out=tmp_path / "memory")
    assert weights(tmp_path / "memory") == weights(tmp_path / "files")


def test_texts_in_memory_train_the_model_of_the_same_file(tmp_path):
    lines = [json.dumps({"text": text}) for text in TEXTS]
    path = write_lines(tmp_path / "texts.jsonl", lines)
    run(replace(GENERATE, text=(path,)), out=tmp_path / "files")
    generator = run(GENERATE, TEXTS, out=tmp_path / "memory")
    assert weights(tmp_path / "memory") == weights(tmp_path / "files")
    assert type(generator) is qkv.Generator


def test_groups_in_memory_train_the_model_of_the_same_file(tmp_path):
    run(replace(EMBED, pairs=write_pairs(tmp_path / "a.tsv", PAIRS)), out=tmp_path / "files")
    embedder = run(EMBED, PAIRS, out=tmp_path / "memory")
    assert weights(tmp_path / "memory") == weights(tmp_path / "files")
    assert type(embedder) is qkv.Embedder


def test_an_interrupted_run_is_resumed(tmp_path):
    run(TRANSLATE, PAIRS, out=tmp_path / "whole")

    def interrupt(step: TrainingStep) -> None:
        if step.step == 2:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(TRANSLATE, PAIRS, out=tmp_path / "run", on_step=interrupt)
    run(TRANSLATE, PAIRS, out=tmp_path / "run", resume=True)
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")


PAIR_RIGHT = "give (source, target) pairs of texts"


@pytest.mark.parametrize(
    "recipe, settings, line",
    [
        (TRANSLATE, {"data": [("a", "b"), "ab"]}, f"data[1]: cannot be 'ab'; {PAIR_RIGHT}"),
        (TRANSLATE, {"data": [("a", 1)]}, f"data[0]: cannot be ('a', 1); {PAIR_RIGHT}"),
        (TRANSLATE, {"data": PAIRS, "valid": [None]}, f"valid[0]: cannot be None; {PAIR_RIGHT}"),
        (GENERATE, {"data": [b"a"]}, "data[0]: cannot be b'a'; give texts"),
        (
            EMBED,
            {"data": [("a",)]},
            "data[0]: cannot be ('a',); give groups of two or more texts with the same meaning",
        ),
        (TRANSLATE, {"valid": HELD_OUT}, "data: valid is given without data; give both"),
        (
            replace(TRANSLATE, source="a.zh", target="a.en"),
            {"data": PAIRS},
            "data: the recipe names files too (source, target); give one of them",
        ),
        (
            {"steps": 4},
            {"data": PAIRS},
            "recipe: cannot be {'steps': 4}; use a TranslateRecipe, GenerateRecipe or EmbedRecipe",
        ),
        (
            replace(TRANSLATE, steps=2.5),
            {"data": PAIRS},
            "recipe: steps cannot be 2.5; use a whole number",
        ),
    ],
)
def test_wrong_arguments_are_rejected_before_anything_is_trained(recipe, settings, line, tmp_path):
    with pytest.raises(QkvError) as error:
        run(recipe, out=tmp_path / "run", **settings)
    assert str(error.value) == line
    assert not (tmp_path / "run" / "model.json").exists()
