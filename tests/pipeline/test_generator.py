"""A prompt in, text out: the published story, streams, seeds, stops, special tokens, and every mistake in one line."""

from dataclasses import replace

import pytest
import torch

import qkv
from qkv.checkpoint.folder import save_model
from qkv.engine.stepper import PlainStepper
from qkv.errors import QkvError
from qkv.model import spec as s
from qkv.model.presets import decoder_only, encoder_only
from qkv.model.transformer import Transformer
from qkv.pipeline import Generator
from qkv.text.learn import learn
from qkv.text.tokenizer import Tokenizer

TEXT = ["今天天气真好🚀，我们去公园吧。", "ROMEO:\nBut soft, what light?"]


def tiny(
    tokenizer: Tokenizer, max_len: int = 40, positions: s.Positions = s.Rotary()
) -> Transformer:
    """Random weights in float64, so that company makes no difference at all."""
    torch.manual_seed(3)
    spec = replace(
        decoder_only(tokenizer.vocab_size, 16, 1, s.Heads(4, 2, 4), s.Gated(24)),
        max_len=max_len,
        positions=positions,
    )
    return Transformer(spec).double()


@pytest.fixture(scope="module")
def bytewise() -> Generator:
    """Every token a byte, and weights that know two lines by heart: Chinese with an emoji, and English."""
    tokenizer = learn("bytes", TEXT, 262)
    torch.manual_seed(3)
    model = Transformer(
        replace(
            decoder_only(tokenizer.vocab_size, 32, 2, s.Heads(4, 2, 8), s.Gated(64)), max_len=40
        )
    )
    once = [tokenizer.eos_id, *tokenizer.encode("".join(TEXT))]
    ids = torch.tensor(once + once)
    windows = torch.stack(
        [ids[start : start + 41] for start in range(len(once))]
    )  # (windows, length)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        loss = model.loss(model.decode(windows[:, :-1]), windows[:, 1:]) / windows.numel()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return Generator.from_model(model.double(), tokenizer)


@pytest.fixture(scope="module")
def stories(shared) -> Generator:
    return qkv.load(shared / "stories260K_hf")


# ── Real weights ─────────────────────────────────────────────────────────────────────────────────────────────────
def test_the_published_story_is_told_character_by_character(stories, shared):
    published = (shared / "stories260K" / "expected_greedy_200steps.txt").read_text()
    assert stories("", max_new_tokens=200, temperature=0) == published
    assert "".join(stories.stream("", max_new_tokens=200, temperature=0)) == published


def test_an_imported_model_keeps_its_marks_when_saved(stories, tmp_path):
    assert (stories.begin, stories.ends, stories.context) == ((1,), (2,), 512)
    stories.save(tmp_path / "copy")
    copy = qkv.load(tmp_path / "copy")
    assert isinstance(copy, qkv.Generator) and (copy.begin, copy.ends) == ((1,), (2,))
    assert copy("Lily saw", seed=1, max_new_tokens=9) == stories(
        "Lily saw", seed=1, max_new_tokens=9
    )


def test_a_prompt_and_what_follows_join_as_the_model_meant_it(stories):
    (written,) = stories.generate(["Once upon a"], max_new_tokens=30, temperature=0)[0]
    ids = stories.tokenizer.encode("Once upon a") + written.ids
    assert "Once upon a" + written.text == stories.tokenizer.decode(
        ids
    ) and written.text.startswith(" time")


def test_transformers_writes_the_same_greedy_text(stories, shared):
    from transformers import LlamaForCausalLM

    theirs = LlamaForCausalLM.from_pretrained(shared / "stories260K_hf")
    prompt = stories.encode_prompt("The big dog")
    said = theirs.generate(
        torch.tensor([prompt]), max_new_tokens=40, do_sample=False, repetition_penalty=1.3
    )[0].tolist()
    assert (
        stories.generate(["The big dog"], max_new_tokens=40, temperature=0, repetition_penalty=1.3)[
            0
        ][0].ids
        == said[len(prompt) :]
    )


# ── Seeds and company ────────────────────────────────────────────────────────────────────────────────────────────
PROMPTS = ["今天", "ROMEO:", "", "我们去公园吧。ROMEO:\nBut", "s"]


