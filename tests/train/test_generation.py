"""Generation task: windows, loss, held-out text, fine-tuning, and a model that learns."""

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from run_traces import metrics_without_times, sha256_of

import qkv
from qkv.checkpoint.folder import save_model
from qkv.checkpoint.huggingface.export import save_huggingface
from qkv.checkpoint.load import load_folder
from qkv.data.builtin import builtin_pairs
from qkv.errors import QkvError
from qkv.evaluate.text_perplexity import text_perplexity
from qkv.model.presets import preset
from qkv.model.transformer import Transformer
from qkv.text.special_tokens import NOT_STORED, SpecialTokenIds, generation_tokens
from qkv.text.tokenizer import Tokenizer
from qkv.text.train_tokenizer import train_tokenizer
from qkv.train.card import write_card
from qkv.train.generation import IGNORE_INDEX
from qkv.train.loop import Trainer
from qkv.train.prepare_text import prepare_generation
from qkv.train.recipe import GenerateRecipe
from qkv.train.recipe_reader import read_recipe
from qkv.train.resume import state_to_resume

SENTENCES = [pair.target for pair in builtin_pairs()[0][:400]]
SHAPE = {
    "layers": 1,
    "d_model": 32,
    "n_heads": 2,
    "d_ff": 64,
    "dropout": 0.0,
    "norm": "rms",
    "bias": False,
}
TINY = GenerateRecipe(
    tokenizer="char",
    context_length=32,
    batch_tokens=256,
    valid_fraction=0.1,
    model=SHAPE,
    steps=12,
    warmup_steps=3,
    lr=5e-3,
    save_every=4,
    validate_every=6,
)


@pytest.fixture(scope="session")
def book(tmp_path_factory):
    """400 English sentences in one text file."""
    path = tmp_path_factory.mktemp("book") / "book.txt"
    path.write_text("".join(f"{sentence}\n" for sentence in SENTENCES), encoding="utf-8")
    return path


@pytest.fixture
def make_task(book, tmp_path):
    """make_task(context_length=8): the task of this recipe, with data in the test's folder."""
    return lambda folder="data", resume=False, **changes: prepare_generation(
        replace(TINY, **{"text": (str(book),), **changes}), tmp_path / folder, resume
    )


def built(task, seed=0):
    torch.manual_seed(seed)
    return task.initial_model().double()


# ── batches and loss ──────────────────────────────────────────────────────────────────────────────


def test_the_target_of_each_position_is_the_next_token(make_task):
    task = make_task()
    batch = task.batch(3)
    assert batch.inputs.shape == batch.targets.shape == (8, 32)
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    assert task.tokenizer.decode(batch.inputs[0].tolist()) in "".join(
        f"{sentence}\n" for sentence in SENTENCES
    )
    assert task.sizes(batch) == (256, 256)


@pytest.mark.parametrize("separate", [False, True])
def test_the_loss_equals_torch_cross_entropy_on_the_logits(make_task, tmp_path, separate):
    (tmp_path / "a.jsonl").write_text(
        "".join(f'{{"text": "{text}"}}\n' for text in SENTENCES[:60]), encoding="utf-8"
    )
    task = make_task(text=(str(tmp_path / "a.jsonl"),), separate_documents=separate)
    batches = [task.batch(step) for step in range(len(task.windows))]
    padded = [batch for batch in batches if (batch.targets == IGNORE_INDEX).any()]
    assert bool(padded) == separate, "documents of different lengths need padding"
    model, batch = built(task), padded[0] if separate else batches[0]
    logits = model.logits(model.decode(batch.inputs))
    expected = F.cross_entropy(
        logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE_INDEX, reduction="sum"
    )
    torch.testing.assert_close(task.loss(model, batch), expected, rtol=1e-12, atol=0)
    assert task.sizes(batch)[0] == int((batch.targets != IGNORE_INDEX).sum())


