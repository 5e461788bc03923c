"""`qkv train translate`: the files of a run, resuming, and one line for every error."""

import re
import shlex
import signal
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from qkv.cli import main
from qkv.data.builtin import builtin_pairs
from qkv.data.store import TextStore
from qkv.messages import set_language
from qkv.model.transformer import Transformer
from qkv.train import run_recipe
from qkv.train.loop import Trainer
from qkv.train.recipe import GenerateRecipe, TranslateRecipe
from qkv.train.recipe_reader import read_recipe
from qkv.train.state import saved_steps
from qkv.train.task_specs import generation_spec

SMALL = [
    "vocab_size=400",
    "model.layers=1",
    "model.d_model=16",
    "model.n_heads=2",
    "model.d_ff=32",
    "model.max_len=64",
    "steps=6",
    "save_every=3",
    "validate_every=3",
    "batch_tokens=800",
    "warmup_steps=2",
    "beam_size=2",
]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A folder with 300 training pairs and 12 validation pairs."""
    pairs = builtin_pairs()[0]
    for name, chosen in (("a", pairs[:300]), ("v", pairs[300:312])):
        for suffix, line in ((".zh", "{0}\n"), (".en", "{1}\n"), (".tsv", "{0}\t{1}\n")):
            text = "".join(line.format(pair.source, pair.target) for pair in chosen)
            (tmp_path / f"{name}{suffix}").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def qkv(monkeypatch, *arguments):
    """The exit code of a command."""
    monkeypatch.setattr(sys, "argv", ["qkv", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit_info:
        main()
    return exit_info.value.code


@pytest.fixture
def train(files, monkeypatch):
    """train("--out", "run", settings=["steps=3"]); the data are a.zh and a.en by default."""

    def run(*arguments, settings=(), data=("--source", "a.zh", "--target", "a.en")):
        chosen = [f"--set={setting}" for setting in (*SMALL, *settings)]
        return qkv(monkeypatch, "train", "translate", *data, *arguments, *chosen)

    return run


@pytest.fixture
def error_line(train, capsys):
    """The error line of a command that exits with 2."""

    def line(*arguments, **options):
        capsys.readouterr()
        assert train(*arguments, **options) == 2
        out, error = capsys.readouterr()
        assert out == "" and error.count("\n") == 1
        return error.rstrip("\n")

    return line


# ---- runs --------------------------------------------------------------------


def test_a_finished_run_has_a_model_a_card_and_curves(train, files, capsys):
    assert train("--out", "run", "--valid-source", "v.zh", "--valid-target", "v.en") == 0
    out, run = capsys.readouterr().out, files / "run"
    names = {path.name for path in run.iterdir() if not path.name.startswith(".")}
    assert names == {
        "model.json",
        "model.safetensors",
        "tokenizer.json",
        "manifest.json",
        "train.yaml",
        "metrics.jsonl",
        "curves.png",
        "README.md",
        "checkpoints",
        "data",
    }
    assert saved_steps(run) == [3, 6]
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:" in out and "chrF2|" in out
    assert out.endswith("The model is in run: qkv translate run TEXT\n")
    recipe = read_recipe(TranslateRecipe, run / "train.yaml")
    assert (recipe.source, recipe.valid_target, recipe.steps, recipe.model["d_model"]) == (
        "a.zh",
        "v.en",
        6,
        16,
    )


def test_the_python_code_of_the_card_runs_and_gives_its_output(train, files):
    assert train("--out", "run") == 0
    card = (files / "run" / "README.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```python\n(.*?)```", card, re.S)
    *lines, last = block.rstrip("\n").split("\n")
    expression, output = last.split("  # ")
    names = {}
    exec("\n".join(lines), names)
    assert eval(expression, names) == eval(output)
    assert (
        "| held out | 3 |" in card
        and "| steps | 6 |" in card
        and "![learning curves](curves.png)" in card
    )


def test_a_tsv_file_has_both_sides(train, files):
    assert train("--out", "run", data=("--source", "a.tsv", "--valid-source", "v.tsv")) == 0
    assert (files / "run" / "model.json").is_file()


def test_separate_vocabularies_are_two_files(train, files):
    assert train("--out", "run", settings=["shared_vocab=false", "tokenizer=char"]) == 0
    assert (files / "run" / "source.json").is_file() and (files / "run" / "target.json").is_file()
    assert not (files / "run" / "tokenizer.json").exists()


def test_a_recipe_file_settings_and_flags_work_together(files, monkeypatch):
    (files / "my.yaml").write_text(
        "source: nowhere.zh\ntarget: a.en\nseed: 5\nlr: 0.5\n"
        + "\n".join(
            setting.replace("=", ": ") for setting in SMALL if not setting.startswith("model.")
        )
    )
    sizes = [f"--set={setting}" for setting in SMALL if setting.startswith("model.")]
    assert (
        qkv(
            monkeypatch,
            "train",
            "translate",
            "--recipe",
            "my.yaml",
            "--source",
            "a.zh",
            "--set",
            "lr=1e-3",
            *sizes,
            "--out",
            "run",
        )
        == 0
    )
    recipe = read_recipe(TranslateRecipe, files / "run" / "train.yaml")
    assert (recipe.source, recipe.target, recipe.seed, recipe.lr, recipe.steps) == (
        "a.zh",
        "a.en",
        5,
        0.001,
        6,
    )


def test_resume_needs_the_folder_only_and_can_add_steps(train, files, monkeypatch):
    assert train("--out", "run") == 0
    resume = ("train", "translate", "--out", "run", "--resume", "--set", "steps=9")
    assert qkv(monkeypatch, *resume, "--accept-changes") == 0
    assert (
        saved_steps(files / "run")[-1] == 9
        and read_recipe(TranslateRecipe, files / "run" / "train.yaml").steps == 9
    )


def test_early_stopping_is_recorded_in_the_card(train, files):
    assert (
        train("--out", "run", settings=["steps=40", "patience=1", "lr=0", "valid_bleu=false"]) == 0
    )
    assert "| steps | 6 |" in (files / "run" / "README.md").read_text(encoding="utf-8")


def test_explain_lists_the_options_in_both_languages(monkeypatch, capsys):
    for language, words in (
        ("en", ("option", "linear learning-rate warmup")),
        ("zh", ("选项", "线性预热")),
    ):
        set_language("en")
        assert qkv(monkeypatch, "train", "translate", "--explain", "--lang", language) == 0
        out = capsys.readouterr().out
        assert all(
            word in out for word in (*words, "warmup_steps", "model.d_model", "label_smoothing")
        )
    set_language("en")


def test_an_error_is_one_line_and_exit_code_2(files):
    command = [
        sys.executable,
        "-m",
        "qkv",
        "train",
        "translate",
        "--source",
        "a.zh",
        "--out",
        "run",
        "--set",
        "stepz=3",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "--set: no option 'stepz'; did you mean 'steps'?\n"


# ---- changes since the run began, interruptions, the card -----------------------


CHANGED = "run: changed since the run began: {}; {}"
ACCEPT = "undo it, or go on with --accept-changes, which the model card records"


def card_of(folder) -> str:
    return (folder / "README.md").read_text(encoding="utf-8")


def test_resuming_with_another_recipe_names_the_options_that_changed(train, error_line, files):
    assert train("--out", "run") == 0
    before = (files / "run" / "train.yaml").read_bytes()
    changes = ["lr=0.5", "steps=8"]
    expected = CHANGED.format("steps (6 -> 8), lr (0.001 -> 0.5)", ACCEPT)
    line = error_line("--out", "run", "--resume", settings=changes)
    assert sorted(line) == sorted(expected) and line.startswith("run: changed since the run began")
    assert (files / "run" / "train.yaml").read_bytes() == before
    assert train("--out", "run", "--resume", "--accept-changes", settings=changes) == 0
    row = next(line for line in card_of(files / "run").splitlines() if "changed at step 6" in line)
    assert "steps (6 -> 8)" in row and "lr (0.001 -> 0.5)" in row
    # the accepted recipe is that of the run from now on
    assert train("--out", "run", "--resume", settings=changes) == 0
    assert card_of(files / "run").count("changed at step") == 1


def test_resuming_with_other_data_names_the_file_by_its_content(train, error_line, files):
    assert train("--out", "run", settings=["steps=3"]) == 0
    text = (files / "a.en").read_text(encoding="utf-8")
    (files / "a.en").write_text(text.replace("the ", "a "), encoding="utf-8")
    resume = ("--out", "run", "--resume")
    expected = CHANGED.format("the content of a.en", ACCEPT)
    assert error_line(*resume, settings=["steps=3"]) == expected
    (files / "a.en").write_text(text, encoding="utf-8")
    assert train(*resume, settings=["steps=3"]) == 0
    assert "changed at step" not in card_of(files / "run")
    (files / "a.en").write_text(text.replace("the ", "a "), encoding="utf-8")
    assert train(*resume, "--accept-changes", settings=["steps=3"]) == 0
    assert "| changed at step 3 | the content of a.en |" in card_of(files / "run")


def test_threads_may_differ_in_a_resumed_run(train):
    assert train("--out", "run", "--threads", "1") == 0
    assert train("--out", "run", "--resume", "--threads", "2") == 0


def test_a_file_that_is_moved_is_another_option(train, error_line, files):
    assert train("--out", "run", settings=["steps=3"]) == 0
    (files / "b.en").write_bytes((files / "a.en").read_bytes())
    data = ("--source", "a.zh", "--target", "b.en")
    line = error_line("--out", "run", "--resume", settings=["steps=3"], data=data)
    assert line == CHANGED.format('target ("a.en" -> "b.en")', ACCEPT)


@pytest.fixture
def stop_after(monkeypatch):
    """stop_after(2): the next run gets SIGINT after this step."""

    def arrange(last):
        step = Trainer.step

        def stopping(trainer):
            step(trainer)
            if trainer.progress.step == last:
                monkeypatch.setattr(Trainer, "step", step)
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(Trainer, "step", stopping)

    return arrange


@pytest.mark.parametrize(
    "last, model",
    [
        (2, "there is no model in my run yet: it is saved by the first validation"),
        (4, "the best model so far is in my run"),
    ],
)
def test_an_interrupted_run_prints_what_is_saved_and_the_command_that_continues(
    train, stop_after, files, monkeypatch, capsys, last, model
):
    stop_after(last)
    assert train("--out", "my run") == 75
    error = capsys.readouterr().err.splitlines()
    assert error[-3:] == [
        f"stopped; saved in my run/checkpoints/step-00000{last}",
        model,
        "continue with: qkv train translate --out 'my run' --resume",
    ]
    assert (files / "my run" / "model.json").is_file() == ("best model" in model)
    command = shlex.split(error[-1].removeprefix("continue with: qkv "))
    assert qkv(monkeypatch, *command) == 0
    assert saved_steps(files / "my run")[-1] == 6


def test_a_run_interrupted_before_the_first_step_says_that_nothing_is_saved(
    train, files, monkeypatch, capsys
):
    def interrupt(*_given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(run_recipe, "record_threads", interrupt)
        assert train("--out", "run") == 130
    assert capsys.readouterr().err.splitlines()[-1] == (
        "stopped: run has no checkpoint and no model; run the same command again"
    )
    assert train("--out", "run") == 0


def test_the_card_names_data_recipe_hold_out_and_limits(train, files):
    assert train("--out", "run") == 0
    card = card_of(files / "run")
    for row in (
        "| training files | a.zh, a.en |",
        "| hold-out | drawn from the training files: one of 100 pairs, evenly spaced; no sentence "
        "of them is in a training pair |",
        "| recipe | train.yaml |",
        "| batch | 800 tokens |",
        "| lr | 0.001 |",
        "| schedule | wsd |",
        "## Limits\n- The scores are those of the held-out text above",
        "- Context length: 64 tokens.",
    ):
        assert row in card, row
    sides = ("source", "target")
    train_texts, valid_texts = (
        {text for side in sides for text in TextStore.open(files / "run" / "data" / part / side)}
        for part in ("train", "valid")
    )
    assert len(valid_texts) == 6 and not train_texts & valid_texts


def test_the_card_names_the_validation_files(train, files):
    assert train("--out", "run", "--valid-source", "v.zh", "--valid-target", "v.en") == 0
    assert "| hold-out | files: v.zh, v.en |" in card_of(files / "run")


def test_minutes_is_the_time_limit_of_the_recipe(train, files):
    assert train("--out", "run", "--minutes", "9.5", settings=["steps=2"]) == 0
    assert read_recipe(TranslateRecipe, files / "run" / "train.yaml").steps == 2


@pytest.mark.parametrize("minutes, right", [("-1", "-1"), ("nan", "nan"), ("1e9", "1,000,000,000")])
def test_minutes_out_of_range_are_rejected(error_line, minutes, right):
    line = error_line("--out", "run", "--minutes", minutes)
    assert line == f"--set: max_minutes cannot be {right}; use 0 to 1,000,000"


@pytest.mark.parametrize("task", ["translate", "generate", "embed"])
def test_every_training_command_has_minutes(monkeypatch, capsys, files, task):
    assert qkv(monkeypatch, "train", task, "--out", "run", "--minutes", "inf") == 2
    right = "use 0 to 1,000,000"
    assert capsys.readouterr().err == f"--set: max_minutes cannot be inf; {right}\n"


# ---- errors ------------------------------------------------------------------


def test_files_of_different_line_counts_are_rejected(error_line, files):
    (files / "a.en").write_text(
        "".join((files / "a.en").read_text().splitlines(keepends=True)[:-7])
    )
    assert (
        error_line("--out", "run") == "a.zh, a.en: 300 and 293 lines; "
        "line n of one must be the translation of line n of the other"
    )


def test_an_empty_side_is_rejected(error_line, files):
    (files / "a.en").write_text("\n" * 300)
    assert error_line("--out", "run") == (
        "a.en: no pair has text on both sides; give a sentence and its translation on each line"
    )


def test_swapped_validation_files_are_rejected(error_line):
    assert error_line("--out", "run", "--valid-source", "v.en", "--valid-target", "v.zh") == (
        "v.en: has no word in common with the training text; are source and target swapped?"
    )


def test_a_folder_of_another_run_is_rejected(train, error_line, files):
    assert train("--out", "run", settings=["steps=1"]) == 0
    before = (
        (files / "run" / "train.yaml").read_bytes(),
        (files / "run" / "model.safetensors").read_bytes(),
    )
    assert (
        error_line("--out", "run")
        == "run: already contains a run; continue it with --resume, or choose another --out"
    )
    assert (
        (files / "run" / "train.yaml").read_bytes(),
        (files / "run" / "model.safetensors").read_bytes(),
    ) == before


def test_invalid_evaluation_options_are_rejected_before_training(error_line, files):
    assert (
        error_line("--out", "run", settings=["bleu_tokenize=13b"])
        == "bleu_tokenize: no BLEU tokenizer '13b'; did you mean '13a'?"
    )
    assert (
        error_line("--out", "run", settings=["length_penalty=99"])
        == "--set: length_penalty cannot be 99; use 0 to 20; the 2017 paper uses 0.6"
    )
    assert not saved_steps(files / "run")


def test_resuming_without_a_checkpoint_is_rejected(error_line, files):
    assert (
        error_line("--out", "nowhere", "--resume")
        == "nowhere: nothing to resume; leave out --resume to start a run"
    )
    assert not (files / "nowhere").exists()
    (files / "empty").mkdir()
    assert (
        error_line("--out", "empty", "--resume")
        == "empty: nothing to resume; leave out --resume to start a run"
    )


def test_resuming_with_another_model_is_rejected_and_keeps_the_recipe(train, error_line, files):
    assert train("--out", "run", settings=["steps=1"]) == 0
    before = (files / "run" / "train.yaml").read_bytes()
    resume = ("--out", "run", "--resume", "--accept-changes")
    assert error_line(*resume, settings=["steps=1", "model.d_model=32"]) == (
        "run/checkpoints/step-000001: saved by a run with another model, optimizer or ema_decay; "
        "resume with the recipe of the run, or choose another --out"
    )
    assert error_line(*resume, settings=["steps=1", "vocab_size=300"]) == (
        "tokenizer, vocab_size: the run uses another tokenizer; "
        "keep both options as they were, or choose another --out"
    )
    assert (files / "run" / "train.yaml").read_bytes() == before


def test_an_unknown_option_gives_the_near_miss(error_line):
    assert (
        error_line("--out", "run", settings=["warmup_step=3"])
        == "--set: no option 'warmup_step'; did you mean 'warmup_steps'?"
    )


def test_a_vocabulary_larger_than_the_text_supports_is_rejected(error_line):
    line = error_line("--out", "run", settings=["vocab_size=50000"])
    found = re.fullmatch(
        r"vocab_size: the text yields only ([\d,]+) tokens, not 50,000; use at most ([\d,]+)", line
    )
    assert found and found[1] == found[2] and 300 < int(found[1].replace(",", "")) < 50_000


def test_a_vocabulary_smaller_than_the_alphabet_is_rejected(error_line):
    assert error_line("--out", "run", settings=["vocab_size=100"]) == (
        "vocab_size: 100 is smaller than the alphabet (256 symbols and 4 special tokens); "
        "use at least 260"
    )


def test_a_missing_out_is_rejected(error_line):
    assert error_line() == "qkv train translate: no --out; give an output folder"


def test_missing_data_is_rejected(error_line):
    assert (
        error_line("--out", "run", data=())
        == "source: no training text; give --source and --target, or a recipe"
    )


def test_a_missing_file_is_rejected(error_line):
    assert (
        error_line("--out", "run", data=("--source", "b.zh", "--target", "a.en"))
        == "b.zh: no such file; check the path"
    )


def test_a_file_without_translations_is_rejected(error_line):
    assert (
        error_line("--out", "run", data=("--source", "a.zh"))
        == "a.zh, line 1: no second column; write source<TAB>target"
    )


def test_validation_targets_without_sources_are_rejected(error_line):
    assert (
        error_line("--out", "run", "--valid-target", "v.en")
        == "valid_target: given without valid_source; give both files"
    )


def test_too_few_pairs_for_validation_are_rejected(error_line, files):
    (files / "few.tsv").write_text("".join(f"{n}\t{n}\n" for n in range(9)))
    assert error_line("--out", "run", data=("--source", "few.tsv")) == (
        "few.tsv: only 9 pairs, too few to hold some out for validation; "
        "give at least 10, or --valid-source"
    )


def test_a_model_that_is_not_an_encoder_decoder_is_rejected(error_line, files, monkeypatch, capsys):
    arguments = [
        "train",
        "translate",
        "--source",
        "a.zh",
        "--target",
        "a.en",
        "--out",
        "run",
        "--set",
        "vocab_size=400",
    ]
    assert qkv(monkeypatch, *arguments, "--set", "model=gpt2") == 2
    assert (
        capsys.readouterr().err == "model: 'gpt2' is not an encoder-decoder; "
        "translation needs an encoder and a decoder, as in 'tiny'\n"
    )
    assert qkv(monkeypatch, *arguments, "--set", "model=gone/model.json") == 2
    assert (
        capsys.readouterr().err == "gone/model.json: no such file; give a model.json or a preset\n"
    )


def test_heads_that_do_not_divide_d_model_are_rejected(error_line):
    assert (
        error_line("--out", "run", settings=["model.n_heads=3"])
        == "model.n_heads: 16 does not divide into 3 heads; use 1, 2, 4, 8"
    )


def test_an_unavailable_device_is_rejected(error_line):
    assert (
        error_line("--out", "run", "--device", "gpu") == "device: 'gpu' is not available; use cpu"
    )


def test_sentences_longer_than_the_batch_are_rejected(error_line):
    assert error_line("--out", "run", settings=["batch_tokens=4"]) == (
        "batch_tokens: none of 297 pairs fits batch_tokens 4 and max_len 64; "
        "raise the limit or shorten the sentences"
    )


def test_errors_are_in_chinese_too(error_line, monkeypatch):
    try:
        assert (
            error_line("--out", "run", "--lang", "zh", data=())
            == "source: 没有训练文本; 请给 --source 与 --target，或一个配方"
        )
    finally:
        set_language("en")


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_explain_prints_the_parameter_groups_of_the_recipe(monkeypatch, capsys, optimizer):
    settings = [f"optimizer={optimizer}", "weight_decay=0.1", *SMALL[:2]]
    options = [word for setting in settings for word in ("--set", setting)]
    assert qkv(monkeypatch, "train", "generate", "--explain", *options) == 0
    printed = capsys.readouterr().out.split("Parameter groups")[1].splitlines()[1:]
    titles = [line for line in printed if not line.startswith(" ")]
    recipe = read_recipe(GenerateRecipe, None, settings)
    model = Transformer(generation_spec(recipe.model, 400, recipe.context_length))
    layers = [w for name, w in model.named_parameters() if "layers" in name and w.ndim == 2]
    n_all = sum(weight.numel() for weight in model.parameters())
    n_layers, n_tensors = sum(map(torch.numel, layers)), len(list(model.parameters()))
    assert titles == [
        f"{optimizer}, weight decay 0.1: {len(layers)} tensors, {n_layers:,} parameters",
        f"adamw, no weight decay: {n_tensors - len(layers)} tensors, "
        f"{n_all - n_layers:,} parameters",
    ]
    names = " ".join(printed).split()
    assert "*.layers.*.attn.branch.q_proj.weight" in names and "embed.weight" in names


def test_without_weight_decay_adamw_has_one_group_and_the_card_has_it(train, files, capsys):
    assert train("--out", "run", "--set", "optimizer=adamw", "--set", "weight_decay=0") == 0
    weights = load_file(files / "run/model.safetensors").values()
    n_parameters = sum(weight.numel() for weight in weights)
    row = f"| adamw, no weight decay | {len(weights)} tensors, {n_parameters:,} parameters |"
    assert row in (files / "run/README.md").read_text().splitlines()


def test_explain_reports_a_wrong_setting_in_one_line(monkeypatch, capsys):
    assert qkv(monkeypatch, "train", "generate", "--explain", "--set", "optimizr=muon") == 2
    assert capsys.readouterr().err.count("\n") == 1
