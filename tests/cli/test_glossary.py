"""`qkv glossary` prints the table, the terms of a model, or one term; the docs page is current."""

import json
import runpy
from pathlib import Path

import pytest

from qkv.checkpoint.folder import save_model
from qkv.checkpoint.glossary import GLOSSARY
from qkv.cli.app import run
from qkv.cli.glossary import MIN_WIDTH
from qkv.errors import QkvError
from qkv.messages import set_language
from qkv.model.presets import preset
from qkv.model.transformer import Transformer

ROOT = Path(__file__).resolve().parents[2]
SMALL = {"vocab_size": 31, "d_model": 16, "layers": 2, "n_heads": 2, "d_ff": 24}


def json_of(capsys, *arguments: str) -> list[dict]:
    assert run(["glossary", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_table_has_every_term(capsys):
    assert run(["glossary"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for entries in GLOSSARY.values():
        for entry in entries:
            assert any(line.startswith(entry.term) and entry.chinese in line for line in lines)


def test_json_has_every_term_with_full_names(capsys):
    records = json_of(capsys)
    assert [record["term"] for record in records] == [
        entry.term for entries in GLOSSARY.values() for entry in entries
    ]
    (query,) = [record for record in records if record["term"] == "query projection"]
    assert query == {
        "kind": "weight",
        "term": "query projection",
        "chinese": "查询投影",
        "meaning": "hidden state -> queries of all heads",
        "symbol": "W_Q",
        "shape": "(n_heads*d_head, d_model)",
        "name": "decoder.layers.N.attn.branch.q_proj",
        "names": {
            "huggingface": ["model.layers.N.self_attn.q_proj"],
            "gpt2": ["transformer.h.N.attn.c_attn"],
            "llama": ["layers.N.attention.wq"],
            "gguf": ["blk.N.attn_q", "blk.N.attn_qkv"],
            "bert": ["bert.encoder.layer.N.attention.self.query"],
            "marian": ["model.decoder.layers.N.self_attn.q_proj"],
        },
        "textbook": "qkv.textbook.attention.MultiHeadAttention",
    }


def test_a_model_has_its_shapes_and_only_its_weights(capsys):
    records = {record["term"]: record for record in json_of(capsys, "llama3-8b")}
    assert records["key projection"]["model_shape"] == [1_024, 4_096]
    assert records["key projection"]["layers"] == "0-31"
    assert records["key projection"]["bias"] is False
    assert records["feed-forward width"]["value"] == 14_336
    assert records["keys"]["model_shape"] == ["batch", 8, "key", 128]
    assert not {"position embedding", "router", "BLEU"} & set(records)


def test_a_preset_a_file_and_a_folder_are_models(tmp_path, capsys):
    model = Transformer(preset("tiny", **SMALL))
    save_model(tmp_path / "model", model, {})
    folder = str(tmp_path / "model")
    assert json_of(capsys, folder) == json_of(capsys, f"{folder}/model.json")
    records = json_of(capsys, folder, "--term", "fc1")
    assert [(record["name"], record["model_shape"]) for record in records] == [
        ("encoder.layers.N.ffn.branch.up_proj", [24, 16]),
        ("decoder.layers.N.ffn.branch.up_proj", [24, 16]),
    ]


def test_a_term_is_found_by_any_of_its_names(capsys):
    for term in ("wq", "W_Q", "查询投影", "attention.wq", "blk.N.attn_q", "Query projection"):
        assert "query projection" in [record["term"] for record in json_of(capsys, "--term", term)]
    assert run(["glossary", "gpt2", "--term", "wpe"]) == 0
    assert capsys.readouterr().out == (
        "position embedding (位置嵌入表): one row per position, added to the embeddings; "
        "RoBERTa and BART have `first` = 2\n"
        "  symbol: W_P\n"
        "  shape: (max_len+first, d_model)\n"
        "  in this model: (1024, 768)\n"
        "  qkv name: decoder.positions\n"
        "  GPT-2: transformer.wpe\n"
        "  llama.cpp: position_embd\n"
        "  BERT: bert.embeddings.position_embeddings\n"
        "  Marian, BART: model.decoder.embed_positions\n"
        "  textbook: qkv.textbook.positions.LearnedPositions\n"
    )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--term", "wqq"], "--term: no term or name 'wqq'; did you mean 'wq'?"),
        (["--term", "@@@@"], "--term: no term or name '@@@@'; see qkv glossary"),
        (["gpt3"], "gpt3: no such preset; did you mean 'gpt2'?"),
    ],
)
def test_errors_are_one_line(arguments, line):
    with pytest.raises(QkvError) as error:
        run(["glossary", *arguments])
    assert str(error.value) == line


def test_a_narrow_terminal_has_a_list_in_place_of_tables(capsys, monkeypatch):
    monkeypatch.setattr("qkv.cli.glossary.output_width", lambda: MIN_WIDTH - 1)
    assert run(["glossary", "gpt2"]) == 0
    assert "  GPT-2: transformer.h.N.attn.c_attn\n" in capsys.readouterr().out


def test_meanings_are_in_the_language_of_the_messages(capsys):
    set_language("zh")
    try:
        (record,) = json_of(capsys, "--term", "teacher forcing")
        assert run(["glossary", "gpt2"]) == 0
    finally:
        set_language("en")
    assert record["chinese"] == "教师强制" and record["meaning"].startswith("训练时解码器的输入")
    assert "在此模型中" in capsys.readouterr().out


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_docs_page_is_generated_from_the_table(language):
    script = runpy.run_path(str(ROOT / "scripts" / "write_glossary.py"))
    page = ROOT / "docs" / "reference" / f"glossary{script['SUFFIXES'][language]}"
    current = page.read_text(encoding="utf-8")
    assert current == script["page"](language), "run: python scripts/write_glossary.py"
