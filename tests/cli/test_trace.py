"""`qkv trace`: every step of a text, with the values of an independent recording."""

import json

import pytest
import torch

from qkv.checkpoint.folder import load_model, save_model
from qkv.cli.app import run
from qkv.errors import QkvError
from qkv.explore.record import record
from qkv.model.presets import decoder_only, encoder_decoder, encoder_only
from qkv.model.spec import Attention, Gated, Recurrent
from qkv.model.transformer import Transformer
from qkv.text.train_tokenizer import train_tokenizer

TEXT = "今天 good"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """One model of each family, and one without attention."""
    root = tmp_path_factory.mktemp("models")
    tokens = train_tokenizer("byte_bpe", ["今天天气真好", "the weather is good"], 300)
    torch.manual_seed(0)
    size = tokens.vocab_size
    specs = {
        "translator": encoder_decoder(size, 16, 2, 2, 32),
        "embedder": encoder_only(size, 16, 2, 2, 32),
        "generator": decoder_only(size, 16, 2, Attention(4, 2, 4), Gated(32)),
        "lstm": decoder_only(size, 16, 1, Recurrent("lstm"), Gated(32)),
    }
    for name, spec in specs.items():
        save_model(root / name, Transformer(spec), {"tokenizer": tokens})
    return root


@pytest.fixture
def trace(folders, capsys):
    """Run `qkv trace` in this process; returns the output."""

    def call(model: str, *options: str) -> str:
        run(["trace", str(folders / model), *options])
        return capsys.readouterr().out

    return call


def recorded(folder, report):
    """All modules of one pass over the tokens of the report, by the model itself."""
    loaded = load_model(folder)
    model = loaded.model.eval()
    ids = {
        step["name"].partition(".")[0]: torch.tensor([step["values"]])
        for step in report["steps"]
        if step["step"] == "ids"
    }
    with torch.no_grad(), record(model, "*", "*.input") as steps:
        memory = model.encode(ids["encoder"]) if "encoder" in ids else None
        if "decoder" in ids:
            model.logits(model.decode(ids["decoder"], memory))
    return steps


@pytest.mark.parametrize("family", ["translator", "generator", "embedder"])
def test_the_statistics_are_those_of_a_recording(trace, folders, monkeypatch, family):
    monkeypatch.setattr("qkv.explore.step_summary.MAX_VALUES", 10_000)
    report = json.loads(trace(family, TEXT, "--json"))
    steps = recorded(folders / family, report)
    compared = 0
    for step in report["steps"]:
        if step["name"] not in steps or not isinstance(steps[step["name"]], torch.Tensor):
            continue
        tensor = steps[step["name"]][0].double()
        assert step["shape"] == list(tensor.shape), step["name"]
        finite = tensor[tensor.isfinite()]
        expected = [finite.mean(), finite.std(correction=0), finite.min(), finite.max()]
        found = [step[name] for name in ("mean", "std", "min", "max")]
        torch.testing.assert_close(
            torch.tensor(found).double(), torch.stack(expected), atol=1e-5, rtol=1e-4
        )
        assert step["masked"] == tensor.numel() - len(finite)
        compared += 1
    assert compared > 35
    assert (report["next"] is None) == (family == "embedder")


def test_a_layer_and_a_head_select_the_steps_and_the_values(trace, folders):
    report = json.loads(trace("generator", TEXT, "--layer", "1", "--head", "3", "--json"))
    assert {step["name"].split(".")[2] for step in report["steps"]} == {"1"}
    by_name = {step["name"].rpartition("branch.")[2]: step for step in report["steps"]}
    weights = by_name["core.weights"]
    rows = torch.tensor(weights["values"])
    torch.testing.assert_close(rows.sum(dim=1), torch.ones(len(rows)))
    assert weights["axes"] == ["query", "key"]
    masked = by_name["core.masked"]["values"]
    n = len(masked)
    assert by_name["core.masked"]["masked"] == n * (n - 1) // 2  # above the diagonal
    assert all((masked[q][k] is None) == (k > q) for q in range(n) for k in range(n))
    loaded = load_model(folders / "generator").model.eval()
    ids = json.loads(trace("generator", TEXT, "--json"))["steps"][0]["values"]
    path = "decoder.layers.1.attn.branch.core.weights"
    with torch.no_grad(), record(loaded, path) as steps:
        loaded.decode(torch.tensor([ids]))
    torch.testing.assert_close(rows, steps[path][0, 3])


def test_the_table_names_every_step_and_the_next_token(trace):
    lines = trace("generator", TEXT).splitlines()
    report = json.loads(trace("generator", TEXT, "--json"))
    assert lines[0] == f"target: {' '.join(report['tokens']['target'])}"
    assert lines[1].split() == ["name", "shape", "mean", "std", "min", "max"]
    named = [line.split()[0] for line in lines[2:-1] if not line.startswith(" ")]
    assert named == [step["name"] for step in report["steps"]]
    assert lines[-1].startswith("next token: ")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["generator", TEXT, "--layer", "7"], "--layer: no layer 7; choose from 0, 1"),
        (["generator", TEXT, "--layer", "-1"], "--layer: no layer -1; did you mean '1'?"),
        (["generator", TEXT, "--head", "4"], "--head: no head 4; use 0 to 3"),
        (["lstm", TEXT, "--head", "0"], "lstm: the model has no attention layers"),
        (
            ["generator", "x" * 5_000],
            "qkv trace: The text has 5,000 characters; at most 4,000 are allowed",
        ),
    ],
)
def test_errors_are_one_line(trace, arguments, line):
    with pytest.raises(QkvError) as error:
        trace(*arguments)
    assert str(error.value) == line
