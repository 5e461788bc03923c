"""Inputs with which `make fuzz` found violations; each is now refused in one line."""

import json

import fuzz_commands
import pytest
import small_files
from fuzz_contract import MAX_CHARACTERS, wrong_line

from qkv.checkpoint.gguf.reader import read_gguf
from qkv.checkpoint.load import load_spec
from qkv.errors import QkvError
from qkv.model.spec_io import from_json, to_json
from qkv.text.files import read_tokenizer
from qkv.text.regex_safety import unsafe_pattern
from qkv.text.sentencepiece_format import read_model
from qkv.text.tokenizer import Tokenizer
from qkv.train.recipe import TranslateRecipe
from qkv.train.recipe_reader import load_yaml, read_recipe

INVALID = ("no such option", "missing", "already exists")
EXPORT_AGAIN = "export it again with the program that wrote it"


def error_of(read, *arguments) -> str:
    with pytest.raises(QkvError) as error:
        read(*arguments)
    return str(error.value)


def test_control_characters_of_a_file_are_escaped():
    spec = {"vocab_size": 8, "positions": {"kind": "a\nb\x1b[2J\u2028"}}
    text = error_of(from_json, json.dumps(spec))
    assert "no kind 'a\\nb\\x1b[2J\\u2028'" in text
    assert wrong_line(text) is None


@pytest.mark.parametrize("factor", ["NaN", "Infinity", "-Infinity", "1e308"])
def test_a_rotary_factor_that_is_no_fraction(factor):
    text = to_json(small_files.specs()["llama"])
    name = '"partial_rotary_factor": '
    assert f"{name}1.0" in text
    value = str(float(factor.replace("Infinity", "inf")))
    assert error_of(from_json, text.replace(f"{name}1.0", f"{name}{factor}")) == (
        f"model.json, positions.partial_rotary_factor: {value} is not a fraction; "
        "use more than 0 and at most 1"
    )


def test_a_long_value_of_a_file_is_cut():
    text = error_of(from_json, json.dumps({"positions": {"kind": "x" * 100_000}}))
    assert len(text) < MAX_CHARACTERS and "xxx...xxx" in text


def test_a_long_list_of_problems_is_cut():
    spec = {f"field{number}": number for number in range(1_000)}
    text = error_of(from_json, json.dumps(spec))
    assert text.startswith("model.json: no field 'field") or "is missing" in text
    assert len(text) < MAX_CHARACTERS


@pytest.mark.parametrize("value", ["9" * 5_000, "2001-99-99", "[" * 2_000, "!!int x", "!!bool x"])
def test_a_value_that_yaml_cannot_construct(value, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(f"steps: {value}\n")
    text = error_of(read_recipe, TranslateRecipe, path)
    assert text.startswith(f"{path}: not valid YAML (") and wrong_line(text) is None


def test_a_lone_surrogate_in_vocab_json(tmp_path):
    (tmp_path / "vocab.json").write_text('{"\\ud800": 0}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    text = error_of(read_tokenizer, tmp_path / "vocab.json")
    assert "not a mapping from tokens to ids" in text


@pytest.mark.parametrize("name", ["a\ud83d", "x" * 3_000])
def test_the_name_of_a_shard_that_cannot_exist(name, tmp_path):
    index = {"weight_map": {"embed": name}}
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    text = error_of(load_spec, tmp_path)
    assert text.endswith("no such file; is the download complete?") and len(text) < 700


@pytest.mark.parametrize("merge", ["a b", ["a", "b"], ["a", "#"]])
def test_merges_without_the_prefix_do_not_panic(merge, capfd):
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [merge]}
    config = {"model": model | {"continuing_subword_prefix": "##"}}
    text = error_of(Tokenizer.from_json, json.dumps(config))
    wrong = "a merge without the continuing_subword_prefix"
    assert text == f"tokenizer.json, model: {wrong}; {EXPORT_AGAIN}"
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("table", [None, 1, "", "é", "AAA", "A" * 320_008 + "=="])
def test_a_precompiled_normalizer_without_its_table_does_not_panic(table, capfd):
    rules = json.loads(small_files.tokenizer("bpe").core.to_str())
    normalizer = {"type": "Precompiled", "precompiled_charsmap": table}
    rules["normalizer"] = {"type": "Sequence", "normalizers": [normalizer]}
    text = error_of(Tokenizer.from_json, json.dumps(rules))
    assert text == f"tokenizer.json, normalizer: no object with a type; {EXPORT_AGAIN}"
    assert capfd.readouterr().err == ""


def test_a_charsmap_with_an_offset_beyond_its_end_does_not_panic(tmp_path, capfd):
    for path in small_files.tokenizer_files(tmp_path / "files"):
        if path.suffix == ".model":
            content, table = path.read_bytes(), read_model(path).precompiled_charsmap
            units = bytearray(table)
            units[4 + 3] = 0x7F  # the root's offset
            path.write_bytes(content.replace(table, bytes(units)))
            assert "not a complete SentencePiece model" in error_of(read_tokenizer, path)
    assert capfd.readouterr().err == ""


@pytest.fixture(scope="module")
def gguf_content(tmp_path_factory) -> bytes:
    return next(small_files.gguf_files(tmp_path_factory.mktemp("gguf") / "files")).read_bytes()


@pytest.mark.parametrize(
    "at, content",
    [
        (0, b"x"),  # the magic number
        (4, b"\xff\0\0\xff"),  # the version
        (8, b"\xff" * 8),  # the number of tensors
        (16, b"\xff" * 8),  # the number of fields
        (24, b"\xff" * 4),  # the length of a name
        (32, b"\xff"),  # a name that is not UTF-8
        (52, b"\x99\x99"),  # the type of a field
    ],
)
def test_a_damaged_gguf_header(at, content, gguf_content, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_content[:at] + content + gguf_content[at + len(content) :])
    text = error_of(read_gguf, path)
    assert text.startswith(f"{path}: not a valid GGUF file (") and wrong_line(text) is None


def test_a_truncated_gguf_file(gguf_content, tmp_path):
    path = tmp_path / "model.gguf"
    for size in range(0, len(gguf_content), len(gguf_content) // 20):
        path.write_bytes(gguf_content[:size])
        assert wrong_line(error_of(read_gguf, path)) is None


@pytest.mark.parametrize(
    "text",
    [
        "model: &a [*a]",
        "a: &a [x, x]\nb: &b [*a, *a]\n"
        + "".join(
            f"{chr(99 + n)}: &{chr(99 + n)} [{', '.join(['*' + chr(98 + n)] * 9)}]\n"
            for n in range(9)
        ),
    ],
    ids=["inside itself", "repeated"],
)
def test_yaml_aliases_are_bounded(text, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    assert error_of(load_yaml, path) == (
        f"{path}: more than 100,000 values, aliases (*name) included; "
        "write the values without aliases"
    )


def test_a_part_of_a_pattern_that_the_library_rejects():
    assert unsafe_pattern([r"\w+(?*['-]\w+)*"]) == r"\w+(?*['-]\w+)*"


def test_every_command_of_the_fuzz_tests_is_valid(tmp_path):
    for target in fuzz_commands.command_targets(tmp_path / "commands"):
        target.read()
        text = target.path.with_suffix(".stderr").read_text().casefold()
        assert not any(wrong in text for wrong in INVALID), (target.valid, text)
