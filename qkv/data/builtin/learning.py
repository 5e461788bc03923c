"""Patterns of the built-in corpus about study and machine learning.

A pattern generates one sentence in Chinese and English; its number is how often it is sampled.
See docs/guides/data.md.
"""

from qkv.data.builtin import actions as acts
from qkv.data.builtin import english
from qkv.data.builtin import phrases as ph
from qkv.data.builtin import words as lex
from qkv.data.builtin.actions import Action, Craft
from qkv.data.builtin.comparisons import DIFFERENCES, equally, more_than
from qkv.data.builtin.phrases import Sampler, Who, clause, pattern, said, someone
from qkv.data.builtin.words import Noun, Word

COMPARED = lex.words(
    "有趣 interesting, 难 difficult, 容易 easy, 重要 important, 有用 useful, 复杂 complicated, "
    "流行 popular"
)


# ── studies
@pattern(500)
def study_is(rng: Sampler) -> Word:
    study, how = rng.pick(lex.STUDIES), ph.quality(rng, lex.SUBJECT_LOOKS)
    return said(study.zh + how.zh, f"{study.en} is {how.en}")


@pattern(580)
def study_loved(rng: Sampler) -> Word:
    who, study = someone(rng), rng.pick(lex.STUDIES)
    zh, en = rng.pick(
        [("爱", "love"), ("爱", "love"), ("喜欢", "like"), ("学习", "learn"), ("研究", "study")]
    )
    return said(who.zh + zh + study.zh, f"{who.en} {who.agree(en)} {study.en}")


STUDY_FORMS = [
    (ph.NOW, [ph.NO_TIME]),
    (ph.WANTS, [ph.NO_TIME]),
    (ph.LIKES, [ph.NO_TIME]),
    (ph.DOES_IT, acts.DAILY_TIMES),
    (ph.FUTURE, acts.FUTURE_TIMES),
    (ph.PAST, acts.PAST_TIMES),
    (ph.HABIT, acts.DAILY_TIMES),
    (ph.WHY, [ph.NO_TIME]),
]


@pattern(580)
def study_pursued(rng: Sampler) -> Word:
    action = Action(rng.pick(lex.words("学习 learn, 研究 study")), rng.pick(lex.STUDIES))
    form, times = rng.pick(STUDY_FORMS)
    who = ph.asked_about(rng) if form in (ph.DOES_IT, ph.WHY) else someone(rng)
    return clause(form, who, action, rng.pick(times))


@pattern(360)
def study_compared(rng: Sampler) -> Word:
    (first, second), look = rng.two(lex.STUDIES), rng.pick(COMPARED)
    return (equally if rng.chance(0.4) else more_than)(first, second, look)


@pattern(500)
def opinion(rng: Sampler) -> Word:
    who, study, how = (
        someone(rng),
        rng.pick(lex.STUDIES),
        ph.quality(rng, lex.SUBJECT_LOOKS, ph.DEGREES[:3]),
    )
    zh, verb = rng.pick([("觉得", "think"), ("说", "say"), ("知道", "know")])
    return said(
        f"{who.zh}{zh}{study.zh}{how.zh}", f"{who.en} {who.agree(verb)} {study.en} is {how.en}"
    )


@pattern(300)
def study_for_years(rng: Sampler) -> Word:
    who, study, years = someone(rng), rng.pick(lex.STUDIES), rng.pick(acts.NUMBERS)
    unit = rng.pick([Word("年", "years"), Word("个星期", "weeks"), Word("个月", "months")])
    return said(
        f"{who.zh}研究了{years.zh}{unit.zh}{study.zh}",
        f"{who.en} studied {study.en} for {years.en} {unit.en}",
    )


@pattern(430)
def written_about(rng: Sampler) -> Word:
    who, study = someone(rng), rng.pick(lex.STUDIES)
    noun, verbs = (
        rng.pick(lex.only(lex.READABLE, "书 论文 文章 报告")),
        lex.words("写了 wrote, 读了 read, 正在写 be writing, 想写 want to write"),
    )
    verb = rng.pick(verbs)
    en = {"正在写": f"{who.be} writing", "想写": f"{who.agree('want')} to write"}.get(
        verb.zh, verb.en
    )
    return said(
        f"{who.zh}{verb.zh}一{noun.measure}关于{study.zh}的{noun.zh}",
        f"{who.en} {en} {english.a(noun.en)} about {study.en}",
    )


