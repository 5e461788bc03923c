"""Files of commit 02a4b1a are read and give the same results.

They are in tests/fixtures/v0 and were written by tests/fixtures/write_v0.py.
"""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

import qkv
from qkv.checkpoint.folder import load_model
from qkv.cli.app import run
from qkv.generate.config import TranslationConfig
from qkv.generate.decode import forced_log_probs
from qkv.model.presets import RENAMED, preset
from qkv.model.spec_io import from_json
from qkv.model.transformer import Transformer
from qkv.text.tokenizer import Tokenizer
from qkv.train.recipe import EmbedRecipe, GenerateRecipe, TranslateRecipe
from qkv.train.recipe_reader import OLD_OPTIONS, read_recipe, rename_old
from qkv.train.state import load_state, save_state
from qkv.train.task_specs import embedding_spec, generation_spec, translation_spec

V0 = Path(__file__).parent / "fixtures" / "v0"
OUTPUTS = json.loads((V0 / "outputs.json").read_text(encoding="utf-8"))
SENTENCES, RUNS = OUTPUTS["sentences"], OUTPUTS["runs"]
TASKS = list(RUNS)
KINDS = {"translate": TranslateRecipe, "generate": GenerateRecipe, "embed": EmbedRecipe}


# ── Run folders ───────────────────────────────────────────────────────────────────────────────────
def check_translations(found, expected):
    """Compare the texts; the scores are compared below."""
    assert [[translation.text for translation in best] for best in found] == [
        [text for text, _ in best] for best in expected
    ]


@pytest.mark.parametrize("beam_size, n_best", [(1, 1), (4, 3)])
def test_an_old_translator_gives_the_same_translations(beam_size, n_best):
    found = qkv.load(V0 / "translate").translate(SENTENCES, beam_size=beam_size, n_best=n_best)
    check_translations(found, RUNS["translate"][f"beam {beam_size}"])


@pytest.mark.parametrize("beam_size, n_best", [(1, 1), (4, 3)])
def test_an_old_score_is_the_log_probability_before_tokens_are_suppressed(beam_size, n_best):
    """<bos> and <pad> are now suppressed before the softmax; the model's logits are equal."""
    translator = qkv.load(V0 / "translate")
    for source, best in zip(SENTENCES, RUNS["translate"][f"beam {beam_size}"], strict=True):
        row = translator.encode_source(source)
        (found,) = translator.backend.search(
            [row],
            [min(2 * len(row) + 20, translator.backend.max_len)],
            TranslationConfig(beam_size=beam_size, n_best=n_best),
        )
        for today, (_, score) in zip(found[:n_best], best, strict=True):
            (gains,) = forced_log_probs(translator.model, [row], [today.ids], translator.bos)
            assert sum(gains) / ((5 + len(gains)) / 6) ** 0.6 == pytest.approx(
                score, rel=1e-6, abs=1e-5
            )


@pytest.mark.parametrize(
    "folder, expected",
    [("generate", RUNS["generate"]), ("huggingface", OUTPUTS["exports"]["huggingface"])],
)
def test_an_old_generator_generates_the_same_texts(folder, expected):
    generator, prompts = qkv.load(V0 / folder), [text[:3] for text in SENTENCES]
    assert generator(prompts, max_new_tokens=16, temperature=0) == expected["greedy"]
    assert generator(prompts, max_new_tokens=16, top_k=20, seed=7) == expected["seeded"]


def test_an_old_embedder_gives_the_same_vectors():
    found = torch.tensor(qkv.load(V0 / "embed")(SENTENCES))
    torch.testing.assert_close(found, torch.tensor(RUNS["embed"]["vectors"]), rtol=0, atol=1e-5)


def test_an_old_ctranslate2_folder_gives_the_same_translations():
    found = qkv.load(V0 / "ctranslate2").translate(SENTENCES, beam_size=4, n_best=3)
    check_translations(found, OUTPUTS["exports"]["ctranslate2"])


