"""The `qkv` command: fast help, one-line errors, two languages, color on terminals only."""

import os
import pty
import re
import subprocess
import sys

import pytest


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in ("NO_COLOR", "FORCE_COLOR", "QKV_LANG")
    }
    return subprocess.run(
        [sys.executable, "-m", "qkv", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**env, "QKV_LANG": "en", **environment},
    )


HEAVY_PACKAGES = ("torch", "tokenizers", "numpy", "matplotlib", "sacrebleu", "transformers")


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["tokenizer", "--help"], ["tokenizer", "train", "--help"]],
    ids=" ".join,
)
def test_help_imports_no_heavy_package(arguments):
    program = f"""
import sys
sys.argv = ["qkv", *{arguments!r}]
from qkv.cli import main
try:
    main()
finally:
    print([name for name in {HEAVY_PACKAGES!r} if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and "Usage" in done.stdout
    assert done.stderr.strip() == "[]"


def test_an_unknown_command_or_option_is_one_line_and_exit_code_2():
    done = run("tokeniser")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr.startswith("qkv: No such command 'tokeniser'") and done.stderr.count("\n") == 1
    )
    done = run("tokenizer", "train", "--kinds", "bpe")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr.startswith("qkv tokenizer train: No such option: --kinds")
        and done.stderr.count("\n") == 1
    )
    done = run("tokenizer", "train", "a.txt", "--out", "b.json", "--vocab-size", "many")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr.startswith("qkv tokenizer train: ")
        and "'--vocab-size'" in done.stderr
        and done.stderr.count("\n") == 1
    )


def test_no_command_prints_the_help_and_an_error():
    for arguments, name in (((), "qkv"), (("train",), "qkv train")):
        done = run(*arguments)
        assert "Usage" in done.stdout and (done.returncode, done.stderr) == (
            2,
            f"{name}: no command given; see --help\n",
        )


def test_messages_are_in_the_chosen_language():
    english, chinese = (
        "none.json: no such file; check the path\n",
        "none.json: 没有这个文件; 请检查路径\n",
    )
    command = ("tokenizer", "encode", "none.json", "x")
    assert run(*command).stderr == english
    assert run("--lang", "zh", *command).stderr == chinese
    assert run(*command, "--lang=zh").stderr == chinese
    assert run(*command, QKV_LANG="zh").stderr == chinese
    assert (
        run(*command, QKV_LANG="", LC_ALL="", LC_MESSAGES="", LANG="zh_CN.UTF-8").stderr == chinese
    )
    assert run("--lang", "en", *command, QKV_LANG="zh").stderr == english
    assert "训练和使用分词器" in run("--lang", "zh", "tokenizer", "--help").stdout


def test_an_unknown_language_is_rejected():
    assert run("--lang", "fr", "--help").stderr == "--lang: no language 'fr'; choose from en, zh\n"
    assert run("--help", "--lang").stderr == "--lang: no language given; choose from en, zh\n"
    assert run("--lang", "fr").returncode == 2


def test_threads_can_be_given_anywhere_and_must_be_a_number():
    expected = "--threads: '{}' is not a number of threads; use 1 to 1024\n"
    for wrong in ("0", "-1", "two", "", "2.5", "1025", "２"):
        done = run("plan", f"--threads={wrong}")
        assert (done.returncode, done.stderr) == (2, expected.format(wrong))
    assert run("plan", "--threads").stderr == expected.format("")
    assert run("--threads", "3", "tokenizer", "--help").returncode == 0
    code = (
        "import sys; sys.argv[1:] = ['plan', '--help', '--threads', '1']\n"
        "from qkv.cli import main\ntry: main()\nexcept SystemExit: pass\n"
        "import torch; print(torch.get_num_threads())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
    )
    assert done.stdout.splitlines()[-1] == "1"


def on_a_terminal(*arguments: str, **environment: str) -> str:
    """The output of a command on a terminal, control codes included."""
    screen, end = pty.openpty()
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in ("NO_COLOR", "FORCE_COLOR", "CI")
    }
    command = [sys.executable, "-m", "qkv", *arguments]
    subprocess.run(
        command,
        stdout=end,
        timeout=60,
        env={**env, "TERM": "xterm-256color", **environment},
        check=True,
    )
    os.close(end)
    return os.read(screen, 100_000).decode()


COLOR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7])(?:;\d+)*m")


def test_color_is_used_on_terminals_without_no_color():
    assert COLOR.search(on_a_terminal("tokenizer", "--help"))
    assert not COLOR.search(on_a_terminal("tokenizer", "--help", NO_COLOR="1"))
    assert "\x1b" not in run("tokenizer", "--help", TERM="xterm-256color").stdout


def test_a_closed_pipe_is_not_an_error(tmp_path):
    (tmp_path / "a.txt").write_text("low lower lowest\n" * 20_000)
    trained = run(
        "tokenizer",
        "train",
        str(tmp_path / "a.txt"),
        "--vocab-size",
        "270",
        "--out",
        str(tmp_path / "t.json"),
    )
    assert trained.returncode == 0
    encode = f"{sys.executable} -m qkv tokenizer encode {tmp_path}/t.json --file {tmp_path}/a.txt"
    done = subprocess.run(
        ["bash", "-c", f"{encode} | head -1"], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.count("\n") == 1 and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["demo", "--again"], "qkv demo: no option '--again'; did you mean '--retrain'?"),
        (["embed", "x", "y", "--long", "cut"], "qkv embed: no option '--long'; "),
        (["evaluate", "x", "--against", "y"], "qkv evaluate: no option '--against'; "),
        (["evaluate", "x", "--output=y"], "qkv evaluate: no option '--output'; "),
        (["generate", "x", "--typical", "0.9"], "qkv generate: no option '--typical'; "),
        (["plan", "x", "--length", "9"], "qkv plan: no option '--length'; "),
        (["plan", "x", "--source-length", "9"], "qkv plan: no option '--source-length'; "),
        (["search", "x", "y", "--long", "cut"], "qkv search: no option '--long'; "),
        (["tokenizer", "learn", "x"], "qkv tokenizer: no command 'learn'; "),
        (["tokenizer", "train", "x", "--min-count", "2"], "qkv tokenizer train: no option "),
        (["translate", "x", "--max-length", "9"], "qkv translate: no option '--max-length'; "),
    ],
)
def test_an_old_option_name_gives_the_new_one(arguments, line):
    from qkv.cli import app
    from qkv.errors import QkvError

    names = app.RENAMED
    with pytest.raises(QkvError) as error:
        app.run(arguments)
    assert str(error.value).startswith(line)
    command, old = str(error.value).split(": ")[0], str(error.value).split("'")[1]
    assert str(error.value).endswith(f"; did you mean '{names[command][old]}'?")
