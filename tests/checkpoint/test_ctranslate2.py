"""Export to CTranslate2: the same scores and translations; unsupported parts are named."""

import re
import runpy
from dataclasses import replace
from pathlib import Path

import ctranslate2
import pytest
import torch
from same_translations import differences, ids_of, torch_scores
from scipy.stats import binomtest
from without_torch import run_command_without_torch, run_without_torch

import qkv
from qkv.checkpoint.ctranslate2.export import export_ctranslate2, save_ctranslate2, token_names
from qkv.checkpoint.folder import load_model, save_model
from qkv.checkpoint.loaded_model import LoadedModel, metadata_of
from qkv.cli.app import run
from qkv.errors import QkvError
from qkv.generate.backend import Hypothesis
from qkv.generate.config import TranslationConfig
from qkv.generate.ctranslate2_translator import settled
from qkv.model import spec as s
from qkv.model.presets import decoder_only, encoder_decoder
from qkv.model.transformer import Transformer
from qkv.pipeline.segments import Translation
from qkv.pipeline.translator import Translator
from qkv.text.train_tokenizer import train_tokenizer

TOY = runpy.run_path(str(Path(__file__).resolve().parents[1] / "toy_translator.py"))
SCORE = r"-\d+\.\d+"
LETTERS = train_tokenizer("char", ["abcdefghijklmnop"], 30)


@pytest.fixture(scope="module")
def exported(digits) -> Path:
    metadata, report = export_ctranslate2(digits, digits.parent / "ct2", 16)
    assert report.same and report.greedy and report.n_same == 16 and report.max_difference < 1e-4
    assert (metadata.family, metadata.dtype) == ("ctranslate2", "float32")
    return digits.parent / "ct2"


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [source for source, _ in TOY["pairs"](200, seed=5)]


def engine(folder: Path, texts: list[str], **settings) -> list[list[tuple[str, float, list[str]]]]:
    """Translations of the CTranslate2 engine, in a process without torch."""
    code = (
        "folder, texts, settings = inputs\n"
        "found = qkv.load(folder).translate(texts, **settings)\n"
        "found = [[astuple(hypothesis)[:3] for hypothesis in best] for best in found]"
    )
    return run_without_torch(code, str(folder), texts, settings)


def random_model(spec: s.Spec) -> Transformer:
    """Random weights, also for norms and biases."""
    model = Transformer(spec).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(
                torch.randn_like(weight) * (weight.shape[-1] ** -0.5 if weight.ndim > 1 else 0.3)
                + (weight.ndim == 1)
            )
    return model


def spec_of(
    positions: s.Positions, norm: s.Norm, ffn: s.FeedForward, attention: s.Attention, **options
) -> s.Spec:
    layer, last = s.Layer(attention, ffn, norm, repeat=2), norm.placement == "pre"
    encoder = s.Stack((layer,), final_norm=last)
    decoder = s.Stack(
        (replace(layer, cross=replace(attention, qk_norm=False, window=None)),),
        causal=True,
        final_norm=last,
    )
    return s.Spec(LETTERS.vocab_size, 16, encoder, decoder, positions, max_len=40, **options)


