"""Sentences of the studies `it` and `context`, generated from short lists of words.

In `it`, the adjective decides which noun the pronoun stands for; in `context`, the other words
decide the meaning of one word.
"""

from itertools import product
from typing import NamedTuple

ANIMALS = {
    "猫": "cat", "狗": "dog", "马": "horse", "牛": "cow", "羊": "sheep", "猪": "pig",
    "鸡": "chicken", "鸭子": "duck", "兔子": "rabbit", "老鼠": "mouse",
}  # fmt: skip
PLACES = {
    "街道": "street", "河": "river", "桥": "bridge", "公园": "park", "田野": "field",
    "广场": "square", "山谷": "valley", "铁路": "railway",
}  # fmt: skip
OF_ANIMALS = {
    "累": "tired", "困": "sleepy", "饿": "hungry", "渴": "thirsty", "胆小": "timid", "虚弱": "weak",
}  # fmt: skip
OF_PLACES = {
    "宽": "wide", "长": "long", "滑": "slippery", "陡": "steep", "拥挤": "crowded", "泥泞": "muddy",
}  # fmt: skip
PRONOUN = "它"
HELD_OUT_EVERY = 5  # (animal, place) combinations


class PronounSentence(NamedTuple):
    """A sentence and its translation, which names the noun that the pronoun stands for."""

    source: str
    target: str
    animal: str  # in the source
    location: str
    noun: str  # in the target
    is_animal: bool


def pronoun_sentences() -> tuple[list[PronounSentence], list[PronounSentence]]:
    """Training and held-out sentences, which have other combinations of animal and place."""
    parts: tuple[list[PronounSentence], list[PronounSentence]] = ([], [])
    for index, (animal, place) in enumerate(product(ANIMALS, PLACES)):
        # 3 shifts the held-out places from animal to animal
        is_held_out = (index + 3 * (index // len(PLACES))) % HELD_OUT_EVERY == 0
        parts[is_held_out].extend(sentences_of(animal, place))
    return parts


def sentences_of(animal: str, location: str) -> list[PronounSentence]:
    """One sentence for each adjective; first those of animals, then those of places."""
    rows = []
    for adjective, english in (OF_ANIMALS | OF_PLACES).items():
        is_animal = adjective in OF_ANIMALS
        noun = ANIMALS[animal] if is_animal else PLACES[location]
        source = f"这只{animal}没有穿过{location}，因为{PRONOUN}太{adjective}了"
        crossing = f"the {ANIMALS[animal]} did not cross the {PLACES[location]}"
        target = f"{crossing} because the {noun} was too {english}"
        rows.append(PronounSentence(source, target, animal, location, noun, is_animal))
    return rows


# ── Words with two meanings ───────────────────────────────────────────────────────────────────
# word -> a template for each meaning: the words of a sentence, with choices between |
MEANINGS = {
    "model": (
        "the|this|our small|large|deep learning|language model predicts|translates|reads "
        "words|numbers|sentences|images",
        "the|this|our tall|young|famous fashion|photo model wears|buys|shows "
        "dresses|shoes|coats|hats",
    ),
    "苹果": (
        "我|他|妈妈 吃|洗|切 了 红|甜|大 苹果 和 香蕉|橙子|葡萄|西瓜",
        "工程师|记者|老板 喜欢|研究|批评 了 新|贵|快 苹果 和 手机|电脑|芯片|软件",
    ),
    "bank": (
        "the|my|their rich|new|local bank lends|counts|keeps money|gold|savings|coins",
        "the|my|their green|muddy|steep bank follows|hides|frames water|fish|boats|reeds",
    ),
}


def meaning_sentences(word: str) -> tuple[list[list[str]], list[list[str]]]:
    """All sentences with the word in its first and in its second meaning, as lists of words."""
    first, second = map(sentences_of_template, MEANINGS[word])
    return first, second


def sentences_of_template(template: str) -> list[list[str]]:
    """Every choice of words.

    >>> sentences_of_template("a|b c")
    [['a', 'c'], ['b', 'c']]
    """
    return [list(words) for words in product(*(part.split("|") for part in template.split()))]
