"""Models of ours, written as Hugging Face folders: transformers computes the same, or one line says what it lacks."""

import errno
from dataclasses import replace

import pytest
import torch
import transformers
from their_models import assert_close, stir

from qkv.checkpoint import disk
from qkv.checkpoint.folder import save_model
from qkv.checkpoint.huggingface.export import save_huggingface
from qkv.checkpoint.huggingface.reader import load_huggingface
from qkv.checkpoint.loaded_model import LoadedModel, PoolingConfig, metadata_of
from qkv.checkpoint.parity import _auto_class, compare, our_answer, peer, their_answer
from qkv.cli.app import run
from qkv.errors import QkvError
from qkv.model import spec as s
from qkv.model.presets import PRESETS, decoder_only, encoder_decoder, encoder_only, preset
from qkv.model.transformer import Transformer
from qkv.text.learn import learn

HEADS, GATED, DENSE = s.Heads(4, 2, 8), s.Gated(40), s.Dense(40, "gelu")
LATENT = s.Latent(4, kv_rank=8, d_nope=8, d_rope=4, d_value=6)
MOE = s.Experts(4, 2, s.Gated(12), s.Gated(24), normalised=False)
RMS = s.Norm("rms", "pre", 1e-6)


def decoder(layer: s.Layer, **more) -> s.Spec:
    return s.Spec(61, 32, decoder=s.Stack((layer,), "past", final_norm=True), max_len=48, **more)


SPECS = {
    "translator": (encoder_decoder(61, 32, 2, 4, 40), "marian"),
    "two vocabularies": (
        replace(encoder_decoder(61, 32, 2, 4, 40), source_vocab_size=47),
        "marian",
    ),
    "translator without biases": (
        s.Spec(
            61,
            32,
            s.Stack((s.Layer(s.Heads(4, 4, 8), s.Dense(40), s.Norm("layer", "post")),)),
            s.Stack(
                (
                    s.Layer(
                        s.Heads(4, 4, 8),
                        s.Dense(40),
                        s.Norm("layer", "post"),
                        cross=s.Heads(4, 4, 8),
                    ),
                ),
                "past",
            ),
            s.Sinusoidal(),
        ),
        "marian",
    ),
    "translator with a table of places": (
        replace(
            encoder_decoder(61, 32, 1, 4, 40),
            positions=s.Learned(first=2),
            encoder=replace(encoder_decoder(61, 32, 1, 4, 40).encoder, embed_norm=True),
            decoder=replace(encoder_decoder(61, 32, 1, 4, 40).decoder, embed_norm=True),
        ),
        "bart",
    ),
    "today's decoder": (decoder_only(61, 32, 2, HEADS, GATED), "llama"),
    "today's decoder, biased": (
        decoder_only(61, 32, 2, s.Heads(4, 2, 8, bias=True), GATED),
        "qwen2",
    ),
    "a window": (decoder_only(61, 32, 2, s.Heads(4, 2, 8, window=3), GATED), "mistral"),
    "normed queries": (decoder_only(61, 32, 2, s.Heads(4, 2, 8, qk_norm=True), GATED), "qwen3"),
    "scaled embeddings": (
        replace(decoder_only(61, 32, 2, HEADS, GATED), scaled_embedding=True),
        "gemma",
    ),
    "experts": (decoder_only(61, 32, 2, HEADS, s.Experts(4, 2, GATED)), "mixtral"),
    "latent attention": (
        decoder(s.Layer(LATENT, MOE, RMS), positions=s.Rotary(pairs="adjacent")),
        "deepseek_v2",
    ),
    "the decoder of 2019": (
        decoder(s.Layer(s.Heads(4, 4, 8), DENSE), positions=s.Learned()),
        "gpt2",
    ),
    "BERT": (encoder_only(61, 32, 2, 4, 40), "bert"),
    "an encoder without sentence types": (
        replace(encoder_only(61, 32, 2, 4, 40), token_types=0, head=None),
        "distilbert",
    ),
    "an encoder without head": (replace(encoder_only(61, 32, 2, 4, 40), head=None), "bert"),
}


def loaded(spec: s.Spec, **stored) -> LoadedModel:
    model = Transformer(spec)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.3)
    return LoadedModel(model.eval(), {}, metadata_of(model), **stored)


