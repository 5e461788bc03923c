"""`qkv generate`: a model writes on from a prompt: an argument, a file's lines, standard input or the keyboard.

In: prompts. Out: each prompt with what follows it, on stdout; `--stream` shows it as it is written. Told in
docs/generation.md, "The command".
"""

import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli.lines import lines
from qkv.cli.translate import Device, Engine, Folder, Int8, open_engine
from qkv.errors import QkvError
from qkv.messages import _

if TYPE_CHECKING:
    from qkv.generate.config import GenerationConfig
    from qkv.pipeline import Generator
    from qkv.pipeline.generator import GeneratedSequence

BETWEEN = "---"  # stands between texts that follow each other
LINES_AT_ONCE = 256  # so that those of one length can go together
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}

Prompt = Annotated[
    str | None, typer.Argument(help=_("what to go on from; else --file or standard input"))
]
File = Annotated[Path | None, typer.Option("--file", "-f", help=_("each line is a prompt"))]
MaxNewTokens = Annotated[int, typer.Option(help=_("tokens to write at most"))]
Temperature = Annotated[float, typer.Option(help=_("0 is greedy, 1 the model's own"))]
TopK = Annotated[int | None, typer.Option(help=_("only the k likeliest tokens"))]
TopP = Annotated[float | None, typer.Option(help=_("only the fewest that reach p together"))]
MinP = Annotated[float | None, typer.Option(help=_("only those p times as likely as the best"))]
Typical = Annotated[float | None, typer.Option(help=_("only the most typical that reach p"))]
Penalty = Annotated[float, typer.Option(help=_("above 1 repeats less"))]
Seed = Annotated[int | None, typer.Option(help=_("the same seed, the same text"))]
N = Annotated[int, typer.Option("--n", help=_("texts for each prompt"))]
Stop = Annotated[
    list[str] | None, typer.Option(help=_("end before this text, such as '\\n'; may be repeated"))
]
LogProbs = Annotated[
    int | None, typer.Option(help=_("tell each token's log-probability and those of the k best"))
]
Stream = Annotated[
    bool | None,
    typer.Option("--stream/--no-stream", help=_("show it as it is written, as in a terminal")),
]
Json = Annotated[bool, typer.Option("--json", help=_("one JSON object a prompt"))]


def generate(
    folder: Folder,
    prompt: Prompt = None,
    file: File = None,
    max_new_tokens: MaxNewTokens = 128,
    temperature: Temperature = 1.0,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    typical: Typical = None,
    repetition_penalty: Penalty = 1.0,
    seed: Seed = None,
    n: N = 1,
    stop: Stop = None,
    logprobs: LogProbs = None,
    stream: Stream = None,
    int8: Int8 = False,
    device: Device = "cpu",
    engine: Engine = "torch",
    as_json: Json = False,
) -> None:
    """Write on from a prompt, a file's lines or standard input."""
    from qkv.generate.config import GenerationConfig
    from qkv.pipeline import Generator

    whole = as_json or n > 1 or logprobs is not None  # shown when it is complete
    _refuse_mixtures(prompt, file, bool(stream) and whole)
    config = GenerationConfig(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        typical=typical,
        repetition_penalty=repetition_penalty,
        seed=seed,
        n=n,
        logprobs=logprobs,
        stop=tuple(map(unescaped, stop or ())),
    )
    generator = open_engine(Generator, engine, folder, device, int8)
    at_once = stream or (stream is None and sys.stdout.isatty() and not whole)
    typed = (
        prompt is None and file is None and sys.stdin.isatty()
    )  # the person sees the prompt already
    invitation = _("Type a beginning, Ctrl-D to leave.")
    for number, some in enumerate(lines(prompt, file, 1 if at_once else LINES_AT_ONCE, invitation)):
        if number and not typed and not as_json:
            print(BETWEEN)
        if at_once:
            _stream(generator, some[0], config, repeat=not typed)
        else:
            _print(generator, some, config, as_json, repeat=not typed)


def unescaped(text: str) -> str:
    r"""What is hard to type: unescaped(r"\n") is a line end, unescaped(r"\\n") a backslash and an n."""
    return re.sub(r"\\(.)", lambda found: ESCAPES.get(found[1], found[0]), text)


def _refuse_mixtures(prompt: str | None, file: Path | None, both: bool) -> None:
    if prompt is not None and file is not None:
        raise QkvError("qkv generate", _("both a prompt and --file"), _("give one of them"))
    if both:
        raise QkvError(
            "--stream",
            _("only one plain text can be shown as it comes"),
            _("leave out --json, --n and --logprobs"),
        )


def _stream(generator: "Generator", prompt: str, config: "GenerationConfig", repeat: bool) -> None:
    """The prompt and what follows it, as it comes."""
    pieces = generator.stream(prompt, config)
    print(prompt if repeat else "", end="", flush=True)
    for piece in pieces:
        print(piece, end="", flush=True)
    print()


def _print(
    generator: "Generator",
    prompts: list[str],
    config: "GenerationConfig",
    as_json: bool,
    repeat: bool,
) -> None:
    texts = []
    for prompt, written in zip(prompts, generator.generate(prompts, config), strict=True):
        if as_json:
            print(
                json.dumps(
                    {"prompt": prompt, "texts": list(map(asdict, written))}, ensure_ascii=False
                )
            )
        texts += [f"{prompt if repeat else ''}{one.text}{_numbers(one)}" for one in written]
    if not as_json:
        print(f"\n{BETWEEN}\n".join(texts))
    sys.stdout.flush()


def _numbers(one: "GeneratedSequence") -> str:
    """One line a token: the token, its log-probability, and the likeliest in its place."""
    if one.log_probs is None or one.best is None:
        return ""
    rows = zip(one.tokens, one.log_probs, one.best, strict=True)
    return "".join(
        f"\n{token}\t{number:.4f}" + "".join(f"\t{other} {chance:.4f}" for other, chance in best)
        for token, number, best in rows
    )
