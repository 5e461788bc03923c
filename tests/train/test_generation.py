"""Language as a task: windows, their loss, the held-out text, going on from other models; and a model that learns."""

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from run_traces import sha256_of, told

import qkv
from qkv.checkpoint.folder import save_model
from qkv.checkpoint.huggingface.export import save_huggingface
from qkv.checkpoint.load import load_folder
from qkv.data.builtin import builtin_pairs
from qkv.errors import QkvError
from qkv.evaluate.text_perplexity import text_perplexity
from qkv.model.presets import preset
from qkv.model.transformer import Transformer
from qkv.text.learn import learn
from qkv.text.special_tokens import NOT_STORED, SpecialTokenIds, generation_tokens
from qkv.text.tokenizer import Tokenizer
from qkv.train.card import write_card
from qkv.train.generation import NOBODY
from qkv.train.loop import Trainer, state_to_resume
from qkv.train.prepare_text import prepare_generation
from qkv.train.recipe import GenerateRecipe
from qkv.train.recipe_reader import read_recipe

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
    context=32,
    batch_tokens=256,
    valid_share=0.1,
    model=SHAPE,
    steps=12,
    warmup=3,
    lr=5e-3,
    save_every=4,
    validate_every=6,
)


@pytest.fixture(scope="session")
def book(tmp_path_factory):
    """400 English sentences in one text file."""
    path = tmp_path_factory.mktemp("book") / "book.txt"
    path.write_text("".join(f"{one}\n" for one in SENTENCES), encoding="utf-8")
    return path


@pytest.fixture
def make_task(book, tmp_path):
    """make_task(context=8): the task of such a recipe, its data in the test's own folder."""
    return lambda folder="data", resume=False, **changes: prepare_generation(
        replace(TINY, **{"text": (str(book),), **changes}), tmp_path / folder, resume
    )


def built(task, seed=0):
    torch.manual_seed(seed)
    return task.begin().double()


# ---- batches and loss ----------------------------------------------------------------------------------------------


def test_each_place_is_asked_for_the_next_token(make_task):
    task = make_task()
    batch = task.batch(3)
    assert batch.given.shape == batch.asked.shape == (8, 32)
    assert torch.equal(batch.given[:, 1:], batch.asked[:, :-1])
    assert task.tokenizer.decode(batch.given[0].tolist()) in "".join(
        f"{one}\n" for one in SENTENCES
    )
    assert task.sizes(batch) == (256, 256)


@pytest.mark.parametrize("separate", [False, True])
def test_the_loss_equals_torch_s_cross_entropy_on_the_plain_logits(make_task, tmp_path, separate):
    (tmp_path / "a.jsonl").write_text(
        "".join(f'{{"text": "{one}"}}\n' for one in SENTENCES[:60]), encoding="utf-8"
    )
    task = make_task(text=(str(tmp_path / "a.jsonl"),), separate_documents=separate)
    batches = [task.batch(step) for step in range(len(task.windows))]
    padded = [batch for batch in batches if (batch.asked == NOBODY).any()]
    assert bool(padded) == separate, "documents of other lengths need padding"
    model, batch = built(task), padded[0] if separate else batches[0]
    logits = model.logits(model.decode(batch.given))
    expected = F.cross_entropy(
        logits.flatten(0, 1), batch.asked.flatten(), ignore_index=NOBODY, reduction="sum"
    )
    torch.testing.assert_close(task.loss(model, batch), expected, rtol=1e-12, atol=0)
    assert task.sizes(batch)[0] == int((batch.asked != NOBODY).sum())


def test_separate_documents_are_learned_as_if_each_stood_alone(make_task, tmp_path):
    (tmp_path / "a.jsonl").write_text(
        "".join(f'{{"text": "{one}"}}\n' for one in SENTENCES[:30]), encoding="utf-8"
    )
    (tmp_path / "v.txt").write_text("someone\n", encoding="utf-8")
    task = make_task(
        text=(str(tmp_path / "a.jsonl"),),
        valid_text=(str(tmp_path / "v.txt"),),
        separate_documents=True,
        context=99,
    )
    model = built(task)
    together, alone = 0.0, 0.0
    for step in range(len(task.windows)):
        together += task.loss(model, task.batch(step)).item()
    for text in SENTENCES[:30]:
        ids = torch.tensor([[task.eos, *task.tokenizer.encode(text), task.eos]])
        logits = model.logits(model.decode(ids[:, :-1]))[0]
        alone += F.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
    assert together == pytest.approx(alone, rel=1e-9)


