"""Model folders: exact round trips, crash safety, and errors in one line."""

import json
import re
import shutil
import struct
import subprocess
import sys
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from qkv.checkpoint import disk
from qkv.checkpoint.folder import load_model, save_model
from qkv.errors import QkvError
from qkv.model.presets import decoder_only, encoder_decoder, encoder_only
from qkv.model.spec import (
    Attention,
    Convolution,
    Dense,
    Gated,
    LatentAttention,
    Learned,
    LmHead,
    MixtureOfExperts,
    Norm,
    Recurrent,
    TokenMlp,
)
from qkv.model.transformer import Transformer
from qkv.text.train_tokenizer import train_tokenizer

OPERATIONS = ("make_folder", "fill", "sync", "rename", "delete_file", "delete_folder")


def small(seed=0, **changes):
    torch.manual_seed(seed)
    return Transformer(
        replace(decoder_only(30, 8, 1, Attention(2, 1, 4), Gated(12)), **changes)
    ).eval()


@cache
def tokenizer(text="the quick brown fox jumps over the lazy dog"):
    return train_tokenizer("char", [text], vocab_size=60)


def same_bits(model, other):
    a, b = model.state_dict(), other.state_dict()
    return (
        model.spec == other.spec
        and a.keys() == b.keys()
        and all(a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]) for name in a)
    )


def error_line(folder, **options):
    with pytest.raises(QkvError) as error:
        load_model(folder, **options)
    return str(error.value)