@pytest.mark.parametrize(
    "settings",
    [{}, {"temperature": 1.5}, {"temperature": 2.0, "top_p": 0.9, "repetition_penalty": 1.1}],
)
def test_the_same_seed_gives_the_same_text_alone_and_in_any_batch(bytewise, settings):
    settings = {"seed": 11, "max_new_tokens": 60, **settings}
    alone = [bytewise(prompt, **settings) for prompt in PROMPTS]
    for batch_size in (1, 2, 5):
        assert bytewise(PROMPTS, batch_size=batch_size, **settings) == alone
        assert bytewise(PROMPTS[::-1], batch_size=batch_size, **settings) == alone[::-1]
    assert bytewise(PROMPTS, **settings | {"seed": 12}) != alone


def test_the_same_seed_gives_the_same_text_on_the_plain_stepper(bytewise, monkeypatch):
    settings = {"seed": 4, "max_new_tokens": 50, "n": 2, "top_k": 9}
    usual = bytewise.generate(PROMPTS, **settings)
    monkeypatch.setattr(
        "qkv.generate.torch_backend.make_stepper", lambda model, int8: PlainStepper(model)
    )
    assert bytewise.generate(PROMPTS, **settings) == usual


def test_n_texts_differ_and_without_a_seed_every_call_does(bytewise):
    three = bytewise("今天", n=3, seed=1, temperature=2.0, max_new_tokens=20)
    assert len(set(three)) == 3 and three[0] == bytewise(
        "今天", seed=1, temperature=2.0, max_new_tokens=20
    )
    first, second = (
        bytewise.generate(["今天"], temperature=2.0, max_new_tokens=20)[0][0] for _ in range(2)
    )
    assert first.text != second.text
    assert bytewise("今天", seed=first.seed, temperature=2.0, max_new_tokens=20) == first.text


# ── Streams and stops ────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("prompt", ["今天", ""])
@pytest.mark.parametrize(
    "settings",
    [{"temperature": 0}, {"temperature": 0.3}, {"temperature": 0.4, "stop": ("，", "RO")}],
)
def test_a_stream_joined_is_the_whole_text_of_whole_characters(bytewise, prompt, settings):
    pieces = list(bytewise.stream(prompt, seed=5, max_new_tokens=70, **settings))
    assert (
        "".join(pieces) == bytewise(prompt, seed=5, max_new_tokens=70, **settings)
        and len(pieces) > 3
    )
    assert all(piece and "\ufffd" not in piece for piece in pieces)
    if "stop" not in settings:
        assert "天气真好🚀" in "".join(pieces)


def test_wherever_its_length_cuts_a_text_no_half_character_is_shown(bytewise):
    whole = bytewise("今天", temperature=0, max_new_tokens=60)
    cut = [bytewise("今天", temperature=0, max_new_tokens=length) for length in range(1, 24)]
    assert all(whole.startswith(text) for text in cut) and cut[-1] == "天气真好🚀，我"


def test_two_streams_at_once_do_not_disturb_each_other_nor_the_callers_gradients(bytewise):
    expected = [bytewise(prompt, seed=2, max_new_tokens=20) for prompt in ("今天", "ROMEO:")]
    first, second = (
        bytewise.stream(prompt, seed=2, max_new_tokens=20) for prompt in ("今天", "ROMEO:")
    )
    found = ["", ""]
    for _ in range(100):
        found = [
            text + next(stream, "") for text, stream in zip(found, (first, second), strict=True)
        ]
        assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    assert found == expected


def test_a_stop_ends_the_text_and_says_so(bytewise):
    (free,) = bytewise.generate(["今天"], temperature=0, max_new_tokens=60)[0]
    (stopped,) = bytewise.generate(["今天"], temperature=0, max_new_tokens=60, stop="公园")[0]
    assert stopped.text == free.text.split("公园")[0] and stopped.why == "stop"
    assert free.ids[: len(stopped.ids)] == stopped.ids and bytewise.tokenizer.decode(
        stopped.ids
    ).endswith("公园")
    assert bytewise("今天", temperature=0, max_new_tokens=60, stop=["none", "，"]) == "天气真好🚀"


def test_why_a_text_ended_is_told(bytewise):
    eos = bytewise.tokenizer.eos_id
    (ended,) = bytewise.generate(["light"], temperature=0, max_new_tokens=60)[0]
    assert (ended.why, ended.text, ended.ids[-1]) == ("end", "?", eos)
    (question,) = bytewise.tokenizer.encode("?")
    (sooner,) = bytewise.generate(
        ["light"], temperature=0, max_new_tokens=60, stop_token_ids=(question,)
    )[0]
    assert (sooner.why, sooner.text, sooner.ids) == ("end", "", [question])
    (longer,) = bytewise.generate(["light"], temperature=0, max_new_tokens=60, banned=(eos,))[0]
    assert longer.why == "length" and len(longer.ids) == 60
    assert bytewise.generate(["BERLIN"], temperature=0, max_new_tokens=5, stop="<eos>")[0][
        0
    ].why in ("end", "length")


