"""A translation begins with the token its folder tells, and stands between those its tokenizer puts around a text, in everything
of ours that translates, as in transformers."""

import json
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    BartConfig,
    BartForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    PreTrainedTokenizerFast,
)

from qkv.checkpoint.convert import export_folder, import_folder
from qkv.checkpoint.ctranslate2.export import export_ctranslate2
from qkv.checkpoint.huggingface.export import save_huggingface
from qkv.checkpoint.huggingface.reader import load_huggingface
from qkv.checkpoint.loaded_model import LoadedModel, metadata_of
from qkv.evaluate.perplexity import translation_perplexity
from qkv.explore.explorer import Explorer
from qkv.explore.subject import Subject
from qkv.generate.alignment import cross_weights
from qkv.generate.config import TranslationConfig
from qkv.model.presets import encoder_decoder
from qkv.model.transformer import Transformer
from qkv.pipeline import Translator
from qkv.text.learn import learn
from qkv.text.tokenizer import Tokenizer

LETTERS = learn("char", ["abcdefghijklmnop"], 30)  # <pad> <unk> <bos> <eos> are 0 to 3
TEXTS, STEPS = ["abc", "ponm", "a", "hgfedcba", "kkk"], 12
SIZE = {
    "vocab_size": LETTERS.vocab_size,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "forced_eos_token_id": None,
}
CASES = {
    "bart": (BartForConditionalGeneration, BartConfig(**SIZE, decoder_start_token_id=3)),
    "marian": (MarianMTModel, MarianConfig(**SIZE, decoder_start_token_id=0)),
}


def lively(name: str, folder: Path) -> torch.nn.Module:
    """Their model, saved with our tokenizer; norms and biases as they begin, for stirred ones drown what was read."""
    kind, config = CASES[name]
    model = kind(config).eval()
    with torch.no_grad():
        for place, weight in model.named_parameters():
            if weight.ndim == 2 and "embed_positions" not in place:
                weight.normal_(std=0.5)
    model.save_pretrained(folder)
    LETTERS.save(folder / "tokenizer.json")
    return model


def said_by_theirs(model: torch.nn.Module) -> list[list[int]]:
    """Greedy, and without <pad>, which ours never says; without what the decoder begins with."""
    rows = [torch.tensor([[*LETTERS.encode(text), 3]]) for text in TEXTS]
    return [
        model.generate(
            row, do_sample=False, num_beams=1, max_new_tokens=STEPS, suppress_tokens=[0]
        )[0, 1:].tolist()
        for row in rows
    ]


def said_by(ours: Translator) -> list[list[int]]:
    rows = [[*LETTERS.encode(text), 3] for text in TEXTS]
    return [
        ours.backend.search([row], TranslationConfig(beam_size=1, max_length=STEPS))[0][0].ids
        for row in rows
    ]


@pytest.fixture(params=CASES)
def imported(request, tmp_path) -> tuple[Path, list[list[int]]]:
    """Their folder, whose decoder begins with another token than <bos>, and what they say with it."""
    return tmp_path / "theirs", said_by_theirs(lively(request.param, tmp_path / "theirs"))


def test_greedy_ids_equal_theirs_and_saving_keeps_the_beginning(imported, tmp_path):
    folder, theirs = imported
    ours = Translator.load(folder)
    assert said_by(ours) == theirs and len(set(map(tuple, theirs))) > 1
    ours.save(tmp_path / "saved")
    assert said_by(Translator.load(tmp_path / "saved")) == theirs
    import_folder(folder, tmp_path / "ours", 0)
    assert said_by(Translator.load(tmp_path / "ours")) == theirs
    export_folder(tmp_path / "saved", tmp_path / "again", 0)
    assert said_by_theirs(AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "again")) == theirs


def test_the_page_shows_the_translation_that_begins_so(imported):
    folder, theirs = imported
    explorer, start = (
        Explorer(Subject(load_huggingface(folder), "theirs")),
        Translator.load(folder).bos,
    )
    for text, said in zip(TEXTS, theirs, strict=True):
        ids = explorer.open(text)["sides"]["target"]["ids"]
        assert ids[:STEPS] == [start, *(id for id in said if id != 3)][:STEPS]


def test_ctranslate2_begins_so_too(tmp_path):
    model = lively("marian", tmp_path / "theirs")
    import_folder(tmp_path / "theirs", tmp_path / "ours", 0)
    _, report = export_ctranslate2(tmp_path / "ours", tmp_path / "ct2", 4)
    assert report.same and json.loads((tmp_path / "ct2" / "qkv.json").read_text())["bos"] == 0
    assert said_by(Translator.load_ctranslate2(tmp_path / "ct2")) == said_by_theirs(model)


