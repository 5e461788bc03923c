"""The typer application: all commands, each in its own module.

Commands import torch and other heavy packages when they run, so that `qkv --help` is fast.
"""

import re
from collections.abc import Callable
from typing import Any

import typer
from typer.main import get_command

from qkv.cli import (
    attention,
    check,
    compare,
    convert,
    demo,
    embed,
    evaluate,
    explore,
    generate,
    glossary,
    model,
    neighbors,
    plan,
    search,
    study,
    tokenizer,
    trace,
    train,
    translate,
)
from qkv.errors import QkvError
from qkv.messages import _

# Old names of options and subcommands: the error names the new one.
RENAMED = {
    "qkv demo": {"--again": "--retrain"},
    "qkv embed": {"--long": "--truncation"},
    "qkv evaluate": {"--against": "--baseline", "--output": "--out"},
    "qkv generate": {"--typical": "--typical-p"},
    "qkv plan": {"--length": "--seq-len", "--source-length": "--source-len"},
    "qkv search": {"--long": "--truncation"},
    "qkv tokenizer": {"learn": "train"},
    "qkv tokenizer train": {"--min-count": "--min-frequency"},
    "qkv translate": {"--max-length": "--max-target-len"},
}

app = typer.Typer(
    name="qkv",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=_(
        "Transformer models: tokenize, train, generate, translate, embed, evaluate, inspect. "
        "Every command takes --lang en|zh (language of the messages), --threads N "
        "(CPU threads; default: the CPUs that other processes leave idle) and --custom "
        "package.module:Class (a custom part that a model may import)."
    ),
)
COMMANDS: dict[str, tuple[Callable[..., Any], str]] = {
    "demo": (
        demo.demo,
        _(
            "Train a small translation, language or embedding model on the built-in corpus in "
            "three minutes, and use it."
        ),
    ),
    "plan": (
        plan.plan,
        _("Estimate the cost of a model from its spec: parameters, FLOPs, memory, training time."),
    ),
    "check": (
        check.check,
        _("Check a model: causality, KV cache, padding and batch invariance, tied weights."),
    ),
    "translate": (
        translate.translate,
        _("Translate a text, the lines of a file, or standard input with beam search."),
    ),
    "generate": (
        generate.generate,
        _("Generate text from a prompt, from each line of a file, or from standard input."),
    ),
    "embed": (embed.embed, _("Embed every line of a file as a vector.")),
    "search": (
        search.search,
        _("Semantic search: the lines of a file nearest to a query by cosine similarity."),
    ),
    "evaluate": (
        evaluate.evaluate,
        _("Evaluate a model: BLEU/chrF, perplexity, retrieval and similarity."),
    ),
    "compare": (
        compare.compare,
        _("Compare training runs: curves in one figure, the settings that differ, best scores."),
    ),
    "explore": (
        explore.explore,
        _("Open a web page that shows every step of the model on your text."),
    ),
    "trace": (
        trace.trace,
        _("Print every step of the model on a text: name, shape, statistics or values."),
    ),
    "neighbors": (
        neighbors.neighbors,
        _("Print the tokens nearest to a word, or to word - W + W, by cosine of their embeddings."),
    ),
    "attention": (attention.attention, _("Draw attention weights as a heatmap.")),
    "glossary": (
        glossary.glossary,
        _("List terms with symbols, shapes and names in qkv and in other checkpoints."),
    ),
    "study": (
        study.study,
        _("Answer a question about Transformers by experiments: tables, a figure, a conclusion."),
    ),
    "import": (convert.import_, _("Import a Hugging Face checkpoint; no code of it is executed.")),
    "export": (convert.export, _("Export a model to Hugging Face, CTranslate2 or GGUF format.")),
}
for name, (function, help_text) in COMMANDS.items():
    app.command(name, help=help_text)(function)
app.add_typer(tokenizer.app, name="tokenizer")
app.add_typer(train.app, name="train")
app.add_typer(model.app, name="model")


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    command = get_command(app)
    try:
        result: Any = command.main(arguments, prog_name="qkv", standalone_mode=False)
    except typer.Abort:  # Ctrl-C or Ctrl-D at a prompt
        raise KeyboardInterrupt from None
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # typer exits with code 1
            raise error.__context__ from None
        raise
    except Exception as error:
        raise _as_one_line(error) from error
    return result if isinstance(result, int) else 0


def _as_one_line(error: Exception) -> Exception:
    """Typer's usage error as a QkvError; any other error is returned unchanged."""
    if not hasattr(error, "format_message"):
        return error
    context = getattr(error, "ctx", None)
    where = context.command_path if context else "qkv"
    text = error.format_message().rstrip(".").replace("\n", " ")
    wrong = text or _("no command given")  # typer has printed the help
    renamed = _renamed(where, getattr(error, "option_name", ""), text)
    return renamed or QkvError(where, wrong, _("see --help"))


def _renamed(where: str, option: str, text: str) -> QkvError | None:
    """The error for an old name of an option or a subcommand, which `text` has in quotes."""
    name = option or "".join(re.findall("'(.*?)'", text)[:1])
    new = RENAMED.get(where, {}).get(name)
    if new is None:
        return None
    wrong = _("no option '{name}'", name=name) if option else _("no command '{name}'", name=name)
    return QkvError(where, wrong, _("did you mean '{close}'?", close=new))
