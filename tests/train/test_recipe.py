"""A recipe is read from a file, settings and flags; an invalid one gives one line."""

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


def write_recipe(folder, text):
    (folder / "train.yaml").write_text(text, encoding="utf-8")
    return folder / "train.yaml"


def error_line(*settings, path=None):
    with pytest.raises(QkvError) as error:
        read_recipe(TranslateRecipe, path, settings)
    return str(error.value)


def test_settings_override_the_file_and_flags_override_settings(tmp_path):
    path = write_recipe(
        tmp_path, "source: file\ntarget: file\nsteps: 10\nseed: 10\nlr: 10\nwarmup: 10\n"
    )
    recipe = read_recipe(
        TranslateRecipe,
        path,
        ["source=set", "steps=20", "seed=20", "seed=30"],
        {"source": "flag", "target": None},
    )
    assert (recipe.source, recipe.target, recipe.steps, recipe.seed, recipe.warmup_steps) == (
        "flag",
        "file",
        20,
        30,
        10,
    )


def test_a_dotted_key_changes_one_argument_and_keeps_the_others(tmp_path):
    recipe = read_recipe(
        TranslateRecipe,
        write_recipe(tmp_path, "model: {d_model: 32, layers: 2}"),
        ["model.d_model=64", "model.n_heads=2"],
    )
    assert (
        recipe.model
        == TranslateRecipe(
            model={"preset": "seq2seq", "d_model": 64, "layers": 2, "n_heads": 2}
        ).model
    )
    assert (recipe.model["d_model"], recipe.model["layers"], recipe.model["d_ff"]) == (64, 2, 512)


def test_the_model_may_be_a_preset():
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
def test_numbers_may_have_exponents_and_spaces(text, value):
    assert read_recipe(TranslateRecipe, None, [f"lr={text}"]).lr == value


def test_a_value_may_contain_an_equals_sign():
    assert read_recipe(TranslateRecipe, None, ["source=a=b.txt"]).source == "a=b.txt"


def test_a_recipe_without_settings_is_the_default():
    assert read_recipe(TranslateRecipe, None) == TranslateRecipe()


def test_a_written_recipe_is_read_back_the_same(tmp_path):
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
            "ema_decay=0.999",
        ],
    )
    path = write_recipe(tmp_path, recipe.to_yaml())
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
        (["warmup_step=3"], "--set: no option 'warmup_step'; did you mean 'warmup_steps'?"),
        (
            ["model.d_modle=3"],
            "model: 'seq2seq' has no argument 'd_modle', and a spec has no such field; "
            "did you mean 'd_model'?",
        ),
        (
            ["stepz=1", "sede=2"],
            "--set: no option 'stepz', no option 'sede'; "
            "did you mean 'steps'?, did you mean 'seed'?",
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
        (["model.placement=top"], "model, placement: cannot be 'top'; choose from pre, post"),
        (
            ["model=3"],
            "model: cannot be 3; "
            "use a preset's name, the path of a model.json, or a preset with arguments",
        ),
        (["steps"], "--set steps: no value; write key=value"),
        (["lr={"], "--set lr={: not valid YAML (while parsing a flow node); write key: value"),
        (["steps=0"], "--set: steps cannot be 0; use 1 to 1,000,000,000"),
        (
            ["lr=-1", "bpe_dropout=1"],
            "--set: lr cannot be -1, bpe_dropout cannot be 1; use 0 to 1e+38, use 0 to 0.999999",
        ),
        (["lr=.nan"], "--set: lr cannot be nan; use 0 to 1e+38"),
        (["seed=-1"], "--set: seed cannot be -1; use 0 to 2,147,483,647"),
    ],
)
def test_an_invalid_setting_gives_one_line(settings, line):
    assert error_line(*settings) == line


def test_errors_name_the_file(tmp_path):
    assert (
        error_line(path=tmp_path / "no.yaml") == f"{tmp_path}/no.yaml: no such recipe; see recipes/"
    )
    assert (
        error_line(path=write_recipe(tmp_path, "- steps"))
        == f"{tmp_path}/train.yaml: not a mapping of options; write key: value"
    )
    assert (
        error_line(path=write_recipe(tmp_path, "lrr: 1"))
        == f"{tmp_path}/train.yaml: no option 'lrr'; did you mean 'lr'?"
    )


