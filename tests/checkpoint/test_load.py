"""load_folder reads qkv and Hugging Face folders, with special token ids, pooling and alignment."""

import json

import pytest
import torch

from qkv.checkpoint.durable import write_folder
from qkv.checkpoint.folder import NEXT, load_model, save_model
from qkv.checkpoint.huggingface.export import save_huggingface
from qkv.checkpoint.load import check_device, load_folder, load_spec
from qkv.checkpoint.loaded_model import LoadedModel, PoolingConfig, metadata_of, stored_files
from qkv.cli.app import run
from qkv.errors import QkvError
from qkv.model.guided import AlignmentHead
from qkv.model.presets import decoder_only, encoder_decoder, encoder_only
from qkv.model.spec import Attention, Gated
from qkv.model.transformer import Transformer
from qkv.text.special_tokens import NOT_STORED, SpecialTokenIds
from qkv.text.train_tokenizer import train_tokenizer

LETTERS = train_tokenizer("char", ["the cat sat on the mat"], vocab_size=60)
SPECS = {
    "marian": encoder_decoder(LETTERS.vocab_size, 16, 2, 4, 24),
    "llama": decoder_only(LETTERS.vocab_size, 16, 2, Attention(4, 2, 4), Gated(24)),
    "bert": encoder_only(LETTERS.vocab_size, 16, 2, 4, 24),
}


@pytest.fixture(params=SPECS)
def both(request, tmp_path):
    """The same model as a Hugging Face folder and as a qkv folder."""
    torch.manual_seed(4)
    model = Transformer(SPECS[request.param])
    save_huggingface(
        tmp_path / "huggingface", LoadedModel(model, {"tokenizer": LETTERS}, metadata_of(model))
    )
    huggingface = load_folder(tmp_path / "huggingface")
    save_model(tmp_path / "native", huggingface.model, huggingface.tokenizers)
    return tmp_path / "huggingface", tmp_path / "native"


def test_both_formats_give_the_same_model(both):
    huggingface, native = map(load_folder, both)
    assert huggingface.model.spec == native.model.spec == load_spec(both[0]) == load_spec(both[1])
    for name, weight in native.model.state_dict().items():
        assert torch.equal(huggingface.model.state_dict()[name], weight), name
    assert not huggingface.model.training and not native.model.training
    assert (
        huggingface.metadata.parameters
        == native.metadata.parameters
        == sum(weight.numel() for weight in native.model.parameters())
    )
    assert (
        huggingface.metadata.family in SPECS
        and native.metadata.family is None
        and native.metadata.sha256
    )


@pytest.mark.parametrize("command", [["check"], ["plan", "--json"]])
def test_check_and_plan_print_the_same_for_both_formats(both, command, capsys):
    printed = []
    for folder in both:
        assert run([command[0], str(folder), *command[1:]]) == 0
        printed.append(capsys.readouterr().out.replace(str(folder), "FOLDER"))
    assert printed[0] == printed[1] and len(printed[0]) > 400


def test_check_reports_non_finite_weights_of_a_huggingface_folder(tmp_path, capsys):
    model = Transformer(SPECS["llama"])
    model.embed.weight.data[2, 3] = torch.nan
    save_huggingface(
        tmp_path / "huggingface", LoadedModel(model, {"tokenizer": LETTERS}, metadata_of(model))
    )
    with pytest.raises(QkvError, match="contains 1 non-finite values"):
        load_folder(tmp_path / "huggingface")
    folder = str(tmp_path / "huggingface")
    with pytest.raises(QkvError, match="contains 1 non-finite values"):
        run(["check", folder])
    assert run(["check", folder, "--allow-nonfinite"]) == 1
    assert (
        "✗ all weights are finite (NaN or infinity in embed.weight: 1;" in capsys.readouterr().out
    )