@pytest.mark.parametrize("name", SPECS)
def test_what_we_build_transformers_computes_alike(name, tmp_path):
    spec, family = SPECS[name]
    mine = loaded(spec)
    assert save_huggingface(tmp_path / "out", mine) == family
    auto = getattr(transformers, _auto_class(spec))
    theirs, notes = auto.from_pretrained(tmp_path / "out", output_loading_info=True)
    missing = {
        key for key in notes["missing_keys"] if "pooler" not in key
    }  # BertModel makes one even where there is none
    assert not missing and not notes["unexpected_keys"] and not notes["mismatched_keys"]
    largest, _, n_same = compare(spec, our_answer(mine.model), their_answer(theirs.eval(), spec), 4)
    assert largest < 1e-4 and n_same == 4


INEXPRESSIBLE = {
    "half a turn": (
        decoder_only(61, 32, 2, HEADS, GATED),
        {"positions": s.Rotary(share=0.5)},
        (
            "model.json: the nearest family, llama, has no way to say positions.share 0.5; such a model stays in our own format"
        ),
    ),
    "a biased head": (
        decoder_only(61, 32, 2, HEADS, GATED),
        {"head": s.LmHead(tied=False, bias=True)},
        (
            "model.json: the nearest family, llama, has no way to say head.bias True; such a model stays in our own format"
        ),
    ),
    "no shared expert": (
        decoder(
            s.Layer(LATENT, replace(MOE, shared=None), RMS), positions=s.Rotary(pairs="adjacent")
        ),
        {},
        (
            "model.json: the nearest family, deepseek_v2, has no way to say decoder.layers.0.feed_forward.shared None; such "
            "a model stays in our own format"
        ),
    ),
    "recurrence": (
        decoder_only(61, 32, 2, s.Recurrent(), GATED),
        {},
        (
            "model.json: no family of Hugging Face has this shape; we write llama, mistral, qwen2, qwen3, gemma, mixtral, "
            "qwen3_moe, deepseek_v2, deepseek_v3, gpt2, bert, roberta, distilbert, marian, bart"
        ),
    ),
    "a translator that turns": (
        encoder_decoder(61, 32, 2, 4, 40),
        {"positions": s.NoPositions()},
        (
            "model.json: the nearest family, bart, has no way to say encoder.embed_norm False, decoder.embed_norm False, "
            "positions {'kind': 'none'}; such a model stays in our own format"
        ),
    ),
}


@pytest.mark.parametrize("name", INEXPRESSIBLE)
def test_what_no_family_can_say_is_named_and_nothing_is_written(name, tmp_path):
    spec, change, line = INEXPRESSIBLE[name]
    with pytest.raises(QkvError) as error:
        save_huggingface(tmp_path / "out", loaded(replace(spec, **change)))
    assert str(error.value) == line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name", sorted(PRESETS.keys() - {"seq2seq", "causal-lm", "sentence-encoder"})
)  # models of our own
def test_every_well_known_preset_has_a_family(name):
    from qkv.checkpoint.huggingface.export import choose_family

    families = {
        "paper-base": "marian",
        "paper-big": "marian",
        "tiny": "marian",
        "small": "marian",
        "llama2-7b": "llama",
        "llama3-8b": "llama",
        "qwen": "qwen3",
        "deepseek": "deepseek_v2",
        "minilm": "bert",
    }
    expected = "qwen3" if name.startswith("lm-") else families.get(name, name)
    assert choose_family(preset(name))[0].model_type == expected


def test_a_sentence_encoder_keeps_its_pooling(tmp_path):
    pooling = PoolingConfig("mean", True, 48)
    save_huggingface(tmp_path / "out", loaded(encoder_only(61, 32, 1, 4, 40), pooling=pooling))
    assert load_huggingface(tmp_path / "out").pooling == pooling


