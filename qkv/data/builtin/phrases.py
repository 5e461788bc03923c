"""The joints of the built-in grammar: who, what and how, joined so that both languages agree.

In: the typed words. Out: noun phrases and clauses, as (Chinese, English) drawn with a seeded dice; and the list of patterns.
Told in docs/data.md, "The built-in corpus".
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple, TypeVar

from qkv.data.builtin import english
from qkv.data.builtin.actions import NUMBERS, Action
from qkv.data.builtin.words import (
    DRINKS,
    FAMILY,
    HE,
    LIMITS,
    MEN,
    NAMES,
    PEOPLE,
    PLENTY,
    SHE,
    VESSELS,
    WELCOME,
    WILD,
    Noun,
    Word,
)

T = TypeVar("T")


class Dice:
    """A seeded chooser; it uses only Random.random(), which Python promises to keep the same for ever."""

    def __init__(self, seed: int):
        self._random = Random(seed).random

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self._random() * len(items))]

    def two(self, items: Sequence[T]) -> tuple[T, T]:
        """Two different items."""
        first = int(self._random() * len(items))
        second = (first + 1 + int(self._random() * (len(items) - 1))) % len(items)
        return items[first], items[second]

    def chance(self, probability: float) -> bool:
        return self._random() < probability


Pattern = Callable[[Dice], Word]
PATTERNS: dict[str, tuple[Pattern, int]] = {}


def pattern(draws: int) -> Callable[[Pattern], Pattern]:
    """Enters a kind of sentence into the grammar, with the number of times it is drawn."""

    def enter(function: Pattern) -> Pattern:
        PATTERNS[function.__name__] = function, draws
        return function

    return enter


# ---- who
class Who(NamedTuple):
    """A subject: its words, its grammatical person ("i", "he" or "they"), and the pronoun that refers back to it."""

    zh: str
    en: str
    person: str
    pronoun: Word

    def agree(self, verb: str) -> str:
        """The present tense that fits: likes for he, like for the others."""
        return english.third(verb) if self.person == "he" else verb

    @property
    def be(self) -> str:
        return {"i": "am", "he": "is", "they": "are"}[self.person]

    @property
    def was(self) -> str:
        return "were" if self.person == "they" else "was"


def _pronoun(zh: str, en: str, person: str) -> Who:
    return Who(zh, en, person, Word(zh, en))


ME, YOU, HE_, SHE_, WE, THEY = PRONOUNS = [
    _pronoun("我", "i", "i"),
    _pronoun("你", "you", "they"),
    _pronoun("他", "he", "he"),
    _pronoun("她", "she", "he"),
    _pronoun("我们", "we", "they"),
    _pronoun("他们", "they", "they"),
]
WHO = Who("谁", "who", "he", Word("", ""))
IT, THEY_ALL = Word("它", "it"), Word("它们", "they")
HIM = [
    Word("我", "me"),
    Word("你", "you"),
    Word("他", "him"),
    Word("她", "her"),
    Word("我们", "us"),
    Word("他们", "them"),
]
MY = [
    Word("我的", "my"),
    Word("你的", "your"),
    Word("他的", "his"),
    Word("她的", "her"),
    Word("我们的", "our"),
    Word("他们的", "their"),
]
MINE = [
    Word("我的", "mine"),
    Word("你的", "yours"),
    Word("他的", "his"),
    Word("她的", "hers"),
    Word("我们的", "ours"),
    Word("他们的", "theirs"),
]
GROUPS = [
    Who(noun.zh + "们", "the " + english.plural(noun.en), "they", THEY.pronoun) for noun in PEOPLE
]


def _back(dice: Dice, zh: str) -> Word:
    """He or she, whichever the word says; the dice where it says neither."""
    if zh in HE or zh in SHE:
        return (HE_ if zh in HE else SHE_).pronoun
    return dice.pick([HE_, SHE_]).pronoun


def named(dice: Dice) -> Who:
    name = dice.pick(NAMES)
    return Who(name.zh, name.en, "he", (HE_ if name in MEN else SHE_).pronoun)


def the_person(dice: Dice, people: list[Noun] = PEOPLE) -> Who:
    noun = dice.pick(people)
    return Who(f"这{noun.measure}{noun.zh}", f"the {noun.en}", "he", _back(dice, noun.zh))


def relative(dice: Dice) -> Who:
    mine, noun = dice.pick(MY), dice.pick(FAMILY)
    return Who(mine.zh + noun.zh, f"{mine.en} {noun.en}", "he", _back(dice, noun.zh))


def someone(dice: Dice) -> Who:
    """Anybody who can be the subject of a sentence; short ones more often."""
    kind = dice.pick("pppnnwwrrg")
    match kind:
        case "p":
            return dice.pick(PRONOUNS)
        case "n":
            return named(dice)
        case "w":
            return the_person(dice)
        case "r":
            return relative(dice)
        case _:
            return dice.pick(GROUPS)


def asked_about(dice: Dice) -> Who:
    """Somebody one asks about: not oneself."""
    who = someone(dice)
    return who if who not in (ME, WE) else YOU


def one_person(dice: Dice) -> Who:
    """Somebody with a name or a noun, in the singular."""
    return dice.pick([named, the_person, relative])(dice)


# ---- what
def the(noun: Noun) -> Word:
    return Word(f"这{noun.measure}{noun.zh}", f"the {noun.en}")


def a(noun: Noun) -> Word:
    return Word(f"一{noun.measure}{noun.zh}", english.a(noun.en))


def several(number: Word, noun: Noun) -> Word:
    return Word(f"{number.zh}{noun.measure}{noun.zh}", f"{number.en} {english.plural(noun.en)}")


def definite(dice: Dice, noun: Noun) -> Word:
    """这本书 is always the book, 那本书 that book, 我的书 my book: the Chinese leaves no choice."""
    if dice.chance(0.25):
        return Word(f"那{noun.measure}{noun.zh}", f"that {noun.en}")
    if dice.chance(0.25) and noun not in WILD and noun not in PEOPLE:
        mine = dice.pick(MY)
        return Word(mine.zh + noun.zh, f"{mine.en} {noun.en}")
    return the(noun)


def any_of_number(dice: Dice, noun: Noun) -> Word:
    """A thing, or several where several are not odd."""
    return several(dice.pick(NUMBERS), noun) if noun in PLENTY and dice.chance(0.5) else a(noun)


def any_of(dice: Dice, noun: Noun) -> Word:
    """A thing, two things, or this very thing."""
    kind = dice.pick("aand")
    if kind == "a":
        return a(noun)
    return (
        several(dice.pick(NUMBERS[:4]), noun)
        if kind == "n" and noun in PLENTY
        else definite(dice, noun)
    )


def described(adjective: Word, noun: Noun, first: str = "一") -> Word:
    """一本有趣的书, an interesting book; 新, 旧, 大 and 小 stand without 的."""
    link = "" if adjective.zh in "新旧大小" else "的"
    en = f"{adjective.en} {noun.en}"
    return Word(
        f"{first}{noun.measure}{adjective.zh}{link}{noun.zh}",
        english.a(en) if first == "一" else f"the {en}",
    )


def drink(dice: Dice, first: str = "一") -> Word:
    """一杯茶, a cup of tea; 这杯水, the glass of water."""
    kind = dice.pick(DRINKS)
    measure, vessel = VESSELS.get(kind.zh, ("杯", "glass"))
    return Word(
        f"{first}{measure}{kind.zh}", f"{'a' if first == '一' else 'the'} {vessel} of {kind.en}"
    )


# ---- how: 很 only joins, the others count
DEGREES = [
    ("很", "", ""),
    ("很", "", ""),
    ("非常", "", "very "),
    ("真", "", "really "),
    ("太", "了", "too "),
    ("不", "", "not "),
]
STRONG = DEGREES[:4]


def quality(
    dice: Dice, adjectives: list[Word], degrees: list[tuple[str, str, str]] = DEGREES
) -> Word:
    """非常漂亮, very beautiful: what follows the subject, and what follows the verb be."""
    (before, after, en), adjective = dice.pick(degrees), dice.pick(adjectives)
    if (before == "太" and adjective.zh in WELCOME) or (
        before == "非常" and adjective.zh in LIMITS
    ):
        before, after, en = "真", "", "really "
    if before == "不" and adjective.zh.startswith("有"):  # nobody says 不有用
        before, after, en = "很", "", ""
    return Word(before + adjective.zh + after, en + adjective.en)


# ---- a clause: subject, verb and object in a tense; t and T are the time
HABIT = "{s}{t}{v}{o}", "{S} {verbs} {O} {T}"
NOW = "{s}正在{v}{o}", "{S} {be} {ing} {O}"
PAST = "{s}{t}{v}了{o}", "{S} {past} {O} {T}"
DID_NOT = "{s}{t}没有{v}{o}", "{S} did not {verb} {O} {T}"
FUTURE = "{s}{t}会{v}{o}", "{S} will {verb} {O} {T}"
WILL_NOT = "{s}{t}不会{v}{o}", "{S} will not {verb} {O} {T}"
ALREADY = "{s}已经{v}了{o}", "{S} {have} already {done} {O}"
NOT_YET = "{s}还没有{v}{o}", "{S} {have} not {done} {O} yet"
CAN = "{s}能{v}{o}", "{S} can {verb} {O}"
CANNOT = "{s}不能{v}{o}", "{S} cannot {verb} {O}"
SHOULD = "{s}应该{v}{o}", "{S} should {verb} {O}"
MUST = "{s}必须{v}{o}", "{S} must {verb} {O}"
LIKES = "{s}喜欢{v}{o}", "{S} {like} to {verb} {O}"
DISLIKES = "{s}不喜欢{v}{o}", "{S} {do} not like to {verb} {O}"
NEEDS = "{s}需要{v}{o}", "{S} {need} to {verb} {O}"
PLANS = "{s}打算{v}{o}", "{S} {plan} to {verb} {O}"
REFUSES = "{s}不想{v}{o}", "{S} {do} not want to {verb} {O}"
WANTS = "{s}想{v}{o}", "{S} {want} to {verb} {O}"
DOES_IT = "{s}{t}{v}{o}吗", "{do} {S} {verb} {O} {T}"
DID_IT = "{s}{t}{v}了{o}吗", "did {S} {verb} {O} {T}"
WILL_IT = "{s}{t}会{v}{o}吗", "will {S} {verb} {O} {T}"
WHY = "{s}为什么{v}{o}", "why {do} {S} {verb} {O}"
WHEN = "{s}什么时候{v}{o}", "when {do} {S} {verb} {O}"
WHERE = "{s}在哪里{v}{o}", "where {do} {S} {verb} {O}"
HABIT_OFTEN = "{s}{t}{v}{o}", "{S} {T} {verbs} {O}"
_HELPING = ("do", "have", "want", "like", "need", "plan")
HELPERS = {
    person: {verb: english.third(verb) if person == "he" else verb for verb in _HELPING}
    for person in ("i", "he", "they")
}
NO_TIME = Word("", "")


def clause(form: tuple[str, str], who: Who, action: Action, time: Word = NO_TIME) -> Word:
    """The form filled in, with the verb in the tense and person it asks for."""
    verb = action.verb.en
    forms = {
        "verb": verb,
        "verbs": who.agree(verb),
        "past": english.past(verb),
        "done": english.participle(verb),
        "ing": english.ing(verb),
        "be": who.be,
        **HELPERS[who.person],
    }
    zh = form[0].format(s=who.zh, v=action.verb.zh, o=action.object.zh, t=time.zh)
    return Word(zh, tidy(form[1].format(S=who.en, O=action.object.en, T=time.en, **forms)))


def tidy(text: str) -> str:
    """One space between words, wherever a slot stayed empty."""
    return text.replace("  ", " ").strip()


def said(zh: str, en: str) -> Word:
    return Word(zh, tidy(en))
