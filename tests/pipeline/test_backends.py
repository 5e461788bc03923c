"""Translator and Generator with fake backends in plain Python, and with the torch backend."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from qkv.errors import QkvError
from qkv.generate.backend import GeneratedTokens, Hypothesis, OnToken
from qkv.generate.config import GenerationConfig, TranslationConfig
from qkv.model.presets import encoder_decoder
from qkv.model.transformer import Transformer
from qkv.pipeline import Generator, Translator
from qkv.text.special_tokens import generation_tokens
from qkv.text.train_tokenizer import train_tokenizer

LETTERS = train_tokenizer("char", ["abcdefgh. "], 20)
EOS = LETTERS.eos_id


class ReversingSearch:
    """A fake search that reverses its source; rank n repeats it n + 1 times, with a lower score."""

    bos, eos, pad, max_len, model = LETTERS.bos_id, EOS, LETTERS.pad_id, 9, None

    def __init__(self) -> None:
        self.seen: list[list[list[int]]] = []

    def search(
        self, rows: list[list[int]], limits: list[int], config: TranslationConfig
    ) -> list[list[Hypothesis]]:
        self.seen.append(rows)
        return [
            [
                Hypothesis([*row[-2::-1] * (rank + 1), EOS], 0.0, -1.0 - rank)
                for rank in range(config.beam_size)
            ]
            for row in rows
        ]


class EchoGeneration:
    """A fake generation loop that repeats its prompt."""

    context_length, model = 40, None

    def check(self, config: GenerationConfig) -> None:
        config.check_vocabulary(LETTERS.vocab_size)

    def generate(
        self, prompts: list[list[int]], config: GenerationConfig, on_token: OnToken | None
    ) -> list[GeneratedTokens]:
        def ids(number: int, prompt: list[int]) -> list[int]:
            generated: list[int] = []
            for id in self.stream(prompt, config):
                generated.append(id)
                if on_token and on_token(number, id):
                    break
            return generated

        copies = [prompt for prompt in prompts for _ in range(config.n)]
        return [
            GeneratedTokens(ids(number, prompt), "length") for number, prompt in enumerate(copies)
        ]

    def stream(self, prompt: list[int], config: GenerationConfig) -> Iterator[int]:
        for position in range(config.max_new_tokens):
            yield prompt[position % len(prompt)]


def record_texts(tokenizer: object, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record every text that the tokenizer encodes."""
    texts: list[str] = []
    encode_batch = type(tokenizer).encode_batch

    def recording(self: object, batch: list[str], *options: object) -> list[list[int]]:
        texts.extend(batch := list(batch))
        return encode_batch(self, batch, *options)

    monkeypatch.setattr(type(tokenizer), "encode_batch", recording)
    return texts


# ── Translator ────────────────────────────────────────────────────────────────────────────────────
def test_texts_are_split_batched_by_length_and_joined_in_their_order():
    backend = ReversingSearch()
    texts = ["abc", "", "a\n\nbcd", "  gh "]
    assert Translator(backend, LETTERS, LETTERS)(texts, batch_size=2) == [
        "cba",
        "",
        "a\n\ndcb",
        "hg",
    ]
    assert [[LETTERS.decode(row) for row in rows] for rows in backend.seen] == [
        ["abc", "bcd"],
        ["gh", "a"],
    ]
    assert all(row[-1] == EOS for rows in backend.seen for row in rows)


def test_nth_translations_of_parts_are_joined_and_scores_added():
    best = Translator(ReversingSearch(), LETTERS, LETTERS).translate(["ab\n\nc"], n_best=2)[0]
    assert [(translation.text, translation.score) for translation in best] == [
        ("ba\n\nc", -2.0),
        ("baba\n\ncc", -4.0),
    ]
    assert best[0].tokens == ["b", "a", "c"]


def test_every_text_is_tokenized_once(monkeypatch):
    texts = record_texts(LETTERS, monkeypatch)
    ours = Translator(ReversingSearch(), LETTERS, LETTERS)
    texts.clear()  # texts encoded to find the special tokens
    ours(["abc", "d\n ef "])
    assert texts == ["abc", "d", "ef"]
    texts.clear()
    long = "abc. defgh. abcdefgha."
    assert ours(long) == ".cba .hgfed hgfedcba .a"
    assert len(texts) == len(set(texts)) and texts[0] == long


