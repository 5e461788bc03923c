"""Generator: published outputs, batch invariance, streams, stop strings, special tokens, errors."""

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
from qkv.text.tokenizer import Tokenizer
from qkv.text.train_tokenizer import train_tokenizer

TEXT = ["今天天气真好🚀，我们去公园吧。", "ROMEO:\nBut soft, what light?"]


def tiny(
    tokenizer: Tokenizer, max_len: int = 40, positions: s.Positions = s.Rotary()
) -> Transformer:
    """Return a model with random weights in float64, which is exactly batch-invariant."""
    torch.manual_seed(3)
    spec = replace(
        decoder_only(tokenizer.vocab_size, 16, 1, s.Attention(4, 2, 4), s.Gated(24)),
        max_len=max_len,
        positions=positions,
    )
    return Transformer(spec).double()


@pytest.fixture(scope="module")
def bytewise() -> Generator:
    """Return a byte-level model overfitted to two lines: Chinese with an emoji, and English."""
    tokenizer = train_tokenizer("byte_bpe", TEXT, 262)
    torch.manual_seed(3)
    model = Transformer(
        replace(
            decoder_only(tokenizer.vocab_size, 32, 2, s.Attention(4, 2, 8), s.Gated(64)), max_len=40
        )
    )
    once = [tokenizer.eos_id, *tokenizer.encode("".join(TEXT))]
    ids = torch.tensor(once + once)
    starts = range(len(once))
    windows = torch.stack([ids[start : start + 41] for start in starts])  # (windows, length)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        loss = model.loss(model.decode(windows[:, :-1]), windows[:, 1:]) / windows.numel()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return Generator.from_model(model.double(), tokenizer)


@pytest.fixture(scope="module")
def stories(shared) -> Generator:
    return qkv.load(shared / "stories260K_hf")


# ── Published weights ─────────────────────────────────────────────────────────────────────────────
def test_greedy_output_equals_the_published_story(stories, shared):
    published = (shared / "stories260K" / "expected_greedy_200steps.txt").read_text()
    assert stories("", max_new_tokens=200, temperature=0) == published
    assert "".join(stories.stream("", max_new_tokens=200, temperature=0)) == published


def test_an_imported_model_keeps_its_special_tokens_when_saved(stories, tmp_path):
    assert (stories.begin, stories.ends, stories.context_length) == ((1,), (2,), 512)
    stories.save(tmp_path / "copy")
    copy = qkv.load(tmp_path / "copy")
    assert isinstance(copy, qkv.Generator) and (copy.begin, copy.ends) == ((1,), (2,))
    assert copy("Lily saw", seed=1, max_new_tokens=9) == stories(
        "Lily saw", seed=1, max_new_tokens=9
    )


def test_prompt_and_generated_text_concatenate_to_the_decoded_ids(stories):
    (sequence,) = stories.generate(["Once upon a"], max_new_tokens=30, temperature=0)[0]
    ids = stories.tokenizer.encode("Once upon a") + sequence.ids
    assert "Once upon a" + sequence.text == stories.tokenizer.decode(
        ids
    ) and sequence.text.startswith(" time")


def test_greedy_output_equals_transformers(stories, shared):
    from transformers import LlamaForCausalLM

    theirs = LlamaForCausalLM.from_pretrained(shared / "stories260K_hf")
    prompt = stories.encode_prompt("The big dog")
    expected = theirs.generate(
        torch.tensor([prompt]), max_new_tokens=40, do_sample=False, repetition_penalty=1.3
    )[0].tolist()
    assert (
        stories.generate(["The big dog"], max_new_tokens=40, temperature=0, repetition_penalty=1.3)[
            0
        ][0].ids
        == expected[len(prompt) :]
    )


# ── Seeds and batches ─────────────────────────────────────────────────────────────────────────────
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


def test_the_plain_stepper_gives_the_same_text(bytewise, monkeypatch):
    settings = {"seed": 4, "max_new_tokens": 50, "n": 2, "top_k": 9}
    expected = bytewise.generate(PROMPTS, **settings)
    monkeypatch.setattr(
        "qkv.generate.torch_backend.make_stepper", lambda model, int8: PlainStepper(model)
    )
    assert bytewise.generate(PROMPTS, **settings) == expected


