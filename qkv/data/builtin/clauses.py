"""Patterns of the built-in corpus with two clauses: because, so, when, if, although; coreference.

A pattern generates one sentence in Chinese and English; its number is how often it is sampled.
See docs/guides/data.md.
"""

from qkv.data.builtin import actions as acts
from qkv.data.builtin import phrases as ph
from qkv.data.builtin import words as lex
from qkv.data.builtin.actions import Action
from qkv.data.builtin.english import past, plural
from qkv.data.builtin.phrases import Sampler, Who, clause, pattern, said, someone
from qkv.data.builtin.words import Word

WALKERS = lex.CHILDREN + lex.only(lex.PEOPLE, "士兵 运动员 农民 学生 老师 司机 记者 画家")
BAD_MOODS = [mood for mood in lex.MOODS if mood.zh != "高兴"]
BAD_WEATHER = lex.words("冷 cold, 热 hot, 潮湿 humid, 干燥 dry")


# ── it was too tired, it was too wide: the adjective determines what "it" refers to
def _walker(rng: Sampler) -> Who:
    """Sample an animal, several animals, or a person."""
    noun = rng.pick(lex.ANIMALS)
    if rng.chance(0.25):
        return ph.the_person(rng, WALKERS)
    if rng.chance(0.2):
        return Who(f"这些{noun.zh}", f"these {plural(noun.en)}", "they", ph.THEY_ALL)
    return Who(f"这{noun.measure}{noun.zh}", f"the {noun.en}", "he", ph.IT)


def _crossing(rng: Sampler) -> tuple[Action, list[Word]]:
    """Sample something to cross, and adjectives that are reasons not to."""
    what, verb, reasons = rng.pick(lex.CROSSINGS)
    return Action(Word(verb, "cross"), Word(what.zh, f"the {what.en}")), reasons


def _be(pronoun: Word, *, now: bool) -> str:
    plural_ = pronoun.en in ("they", "we", "you")
    if now:
        return "am" if pronoun.en == "i" else "are" if plural_ else "is"
    return "were" if plural_ else "was"


def _because(main: Word, pronoun: Word, why: Word, *, now: bool = False) -> Word:
    return said(
        f"{main.zh}，因为{pronoun.zh}太{why.zh}了",
        f"{main.en} because {pronoun.en} {_be(pronoun, now=now)} too {why.en}",
    )


@pattern(790)
def not_crossed_because_of_the_walker(rng: Sampler) -> Word:
    who, (cross, _) = _walker(rng), _crossing(rng)
    return _because(clause(ph.DID_NOT, who, cross), who.pronoun, rng.pick(lex.WEAKNESSES))


@pattern(650)
def not_crossed_because_of_the_way(rng: Sampler) -> Word:
    cross, reasons = _crossing(rng)
    return _because(clause(ph.DID_NOT, _walker(rng), cross), ph.IT, rng.pick(reasons))


@pattern(430)
def cannot_cross_because(rng: Sampler) -> Word:
    who, (cross, reasons) = _walker(rng), _crossing(rng)
    pronoun, why = rng.pick([(who.pronoun, lex.WEAKNESSES), (ph.IT, reasons)])
    return _because(clause(ph.CANNOT, who, cross), pronoun, rng.pick(why), now=True)


# ── the same with 它 translated as the noun it refers to: 本来想 ..., 但是它 ...
def _wanted(rng: Sampler, name_walker: bool) -> Word:
    """Return 这只动物本来想穿过街道，但是它太累了.

    The translation: the animal wanted to cross the street, but the animal was too tired.
    """
    walker, (what, verb, reasons) = ph.the(rng.pick(lex.ANIMALS)), rng.pick(lex.CROSSINGS)
    named, why = (walker.en, lex.WEAKNESSES) if name_walker else (f"the {what.en}", reasons)
    look = rng.pick(why)
    return said(
        f"{walker.zh}本来想{verb}{what.zh}，但是它太{look.zh}了",
        f"{walker.en} wanted to cross the {what.en}, but {named} was too {look.en}",
    )


@pattern(480)
def wanted_to_cross_but_the_walker(rng: Sampler) -> Word:
    return _wanted(rng, name_walker=True)


@pattern(480)
def wanted_to_cross_but_the_way(rng: Sampler) -> Word:
    return _wanted(rng, name_walker=False)