@pytest.mark.parametrize("task", TASKS)
def test_an_old_interrupted_run_is_resumed_and_ends_with_the_same_weights(
    task, tmp_path, monkeypatch
):
    shutil.copytree(V0 / "corpus", tmp_path / "corpus")  # the recipe has relative paths
    shutil.copytree(V0 / f"{task}-interrupted", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert run(["train", task, "--out", "run", "--resume"]) == 0
    ours, theirs = (
        load_file(tmp_path / "run" / "model.safetensors"),
        load_file(V0 / task / "model.safetensors"),
    )
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        if name.endswith("cross.branch.k_proj.bias"):
            # Adds the same to all scores of a query: Adam scales up the rounding of its gradient.
            continue
        torch.testing.assert_close(
            weight, theirs[name], rtol=0, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )
    assert (tmp_path / "run" / "tokenizer.json").read_bytes() == (
        V0 / task / "tokenizer.json"
    ).read_bytes()


# ── Tokenizers, recipes, specs ────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("kind", OUTPUTS["tokenizers"])
def test_an_old_tokenizer_gives_the_same_ids_and_texts(kind):
    tokenizer, expected = (
        Tokenizer.load(V0 / "tokenizers" / f"{kind}.json"),
        OUTPUTS["tokenizers"][kind],
    )
    assert tokenizer.encode_batch(SENTENCES) == expected["ids"]
    assert [tokenizer.decode(ids) for ids in expected["ids"]] == expected["texts"]


SPECS = {
    "translate": lambda recipe: translation_spec(recipe.model, recipe.vocab_size, None),
    "generate": lambda recipe: generation_spec(
        recipe.model, recipe.vocab_size, recipe.context_length
    ),
    "embed": lambda recipe: embedding_spec(recipe.model, recipe.vocab_size, False),
}


@pytest.mark.parametrize("name", OUTPUTS["recipes"])
def test_an_old_recipe_is_read_and_gives_the_same_model(name):
    expected = OUTPUTS["recipes"][name]
    recipe = read_recipe(KINDS[expected["recipe"]["task"]], V0 / "recipes" / f"{name}.yaml")
    options = json.loads(json.dumps(asdict(recipe)))
    renamed = rename_old(expected["recipe"])
    assert OLD_OPTIONS.keys().isdisjoint(renamed)
    assert {name: options[name] for name in renamed if name != "model"} == {
        name: value for name, value in renamed.items() if name != "model"
    }
    assert SPECS[recipe.task](recipe) == from_json(json.dumps(expected["spec"]))


@pytest.mark.parametrize("task", TASKS)
def test_an_old_resolved_recipe_is_read(task):
    path = V0 / task / "train.yaml"
    written, recipe = (
        yaml.safe_load(path.read_text(encoding="utf-8")),
        read_recipe(KINDS[task], path),
    )
    options = json.loads(json.dumps(asdict(recipe)))
    renamed = rename_old(written)
    arguments = renamed.pop("model")  # of the task's preset
    assert {name: options[name] for name in renamed} == renamed
    assert arguments.items() <= options["model"].items()


@pytest.mark.parametrize("name", OUTPUTS["presets"])
def test_an_old_model_json_of_a_preset_is_that_preset(name):
    spec = from_json((V0 / "presets" / f"{name}.json").read_text(encoding="utf-8"))
    assert spec == preset(RENAMED.get(name, name))
    with torch.device("meta"):
        assert (
            sum(weight.numel() for weight in Transformer(spec).parameters())
            == OUTPUTS["presets"][name]
        )


@pytest.mark.parametrize("name", OUTPUTS["models"])
def test_an_old_model_with_each_kind_of_part_gives_the_same_logits(name):
    model, ids = (
        load_model(V0 / "models" / name.replace(" ", "-")).model,
        torch.tensor(OUTPUTS["ids"]),
    )
    with torch.no_grad():
        memory = model.encode(ids) if model.spec.encoder else None
        hidden = model.decode(ids, memory) if model.spec.decoder else memory.states
        logits = model.logits(hidden)[:, -1]  # (batch, vocab)
    torch.testing.assert_close(logits, torch.tensor(OUTPUTS["models"][name]), rtol=0, atol=1e-5)


# ── Weight names ──────────────────────────────────────────────────────────────────────────────────
def test_a_model_file_with_an_old_weight_name_is_read():
    folder, router = V0 / "models" / "feed-forward-experts", "decoder.layers.0.ffn.branch.router"
    stored = load_file(folder / "model.safetensors")[f"{router}.balance_bias"]
    weights = load_model(folder).model.state_dict()
    assert torch.equal(weights[f"{router}.score_correction_bias"], stored)
    assert f"{router}.balance_bias" not in weights


def test_a_training_checkpoint_with_an_old_weight_name_is_read(tmp_path):
    router = "decoder.layers.0.ffn.branch.router"
    old = {f"{router}.balance_bias": torch.ones(4), f"{router}.weight": torch.zeros(4, 2)}
    folder = save_state(tmp_path, 1, {"model": old, "optimizer-0": {"0.step": torch.ones(1)}}, {})
    tensors = load_state(folder).tensors
    assert tensors["model"].keys() == {f"{router}.score_correction_bias", f"{router}.weight"}
    assert tensors["optimizer-0"].keys() == {"0.step"}