def test_separate_documents_are_measured_as_if_each_stood_alone(make_task, tmp_path):
    texts = [
        *(text for text in SENTENCES[:30] if len(text) < 60),
        SENTENCES[0] * 6,
    ]  # the last one is longer than a window
    for name in ("a.jsonl", "v.jsonl"):
        (tmp_path / name).write_text(
            "".join(f'{{"text": "{one}"}}\n' for one in texts), encoding="utf-8"
        )
    files = {"text": (str(tmp_path / "a.jsonl"),), "valid_text": (str(tmp_path / "v.jsonl"),)}
    task = make_task(**files, separate_documents=True, context=64)
    model, nats = built(task), 0.0
    for text in texts[:-1]:
        ids = torch.tensor([[task.eos, *task.tokenizer.encode(text), task.eos]])
        nats += F.cross_entropy(
            model.logits(model.decode(ids[:, :-1]))[0], ids[0, 1:], reduction="sum"
        ).item()
    long = np.array([*task.tokenizer.encode(texts[-1])])
    assert len(long) > 64
    nats += text_perplexity(model, long, 0, 64, first=task.eos).nats
    found = task.measured(model)
    assert found.nats == pytest.approx(nats, rel=1e-9)
    assert found.bytes == sum(len(text.encode()) for text in texts)


@pytest.mark.parametrize("separate, begin", [(True, ("<eos>",)), (False, ())])
def test_prompts_of_a_model_of_separate_documents_begin_as_its_documents_did(
    make_task, tmp_path, separate, begin
):
    (tmp_path / "a.jsonl").write_text(
        "".join(f'{{"text": "{one}"}}\n' for one in SENTENCES[:60]), encoding="utf-8"
    )
    task = make_task(text=(str(tmp_path / "a.jsonl"),), separate_documents=separate)
    assert (
        tuple(task.tokenizer.tokens(generation_tokens(task.tokenizers["tokenizer"]).begin)) == begin
    )
    assert task.tokenizer.encode("a") == Tokenizer.load(
        tmp_path / "data" / "tokenizer.json"
    ).encode("a")  # texts are read as before


def test_sizes_make_a_decoder_alone_whose_first_layer_may_convolve(make_task):
    task = make_task(model=SHAPE | {"layers": 3, "convolution": 4})
    assert (
        task.spec.encoder is None and task.spec.max_len == 32 and task.spec.decoder.sees == "past"
    )
    assert [one.mixer.kind for one in task.spec.decoder.each_layer()] == [
        "convolution",
        "heads",
        "heads",
    ]
    model, batch = built(task), task.batch(0)
    other = batch.given.clone()
    other[:, 20:] = task.eos
    one, two = model.decode(batch.given), model.decode(other)
    assert torch.equal(one[:, :20], two[:, :20]) and not torch.equal(one[:, 20:], two[:, 20:]), (
        "no layer sees the future"
    )
    assert [one.mixer.kind for one in make_task(model=SHAPE).spec.decoder.each_layer()] == ["heads"]


# ---- what is held out ----------------------------------------------------------------------------------------------


def test_the_last_characters_are_held_out_and_all_of_them_measured(make_task, book):
    task, text = make_task(), book.read_text(encoding="utf-8")
    cut = int(len(text) * 0.9)
    assert task.tokenizer.decode(task.valid.ids.tolist()) == text[cut:] and task.valid.bytes == len(
        text[cut:].encode()
    )
    model = built(task)
    figures = task.validate(model)
    expected = text_perplexity(model, task.valid.ids, task.valid.bytes, 32, 16, first=task.eos)
    assert expected.tokens == len(text) - cut
    assert figures["loss"] == pytest.approx(expected.nats / (len(text) - cut))
    assert figures["perplexity"] == pytest.approx(math.exp(figures["loss"]))
    assert figures["bits_per_byte"] == pytest.approx(figures["loss"] / math.log(2)), (
        "a character is a byte here"
    )


def test_the_tokenizer_never_sees_what_is_held_out(make_task, tmp_path):
    (tmp_path / "t.txt").write_text("ab" * 95 + "ZZ" * 5, encoding="utf-8")
    task = make_task(text=(str(tmp_path / "t.txt"),), context=8)
    assert "a" in task.tokenizer.core.get_vocab() and "Z" not in task.tokenizer.core.get_vocab()


