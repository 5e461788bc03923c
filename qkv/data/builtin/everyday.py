"""Patterns of the built-in corpus about people: properties and habits.

A pattern generates one sentence in Chinese and English; its number is how often it is sampled.
See docs/guides/data.md.
"""

from qkv.data.builtin import actions as acts
from qkv.data.builtin import english
from qkv.data.builtin import phrases as ph
from qkv.data.builtin import words as lex
from qkv.data.builtin.actions import Action
from qkv.data.builtin.comparisons import DIFFERENCES, equally, more_than, not_as
from qkv.data.builtin.phrases import Sampler, clause, pattern, said, someone
from qkv.data.builtin.words import Word


# ── properties of people
@pattern(300)
def person_feels(rng: Sampler) -> Word:
    who, how = someone(rng), ph.quality(rng, lex.MOODS)
    return said(f"{who.zh}现在{how.zh}", f"{who.en} {who.be} {how.en} now")


@pattern(300)
def person_felt(rng: Sampler) -> Word:
    who, how, time = someone(rng), ph.quality(rng, lex.MOODS, ph.STRONG), rng.pick(acts.RECENTLY)
    return said(f"{who.zh}{time.zh}{how.zh}", f"{who.en} {who.was} {how.en} {time.en}")


@pattern(300)
def person_will_feel(rng: Sampler) -> Word:
    who, mood, time = someone(rng), rng.pick(lex.MOODS), rng.pick(acts.SOON)
    return said(f"{who.zh}{time.zh}会很{mood.zh}", f"{who.en} will be {mood.en} {time.en}")


@pattern(430)
def person_has_trait(rng: Sampler) -> Word:
    who, how = someone(rng), ph.quality(rng, lex.TRAITS)
    return said(who.zh + how.zh, f"{who.en} {who.be} {how.en}")


@pattern(300)
def is_the_person_so(rng: Sampler) -> Word:
    who, trait = ph.asked_about(rng), rng.pick(lex.TRAITS + lex.MOODS)
    return said(f"{who.zh}{trait.zh}吗", f"{who.be} {who.en} {trait.en}")


@pattern(300)
def person_has_profession(rng: Sampler) -> Word:
    who, job = (
        rng.pick([ph.ME, ph.YOU, ph.HE_, ph.SHE_, ph.named(rng), ph.relative(rng)]),
        rng.pick(lex.PROFESSIONS),
    )
    zh, en = rng.pick([("是", "{be} "), ("不是", "{be} not "), ("想成为", "{want} to become ")])
    en = en.format(be=who.be, want=who.agree("want"))
    if who is ph.YOU and zh == "是":
        return said(f"{who.zh}是{ph.a(job).zh}吗", f"are you {ph.a(job).en}")
    return said(who.zh + zh + ph.a(job).zh, who.en + " " + en + ph.a(job).en)


@pattern(120)
def people_have_profession(rng: Sampler) -> Word:
    who, job = rng.pick([ph.WE, ph.THEY]), rng.pick(lex.PROFESSIONS)
    return said(f"{who.zh}是{job.zh}", f"{who.en} are {english.plural(job.en)}")


@pattern(560)
def person_compared(rng: Sampler) -> Word:
    first, second, trait = ph.one_person(rng), ph.one_person(rng), rng.pick(lex.TRAITS)
    if first.en == second.en:
        second = ph.named(rng)
    return more_than(first, second, trait, rng.pick(DIFFERENCES))


@pattern(300)
def person_equalled(rng: Sampler) -> Word:
    (first, second), trait = rng.two(lex.NAMES), rng.pick(lex.TRAITS)
    return (not_as if rng.chance(0.5) else equally)(first, second, trait)


@pattern(560)
def best_of_a_place(rng: Sampler) -> Word:
    who, trait, (place, jobs) = ph.named(rng), rng.pick(lex.TRAITS), rng.pick(acts.EXPERTS)
    job = rng.pick(jobs)
    return said(
        f"{who.zh}是{place.zh}里最{trait.zh}的{job.zh}",
        f"{who.en} is the {english.most(trait.en)} {job.en} in the {place.en}",
    )


@pattern(300)
def age(rng: Sampler) -> Word:
    who, years = rng.pick([ph.named(rng), rng.pick(ph.PRONOUNS)]), rng.pick(acts.AGES)
    return said(f"{who.zh}{years.zh}岁", f"{who.en} {who.be} {years.en} years old")


@pattern(300)
def age_of_a_relative(rng: Sampler) -> Word:
    mine, names = rng.pick(ph.MY), rng.pick(list(acts.RELATIVE_AGES))
    years, name = (
        rng.pick(lex.words(acts.RELATIVE_AGES[names])),
        rng.pick([word for word in lex.FAMILY if word.zh in names]),
    )
    return said(f"{mine.zh}{name.zh}{years.zh}岁", f"{mine.en} {name.en} is {years.en} years old")


@pattern(300)
def home(rng: Sampler) -> Word:
    who, city = someone(rng), rng.pick(lex.CITIES)
    zh, verb, link = rng.pick([("住在", "live", "in"), ("来自", "come", "from")])
    return said(f"{who.zh}{zh}{city.zh}", f"{who.en} {who.agree(verb)} {link} {city.en}")


# ── habits
def _time(rng: Sampler, habit: Action, times: list[Word]) -> Word:
    """Sample a time; meals and sleep take the one that fits every action."""
    return times[0] if habit in acts.MEALTIMES or habit.verb.zh == "睡觉" else rng.pick(times)