PRE, POST = s.Norm("rms", "pre", 1e-3), s.Norm("layer", "post")
BIASED, PLAIN = s.Attention(2, 2, 8, bias=True, out_bias=True), s.Attention(2, 2, 8)
TRANSLATORS = {
    "2017": encoder_decoder(LETTERS.vocab_size, 16, 2, 2, 24),
    "halves": spec_of(
        s.Sinusoidal("halves"), POST, s.Dense(24, "silu", True), BIASED, head=s.LmHead(bias=True)
    ),
    "learned": spec_of(
        s.Learned(2),
        s.Norm("layer", "pre"),
        s.Dense(24, "gelu", True),
        BIASED,
        head=s.LmHead(False),
    ),
    "none": spec_of(s.NoPositions(), PRE, s.Gated(24, "gelu_tanh"), PLAIN, scaled_embedding=True),
    "rotary": spec_of(s.Rotary(500.0), PRE, s.Gated(24), s.Attention(2, 2, 8, qk_norm=True)),
    "adjacent": spec_of(
        s.Rotary(partial_rotary_factor=0.5, interleaved=True, scaling=s.LinearScaling(2.0)),
        POST,
        s.Dense(24),
        BIASED,
    ),
    "relu2": spec_of(
        s.Rotary(), PRE, s.Dense(24, "relu2", True), s.Attention(4, 2, 4, qk_norm=True)
    ),
    "one key head": spec_of(s.Rotary(), PRE, s.Dense(24, "relu2"), s.Attention(4, 1, 8)),
}
GENERATORS = {
    "llama": replace(
        decoder_only(LETTERS.vocab_size, 16, 2, s.Attention(2, 1, 8), s.Gated(24)), max_len=40
    ),
    "gpt2": s.Spec(
        LETTERS.vocab_size,
        16,
        None,
        s.Stack(
            (s.Layer(BIASED, s.Dense(24, "gelu_tanh", True), repeat=2),),
            causal=True,
            final_norm=True,
        ),
        s.Learned(),
        max_len=40,
    ),
    "qwen": replace(
        decoder_only(LETTERS.vocab_size, 16, 2, s.Attention(2, 2, 16, qk_norm=True), s.Gated(24)),
        max_len=40,
    ),
}


@pytest.mark.parametrize(
    "spec", (TRANSLATORS | GENERATORS).values(), ids=(TRANSLATORS | GENERATORS).keys()
)
def test_every_supported_part_gives_the_same_scores_and_greedy_text(spec, tmp_path):
    save_model(tmp_path / "native", random_model(spec), {"tokenizer": LETTERS})
    _, report = export_ctranslate2(tmp_path / "native", tmp_path / "exported", 8)
    assert report.same and report.max_difference < 1e-4 and report.n_same == 8


def test_a_wrong_weight_is_reported_with_exit_code_1(digits, tmp_path, monkeypatch, capsys):
    from qkv.checkpoint.ctranslate2 import spec as ctranslate2_spec

    right = ctranslate2_spec.fill_norm
    monkeypatch.setattr(
        ctranslate2_spec,
        "fill_norm",
        lambda target, name, remaining: (
            right(target, name, remaining),
            setattr(target, "gamma", target.gamma * (1.01 if "cross" in name else 1)),
        ),
    )
    assert run(["export", str(digits), "--to", "ctranslate2", "--out", str(tmp_path / "bad")]) == 1
    assert "✗ compared with ctranslate2" in capsys.readouterr().out


@pytest.mark.parametrize(
    "settings",
    [
        {"beam_size": 1},
        {"beam_size": 4},
        {"beam_size": 4, "n_best": 4, "length_penalty": 0.0},
        {"beam_size": 3, "max_target_len": 3},
        {"beam_size": 5, "n_best": 2, "length_penalty": 2.0},
        {"beam_size": 5, "n_best": 5, "length_penalty": 2.0},
    ],
    ids=str,
)
def test_all_200_translations_and_scores_equal_torch(digits, exported, texts, settings):
    translator = qkv.load(digits)
    expected, actual = (
        translator.translate(texts, **settings),
        as_translations(engine(exported, texts, **settings)),
    )
    assert differences(translator, texts, expected, actual, **settings) == []


def as_translations(found: list[list[tuple[str, float, list[str]]]]) -> list[list[Translation]]:
    return [[Translation(text, score, tokens) for text, score, tokens in best] for best in found]


@pytest.mark.parametrize("scale", [1.01, 1.1])
def test_a_changed_weight_matrix_gives_other_translations(digits, texts, tmp_path, scale):
    loaded = load_model(digits)
    with torch.no_grad():
        loaded.model.decoder.layers[0].cross.branch.v_proj.weight.mul_(scale)
    save_ctranslate2(tmp_path / "other", loaded)
    translator = qkv.load(digits)
    expected, actual = (
        translator.translate(texts),
        as_translations(engine(tmp_path / "other", texts)),
    )
    assert len(differences(translator, texts, expected, actual)) > 100