def test_the_loss_of_separate_documents_is_that_of_each_alone(make_task, tmp_path):
    (tmp_path / "a.jsonl").write_text(
        "".join(f'{{"text": "{text}"}}\n' for text in SENTENCES[:30]), encoding="utf-8"
    )
    (tmp_path / "v.txt").write_text("someone\n", encoding="utf-8")
    task = make_task(
        text=(str(tmp_path / "a.jsonl"),),
        valid_text=(str(tmp_path / "v.txt"),),
        separate_documents=True,
        context_length=99,
    )
    model = built(task)
    batched, alone = 0.0, 0.0
    for step in range(len(task.windows)):
        batched += task.loss(model, task.batch(step)).item()
    for text in SENTENCES[:30]:
        ids = torch.tensor([[task.eos, *task.tokenizer.encode(text), task.eos]])
        logits = model.logits(model.decode(ids[:, :-1]))[0]
        alone += F.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
    assert batched == pytest.approx(alone, rel=1e-9)


def test_the_perplexity_of_separate_documents_is_that_of_each_alone(make_task, tmp_path):
    texts = [
        *(text for text in SENTENCES[:30] if len(text) < 60),
        SENTENCES[0] * 6,
    ]  # the last document is longer than a window
    for name in ("a.jsonl", "v.jsonl"):
        (tmp_path / name).write_text(
            "".join(f'{{"text": "{text}"}}\n' for text in texts), encoding="utf-8"
        )
    files = {"text": (str(tmp_path / "a.jsonl"),), "valid_text": (str(tmp_path / "v.jsonl"),)}
    task = make_task(**files, separate_documents=True, context_length=64)
    model, nats = built(task), 0.0
    for text in texts[:-1]:
        ids = torch.tensor([[task.eos, *task.tokenizer.encode(text), task.eos]])
        nats += F.cross_entropy(
            model.logits(model.decode(ids[:, :-1]))[0], ids[0, 1:], reduction="sum"
        ).item()
    long = np.array([*task.tokenizer.encode(texts[-1])])
    assert len(long) > 64
    nats += text_perplexity(model, long, 0, 64, bos_id=task.eos).nats
    found = task.held_out_perplexity(model)
    assert found.nats == pytest.approx(nats, rel=1e-9)
    assert found.bytes == sum(len(text.encode()) for text in texts)


@pytest.mark.parametrize("separate, begin", [(True, ("<eos>",)), (False, ())])
def test_prompts_of_a_model_of_separate_documents_begin_with_eos(
    make_task, tmp_path, separate, begin
):
    (tmp_path / "a.jsonl").write_text(
        "".join(f'{{"text": "{text}"}}\n' for text in SENTENCES[:60]), encoding="utf-8"
    )
    task = make_task(text=(str(tmp_path / "a.jsonl"),), separate_documents=separate)
    assert (
        tuple(task.tokenizer.tokens(generation_tokens(task.tokenizers["tokenizer"]).begin)) == begin
    )
    assert task.tokenizer.encode("a") == Tokenizer.load(
        tmp_path / "data" / "tokenizer.json"
    ).encode("a")  # texts are encoded as before


def test_the_model_is_a_causal_decoder_whose_first_layer_may_be_a_convolution(make_task):
    task = make_task(model=SHAPE | {"layers": 3, "convolution": 4})
    assert task.spec.encoder is None and task.spec.max_len == 32 and task.spec.decoder.causal
    assert [layer.mixer.kind for layer in task.spec.decoder.each_layer()] == [
        "convolution",
        "attention",
        "attention",
    ]
    model, batch = built(task), task.batch(0)
    other = batch.inputs.clone()
    other[:, 20:] = task.eos
    first, second = model.decode(batch.inputs), model.decode(other)
    assert torch.equal(first[:, :20], second[:, :20]), "every layer is causal"
    assert not torch.equal(first[:, 20:], second[:, 20:])
    assert [layer.mixer.kind for layer in make_task(model=SHAPE).spec.decoder.each_layer()] == [
        "attention"
    ]


# ── held-out text ─────────────────────────────────────────────────────────────────────────────────


