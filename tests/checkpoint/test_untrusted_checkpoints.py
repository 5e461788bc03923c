"""Malicious checkpoints: no code runs, no outside file is used, the error is one line."""

import contextlib
import json
import os
import pickle
import shutil
import struct
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference_models import save_reference
from safetensors.torch import load_file, save_file
from tiny_sizes import LATENT, SIZE, TRANSLATOR
from transformers import LlamaConfig, LlamaForCausalLM

from qkv.checkpoint.convert import import_folder
from qkv.checkpoint.huggingface.reader import load_huggingface
from qkv.errors import QkvError

LLAMA = LlamaConfig(
    **SIZE | {"num_hidden_layers": 1}, num_key_value_heads=2, max_position_embeddings=64
)
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
DOWNLOAD_AGAIN = "copy or download it again"
ONE_MATRIX = {"dtype": "F32", "shape": [4, 4]}


class Payload:
    """Code that runs when the pickle is loaded."""

    def __reduce__(self):
        return os.system, ("touch ran",)


CODE = "from pathlib import Path\nPath('ran').touch()\n"


def config(folder: Path, **fields) -> None:
    old = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(old | fields))


def weights(folder: Path, **new) -> None:
    old = load_file(folder / WEIGHTS)
    save_file(
        old | {f"model.{name.replace('__', '.')}": tensor for name, tensor in new.items()},
        folder / WEIGHTS,
    )


def header(folder: Path, entries: dict, body: bytes = bytes(64)) -> None:
    """A safetensors file with this header."""
    text = json.dumps(entries).encode()
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + body)


def index(folder: Path, *names: str) -> None:
    """Replace the file by an index with these shards."""
    (folder / WEIGHTS).rename(folder / "model-1.safetensors")
    table = {f"weight.{number}": name for number, name in enumerate(names)}
    (folder / INDEX).write_text(json.dumps({"weight_map": table}))


def replace_by_link(folder: Path, name: str, target: str) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(target)


def pickle_only(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload()))