def test_keyword_settings_override_fields_of_the_config():
    config = TranslationConfig(beam_size=3, n_best=3, details=False)
    ours = Translator(ReversingSearch(), LETTERS, LETTERS)
    assert ours.translate(["ab"], config) == ours.translate(
        ["ab"], beam_size=3, n_best=3, details=False
    )
    assert len(ours.translate(["ab"], config, n_best=2)[0]) == 2
    with pytest.raises(QkvError) as error:
        ours.translate(["ab"], config, n_best=4)
    assert (
        str(error.value) == "n_best: 4 is larger than beam_size 3; raise beam_size or lower n_best"
    )


def test_operations_on_the_torch_model_are_rejected_without_one(tmp_path):
    for save in (Translator(ReversingSearch(), LETTERS, LETTERS).save, echo().save):
        with pytest.raises(QkvError) as error:
            save(tmp_path)
        assert (
            str(error.value)
            == "model: it runs in CTranslate2, not in torch; open the folder it was exported from"
        )
    with pytest.raises(QkvError) as error:
        Translator(ReversingSearch(), LETTERS, LETTERS).translate([], alignment=True)
    assert str(error.value) == (
        "alignment: CTranslate2 does not return attention weights; "
        "use --engine torch with the folder it was exported from"
    )


@pytest.mark.parametrize("beam_size", [1, 3])
def test_the_torch_backend_is_batch_invariant_and_returns_log_probabilities(beam_size):
    torch.manual_seed(0)
    ours = Translator.from_model(
        Transformer(encoder_decoder(LETTERS.vocab_size, 16, 1, 2, 16)).double(), LETTERS, LETTERS
    )
    config = TranslationConfig(beam_size)
    rows = [ours.encode_source(text) for text in ("abc", "h", "bcdefg")]
    batched = ours.backend.search(rows, [6] * 3, config)
    assert [[hypothesis.ids for hypothesis in best] for best in batched] == [
        [hypothesis.ids for hypothesis in ours.backend.search([row], [6], config)[0]]
        for row in rows
    ]
    for row, best in zip(rows, batched, strict=True):
        ids = torch.tensor([[ours.bos, *best[0].ids[:-1]]])
        with torch.no_grad():
            logits = ours.model.logits(
                ours.model.decode(ids, ours.model.encode(torch.tensor([row])))
            )[0]
        logits[:, [ours.bos, ours.pad]] = -torch.inf  # never generated
        expected = logits.log_softmax(dim=1)[range(ids.shape[1]), best[0].ids].sum()
        assert best[0].log_prob == pytest.approx(float(expected), abs=1e-9)
        assert best[0].score == pytest.approx(
            float(expected) / ((5 + ids.shape[1]) / 6) ** 0.6, abs=1e-9
        )


# ── Generator ─────────────────────────────────────────────────────────────────────────────────────
def echo() -> Generator:
    return Generator(EchoGeneration(), LETTERS, generation_tokens(LETTERS))


def test_n_texts_per_prompt_are_returned_in_the_order_of_prompts():
    assert echo()(["ab", "cdef", "g"], max_new_tokens=5, batch_size=4, n=2) == [
        ["ababa"] * 2,
        ["cdefc"] * 2,
        ["ggggg"] * 2,
    ]


def test_stop_strings_work_with_every_backend():
    (sequence,) = echo().generate(["abcd"], max_new_tokens=9, stop=["cda", "dabh"], seed=1)[0]
    assert (sequence.text, sequence.finish_reason, len(sequence.ids)) == ("ab", "stop", 5)
    assert list(echo().stream("abcd", max_new_tokens=9, stop=["cda", "dabh"])) == ["a", "b"]


def test_a_prompt_is_tokenized_once(monkeypatch):
    texts = record_texts(LETTERS, monkeypatch)
    ours = echo()
    texts.clear()
    ours.generate(["ab", "cd"], max_new_tokens=3, n=2)
    assert texts == ["ab", "cd"]


def test_keyword_settings_equal_a_generation_config():
    config = GenerationConfig(max_new_tokens=4, seed=3)
    assert echo().generate(["ab"], config) == echo().generate(["ab"], max_new_tokens=4, seed=3)
    assert "".join(echo().stream("ab", config, max_new_tokens=3)) == "aba"


def test_the_classes_do_not_import_torch():
    code = (
        "import sys; import qkv; from qkv.pipeline import Generator, Translator\n"
        "import qkv.generate.ctranslate2_generator, qkv.generate.ctranslate2_translator\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
