"""Custom parts: built only if the caller allows them; saved and loaded like other parts."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import qkv
from qkv.checkpoint.ctranslate2.export import save_ctranslate2
from qkv.checkpoint.folder import save_model
from qkv.checkpoint.load import load_folder
from qkv.engine.stepper import supports
from qkv.errors import QkvError
from qkv.generate.config import GenerationConfig
from qkv.model.presets import encoder_decoder, preset
from qkv.model.spec import Custom, Spec
from qkv.model.spec_io import from_json, to_json
from qkv.model.transformer import Transformer
from qkv.plan.pieces import pieces_of
from qkv.text.train_tokenizer import train_tokenizer

LETTERS = train_tokenizer("char", ["abcdefgh"], 20)
SIZES = {"d_model": 16, "layers": 2, "n_heads": 2, "d_ff": 24}
RAMP = Custom("custom_parts:Ramp", {"slope": 0.25})
PLAIN = preset("llama", vocab_size=LETTERS.vocab_size, **SIZES)
CUSTOM = [f"custom_parts:{name}" for name in ("Ramp", "RunningMean", "Bottleneck")]


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """The folder of this test is on the import path, as a user's project is."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    yield
    sys.modules.pop("custom_parts", None)


def with_layer(spec: Spec, **parts) -> Spec:
    (layer,) = spec.decoder.layers
    return replace(spec, decoder=replace(spec.decoder, layers=(replace(layer, **parts),)))


SPECS = {
    "positions": replace(PLAIN, positions=RAMP),
    "mixer": with_layer(PLAIN, mixer=Custom(CUSTOM[1])),
    "feed_forward": with_layer(PLAIN, feed_forward=Custom(CUSTOM[2], {"width": 4})),
}


def built(spec: Spec) -> Transformer:
    torch.manual_seed(0)
    return Transformer(spec, custom=CUSTOM).eval()


def error_of(function, *arguments, **options) -> str:
    with pytest.raises(QkvError) as error:
        function(*arguments, **options)
    return str(error.value)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_saved_model_generates_the_same_after_loading(spec, tmp_path):
    model = built(spec)
    save_model(tmp_path, model, {"tokenizer": LETTERS})
    assert from_json(to_json(spec)) == spec
    generator = qkv.load(tmp_path, task="generate", custom=CUSTOM)
    ids = torch.tensor([LETTERS.encode("abcd")])
    with torch.no_grad():
        assert torch.equal(generator.model.decode(ids), model.decode(ids))
    settings = {"max_new_tokens": 6, "temperature": 0}
    own = qkv.Generator.from_model(model, LETTERS)
    assert generator("abc", **settings) == own("abc", **settings)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_cached_steps_equal_one_full_pass(spec):
    model, ids = built(spec).double(), torch.randint(LETTERS.vocab_size, (2, 7))
    cache = model.new_cache()
    steps = [model.decode(ids[:, t : t + 1], cache=cache) for t in range(7)]
    torch.testing.assert_close(torch.cat(steps, dim=1), model.decode(ids), rtol=0, atol=1e-10)


def test_a_custom_position_encoding_computes_its_formula():
    model, ids = built(SPECS["positions"]).double(), torch.randint(LETTERS.vocab_size, (1, 5))
    seen = []
    model.decoder.layers[0].register_forward_pre_hook(lambda module, x: seen.append(x[0]))
    model.decode(ids)
    expected = model.embed.weight[ids] + 0.25 * torch.arange(5.0).double()[None, :, None]
    torch.testing.assert_close(seen[0], expected, rtol=0, atol=1e-10)


def test_a_part_initializes_its_own_weights():
    assert (built(SPECS["positions"]).decoder.positions.slope == 0.25).all()


@pytest.mark.parametrize("allowed", [(), ["custom_parts:RunningMean"]])
def test_a_file_does_not_decide_what_is_imported(allowed, tmp_path):
    save_model(tmp_path, built(SPECS["positions"]), {"tokenizer": LETTERS})
    sys.modules.pop("custom_parts")
    line = error_of(qkv.load, tmp_path, custom=allowed)
    assert line == (
        "custom_parts:Ramp: a custom part, which runs code of your own or of somebody else; "
        "if you trust it, pass custom=['custom_parts:Ramp'] (command line: --custom "
        "custom_parts:Ramp)"
    )
    assert "custom_parts" not in sys.modules
    assert error_of(load_folder, tmp_path) == line


def test_consent_ends_with_the_call(tmp_path):
    save_model(tmp_path, built(SPECS["positions"]), {"tokenizer": LETTERS})
    qkv.load(tmp_path, custom=CUSTOM)
    assert "a custom part" in error_of(qkv.load, tmp_path)


