"""`qkv neighbors`: nearest tokens and differences of word vectors, against numpy."""

import json

import numpy as np
import pytest
import torch

from qkv.checkpoint.folder import save_model
from qkv.cli.app import run
from qkv.errors import QkvError
from qkv.model.presets import decoder_only, encoder_decoder, encoder_only
from qkv.model.spec import Attention, Gated
from qkv.model.transformer import Transformer
from qkv.text.train_tokenizer import TokenizerOptions, train_tokenizer

WORDS = ["king", "queen", "man", "woman", "prince", "princess", "apple", "pear"]


@pytest.fixture(scope="module")
def tokenizer():
    options = TokenizerOptions(add_prefix_space=True)
    return train_tokenizer("byte_bpe", [f"{word} x" for word in WORDS] * 4, 400, options)


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tokenizer):
    root, size = tmp_path_factory.mktemp("models"), tokenizer.vocab_size
    torch.manual_seed(1)
    specs = {
        "translator": encoder_decoder(size, 16, 1, 2, 32),
        "embedder": encoder_only(size, 16, 1, 2, 32),
        "generator": decoder_only(size, 16, 1, Attention(2, 2, 8), Gated(32)),
    }
    for name, spec in specs.items():
        model = Transformer(spec)
        if name == "generator":  # a table with a known answer
            vectors = dict(zip(WORDS, torch.randn(len(WORDS), 16), strict=True))
            gender = torch.randn(16)
            vectors["woman"] = vectors["man"] + gender
            vectors["queen"] = vectors["king"] + gender
            for word, vector in vectors.items():
                (id,) = tokenizer.encode(word)
                model.embed.weight.data[id] = vector / vector.norm()
        save_model(root / name, model, {"tokenizer": tokenizer})
    return root


@pytest.fixture
def neighbors(folders, capsys):
    def call(model: str, *options: str) -> str:
        run(["neighbors", str(folders / model), *options])
        return capsys.readouterr().out

    return call


def test_king_minus_man_plus_woman_is_queen(neighbors):
    lines = neighbors("generator", "king", "--minus", "man", "--plus", "woman").splitlines()
    assert len(lines) == 10 and lines[0].split()[1].strip("␣") == "queen"
    cosines = [float(line.split()[0]) for line in lines]
    assert cosines == sorted(cosines, reverse=True)


@pytest.mark.parametrize("family", ["translator", "generator", "embedder"])
def test_the_cosines_are_those_of_numpy(neighbors, folders, tokenizer, family):
    from safetensors.numpy import load_file

    found = json.loads(
        neighbors(family, "apple", "--minus", "pear", "--plus", "man", "-k", "3", "--json")
    )
    table = load_file(folders / family / "model.safetensors")["embed.weight"].astype(np.float64)
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    ids = {word: tokenizer.encode(word)[0] for word in ("apple", "pear", "man")}
    assert (found["plus"], found["minus"]) == ([ids["apple"], ids["man"]], [ids["pear"]])
    wanted = table[ids["apple"]] - table[ids["pear"]] + table[ids["man"]]
    cosines = table @ wanted / np.linalg.norm(wanted)
    cosines[list(ids.values())] = -2
    best = np.argsort(-cosines)[:3]
    assert [row["id"] for row in found["neighbors"]] == best.tolist()
    np.testing.assert_allclose([row["cosine"] for row in found["neighbors"]], cosines[best], 1e-4)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["generator", "kingpear"],
            "WORD: 'kingpear' is 3 tokens (␣king, p, ear); give a word that is one token",
        ),
        (
            ["generator", "king", "--minus", ""],
            "--minus: '' is 0 tokens (); give a word that is one token",
        ),
        (
            ["generator", "king", "--side", "source"],
            "--side: this model has no side 'source'; choose from target",
        ),
        (["generator", "king", "-k", "0"], "-k: 0 is out of range; use 1 to 1,000"),
    ],
)
def test_errors_are_one_line(neighbors, arguments, line):
    with pytest.raises(QkvError) as error:
        neighbors(*arguments)
    assert str(error.value) == line