@pattern(500)
def habit_every_day(rng: Sampler) -> Word:
    habit = rng.pick(acts.HABITS)
    return clause(ph.HABIT, someone(rng), habit, _time(rng, habit, acts.DAILY_TIMES))


@pattern(600)
def habit_in_the_past(rng: Sampler) -> Word:
    habit, form = rng.pick(acts.HABITS), rng.pick([ph.PAST, ph.DID_NOT])
    return clause(form, someone(rng), habit, _time(rng, habit, acts.RECENTLY))


@pattern(430)
def habit_in_the_future(rng: Sampler) -> Word:
    habit, form = rng.pick(acts.HABITS), rng.pick([ph.FUTURE, ph.FUTURE, ph.WILL_NOT])
    return clause(form, someone(rng), habit, _time(rng, habit, acts.SOON))


@pattern(700)
def habit_now(rng: Sampler) -> Word:
    return clause(ph.NOW, someone(rng), rng.pick(acts.HABITS))


@pattern(430)
def habit_how_often(rng: Sampler) -> Word:
    return clause(ph.HABIT_OFTEN, someone(rng), rng.pick(acts.HABITS), rng.pick(acts.OFTEN))


@pattern(500)
def habit_wanted(rng: Sampler) -> Word:
    form = rng.pick(
        [ph.WANTS, ph.LIKES, ph.NEEDS, ph.PLANS, ph.SHOULD, ph.MUST, ph.DISLIKES, ph.REFUSES]
    )
    return clause(form, someone(rng), rng.pick(acts.HABITS))


@pattern(240)
def skill(rng: Sampler) -> Word:
    return clause(rng.pick([ph.CAN, ph.CANNOT]), someone(rng), rng.pick(acts.SKILLS))


@pattern(430)
def habit_asked(rng: Sampler) -> Word:
    habit = rng.pick(acts.HABITS)
    form, times = rng.pick(
        [(ph.DOES_IT, acts.DAILY_TIMES), (ph.DID_IT, acts.RECENTLY), (ph.WILL_IT, acts.SOON)]
    )
    return clause(form, ph.asked_about(rng), habit, _time(rng, habit, times))


@pattern(360)
def habit_questioned(rng: Sampler) -> Word:
    form, habits = rng.pick(
        [(ph.WHY, acts.HABITS), (ph.WHEN, acts.HABITS), (ph.WHERE, acts.OUTDOORS)]
    )
    return clause(form, ph.asked_about(rng), rng.pick(habits))


@pattern(160)
def who_does_it(rng: Sampler) -> Word:
    habit = rng.pick(acts.HABITS)
    form, times = rng.pick(
        [(ph.HABIT, acts.DAILY_TIMES), (ph.PAST, acts.RECENTLY), (ph.FUTURE, acts.SOON)]
    )
    return clause(form, ph.WHO, habit, _time(rng, habit, times))


@pattern(320)
def habit_with_company(rng: Sampler) -> Word:
    who, friend, habit = someone(rng), ph.one_person(rng), rng.pick(acts.TOGETHER)
    if who.en == friend.en:
        who = rng.pick(ph.PRONOUNS)
    friend_en = f"{habit.object.en} with {friend.en}"
    together = Action(
        Word(f"和{friend.zh}一起{habit.verb.zh}", habit.verb.en), Word(habit.object.zh, friend_en)
    )
    return clause(rng.pick([ph.WANTS, ph.LIKES, ph.PLANS]), who, together)


@pattern(360)
def habit_at_a_place(rng: Sampler) -> Word:
    who, habit, place = someone(rng), rng.pick(acts.OUTDOORS), rng.pick(acts.GROUNDS)
    if rng.chance(0.5):
        return said(
            f"{who.zh}正{place.zh}{habit.verb.zh}{habit.object.zh}",
            f"{who.en} {who.be} {english.ing(habit.verb.en)} {habit.object.en} {place.en}",
        )
    return said(
        f"{who.zh}每天{place.zh}{habit.verb.zh}{habit.object.zh}",
        f"{who.en} {who.agree(habit.verb.en)} {habit.object.en} {place.en} every day",
    )


@pattern(240)
def works_at(rng: Sampler) -> Word:
    who, place = someone(rng), rng.pick(acts.WORKPLACES)
    zh, en = rng.pick(
        [("", "{S} {work}"), ("不", "{S} {do} not work"), ("想", "{S} {want} to work")]
    )
    en = en.format(S=who.en, work=who.agree("work"), do=who.agree("do"), want=who.agree("want"))
    return said(f"{who.zh}{zh}{place.zh}工作", f"{en} {place.en}")


@pattern(300)
def habit_on_a_weekday(rng: Sampler) -> Word:
    who, habit, day = someone(rng), rng.pick(acts.WEEKLY), rng.pick(acts.WEEKDAYS)
    if rng.chance(0.5):
        return clause(ph.FUTURE, who, habit, Word(day.zh, f"on {day.en}"))
    return clause(ph.HABIT, who, habit, Word(f"每个{day.zh}", f"every {day.en}"))


@pattern(360)
def at_an_hour(rng: Sampler) -> Word:
    what, hours = rng.pick(acts.SCHEDULE)
    hour = rng.pick(hours)
    return clause(ph.HABIT, someone(rng), what, Word(f"每天{hour.zh}点", f"at {hour.en} every day"))