def test_the_last_characters_are_held_out_and_all_are_evaluated(make_task, book):
    task, text = make_task(), book.read_text(encoding="utf-8")
    cut = int(len(text) * 0.9)
    assert task.tokenizer.decode(task.valid.ids.tolist()) == text[cut:] and task.valid.bytes == len(
        text[cut:].encode()
    )
    model = built(task)
    metrics = task.validate(model)
    expected = text_perplexity(model, task.valid.ids, task.valid.bytes, 32, 16, bos_id=task.eos)
    assert expected.tokens == len(text) - cut
    assert metrics["loss"] == pytest.approx(expected.nats / (len(text) - cut))
    assert metrics["perplexity"] == pytest.approx(math.exp(metrics["loss"]))
    assert metrics["bits_per_byte"] == pytest.approx(metrics["loss"] / math.log(2)), (
        "one byte per character"
    )


def test_the_tokenizer_is_not_trained_on_the_held_out_text(make_task, tmp_path):
    (tmp_path / "t.txt").write_text("ab" * 95 + "ZZ" * 5, encoding="utf-8")
    task = make_task(text=(str(tmp_path / "t.txt"),), context_length=8)
    assert "a" in task.tokenizer.core.get_vocab() and "Z" not in task.tokenizer.core.get_vocab()


def test_a_given_tokenizer_is_used_unchanged(make_task, tmp_path):
    given = train_tokenizer("byte_bpe", SENTENCES, 300)
    given.save(tmp_path / "mine.json")
    task = make_task(tokenizer=str(tmp_path / "mine.json"))
    assert (
        task.tokenizer.fingerprint == given.fingerprint and task.spec.vocab_size == given.vocab_size
    )


@pytest.mark.parametrize("other", ["tokenizer", "init_from"])
def test_a_given_tokenizer_is_not_mistaken_for_a_trained_one(
    make_task, llama_folder, tmp_path, other
):
    learned = make_task().tokenizer.fingerprint
    given = make_task(
        **{other: str(llama_folder / "ours" / ("tokenizer.json" if other == "tokenizer" else ""))}
    )
    assert given.tokenizer.fingerprint != learned
    assert make_task().tokenizer.fingerprint == learned


# ── training ──────────────────────────────────────────────────────────────────────────────────────


def train(task, folder, resume=False):
    folder.mkdir(exist_ok=True)
    trainer = Trainer(task, task.recipe, folder, state_to_resume(folder, resume))
    assert trainer.run() == 0
    return trainer


def test_a_few_hundred_steps_beat_the_unigram_entropy(make_task, book, tmp_path):
    task = make_task(
        steps=150, validate_every=150, save_every=150, optimizer="muon", zero_init_residual=True
    )
    train(task, tmp_path / "run")
    text = book.read_text(encoding="utf-8")
    counts = Counter(text)
    unigram = -sum(n / len(text) * math.log(n / len(text)) for n in counts.values())
    generator = qkv.load(tmp_path / "run")
    loss = task.held_out_perplexity(generator.model).nats_per_token
    assert loss < 0.8 * unigram
    line = write_card(tmp_path / "run", task, generator)
    assert f"{loss:.4f} nats/token" in line and f"{loss:.4f} nats/token" in (
        tmp_path / "run" / "README.md"
    ).read_text(encoding="utf-8")


def test_a_resumed_run_equals_an_uninterrupted_one(make_task, tmp_path):
    whole = {
        "steps": 12,
        "schedule": "constant",
        "optimizer": "muon",
        "model": SHAPE | {"dropout": 0.1},
    }
    train(make_task(**whole), tmp_path / "whole")
    train(make_task("again", **{**whole, "steps": 6}), tmp_path / "broken")
    train(make_task("again", resume=True, **whole), tmp_path / "broken", resume=True)
    assert sha256_of(tmp_path / "broken", 12) == sha256_of(tmp_path / "whole", 12)
    assert [
        entry for entry in metrics_without_times(tmp_path / "broken") if entry["kind"] == "valid"
    ] == [entry for entry in metrics_without_times(tmp_path / "whole") if entry["kind"] == "valid"]


