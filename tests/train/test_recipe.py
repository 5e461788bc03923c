"""A recipe is read from a file, from settings and from flags, and what cannot be meant is said in one line."""

from dataclasses import fields
from itertools import chain

import pytest

from qkv.errors import QkvError
from qkv.messages import set_language
from qkv.model.presets import ARGUMENTS
from qkv.train.recipe import EmbedRecipe, GenerateRecipe, TranslateRecipe
from qkv.train.recipe_reader import LIMITS, explain, read_recipe
from qkv.train.task_specs import translation_spec


@pytest.fixture
def chinese():
    set_language("zh")
    yield
    set_language("en")


def written(folder, text):
    (folder / "train.yaml").write_text(text, encoding="utf-8")
    return folder / "train.yaml"


def complaint(*settings, path=None):
    with pytest.raises(QkvError) as error:
        read_recipe(TranslateRecipe, path, settings)
    return str(error.value)


def test_a_file_gives_way_to_settings_and_settings_to_flags(tmp_path):
    path = written(
        tmp_path, "source: file\ntarget: file\nsteps: 10\nseed: 10\nlr: 10\nwarmup: 10\n"
    )
    recipe = read_recipe(
        TranslateRecipe,
        path,
        ["source=set", "steps=20", "seed=20", "seed=30"],
        {"source": "flag", "target": None},
    )
    assert (recipe.source, recipe.target, recipe.steps, recipe.seed, recipe.lr) == (
        "flag",
        "file",
        20,
        30,
        10.0,
    )


def test_a_dotted_key_changes_one_size_and_leaves_the_others(tmp_path):
    recipe = read_recipe(
        TranslateRecipe,
        written(tmp_path, "model: {d_model: 32, layers: 2}"),
        ["model.d_model=64", "model.n_heads=2"],
    )
    assert (
        recipe.model
        == TranslateRecipe(
            model={"preset": "seq2seq", "d_model": 64, "layers": 2, "n_heads": 2}
        ).model
    )
    assert (recipe.model["d_model"], recipe.model["layers"], recipe.model["d_ff"]) == (64, 2, 512)


def test_the_model_may_be_a_name():
    paper = {
        "preset": "paper-base",
        "d_model": 512,
        "layers": 6,
        "n_heads": 8,
        "d_ff": 2_048,
        "dropout": 0.1,
    }
    assert read_recipe(TranslateRecipe, None, ["model=paper-base"]).model == paper
    assert read_recipe(
        TranslateRecipe, None, ["model=paper-base", "model.layers=2"]
    ).model == paper | {"layers": 2}


@pytest.mark.parametrize(
    ("text", "value"), [("1e-3", 0.001), ("5E-4", 0.0005), ("2", 2.0), (" 0.25 ", 0.25)]
)
def test_numbers_may_be_written_as_people_write_them(text, value):
    assert read_recipe(TranslateRecipe, None, [f"lr={text}"]).lr == value


def test_a_value_may_hold_an_equals_sign():
    assert read_recipe(TranslateRecipe, None, ["source=a=b.txt"]).source == "a=b.txt"


def test_nothing_given_is_the_default():
    assert read_recipe(TranslateRecipe, None) == TranslateRecipe()


def test_a_recipe_written_out_reads_back_the_same(tmp_path):
    recipe = read_recipe(
        TranslateRecipe,
        None,
        [
            "source=数据/a.zh",
            "eps=1e-9",
            "lr=3e-4",
            "model.gated=true",
            "model.activation=silu",
            "target_language='no'",
            "schedule=paper",
            "ema=0.999",
        ],
    )
    path = written(tmp_path, recipe.to_yaml())
    assert read_recipe(TranslateRecipe, path) == recipe
    assert "数据/a.zh" in path.read_text(encoding="utf-8")
    assert path.read_text(encoding="utf-8").count("\n") == len(fields(TranslateRecipe)) + len(
        recipe.model
    )


