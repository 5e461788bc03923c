"""A generated text with its tokens, finish reason, seed and log-probabilities.

See docs/guides/generation.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from qkv.generate.backend import GeneratedTokens
from qkv.generate.config import GenerationConfig
from qkv.generate.stream import TextStream
from qkv.text.tokenizer import Tokenizer

__all__ = ["GeneratedSequence"]


@dataclass(frozen=True)
class GeneratedSequence:
    """A generated text, as returned by Generator.generate.

    Example:
        [[sequence]] = generator.generate(["ROMEO:"], logprobs=0, seed=1)
        print(sequence.text, sequence.finish_reason, sum(sequence.logprobs))

    Attributes:
        text: The text, without the prompt and the stop string.
        ids: Its token ids, with the token that ended it.
        finish_reason: "eos" (an end token), "stop" (a stop string) or "length".
        seed: The seed that reproduces it.
        tokens: Its tokens, readable.
        logprobs: The log-probability of each token; None: not requested.
        top_logprobs: The most likely tokens at each position as (token, logprob), best first; None:
            not requested.
    """

    text: str
    ids: list[int]
    finish_reason: str
    seed: int
    tokens: list[str] = field(default_factory=list)
    logprobs: list[float] | None = None
    top_logprobs: list[list[tuple[str, float]]] | None = None


def decode_sequence(
    tokenizer: Tokenizer, prompt: Sequence[int], output: GeneratedTokens, config: GenerationConfig
) -> GeneratedSequence:
    """Decode generated tokens up to the first stop string."""
    stream, pieces = TextStream(tokenizer, config.stop, before=prompt), list[str]()
    for id in output.ids[:-1] if output.finish_reason == "eos" else output.ids:
        if not stream.stopped:
            pieces.append(stream.add(id))
    n = len(pieces) if stream.stopped else len(output.ids)
    pieces.append(stream.finish())
    ids, finish_reason = output.ids[:n], "stop" if stream.stopped else output.finish_reason
    display = tokenizer.display_tokens
    assert config.seed is not None
    sequence = GeneratedSequence("".join(pieces), ids, finish_reason, config.seed, display(ids))
    if config.logprobs is None:
        return sequence
    top = [
        [(display([id])[0], logprob) for id, logprob in candidates]
        for candidates in output.top_logprobs[:n]
    ]
    return replace(sequence, logprobs=list(output.logprobs[:n]), top_logprobs=top)