@pattern(300)
def crosses(rng: Sampler) -> Word:
    who, (cross, _) = _walker(rng), _crossing(rng)
    form, times = rng.pick(
        [
            (ph.PAST, acts.RECENTLY),
            (ph.NOW, [ph.NO_TIME]),
            (ph.FUTURE, acts.SOON),
            (ph.WANTS, [ph.NO_TIME]),
        ]
    )
    return clause(form, who, cross, rng.pick(times))


@pattern(300)
def way_is(rng: Sampler) -> Word:
    what, _, reasons = rng.pick(lex.CROSSINGS)
    measure = {"街道": "条", "森林": "片", "沙漠": "片", "田野": "片", "桥": "座"}.get(
        what.zh, "个" if what.zh in "广场山谷操场" else "条"
    )
    (zh, en), how = rng.pick([("这", "the"), ("那", "that")]), ph.quality(rng, reasons)
    return said(f"{zh}{measure}{what.zh}{how.zh}", f"{en} {what.en} is {how.en}")


@pattern(300)
def does_not_fit(rng: Sampler) -> Word:
    what, room = rng.pick(lex.LUGGAGE), rng.pick(lex.ROOMS)
    name, size = (
        ph.definite(rng, what),
        rng.pick(lex.words("大 big, 小 small, 高 tall, 宽 wide, 窄 narrow")),
    )
    return _because(
        said(f"{name.zh}放不进{room.zh}", f"{name.en} does not fit in the {room.en}"),
        ph.IT,
        size,
        now=True,
    )


@pattern(430)
def not_bought_because(rng: Sampler) -> Word:
    who, noun = someone(rng), rng.pick(lex.THINGS)
    why = rng.pick(lex.words("贵 expensive, 重 heavy, 旧 old, 脏 dirty, 大 big, 小 small"))
    main = clause(ph.DID_NOT, who, Action(Word("买", "buy"), ph.definite(rng, noun)))
    return _because(main, ph.IT, why)


@pattern(360)
def not_done_because_of_mood(rng: Sampler) -> Word:
    who, mood, habit = someone(rng), rng.pick(BAD_MOODS), rng.pick(acts.OUTDOORS + acts.SKILLS)
    return _because(clause(ph.DID_NOT, who, habit), who.pronoun, mood)


@pattern(300)
def not_gone_because(rng: Sampler) -> Word:
    who, place = someone(rng), rng.pick(lex.OUTINGS)
    main = clause(ph.DID_NOT, who, Action(Word("去", "go"), Word(place.zh, f"to the {place.en}")))
    if rng.chance(0.5):
        return _because(main, Word("天气", "the weather"), rng.pick(BAD_WEATHER))
    return _because(main, who.pronoun, rng.pick(BAD_MOODS))


@pattern(320)
def not_finished_because(rng: Sampler) -> Word:
    who, noun = someone(rng), rng.pick(lex.READABLE)
    verb = rng.pick(lex.words("读完 finish, 翻译 translate"))
    pronoun, why = rng.pick(
        [
            (who.pronoun, lex.words("累 tired, 忙 busy, 困 sleepy, 懒 lazy")),
            (ph.IT, lex.words("长 long, 难 difficult, 无聊 boring, 复杂 complicated")),
        ]
    )
    return _because(clause(ph.DID_NOT, who, Action(verb, ph.the(noun))), pronoun, rng.pick(why))


# ── moods and their consequences
def _reaction(rng: Sampler) -> tuple[Who, Word, Action]:
    mood = rng.pick([mood for mood in lex.MOODS if mood.zh in acts.REACTIONS])
    return someone(rng), mood, rng.pick(acts.REACTIONS[mood.zh])


@pattern(520)
def mood_so(rng: Sampler) -> Word:
    who, mood, then = _reaction(rng)
    end = clause(ph.PAST, who._replace(zh=who.pronoun.zh, en=who.pronoun.en), then)
    return said(
        f"{who.zh}昨天很{mood.zh}，所以{end.zh}",
        f"{who.en} {who.was} {mood.en} yesterday, so {end.en}",
    )


@pattern(320)
def mood_when(rng: Sampler) -> Word:
    who, mood, then = _reaction(rng)
    often = rng.pick(acts.OFTEN[:4])
    end = clause(ph.HABIT_OFTEN, who._replace(zh=who.pronoun.zh, en=who.pronoun.en), then, often)
    return said(
        f"当{who.zh}{mood.zh}的时候，{end.zh}", f"when {who.en} {who.be} {mood.en}, {end.en}"
    )


