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
from qkv.messages import _

app = typer.Typer(
    name="qkv",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=_(
        "The Transformer, from raw text to output text. Every command takes --lang en|zh (language of the messages) and --threads N (CPU threads; default: as many as other processes leave free)."
    ),
)
app.command(
    "demo",
    help=_(
        "Train a small translator, language model or embedder on the built-in corpus in three minutes and use it."
    ),
)(demo.demo)
app.add_typer(tokenizer.app, name="tokenizer")
app.add_typer(train.app, name="train")
app.add_typer(model.app, name="model")
app.command("plan")(plan.plan)
app.command("check", help=_("Prove on this very model what must hold of every one."))(check.check)
app.command("translate", help=_("Translate a text, a file or standard input."))(translate.translate)
app.command("generate", help=_("Write on from a prompt, a file's lines or standard input."))(
    generate.generate
)
app.command("embed", help=_("The vector of every line of a file."))(embed.embed)
app.command("search", help=_("The sentences of a file nearest in meaning."))(search.search)
app.command("evaluate", help=_("How good a model is, in its field's numbers."))(evaluate.evaluate)
app.command("explore", help=_("A page that shows the model think."))(explore.explore)
app.command("attention", help=_("Draw where a model looks."))(attention.attention)
app.command("import", help=_("Read another family's checkpoint; nothing of it is run."))(
    convert.import_
)
app.command("export", help=_("Write a model so that other software loads it."))(convert.export)


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
    wrong = error.format_message().rstrip(".").replace("\n", " ") or _(
        "nothing to do"
    )  # the help was shown
    return QkvError(where, wrong, _("see --help"))