def test_only_texts_with_equal_scores_are_ties(digits):
    plain, doubled, source = qkv.load(digits), qkv.load(digits), "三一。"
    id_one, id_two = ids_of(doubled, ["one", "two"])
    with torch.no_grad():  # two words with the same embedding
        doubled.model.embed.weight[id_two] = doubled.model.embed.weight[id_one]

    def translation(translator: qkv.Translator, word: str) -> Translation:
        tokens = ["three", word, "."]
        return Translation(
            f"three {word}.",
            torch_scores(translator, source, ids_of(translator, tokens), TranslationConfig())[0],
            tokens,
        )

    def differ(translator: qkv.Translator, a: Translation, b: Translation) -> bool:
        return bool(differences(translator, [source], [[a]], [[b]]))

    a, b = translation(doubled, "one"), translation(doubled, "two")
    assert not differ(doubled, a, a) and not differ(doubled, a, b)
    assert differ(doubled, a, replace(b, score=b.score - 2e-4)) and differ(
        doubled, a, replace(a, score=a.score - 2e-4)
    )
    assert differ(doubled, a, replace(b, text="three.")) and differ(
        doubled, a, replace(a, text="three two.")
    )
    a, b = translation(plain, "one"), translation(plain, "two")
    assert differ(plain, a, b) and differ(plain, a, replace(b, score=a.score))  # a false score


def test_beam_search_of_a_random_model_equals_torch(tmp_path):
    """Hypotheses reach the length limit, and searches are repeated with more steps."""
    spec = replace(encoder_decoder(LETTERS.vocab_size, 16, 1, 2, 24), max_len=60)
    save_model(tmp_path / "native", random_model(spec), {"tokenizer": LETTERS})
    export_ctranslate2(tmp_path / "native", tmp_path / "exported", 0)
    texts = ["abc", "ponm abc abc", "a", "", "abcdefghijklmnop" * 2]
    for settings in ({"beam_size": 1}, {"beam_size": 2}):
        model = qkv.load(tmp_path / "native")
        expected, actual = (
            model.translate(texts, **settings),
            as_translations(engine(tmp_path / "exported", texts, **settings)),
        )
        assert differences(model, texts, expected, actual, **settings) == []


def test_int8_is_smaller_and_not_worse(digits, exported, tmp_path):
    pairs = TOY["pairs"](200, seed=6)
    _, report = export_ctranslate2(digits, tmp_path / "int8", 16, int8=True)
    assert report.same and not report.greedy and 1e-4 < report.max_difference <= report.tolerance
    small, large = (
        (folder / "model.bin").stat().st_size for folder in (tmp_path / "int8", exported)
    )
    assert small < 0.6 * large  # biases and norms stay float32
    right, before = (
        [
            best[0][0] == b
            for best, (_, b) in zip(engine(folder, [a for a, _ in pairs]), pairs, strict=True)
        ]
        for folder in (tmp_path / "int8", exported)
    )
    lost, won = (
        sum(b and not a for a, b in zip(right, before, strict=True)),
        sum(a and not b for a, b in zip(right, before, strict=True)),
    )
    assert binomtest(lost, max(1, lost + won), alternative="greater").pvalue > 0.01, (
        lost,
        won,
    )  # paired sign test


def test_an_int8_export_does_not_change_the_model_in_memory(digits, tmp_path):
    model = qkv.load(digits)
    before = {name: weight.clone() for name, weight in model.model.state_dict().items()}
    loaded = LoadedModel(
        model.model, {"source": model.source, "target": model.target}, metadata_of(model.model)
    )
    save_ctranslate2(tmp_path / "int8", loaded, int8=True)
    assert all(
        torch.equal(weight, before[name]) for name, weight in model.model.state_dict().items()
    )


@pytest.mark.parametrize(
    "options", [[], ["--n-best", "2"], ["--json", "--beam-size", "1"]], ids=str
)
def test_the_command_prints_the_same_with_either_engine_and_imports_no_torch(
    digits, exported, texts, tmp_path, capsys, options
):
    (tmp_path / "in.txt").write_text(
        "\n".join([*texts[:20], "", "三一二四。" * 30]), encoding="utf-8"
    )
    options = ["--file", str(tmp_path / "in.txt"), *options]
    actual = run_command_without_torch(
        "translate", str(exported), "--engine", "ctranslate2", *options
    )
    assert run(["translate", str(digits), "--engine", "torch", *options]) == 0
    expected = capsys.readouterr().out
    scores = [re.findall(SCORE, out) for out in (expected, actual)]
    assert list(map(float, scores[0])) == pytest.approx(
        list(map(float, scores[1])), abs=2e-4
    )  # four digits are printed
    assert (
        re.sub(SCORE, "", expected) == re.sub(SCORE, "", actual)
        and len(expected.splitlines()) >= 22
    )