@pattern(300)
def teaches(rng: Sampler) -> Word:
    who, whom, study = (ph.one_person(rng), rng.pick(ph.HIM), rng.pick(lex.STUDIES + lex.LANGUAGES))
    zh, en = rng.pick([("教", "teaches"), ("会教", "will teach"), ("正在教", "is teaching")])
    return said(f"{who.zh}{zh}{whom.zh}{study.zh}", f"{who.en} {en} {whom.en} {study.en}")


@pattern(250)
def speaks(rng: Sampler) -> Word:
    form = rng.pick([ph.HABIT, ph.CANNOT, ph.DOES_IT, ph.LIKES, ph.CAN])
    return clause(
        form,
        ph.asked_about(rng) if form is ph.DOES_IT else someone(rng),
        Action(Word("说", "speak"), rng.pick(lex.LANGUAGES)),
    )


# ── models and their parts
def _machine(rng: Sampler, noun: Noun) -> Who:
    what = ph.definite(rng, noun)
    return Who(what.zh, what.en, "he", ph.IT)


def _craft(rng: Sampler, craft: Craft) -> Action:
    thing = rng.pick(craft.objects)
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
def machine_works(rng: Sampler) -> Word:
    craft = rng.pick(acts.MACHINE_CRAFTS)
    return clause(rng.pick(MACHINE_FORMS), _machine(rng, rng.pick(craft.doers)), _craft(rng, craft))


BUILDING_FORMS = [
    (ph.NOW, [ph.NO_TIME]),
    (ph.PAST, acts.PAST_TIMES[:4]),
    (ph.DID_NOT, acts.RECENTLY),
    (ph.FUTURE, [*acts.SOON, acts.FUTURE_TIMES[1]]),
    (ph.WANTS, [ph.NO_TIME]),
    (ph.ALREADY, [ph.NO_TIME]),
    (ph.NEEDS, [ph.NO_TIME]),
]


@pattern(860)
def people_build_machines(rng: Sampler) -> Word:
    craft = rng.pick(acts.HUMAN_CRAFTS)
    form, times = rng.pick(BUILDING_FORMS)
    who = rng.pick([ph.the_person(rng, craft.doers), rng.pick(ph.PRONOUNS), ph.named(rng)])
    return clause(form, who, _craft(rng, craft), rng.pick(times))


@pattern(360)
def learns_from(rng: Sampler) -> Word:
    who, source = (
        _machine(rng, rng.pick(lex.MODELS)) if rng.chance(0.5) else someone(rng),
        rng.pick(acts.LEARNT_FROM),
    )
    form = rng.pick([ph.HABIT, ph.CAN, ph.NOW, ph.CANNOT, ph.SHOULD])
    return clause(
        form, who, Action(Word(f"从{source.zh}中学习", "learn"), Word("", f"from {source.en}"))
    )


@pattern(430)
def machine_is(rng: Sampler) -> Word:
    what, how = ph.definite(rng, rng.pick(lex.MODELS)), ph.quality(rng, lex.MACHINE_LOOKS)
    return said(what.zh + how.zh, f"{what.en} is {how.en}")


@pattern(320)
def part_is(rng: Sampler) -> Word:
    looks = lex.words(
        "重要 important, 有用 useful, 简单 simple, 复杂 complicated, 新 new, 有趣 interesting"
    )
    what, how = ph.definite(rng, rng.pick(lex.PARTS[6:] + lex.PIECES)), ph.quality(rng, looks)
    return said(what.zh + how.zh, f"{what.en} is {how.en}")


@pattern(300)
def machine_compared(rng: Sampler) -> Word:
    noun, look, difference = (
        rng.pick(lex.MODELS),
        rng.pick(lex.MACHINE_LOOKS),
        rng.pick(DIFFERENCES),
    )
    mine, yours = rng.two([*ph.MY, Word(f"那{noun.measure}", "that")])
    if rng.chance(0.2):
        mine = Word(f"这{noun.measure}", "the")
    first, second = (Word(word.zh + noun.zh, f"{word.en} {noun.en}") for word in (mine, yours))
    return more_than(first, second, look, difference)


@pattern(300)
def machine_has(rng: Sampler) -> Word:
    who, number = (
        _machine(rng, rng.pick(lex.only(lex.PARTS, "模型 神经网络 编码器 解码器"))),
        rng.pick(acts.NUMBERS),
    )
    zh, en = rng.pick(
        [
            ("层", "layers"),
            ("个注意力头", "attention heads"),
            ("个输入", "inputs"),
            ("个输出", "outputs"),
        ]
    )
    return said(f"{who.zh}有{number.zh}{zh}", f"{who.en} has {number.en} {en}")


