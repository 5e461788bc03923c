"""Sentences of the study `context`: a word in two meanings, which the other words decide."""

from itertools import product

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