def test_log_probabilities_come_when_asked_for(bytewise):
    (silent,) = bytewise.generate(["今天"], max_new_tokens=4, seed=1)[0]
    (told,) = bytewise.generate(["今天"], max_new_tokens=4, seed=1, logprobs=2)[0]
    assert silent.log_probs is None and told.ids == silent.ids
    assert len(told.log_probs) == len(told.best) == 4 and all(len(best) == 2 for best in told.best)
    assert all(best[0][1] >= number for best, number in zip(told.best, told.log_probs, strict=True))


# ── Special tokens ────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_ours_begin_where_a_document_ended_and_prompts_get_no_special_token(bytewise):
    eos = bytewise.tokenizer.eos_id
    assert bytewise.encode_prompt("") == [eos] and bytewise.encode_prompt(
        "ab"
    ) == bytewise.tokenizer.encode("ab")
    assert bytewise("", temperature=0, max_new_tokens=12) == "今天天气"


# ── Beyond the context ───────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    "positions",
    [s.Rotary(), s.Learned(), s.Sinusoidal(), s.NoPositions()],
    ids=lambda one: one.kind,
)
def test_a_text_may_grow_far_beyond_the_context(positions):
    tokenizer = learn("bytes", TEXT, 262)
    generator = Generator.from_model(tiny(tokenizer, max_len=16, positions=positions), tokenizer)
    together = generator.generate(
        ["abcdefghijklmnop", "x", "今天"], seed=1, max_new_tokens=100, banned=(tokenizer.eos_id,)
    )
    assert all(len(one.ids) == 100 for (one,) in together)
    assert (
        together[1]
        == generator.generate(["x"], seed=1, max_new_tokens=100, banned=(tokenizer.eos_id,))[0]
    )


# ── Mistakes ─────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    "prompt, settings, line",
    [
        ("a" * 41, {}, "prompt: 41 tokens, the model reads 40; shorten it"),
        ("a", {"banned": (262,)}, "banned: 262 is no token; ids go from 0 to 261"),
        ("a", {"forced": (-1,)}, "forced: -1 is no token; ids go from 0 to 261"),
        ("a", {"forced": (7,), "banned": (7,)}, "banned: nothing is left to say; ban fewer tokens"),
        ("a", {"temperature": -1}, "temperature: -1 is impossible; use 0 (greedy) or more"),
        ("a", {"n": 0}, "n: 0 is too small; use 1 or more"),
    ],
)
def test_a_mistake_is_one_line(bytewise, prompt, settings, line):
    for call in (bytewise, bytewise.stream):
        with pytest.raises(QkvError) as error:
            call(prompt, **settings)
        assert str(error.value) == line


def test_a_stop_that_no_text_can_hold_is_refused():
    tokenizer = learn("char", ["abc"], 20)
    generator = Generator.from_model(tiny(tokenizer), tokenizer)
    with pytest.raises(QkvError) as error:
        generator("a", stop="Ω")
    assert str(error.value) == "stop: 'Ω' never comes; this vocabulary cannot write it"


def test_only_one_text_streams_at_a_time(bytewise):
    with pytest.raises(QkvError) as error:
        bytewise.stream("a", n=2)
    assert str(error.value) == "n: 2 texts in one stream; stream them one by one"


def test_a_folder_of_another_kind_of_model_is_refused(tmp_path):
    tokenizer = learn("char", ["abc"], 20)
    save_model(
        tmp_path / "reader", Transformer(encoder_only(20, 16, 1, 2, 16)), {"tokenizer": tokenizer}
    )
    with pytest.raises(QkvError) as error:
        Generator.load(tmp_path / "reader")
    assert (
        str(error.value)
        == f"{tmp_path / 'reader'}: not a language model; one has a decoder alone, which sees the past"
    )
    save_model(tmp_path / "mute", tiny(tokenizer), {})
    with pytest.raises(QkvError) as error:
        qkv.load(tmp_path / "mute")
    assert str(error.value) == f"{tmp_path / 'mute'}: no tokenizer.json; is the copy complete?"


def test_a_whole_context_of_prompt_is_read(bytewise):
    assert isinstance(bytewise("a" * 40, max_new_tokens=3, seed=0), str)
    assert bytewise([], seed=0) == []
