"""Noun phrases and clauses of the built-in grammar, sampled as (Chinese, English); its patterns.

See docs/guides/data.md.
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


class Sampler:
    """A seeded sampler; it uses only Random.random(), which is the same in all Python versions."""

    def __init__(self, seed: int):
        self._random = Random(seed).random

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self._random() * len(items))]

    def two(self, items: Sequence[T]) -> tuple[T, T]:
        """Sample two different items."""
        first = int(self._random() * len(items))
        second = (first + 1 + int(self._random() * (len(items) - 1))) % len(items)
        return items[first], items[second]

    def chance(self, probability: float) -> bool:
        return self._random() < probability


Pattern = Callable[[Sampler], Word]
PATTERNS: dict[str, tuple[Pattern, int]] = {}


def pattern(n_samples: int) -> Callable[[Pattern], Pattern]:
    """Register a function as a pattern of the grammar, with the number of samples.

    The name of the function seeds its samples, so renaming a pattern changes the corpus.
    """

    def register(function: Pattern) -> Pattern:
        PATTERNS[function.__name__] = function, n_samples
        return function

    return register


# ── subjects
class Who(NamedTuple):
    """A subject: its words, grammatical person ("i", "he" or "they") and pronoun."""

    zh: str
    en: str
    person: str
    pronoun: Word

    def agree(self, verb: str) -> str:
        """Return the verb in the present tense: likes for he, like for the others."""
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


def _pronoun_of(rng: Sampler, zh: str) -> Word:
    """Return he or she by the gender of the word, sampled if it has none."""
    if zh in HE or zh in SHE:
        return (HE_ if zh in HE else SHE_).pronoun
    return rng.pick([HE_, SHE_]).pronoun


def named(rng: Sampler) -> Who:
    name = rng.pick(NAMES)
    return Who(name.zh, name.en, "he", (HE_ if name in MEN else SHE_).pronoun)


def the_person(rng: Sampler, people: list[Noun] = PEOPLE) -> Who:
    noun = rng.pick(people)
    return Who(f"这{noun.measure}{noun.zh}", f"the {noun.en}", "he", _pronoun_of(rng, noun.zh))


def relative(rng: Sampler) -> Who:
    mine, noun = rng.pick(MY), rng.pick(FAMILY)
    return Who(mine.zh + noun.zh, f"{mine.en} {noun.en}", "he", _pronoun_of(rng, noun.zh))


def someone(rng: Sampler) -> Who:
    """Sample a subject, short ones more often."""
    kind = rng.pick("pppnnwwrrg")
    match kind:
        case "p":
            return rng.pick(PRONOUNS)
        case "n":
            return named(rng)
        case "w":
            return the_person(rng)
        case "r":
            return relative(rng)
        case _:
            return rng.pick(GROUPS)


def asked_about(rng: Sampler) -> Who:
    """Sample the subject of a question, not in the first person."""
    who = someone(rng)
    return who if who not in (ME, WE) else YOU


def one_person(rng: Sampler) -> Who:
    """Sample a singular subject with a name or a noun."""
    return rng.pick([named, the_person, relative])(rng)


# ── objects
def the(noun: Noun) -> Word:
    return Word(f"这{noun.measure}{noun.zh}", f"the {noun.en}")


def a(noun: Noun) -> Word:
    return Word(f"一{noun.measure}{noun.zh}", english.a(noun.en))


def several(number: Word, noun: Noun) -> Word:
    return Word(f"{number.zh}{noun.measure}{noun.zh}", f"{number.en} {english.plural(noun.en)}")


def definite(rng: Sampler, noun: Noun) -> Word:
    """Return a definite noun phrase: 这本书 the book, 那本书 that book, 我的书 my book."""
    if rng.chance(0.25):
        return Word(f"那{noun.measure}{noun.zh}", f"that {noun.en}")
    if rng.chance(0.25) and noun not in WILD and noun not in PEOPLE:
        mine = rng.pick(MY)
        return Word(mine.zh + noun.zh, f"{mine.en} {noun.en}")
    return the(noun)


def any_of_number(rng: Sampler, noun: Noun) -> Word:
    """Return one thing, or several where that is plausible."""
    return several(rng.pick(NUMBERS), noun) if noun in PLENTY and rng.chance(0.5) else a(noun)


def any_of(rng: Sampler, noun: Noun) -> Word:
    """Return an indefinite, plural or definite noun phrase."""
    kind = rng.pick("aand")
    if kind == "a":
        return a(noun)
    return (
        several(rng.pick(NUMBERS[:4]), noun)
        if kind == "n" and noun in PLENTY
        else definite(rng, noun)
    )


def described(adjective: Word, noun: Noun, first: str = "一") -> Word:
    """Return 一本有趣的书, an interesting book; 新, 旧, 大 and 小 take no 的."""
    link = "" if adjective.zh in "新旧大小" else "的"
    en = f"{adjective.en} {noun.en}"
    return Word(
        f"{first}{noun.measure}{adjective.zh}{link}{noun.zh}",
        english.a(en) if first == "一" else f"the {en}",
    )


def drink(rng: Sampler, first: str = "一") -> Word:
    """Return 一杯茶, a cup of tea; 这杯水, the glass of water."""
    kind = rng.pick(DRINKS)
    measure, vessel = VESSELS.get(kind.zh, ("杯", "glass"))
    return Word(
        f"{first}{measure}{kind.zh}", f"{'a' if first == '一' else 'the'} {vessel} of {kind.en}"
    )


# ── degree: 很 is a copula and is not translated
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
    rng: Sampler, adjectives: list[Word], degrees: list[tuple[str, str, str]] = DEGREES
) -> Word:
    """Return an adjective with a degree: 非常漂亮, very beautiful."""
    (before, after, en), adjective = rng.pick(degrees), rng.pick(adjectives)
    if (before == "太" and adjective.zh in WELCOME) or (
        before == "非常" and adjective.zh in LIMITS
    ):
        before, after, en = "真", "", "really "
    if before == "不" and adjective.zh.startswith("有"):  # 不有用 is ungrammatical
        before, after, en = "很", "", ""
    return Word(before + adjective.zh + after, en + adjective.en)


# ── clauses: subject, verb and object in a tense; t and T are the time
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
    """Fill in a form, with the verb in its tense and person."""
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
    """Remove the double spaces of empty slots."""
    return text.replace("  ", " ").strip()


def said(zh: str, en: str) -> Word:
    return Word(zh, tidy(en))
