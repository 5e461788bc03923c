"""All commands, by group; one file beside this one holds each group.

In: arguments without `--lang` and `--threads`. Out: the exit code. Nothing heavy is imported here: a command imports what it needs.
"""

from typing import Any

import typer
from typer.main import get_command

from qkv.cli import (
    attention,
    check,
    convert,
    demo,
    embed,
    evaluate,
    explore,
    generate,
    model,
    plan,
    search,
    tokenizer,
    train,
    translate,
)
from qkv.errors import QkvError
from qkv.language import say

app = typer.Typer(
    name="qkv",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=say(
        "The Transformer, from raw text to output text. Every command takes --lang en|zh (language of the messages) and "
        "--threads N (CPU threads; default: as many as other processes leave free).",
        "Transformer：从原始文本到输出文本。每个命令都可加 --lang en|zh（提示语言）和 --threads N（CPU 线程数，默认按其他进程的占用自动决定）。",
    ),
)
app.command("demo", help=say("Train a small translator, language model or embedder on the built-in corpus in three minutes and use it.",
                             "三分钟内用内置语料训练小型翻译、语言或句向量模型并使用。"))(demo.demo)
app.add_typer(tokenizer.app, name="tokenizer")
app.add_typer(train.app, name="train")
app.add_typer(model.app, name="model")
app.command("plan")(plan.plan)
app.command("check", help=say("Prove on this very model what must hold of every one.", "在这个模型上验证每个模型都应满足的性质。"))(check.check)
app.command("translate", help=say("Translate a text, a file or standard input.", "翻译文字、文件或标准输入。"))(translate.translate)
app.command("generate", help=say("Write on from a prompt, a file's lines or standard input.", "从提示、文件各行或标准输入续写。"))(generate.generate)
app.command("embed", help=say("The vector of every line of a file.", "为文件的每一行生成向量。"))(embed.embed)
app.command("search", help=say("The sentences of a file nearest in meaning.", "在文件中找意思最近的句子。"))(search.search)
app.command("evaluate", help=say("How good a model is, in its field's numbers.", "评测模型：用该领域的指标。"))(evaluate.evaluate)
app.command("explore", help=say("A page that shows the model think.", "用网页展示模型如何思考。"))(explore.explore)
app.command("attention", help=say("Draw where a model looks.", "画出模型看向哪里。"))(attention.attention)
app.command("import", help=say("Read another family's checkpoint; nothing of it is run.", "读取他人的检查点；不运行其中代码。"))(convert.import_)
app.command("export", help=say("Write a model so that other software loads it.", "写出模型，供其他软件加载。"))(convert.export)


def run(arguments: list[str]) -> int:
    """Run one command and give its exit code."""
    command = get_command(app)
    try:
        result: Any = command.main(arguments, prog_name="qkv", standalone_mode=False)
    except typer.Abort:  # Ctrl-C or Ctrl-D at a question
        raise KeyboardInterrupt from None
    except Exception as error:
        raise _as_one_line(error) from error
    return result if isinstance(result, int) else 0


def _as_one_line(error: Exception) -> Exception:
    """Typer's complaint about an argument as our one line; anything else stays what it is."""
    if not hasattr(error, "format_message"):
        return error
    context = getattr(error, "ctx", None)
    where = context.command_path if context else "qkv"
    wrong = error.format_message().rstrip(".").replace("\n", " ") or say("nothing to do", "没有要做的事")  # the help was shown
    return QkvError(where, wrong, say("see --help", "请看 --help"))
