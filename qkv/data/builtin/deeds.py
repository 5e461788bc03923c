"""Patterns of the built-in corpus about trips, actions and orders.

A pattern generates one sentence in Chinese and English; its number is how often it is sampled.
See docs/guides/data.md.
"""

from qkv.data.builtin import actions as acts
from qkv.data.builtin import phrases as ph
from qkv.data.builtin import words as lex
from qkv.data.builtin.actions import Action
from qkv.data.builtin.phrases import Sampler, clause, pattern, said, someone
from qkv.data.builtin.words import Noun, Word

# ── trips
OUTING_FORMS = [
    (ph.HABIT, acts.DAILY_TIMES),
    (ph.PAST, acts.RECENTLY),
    (ph.DID_NOT, acts.RECENTLY),
    (ph.FUTURE, acts.SOON),
    (ph.WANTS, [ph.NO_TIME]),
    (ph.WILL_IT, acts.SOON),
]


@pattern(500)
def goes_to_a_place(rng: Sampler) -> Word:
    place = rng.pick(lex.OUTINGS)
    trip = Action(Word("去", "go"), Word(place.zh, f"to the {place.en}"))
    form, times = rng.pick(OUTING_FORMS)
    return clause(
        form, ph.asked_about(rng) if form is ph.WILL_IT else someone(rng), trip, rng.pick(times)
    )


@pattern(360)
def travels_to_a_city(rng: Sampler) -> Word:
    city, by = rng.pick(lex.CITIES), rng.pick(lex.TRANSPORT[:2])
    trip = Action(Word(f"坐{by.zh}去", "go"), Word(city.zh, f"to {city.en} by {by.en}"))
    form, times = rng.pick(
        [
            (ph.PAST, acts.PAST_TIMES),
            (ph.DID_NOT, acts.PAST_TIMES),
            (ph.FUTURE, acts.FUTURE_TIMES),
            (ph.WANTS, [ph.NO_TIME]),
            (ph.PLANS, [ph.NO_TIME]),
        ]
    )
    return clause(form, someone(rng), trip, rng.pick(times))


@pattern(300)
def rides_to_a_place(rng: Sampler) -> Word:
    place, by = rng.pick(lex.OUTINGS), rng.pick(acts.TOWN_TRANSPORT)
    trip = Action(Word(f"坐{by.zh}去", "go"), Word(place.zh, f"to the {place.en} by {by.en}"))
    form, time = rng.pick(
        [
            (ph.HABIT, acts.DAILY_TIMES[0]),
            (ph.PAST, acts.PAST_TIMES[0]),
            (ph.FUTURE, acts.FUTURE_TIMES[0]),
        ]
    )
    return clause(form, someone(rng), trip, time)


@pattern(400)
def visits_in_a_month(rng: Sampler) -> Word:
    city, month = rng.pick(lex.CITIES), rng.pick(acts.MONTHS)
    return clause(
        ph.FUTURE,
        someone(rng),
        Action(Word("去", "go"), Word(city.zh, f"to {city.en}")),
        Word(month.zh, f"in {month.en}"),
    )


@pattern(240)
def has_been_to(rng: Sampler) -> Word:
    who, city = someone(rng), rng.pick(lex.CITIES)
    zh, en = rng.pick([("去过", "been"), ("没有去过", "not been"), ("去过两次", "twice")])
    if en == "twice":
        return said(
            f"{who.zh}去过{city.zh}两次", f"{who.en} {who.agree('have')} been to {city.en} twice"
        )
    return said(who.zh + zh + city.zh, f"{who.en} {who.agree('have')} {en} to {city.en}")


# ── actions on something
def _deed(rng: Sampler, table: list[tuple[Word, list[Noun]]], exactly: bool) -> Action:
    verb, objects = rng.pick(table)
    noun = rng.pick(objects)
    return Action(
        verb, ph.definite(rng, noun) if exactly or noun in lex.PEOPLE else ph.any_of(rng, noun)
    )


@pattern(650)
def steady_deed(rng: Sampler) -> Word:
    form, times = rng.pick(
        [
            (ph.NOW, [ph.NO_TIME]),
            (ph.PAST, acts.RECENTLY),
            (ph.FUTURE, acts.SOON),
            (ph.WANTS, [ph.NO_TIME]),
        ]
    )
    return clause(form, someone(rng), _deed(rng, acts.STEADY, exactly=False), rng.pick(times))


@pattern(650)
def sudden_deed(rng: Sampler) -> Word:
    form, times = rng.pick(
        [
            (ph.PAST, acts.PAST_TIMES),
            (ph.FUTURE, acts.FUTURE_TIMES),
            (ph.WANTS, [ph.NO_TIME]),
            (ph.PLANS, [ph.NO_TIME]),
        ]
    )
    return clause(form, someone(rng), _deed(rng, acts.SUDDEN, exactly=False), rng.pick(times))


@pattern(650)
def deed_denied_or_ordered(rng: Sampler) -> Word:
    form = rng.pick([ph.DID_NOT, ph.ALREADY, ph.NOT_YET, ph.SHOULD, ph.MUST, ph.CANNOT, ph.DID_IT])
    who = ph.asked_about(rng) if form is ph.DID_IT else someone(rng)
    return clause(form, who, _deed(rng, acts.STEADY + acts.SUDDEN, exactly=True))


@pattern(300)
def search(rng: Sampler) -> Word:
    form = rng.pick([ph.NOW, ph.NOW, ph.MUST, ph.NEEDS, ph.SHOULD])
    return clause(form, someone(rng), _deed(rng, acts.SEARCHES, exactly=True))


@pattern(430)
def stroke_of_luck(rng: Sampler) -> Word:
    form = rng.pick([ph.PAST, ph.PAST, ph.DID_NOT, ph.DID_IT])
    deed = _deed(rng, acts.LUCK, exactly=form is not ph.PAST)
    who = ph.asked_about(rng) if form is ph.DID_IT else someone(rng)
    return clause(form, who, deed, rng.pick(acts.RECENTLY))


@pattern(300)
def person_to_person(rng: Sampler) -> Word:
    verb, whom, who = rng.pick(acts.GREETINGS), rng.pick(ph.HIM), ph.one_person(rng)
    form = rng.pick([ph.HABIT, ph.FUTURE, ph.SHOULD]) if verb.zh not in "想念记得" else ph.HABIT
    return clause(
        form,
        who,
        Action(verb, whom),
        rng.pick(acts.OFTEN[:3]) if form is ph.HABIT and verb.zh == "等" else ph.NO_TIME,
    )


ORDER_FORMS = [
    ("请", "please {}"),
    ("请不要", "please do not {}"),
    ("我们应该", "we should {}"),
    ("你能{}吗", "can you {}"),
    ("让我们", "let us {}"),
    ("你必须", "you must {}"),
    ("你为什么不", "why do you not {}"),
    ("我不能", "i cannot {}"),
    ("他们会", "they will {}"),
]


@pattern(300)
def order(rng: Sampler) -> Word:
    what = rng.pick(acts.ORDERS)
    zh, en = rng.pick(ORDER_FORMS)
    zh_action, en_action = what.verb.zh + what.object.zh, f"{what.verb.en} {what.object.en}"
    return said(zh.format(zh_action) if "{}" in zh else zh + zh_action, en.format(en_action))