@pytest.mark.parametrize("kind", ["bpe", "bytes", "wordpiece"])
def test_transformers_reads_our_tokenizer_from_the_folder(kind, tmp_path):
    texts = ["the cat sat on the mat", "a dog and a cat", "the end"]
    tokenizer = learn(kind, texts, 300)
    spec = decoder_only(tokenizer.vocab_size, 32, 1, HEADS, GATED)
    save_huggingface(tmp_path / "out", replace(loaded(spec), tokenizers={"tokenizer": tokenizer}))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in texts:
        assert theirs(text, add_special_tokens=False)["input_ids"] == tokenizer.encode(text)
        assert theirs.decode(tokenizer.encode(text), skip_special_tokens=True) == tokenizer.decode(
            tokenizer.encode(text)
        )
    assert (theirs.eos_token_id, theirs.pad_token_id) == (tokenizer.eos_id, tokenizer.pad_id)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert again.generation_config.eos_token_id == tokenizer.eos_id


def test_a_folder_that_is_there_is_not_overwritten(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    with pytest.raises(QkvError) as error:
        save_huggingface(tmp_path / "out", loaded(decoder_only(61, 32, 1, HEADS, GATED)))
    assert str(error.value) == f"{tmp_path}/out: is there already; choose another --out"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    "format, file", [("huggingface", "config.json"), ("ctranslate2", "model.bin")]
)
def test_the_empty_folder_one_stands_in_takes_the_model_and_stays_itself(
    format, file, tmp_path, monkeypatch
):
    tokenizer = learn("char", ["abcdefgh"], 20)
    save_model(
        tmp_path / "ours",
        loaded(encoder_decoder(tokenizer.vocab_size, 32, 1, 4, 40)).model,
        {"tokenizer": tokenizer},
    )
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    before = (tmp_path / "here").stat().st_ino
    assert run(["export", "../ours", "--to", format, "--out", ".", "--inputs", "2"]) == 0
    assert (tmp_path / "here" / file).exists() and (tmp_path / "here").stat().st_ino == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "ours"]


def test_a_move_that_fails_leaves_the_folder_one_stands_in_empty(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    rename = disk.rename

    def until_config(old, new):
        if new.name == "config.json":
            raise OSError(errno.ENOSPC, "")
        rename(old, new)

    monkeypatch.setattr(disk, "rename", until_config)
    with pytest.raises(QkvError) as error:
        save_huggingface(".", loaded(decoder_only(61, 32, 1, HEADS, GATED)))
    assert (
        str(error.value)
        == ".: not saved, the disk is full; free some space and try again, what was saved before is whole"
    )
    assert not list((tmp_path / "here").iterdir()) and [
        path.name for path in tmp_path.iterdir()
    ] == ["here"]


def test_half_precision_is_written_as_it_is(tmp_path):
    half = loaded(decoder_only(61, 32, 1, HEADS, GATED))
    half.model.to(torch.bfloat16)
    save_huggingface(tmp_path / "out", half)
    assert (
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").dtype == torch.bfloat16
    )
    back = load_huggingface(tmp_path / "out", dtype=None).model.state_dict()
    assert all(torch.equal(back[name], weight) for name, weight in half.model.state_dict().items())


def test_a_difference_is_reported_and_not_rounded_away(tmp_path):
    from contextlib import ExitStack

    mine = loaded(decoder_only(61, 32, 2, HEADS, GATED))
    save_huggingface(tmp_path / "out", mine)
    with ExitStack() as stay:
        name, theirs = peer(tmp_path / "out", mine.model.spec, stay)
        assert name == f"transformers {transformers.__version__}"
        largest, tolerance, n_same = compare(mine.model.spec, our_answer(mine.model), theirs, 4)
        assert largest <= tolerance and n_same == 4
        mine.model.decoder.layers[1].attn.branch.q_proj.weight.data *= 1.05
        largest, tolerance, n_same = compare(mine.model.spec, our_answer(mine.model), theirs, 4)
        assert largest > tolerance


def test_a_fresh_model_of_theirs_differs_from_ours(tmp_path):  # the comparison above can fail
    spec = decoder_only(61, 32, 1, HEADS, GATED)
    save_huggingface(tmp_path / "out", loaded(spec))
    theirs = stir(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out"))
    ids = torch.arange(8)[None]
    with pytest.raises(AssertionError), torch.no_grad():
        assert_close(our_answer(loaded(spec).model)(ids, ids), theirs(ids).logits, 1e-4)