def test_a_given_tokenizer_is_used_as_it_is(make_task, tmp_path):
    given = learn("bytes", SENTENCES, 300)
    given.save(tmp_path / "mine.json")
    task = make_task(tokenizer=str(tmp_path / "mine.json"))
    assert (
        task.tokenizer.fingerprint == given.fingerprint and task.spec.vocab_size == given.vocab_size
    )


@pytest.mark.parametrize("other", ["tokenizer", "start_from"])
def test_a_tokenizer_given_in_between_is_not_taken_for_the_one_that_was_learned(
    make_task, llama_folder, tmp_path, other
):
    learned = make_task().tokenizer.fingerprint
    given = make_task(
        **{other: str(llama_folder / "ours" / ("tokenizer.json" if other == "tokenizer" else ""))}
    )
    assert given.tokenizer.fingerprint != learned
    assert make_task().tokenizer.fingerprint == learned


# ---- learning ------------------------------------------------------------------------------------------------------


def trained(task, folder, resume=False):
    folder.mkdir(exist_ok=True)
    trainer = Trainer(task, task.recipe, folder, state_to_resume(folder, resume))
    assert trainer.run() == 0
    return trainer


def test_a_few_hundred_steps_beat_the_letters_own_frequencies(make_task, book, tmp_path):
    task = make_task(
        steps=150, validate_every=150, save_every=150, optimizer="muon", calm_start=True
    )
    trained(task, tmp_path / "run")
    text = book.read_text(encoding="utf-8")
    counts = Counter(text)
    unigram = -sum(n / len(text) * math.log(n / len(text)) for n in counts.values())
    generator = qkv.load(tmp_path / "run")
    loss = task.measured(generator.model).nats_per_token
    assert loss < 0.8 * unigram
    line = write_card(tmp_path / "run", task, generator)
    assert f"{loss:.4f} nats/token" in line and f"{loss:.4f} nats/token" in (
        tmp_path / "run" / "README.md"
    ).read_text(encoding="utf-8")


def test_a_resumed_run_equals_an_unbroken_one(make_task, tmp_path):
    whole = {
        "steps": 12,
        "schedule": "constant",
        "optimizer": "muon",
        "model": SHAPE | {"dropout": 0.1},
    }
    trained(make_task(**whole), tmp_path / "whole")
    trained(make_task("again", **{**whole, "steps": 6}), tmp_path / "broken")
    trained(make_task("again", resume=True, **whole), tmp_path / "broken", resume=True)
    assert sha256_of(tmp_path / "broken", 12) == sha256_of(tmp_path / "whole", 12)
    assert [one for one in told(tmp_path / "broken") if one["kind"] == "valid"] == [
        one for one in told(tmp_path / "whole") if one["kind"] == "valid"
    ]


@pytest.mark.parametrize(("context", "kind"), [(1, "char"), (5, "bytes"), (16, "char")])
def test_the_example_of_a_card_fits_a_small_context(make_task, book, tmp_path, context, kind):
    task = make_task(tokenizer=kind, vocab_size=300, context=context, steps=1, validate_every=1)
    trained(task, tmp_path / "run")
    generator = qkv.load(tmp_path / "run")
    write_card(tmp_path / "run", task, generator)
    prompt = task.final(generator).example[0]
    text = book.read_text(encoding="utf-8")
    first_line = text[int(len(text) * 0.9) :].strip().split("\n")[0]
    assert 0 < len(generator.encode_prompt(prompt)) <= context and first_line.startswith(prompt)
    assert prompt == first_line[:context] or kind == "bytes"


# ---- going on from a model -----------------------------------------------------------------------------------------


@pytest.fixture
def llama_folder(tmp_path):
    """A tiny Llama, written as a Hugging Face folder."""
    tokenizer = learn("bytes", SENTENCES, 300)
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
def test_training_goes_on_from_a_folder_of_ours_or_theirs(make_task, llama_folder, tmp_path, kind):
    task = make_task(start_from=str(llama_folder / kind))
    there = load_folder(llama_folder / kind)
    begun = task.begin()
    assert (
        task.spec == there.model.spec
        and task.tokenizer.fingerprint == there.tokenizers["tokenizer"].fingerprint
    )
    for name, weight in there.model.state_dict().items():
        assert torch.equal(begun.state_dict()[name], weight), name
    before = task.validate(begun)["loss"]
    trained(
        make_task(start_from=str(llama_folder / kind), lr=1e-2, steps=30, validate_every=30),
        tmp_path / "run",
    )
    assert task.measured(qkv.load(tmp_path / "run").model).nats_per_token < before - 0.5