def test_check_and_plan_read_a_published_checkpoint(shared, capsys):
    folder = str(shared / "stories260K_hf")
    assert run(["check", folder]) == 0 and capsys.readouterr().out.count("✓") == 9
    assert run(["plan", folder, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"]["total"] == 260_032


def test_a_huggingface_folder_is_exported_without_an_import(both, tmp_path, capsys):
    assert (
        run(
            [
                "export",
                str(both[0]),
                "--to",
                "huggingface",
                "--out",
                str(tmp_path / "again"),
                "--json",
            ]
        )
        == 0
    )
    printed = json.loads(capsys.readouterr().out)
    assert printed["report"]["same"] and printed["metadata"] == {
        "parameters": load_folder(both[0]).metadata.parameters,
        "dtype": "float32",
        "sha256": None,
        "bytes": (both[0] / "model.safetensors").stat().st_size,
        "family": load_folder(both[0]).metadata.family,
    }


def test_load_spec_needs_no_weights(tmp_path):
    save_model(tmp_path, Transformer(SPECS["llama"]), {})
    for name in ("model.safetensors", "manifest.json"):
        (tmp_path / name).unlink()
    assert load_spec(tmp_path) == SPECS["llama"]
    with pytest.raises(QkvError) as error:
        load_folder(tmp_path)
    assert str(error.value) == f"{tmp_path}: no model.safetensors; is the copy complete?"


@pytest.mark.parametrize(
    "stored, options, expected",
    [
        (torch.bfloat16, {}, torch.float32),
        (torch.bfloat16, {"as_stored": True}, torch.bfloat16),
        (torch.float64, {}, torch.float64),
        (torch.float64, {"dtype": torch.float32}, torch.float32),
        (torch.bfloat16, {"dtype": torch.bfloat16}, torch.bfloat16),
    ],
)
def test_the_stored_dtype_is_kept_except_half_precision_on_a_cpu(
    tmp_path, stored, options, expected
):
    save_model(tmp_path, Transformer(SPECS["llama"]).to(stored), {})
    loaded = load_folder(tmp_path, **options)
    assert {weight.dtype for weight in loaded.model.parameters()} == {expected}


@pytest.mark.parametrize(
    "options, expected",
    [
        ({}, torch.float32),
        ({"as_stored": True}, torch.bfloat16),
        ({"dtype": torch.float64}, torch.float64),
    ],
)
def test_huggingface_folders_load_in_float32_by_default(tmp_path, options, expected):
    model = Transformer(SPECS["llama"]).to(torch.bfloat16)
    save_huggingface(tmp_path / "huggingface", LoadedModel(model, {}, metadata_of(model)))
    loaded = load_folder(tmp_path / "huggingface", **options)
    assert {weight.dtype for weight in loaded.model.parameters()} == {expected}


# ── Configuration files ─────────────────────────────────────────────────────────────────────────
IDS, POOLING, HEAD = (
    SpecialTokenIds(5, None, (3, 7)),
    PoolingConfig("max", True, 12),
    AlignmentHead(1, 3),
)


def test_configuration_files_round_trip(tmp_path):
    save_model(tmp_path, Transformer(SPECS["marian"]), {}, stored_files(IDS, POOLING, HEAD))
    loaded = load_folder(tmp_path)
    assert (loaded.generation, loaded.pooling, loaded.alignment) == (IDS, POOLING, HEAD)
    files = {
        name: json.loads((tmp_path / name).read_text())
        for name in ("generation.json", "pooling.json", "alignment.json")
    }
    assert files == {
        "generation.json": {"start_id": 5, "eos_ids": [3, 7]},
        "alignment.json": {"layer": 1, "head": 3},
        "pooling.json": {"pooling": "max", "normalised": True, "max_len": 12},
    }


def test_a_folder_without_configuration_files_has_defaults(tmp_path):
    save_model(tmp_path, Transformer(SPECS["marian"]), {})
    loaded = load_folder(tmp_path)
    assert (loaded.generation, loaded.pooling, loaded.alignment) == (NOT_STORED, None, None)


def test_configuration_files_are_read_from_the_pending_version(tmp_path):
    model = Transformer(SPECS["marian"])
    save_model(tmp_path, model, {}, stored_files(SpecialTokenIds(1)))
    files = {name: (tmp_path / name).read_bytes() for name in ("model.json", "model.safetensors")}
    write_folder(tmp_path / NEXT, files | stored_files(SpecialTokenIds(2)))  # an interrupted save
    assert load_model(tmp_path).generation == SpecialTokenIds(2)


@pytest.mark.parametrize(
    "name, content, line",
    [
        (
            "generation.json",
            '{"start_id": "five"}',
            ", start_id: cannot be 'five'; use a whole number",
        ),
        ("generation.json", '{"eos_ids": 3}', ", eos_ids: cannot be 3; use a list"),
        ("generation.json", "[3]", ": is not a JSON object; is the download complete?"),
        ("pooling.json", '{"pooling": "men"}', ", pooling: cannot be 'men'; did you mean 'mean'?"),
        (
            "pooling.json",
            '{"normalised": "yes?"}',
            ", normalize: cannot be 'yes?'; use true or false",
        ),
        (
            "alignment.json",
            '{"layer": 2, "head": 0}',
            (
                ": names no cross-attention head of this model: {'layer': 2, 'head': 0}; "
                "write a layer and a head, both from 0"
            ),
        ),
    ],
)
def test_an_error_in_a_configuration_file_is_one_line(tmp_path, name, content, line):
    save_model(tmp_path, Transformer(SPECS["marian"]), {})
    (tmp_path / name).write_text(content)
    with pytest.raises(QkvError) as error:
        load_folder(tmp_path)
    assert str(error.value) == f"{tmp_path / name}{line}"


def test_an_unavailable_device_is_refused_before_reading(tmp_path):
    with pytest.raises(QkvError) as error:
        load_folder(tmp_path / "none", "teapot")
    assert (
        str(error.value) == "device: 'teapot' is not available; use cpu"
        and check_device("cpu") == "cpu"
    )