def test_windows_files_with_a_byte_order_mark_are_read(tmp_path):
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbfsteps: 7\r\nlr: 0.5\r\n")
    assert (
        read_recipe(TranslateRecipe, tmp_path / "a.yaml").steps,
        read_recipe(TranslateRecipe, tmp_path / "a.yaml").lr,
    ) == (7, 0.5)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (["warmup_step=3"], "--set: no option 'warmup_step'; did you mean 'warmup'?"),
        (
            ["model.d_modle=3"],
            "model: 'seq2seq' has no argument 'd_modle', nor has a spec such a field; did you mean 'd_model'?",
        ),
        (
            ["stepz=1", "sede=2"],
            "--set: no option 'stepz', no option 'sede'; did you mean 'steps'?, did you mean 'seed'?",
        ),
        (["steps=many"], "--set: steps cannot be 'many'; use a whole number"),
        (["steps=2.5"], "--set: steps cannot be 2.5; use a whole number"),
        (["lr=fast"], "--set: lr cannot be 'fast'; use a number"),
        (["compile=perhaps"], "--set: compile cannot be 'perhaps'; use true or false"),
        (
            ["source=[1]"],
            "--set: source cannot be [1]; use text, in quotes if it looks like something else",
        ),
        (["optimizer=sgd"], "--set: optimizer cannot be 'sgd'; choose from adam, adamw, muon"),
        (["model.place=top"], "model, place: cannot be 'top'; choose from pre, post"),
        (
            ["model=3"],
            "model: cannot be 3; use a preset's name, the path of a model.json, or a preset with arguments",
        ),
        (["steps"], "--set steps: no value; write key=value"),
        (["lr={"], "--set lr={: is not YAML (while parsing a flow node); write key: value"),
        (["steps=0"], "--set: steps cannot be 0; use 1 or more"),
        (
            ["lr=-1", "bpe_dropout=1"],
            "--set: lr cannot be -1.0, bpe_dropout cannot be 1.0; use 0 or more, use 0 to 0.999999",
        ),
        (["lr=.nan"], "--set: lr cannot be nan; use 0 or more"),
        (["seed=-1"], "--set: seed cannot be -1; use 0 to 2147483647"),
    ],
)
def test_what_cannot_be_meant_is_said_in_one_line(settings, line):
    assert complaint(*settings) == line


def test_complaints_name_the_file(tmp_path):
    assert (
        complaint(path=tmp_path / "no.yaml") == f"{tmp_path}/no.yaml: no such recipe; see recipes/"
    )
    assert (
        complaint(path=written(tmp_path, "- steps"))
        == f"{tmp_path}/train.yaml: is no list of options; write key: value"
    )
    assert (
        complaint(path=written(tmp_path, "lrr: 1"))
        == f"{tmp_path}/train.yaml: no option 'lrr'; did you mean 'lr'?"
    )


def test_a_file_that_is_not_utf8_is_named_with_the_place(tmp_path):
    (tmp_path / "a.yaml").write_bytes("steps: 7\n# une recette réussie\n".encode("latin-1"))
    assert (
        complaint(path=tmp_path / "a.yaml")
        == f"{tmp_path}/a.yaml, line 2, byte 16: 0xe9 is not UTF-8; convert the file to UTF-8"
    )
    (tmp_path / "b.yaml").write_bytes(
        "steps: 7\n".encode("utf-16")
    )  # as Windows PowerShell writes it
    assert (
        complaint(path=tmp_path / "b.yaml")
        == f"{tmp_path}/b.yaml: a binary file, not text; give plain text in UTF-8"
    )
    (tmp_path / "model.json").write_bytes(b'{"vocab_size": 3,\n\n "\xb0": 1}')
    with pytest.raises(QkvError) as error:
        translation_spec({"preset": str(tmp_path / "model.json")}, 10, None)
    assert (
        str(error.value)
        == f"{tmp_path}/model.json, line 3, byte 3: 0xb0 is not UTF-8; convert the file to UTF-8"
    )


def test_complaints_are_made_in_chinese_too(chinese):
    assert complaint("warmup_step=3") == "--set: 没有选项 'warmup_step'; 是不是想写 'warmup'？"
    assert (
        complaint("steps=x", "dtype=f8")
        == "--set: steps 不能是 'x', dtype 不能是 'f8'; 请用整数, 可选：float32、bf16"
    )
    assert complaint("ema=1") == "--set: ema 不能是 1.0; 请用 0 到 0.999999 的数"


@pytest.mark.parametrize("kind", [TranslateRecipe, GenerateRecipe, EmbedRecipe])
def test_explain_lists_every_option_with_its_default_and_a_reason(chinese, kind):
    in_chinese = explain(kind)
    set_language("en")
    in_english = explain(kind)
    names = {one.name for one in fields(kind)} | {f"model.{name}" for name in ARGUMENTS}
    assert {name for name, _, _ in in_english} == {name for name, _, _ in in_chinese} == names
    assert ("warmup", "200", "steps of rising learning rate") in in_english
    for (_, _, en), (_, _, zh) in zip(in_english, in_chinese, strict=True):
        assert en and en.isascii() and any("一" <= sign <= "鿿" for sign in zh)


def test_every_limit_is_of_an_option_and_every_number_has_a_limit():
    every = chain.from_iterable(map(fields, (TranslateRecipe, GenerateRecipe, EmbedRecipe)))
    kinds = {one.name: one.type for one in every}
    assert set(LIMITS) == {name for name, kind in kinds.items() if kind in (int, float)}