def test_ctranslate2_alone_can_use_the_folder(exported):
    core = ctranslate2.Translator(str(exported), intra_threads=1)
    assert core.translate_batch([["三", "一", "。", "<eos>"]], beam_size=1)[0].hypotheses == [
        ["three", "one", "."]
    ]


# ── When beam search stops ──────────────────────────────────────────────────────────────────────
def test_a_search_stops_when_no_live_hypothesis_can_improve():
    settings = TranslationConfig(
        beam_size=2, length_penalty=1.0
    )  # the longest translation, 13 tokens, has the penalty 3
    done = Hypothesis([5, 3], -2.0, -2.0 / (7 / 6))
    for alive, stops in (
        (-5.0, False),
        (-5.3, True),
    ):  # -5 / 3 could still beat -1.71, -5.3 / 3 cannot
        found = [done, Hypothesis([5, 6, 7], alive, alive / (8 / 6))]
        assert settled(found, eos=3, steps=3, limit=13, config=settings) == (
            [done] if stops else []
        )
    assert settled(found[1:], eos=3, steps=3, limit=3, config=settings) == found[1:]


def test_finished_hypotheses_alone_do_not_stop_a_search():
    """CTranslate2 returns the best two of the last step; live hypotheses may still win."""
    settings = TranslationConfig(
        beam_size=2, length_penalty=2.0
    )  # the longest translation, 13 tokens, has the penalty 9
    for second, stops in ((-12.0, False), (-30.0, True)):
        found = [
            Hypothesis([5, 6, 3], -5.0, -5.0 / (8 / 6) ** 2),
            Hypothesis([5, 7, 3], second, second / (8 / 6) ** 2),
        ]
        assert settled(found, eos=3, steps=3, limit=13, config=settings) == (
            found[:1] if stops else []
        )


def test_ids_without_a_token_are_named_by_their_number():
    names = token_names(LETTERS, LETTERS.vocab_size + 2)
    assert (
        names[:4] == ["<pad>", "<unk>", "<bos>", "<eos>"]
        and names[-1] == f"<id {LETTERS.vocab_size + 1}>"
    )


# ── Unsupported models ──────────────────────────────────────────────────────────────────────────
UNSUPPORTED = [
    (
        spec_of(s.Rotary(), s.Norm("batch", "pre"), s.Gated(24, "relu2"), PLAIN),
        "encoder.norm batch, encoder.gated relu2, decoder.norm batch, decoder.gated relu2",
    ),
    (
        spec_of(
            s.Rotary(scaling=s.YarnScaling(2.0, 20)),
            PRE,
            s.Dense(24),
            s.Attention(2, 2, 8, window=4),
        ),
        "positions.scaling yarn, encoder.window 4, decoder.window 4",
    ),
    (
        replace(TRANSLATORS["2017"], encoder=s.Stack((s.Layer(s.Recurrent(), s.Dense(24)),))),
        "encoder.mixer recurrent",
    ),
    (replace(TRANSLATORS["2017"], positions=s.ALiBi()), "positions alibi"),
    (
        replace(
            TRANSLATORS["2017"], encoder=s.Stack((s.Layer(PLAIN, None, POST, residual=False),))
        ),
        "encoder.layers without residual connections, encoder.layers without a feed-forward",
    ),
    (
        replace(
            TRANSLATORS["none"],
            decoder=s.Stack(
                (s.Layer(PLAIN, s.MixtureOfExperts(2, 1, s.Gated(8)), PRE, cross=PLAIN),),
                causal=True,
                final_norm=True,
            ),
        ),
        "decoder.feed_forward experts",
    ),
    (
        replace(
            TRANSLATORS["none"],
            decoder=s.Stack(
                (s.Layer(PLAIN, s.Dense(8), PRE, replace(PLAIN, qk_norm=True)),),
                causal=True,
                final_norm=True,
            ),
        ),
        "decoder.cross.qk_norm",
    ),
    (
        replace(
            TRANSLATORS["none"],
            decoder=s.Stack(
                (s.Layer(PLAIN, s.Dense(8), PRE, PLAIN), s.Layer(PLAIN, s.Dense(9), PRE, PLAIN)),
                causal=True,
                final_norm=True,
            ),
        ),
        "different decoder.layers",
    ),
    (
        s.Spec(20, 16, s.Stack((s.Layer(PLAIN, s.Dense(8)),)), head=s.MaskedHead()),
        "a model without a causal decoder, head masked",
    ),
]


