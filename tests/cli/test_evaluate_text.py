"""`qkv evaluate --text`: perplexity and bits per byte equal their definitions."""

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
from qkv.text.train_tokenizer import train_tokenizer

TEXT = "今天天气真好。\nWhat light through yonder window breaks?\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    tokenizer = train_tokenizer("byte_bpe", [TEXT], 280)
    torch.manual_seed(1)
    model = Transformer(
        replace(
            decoder_only(tokenizer.vocab_size, 16, 1, s.Attention(2, 2, 8), s.Gated(24)),
            max_len=128,
        )
    ).double()
    save_model(path := tmp_path_factory.mktemp("lm") / "model", model, {"tokenizer": tokenizer})
    return path


@torch.no_grad()
def by_definition(folder, documents: list[str]) -> tuple[float, int]:
    """Nats and tokens of one pass over <eos> document <eos> document."""
    loaded = load_model(folder)
    tokenizer = loaded.tokenizers["tokenizer"]
    ids = [id for text in documents for id in (tokenizer.eos_id, *tokenizer.encode(text))]
    logprobs = loaded.model.logits(loaded.model.decode(torch.tensor([ids])))[0].softmax(-1).log()
    return -sum(float(logprobs[position, id]) for position, id in enumerate(ids[1:])), len(ids) - 1


