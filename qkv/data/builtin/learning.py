"""Sentences about study and machine learning in the built-in corpus.

In: a dice. Out: one sentence in Chinese and English for each pattern; its number says how often it is drawn.
Told in docs/data.md, "The built-in corpus".
"""

from qkv.data.builtin import actions as acts
from qkv.data.builtin import english
from qkv.data.builtin import phrases as ph
from qkv.data.builtin import words as lex
from qkv.data.builtin.actions import Action, Craft
from qkv.data.builtin.phrases import Dice, Who, clause, pattern, said, someone
from qkv.data.builtin.words import Noun, Word

COMPARED = lex.words(
    "有趣 interesting, 难 difficult, 容易 easy, 重要 important, 有用 useful, 复杂 complicated, 流行 popular"
)


# ---- studies
@pattern(500)
def study_is(dice: Dice) -> Word:
    study, how = dice.pick(lex.STUDIES), ph.quality(dice, lex.SUBJECT_LOOKS)
    return said(study.zh + how.zh, f"{study.en} is {how.en}")


@pattern(580)
def study_loved(dice: Dice) -> Word:
    who, study = someone(dice), dice.pick(lex.STUDIES)
    zh, en = dice.pick(
        [("爱", "love"), ("爱", "love"), ("喜欢", "like"), ("学习", "learn"), ("研究", "study")]
    )
    return said(who.zh + zh + study.zh, f"{who.en} {who.agree(en)} {study.en}")


@pattern(580)
def study_pursued(dice: Dice) -> Word:
    action = Action(dice.pick(lex.words("学习 learn, 研究 study")), dice.pick(lex.STUDIES))
    form, times = dice.pick(
        [
            (ph.NOW, [ph.NO_TIME]),
            (ph.WANTS, [ph.NO_TIME]),
            (ph.LIKES, [ph.NO_TIME]),
            (ph.DOES_IT, acts.DAILY_TIMES),
            (ph.FUTURE, acts.FUTURE_TIMES),
            (ph.PAST, acts.PAST_TIMES),
            (ph.HABIT, acts.DAILY_TIMES),
            (ph.WHY, [ph.NO_TIME]),
        ]
    )
    who = ph.asked_about(dice) if form in (ph.DOES_IT, ph.WHY) else someone(dice)
    return clause(form, who, action, dice.pick(times))


@pattern(360)
def study_compared(dice: Dice) -> Word:
    (first, second), look = dice.two(lex.STUDIES), dice.pick(COMPARED)
    if dice.chance(0.4):
        return said(
            f"{first.zh}和{second.zh}一样{look.zh}", f"{first.en} is as {look.en} as {second.en}"
        )
    return said(
        f"{first.zh}比{second.zh}{look.zh}",
        f"{first.en} is {english.more(look.en)} than {second.en}",
    )


@pattern(500)
def opinion(dice: Dice) -> Word:
    who, study, how = (
        someone(dice),
        dice.pick(lex.STUDIES),
        ph.quality(dice, lex.SUBJECT_LOOKS, ph.DEGREES[:3]),
    )
    zh, verb = dice.pick([("觉得", "think"), ("说", "say"), ("知道", "know")])
    return said(
        f"{who.zh}{zh}{study.zh}{how.zh}", f"{who.en} {who.agree(verb)} {study.en} is {how.en}"
    )


@pattern(300)
def study_for_years(dice: Dice) -> Word:
    who, study, years = someone(dice), dice.pick(lex.STUDIES), dice.pick(acts.NUMBERS)
    unit = dice.pick([Word("年", "years"), Word("个星期", "weeks"), Word("个月", "months")])
    return said(
        f"{who.zh}研究了{years.zh}{unit.zh}{study.zh}",
        f"{who.en} studied {study.en} for {years.en} {unit.en}",
    )


@pattern(430)
def written_about(dice: Dice) -> Word:
    who, study = someone(dice), dice.pick(lex.STUDIES)
    noun, verbs = (
        dice.pick(lex.only(lex.READABLE, "书 论文 文章 报告")),
        lex.words("写了 wrote, 读了 read, 正在写 be writing, 想写 want to write"),
    )
    verb = dice.pick(verbs)
    en = {"正在写": f"{who.be} writing", "想写": f"{who.agree('want')} to write"}.get(
        verb.zh, verb.en
    )
    return said(
        f"{who.zh}{verb.zh}一{noun.measure}关于{study.zh}的{noun.zh}",
        f"{who.en} {en} {english.a(noun.en)} about {study.en}",
    )


