"""Language models in CTranslate2: the same greedy text as torch, in a process without torch."""

import json
from dataclasses import asdict
from itertools import chain
from pathlib import Path

import pytest
from gguf_cases import SPECS, loaded
from without_torch import run_command_without_torch, run_without_torch

from qkv.checkpoint.convert import import_folder
from qkv.checkpoint.ctranslate2.export import export_ctranslate2
from qkv.checkpoint.folder import save_model
from qkv.cli.app import run
from qkv.errors import QkvError
from qkv.pipeline.generator import Generator

SHAPES = (
    "llama",
    "llama tied, one key head",
    "llama with biases",
    "linear scaling",
    "scaled embedding, tied",
    "qwen 2",
    "qwen 3",
    "gpt 2",
)
PROMPTS = ["The cat", "我们", "The cat sat on the mat. " * 3, "a", ""]
SETTINGS = [
    {"max_new_tokens": 30},
    {"max_new_tokens": 150},  # longer than the context of 64 tokens
    {"max_new_tokens": 40, "stop": ["a", "it"]},
    {"max_new_tokens": 12, "logprobs": 3},
    {"max_new_tokens": 20, "suppress_tokens": [40, 41, 42, 43, 44]},
    {"max_new_tokens": 9, "n": 2},
]


def engine(folder: Path, prompts: list[str], settings: list[dict]) -> tuple[list, list[str]]:
    """Generated texts for each of the settings, and the stream of the first prompt."""
    code = (
        "folder, prompts, settings = inputs\n"
        "generator = qkv.load(folder)\n"
        "found = [generator.generate(prompts, temperature=0, seed=1, **options) "
        "for options in settings]\n"
        "streams = [''.join(generator.stream(prompts[0], temperature=0, **options | "
        "{'n': 1})) for options in settings]\n"
        "found = [[[[asdict(text) for text in row] for row in texts] for texts in found], streams]"
    )
    return run_without_torch(code, str(folder), prompts, settings)


@pytest.fixture(scope="module", params=SHAPES)
def both(request, tmp_path_factory) -> tuple[Path, Path]:
    """The folder of a random model, and its CTranslate2 export."""
    folder = tmp_path_factory.mktemp("generator")
    native = loaded(SPECS[request.param][0])
    save_model(folder / "native", native.model, native.tokenizers)
    export_ctranslate2(folder / "native", folder / "exported", 0)
    return folder / "native", folder / "exported"


def test_texts_and_log_probabilities_equal_torch(both):
    torch_generator, (actual, streams) = Generator.load(both[0]), engine(both[1], PROMPTS, SETTINGS)
    for settings, texts, stream in zip(SETTINGS, actual, streams, strict=True):
        expected = json.loads(
            json.dumps(
                [
                    list(map(asdict, row))
                    for row in torch_generator.generate(PROMPTS, temperature=0, seed=1, **settings)
                ]
            )
        )
        for sequence, other in zip(chain(*expected), chain(*texts), strict=True):
            logprobs, other_logprobs = sequence.pop("logprobs") or [], other.pop("logprobs") or []
            best, other_best = sequence.pop("top_logprobs") or [], other.pop("top_logprobs") or []
            assert sequence == other
            assert logprobs == pytest.approx(other_logprobs, abs=1e-4) and len(best) == len(
                other_best
            )
            assert [logprob for row in best for _, logprob in row] == pytest.approx(
                [logprob for row in other_best for _, logprob in row], abs=1e-4
            )
        assert stream == texts[0][0]["text"]


@pytest.mark.parametrize("int8", [False, True])
def test_stories260k_generates_its_published_text(int8, shared, tmp_path):
    import_folder(shared / "stories260K_hf", tmp_path / "native", 0)
    _, report = export_ctranslate2(tmp_path / "native", tmp_path / "exported", 8, int8)
    assert report.same and report.greedy == (not int8)
    published = (shared / "stories260K" / "expected_greedy_200steps.txt").read_text()
    (((text,),),), _ = engine(
        tmp_path / "exported", [""], [{"max_new_tokens": 30 if int8 else 190}]
    )
    assert len(text["text"]) > 60 and published.startswith(text["text"].lstrip())


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    native = loaded(SPECS["llama"][0])
    save_model(folder / "native", native.model, native.tokenizers)
    export_ctranslate2(folder / "native", folder / "exported", 0)
    return folder


@pytest.mark.parametrize(
    "options",
    [["--stream"], ["--json", "--seed", "1"], ["--max-new-tokens", "5", "--logprobs", "1"]],
    ids=str,
)
def test_the_command_prints_the_same_with_either_engine_and_imports_no_torch(
    small, options, capsys
):
    options = ["The cat", "--temperature", "0", *options]
    actual = run_command_without_torch(
        "generate", str(small / "exported"), "--engine", "ctranslate2", *options
    )
    assert run(["generate", str(small / "native"), "--engine", "torch", *options]) == 0
    assert capsys.readouterr().out == actual and len(actual) > 10


@pytest.mark.parametrize(
    "settings, line",
    [
        (
            {},
            (
                "temperature: CTranslate2 sampling cannot be seeded; use 0 (greedy), or "
                "use --engine torch"
            ),
        ),
        (
            {"temperature": 0, "repetition_penalty": 1.2},
            (
                "repetition_penalty: CTranslate2 computes the repetition penalty "
                "differently; use 1, or use --engine torch"
            ),
        ),
        (
            {"temperature": 0, "allowed_token_ids": (5, 6)},
            (
                "allowed_token_ids: CTranslate2 can only suppress tokens; use "
                "suppress_tokens, or use --engine torch"
            ),
        ),
        (
            {"temperature": 0, "max_new_tokens": 0},
            "max_new_tokens: 0 is out of range; use 1 to 1,048,576",
        ),
    ],
)
def test_unsupported_options_are_refused(small, settings, line):
    with pytest.raises(QkvError) as error:
        Generator.load_ctranslate2(small / "exported")("The cat", **settings)
    assert str(error.value) == line


@pytest.mark.parametrize(
    "arguments, line",
    [
        (
            ["generate", "{small}/native", "x", "--engine", "ctranslate2"],
            (
                "{small}/native: not a CTranslate2 model folder; create one: qkv export "
                "FOLDER --to ctranslate2 --out NEW"
            ),
        ),
        (
            [
                "generate",
                "{small}/exported",
                "x",
                "--engine",
                "ctranslate2",
                "--temperature",
                "0",
                "--int8",
            ],
            "--int8: the data type of a CTranslate2 model is fixed at export; export with --int8",
        ),
        (
            ["translate", "{small}/exported", "x", "--engine", "ctranslate2"],
            "{small}/exported: not a translation model; a translation model has an encoder",
        ),
    ],
)
def test_an_error_is_one_line(small, arguments, line):
    with pytest.raises(QkvError) as error:
        run([argument.format(small=small) for argument in arguments])
    assert str(error.value) == line.format(small=small)


def test_a_translation_model_is_not_a_language_model(digits, tmp_path):
    export_ctranslate2(digits, tmp_path / "exported", 0)
    with pytest.raises(QkvError) as error:
        Generator.load_ctranslate2(tmp_path / "exported")
    assert (
        str(error.value)
        == f"{tmp_path}/exported: not a language model; a language model has a decoder only"
    )
