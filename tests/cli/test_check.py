"""`qkv check` prints one line per check and exits with 1 if one fails."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from qkv.checkpoint.folder import save_model
from qkv.cli.app import run
from qkv.errors import QkvError
from qkv.messages import set_language
from qkv.model.presets import decoder_only, encoder_decoder, encoder_only
from qkv.model.spec import Attention, Gated
from qkv.model.transformer import Transformer
from qkv.text.train_tokenizer import train_tokenizer

WORDS = train_tokenizer("char", ["the cat sat on the mat"], vocab_size=60)
SPECS = {
    "encoder-decoder": encoder_decoder(WORDS.vocab_size, 16, 2, 4, 24),
    "decoder-only": decoder_only(WORDS.vocab_size, 16, 2, Attention(4, 2, 4), Gated(24)),
    "encoder-only": encoder_only(WORDS.vocab_size, 16, 2, 4, 24),
}


def saved(folder, spec, modify=None):
    torch.manual_seed(4)
    model = Transformer(spec)
    if modify:
        modify(model)
    save_model(folder, model, {"tokenizer": WORDS})
    return str(folder)


@pytest.mark.parametrize("family", SPECS)
def test_a_correct_model_of_each_family_passes(family, tmp_path, capsys):
    assert run(["check", saved(tmp_path / "x", SPECS[family])]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.endswith(" parameters, checked in float64, tolerance 1e-10")
    symbols = "".join(line[0] for line in lines)
    assert (
        symbols
        == {
            "encoder-decoder": "✓✓✓✓✓✓✓✓✓",
            "decoder-only": "✓✓✓✓✓✓✓✓✓",
            "encoder-only": "✓–✓––✓✓✓✓",
        }[family]
    )
    assert lines[3].startswith(
        "✓ causality: later tokens have no effect (largest difference "
        if family != "encoder-only"
        else "– causality: later tokens have no effect (attention is bidirectional"
    )


def test_a_model_that_fails_exits_with_1_and_the_reason(tmp_path, capsys):
    def add_infinity(model):
        model.embed.weight.data[2, 3] = torch.inf

    folder = saved(tmp_path / "x", SPECS["decoder-only"], add_infinity)
    with pytest.raises(QkvError) as error:
        run(["check", folder])
    assert str(error.value) == (
        f"{folder}/model.safetensors: non-finite weights (embed.weight: 1); "
        "training diverged: use an earlier checkpoint"
    )
    assert run(["check", folder, "--allow-nonfinite"]) == 1
    with pytest.raises(QkvError, match="No such option: --no-allow-nonfinite"):
        run(["check", folder, "--no-allow-nonfinite"])
    assert (
        "✗ all weights are finite (NaN or infinity in embed.weight: 1; use an earlier checkpoint)"
        in capsys.readouterr().out
    )


def test_another_models_tokenizer_exits_with_1(tmp_path, capsys):
    folder = saved(tmp_path / "x", replace(SPECS["decoder-only"], vocab_size=WORDS.vocab_size - 1))
    assert run(["check", folder, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["model"] == folder and report["passed"] is False
    assert [row["check"] for row in report["results"] if row["passed"] is False] == ["vocabulary"]
    assert {row["check"]: row["difference"] for row in report["results"]}["cache"] < 1e-10


def test_the_output_is_in_chinese_too(tmp_path, capsys):
    folder = saved(tmp_path / "x", SPECS["decoder-only"])
    set_language("zh")
    try:
        assert run(["check", folder]) == 0
    finally:
        set_language("en")
    assert "✓ 因果性：后面的词元没有影响（最大差异" in capsys.readouterr().out


def test_a_folder_without_a_model_is_one_line_and_2(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "qkv", "check", str(tmp_path)], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"{tmp_path}: no model.json; is this a model folder?\n"


def test_weights_that_do_not_fit_are_one_line(tmp_path):
    folder = saved(tmp_path / "x", SPECS["decoder-only"])
    (tmp_path / "x" / "manifest.json").unlink()
    path = tmp_path / "x" / "model.json"
    path.write_text(path.read_text().replace('"tied": false', '"tied": true'))
    with pytest.raises(QkvError) as error:
        run(["check", folder])
    assert str(error.value) == (
        f"{folder}/model.safetensors: 1 unknown (lm_head.weight); "
        "does it belong to this model.json?"
    )