@pattern(300)
def teaches(dice: Dice) -> Word:
    who, whom, study = (
        ph.one_person(dice),
        dice.pick(ph.HIM),
        dice.pick(lex.STUDIES + lex.LANGUAGES),
    )
    zh, en = dice.pick([("教", "teaches"), ("会教", "will teach"), ("正在教", "is teaching")])
    return said(f"{who.zh}{zh}{whom.zh}{study.zh}", f"{who.en} {en} {whom.en} {study.en}")


@pattern(250)
def speaks(dice: Dice) -> Word:
    form = dice.pick([ph.HABIT, ph.CANNOT, ph.DOES_IT, ph.LIKES, ph.CAN])
    return clause(
        form,
        ph.asked_about(dice) if form is ph.DOES_IT else someone(dice),
        Action(Word("说", "speak"), dice.pick(lex.LANGUAGES)),
    )


# ---- models and their parts
def _machine(dice: Dice, noun: Noun) -> Who:
    what = ph.definite(dice, noun)
    return Who(what.zh, what.en, "he", ph.IT)


def _craft(dice: Dice, craft: Craft) -> Action:
    thing = dice.pick(craft.objects)
    return Action(craft.verb, ph.the(thing) if isinstance(thing, Noun) else thing)


MACHINE_FORMS = [
    ph.HABIT,
    ph.HABIT,
    ph.HABIT,
    ph.CAN,
    ph.CANNOT,
    ph.DID_NOT,
    ph.FUTURE,
    ph.SHOULD,
    ph.MUST,
]


@pattern(1100)
def machine_works(dice: Dice) -> Word:
    craft = dice.pick(acts.MACHINE_CRAFTS)
    return clause(
        dice.pick(MACHINE_FORMS), _machine(dice, dice.pick(craft.doers)), _craft(dice, craft)
    )


@pattern(860)
def people_build_machines(dice: Dice) -> Word:
    craft = dice.pick(acts.HUMAN_CRAFTS)
    form, times = dice.pick(
        [
            (ph.NOW, [ph.NO_TIME]),
            (ph.PAST, acts.PAST_TIMES[:4]),
            (ph.DID_NOT, acts.RECENTLY),
            (ph.FUTURE, [*acts.SOON, acts.FUTURE_TIMES[1]]),
            (ph.WANTS, [ph.NO_TIME]),
            (ph.ALREADY, [ph.NO_TIME]),
            (ph.NEEDS, [ph.NO_TIME]),
        ]
    )
    who = dice.pick([ph.the_person(dice, craft.doers), dice.pick(ph.PRONOUNS), ph.named(dice)])
    return clause(form, who, _craft(dice, craft), dice.pick(times))


@pattern(360)
def learns_from(dice: Dice) -> Word:
    who, source = (
        _machine(dice, dice.pick(lex.MODELS)) if dice.chance(0.5) else someone(dice),
        dice.pick(acts.LEARNT_FROM),
    )
    form = dice.pick([ph.HABIT, ph.CAN, ph.NOW, ph.CANNOT, ph.SHOULD])
    return clause(
        form, who, Action(Word(f"从{source.zh}中学习", "learn"), Word("", f"from {source.en}"))
    )


@pattern(430)
def machine_is(dice: Dice) -> Word:
    what, how = ph.definite(dice, dice.pick(lex.MODELS)), ph.quality(dice, lex.MACHINE_LOOKS)
    return said(what.zh + how.zh, f"{what.en} is {how.en}")


@pattern(320)
def part_is(dice: Dice) -> Word:
    looks = lex.words(
        "重要 important, 有用 useful, 简单 simple, 复杂 complicated, 新 new, 有趣 interesting"
    )
    what, how = ph.definite(dice, dice.pick(lex.PARTS[6:] + lex.PIECES)), ph.quality(dice, looks)
    return said(what.zh + how.zh, f"{what.en} is {how.en}")


@pattern(300)
def machine_compared(dice: Dice) -> Word:
    noun, look, (zh, en) = (
        dice.pick(lex.MODELS),
        dice.pick(lex.MACHINE_LOOKS),
        dice.pick([("", ""), ("得多", "much "), ("一点", "a little ")]),
    )
    mine, yours = dice.two([*ph.MY, Word(f"那{noun.measure}", "that")])
    if dice.chance(0.2):
        mine = Word(f"这{noun.measure}", "the")
    return said(
        f"{mine.zh}{noun.zh}比{yours.zh}{noun.zh}{look.zh}{zh}",
        f"{mine.en} {noun.en} is {en}{english.more(look.en)} than {yours.en} {noun.en}",
    )


