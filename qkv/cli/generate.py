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
from qkv.language import say

if TYPE_CHECKING:
    from qkv.generate.config import GenerationConfig
    from qkv.pipeline import Generator
    from qkv.pipeline.generator import GeneratedSequence

BETWEEN = "---"      # stands between texts that follow each other
LINES_AT_ONCE = 256  # so that those of one length can go together
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}

Prompt = Annotated[str | None, typer.Argument(help=say("what to go on from; else --file or standard input", "续写的开头；否则读 --file 或标准输入"))]
File = Annotated[Path | None, typer.Option("--file", "-f", help=say("each line is a prompt", "每行一个提示"))]
MaxNewTokens = Annotated[int, typer.Option(help=say("tokens to write at most", "最多写多少词元"))]
Temperature = Annotated[float, typer.Option(help=say("0 is greedy, 1 the model's own", "0 为贪心，1 为模型本来的分布"))]
TopK = Annotated[int | None, typer.Option(help=say("only the k likeliest tokens", "只在最可能的 k 个词元中抽"))]
TopP = Annotated[float | None, typer.Option(help=say("only the fewest that reach p together", "只在概率和达到 p 的最少词元中抽"))]
MinP = Annotated[float | None, typer.Option(help=say("only those p times as likely as the best", "只留概率不低于最大者 p 倍的"))]
Typical = Annotated[float | None, typer.Option(help=say("only the most typical that reach p", "只留最典型、概率和达到 p 的"))]
Penalty = Annotated[float, typer.Option(help=say("above 1 repeats less", "大于 1 则少重复"))]
Seed = Annotated[int | None, typer.Option(help=say("the same seed, the same text", "同种子同文本"))]
N = Annotated[int, typer.Option("--n", help=say("texts for each prompt", "每个提示写几段"))]
Stop = Annotated[list[str] | None, typer.Option(help=say(r"end before this text, such as '\n'; may be repeated", r"遇此即止，如 '\n'；可多次给出"))]
LogProbs = Annotated[int | None, typer.Option(help=say("tell each token's log-probability and those of the k best", "列出各词元与前 k 名的对数概率"))]
Stream = Annotated[bool | None, typer.Option("--stream/--no-stream", help=say("show it as it is written, as in a terminal", "边写边显示；终端默认"))]
Json = Annotated[bool, typer.Option("--json", help=say("one JSON object a prompt", "每个提示一个 JSON 对象"))]


def generate(
    folder: Folder, prompt: Prompt = None, file: File = None, max_new_tokens: MaxNewTokens = 128,
    temperature: Temperature = 1.0, top_k: TopK = None, top_p: TopP = None, min_p: MinP = None, typical: Typical = None,
    repetition_penalty: Penalty = 1.0, seed: Seed = None, n: N = 1, stop: Stop = None, logprobs: LogProbs = None,
    stream: Stream = None, int8: Int8 = False, device: Device = "cpu", engine: Engine = "torch", as_json: Json = False,
) -> None:
    """Write on from a prompt, a file's lines or standard input."""
    from qkv.generate.config import GenerationConfig
    from qkv.pipeline import Generator

    whole = as_json or n > 1 or logprobs is not None  # shown when it is complete
    _refuse_mixtures(prompt, file, bool(stream) and whole)
    config = GenerationConfig(
        max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, typical=typical,
        repetition_penalty=repetition_penalty, seed=seed, n=n, logprobs=logprobs, stop=tuple(map(unescaped, stop or ())))
    generator = open_engine(Generator, engine, folder, device, int8)
    at_once = stream or (stream is None and sys.stdout.isatty() and not whole)
    typed = prompt is None and file is None and sys.stdin.isatty()  # the person sees the prompt already
    invitation = say("Type a beginning, Ctrl-D to leave.", "输入开头；按 Ctrl-D 结束。")
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
        raise QkvError("qkv generate", say("both a prompt and --file", "同时给了提示和 --file"), say("give one of them", "请只给一个"))
    if both:
        raise QkvError("--stream", say("only one plain text can be shown as it comes", "只有单段纯文本能边写边显示"),
                       say("leave out --json, --n and --logprobs", "请去掉 --json、--n 和 --logprobs"))


def _stream(generator: "Generator", prompt: str, config: "GenerationConfig", repeat: bool) -> None:
    """The prompt and what follows it, as it comes."""
    pieces = generator.stream(prompt, config)
    print(prompt if repeat else "", end="", flush=True)
    for piece in pieces:
        print(piece, end="", flush=True)
    print()


def _print(generator: "Generator", prompts: list[str], config: "GenerationConfig", as_json: bool, repeat: bool) -> None:
    texts = []
    for prompt, written in zip(prompts, generator.generate(prompts, config), strict=True):
        if as_json:
            print(json.dumps({"prompt": prompt, "texts": list(map(asdict, written))}, ensure_ascii=False))
        texts += [f"{prompt if repeat else ''}{one.text}{_numbers(one)}" for one in written]
    if not as_json:
        print(f"\n{BETWEEN}\n".join(texts))
    sys.stdout.flush()


def _numbers(one: "GeneratedSequence") -> str:
    """One line a token: the token, its log-probability, and the likeliest in its place."""
    if one.log_probs is None or one.best is None:
        return ""
    rows = zip(one.tokens, one.log_probs, one.best, strict=True)
    return "".join(f"\n{token}\t{number:.4f}" + "".join(f"\t{other} {chance:.4f}" for other, chance in best)
                   for token, number, best in rows)