def test_without_bos_what_we_export_begins_with_pad_as_our_translator_does(tmp_path):
    rules = LETTERS.rules | {
        "added_tokens": [one for one in LETTERS.rules["added_tokens"] if one["content"] != "<bos>"]
    }
    tokenizer = Tokenizer.from_json(json.dumps(rules))
    model = Transformer(encoder_decoder(LETTERS.vocab_size, 32, 1, 4, 40)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.3)
    save_huggingface(
        tmp_path / "out", LoadedModel(model, {"tokenizer": tokenizer}, metadata_of(model))
    )
    theirs = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    assert (
        tokenizer.bos_id,
        theirs.generation_config.decoder_start_token_id,
        theirs.config.decoder_start_token_id,
    ) == (None, 0, 0)
    assert said_by_theirs(theirs) == said_by(Translator.from_model(model, tokenizer, tokenizer))


# ── A tokenizer that frames its texts ────────────────────────────────────────────────────────────────────────────
FRAMED = Tokenizer.from_json(
    json.dumps(
        LETTERS.rules
        | {
            "post_processor": {
                "type": "RobertaProcessing",
                "cls": ["<bos>", 2],
                "sep": ["<eos>", 3],
                "trim_offsets": True,
                "add_prefix_space": False,
            }
        }
    )
)


@pytest.fixture
def framed(tmp_path) -> tuple[Path, torch.nn.Module, PreTrainedTokenizerFast]:
    """BART as it is: <s> and </s> around what the encoder reads and around what the decoder is taught to say."""
    model = lively("bart", tmp_path / "theirs")
    FRAMED.save(tmp_path / "theirs" / "tokenizer.json")
    return (
        tmp_path / "theirs",
        model,
        PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "theirs" / "tokenizer.json")),
    )


def texts_of_theirs(model: torch.nn.Module, tokenizer: PreTrainedTokenizerFast) -> list[str]:
    asked = [torch.tensor([tokenizer(text).input_ids]) for text in TEXTS]
    said = [
        model.generate(
            row, do_sample=False, num_beams=1, max_new_tokens=STEPS, suppress_tokens=[0]
        )[0]
        for row in asked
    ]
    return [tokenizer.decode(row, skip_special_tokens=True) for row in said]


def test_what_the_tokenizer_puts_around_a_text_the_encoder_reads(framed, tmp_path):
    folder, model, tokenizer = framed
    ours, theirs = Translator.load(folder), texts_of_theirs(model, tokenizer)
    assert ours.encode_source("abc") == tokenizer("abc").input_ids == [2, *LETTERS.encode("abc"), 3]
    assert ours(TEXTS, beam_size=1, max_length=STEPS) == theirs and len(set(theirs)) > 1
    assert theirs != Translator.from_model(ours.model, LETTERS, LETTERS, stored=ours.stored)(
        TEXTS, beam_size=1, max_length=STEPS
    )
    explorer = Explorer(Subject(load_huggingface(folder), "theirs"))
    assert explorer.open("abc")["sides"]["source"]["ids"] == tokenizer("abc").input_ids
    import_folder(folder, tmp_path / "ours", 0)
    export_ctranslate2(tmp_path / "ours", tmp_path / "ct2", 0)
    assert (
        Translator.load_ctranslate2(tmp_path / "ct2")(TEXTS, beam_size=1, max_length=STEPS)
        == theirs
    )


def test_a_framed_source_fills_the_model_to_its_last_place(framed):
    ours = Translator.load(framed[0])
    ours("a" * (64 - 2), beam_size=1, max_length=2)
    assert ours.limit == 62 and [
        len(segments) for segments in ours.segment(["a" * 62, "a" * 63])
    ] == [1, 2]


def test_perplexity_of_a_framed_pair_is_theirs(framed):
    folder, model, tokenizer = framed
    ours = Translator.load(folder)
    asked, right = (torch.tensor([tokenizer(text).input_ids]) for text in ("abc", "ponm"))
    with torch.no_grad():
        theirs = model(input_ids=asked, labels=right).loss.item()
    found = translation_perplexity(
        ours.model, [ours.encode_source("abc")], [ours.encode_target("ponm")]
    )
    assert found.tokens == right.numel() and found.nats / found.tokens == pytest.approx(
        theirs, rel=1e-5
    )


def test_alignment_counts_from_the_text_not_from_its_frame(framed):
    ours = Translator.load(framed[0])
    ids = LETTERS.encode("po")
    weights = cross_weights(ours.model, [2, *LETTERS.encode("abc"), 3], [ours.bos, ids[0]])
    (word,) = ours.links("abc", ids)
    assert word.source == "abc" and word.weight == pytest.approx(
        weights[:, 1:4].sum(dim=1).mean().item(), abs=1e-4
    )