def test_a_file_that_is_not_utf8_is_an_error_with_line_and_byte(tmp_path):
    (tmp_path / "a.yaml").write_bytes("steps: 7\n# une recette réussie\n".encode("latin-1"))
    assert (
        error_line(path=tmp_path / "a.yaml")
        == f"{tmp_path}/a.yaml, line 2, byte 16: 0xe9 is not UTF-8; convert the file to UTF-8"
    )
    (tmp_path / "b.yaml").write_bytes(
        "steps: 7\n".encode("utf-16")
    )  # as written by Windows PowerShell
    assert (
        error_line(path=tmp_path / "b.yaml")
        == f"{tmp_path}/b.yaml: a binary file, not text; give plain text in UTF-8"
    )
    (tmp_path / "model.json").write_bytes(b'{"vocab_size": 3,\n\n "\xb0": 1}')
    with pytest.raises(QkvError) as error:
        translation_spec({"preset": str(tmp_path / "model.json")}, 10, None)
    assert (
        str(error.value)
        == f"{tmp_path}/model.json, line 3, byte 3: 0xb0 is not UTF-8; convert the file to UTF-8"
    )


def test_errors_are_translated_into_chinese(chinese):
    assert (
        error_line("warmup_step=3") == "--set: 没有选项 'warmup_step'; 是不是想写 'warmup_steps'？"
    )
    assert (
        error_line("steps=x", "dtype=f8")
        == "--set: steps 不能是 'x', dtype 不能是 'f8'; 请用整数, 可选：float32、bfloat16"
    )
    assert error_line("ema_decay=1") == "--set: ema_decay 不能是 1; 请用 0 到 0.999999 的数"


@pytest.mark.parametrize("kind", [TranslateRecipe, GenerateRecipe, EmbedRecipe])
def test_explain_lists_every_option_with_default_and_explanation(chinese, kind):
    in_chinese = explain(kind)
    set_language("en")
    in_english = explain(kind)
    names = {option.name for option in fields(kind)} | {f"model.{name}" for name in ARGUMENTS}
    assert {name for name, _, _ in in_english} == {name for name, _, _ in in_chinese} == names
    assert ("warmup_steps", "200", "steps of linear learning-rate warmup") in in_english
    for (_, _, en), (_, _, zh) in zip(in_english, in_chinese, strict=True):
        assert en and en.isascii() and any("一" <= sign <= "鿿" for sign in zh)


def test_every_numeric_option_has_a_range():
    every = chain.from_iterable(map(fields, (TranslateRecipe, GenerateRecipe, EmbedRecipe)))
    kinds = {option.name: option.type for option in every}
    assert set(LIMITS) == {name for name, kind in kinds.items() if kind in (int, float)}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("bf16", "bfloat16"), ("bfloat16", "bfloat16"), ("fp32", "float32"), ("float32", "float32")],
)
def test_dtype_has_short_and_long_names(tmp_path, name, dtype):
    path = write_recipe(tmp_path, f"dtype: {name}")
    assert TranslateRecipe(dtype=name).dtype == dtype
    assert read_recipe(TranslateRecipe, path).dtype == dtype
    assert read_recipe(TranslateRecipe, None, [f"dtype={name}"]).dtype == dtype
    assert read_recipe(TranslateRecipe, None, flags={"dtype": name}).dtype == dtype


def test_old_option_names_are_renamed_in_files(tmp_path):
    path = write_recipe(tmp_path, "warmup: 7\nclip: 2\nema: 0.5\ntokenizer: bytes\n")
    recipe = read_recipe(TranslateRecipe, path)
    assert (recipe.warmup_steps, recipe.max_grad_norm, recipe.ema_decay) == (7, 2.0, 0.5)
    assert recipe.tokenizer == "byte_bpe"
    both = write_recipe(tmp_path, "warmup: 7\nwarmup_steps: 7\n")
    assert error_line(path=both) == (f"{both}: no option 'warmup'; did you mean 'warmup_steps'?")