@pytest.mark.parametrize(
    "spec",
    [
        encoder_decoder(30, 8, 1, 2, 12),
        replace(encoder_decoder(30, 8, 1, 2, 12), source_vocab_size=20),
        encoder_only(30, 8, 2, 2, 12),
        decoder_only(
            30,
            8,
            2,
            LatentAttention(2, 4, 4, 2, 4),
            MixtureOfExperts(4, 2, Gated(6), Dense(6), score_correction_bias=True),
        ),
        decoder_only(30, 8, 1, Recurrent(), Dense(8)),
        decoder_only(30, 8, 1, Convolution(3), Dense(8)),
        replace(
            decoder_only(30, 8, 1, TokenMlp(), Dense(8)),
            positions=Learned(),
            max_len=16,
            head=LmHead(bias=True),
        ),
    ],
    ids=[
        "translator",
        "two-vocabularies",
        "encoder",
        "latent-experts",
        "lstm",
        "convolution",
        "token-mlp",
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_round_trip_exactly(spec, dtype, tmp_path):
    model = Transformer(spec).to(dtype)
    save_model(tmp_path / "x", model, {})
    loaded = load_model(tmp_path / "x")
    assert same_bits(loaded.model, model) and not loaded.model.training
    assert all(
        weight.requires_grad and weight.device.type == "cpu" for weight in loaded.model.parameters()
    )
    assert loaded.metadata.parameters == sum(weight.numel() for weight in model.parameters())
    assert loaded.metadata.dtype == str(dtype).removeprefix("torch.")


@torch.no_grad()
def test_a_loaded_model_computes_the_same(tmp_path):
    layers = (
        replace(
            decoder_only(
                30, 8, 1, Attention(2, 1, 4), MixtureOfExperts(3, 1, Gated(6))
            ).decoder.layers[0],
            norm=Norm("batch"),
        ),
    )
    model = small(decoder=replace(small().spec.decoder, layers=layers))
    ids = torch.randint(0, 30, (2, 5))
    model.train().decode(ids)  # updates the running mean, a buffer that must be saved too
    save_model(tmp_path / "x", model, {})
    loaded = load_model(tmp_path / "x").model
    assert loaded.router_aux_loss() == 0
    assert torch.equal(loaded.decode(ids), model.eval().decode(ids))
    assert loaded.decoder.layers[0].attn.norm.mean.abs().sum() > 0


def test_a_model_loads_in_a_given_dtype(tmp_path):
    model = small()
    save_model(tmp_path, model.half(), {})
    assert same_bits(load_model(tmp_path, dtype=torch.float64).model, model.double())


def test_tokenizers_round_trip(tmp_path):
    save_model(tmp_path / "one", small(), {"tokenizer": tokenizer()})
    save_model(tmp_path / "two", small(), {"source": tokenizer(), "target": tokenizer("xyz")})
    assert (
        load_model(tmp_path / "one").tokenizers["tokenizer"].fingerprint == tokenizer().fingerprint
    )
    two = load_model(tmp_path / "two").tokenizers
    assert {name: tokenizer.encode("xyz") for name, tokenizer in two.items()} == {
        "source": tokenizer().encode("xyz"),
        "target": tokenizer("xyz").encode("xyz"),
    }


def test_a_compiled_model_is_saved_as_the_plain_one(tmp_path):
    model = small()
    save_model(tmp_path, torch.compile(model, backend="eager"), {})
    assert same_bits(load_model(tmp_path).model, model)


def test_saving_keeps_the_other_files_of_a_run(tmp_path):
    (tmp_path / "checkpoints" / "step-000500").mkdir(parents=True)
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    save_model(
        tmp_path, small(1), {"source": tokenizer(), "target": tokenizer()}, {"README.md": b"card"}
    )
    save_model(tmp_path, small(2), {"tokenizer": tokenizer()}, {"train.yaml": b"seed: 1\n"})
    assert sorted(child.name for child in tmp_path.iterdir()) == [
        "README.md",
        "checkpoints",
        "manifest.json",
        "metrics.jsonl",
        "model.json",
        "model.safetensors",
        "tokenizer.json",
        "train.yaml",
    ]  # the tokenizers of the previous model are deleted, its model card is not
    assert same_bits(load_model(tmp_path).model, small(2))
    (tmp_path / "README.md").write_text("a model card edited by the user")
    assert load_model(tmp_path).tokenizers.keys() == {"tokenizer"}


class Crash(BaseException):
    """The process is killed: no handler runs."""


class CrashingDisk:
    """Replaces the operations of `disk`; the process is killed before the k-th."""

    def __init__(self, monkeypatch, at):
        self.count, self.at = 0, at
        for name in OPERATIONS:
            monkeypatch.setattr(disk, name, partial(self.run, getattr(disk, name)))

    def run(self, operation, *arguments):
        self.count += 1
        if self.at is not None and self.count >= self.at:
            raise Crash
        return operation(*arguments)


def test_a_crash_at_any_operation_leaves_the_old_or_the_new_model(tmp_path, monkeypatch):
    old, new = small(1), small(2, vocab_size=40)
    tokenizers = {"source": tokenizer(), "target": tokenizer()}, {"tokenizer": tokenizer("other")}
    save_model(tmp_path / "first", old, tokenizers[0])
    with monkeypatch.context() as patch:
        shutil.copytree(tmp_path / "first", tmp_path / "count")
        counter = CrashingDisk(patch, at=None)
        save_model(tmp_path / "count", new, tokenizers[1])
    outcomes = []
    for k in range(1, counter.count + 1):
        folder = tmp_path / str(k)
        shutil.copytree(tmp_path / "first", folder)
        with monkeypatch.context() as patch, pytest.raises(Crash):
            CrashingDisk(patch, at=k)
            save_model(folder, new, tokenizers[1])
        loaded = load_model(folder)
        is_new = same_bits(loaded.model, new)
        assert is_new or same_bits(loaded.model, old)
        assert loaded.tokenizers.keys() == tokenizers[is_new].keys()
        outcomes.append(is_new)
        save_model(
            folder, small(3), tokenizers[1]
        )  # the next save finishes or deletes the interrupted one
        assert same_bits(load_model(folder).model, small(3))
        files = {child.name for child in folder.iterdir()}
        assert files == {"manifest.json", "model.json", "model.safetensors", "tokenizer.json"}
    assert outcomes == sorted(outcomes) and {False, True} == set(outcomes)


def test_a_concurrent_save_never_gives_a_mixture(tmp_path, monkeypatch):
    save_model(tmp_path, small(1), {"tokenizer": tokenizer()})
    import qkv.checkpoint.folder as module

    saves, read_model = iter([small(2, vocab_size=40)]), module.read_model

    def interrupted(*arguments):
        for other in saves:  # once: model.json has been read, the weights have not
            save_model(tmp_path, other, {"tokenizer": tokenizer()})
        return read_model(*arguments)

    monkeypatch.setattr(module, "read_model", interrupted)
    assert same_bits(load_model(tmp_path).model, small(2, vocab_size=40))


@pytest.mark.parametrize("name", ["model.json", "model.safetensors", "tokenizer.json"])
def test_files_of_two_models_are_not_mixed(name, tmp_path):
    save_model(tmp_path / "a", small(1), {"tokenizer": tokenizer()})
    save_model(tmp_path / "b", small(2, dropout=0.5), {"tokenizer": tokenizer("other")})
    shutil.copy(tmp_path / "b" / name, tmp_path / "a" / name)
    right = "restore it from a backup, or delete manifest.json if the change was intended"
    assert (
        error_line(tmp_path / "a")
        == f"{tmp_path / 'a'}: {name} changed since it was saved; {right}"
    )
    (tmp_path / "a" / "manifest.json").unlink()
    assert load_model(tmp_path / "a").metadata.sha256 is None


def test_all_wrong_weights_are_named_in_one_line(tmp_path):
    save_model(tmp_path, small(head=LmHead()), {})
    (tmp_path / "manifest.json").unlink()
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    attn = "decoder.layers.0.attn.branch"
    del weights["embed.weight"], weights[f"{attn}.q_proj.weight"]
    weights["lm_head.weight"] = torch.zeros(2)
    weights[f"{attn}.k_proj.weight"] = weights[f"{attn}.k_proj.weight"].T.contiguous()
    weights[f"{attn}.v_proj.weight"] = weights[f"{attn}.v_proj.weight"].to(torch.int8)
    save_file(weights, path)
    assert error_line(tmp_path) == (
        f"{path}: 2 weights missing (embed.weight, {attn}.q_proj.weight), 1 "
        "unknown (lm_head.weight), "
        f"1 of another shape ({attn}.k_proj.weight: (8, 4), not (4, 8)), 1 not of "
        f"a float type ({attn}.v_proj.weight: "
        "int8); does it belong to this model.json?"
    )


def test_non_finite_weights_are_refused_by_default(tmp_path):
    model = small()
    with torch.no_grad():
        model.embed.weight[3, 1], model.embed.weight[4, 1], model.decoder.norm.weight[0] = (
            torch.nan,
            torch.inf,
            -torch.inf,
        )
    save_model(tmp_path, model, {})
    assert error_line(tmp_path) == (
        f"{tmp_path}/model.safetensors: non-finite weights (embed.weight: 2, "
        "decoder.norm.weight: 1); "
        "training diverged: use an earlier checkpoint"
    )
    assert load_model(tmp_path, only_finite=False).model.embed.weight[3, 1].isnan()


def test_large_finite_weights_are_accepted(tmp_path):
    model = small().half()
    torch.nn.init.constant_(model.embed.weight, 60_000.0)  # the sum overflows float16
    save_model(tmp_path, model, {})
    assert same_bits(load_model(tmp_path).model, model)


def broken_safetensors():
    header = {"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}
    wrong_shape = {"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 16]}}
    wrong_end = {"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 1 << 40]}}
    for name, table, body in (
        ("shape", wrong_shape, 16),
        ("end", wrong_end, 16),
        ("cut", header, 7),
    ):
        text = json.dumps(table).encode()
        yield name, struct.pack("<Q", len(text)) + text + bytes(body)
    yield "long-header", struct.pack("<Q", 1 << 60) + b"{}"
    yield "no-json", struct.pack("<Q", 4) + b"[[[["
    yield "empty", b""


@pytest.mark.parametrize(
    "content",
    [content for _, content in broken_safetensors()],
    ids=[name for name, _ in broken_safetensors()],
)
def test_a_truncated_or_invalid_weight_file_is_refused_in_one_line(content, tmp_path):
    save_model(tmp_path, small(), {})
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "model.safetensors").write_bytes(content)
    line = error_line(tmp_path)
    assert re.fullmatch(
        re.escape(f"{tmp_path}/model.safetensors: not a valid safetensors file (")
        + ".+"
        + re.escape("); copy or download it again"),
        line,
    ), line


def test_a_path_that_is_not_a_model_folder_is_refused(tmp_path):
    assert error_line(tmp_path / "x") == f"{tmp_path / 'x'}: no such folder; check the path"
    assert error_line(tmp_path) == f"{tmp_path}: no model.json; is this a model folder?"
    save_model(tmp_path, small(), {})
    assert (
        error_line(tmp_path / "model.json")
        == f"{tmp_path / 'model.json'}: is a file; give the folder that contains it"
    )
    (tmp_path / "manifest.json").write_text("{}")
    assert (
        error_line(tmp_path) == f"{tmp_path / 'manifest.json'}: damaged; restore it from a backup"
    )
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "model.safetensors").unlink()
    assert error_line(tmp_path) == f"{tmp_path}: no model.safetensors; is the copy complete?"


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "last.ckpt"])
def test_a_pickle_is_refused_and_never_loaded(name, tmp_path):
    class Payload:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "opened",))

    torch.save({"w": Payload()}, tmp_path / name)
    line = (
        "a pickle file, which can run arbitrary code when loaded; "
        "use the safetensors file of this model"
    )
    assert error_line(tmp_path) == error_line(tmp_path / name) == f"{tmp_path / name}: {line}"
    assert not (tmp_path / "opened").exists()


