"""`qkv generate`: generate text from prompts: an argument, a file, standard input or a terminal.

Each prompt is printed with its continuation. See docs/guides/generation.md.
"""

import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.cli.lines import lines
from qkv.cli.options import Device, Engine, Folder, Int8
from qkv.cli.output import print_json
from qkv.cli.parameters import argument, option
from qkv.cli.translate import open_engine
from qkv.errors import QkvError
from qkv.messages import _

if TYPE_CHECKING:
    from qkv.generate.config import GenerationConfig
    from qkv.pipeline import Generator
    from qkv.pipeline.generated_sequence import GeneratedSequence

SEPARATOR = "---"  # between texts
PROMPTS_PER_READ = 256  # read ahead, so that prompts of equal length share a batch
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}


def generate(
    folder: Folder,
    prompt: str | None = argument(None, "prompt; default: --file or standard input"),
    file: Path | None = option(None, "file of prompts, one per line", "--file", "-f"),
    max_new_tokens: int = option(128, "maximum number of generated tokens"),
    temperature: float = option(1.0, "sampling temperature; 0 is greedy decoding"),
    top_k: int | None = option(None, "top-k sampling: keep the k most probable tokens"),
    top_p: float | None = option(
        None, "nucleus sampling (top-p): keep the fewest tokens with total probability >= p"
    ),
    min_p: float | None = option(None, "min-p: keep tokens with probability >= p x the maximum"),
    typical_p: float | None = option(
        None, "locally typical sampling: keep the most typical tokens with total probability >= p"
    ),
    repetition_penalty: float = option(1.0, "repetition penalty; above 1 reduces repetition"),
    seed: int | None = option(None, "random seed; the same seed gives the same text"),
    n: int = option(1, "sequences per prompt"),
    stop: list[str] | None = option(None, "stop string, such as '\\n'; may be repeated"),
    logprobs: int | None = option(
        None, "print the log-probability of each token and of the k most probable ones"
    ),
    stream: bool | None = option(
        None, "print tokens as they are generated; default in a terminal", "--stream/--no-stream"
    ),
    int8: Int8 = False,
    device: Device = "cpu",
    engine: Engine = "torch",
    as_json: bool = option(False, "print one JSON object per prompt", "--json"),
) -> None:
    """Generate text from a prompt, from each line of a file, or from standard input."""
    from qkv.generate.config import GenerationConfig
    from qkv.pipeline import Generator

    complete = as_json or n > 1 or logprobs is not None  # printed when it is complete
    _check_options(prompt, file, bool(stream) and complete)
    config = GenerationConfig(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        typical_p=typical_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        n=n,
        logprobs=logprobs,
        stop=tuple(map(unescaped, stop or ())),
    )
    generator = open_engine(Generator, engine, folder, device, int8)
    streaming = stream or (stream is None and sys.stdout.isatty() and not complete)
    # A prompt typed at a terminal is on the screen already.
    typed = prompt is None and file is None and sys.stdin.isatty()
    hint = _("Type a prompt; Ctrl-D to exit.")
    size = 1 if streaming else PROMPTS_PER_READ
    for number, prompts in enumerate(lines(prompt, file, size, hint)):
        if number and not typed and not as_json:
            print(SEPARATOR)
        if streaming:
            _stream(generator, prompts[0], config, echo=not typed)
        else:
            _print(generator, prompts, config, as_json, echo=not typed)


def unescaped(text: str) -> str:
    r"""Replace escapes: unescaped(r"\n") is a newline, unescaped(r"\\n") a backslash and an n."""
    return re.sub(r"\\(.)", lambda found: ESCAPES.get(found[1], found[0]), text)


def _check_options(prompt: str | None, file: Path | None, cannot_stream: bool) -> None:
    if prompt is not None and file is not None:
        raise QkvError("qkv generate", _("both a prompt and --file"), _("give one of them"))
    if cannot_stream:
        raise QkvError(
            "--stream",
            _("only a single plain text can be streamed"),
            _("omit --json, --n and --logprobs"),
        )


def _stream(generator: "Generator", prompt: str, config: "GenerationConfig", echo: bool) -> None:
    """Print the prompt, then the tokens as they are generated."""
    pieces = generator.stream(prompt, config)
    print(prompt if echo else "", end="", flush=True)
    for piece in pieces:
        print(piece, end="", flush=True)
    print()


def _print(
    generator: "Generator",
    prompts: list[str],
    config: "GenerationConfig",
    as_json: bool,
    echo: bool,
) -> None:
    texts = []
    for prompt, sequences in zip(prompts, generator.generate(prompts, config), strict=True):
        if as_json:
            print_json({"prompt": prompt, "texts": list(map(asdict, sequences))})
        start = prompt if echo else ""
        texts += [f"{start}{sequence.text}{_logprob_rows(sequence)}" for sequence in sequences]
    if not as_json:
        print(f"\n{SEPARATOR}\n".join(texts))
    sys.stdout.flush()


def _logprob_rows(sequence: "GeneratedSequence") -> str:
    """One line per token: the token, its log-probability, and the most probable tokens."""
    if sequence.logprobs is None or sequence.top_logprobs is None:
        return ""
    rows = zip(sequence.tokens, sequence.logprobs, sequence.top_logprobs, strict=True)
    return "".join(
        f"\n{token}\t{logprob:.4f}" + "".join(f"\t{other} {value:.4f}" for other, value in top)
        for token, logprob, top in rows
    )
