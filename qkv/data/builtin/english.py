"""English inflection for the built-in corpus: plural, past, participle, -ing, comparative, a or an.

See docs/guides/data.md.
"""

from functools import cache

_PLURALS = {
    "child": "children",
    "mouse": "mice",
    "sheep": "sheep",
    "fish": "fish",
    "knife": "knives",
    "matrix": "matrices",
    "potato": "potatoes",
    "tomato": "tomatoes",
    "shelf": "shelves",
}

# plain form -> past, participle
_IRREGULAR = {
    line.split()[0]: line.split()[1:]
    for line in """
bring brought brought;be was been;build built built;buy bought bought;catch caught caught
come came come;cut cut cut
do did done;draw drew drawn;drink drank drunk;drive drove driven;eat ate eaten;feed fed fed
find found found
get got gotten;give gave given;go went gone;have had had;hear heard heard;keep kept kept
know knew known
leave left left;lose lost lost;make made made;meet met met;output output output;read read read
ride rode ridden;run ran run;say said said
see saw seen;sell sold sold;send sent sent;sing sang sung;sleep slept slept;speak spoke spoken
split split split
swim swam swum;take took taken;teach taught taught;tell told told;think thought thought
understand understood understood
wear wore worn;write wrote written""".strip()
    .replace("\n", ";")
    .split(";")
}

_DOUBLED = {"run", "swim", "get", "cut", "split", "output", "plan", "big", "hot", "sad"}
_SHORT = {  # adjectives that take -er and -est
    "big",
    "small",
    "tall",
    "short",
    "young",
    "old",
    "new",
    "fast",
    "slow",
    "high",
    "low",
    "long",
    "wide",
    "narrow",
    "deep",
    "cold",
    "hot",
    "warm",
    "cool",
    "nice",
    "heavy",
    "light",
    "cheap",
    "clean",
    "dirty",
    "busy",
    "happy",
    "sad",
    "angry",
    "hungry",
    "thirsty",
    "kind",
    "smart",
    "brave",
    "strong",
    "weak",
    "lazy",
    "friendly",
    "sweet",
    "sour",
    "fresh",
    "easy",
    "safe",
    "dry",
    "quiet",
    "noisy",
    "dark",
    "sleepy",
    "large",
    "lively",
    "simple",
    "spicy",
    "near",
}


def _split_verb(phrase: str) -> tuple[str, str]:
    """Split off the first word, which is inflected: ("listen", " to music")."""
    first, space, rest = phrase.partition(" ")
    return first, space + rest


def _add_s(word: str) -> str:
    if word.endswith(("s", "x", "ch", "sh", "z")) or word in ("go", "do"):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def _add_ed(word: str) -> str:
    if word.endswith("e"):
        return word + "d"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ied"
    return word + (word[-1] if word in _DOUBLED else "") + "ed"


@cache
def plural(noun: str) -> str:
    """plural("loss function") == "loss functions": the last word is inflected."""
    head, space, last = noun.rpartition(" ")
    return head + space + _PLURALS.get(last, _add_s(last))


@cache
def third(phrase: str) -> str:
    """third("listen to music") == "listens to music"."""
    verb, rest = _split_verb(phrase)
    return ("has" if verb == "have" else _add_s(verb)) + rest


@cache
def past(phrase: str) -> str:
    """past("eat breakfast") == "ate breakfast"."""
    verb, rest = _split_verb(phrase)
    return (_IRREGULAR[verb][0] if verb in _IRREGULAR else _add_ed(verb)) + rest


@cache
def participle(phrase: str) -> str:
    """participle("eat breakfast") == "eaten breakfast"."""
    verb, rest = _split_verb(phrase)
    return (_IRREGULAR[verb][1] if verb in _IRREGULAR else _add_ed(verb)) + rest


@cache
def ing(phrase: str) -> str:
    """ing("take photos") == "taking photos"."""
    verb, rest = _split_verb(phrase)
    if verb.endswith("e") and not verb.endswith("ee"):
        verb = verb[:-1]
    return verb + (verb[-1] if verb in _DOUBLED else "") + "ing" + rest


def _grade(adjective: str, ending: str, word: str) -> str:
    if adjective not in _SHORT:
        return f"{word} {adjective}"
    if adjective.endswith("e"):
        return adjective[:-1] + ending
    if adjective.endswith("y"):
        return adjective[:-1] + "i" + ending
    return adjective + (adjective[-1] if adjective in _DOUBLED else "") + ending


@cache
def more(adjective: str) -> str:
    """more("happy") == "happier", more("useful") == "more useful"."""
    return _grade(adjective, "er", "more")


@cache
def most(adjective: str) -> str:
    """most("tall") == "tallest", most("honest") == "most honest"."""
    return _grade(adjective, "est", "most")


@cache
def a(phrase: str) -> str:
    """a("apple") == "an apple", a("useful book") == "a useful book", by sound."""
    vowel = phrase[0] in "aeiou" and not phrase.startswith(("uni", "use", "one "))
    return ("an " if vowel or phrase.startswith(("hour", "honest")) else "a ") + phrase