def test_perplexity_bits_per_byte_and_throughput_are_printed(folder, tmp_path, capsys):
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    nats, tokens = by_definition(folder, [TEXT])
    assert run(["evaluate", str(folder), "--text", str(tmp_path / "text.txt"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    n_bytes = len(TEXT.encode())
    assert (report["tokens"], report["bytes"], report["context_length"]) == (tokens, n_bytes, 128)
    assert report["nats_per_token"] == pytest.approx(nats / tokens, abs=1e-9)
    assert report["perplexity"] == pytest.approx(math.exp(nats / tokens), abs=1e-6)
    assert report["bits_per_byte"] == pytest.approx(nats / math.log(2) / n_bytes, abs=1e-9)
    assert report["tokens_per_second"] == pytest.approx(tokens / report["seconds"])
    run(["evaluate", str(folder), "--text", str(tmp_path / "text.txt")])
    first, second, third = capsys.readouterr().out.splitlines()
    assert (
        first == f"perplexity {math.exp(nats / tokens):.3f} "
        f"({nats / tokens:.4f} nats/token, {tokens} tokens)"
    )
    bits_per_byte = nats / math.log(2) / n_bytes
    assert second == f"{bits_per_byte:.4f} bits/byte ({n_bytes} bytes, context length 128)"
    assert third.endswith(" s)") and " tokens/s (" in third


def test_documents_of_a_jsonl_file_are_separated_by_eos(folder, tmp_path, capsys):
    documents = ["今天天气真好。", "What light?"]
    with gzip.open(tmp_path / "texts.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in documents)
    run(["evaluate", str(folder), "--text", str(tmp_path / "texts.jsonl.gz"), "--json"])
    report = json.loads(capsys.readouterr().out)
    nats, tokens = by_definition(folder, documents)
    assert report["tokens"] == tokens and report["nats_per_token"] == pytest.approx(
        nats / tokens, abs=1e-9
    )


def test_an_imported_model_starts_with_its_bos_token(shared, tmp_path, capsys):
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
    assert json.loads(capsys.readouterr().out)["nats_per_token"] < 0.6  # its own greedy output


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
            f"{digits}: not a language model; use a decoder-only model with a causal mask",
        ),
    ):
        with pytest.raises(QkvError) as error:
            run(["evaluate", *map(str, arguments)])
        assert str(error.value) == line


def test_int8_perplexity_is_printed_beside_that_of_float32(folder, tmp_path, capsys):
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
    report = json.loads(capsys.readouterr().out)
    ids = torch.tensor(loaded.tokenizers["tokenizer"].encode(TEXT * 9))
    rows = ids[: len(ids) // 128 * 128].view(-1, 128)
    with torch.no_grad():
        logits = loaded.model.logits(loaded.model.decode(rows[:, :-1]))
        expected = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), rows[:, 1:].flatten()
        ).item()
    assert report["nats_per_token_float32"] == pytest.approx(expected, abs=1e-5)
    assert 0 < abs(report["nats_per_token_int8"] - expected) < 0.05  # small but not zero
    assert (
        run(["evaluate", str(tmp_path / "single"), "--text", str(tmp_path / "text.txt"), "--int8"])
        == 0
    )
    assert "int8: perplexity " in capsys.readouterr().out


def test_int8_is_rejected_for_float64_weights(folder, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    with pytest.raises(QkvError, match="--int8: not supported for this architecture"):
        run(["evaluate", str(folder), "--text", str(tmp_path / "text.txt"), "--int8"])  # float64


@torch.no_grad()
def by_windows(folder, length: int) -> float:
    """Nats of windows of `length` tokens, each shifted by half a window."""
    loaded = load_model(folder)
    tokenizer = loaded.tokenizers["tokenizer"]
    ids = [tokenizer.eos_id, *tokenizer.encode(TEXT)]
    nats, done = 0.0, 1
    while done < len(ids):
        scored = min(length if done == 1 else length // 2, len(ids) - done)
        start = max(0, done + scored - 1 - length)
        inputs = torch.tensor([ids[start : done + scored - 1]])
        logprobs = loaded.model.logits(loaded.model.decode(inputs))[0].log_softmax(-1)
        targets = torch.tensor(ids[done : done + scored])
        nats -= float(logprobs[-scored:].gather(-1, targets[:, None]).sum())
        done += scored
    return nats


@pytest.mark.parametrize("length", [4, 16, 500])
def test_perplexity_at_another_context_length(folder, tmp_path, capsys, length):
    """A shorter one than the model's 128, and a longer one (extrapolation)."""
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    command = ["evaluate", str(folder), "--text", str(tmp_path / "text.txt")]
    assert run([*command, "--context-length", str(length), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    nats = by_windows(folder, length)
    assert report["context_length"] == length
    assert report["nats_per_token"] == pytest.approx(nats / report["tokens"], abs=1e-9)
    assert run([*command, "--context-length", str(length)]) == 0
    assert f"context length {length})" in capsys.readouterr().out


def test_a_text_longer_than_the_models_context_is_read_in_longer_windows(folder, tmp_path, capsys):
    (tmp_path / "text.txt").write_text(TEXT * 6, encoding="utf-8")
    command = ["evaluate", str(folder), "--text", str(tmp_path / "text.txt"), "--json"]
    assert run([*command, "--context-length", "400"]) == 0
    report = json.loads(capsys.readouterr().out)
    nats, tokens = by_definition(folder, [TEXT * 6])
    assert 128 < tokens <= 400  # one window
    assert report["nats_per_token"] == pytest.approx(nats / tokens, abs=1e-9)


@pytest.mark.parametrize("value", ["0", "-1", "1", "1048577", "1000000000000"])
def test_an_impossible_context_length_gives_the_range(folder, tmp_path, value):
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    command = ["evaluate", str(folder), "--text", str(tmp_path / "text.txt")]
    with pytest.raises(QkvError) as error:
        run([*command, "--context-length", value])
    assert str(error.value) == f"--context-length: cannot be {value}; use 2 to 1,048,576"


def test_learned_positions_cannot_extrapolate(folder, tmp_path):
    loaded = load_model(folder)
    spec = replace(loaded.model.spec, positions=s.Learned(), max_len=32)
    save_model(tmp_path / "learned", Transformer(spec), loaded.tokenizers)
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    command = ["evaluate", str(tmp_path / "learned"), "--text", str(tmp_path / "text.txt")]
    assert run([*command, "--context-length", "32"]) == 0
    with pytest.raises(QkvError) as error:
        run([*command, "--context-length", "33"])
    assert str(error.value) == (
        "--context-length: this model has 32 positions and cannot extrapolate; use 2 to 32"
    )


def test_a_context_length_needs_a_text(digits, tmp_path):
    (tmp_path / "a.txt").write_text("三\n", encoding="utf-8")
    files = ["--source", str(tmp_path / "a.txt"), "--target", str(tmp_path / "a.txt")]
    with pytest.raises(QkvError) as error:
        run(["evaluate", str(digits), *files, "--context-length", "8"])
    assert str(error.value) == "--context-length: only for a language model with --text; omit it"
