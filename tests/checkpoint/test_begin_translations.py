"""Decoder start token and post-processing template of translation models equal transformers."""

import json
from pathlib import Path

import pytest
import torch
from tiny_sizes import TRANSLATOR
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
from qkv.explore.explored_model import ExploredModel
from qkv.explore.explorer import Explorer
from qkv.generate.alignment import cross_weights
from qkv.generate.config import TranslationConfig
from qkv.model.presets import encoder_decoder
from qkv.model.transformer import Transformer
from qkv.pipeline import Translator
from qkv.text.tokenizer import Tokenizer
from qkv.text.train_tokenizer import train_tokenizer

LETTERS = train_tokenizer("char", ["abcdefghijklmnop"], 30)  # <pad> <unk> <bos> <eos> are 0 to 3
TEXTS, STEPS = ["abc", "ponm", "a", "hgfedcba", "kkk"], 12
SIZE = TRANSLATOR | {
    "vocab_size": LETTERS.vocab_size,
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


def random_reference(name: str, folder: Path) -> torch.nn.Module:
    """A saved transformers model with random matrices; random norms would hide the source."""
    kind, config = CASES[name]
    model = kind(config).eval()
    with torch.no_grad():
        for weight_name, weight in model.named_parameters():
            if weight.ndim == 2 and "embed_positions" not in weight_name:
                weight.normal_(std=0.5)
    model.save_pretrained(folder)
    LETTERS.save(folder / "tokenizer.json")
    return model


def reference_ids(model: torch.nn.Module) -> list[list[int]]:
    """Greedy ids without <pad>, which qkv suppresses, and without the decoder start token."""
    rows = [torch.tensor([[*LETTERS.encode(text), 3]]) for text in TEXTS]
    return [
        model.generate(
            row, do_sample=False, num_beams=1, max_new_tokens=STEPS, suppress_tokens=[0]
        )[0, 1:].tolist()
        for row in rows
    ]


def native_ids(translator: Translator) -> list[list[int]]:
    rows = [[*LETTERS.encode(text), 3] for text in TEXTS]
    return [
        translator.backend.search([row], [STEPS], TranslationConfig(beam_size=1))[0][0].ids
        for row in rows
    ]


@pytest.fixture(params=CASES)
def imported(request, tmp_path) -> tuple[Path, list[list[int]]]:
    """A folder whose decoder start token is not <bos>, and the greedy ids of transformers."""
    return tmp_path / "reference", reference_ids(
        random_reference(request.param, tmp_path / "reference")
    )


def test_greedy_ids_equal_transformers_and_saving_keeps_the_start_token(imported, tmp_path):
    folder, expected = imported
    translator = Translator.load(folder)
    assert native_ids(translator) == expected and len(set(map(tuple, expected))) > 1
    translator.save(tmp_path / "saved")
    assert native_ids(Translator.load(tmp_path / "saved")) == expected
    import_folder(folder, tmp_path / "native", 0)
    assert native_ids(Translator.load(tmp_path / "native")) == expected
    export_folder(tmp_path / "saved", tmp_path / "again", 0)
    assert reference_ids(AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "again")) == expected


def test_the_explorer_uses_the_start_token(imported):
    folder, expected = imported
    explorer, start = (
        Explorer(ExploredModel(load_huggingface(folder), "expected")),
        Translator.load(folder).bos,
    )
    for text, generated in zip(TEXTS, expected, strict=True):
        ids = explorer.open(text)["sides"]["target"]["ids"]
        assert ids[:STEPS] == [start, *(id for id in generated if id != 3)][:STEPS]


def test_ctranslate2_uses_the_start_token(tmp_path):
    model = random_reference("marian", tmp_path / "reference")
    import_folder(tmp_path / "reference", tmp_path / "native", 0)
    _, report = export_ctranslate2(tmp_path / "native", tmp_path / "ct2", 4)
    assert report.same and json.loads((tmp_path / "ct2" / "qkv.json").read_text())["bos"] == 0
    assert native_ids(Translator.load_ctranslate2(tmp_path / "ct2")) == reference_ids(model)