@pattern(300)
def machine_translates(rng: Sampler) -> Word:
    source, target = rng.two(lex.LANGUAGES)
    who = rng.pick(
        [_machine(rng, rng.pick(lex.MODELS[:2])), ph.one_person(rng), rng.pick(ph.PRONOUNS)]
    )
    task = Action(
        Word(f"把{source.zh}翻译成", "translate"), Word(target.zh, f"{source.en} into {target.en}")
    )
    return clause(rng.pick([ph.HABIT, ph.CAN, ph.CANNOT, ph.NOW, ph.FUTURE]), who, task)


FAILED_TASKS = [
    ("学会 learn", "任务", "难 difficult, 复杂 complicated"),
    ("处理 process", "句子 序列", "长 long, 复杂 complicated"),
    ("理解 understand", "句子 问题 例子", "难 difficult, 长 long, 复杂 complicated"),
]


@pattern(300)
def machine_failed_because(rng: Sampler) -> Word:
    who = _machine(rng, rng.pick(lex.only(lex.PARTS, "模型 神经网络 编码器 解码器 算法 程序")))
    verb, objects, hard = rng.pick(FAILED_TASKS)
    noun, look = (
        rng.pick(lex.only(lex.PIECES, objects)),
        rng.pick(lex.words(hard + ", 小 small, 慢 slow, 简单 simple")),
    )
    main = clause(ph.DID_NOT, who, Action(lex.words(verb)[0], ph.the(noun)))
    return said(f"{main.zh}，因为它太{look.zh}了", f"{main.en} because it was too {look.en}")


@pattern(300)
def load_and_outcome(rng: Sampler) -> Word:
    (what, looks), outcome = rng.pick(acts.LOADS), rng.pick(acts.OUTCOMES)
    mine, look, be = rng.pick(ph.MY), rng.pick(looks), "are" if what.en == "sentences" else "is"
    return said(
        f"如果{mine.zh}{what.zh}太{look.zh}，{outcome.zh}",
        f"if {mine.en} {what.en} {be} too {look.en}, {outcome.en}",
    )


CHANGES = [("越来越", "is getting"), ("会变得更", "will become"), ("不会变得更", "will not become")]


@pattern(400)
def trend(rng: Sampler) -> Word:
    what, looks = rng.pick(acts.TRENDS)
    mine, city = rng.pick(ph.MY), rng.pick(lex.CITIES)
    if what.zh == "天气":
        what = Word(f"{city.zh}的天气", f"the weather in {city.en}")
    elif what.zh in "模型手机":
        what = Word(mine.zh + what.zh, what.en.replace("the", mine.en))
    look, (zh, en) = rng.pick(looks), rng.pick(CHANGES)
    return said(what.zh + zh + look.zh, f"{what.en} {en} {english.more(look.en)}")


TOOL_FORMS = [
    (ph.NOW, ph.NO_TIME),
    (ph.WANTS, ph.NO_TIME),
    (ph.CAN, ph.NO_TIME),
    (ph.FUTURE, acts.FUTURE_TIMES[0]),
    (ph.LIKES, ph.NO_TIME),
]


@pattern(430)
def with_a_tool(rng: Sampler) -> Word:
    tool, tasks = rng.pick(acts.TOOLS)
    task = rng.pick(tasks)
    action = Action(
        Word(f"用{tool.zh}{task.verb.zh}", task.verb.en),
        Word(task.object.zh, f"{task.object.en} with {tool.en}"),
    )
    form, time = rng.pick(TOOL_FORMS)
    return clause(form, someone(rng), action, time)


@pattern(120)
def without_data(rng: Sampler) -> Word:
    what, noun = (
        rng.pick(
            lex.words(
                "数据 data, 电脑 a computer, 时间 time, 标签 labels, 例子 examples, 反馈 feedback"
            )
        ),
        rng.pick(lex.MODELS),
    )
    mine, verb = rng.pick(ph.MY), rng.pick(lex.words("学习 learn, 工作 work, 进步 improve"))
    return said(
        f"没有{what.zh}，{mine.zh}{noun.zh}不能{verb.zh}",
        f"without {what.en}, {mine.en} {noun.en} cannot {verb.en}",
    )
