"""`qkv evaluate --text`: the surprise of a model at a text, by the definition."""

import gzip
import json
import math
from dataclasses import replace

import pytest
import torch

from qkv.checkpoint.folder import load_model, save_model
from qkv.cli.app import run
from qkv.errors import QkvError
from qkv.model import spec as s
from qkv.model.presets import decoder_only
from qkv.model.transformer import Transformer
from qkv.text.learn import learn

TEXT = "今天天气真好。\nWhat light through yonder window breaks?\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    tokenizer = learn("bytes", [TEXT], 280)
    torch.manual_seed(1)
    model = Transformer(
        replace(
            decoder_only(tokenizer.vocab_size, 16, 1, s.Heads(2, 2, 8), s.Gated(24)), max_len=128
        )
    ).double()
    save_model(path := tmp_path_factory.mktemp("writer") / "model", model, {"tokenizer": tokenizer})
    return path


@torch.no_grad()
def by_definition(folder, documents: list[str]) -> tuple[float, int]:
    """Nats and tokens of one pass over <eos> document <eos> document."""
    loaded = load_model(folder)
    tokenizer = loaded.tokenizers["tokenizer"]
    ids = [id for text in documents for id in (tokenizer.eos_id, *tokenizer.encode(text))]
    log_probs = loaded.model.logits(loaded.model.decode(torch.tensor([ids])))[0].softmax(-1).log()
    return -sum(float(log_probs[place, id]) for place, id in enumerate(ids[1:])), len(ids) - 1


def test_perplexity_bits_per_byte_and_speed_are_told(folder, tmp_path, capsys):
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    nats, tokens = by_definition(folder, [TEXT])
    assert run(["evaluate", str(folder), "--text", str(tmp_path / "text.txt"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    n_bytes = len(TEXT.encode())
    assert (told["tokens"], told["bytes"], told["context"]) == (tokens, n_bytes, 128)
    assert told["nats_per_token"] == pytest.approx(nats / tokens, abs=1e-9)
    assert told["perplexity"] == pytest.approx(math.exp(nats / tokens), abs=1e-6)
    assert told["bits_per_byte"] == pytest.approx(nats / math.log(2) / n_bytes, abs=1e-9)
    assert told["tokens_per_second"] == pytest.approx(tokens / told["seconds"])
    run(["evaluate", str(folder), "--text", str(tmp_path / "text.txt")])
    first, second, third = capsys.readouterr().out.splitlines()
    assert (
        first
        == f"perplexity {math.exp(nats / tokens):.3f} ({nats / tokens:.4f} nats/token, {tokens} tokens)"
    )
    assert second == f"{nats / math.log(2) / n_bytes:.4f} bits/byte ({n_bytes} bytes, context 128)"
    assert third.endswith(" s)") and " tokens/s (" in third


def test_documents_of_a_jsonl_are_read_with_their_mark_between(folder, tmp_path, capsys):
    documents = ["今天天气真好。", "What light?"]
    with gzip.open(tmp_path / "texts.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": one}) + "\n" for one in documents)
    run(["evaluate", str(folder), "--text", str(tmp_path / "texts.jsonl.gz"), "--json"])
    told = json.loads(capsys.readouterr().out)
    nats, tokens = by_definition(folder, documents)
    assert told["tokens"] == tokens and told["nats_per_token"] == pytest.approx(
        nats / tokens, abs=1e-9
    )


def test_an_imported_model_reads_from_its_own_mark(shared, tmp_path, capsys):
    story = (shared / "stories260K" / "expected_greedy_200steps.txt").read_text()
    (tmp_path / "story.txt").write_text(story)
    run(
        [
            "evaluate",
            str(shared / "stories260K_hf"),
            "--text",
            str(tmp_path / "story.txt"),
            "--json",
        ]
    )
    assert (
        json.loads(capsys.readouterr().out)["nats_per_token"] < 0.6
    )  # it is its own most likely story


def test_bad_input_is_one_line(folder, digits, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "some.txt").write_text("text")
    for arguments, line in (
        ([folder, "--text", tmp_path / "none"], f"{tmp_path}/none: no such file; check the path"),
        (
            [folder, "--text", tmp_path / "empty.txt"],
            f"{tmp_path}/empty.txt: empty file; give a text file with at least one line",
        ),
        (
            [digits, "--text", tmp_path / "some.txt"],
            f"{digits}: not a language model; one has a decoder alone, which sees the past",
        ),
    ):
        with pytest.raises(QkvError) as error:
            run(["evaluate", *map(str, arguments)])
        assert str(error.value) == line


def test_the_cost_of_8_bit_matrices_is_told_beside_the_whole_ones(folder, tmp_path, capsys):
    loaded = load_model(folder)
    save_model(tmp_path / "single", loaded.model.float(), loaded.tokenizers)
    (tmp_path / "text.txt").write_text(TEXT * 9, encoding="utf-8")
    assert (
        run(
            [
                "evaluate",
                str(tmp_path / "single"),
                "--text",
                str(tmp_path / "text.txt"),
                "--int8",
                "--json",
            ]
        )
        == 0
    )
    told = json.loads(capsys.readouterr().out)
    ids = torch.tensor(loaded.tokenizers["tokenizer"].encode(TEXT * 9))
    rows = ids[: len(ids) // 128 * 128].view(-1, 128)
    with torch.no_grad():
        logits = loaded.model.logits(loaded.model.decode(rows[:, :-1]))
        expected = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), rows[:, 1:].flatten()
        ).item()
    assert told["nats_per_token_float32"] == pytest.approx(expected, abs=1e-5)
    assert 0 < abs(told["nats_per_token_int8"] - expected) < 0.05  # rounding shows, and is small
    assert (
        run(["evaluate", str(tmp_path / "single"), "--text", str(tmp_path / "text.txt"), "--int8"])
        == 0
    )
    assert "int8: perplexity " in capsys.readouterr().out


def test_numbers_that_cannot_be_made_small_are_refused(folder, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    with pytest.raises(QkvError, match="--int8: this kind of model has no such step"):
        run(["evaluate", str(folder), "--text", str(tmp_path / "text.txt"), "--int8"])  # float64