@pytest.mark.parametrize(
    ("part", "line"),
    [
        (Custom("custom_parts:Rump"), "custom_parts:Rump: cannot be imported (module "),
        (Custom("no_such_module:Ramp"), "no_such_module:Ramp: cannot be imported (No module named"),
        (Custom("custom_parts:not_a_class"), "custom_parts:not_a_class: is not a subclass of "),
        (Custom("custom_parts:Bottleneck"), "custom_parts:Bottleneck: is not a subclass of qkv."),
        (
            Custom("custom_parts:Ramp", {"slop": 1}),
            "custom_parts:Ramp: got an unexpected keyword argument 'slop'; correct its arguments",
        ),
        (Custom("custom_parts.Ramp"), "spec, positions.path: cannot be custom_parts.Ramp; give an"),
    ],
)
def test_an_unusable_part_gets_one_line(part, line):
    allowed = [part.path] if ":" in part.path else []
    assert error_of(Transformer, replace(PLAIN, positions=part), allowed).startswith(line)


@pytest.mark.parametrize("custom", ["custom_parts:Ramp", ["custom_parts"], [None]])
def test_custom_must_be_a_list_of_import_paths(custom):
    assert error_of(Transformer, PLAIN, custom).startswith("custom: cannot be ")


def test_arguments_keep_their_names(tmp_path):
    """Old names of spec fields, such as `scale`, are renamed in files, but not in arguments."""
    spec = replace(PLAIN, positions=Custom("a:B", {"scale": 2.0, "base": 3}))
    assert from_json(to_json(spec)) == spec
    tree = json.loads(to_json(spec))
    tree["positions"]["arguments"]["table"] = [1]
    assert "positions" in error_of(from_json, json.dumps(tree))


def test_a_buffer_that_is_not_saved_is_refused(tmp_path):
    spec = replace(PLAIN, positions=Custom("custom_parts:Forgetful"))
    save_model(tmp_path, Transformer(spec, ["custom_parts:Forgetful"]), {"tokenizer": LETTERS})
    line = error_of(qkv.load, tmp_path, custom=["custom_parts:Forgetful"])
    assert line.startswith("decoder.positions.table: is not saved with the weights")


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_engine_plan_and_exports_do_not_take_custom_parts(spec, tmp_path):
    model = built(spec)
    assert supports(built(PLAIN)) and not supports(model)
    assert "the cost of a custom part is unknown" in error_of(pieces_of, spec)
    save_model(tmp_path / "model", model, {"tokenizer": LETTERS})
    with qkv.model.custom.allow_custom(CUSTOM):
        loaded = load_folder(tmp_path / "model")
    assert "custom" in error_of(save_ctranslate2, tmp_path / "export", loaded)
    assert not (tmp_path / "export").exists()


# ── Parts that the spec does not describe ─────────────────────────────────────────────────────────
def test_a_replaced_part_is_not_saved(tmp_path):
    from custom_parts import Ramp

    model = Transformer(encoder_decoder(LETTERS.vocab_size, **SIZES))
    model.encoder.positions = Ramp(16)
    line = error_of(save_model, tmp_path / "model", model, {"tokenizer": LETTERS})
    assert line == (
        f"{tmp_path / 'model'}: encoder.positions is Ramp and model.json describes "
        "SinusoidalPositions; it would be lost; put it into the spec as "
        "Custom('package.module:Class')"
    )
    assert not (tmp_path / "model").exists()


def test_an_added_or_removed_weight_is_not_saved(tmp_path):
    added, removed = Transformer(PLAIN), Transformer(PLAIN)
    added.embed.register_parameter("gain", torch.nn.Parameter(torch.ones(1)))
    del removed.decoder.norm.weight
    for model, name in ((added, "embed.gain"), (removed, "decoder.norm.weight")):
        assert f"{name} is " in error_of(save_model, tmp_path / "model", model, {})


def test_settings_are_those_of_any_generator():
    generator = qkv.Generator.from_model(built(SPECS["mixer"]), LETTERS)
    config = GenerationConfig(max_new_tokens=5, temperature=0.8, seed=3)
    first, second = (generator.generate(["ab", "abc"], config) for _ in range(2))
    assert first == second


def test_the_command_line_takes_custom_parts(tmp_path):
    save_model(tmp_path / "model", built(SPECS["positions"]), {"tokenizer": LETTERS})
    command = [sys.executable, "-m", "qkv", "generate", str(tmp_path / "model"), "ab"]
    options = ["--max-new-tokens", "4", "--temperature", "0", "--lang", "en"]
    runs = [
        subprocess.run(
            [*command, *options, *custom],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=120,
        )
        for custom in ([], ["--custom", RAMP.path])
    ]
    assert (runs[0].returncode, runs[0].stdout, runs[0].stderr.count("\n")) == (2, "", 1)
    assert runs[1].returncode == 0, runs[1].stderr
    own = qkv.Generator.from_model(built(SPECS["positions"]), LETTERS)
    assert runs[1].stdout == f"ab{own('ab', max_new_tokens=4, temperature=0)}\n"
