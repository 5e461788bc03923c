"""Looking ahead: a quick model guesses some tokens, the slow one checks them all in one reading; it is also called speculative decoding.

Leviathan et al. 2023, in its plainest form: whatever is said is the slow model's own choice, so the text is the one it would
write alone. qkv/engine/speculative.py must write the same. Told in docs/performance.md, "Speculative decoding".
"""

from collections.abc import Callable

Choose = Callable[[list[int]], int]  # all tokens so far -> the next one: the likeliest, or a draw by the number of its place


def write_ahead(slow: Choose, quick: Choose, prompt: list[int], n_new: int, n_guesses: int) -> tuple[list[int], int]:
    """The n_new tokens that `slow` writes after the prompt, and how often it had to read its weights for them."""
    text, end, readings = list(prompt), len(prompt) + n_new, 0
    while len(text) < end:
        guesses = list[int]()
        while len(guesses) < min(n_guesses, end - len(text) - 1):
            guesses.append(quick(text + guesses))
        # All contexts are known before the slow model is asked: it answers them in one reading, like a sentence in training.
        chosen = [slow(text + guesses[:n]) for n in range(len(guesses) + 1)]
        readings += 1
        right = 0
        while right < len(guesses) and guesses[right] == chosen[right]:
            right += 1
        text += chosen[: right + 1]  # after the right guesses comes the slow model's own next token, right in any case
    return text[len(prompt) :], readings