def test_without_bos_the_exported_start_token_is_pad(tmp_path):
    config = LETTERS.config | {
        "added_tokens": [
            token for token in LETTERS.config["added_tokens"] if token["content"] != "<bos>"
        ]
    }
    tokenizer = Tokenizer.from_json(json.dumps(config))
    model = Transformer(encoder_decoder(LETTERS.vocab_size, 32, 1, 4, 40)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.3)
    save_huggingface(
        tmp_path / "out", LoadedModel(model, {"tokenizer": tokenizer}, metadata_of(model))
    )
    expected = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    assert (
        tokenizer.bos_id,
        expected.generation_config.decoder_start_token_id,
        expected.config.decoder_start_token_id,
    ) == (None, 0, 0)
    assert reference_ids(expected) == native_ids(Translator.from_model(model, tokenizer, tokenizer))


# ── A tokenizer with a post-processing template ─────────────────────────────────────────────────
TEMPLATED = Tokenizer.from_json(
    json.dumps(
        LETTERS.config
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
def templated(tmp_path) -> tuple[Path, torch.nn.Module, PreTrainedTokenizerFast]:
    """BART: <s> and </s> around the source and around the target."""
    model = random_reference("bart", tmp_path / "reference")
    TEMPLATED.save(tmp_path / "reference" / "tokenizer.json")
    return (
        tmp_path / "reference",
        model,
        PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "reference" / "tokenizer.json")),
    )


def reference_texts(model: torch.nn.Module, tokenizer: PreTrainedTokenizerFast) -> list[str]:
    inputs = [torch.tensor([tokenizer(text).input_ids]) for text in TEXTS]
    generated = [
        model.generate(
            row, do_sample=False, num_beams=1, max_new_tokens=STEPS, suppress_tokens=[0]
        )[0]
        for row in inputs
    ]
    return [tokenizer.decode(row, skip_special_tokens=True) for row in generated]


def test_the_encoder_input_has_the_special_tokens_of_the_template(templated, tmp_path):
    folder, model, tokenizer = templated
    translator, expected = Translator.load(folder), reference_texts(model, tokenizer)
    assert (
        translator.encode_source("abc")
        == tokenizer("abc").input_ids
        == [2, *LETTERS.encode("abc"), 3]
    )
    assert (
        translator(TEXTS, beam_size=1, max_target_len=STEPS) == expected and len(set(expected)) > 1
    )
    assert expected != Translator.from_model(
        translator.model, LETTERS, LETTERS, stored=translator.stored
    )(TEXTS, beam_size=1, max_target_len=STEPS)
    explorer = Explorer(ExploredModel(load_huggingface(folder), "expected"))
    assert explorer.open("abc")["sides"]["source"]["ids"] == tokenizer("abc").input_ids
    import_folder(folder, tmp_path / "native", 0)
    export_ctranslate2(tmp_path / "native", tmp_path / "ct2", 0)
    assert (
        Translator.load_ctranslate2(tmp_path / "ct2")(TEXTS, beam_size=1, max_target_len=STEPS)
        == expected
    )


def test_a_source_with_special_tokens_fills_the_model_to_max_len(templated):
    translator = Translator.load(templated[0])
    translator("a" * (64 - 2), beam_size=1, max_target_len=2)
    assert translator.max_source_len == 62 and [
        len(segments) for segments in translator.segment(["a" * 62, "a" * 63])
    ] == [1, 2]


def test_perplexity_with_a_template_equals_transformers(templated):
    folder, model, tokenizer = templated
    translator = Translator.load(folder)
    inputs, right = (torch.tensor([tokenizer(text).input_ids]) for text in ("abc", "ponm"))
    with torch.no_grad():
        expected = model(input_ids=inputs, labels=right).loss.item()
    found = translation_perplexity(
        translator.model, [translator.encode_source("abc")], [translator.encode_target("ponm")]
    )
    assert found.tokens == right.numel() and found.nats / found.tokens == pytest.approx(
        expected, rel=1e-5
    )


def test_alignment_excludes_special_tokens(templated):
    translator = Translator.load(templated[0])
    ids = LETTERS.encode("po")
    weights = cross_weights(
        translator.model, [2, *LETTERS.encode("abc"), 3], [translator.bos, ids[0]]
    )
    (word,) = translator.links("abc", ids)
    assert word.source == "abc" and word.weight == pytest.approx(
        weights[:, 1:4].sum(dim=1).mean().item(), abs=1e-4
    )
