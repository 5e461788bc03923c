"""Speculative decoding (Leviathan et al., 2023): a draft model proposes, the target model verifies.

Every token is the target model's own choice, so the text is that of the target model alone.
qkv/engine/speculative.py gives the same text. See docs/explanation/decoding.md, "Speculative
decoding".
"""

from collections.abc import Callable

__all__ = ["speculative_decode"]

NextToken = Callable[[list[int]], int]  # all tokens so far -> the next one: greedy, or sampled


def speculative_decode(
    target: NextToken, draft: NextToken, prompt: list[int], n_new: int, n_draft: int
) -> tuple[list[int], int]:
    """The n_new tokens that `target` generates after the prompt, and the number of its passes."""
    ids, end, n_passes = list(prompt), len(prompt) + n_new, 0
    while len(ids) < end:
        drafted = list[int]()
        while len(drafted) < min(n_draft, end - len(ids) - 1):
            drafted.append(draft(ids + drafted))
        # All prefixes are known in advance: the target model verifies them in one pass.
        verified = [target(ids + drafted[:n]) for n in range(len(drafted) + 1)]
        n_passes += 1
        n_accepted = 0
        while n_accepted < len(drafted) and drafted[n_accepted] == verified[n_accepted]:
            n_accepted += 1
        ids += verified[: n_accepted + 1]  # the accepted tokens and the target's next token
    return ids[len(prompt) :], n_passes