@pattern(300)
def mood_if(rng: Sampler) -> Word:
    who, mood, then = _reaction(rng)
    form = rng.pick([ph.FUTURE, ph.SHOULD]) if mood.zh in "累饿渴困" else ph.FUTURE
    end = clause(form, who._replace(zh=who.pronoun.zh, en=who.pronoun.en), then)
    return said(f"如果{who.zh}很{mood.zh}，{end.zh}", f"if {who.en} {who.be} {mood.en}, {end.en}")


@pattern(300)
def although(rng: Sampler) -> Word:
    who, mood = (
        someone(rng),
        rng.pick([mood for mood in lex.MOODS if mood.zh not in "高兴难过生气"]),
    )
    zh, en = rng.pick([("很高兴", "happy"), ("不难过", "not sad"), ("不生气", "not angry")])
    return said(
        f"虽然{who.zh}很{mood.zh}，但是{who.pronoun.zh}{zh}",
        f"although {who.en} {who.be} {mood.en}, {who.pronoun.en} {who.be} {en}",
    )


@pattern(300)
def although_expensive(rng: Sampler) -> Word:
    who, noun = someone(rng), rng.pick(lex.THINGS)
    look = rng.pick(lex.words("贵 expensive, 旧 old, 脏 dirty"))
    zh, en = rng.pick([("喜欢", "like"), ("需要", "need"), ("想买", "want")])
    en = who.agree(en) + (" to buy" if en == "want" else "")
    return said(
        f"虽然{ph.the(noun).zh}很{look.zh}，但是{who.zh}{zh}它",
        f"although the {noun.en} is {look.en}, {who.en} {en} it",
    )


# ── weather and plans
TOMORROW = [
    ("下雨", "it rains tomorrow", False),
    ("下雪", "it snows tomorrow", False),
    ("天气很冷", "the weather is cold tomorrow", False),
    ("天气很好", "the weather is nice tomorrow", True),
    ("天气很暖和", "the weather is warm tomorrow", True),
]


@pattern(320)
def if_the_weather(rng: Sampler) -> Word:
    zh, en, good = rng.pick(TOMORROW)
    stay, away = Action(Word("待在", "stay"), Word("家里", "at home")), _plan(rng)
    go_out, stay_in = (ph.FUTURE, ph.WILL_NOT) if good else (ph.WILL_NOT, ph.FUTURE)
    end = clause(
        *rng.pick(
            [
                (go_out, someone(rng), away),
                (go_out, someone(rng), away),
                (stay_in, someone(rng), stay),
            ]
        )
    )
    return said(f"如果明天{zh}，{end.zh}", f"if {en}, {end.en}")


def _plan(rng: Sampler) -> Action:
    place = rng.pick(lex.OUTINGS)
    return rng.pick(
        [Action(Word("去", "go"), Word(place.zh, f"to the {place.en}")), rng.pick(acts.OUTDOORS)]
    )


@pattern(300)
def busy_if(rng: Sampler) -> Word:
    who, other = ph.one_person(rng), rng.pick([*ph.HIM[:2], *ph.HIM[4:]])
    back = who._replace(zh=who.pronoun.zh, en=who.pronoun.en)
    verb = rng.pick(lex.words("帮助 help, 拜访 visit, 邀请 invite, 等 wait for"))
    mood = rng.pick(lex.words("累 tired, 忙 busy, 生气 angry, 困 sleepy"))
    end = clause(ph.FUTURE, back, Action(verb, other))
    return said(f"如果{who.zh}不{mood.zh}，{end.zh}", f"if {who.en} is not {mood.en}, {end.en}")


@pattern(300)
def stayed_because_it_rained(rng: Sampler) -> Word:
    who, place = someone(rng), rng.pick(lex.OUTINGS)
    (zh, en), verb = (
        rng.pick([("下雨", "rain"), ("下雪", "snow")]),
        Action(Word("去", "go"), Word(place.zh, f"to the {place.en}")),
    )
    if rng.chance(0.25):
        return said(
            f"{who.zh}昨天待在家里，因为{zh}了",
            f"{who.en} stayed at home yesterday because it {past(en)}",
        )
    main = clause(ph.DID_NOT, who, verb, acts.PAST_TIMES[0])
    return said(f"{main.zh}，因为{zh}了", f"{main.en} because it {past(en)}")
