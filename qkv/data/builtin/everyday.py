"""Everyday sentences of the built-in corpus: people, what they are and what they do.

In: a dice. Out: one sentence in Chinese and English for each pattern; its number says how often it is drawn.
Told in docs/data.md, "The built-in corpus".
"""

from qkv.data.builtin import actions as acts
from qkv.data.builtin import english
from qkv.data.builtin import phrases as ph
from qkv.data.builtin import words as lex
from qkv.data.builtin.actions import Action
from qkv.data.builtin.phrases import Dice, clause, pattern, said, someone
from qkv.data.builtin.words import Word


# ---- what people are
@pattern(300)
def person_feels(dice: Dice) -> Word:
    who, how = someone(dice), ph.quality(dice, lex.MOODS)
    return said(f"{who.zh}现在{how.zh}", f"{who.en} {who.be} {how.en} now")


@pattern(300)
def person_felt(dice: Dice) -> Word:
    who, how, time = someone(dice), ph.quality(dice, lex.MOODS, ph.STRONG), dice.pick(acts.RECENTLY)
    return said(f"{who.zh}{time.zh}{how.zh}", f"{who.en} {who.was} {how.en} {time.en}")


@pattern(300)
def person_will_feel(dice: Dice) -> Word:
    who, mood, time = someone(dice), dice.pick(lex.MOODS), dice.pick(acts.SOON)
    return said(f"{who.zh}{time.zh}会很{mood.zh}", f"{who.en} will be {mood.en} {time.en}")


@pattern(430)
def person_has_trait(dice: Dice) -> Word:
    who, how = someone(dice), ph.quality(dice, lex.TRAITS)
    return said(who.zh + how.zh, f"{who.en} {who.be} {how.en}")


@pattern(300)
def is_the_person_so(dice: Dice) -> Word:
    who, trait = ph.asked_about(dice), dice.pick(lex.TRAITS + lex.MOODS)
    return said(f"{who.zh}{trait.zh}吗", f"{who.be} {who.en} {trait.en}")


@pattern(300)
def person_has_profession(dice: Dice) -> Word:
    who, job = (
        dice.pick([ph.ME, ph.YOU, ph.HE_, ph.SHE_, ph.named(dice), ph.relative(dice)]),
        dice.pick(lex.PROFESSIONS),
    )
    zh, en = dice.pick([("是", "{be} "), ("不是", "{be} not "), ("想成为", "{want} to become ")])
    en = en.format(be=who.be, want=who.agree("want"))
    if who is ph.YOU and zh == "是":
        return said(f"{who.zh}是{ph.a(job).zh}吗", f"are you {ph.a(job).en}")
    return said(who.zh + zh + ph.a(job).zh, who.en + " " + en + ph.a(job).en)


@pattern(120)
def people_have_profession(dice: Dice) -> Word:
    who, job = dice.pick([ph.WE, ph.THEY]), dice.pick(lex.PROFESSIONS)
    return said(f"{who.zh}是{job.zh}", f"{who.en} are {english.plural(job.en)}")


@pattern(560)
def person_compared(dice: Dice) -> Word:
    first, second, trait = ph.one_person(dice), ph.one_person(dice), dice.pick(lex.TRAITS)
    if first.en == second.en:
        second = ph.named(dice)
    zh, en = dice.pick([("", "{more}"), ("得多", "much {more}"), ("一点", "a little {more}")])
    en = en.format(more=english.more(trait.en))
    return said(f"{first.zh}比{second.zh}{trait.zh}{zh}", f"{first.en} is {en} than {second.en}")


@pattern(300)
def person_equalled(dice: Dice) -> Word:
    (first, second), trait = dice.two(lex.NAMES), dice.pick(lex.TRAITS)
    if dice.chance(0.5):
        return said(
            f"{first.zh}没有{second.zh}{trait.zh}",
            f"{first.en} is not as {trait.en} as {second.en}",
        )
    return said(
        f"{first.zh}和{second.zh}一样{trait.zh}", f"{first.en} is as {trait.en} as {second.en}"
    )


@pattern(560)
def best_of_a_place(dice: Dice) -> Word:
    who, trait, (place, jobs) = ph.named(dice), dice.pick(lex.TRAITS), dice.pick(acts.EXPERTS)
    job = dice.pick(jobs)
    return said(
        f"{who.zh}是{place.zh}里最{trait.zh}的{job.zh}",
        f"{who.en} is the {english.most(trait.en)} {job.en} in the {place.en}",
    )


@pattern(300)
def age(dice: Dice) -> Word:
    who, years = dice.pick([ph.named(dice), dice.pick(ph.PRONOUNS)]), dice.pick(acts.AGES)
    return said(f"{who.zh}{years.zh}岁", f"{who.en} {who.be} {years.en} years old")


@pattern(300)
def age_of_a_relative(dice: Dice) -> Word:
    mine, names = dice.pick(ph.MY), dice.pick(list(acts.RELATIVE_AGES))
    years, name = (
        dice.pick(lex.words(acts.RELATIVE_AGES[names])),
        dice.pick([word for word in lex.FAMILY if word.zh in names]),
    )
    return said(f"{mine.zh}{name.zh}{years.zh}岁", f"{mine.en} {name.en} is {years.en} years old")


@pattern(300)
def home(dice: Dice) -> Word:
    who, city = someone(dice), dice.pick(lex.CITIES)
    zh, verb, link = dice.pick([("住在", "live", "in"), ("来自", "come", "from")])
    return said(f"{who.zh}{zh}{city.zh}", f"{who.en} {who.agree(verb)} {link} {city.en}")