@pattern(300)
def machine_has(dice: Dice) -> Word:
    who, number = (
        _machine(dice, dice.pick(lex.only(lex.PARTS, "模型 神经网络 编码器 解码器"))),
        dice.pick(acts.NUMBERS),
    )
    zh, en = dice.pick(
        [
            ("层", "layers"),
            ("个注意力头", "attention heads"),
            ("个输入", "inputs"),
            ("个输出", "outputs"),
        ]
    )
    return said(f"{who.zh}有{number.zh}{zh}", f"{who.en} has {number.en} {en}")


@pattern(300)
def machine_translates(dice: Dice) -> Word:
    source, target = dice.two(lex.LANGUAGES)
    who = dice.pick(
        [_machine(dice, dice.pick(lex.MODELS[:2])), ph.one_person(dice), dice.pick(ph.PRONOUNS)]
    )
    task = Action(
        Word(f"把{source.zh}翻译成", "translate"), Word(target.zh, f"{source.en} into {target.en}")
    )
    return clause(dice.pick([ph.HABIT, ph.CAN, ph.CANNOT, ph.NOW, ph.FUTURE]), who, task)


@pattern(300)
def machine_failed_because(dice: Dice) -> Word:
    who = _machine(dice, dice.pick(lex.only(lex.PARTS, "模型 神经网络 编码器 解码器 算法 程序")))
    verb, objects, hard = dice.pick(
        [
            ("学会 learn", "任务", "难 difficult, 复杂 complicated"),
            ("处理 process", "句子 序列", "长 long, 复杂 complicated"),
            ("理解 understand", "句子 问题 例子", "难 difficult, 长 long, 复杂 complicated"),
        ]
    )
    noun, look = (
        dice.pick(lex.only(lex.PIECES, objects)),
        dice.pick(lex.words(hard + ", 小 small, 慢 slow, 简单 simple")),
    )
    main = clause(ph.DID_NOT, who, Action(lex.words(verb)[0], ph.the(noun)))
    return said(f"{main.zh}，因为它太{look.zh}了", f"{main.en} because it was too {look.en}")


@pattern(300)
def load_and_outcome(dice: Dice) -> Word:
    (what, looks), outcome = dice.pick(acts.LOADS), dice.pick(acts.OUTCOMES)
    mine, look, be = dice.pick(ph.MY), dice.pick(looks), "are" if what.en == "sentences" else "is"
    return said(
        f"如果{mine.zh}{what.zh}太{look.zh}，{outcome.zh}",
        f"if {mine.en} {what.en} {be} too {look.en}, {outcome.en}",
    )


@pattern(400)
def trend(dice: Dice) -> Word:
    what, looks = dice.pick(acts.TRENDS)
    mine, city = dice.pick(ph.MY), dice.pick(lex.CITIES)
    if what.zh == "天气":
        what = Word(f"{city.zh}的天气", f"the weather in {city.en}")
    elif what.zh in "模型手机":
        what = Word(mine.zh + what.zh, what.en.replace("the", mine.en))
    look, (zh, en) = (
        dice.pick(looks),
        dice.pick(
            [
                ("越来越", "is getting"),
                ("会变得更", "will become"),
                ("不会变得更", "will not become"),
            ]
        ),
    )
    return said(what.zh + zh + look.zh, f"{what.en} {en} {english.more(look.en)}")


@pattern(430)
def with_a_tool(dice: Dice) -> Word:
    tool, tasks = dice.pick(acts.TOOLS)
    task = dice.pick(tasks)
    action = Action(
        Word(f"用{tool.zh}{task.verb.zh}", task.verb.en),
        Word(task.object.zh, f"{task.object.en} with {tool.en}"),
    )
    form, time = dice.pick(
        [
            (ph.NOW, ph.NO_TIME),
            (ph.WANTS, ph.NO_TIME),
            (ph.CAN, ph.NO_TIME),
            (ph.FUTURE, acts.FUTURE_TIMES[0]),
            (ph.LIKES, ph.NO_TIME),
        ]
    )
    return clause(form, someone(dice), action, time)


@pattern(120)
def without_data(dice: Dice) -> Word:
    what, noun = (
        dice.pick(
            lex.words(
                "数据 data, 电脑 a computer, 时间 time, 标签 labels, 例子 examples, 反馈 feedback"
            )
        ),
        dice.pick(lex.MODELS),
    )
    mine, verb = dice.pick(ph.MY), dice.pick(lex.words("学习 learn, 工作 work, 进步 improve"))
    return said(
        f"没有{what.zh}，{mine.zh}{noun.zh}不能{verb.zh}",
        f"without {what.en}, {mine.en} {noun.en} cannot {verb.en}",
    )