def truncated(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: len(content) // 2])


def fifo(folder: Path) -> None:
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")


def repeated_weight(folder: Path) -> None:
    index(folder, "model-1.safetensors", "model-2.safetensors")
    shutil.copy(folder / "model-1.safetensors", folder / "model-2.safetensors")
    weights = load_file(folder / "model-1.safetensors")
    save_file({"lm_head.weight": weights["lm_head.weight"]}, folder / "model-2.safetensors")


def pooling_outside(folder: Path) -> None:
    modules = [
        {"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "../outside", "type": "sentence_transformers.models.Pooling"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))


def unknown_module(folder: Path) -> None:
    (folder / "modules.json").write_text(json.dumps([{"path": "", "type": "evil.Module"}]))
    (folder / "evil.py").write_text(CODE)


def unknown_family_with_code(folder: Path) -> None:
    config(
        folder,
        model_type="evil",
        auto_map={"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"},
    )
    (folder / "evil.py").write_text(CODE)


OUTSIDE = "refers to a file outside the folder ({!r}); only file names inside the folder are read"
LINK = "is a link to a file outside the folder; replace it with the file itself"
COMMAND = (
    'in a sandbox, run in that folder: python -c "import torch; from safetensors.torch import '
    "save_file; save_file({n: t.contiguous().clone() for f in "
    "['pytorch_model.bin'] for n, t in torch.load(f, "
    "weights_only=True).items()}, 'model.safetensors')\""
)
ATTACKS = {
    "code in auto_map of an unknown family": (
        unknown_family_with_code,
        (
            "{f}/config.json, model_type: cannot be 'evil'; choose from llama, "
            "mistral, qwen2, qwen3, gemma, mixtral, qwen3_moe, "
            "deepseek_v2, deepseek_v3, gpt2, bert, roberta, distilbert, marian, bart"
        ),
    ),
    "a sentence-transformers module that is code": (
        unknown_module,
        (
            "{f}/modules.json: unsupported modules (Module); supported: Transformer, "
            "Pooling, Normalize"
        ),
    ),
    "a pickle with a payload": (
        pickle_only,
        (
            "{f}/pytorch_model.bin: a pickle file, which can run arbitrary code when loaded; "
            + COMMAND
        ),
    ),
    "a pickle called safetensors": (
        lambda f: (f / WEIGHTS).write_bytes(pickle.dumps(Payload())),
        ("{f}/model.safetensors: not a valid safetensors file (*); " + DOWNLOAD_AGAIN),
    ),
    "an index that goes up": (
        lambda f: index(f, "../outside/model.safetensors"),
        ("{f}: " + OUTSIDE.format("../outside/model.safetensors")),
    ),
    "an index with an absolute path": (
        lambda f: index(f, "/etc/passwd"),
        "{f}: " + OUTSIDE.format("/etc/passwd"),
    ),
    "an index with a backslash": (lambda f: index(f, "..\\x"), "{f}: " + OUTSIDE.format("..\\x")),
    "an index of dots": (lambda f: index(f, ".."), "{f}: " + OUTSIDE.format("..")),
    "an index of a missing shard": (
        lambda f: index(f, "model-7.safetensors"),
        ("{f}/model-7.safetensors: no such file; is the download complete?"),
    ),
    "an index that is a list": (
        lambda f: (index(f), (f / INDEX).write_text("[1]")),
        ("{f}/model.safetensors.index.json: is not a JSON object; is the download complete?"),
    ),
    "an index without a map": (
        lambda f: index(f),
        (
            "{f}/model.safetensors.index.json: has no object 'weight_map' from "
            "weight names to files; " + DOWNLOAD_AGAIN
        ),
    ),
    "a weight in two shards": (
        repeated_weight,
        (
            "{f}/model-2.safetensors: repeats weights of another file (lm_head.weight); "
            + DOWNLOAD_AGAIN
        ),
    ),
    "weights that are a link out": (
        lambda f: replace_by_link(f, WEIGHTS, "../outside/model.safetensors"),
        ("{f}/model.safetensors: " + LINK),
    ),
    "a config that is a link out": (
        lambda f: replace_by_link(f, "config.json", "../outside/config.json"),
        ("{f}/config.json: " + LINK),
    ),
    "a tokenizer that is a link out": (
        lambda f: replace_by_link(f, "tokenizer.json", "../outside/secret"),
        ("{f}/tokenizer.json: " + LINK),
    ),
    "a link to itself": (
        lambda f: replace_by_link(f, WEIGHTS, WEIGHTS),
        ("{f}/model.safetensors: no such file; is the download complete?"),
    ),
    "a link to a device": (
        lambda f: replace_by_link(f, "config.json", "/dev/zero"),
        "{f}/config.json: " + LINK,
    ),
    "a pipe that never ends": (
        fifo,
        "{f}/config.json: is not a regular file; replace it with the file itself",
    ),
    "pooling outside": (pooling_outside, "{f}: " + OUTSIDE.format("../outside/config.json")),
    "a header longer than the file": (
        lambda f: (f / WEIGHTS).write_bytes(struct.pack("<Q", 1 << 60) + b"{}"),
        ("{f}/model.safetensors: not a valid safetensors file (*); " + DOWNLOAD_AGAIN),
    ),
    "tensors that overlap": (
        lambda f: header(
            f,
            {
                "a": ONE_MATRIX | {"data_offsets": [0, 64]},
                "b": ONE_MATRIX | {"data_offsets": [0, 64]},
            },
        ),
        ("{f}/model.safetensors: not a valid safetensors file (*); " + DOWNLOAD_AGAIN),
    ),
    "a tensor beyond the end": (
        lambda f: header(f, {"a": ONE_MATRIX | {"data_offsets": [1 << 40, (1 << 40) + 64]}}),
        ("{f}/model.safetensors: not a valid safetensors file (*); " + DOWNLOAD_AGAIN),
    ),
    "a shape that does not match its bytes": (
        lambda f: header(f, {"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 64]}}),
        ("{f}/model.safetensors: not a valid safetensors file (*); " + DOWNLOAD_AGAIN),
    ),
    "half a file": (
        truncated,
        "{f}/model.safetensors: not a valid safetensors file (*); " + DOWNLOAD_AGAIN,
    ),
    "a wrong shape": (
        lambda f: weights(f, norm__weight=torch.ones(4, 8)),
        (
            "{f}: 1 of another shape (model.norm.weight: (4, 8), not (32,)); is the "
            "download complete, and does "
            "config.json belong to it?"
        ),
    ),
    "a NaN": (
        lambda f: weights(f, norm__weight=torch.full((32,), torch.nan)),
        ("{f}: model.norm.weight contains 32 non-finite values; " + DOWNLOAD_AGAIN),
    ),
    "an infinity": (
        lambda f: weights(f, norm__weight=torch.cat([torch.ones(31), torch.tensor([-torch.inf])])),
        ("{f}: model.norm.weight contains 1 non-finite values; " + DOWNLOAD_AGAIN),
    ),
    "a billion layers": (
        lambda f: config(f, num_hidden_layers=10**9),
        (
            "{f}/config.json, num_hidden_layers: cannot be 1000000000; use an "
            "integer from 1 to 4,096"
        ),
    ),
    "a thousand layers": (
        lambda f: config(f, num_hidden_layers=1_000),
        (
            "{f}/config.json: describes 1,000 layers and experts, but the files "
            "contain only 12 weights; "
            "is the download complete?"
        ),
    ),
    "a negative width": (
        lambda f: config(f, hidden_size=-32),
        ("{f}/config.json, hidden_size: cannot be -32; use an integer from 1 to 16,777,216"),
    ),
    "a string for a number": (
        lambda f: config(f, vocab_size="__import__('os')"),
        (
            "{f}/config.json, vocab_size: cannot be \"__import__('os')\"; use an "
            "integer from 1 to 16,777,216"
        ),
    ),
    "an eps of NaN": (
        lambda f: config(f, rms_norm_eps=float("nan")),
        ("{f}/config.json, rms_norm_eps: cannot be nan; use a positive number"),
    ),
    "key/value heads that do not divide the query heads": (
        lambda f: config(f, num_key_value_heads=3),
        (
            "{f}/config.json, decoder.0.mixer: 4 query heads cannot share 3 "
            "key/value heads; use 1, 2 or 4"
        ),
    ),
    "quantized weights": (
        lambda f: config(f, quantization_config={"quant_method": "fp8"}),
        (
            "{f}/config.json, quantization_config: cannot be {'quant_method': "
            "'fp8'}; use the unquantized "
            "checkpoint (bf16, f16 or f32)"
        ),
    ),
    "a config of brackets": (
        lambda f: (f / "config.json").write_text("[" * 100_000),
        "{f}/config.json: is not JSON; *",
    ),
    "a config that is a list": (
        lambda f: (f / "config.json").write_text("[]"),
        ("{f}/config.json: is not a JSON object; is the download complete?"),
    ),
}


ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 3)
    | st.sampled_from([10**6, 10**30, 0.5, -1.0, float("inf"), "", "default"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["rope_type", "factor"]), inner, max_size=2)
    ),
    max_leaves=4,
)
FIELDS = [
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "eos_token_id",
    "intermediate_size",
    "hidden_act",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "layer_types",
    "max_position_embeddings",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "attention_bias",
    "mlp_bias",
    "tie_word_embeddings",
    "architectures",
    "bos_token_id",
    "num_local_experts",
    "num_experts_per_tok",
    "mlp_only_layers",
    "num_experts",
    "moe_intermediate_size",
    "norm_topk_prob",
    "n_routed_experts",
    "first_k_dense_replace",
    "topk_method",
    "n_group",
    "topk_group",
    "kv_lora_rank",
    "n_embd",
    "n_head",
    "n_inner",
    "resid_pdrop",
    "type_vocab_size",
    "pad_token_id",
    "dim",
    "n_heads",
    "d_model",
    "encoder_layers",
    "decoder_ffn_dim",
    "scale_embedding",
    "decoder_vocab_size",
]
SIZES = {
    "n_embd": 32,
    "n_head": 4,
    "n_layer": 1,
    "n_positions": 64,
    "dim": 32,
    "hidden_dim": 40,
    "n_heads": 4,
    "n_layers": 1,
    "num_experts": 4,
    **TRANSLATOR,
    **LATENT,
}
MODEL_TYPES = [
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "mixtral",
    "qwen3_moe",
    "deepseek_v2",
    "deepseek_v3",
    "gpt2",
    "bert",
    "roberta",
    "distilbert",
    "marian",
    "bart",
]


@pytest.fixture(scope="module")
def valid(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("valid")
    save_reference(LlamaForCausalLM, LLAMA, folder / "model")
    return folder / "model"


@pytest.fixture
def workspace(valid, tmp_path, monkeypatch) -> Path:
    """A folder to attack, one outside that must not be read, and an empty working directory."""
    shutil.copytree(valid, tmp_path / "model")
    shutil.copytree(valid, tmp_path / "outside")
    (tmp_path / "outside" / "secret").write_text("{}")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


events: list[tuple[str, str]] = []
sys.addaudithook(
    lambda name, arguments: events.append((name, str(arguments[0] if arguments else "")))
)


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    found = (path.lstat() for path in folder.rglob("*"))
    return {
        str(path): (stat.st_size, stat.st_mtime_ns)
        for path, stat in zip(folder.rglob("*"), found, strict=True)
    }


def assert_harmless(workspace: Path, before: dict) -> None:
    """No code ran, no file outside was opened, no file was written."""
    names = {name for name, _ in events}
    assert not names & {
        "os.system",
        "subprocess.Popen",
        "os.exec",
        "os.posix_spawn",
        "pickle.find_class",
    }
    assert not [
        path for name, path in events if name == "open" and str(workspace / "outside") in path
    ]
    assert not [path for name, path in events if name == "import" and path.startswith("evil")]
    assert snapshot(workspace) == before


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_malicious_folder_is_refused_in_one_line(attack, workspace):
    apply, line = ATTACKS[attack]
    apply(workspace / "model")
    before = snapshot(workspace)
    events.clear()
    with pytest.raises(QkvError) as error:
        import_folder(workspace / "model", workspace / "imported")
    assert_harmless(workspace, before)
    message, (start, _, end) = (
        str(error.value),
        line.replace("{f}", str(workspace / "model")).partition("*"),
    )
    assert message.startswith(start) and message.endswith(end) and "\n" not in message
    assert "*" in line or message == start


def test_code_in_a_folder_of_a_known_family_is_ignored(workspace):
    config(
        workspace / "model",
        auto_map={"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"},
    )
    (workspace / "model" / "evil.py").write_text(CODE)
    (workspace / "model" / "pytorch_model.bin").write_bytes(pickle.dumps(Payload()))
    before = snapshot(workspace)
    events.clear()
    load_huggingface(workspace / "model")
    assert_harmless(workspace, before)
    import_folder(
        workspace / "model", workspace / "imported"
    )  # the parity check with transformers runs no code either
    assert not list((workspace / "work").iterdir())
    assert not [path for name, path in events if "evil" in path and name in ("open", "import")]


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(MODEL_TYPES), st.dictionaries(st.sampled_from(FIELDS), ANY_JSON, max_size=4))
def test_any_config_loads_or_is_refused_in_one_line(valid, kind, fields):
    folder = valid.parent / "any"
    shutil.copytree(valid, folder, dirs_exist_ok=True)
    config(folder, model_type=kind, **SIZES | fields)
    with contextlib.suppress(QkvError):
        load_huggingface(folder)


@pytest.mark.parametrize(
    "name", ["generation_config.json", "sentence_bert_config.json", "1_Pooling/config.json"]
)
@pytest.mark.parametrize("content", ["[]", "7", '"x"', "{}", "{"])
def test_malformed_json_in_other_files_is_refused(name, content, valid, tmp_path):
    folder = shutil.copytree(valid, tmp_path / "other")
    pooling_outside(folder)
    (folder / "modules.json").write_text(
        (folder / "modules.json").read_text().replace("../outside", "1_Pooling")
    )
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    (folder / name).write_text(content)
    if content == "{}" and not name.startswith("1_"):
        assert load_huggingface(folder).pooling.pooling == "mean"
    else:
        with pytest.raises(QkvError, match=name):
            load_huggingface(folder)
