"""`qkv check` prints a line for each check, and its exit code tells a program the outcome."""

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
from qkv.model.spec import Gated, Heads
from qkv.model.transformer import Transformer
from qkv.text.learn import learn

WORDS = learn("char", ["the cat sat on the mat"], vocab_size=60)
SPECS = {
    "translator": encoder_decoder(WORDS.vocab_size, 16, 2, 4, 24),
    "writer": decoder_only(WORDS.vocab_size, 16, 2, Heads(4, 2, 4), Gated(24)),
    "reader": encoder_only(WORDS.vocab_size, 16, 2, 4, 24),
}


def saved(folder, spec, harm=None):
    torch.manual_seed(4)
    model = Transformer(spec)
    if harm:
        harm(model)
    save_model(folder, model, {"tokenizer": WORDS})
    return str(folder)


@pytest.mark.parametrize("family", SPECS)
def test_a_sound_model_of_each_family_passes(family, tmp_path, capsys):
    assert run(["check", saved(tmp_path / "x", SPECS[family])]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.endswith(" parameters, tried in float64, differences up to 1e-10 are rounding")
    marks = "".join(line[0] for line in lines)
    assert (
        marks == {"translator": "✓✓✓✓✓✓✓✓✓", "writer": "✓✓✓✓✓✓✓✓✓", "reader": "✓–✓––✓✓✓✓"}[family]
    )
    assert lines[3].startswith(
        "✓ blind to the future: worst" if family != "reader" else "– blind to the future: it sees"
    )


def test_a_broken_model_leaves_with_1_and_says_why(tmp_path, capsys):
    def harm(model):
        model.embed.weight.data[2, 3] = torch.inf

    assert run(["check", saved(tmp_path / "x", SPECS["writer"], harm)]) == 1
    assert (
        "✗ every weight is finite: NaN or infinity in embed.weight: 1; take an earlier checkpoint"
        in capsys.readouterr().out
    )


def test_another_models_tokenizer_leaves_with_1(tmp_path, capsys):
    folder = saved(tmp_path / "x", replace(SPECS["writer"], vocab_size=WORDS.vocab_size - 1))
    assert run(["check", folder, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["model"] == folder and told["holds"] is False
    assert [row["check"] for row in told["findings"] if row["holds"] is False] == ["vocabulary"]
    assert {row["check"]: row["difference"] for row in told["findings"]}["cache"] < 1e-10


def test_it_speaks_chinese_too(tmp_path, capsys):
    folder = saved(tmp_path / "x", SPECS["writer"])
    set_language("zh")
    try:
        assert run(["check", folder]) == 0
    finally:
        set_language("en")
    assert "✓ 看不到未来：最大差异" in capsys.readouterr().out


def test_what_is_no_model_is_one_line_and_2(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "qkv", "check", str(tmp_path)], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"{tmp_path}: no model.json; is this a model folder?\n"


def test_weights_that_do_not_fit_are_one_line(tmp_path):
    folder = saved(tmp_path / "x", SPECS["writer"])
    (tmp_path / "x" / "manifest.json").unlink()
    path = tmp_path / "x" / "model.json"
    path.write_text(path.read_text().replace('"tied": false', '"tied": true'))
    with pytest.raises(QkvError) as error:
        run(["check", folder])
    assert str(error.value) == (
        f"{folder}/model.safetensors: 1 unknown (lm_head.weight); "
        "is it the model that model.json describes?"
    )