# ---- habits
def _time(dice: Dice, habit: Action, times: list[Word]) -> Word:
    """Meals and sleep have hours of their own, so they take the time that fits every action."""
    return times[0] if habit in acts.MEALTIMES or habit.verb.zh == "睡觉" else dice.pick(times)


@pattern(500)
def habit_every_day(dice: Dice) -> Word:
    habit = dice.pick(acts.HABITS)
    return clause(ph.HABIT, someone(dice), habit, _time(dice, habit, acts.DAILY_TIMES))


@pattern(600)
def habit_in_the_past(dice: Dice) -> Word:
    habit, form = dice.pick(acts.HABITS), dice.pick([ph.PAST, ph.DID_NOT])
    return clause(form, someone(dice), habit, _time(dice, habit, acts.RECENTLY))


@pattern(430)
def habit_in_the_future(dice: Dice) -> Word:
    habit, form = dice.pick(acts.HABITS), dice.pick([ph.FUTURE, ph.FUTURE, ph.WILL_NOT])
    return clause(form, someone(dice), habit, _time(dice, habit, acts.SOON))


@pattern(700)
def habit_now(dice: Dice) -> Word:
    return clause(ph.NOW, someone(dice), dice.pick(acts.HABITS))


@pattern(430)
def habit_how_often(dice: Dice) -> Word:
    return clause(ph.HABIT_OFTEN, someone(dice), dice.pick(acts.HABITS), dice.pick(acts.OFTEN))


@pattern(500)
def habit_wanted(dice: Dice) -> Word:
    form = dice.pick(
        [ph.WANTS, ph.LIKES, ph.NEEDS, ph.PLANS, ph.SHOULD, ph.MUST, ph.DISLIKES, ph.REFUSES]
    )
    return clause(form, someone(dice), dice.pick(acts.HABITS))


@pattern(240)
def skill(dice: Dice) -> Word:
    return clause(dice.pick([ph.CAN, ph.CANNOT]), someone(dice), dice.pick(acts.SKILLS))


@pattern(430)
def habit_asked(dice: Dice) -> Word:
    habit = dice.pick(acts.HABITS)
    form, times = dice.pick(
        [(ph.DOES_IT, acts.DAILY_TIMES), (ph.DID_IT, acts.RECENTLY), (ph.WILL_IT, acts.SOON)]
    )
    return clause(form, ph.asked_about(dice), habit, _time(dice, habit, times))


@pattern(360)
def habit_questioned(dice: Dice) -> Word:
    form, habits = dice.pick(
        [(ph.WHY, acts.HABITS), (ph.WHEN, acts.HABITS), (ph.WHERE, acts.OUTDOORS)]
    )
    return clause(form, ph.asked_about(dice), dice.pick(habits))


@pattern(160)
def who_does_it(dice: Dice) -> Word:
    habit = dice.pick(acts.HABITS)
    form, times = dice.pick(
        [(ph.HABIT, acts.DAILY_TIMES), (ph.PAST, acts.RECENTLY), (ph.FUTURE, acts.SOON)]
    )
    return clause(form, ph.WHO, habit, _time(dice, habit, times))


@pattern(320)
def habit_with_company(dice: Dice) -> Word:
    who, friend, habit = someone(dice), ph.one_person(dice), dice.pick(acts.TOGETHER)
    if who.en == friend.en:
        who = dice.pick(ph.PRONOUNS)
    friend_en = f"{habit.object.en} with {friend.en}"
    together = Action(
        Word(f"和{friend.zh}一起{habit.verb.zh}", habit.verb.en), Word(habit.object.zh, friend_en)
    )
    return clause(dice.pick([ph.WANTS, ph.LIKES, ph.PLANS]), who, together)


@pattern(360)
def habit_at_a_place(dice: Dice) -> Word:
    who, habit, place = someone(dice), dice.pick(acts.OUTDOORS), dice.pick(acts.GROUNDS)
    if dice.chance(0.5):
        return said(
            f"{who.zh}正{place.zh}{habit.verb.zh}{habit.object.zh}",
            f"{who.en} {who.be} {english.ing(habit.verb.en)} {habit.object.en} {place.en}",
        )
    return said(
        f"{who.zh}每天{place.zh}{habit.verb.zh}{habit.object.zh}",
        f"{who.en} {who.agree(habit.verb.en)} {habit.object.en} {place.en} every day",
    )


@pattern(240)
def works_at(dice: Dice) -> Word:
    who, place = someone(dice), dice.pick(acts.WORKPLACES)
    zh, en = dice.pick(
        [("", "{S} {work}"), ("不", "{S} {do} not work"), ("想", "{S} {want} to work")]
    )
    en = en.format(S=who.en, work=who.agree("work"), do=who.agree("do"), want=who.agree("want"))
    return said(f"{who.zh}{zh}{place.zh}工作", f"{en} {place.en}")


@pattern(300)
def habit_on_a_weekday(dice: Dice) -> Word:
    who, habit, day = someone(dice), dice.pick(acts.WEEKLY), dice.pick(acts.WEEKDAYS)
    if dice.chance(0.5):
        return clause(ph.FUTURE, who, habit, Word(day.zh, f"on {day.en}"))
    return clause(ph.HABIT, who, habit, Word(f"每个{day.zh}", f"every {day.en}"))


@pattern(360)
def at_an_hour(dice: Dice) -> Word:
    what, hours = dice.pick(acts.SCHEDULE)
    hour = dice.pick(hours)
    return clause(
        ph.HABIT, someone(dice), what, Word(f"每天{hour.zh}点", f"at {hour.en} every day")
    )
