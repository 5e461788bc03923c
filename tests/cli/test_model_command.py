"""`qkv model new` writes a model.json, `qkv model show` prints the spec and the shapes."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from qkv.checkpoint.folder import save_model
from qkv.cli.app import run
from qkv.errors import QkvError
from qkv.messages import set_language
from qkv.model.presets import preset
from qkv.model.spec_io import from_json
from qkv.model.transformer import Transformer

SMALL = {"vocab_size": 31, "d_model": 16, "layers": 2, "n_heads": 2, "d_ff": 24}
SETS = [f"--set={key}={value}" for key, value in SMALL.items()]


def test_new_writes_a_model_json_that_reads_back(tmp_path, capsys):
    assert (
        run(
            [
                "model",
                "new",
                "tiny",
                *SETS,
                "--set",
                "decoder.layers.0.mixer.n_kv_heads=1",
                "--out",
                str(tmp_path / "model.json"),
            ]
        )
        == 0
    )
    spec, plain = from_json((tmp_path / "model.json").read_text()), preset("tiny", **SMALL)
    layer = plain.decoder.layers[0]
    mixer = replace(layer.mixer, n_kv_heads=1)
    assert spec == replace(
        plain, decoder=replace(plain.decoder, layers=(replace(layer, mixer=mixer),))
    )
    assert run(["model", "new", "tiny", *SETS, "--set", "decoder.layers.0.mixer.n_kv_heads=1"]) == 0
    assert capsys.readouterr().out == (tmp_path / "model.json").read_text()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["tinny"], "tinny: no such preset; did you mean 'tiny'?"),
        (["tiny", "--set=layers"], "--set layers: no value; write key=value"),
        (
            ["tiny", "--set=decoder.layers.0.mixer.n_kv_heads=3"],
            "model, decoder.0.mixer: 4 query heads cannot share 3 key/value heads; use 1, 2 or 4",
        ),
        (
            ["tiny", "--set=dropout=1"],
            "model, dropout: 1.0 is not a probability; use 0 <= dropout < 1",
        ),
    ],
)
def test_new_rejects_invalid_arguments_and_writes_nothing(tmp_path, arguments, line):
    with pytest.raises(QkvError) as error:
        run(["model", "new", *arguments, "--out", str(tmp_path / "model.json")])
    assert str(error.value) == line and not list(tmp_path.iterdir())


def test_show_prints_the_spec_and_the_shapes(capsys):
    assert run(["model", "show", "gpt2", "--batch", "2", "--seq-len", "9"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for line in (
        "mixer: attention",
        "n_kv_heads: 12",
        "repeat: 12",
        "positions: learned",
        "124,439,808 parameters; activations of 2 x 9 tokens",
        "embed (2, 9, 768) weight (50257, 768)",
        "layers 0 x 12 (2, 9, 768)",
        "scores (2, 12, 9, 9)",
        "up_proj (2, 9, 3072) weight (3072, 768), bias (3072,)",
        "lm_head (2, 9, 50257)",
    ):
        assert line in lines


def test_show_reads_files_and_folders_of_both_formats(tmp_path, capsys):
    from transformers import GPT2Config, GPT2LMHeadModel

    spec = preset("tiny", **SMALL)
    save_model(tmp_path / "qkv", Transformer(spec), {})
    GPT2LMHeadModel(
        GPT2Config(vocab_size=31, n_positions=20, n_embd=16, n_layer=2, n_head=2)
    ).save_pretrained(tmp_path / "huggingface")
    for name in ("qkv", "qkv/model.json", "huggingface"):
        assert run(["model", "show", str(tmp_path / name), "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        read = from_json(json.dumps(report["spec"]))
        assert read == spec if name != "huggingface" else (read.d_model, read.max_len) == (16, 20)
        assert report["parameters"] == sum(
            weight.numel() for weight in Transformer(read).parameters()
        )
        assert report["seq_len"] == min(128, read.max_len)
        by_name = {row["name"]: row for row in report["modules"]}
        assert by_name["decoder.layers.0.attn.branch.q_proj"]["weights"]["weight"] == [16, 16]


def test_show_prints_chinese(capsys):
    set_language("zh")
    try:
        run(["model", "show", "tiny"])
    finally:
        set_language("en")
    assert "个参数；激活按 1 x 128 个词元" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["writer-10mm"], "writer-10mm: no such preset; choose from"),
        (["gone/model.json"], "gone/model.json: no such file; give a model.json or a preset"),
        (["gone/folder"], "gone/folder: "),
        (
            ["gpt2", "--seq-len", "2000"],
            "ids: 2000 tokens are too long; this model reads at most 1024",
        ),
    ],
)
def test_show_rejects_invalid_arguments(arguments, line):
    with pytest.raises(QkvError) as error:
        run(["model", "show", *arguments])
    assert str(error.value).startswith(line)


def test_an_old_preset_name_gives_the_new_one():
    with pytest.raises(QkvError) as error:
        run(["plan", "writer-10m"])
    assert str(error.value) == "writer-10m: no such preset; did you mean 'lm-10m'?"


def test_help_does_not_import_torch():
    code = (
        "import sys; from qkv.cli.app import run; run(['model', '--help']); "
        "assert 'torch' not in sys.modules"
    )
    assert (
        "show"
        in subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
    )