@pytest.mark.parametrize(("context", "kind"), [(1, "char"), (5, "byte_bpe"), (16, "char")])
def test_the_example_of_a_card_fits_a_small_context(make_task, book, tmp_path, context, kind):
    task = make_task(
        tokenizer=kind, vocab_size=300, context_length=context, steps=1, validate_every=1
    )
    train(task, tmp_path / "run")
    generator = qkv.load(tmp_path / "run")
    write_card(tmp_path / "run", task, generator)
    prompt = task.evaluate(generator).example[0]
    text = book.read_text(encoding="utf-8")
    first_line = text[int(len(text) * 0.9) :].strip().split("\n")[0]
    assert 0 < len(generator.encode_prompt(prompt)) <= context and first_line.startswith(prompt)
    assert prompt == first_line[:context] or kind == "byte_bpe"


# ── fine-tuning ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def llama_folder(tmp_path):
    """A tiny Llama, written as a Hugging Face folder."""
    tokenizer = train_tokenizer("byte_bpe", SENTENCES, 300)
    torch.manual_seed(3)
    spec = preset("llama")
    layer = replace(
        spec.decoder.layers[0],
        mixer=replace(spec.decoder.layers[0].mixer, n_heads=2, n_kv_heads=2, d_head=8),
        feed_forward=replace(spec.decoder.layers[0].feed_forward, d_ff=24),
        repeat=2,
    )
    model = Transformer(
        replace(spec, vocab_size=300, d_model=16, decoder=replace(spec.decoder, layers=(layer,)))
    )
    save_model(tmp_path / "ours", model, {"tokenizer": tokenizer})
    save_huggingface(tmp_path / "theirs", load_folder(tmp_path / "ours"))
    return tmp_path


@pytest.mark.parametrize("kind", ["ours", "theirs"])
def test_fine_tuning_starts_from_a_qkv_or_hugging_face_folder(
    make_task, llama_folder, tmp_path, kind
):
    task = make_task(init_from=str(llama_folder / kind))
    loaded = load_folder(llama_folder / kind)
    initial = task.initial_model()
    assert (
        task.spec == loaded.model.spec
        and task.tokenizer.fingerprint == loaded.tokenizers["tokenizer"].fingerprint
    )
    for name, weight in loaded.model.state_dict().items():
        assert torch.equal(initial.state_dict()[name], weight), name
    before = task.validate(initial)["loss"]
    train(
        make_task(init_from=str(llama_folder / kind), lr=1e-2, steps=30, validate_every=30),
        tmp_path / "run",
    )
    assert task.held_out_perplexity(qkv.load(tmp_path / "run").model).nats_per_token < before - 0.5


def test_a_resumed_run_does_not_need_the_initial_folder(make_task, llama_folder, tmp_path):
    options = {"init_from": str(llama_folder / "ours"), "schedule": "constant"}
    train(make_task("whole-data", steps=12, **options), tmp_path / "whole")
    train(make_task("broken-data", steps=6, **options), tmp_path / "broken")
    (llama_folder / "ours").rename(llama_folder / "moved")
    train(
        make_task("broken-data", resume=True, steps=12, **options), tmp_path / "broken", resume=True
    )
    assert sha256_of(tmp_path / "broken", 12) == sha256_of(tmp_path / "whole", 12)


def test_a_resumed_run_keeps_the_special_tokens_of_the_initial_model(
    make_task, llama_folder, tmp_path
):
    stored, name = {"start_id": 5, "eos_ids": [3, 7]}, str(llama_folder / "ours")
    (llama_folder / "ours" / "generation.json").write_text(json.dumps(stored), encoding="utf-8")
    assert make_task(init_from=name).metadata == {"generation": SpecialTokenIds(5, None, (3, 7))}
    train(
        make_task(init_from=name, resume=True), tmp_path / "run"
    )  # the first run was stopped before it published a model
    assert json.loads((tmp_path / "run" / "generation.json").read_text(encoding="utf-8")) == stored
    (llama_folder / "ours" / "generation.json").unlink()
    assert (
        make_task(init_from=name).metadata
        == make_task(init_from=name, resume=True).metadata
        == {"generation": NOT_STORED}
    )
    (tmp_path / "data" / "generation.json").unlink()
    assert make_task(init_from=name, resume=True).metadata == {"generation": NOT_STORED}, (
        "a run of a version that did not store them"
    )