@pytest.mark.parametrize("spec, parts", UNSUPPORTED, ids=[parts for _, parts in UNSUPPORTED])
def test_unsupported_parts_are_named_and_nothing_is_written(spec, parts, tmp_path):
    save_model(tmp_path / "native", Transformer(spec), {"tokenizer": LETTERS})
    with pytest.raises(QkvError) as error:
        export_ctranslate2(tmp_path / "native", tmp_path / "exported")
    assert (
        str(error.value)
        == f"model.json: CTranslate2 does not support {parts}; keep this model in the qkv format"
    )
    assert not (tmp_path / "exported").exists()


@pytest.mark.parametrize(
    "arguments, line",
    [
        (
            ["translate", "{native}", "三", "--engine", "ctranslate2"],
            (
                "{native}: not a CTranslate2 model folder; create one: qkv export FOLDER "
                "--to ctranslate2 --out NEW"
            ),
        ),
        (
            ["translate", "{tmp}/none", "三", "--engine", "ctranslate2"],
            "{tmp}/none: no such folder; check the path",
        ),
        (
            ["translate", "{exported}", "三", "--engine", "ctranslate"],
            "--engine: no engine 'ctranslate'; did you mean 'ctranslate2'?",
        ),
        (
            ["translate", "{exported}", "三", "--engine", "ctranslate2", "--alignment"],
            (
                "alignment: CTranslate2 does not return attention weights; use --engine "
                "torch with the folder it was exported from"
            ),
        ),
        (
            ["translate", "{exported}", "三", "--engine", "ctranslate2", "--device", "abacus"],
            "device: 'abacus' is not available; use cpu",
        ),
        (
            ["translate", "{exported}", "三", "--engine", "ctranslate2", "--n-best", "9"],
            "n_best: 9 is larger than beam_size 4; raise beam_size or lower n_best",
        ),
        (
            ["export", "{native}", "--to", "ctranslate2", "--out", "{exported}"],
            "{exported}: already exists; choose another --out",
        ),
        (
            ["export", "{native}", "--to", "huggingface", "--int8", "--out", "{tmp}/x"],
            (
                "--int8: huggingface is written in the data type of the model; use --to "
                "ctranslate2 or --to gguf"
            ),
        ),
    ],
)
def test_an_error_is_one_line(digits, exported, tmp_path, arguments, line):
    def filled(text: str) -> str:
        return text.format(native=digits, exported=exported, tmp=tmp_path)

    with pytest.raises(QkvError) as error:
        run([filled(argument) for argument in arguments])
    assert str(error.value) == filled(line)


@pytest.mark.parametrize(
    "file, content", [("qkv.json", b"{"), ("qkv.json", b"{}"), ("source_vocabulary.json", b"[")]
)
def test_a_damaged_file_is_named(exported, tmp_path, file, content):
    for path in exported.iterdir():
        (tmp_path / path.name).write_bytes(content if path.name == file else path.read_bytes())
    with pytest.raises(QkvError) as error:
        Translator.load_ctranslate2(tmp_path)
    assert str(error.value) == f"{tmp_path / file}: missing or damaged; export the model again"


def test_a_damaged_model_is_named(exported, tmp_path):
    for path in exported.iterdir():
        (tmp_path / path.name).write_bytes(
            path.read_bytes()[:100] if path.name == "model.bin" else path.read_bytes()
        )
    with pytest.raises(QkvError) as error:
        Translator.load_ctranslate2(tmp_path)
    assert str(error.value).startswith(f"{tmp_path}: CTranslate2 cannot read it (")
    assert "\n" not in str(error.value) and str(error.value).endswith("; export the model again")