def test_a_wrong_model_json_is_named_with_its_path(tmp_path):
    save_model(tmp_path, small(), {})
    (tmp_path / "manifest.json").unlink()
    path = tmp_path / "model.json"
    path.write_text(path.read_text().replace('"n_kv_heads": 1', '"n_kv_heads": 3'))
    assert error_line(tmp_path).startswith(
        f"{path}, decoder.0.mixer: 2 query heads cannot share 3 key/value heads"
    )
    path.write_bytes(b"\xff\xfe")
    assert error_line(tmp_path).startswith(f"{path}: is not JSON")


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="reads the peak memory from Linux's /proc"
)
def test_loading_needs_the_memory_of_the_file_and_no_compiler(tmp_path):
    model = small(vocab_size=2_000_000)  # 64 MB of embeddings, and 64 MB of head
    save_model(tmp_path, model, {})
    code = """if True:
        import re, sys
        from pathlib import Path
        from qkv.checkpoint.folder import load_model
        def peak():
            status = Path("/proc/self/status").read_text()
            return int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) * 1024 / 1e6
        load_model(sys.argv[1]); before = peak()
        loaded = load_model(sys.argv[2])
        print(peak() - before, "torch._dynamo" in sys.modules)"""
    save_model(tmp_path / "warm", small(), {})
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "warm", tmp_path], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    megabytes, compiler = done.stdout.split()
    assert 0.95 * 128 < float(megabytes) < 1.15 * 128 and compiler == "False"


def test_old_names_of_weights_load(tmp_path):
    experts = MixtureOfExperts(4, 2, Gated(6), score_correction_bias=True)
    model = Transformer(decoder_only(30, 8, 1, Attention(2, 1, 4), experts))
    bias = "decoder.layers.0.ffn.branch.router.score_correction_bias"
    torch.nn.init.normal_(model.state_dict()[bias])
    save_model(tmp_path, model, {})
    (tmp_path / "manifest.json").unlink()
    weights = load_file(tmp_path / "model.safetensors")
    weights[bias.replace("score_correction_bias", "balance_bias")] = weights.pop(bias)
    save_file(weights, tmp_path / "model.safetensors")
    assert same_bits(load_model(tmp_path).model, model)
