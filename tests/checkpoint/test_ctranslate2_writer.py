"""Language models of ours write in CTranslate2: the same greedy text as in torch, by a process that never imports torch."""

import json
import subprocess
import sys
from dataclasses import asdict
from itertools import chain
from pathlib import Path

import pytest
from gguf_cases import SPECS, loaded

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
    {"max_new_tokens": 150},  # past the 64 tokens that the models look back at
    {"max_new_tokens": 40, "stop": ["a", "it"]},
    {"max_new_tokens": 12, "logprobs": 3},
    {"max_new_tokens": 20, "banned": [40, 41, 42, 43, 44]},
    {"max_new_tokens": 9, "n": 2},
]


def engine(folder: Path, prompts: list[str], settings: list[dict]) -> tuple[list, list[str]]:
    """What the engine writes for each of the settings, and streams for the first prompt, in a process without torch."""
    code = (
        "import json, sys; from dataclasses import asdict; import qkv\n"
        "folder, prompts, settings = json.load(sys.stdin)\n"
        "writer = qkv.load(folder)\n"
        "found = [writer.generate(prompts, temperature=0, seed=1, **one) for one in settings]\n"
        "streams = [''.join(writer.stream(prompts[0], temperature=0, **one | {'n': 1})) for one in settings]\n"
        "assert 'torch' not in sys.modules\n"
        "print(json.dumps([[[[asdict(one) for one in some] for some in texts] for texts in found], streams]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps([str(folder), prompts, settings]),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module", params=SHAPES)
def both(request, tmp_path_factory) -> tuple[Path, Path]:
    """Our folder of a random model, and the same in CTranslate2's."""
    folder = tmp_path_factory.mktemp("writer")
    mine = loaded(SPECS[request.param][0])
    save_model(folder / "ours", mine.model, mine.tokenizers)
    export_ctranslate2(folder / "ours", folder / "theirs", 0)
    return folder / "ours", folder / "theirs"


def test_every_text_and_its_numbers_equal_torch(both):
    ours, (theirs, streams) = Generator.load(both[0]), engine(both[1], PROMPTS, SETTINGS)
    for settings, texts, stream in zip(SETTINGS, theirs, streams, strict=True):
        expected = json.loads(
            json.dumps(
                [
                    list(map(asdict, some))
                    for some in ours.generate(PROMPTS, temperature=0, seed=1, **settings)
                ]
            )
        )
        for one, other in zip(chain(*expected), chain(*texts), strict=True):
            numbers, others = one.pop("log_probs") or [], other.pop("log_probs") or []
            best, others_best = one.pop("best") or [], other.pop("best") or []
            assert one == other
            assert numbers == pytest.approx(others, abs=1e-4) and len(best) == len(others_best)
            assert [chance for row in best for _, chance in row] == pytest.approx(
                [chance for row in others_best for _, chance in row], abs=1e-4
            )
        assert stream == texts[0][0]["text"]


@pytest.mark.parametrize("int8", [False, True])
def test_stories260k_tells_its_published_story(int8, shared, tmp_path):
    import_folder(shared / "stories260K_hf", tmp_path / "ours", 0)
    _, report = export_ctranslate2(tmp_path / "ours", tmp_path / "theirs", 8, int8)
    assert report.same and report.greedy == (not int8)
    published = (shared / "stories260K" / "expected_greedy_200steps.txt").read_text()
    (((text,),),), _ = engine(tmp_path / "theirs", [""], [{"max_new_tokens": 30 if int8 else 190}])
    assert len(text["text"]) > 60 and published.startswith(text["text"].lstrip())


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    mine = loaded(SPECS["llama"][0])
    save_model(folder / "ours", mine.model, mine.tokenizers)
    export_ctranslate2(folder / "ours", folder / "theirs", 0)
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
    code = "import sys; from qkv.cli.app import run; run(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            code,
            "generate",
            str(small / "theirs"),
            "--engine",
            "ctranslate2",
            *options,
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert run(["generate", str(small / "ours"), "--engine", "torch", *options]) == 0
    assert capsys.readouterr().out == done.stdout and len(done.stdout) > 10


@pytest.mark.parametrize(
    "settings, line",
    [
        (
            {},
            "temperature: CTranslate2 cannot repeat its draws; use 0 (greedy), or use --engine torch",
        ),
        (
            {"temperature": 0, "repetition_penalty": 1.2},
            "repetition_penalty: CTranslate2 counts repeats in its own way; use 1, or use --engine torch",
        ),
        (
            {"temperature": 0, "forced": (5, 6)},
            "forced: CTranslate2 can only ban tokens; use banned, or use --engine torch",
        ),
        ({"temperature": 0, "max_new_tokens": 0}, "max_new_tokens: 0 is too small; use 1 or more"),
    ],
)
def test_what_it_cannot_do_alike_is_refused(small, settings, line):
    with pytest.raises(QkvError) as error:
        Generator.load_ctranslate2(small / "theirs")("The cat", **settings)
    assert str(error.value) == line


@pytest.mark.parametrize(
    "arguments, line",
    [
        (
            ["generate", "{small}/ours", "x", "--engine", "ctranslate2"],
            "{small}/ours: no CTranslate2 model; write one: qkv export FOLDER --to ctranslate2 --out NEW",
        ),
        (
            [
                "generate",
                "{small}/theirs",
                "x",
                "--engine",
                "ctranslate2",
                "--temperature",
                "0",
                "--int8",
            ],
            "--int8: CTranslate2 takes its type from the folder; export with --int8",
        ),
        (
            ["translate", "{small}/theirs", "x", "--engine", "ctranslate2"],
            "{small}/theirs: not a translator; a translator has an encoder",
        ),
    ],
)
def test_a_mistake_is_one_line(small, arguments, line):
    with pytest.raises(QkvError) as error:
        run([one.format(small=small) for one in arguments])
    assert str(error.value) == line.format(small=small)


def test_a_translator_is_no_writer(digits, tmp_path):
    export_ctranslate2(digits, tmp_path / "theirs", 0)
    with pytest.raises(QkvError) as error:
        Generator.load_ctranslate2(tmp_path / "theirs")
    assert str(error.value) == f"{tmp_path}/theirs: not a language model; one has a decoder alone"