# ── errors ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("content", "changes", "line"),
    [
        ("", {}, "{file}: empty file; give a text file with at least one line"),
        (
            "short\n",
            {},
            "text: 6 tokens do not fill one window of context_length 32; "
            "give more text or reduce context_length",
        ),
        (
            "enough text, " * 9,
            {"batch_tokens": 31},
            "batch_tokens: 31 is less than context_length 32; increase it or reduce context_length",
        ),
        ("enough text, " * 9, {"text": ()}, "text: no training text; give --text, or a recipe"),
        (
            "enough text, " * 9,
            {"valid_fraction": 0.0},
            "valid_fraction: 0: no text is held out for validation; "
            "use a fraction such as 0.05, or give --valid-text",
        ),
        (
            "enough text, " * 9,
            {"tokenizer": "chars"},
            "tokenizer: no tokenizer kind 'chars'; did you mean 'char'?",
        ),
        (
            "enough text, " * 9,
            {"model": "tiny"},
            "model: 'tiny' is not a causal language model; "
            "use a decoder-only model, such as 'llama'",
        ),
        (
            "enough text, " * 9,
            {"tokenizer": "byte_bpe", "vocab_size": 5_000},
            "vocab_size: the text yields only 271 tokens, not 5,000; use at most 271",
        ),
        ("enough text, " * 9, {"init_from": "nowhere"}, "nowhere: no such folder; check the path"),
    ],
)
def test_an_invalid_recipe_gives_one_line(make_task, tmp_path, content, changes, line):
    file = tmp_path / "t.txt"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(QkvError) as error:
        make_task(**{"text": (str(file),), **changes})
    assert str(error.value) == line.format(file=file)


def test_a_jsonl_without_any_text_is_refused(make_task, tmp_path):
    (tmp_path / "none.jsonl").write_text('{"text": ""}\n', encoding="utf-8")
    with pytest.raises(QkvError, match=r"none\.jsonl: contains no text; give a file with text$"):
        make_task(text=(str(tmp_path / "none.jsonl"),))
    with pytest.raises(
        QkvError, match=r"^valid_text: no text held out; give more text, or --valid-text$"
    ):
        make_task(valid_text=(str(tmp_path / "none.jsonl"),))


def test_learned_positions_limit_the_context(make_task, llama_folder, tmp_path):
    spec = replace(preset("gpt2"), vocab_size=300, max_len=16)
    layer = replace(spec.decoder.layers[0], repeat=1)
    save_model(
        tmp_path / "gpt",
        Transformer(replace(spec, decoder=replace(spec.decoder, layers=(layer,)))),
        {"tokenizer": Tokenizer.load(llama_folder / "ours")},
    )
    with pytest.raises(
        QkvError, match="context_length: 32 exceeds the model's 16 positions; use 16 or less"
    ):
        make_task(init_from=str(tmp_path / "gpt"))


# ── recipes ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["shakespeare-char", "hongloumeng"])
def test_a_shipped_recipe_describes_a_model_that_can_be_built(name, make_task, book):
    path = Path(__file__).resolve().parents[2] / "recipes" / f"{name}.yaml"
    recipe = read_recipe(GenerateRecipe, path)
    task = make_task(
        model=recipe.model,
        context_length=recipe.context_length,
        batch_tokens=recipe.batch_tokens,
        zero_init_residual=recipe.zero_init_residual,
    )
    with torch.device("meta"):
        assert sum(weight.numel() for weight in Transformer(task.spec).parameters()) > 300_000