def test_n_sequences_differ_and_calls_without_a_seed_differ(bytewise):
    three = bytewise("今天", n=3, seed=1, temperature=2.0, max_new_tokens=20)
    assert len(set(three)) == 3 and three[0] == bytewise(
        "今天", seed=1, temperature=2.0, max_new_tokens=20
    )
    first, second = (
        bytewise.generate(["今天"], temperature=2.0, max_new_tokens=20)[0][0] for _ in range(2)
    )
    assert first.text != second.text
    assert bytewise("今天", seed=first.seed, temperature=2.0, max_new_tokens=20) == first.text


# ── Streams and stop strings ──────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("prompt", ["今天", ""])
@pytest.mark.parametrize(
    "settings",
    [{"temperature": 0}, {"temperature": 0.3}, {"temperature": 0.4, "stop": ("，", "RO")}],
)
def test_a_stream_concatenates_to_the_text_and_splits_no_character(bytewise, prompt, settings):
    pieces = list(bytewise.stream(prompt, seed=5, max_new_tokens=70, **settings))
    assert (
        "".join(pieces) == bytewise(prompt, seed=5, max_new_tokens=70, **settings)
        and len(pieces) > 3
    )
    assert all(piece and "\ufffd" not in piece for piece in pieces)
    if "stop" not in settings:
        assert "天气真好🚀" in "".join(pieces)


def test_a_length_limit_never_splits_a_character(bytewise):
    whole = bytewise("今天", temperature=0, max_new_tokens=60)
    texts = [bytewise("今天", temperature=0, max_new_tokens=length) for length in range(1, 24)]
    assert all(whole.startswith(text) for text in texts) and texts[-1] == "天气真好🚀，我"


def test_concurrent_streams_are_independent_and_keep_grad_mode(bytewise):
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


def test_a_stop_string_ends_the_text_with_finish_reason_stop(bytewise):
    (free,) = bytewise.generate(["今天"], temperature=0, max_new_tokens=60)[0]
    (stopped,) = bytewise.generate(["今天"], temperature=0, max_new_tokens=60, stop="公园")[0]
    assert stopped.text == free.text.split("公园")[0] and stopped.finish_reason == "stop"
    assert free.ids[: len(stopped.ids)] == stopped.ids and bytewise.tokenizer.decode(
        stopped.ids
    ).endswith("公园")
    assert bytewise("今天", temperature=0, max_new_tokens=60, stop=["none", "，"]) == "天气真好🚀"


def test_finish_reasons(bytewise):
    eos = bytewise.tokenizer.eos_id
    (ended,) = bytewise.generate(["light"], temperature=0, max_new_tokens=60)[0]
    assert (ended.finish_reason, ended.text, ended.ids[-1]) == ("eos", "?", eos)
    (question,) = bytewise.tokenizer.encode("?")
    (stopped,) = bytewise.generate(
        ["light"], temperature=0, max_new_tokens=60, stop_token_ids=(question,)
    )[0]
    assert (stopped.finish_reason, stopped.text, stopped.ids) == ("eos", "", [question])
    (longer,) = bytewise.generate(
        ["light"], temperature=0, max_new_tokens=60, suppress_tokens=(eos,)
    )[0]
    assert longer.finish_reason == "length" and len(longer.ids) == 60
    assert bytewise.generate(["BERLIN"], temperature=0, max_new_tokens=5, stop="<eos>")[0][
        0
    ].finish_reason in ("eos", "length")


def test_logprobs_are_returned_on_request(bytewise):
    (without,) = bytewise.generate(["今天"], max_new_tokens=4, seed=1)[0]
    (sequence,) = bytewise.generate(["今天"], max_new_tokens=4, seed=1, logprobs=2)[0]
    assert without.logprobs is None and sequence.ids == without.ids
    assert len(sequence.logprobs) == len(sequence.top_logprobs) == 4 and all(
        len(best) == 2 for best in sequence.top_logprobs
    )
    assert all(
        best[0][1] >= number
        for best, number in zip(sequence.top_logprobs, sequence.logprobs, strict=True)
    )