def test_a_resumed_run_needs_the_folder_it_began_from_no_more(make_task, llama_folder, tmp_path):
    wishes = {"start_from": str(llama_folder / "ours"), "schedule": "constant"}
    trained(make_task("one", steps=12, **wishes), tmp_path / "whole")
    trained(make_task("two", steps=6, **wishes), tmp_path / "broken")
    (llama_folder / "ours").rename(llama_folder / "moved")
    trained(make_task("two", resume=True, steps=12, **wishes), tmp_path / "broken", resume=True)
    assert sha256_of(tmp_path / "broken", 12) == sha256_of(tmp_path / "whole", 12)


def test_a_resumed_run_keeps_the_special_tokens_of_the_model_it_began_from(
    make_task, llama_folder, tmp_path
):
    stored, name = {"start_id": 5, "eos_ids": [3, 7]}, str(llama_folder / "ours")
    (llama_folder / "ours" / "generation.json").write_text(json.dumps(stored), encoding="utf-8")
    assert make_task(start_from=name).metadata == {"generation": SpecialTokenIds(5, None, (3, 7))}
    trained(
        make_task(start_from=name, resume=True), tmp_path / "run"
    )  # the first one was stopped before it published
    assert json.loads((tmp_path / "run" / "generation.json").read_text(encoding="utf-8")) == stored
    (llama_folder / "ours" / "generation.json").unlink()
    assert (
        make_task(start_from=name).metadata
        == make_task(start_from=name, resume=True).metadata
        == {"generation": NOT_STORED}
    )
    (tmp_path / "data" / "generation.json").unlink()
    assert make_task(start_from=name, resume=True).metadata == {"generation": NOT_STORED}, (
        "a run from before they were kept"
    )


# ---- mistakes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "changes", "line"),
    [
        ("", {}, "{file}: empty file; give a text file with at least one line"),
        (
            "short\n",
            {},
            "text: 6 tokens are less than one window of 32; give more text or a shorter context",
        ),
        (
            "enough text, " * 9,
            {"batch_tokens": 31},
            "batch_tokens: 31 is less than one window of 32; raise it or shorten context",
        ),
        (
            "enough text, " * 9,
            {"text": ()},
            "text: no text to learn from; give --text, or a recipe",
        ),
        (
            "enough text, " * 9,
            {"valid_share": 0.0},
            "valid_share: 0: nothing is held out; give a share such as 0.05, or --valid-text",
        ),
        (
            "enough text, " * 9,
            {"tokenizer": "chars"},
            "tokenizer: no kind of tokenizer 'chars'; did you mean 'char'?",
        ),
        (
            "enough text, " * 9,
            {"model": "tiny"},
            "model: 'tiny' is no language model; it needs a decoder alone, as in 'llama'",
        ),
        (
            "enough text, " * 9,
            {"tokenizer": "bytes", "vocab_size": 5_000},
            "vocab_size: this text supports only 271 pieces, not 5,000; use at most 271",
        ),
        ("enough text, " * 9, {"start_from": "nowhere"}, "nowhere: no such folder; check the path"),
    ],
)
def test_a_mistake_is_said_in_one_line(make_task, tmp_path, content, changes, line):
    file = tmp_path / "t.txt"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(QkvError) as error:
        make_task(**{"text": (str(file),), **changes})
    assert str(error.value) == line.format(file=file)


def test_a_jsonl_without_any_text_is_refused(make_task, tmp_path):
    (tmp_path / "none.jsonl").write_text('{"text": ""}\n', encoding="utf-8")
    with pytest.raises(QkvError, match=r"none\.jsonl: no text in it; give a file with some$"):
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
        QkvError, match="context: 32 is longer than the model's 16 places; use 16 or less"
    ):
        make_task(start_from=str(tmp_path / "gpt"))


# ---- what we ship --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["shakespeare-char", "hongloumeng"])
def test_a_shipped_recipe_describes_a_model_that_can_be_built(name, make_task, book):
    path = Path(__file__).resolve().parents[2] / "recipes" / f"{name}.yaml"
    recipe = read_recipe(GenerateRecipe, path)
    task = make_task(
        model=recipe.model,
        context=recipe.context,
        batch_tokens=recipe.batch_tokens,
        calm_start=recipe.calm_start,
    )
    with torch.device("meta"):
        assert sum(one.numel() for one in Transformer(task.spec).parameters()) > 300_000
