"""The front door: quick help, one-line mistakes, two languages, colour only where it is wanted."""

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


HEAVY = ("torch", "tokenizers", "numpy", "matplotlib", "sacrebleu", "transformers")


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["tokenizer", "--help"], ["tokenizer", "learn", "--help"]],
    ids=" ".join,
)
def test_help_imports_nothing_heavy(arguments):
    program = f"""
import sys
sys.argv = ["qkv", *{arguments!r}]
from qkv.cli import main
try:
    main()
finally:
    print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and "Usage" in done.stdout
    assert done.stderr.strip() == "[]"


def test_a_mistaken_command_or_option_is_one_line_and_exit_2():
    done = run("tokeniser")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr.startswith("qkv: No such command 'tokeniser'") and done.stderr.count("\n") == 1
    )
    done = run("tokenizer", "learn", "--kinds", "bpe")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr.startswith("qkv tokenizer learn: No such option: --kinds")
        and done.stderr.count("\n") == 1
    )
    done = run("tokenizer", "learn", "a.txt", "--out", "b.json", "--vocab-size", "many")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr.startswith("qkv tokenizer learn: ")
        and "'--vocab-size'" in done.stderr
        and done.stderr.count("\n") == 1
    )


def test_no_command_at_all_shows_the_help_and_says_so():
    for arguments, name in (((), "qkv"), (("train",), "qkv train")):
        done = run(*arguments)
        assert "Usage" in done.stdout and (done.returncode, done.stderr) == (
            2,
            f"{name}: nothing to do; see --help\n",
        )


def test_messages_come_in_the_language_asked_for():
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
    assert "文本与词元互换" in run("--lang", "zh", "tokenizer", "--help").stdout


def test_an_unknown_language_is_refused():
    assert run("--lang", "fr", "--help").stderr == "--lang: no language 'fr'; choose from en, zh\n"
    assert run("--help", "--lang").stderr == "--lang: no language given; choose from en, zh\n"
    assert run("--lang", "fr").returncode == 2


def test_threads_can_be_given_anywhere_and_must_be_a_number():
    expected = "--threads: '{}' is no number of threads; use 1 to 1024\n"
    for wrong in ("0", "-1", "two", "", "2.5", "1025", "２"):
        done = run("plan", f"--threads={wrong}")
        assert (done.returncode, done.stderr) == (2, expected.format(wrong))
    assert run("plan", "--threads").stderr == expected.format("")
    assert run("--threads", "3", "tokenizer", "--help").returncode == 0
    code = (
        "import sys; sys.argv[1:] = ['plan', '--help', '--threads', '1']\nfrom qkv.cli import main\ntry: main()\nexcept SystemExit: pass\n"
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
    """What a command writes to a terminal, control codes included."""
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


COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7])(?:;\d+)*m")


def test_colour_is_for_terminals_whose_owner_has_nothing_against_it():
    assert COLOUR.search(on_a_terminal("tokenizer", "--help"))
    assert not COLOUR.search(on_a_terminal("tokenizer", "--help", NO_COLOR="1"))
    assert "\x1b" not in run("tokenizer", "--help", TERM="xterm-256color").stdout


def test_a_reader_who_leaves_early_is_no_error(tmp_path):
    (tmp_path / "a.txt").write_text("low lower lowest\n" * 20_000)
    learned = run(
        "tokenizer",
        "learn",
        str(tmp_path / "a.txt"),
        "--vocab-size",
        "270",
        "--out",
        str(tmp_path / "t.json"),
    )
    assert learned.returncode == 0
    command = f"{sys.executable} -m qkv tokenizer encode {tmp_path}/t.json --file {tmp_path}/a.txt | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.stdout.count("\n") == 1 and "Traceback" not in done.stderr