# ── Special tokens ────────────────────────────────────────────────────────────────────────────────
def test_an_empty_prompt_is_eos_and_others_have_no_special_token(bytewise):
    eos = bytewise.tokenizer.eos_id
    assert bytewise.encode_prompt("") == [eos] and bytewise.encode_prompt(
        "ab"
    ) == bytewise.tokenizer.encode("ab")
    assert bytewise("", temperature=0, max_new_tokens=12) == "今天天气"


# ── Texts beyond the context length ───────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    "positions",
    [s.Rotary(), s.Learned(), s.Sinusoidal(), s.NoPositions()],
    ids=lambda positions: positions.kind,
)
def test_a_text_may_exceed_the_context_length(positions):
    tokenizer = train_tokenizer("byte_bpe", TEXT, 262)
    generator = Generator.from_model(tiny(tokenizer, max_len=16, positions=positions), tokenizer)
    batched = generator.generate(
        ["abcdefghijklmnop", "x", "今天"],
        seed=1,
        max_new_tokens=100,
        suppress_tokens=(tokenizer.eos_id,),
    )
    assert all(len(sequence.ids) == 100 for (sequence,) in batched)
    assert (
        batched[1]
        == generator.generate(
            ["x"], seed=1, max_new_tokens=100, suppress_tokens=(tokenizer.eos_id,)
        )[0]
    )


# ── Errors ────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    "prompt, settings, line",
    [
        ("a" * 41, {}, "prompt: 41 tokens, the context length is 40; shorten it"),
        (
            "a",
            {"suppress_tokens": (262,)},
            "suppress_tokens: 262 is not in the vocabulary; ids are 0 to 261",
        ),
        (
            "a",
            {"allowed_token_ids": (-1,)},
            "allowed_token_ids: -1 is not in the vocabulary; ids are 0 to 261",
        ),
        (
            "a",
            {"allowed_token_ids": (7,), "suppress_tokens": (7,)},
            "suppress_tokens: every token is suppressed; suppress fewer tokens",
        ),
        (
            "a",
            {"temperature": -1},
            "temperature: -1 is out of range; use 0 (greedy), or 1e-06 to 1,000,000",
        ),
        ("a", {"n": 0}, "n: 0 is out of range; use 1 to 16,384"),
    ],
)
def test_invalid_settings_are_rejected(bytewise, prompt, settings, line):
    for call in (bytewise, bytewise.stream):
        with pytest.raises(QkvError) as error:
            call(prompt, **settings)
        assert str(error.value) == line


def test_a_stop_string_outside_the_vocabulary_is_rejected():
    tokenizer = train_tokenizer("char", ["abc"], 20)
    generator = Generator.from_model(tiny(tokenizer), tokenizer)
    with pytest.raises(QkvError) as error:
        generator("a", stop="Ω")
    assert str(error.value) == "stop: 'Ω' cannot be generated; use characters of the vocabulary"


def test_a_stream_of_several_sequences_is_rejected(bytewise):
    with pytest.raises(QkvError) as error:
        bytewise.stream("a", n=2)
    assert str(error.value) == "n: 2 sequences cannot be streamed together; use n 1"


def test_a_folder_of_another_model_is_rejected(tmp_path):
    tokenizer = train_tokenizer("char", ["abc"], 20)
    save_model(
        tmp_path / "encoder", Transformer(encoder_only(20, 16, 1, 2, 16)), {"tokenizer": tokenizer}
    )
    with pytest.raises(QkvError) as error:
        Generator.load(tmp_path / "encoder")
    assert str(error.value) == (
        f"{tmp_path / 'encoder'}: not a language model; use a decoder-only model with a causal mask"
    )
    save_model(tmp_path / "no_tokenizer", tiny(tokenizer), {})
    with pytest.raises(QkvError) as error:
        qkv.load(tmp_path / "no_tokenizer")
    assert (
        str(error.value) == f"{tmp_path / 'no_tokenizer'}: no tokenizer.json; is the copy complete?"
    )


def test_a_prompt_of_the_context_length_is_accepted(bytewise):
    assert isinstance(bytewise("a" * 40, max_new_tokens=3, seed=0), str)
    assert bytewise([], seed=0) == []
