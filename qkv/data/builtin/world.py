"""Patterns of the built-in corpus about things, animals, places and weather.

A pattern generates one sentence in Chinese and English; its number is how often it is sampled.
See docs/guides/data.md.
"""

from qkv.data.builtin import actions as acts
from qkv.data.builtin import english
from qkv.data.builtin import phrases as ph
from qkv.data.builtin import words as lex
from qkv.data.builtin.comparisons import DIFFERENCES, more_than, not_as
from qkv.data.builtin.phrases import Sampler, pattern, said, someone
from qkv.data.builtin.words import Noun, Word

COUNTABLE = lex.THINGS + lex.PETS
BEASTS = lex.ANIMALS[1:]
_BULKY = lex.only(lex.SMALL_THINGS, "包 箱子 吉他 雨伞")
LOOSE = [noun for noun in lex.SMALL_THINGS + lex.BOOKS + lex.FOODS if noun not in _BULKY]


def _has(
    rng: Sampler, noun: Noun, looks: list[Word], degrees: list[tuple[str, str, str]] = ph.DEGREES
) -> Word:
    """Return 这本书很贵, the book is expensive."""
    what, how = ph.definite(rng, noun), ph.quality(rng, looks, degrees)
    return said(what.zh + how.zh, f"{what.en} is {how.en}")


# ── properties of things
@pattern(430)
def thing_is(rng: Sampler) -> Word:
    return _has(rng, rng.pick(lex.THINGS), lex.THING_LOOKS)


@pattern(300)
def animal_is(rng: Sampler) -> Word:
    return _has(rng, rng.pick(lex.ANIMALS), lex.ANIMAL_LOOKS)


@pattern(260)
def fruit_tastes(rng: Sampler) -> Word:
    return _has(rng, rng.pick(lex.FRUIT), lex.TASTES)


@pattern(260)
def story_is(rng: Sampler) -> Word:
    return _has(
        rng, rng.pick([noun for noun in lex.READABLE if noun.zh != "词典"]), lex.STORY_LOOKS
    )


@pattern(200)
def colour_is(rng: Sampler) -> Word:  # the name seeds the samples, so its spelling stays
    what, color = ph.definite(rng, rng.pick(lex.COLORED)), rng.pick(lex.COLORS)
    return said(f"{what.zh}是{color.zh}的", f"{what.en} is {color.en}")


@pattern(160)
def drink_is(rng: Sampler) -> Word:
    what = ph.drink(rng, "这")
    warmth = "热 hot" if what.zh[2:] in ("茶", "咖啡", "汤", "水", "牛奶") else "凉 cold"
    how = ph.quality(rng, lex.words(warmth + ", 贵 expensive, 便宜 cheap, 好喝 delicious"))
    return said(what.zh + how.zh, f"{what.en} is {how.en}")


@pattern(300)
def thing_compared(rng: Sampler) -> Word:
    (first, second), look = rng.two(lex.THINGS), rng.pick(lex.THING_LOOKS)
    return more_than(ph.the(first), ph.the(second), look, rng.pick(DIFFERENCES))


@pattern(300)
def animal_compared(rng: Sampler) -> Word:
    first, second = map(ph.the, rng.two(BEASTS))
    look = rng.pick(lex.ANIMAL_LOOKS[:5] + lex.ANIMAL_LOOKS[-2:])
    return (not_as if rng.chance(0.4) else more_than)(first, second, look)


@pattern(300)
def this_is(rng: Sampler) -> Word:
    noun, (zh, en) = rng.pick(COUNTABLE + lex.FOODS), rng.pick([("这", "this"), ("那", "that")])
    mine = rng.pick(ph.MY)
    what = rng.pick([ph.a(noun), Word(mine.zh + noun.zh, f"{mine.en} {noun.en}")])
    if rng.chance(0.3):
        return said(f"{zh}是{what.zh}吗", f"is {en} {what.en}")
    negative = rng.chance(0.3)
    return said(f"{zh}{'不' * negative}是{what.zh}", f"{en} is {'not ' * negative}{what.en}")


# ── possession, purchases, numbers
@pattern(650)
def someone_has(rng: Sampler) -> Word:
    who, noun = someone(rng), rng.pick(COUNTABLE)
    look = (
        rng.pick(lex.COLORS)
        if noun in lex.COLORED
        else rng.pick(lex.words("新 new, 旧 old, 漂亮 beautiful"))
    )
    what = (
        ph.described(look, noun)
        if noun in lex.THINGS and rng.chance(0.4)
        else ph.any_of_number(rng, noun)
    )
    return said(f"{who.zh}有{what.zh}", f"{who.en} {who.agree('have')} {what.en}")


@pattern(300)
def someone_lacks(rng: Sampler) -> Word:
    who, noun = ph.asked_about(rng), rng.pick(COUNTABLE)
    if noun not in lex.PLENTY or rng.chance(0.5):
        return said(
            f"{who.zh}没有{noun.zh}", f"{who.en} {who.agree('do')} not have {english.a(noun.en)}"
        )
    return said(
        f"{who.zh}有多少{noun.measure}{noun.zh}",
        f"how many {english.plural(noun.en)} {who.agree('do')} {who.en} have",
    )


@pattern(300)
def someone_bought_described(rng: Sampler) -> Word:
    who, noun, color = someone(rng), rng.pick(lex.COLORED), rng.pick(lex.COLORS)
    what = ph.described(color, noun)
    zh, en = rng.pick(
        [
            ("想买", who.agree("want") + " to buy"),
            ("买了", "bought"),
            ("卖了", "sold"),
            ("看见了", "saw"),
            ("需要", who.agree("need")),
        ]
    )
    return said(f"{who.zh}{zh}{what.zh}", f"{who.en} {en} {what.en}")


@pattern(500)
def gives(rng: Sampler) -> Word:
    who, whom, noun = (
        ph.one_person(rng),
        rng.pick(ph.HIM),
        rng.pick(lex.SMALL_THINGS + lex.BOOKS + lex.CLOTHES),
    )
    (zh, en), what = (
        rng.pick([("给了", "gave"), ("会给", "will give"), ("想给", "wants to give")]),
        ph.any_of_number(rng, noun),
    )
    return said(f"{who.zh}{zh}{whom.zh}{what.zh}", f"{who.en} {en} {whom.en} {what.en}")


@pattern(200)
def belongs(rng: Sampler) -> Word:
    noun, whose = rng.pick(lex.THINGS), rng.pick(ph.MINE)
    (zh, en), negative = rng.pick([("这", "the"), ("那", "that")]), rng.chance(0.3)
    return said(
        f"{zh}{noun.measure}{noun.zh}{'不' * negative}是{whose.zh}",
        f"{en} {noun.en} is {'not ' * negative}{whose.en}",
    )


@pattern(420)
def named_owner(rng: Sampler) -> Word:
    name, noun = rng.pick(lex.NAMES), rng.pick(COUNTABLE)
    how = ph.quality(rng, lex.THING_LOOKS if noun in lex.THINGS else lex.ANIMAL_LOOKS)
    return said(f"{name.zh}的{noun.zh}{how.zh}", f"{name.en}'s {noun.en} is {how.en}")


@pattern(300)
def price(rng: Sampler) -> Word:
    noun = rng.pick(lex.THINGS)
    what, amount = (
        ph.definite(rng, noun),
        rng.pick(acts.HIGH_PRICES if noun in lex.MACHINES + lex.FURNITURE else acts.PRICES),
    )
    if rng.chance(0.25):
        return said(f"{what.zh}多少钱", f"how much is {what.en}")
    return said(f"{what.zh}{amount.zh}元", f"{what.en} costs {amount.en} yuan")


@pattern(300)
def bought_thing_is(rng: Sampler) -> Word:
    who, noun, how = someone(rng), rng.pick(lex.THINGS), ph.quality(rng, lex.THING_LOOKS)
    zh, en = rng.pick([("买", "bought"), ("看见", "saw"), ("借", "borrowed")])
    return said(f"{who.zh}{zh}的{noun.zh}{how.zh}", f"the {noun.en} {who.en} {en} is {how.en}")


# ── food and drink
TASTES = [
    ("喜欢", "{S} {like}"),
    ("不喜欢", "{S} {do} not like"),
    ("爱", "{S} {love}"),
    ("更喜欢", "{S} {prefer}"),
    ("讨厌", "{S} {hate}"),
    ("喜欢{}吗", "{do} {S} like"),
    ("为什么喜欢", "why {do} {S} like"),
]


@pattern(700)
def likes_food(rng: Sampler) -> Word:
    who, food = someone(rng), _bare_food(rng)
    zh, en = rng.pick(TASTES)
    if "do} {S}" in en and who in (ph.ME, ph.WE):  # no questions in the first person
        who = ph.YOU
    verbs = {verb: who.agree(verb) for verb in ("like", "do", "love", "prefer", "hate")}
    zh = zh.format(food.zh) if "{}" in zh else zh + food.zh
    return said(who.zh + zh, f"{en.format(S=who.en, **verbs)} {food.en}")


def _bare_food(rng: Sampler) -> Word:
    """Sample food without a number; fruit is in the plural."""
    return rng.pick(
        [*(Word(noun.zh, english.plural(noun.en)) for noun in lex.FOODS), *lex.MEALS, *lex.DRINKS]
    )


@pattern(300)
def likes_this_not_that(rng: Sampler) -> Word:
    who = rng.pick([*ph.PRONOUNS, ph.named(rng)])
    liked, other = rng.two(rng.pick([lex.MEALS, lex.DRINKS, lex.STUDIES[10:]]))
    return said(
        f"{who.zh}喜欢{liked.zh}，但是不喜欢{other.zh}",
        f"{who.en} {who.agree('like')} {liked.en} but {who.agree('do')} not like {other.en}",
    )


@pattern(360)
def drinks_a_cup(rng: Sampler) -> Word:
    who, what = someone(rng), ph.drink(rng)
    zh, en = rng.pick(
        [
            ("喝了", "drank"),
            ("想喝", who.agree("want") + " to drink"),
            ("需要", who.agree("need")),
            ("买了", "bought"),
            ("正在喝", who.be + " drinking"),
            ("每天喝", who.agree("drink")),
        ]
    )
    return said(
        f"{who.zh}{zh}{what.zh}", f"{who.en} {en} {what.en}{' every day' * zh.startswith('每天')}"
    )


@pattern(300)
def eats_a_meal(rng: Sampler) -> Word:
    who, meal = someone(rng), rng.pick(lex.MEALS)
    zh, en = rng.pick(
        [
            ("正在吃", f"{who.be} eating"),
            ("吃了", "ate"),
            ("不吃", f"{who.agree('do')} not eat"),
            ("经常吃", f"often {who.agree('eat')}"),
            ("想吃", f"{who.agree('want')} to eat"),
            ("需要买", f"{who.agree('need')} to buy"),
            ("从不吃", f"never {who.agree('eat')}"),
        ]
    )
    return said(f"{who.zh}{zh}{meal.zh}", f"{who.en} {en} {meal.en}")


# ── positions of things
@pattern(600)
def there_is(rng: Sampler) -> Word:
    nouns, spots = rng.pick(
        [(lex.PETS + lex.CHILDREN, acts.GROUNDS_BARE[:-1]), (LOOSE, lex.SPOTS), (LOOSE, lex.SPOTS)]
    )
    what, where = rng.pick(nouns), rng.pick(spots)
    if rng.chance(0.4):
        return said(f"{where.zh}有{ph.a(what).zh}", f"there is {ph.a(what).en} {where.en}")
    amount = rng.pick(acts.AMOUNTS[:5] + acts.AMOUNTS[-1:])
    return said(
        f"{where.zh}有{ph.several(amount, what).zh}",
        f"there are {ph.several(amount, what).en} {where.en}",
    )


@pattern(300)
def thing_is_somewhere(rng: Sampler) -> Word:
    what, spot = (
        ph.definite(
            rng, rng.pick(LOOSE[: -len(lex.FOODS)] + lex.only(lex.ANIMALS, "猫 狗 兔子 老鼠 鸟"))
        ),
        rng.pick(lex.SPOTS),
    )
    if rng.chance(0.25):
        return said(f"{what.zh}在{spot.zh}吗", f"is {what.en} {spot.en}")
    negative = rng.chance(0.25)
    return said(
        f"{what.zh}{'不' * negative}在{spot.zh}", f"{what.en} is {'not ' * negative}{spot.en}"
    )


@pattern(160)
def where_is(rng: Sampler) -> Word:
    if rng.chance(0.4):
        place = rng.pick(lex.PLACES)
        return said(f"{place.zh}在哪里", f"where is the {place.en}")
    what = ph.definite(rng, rng.pick(COUNTABLE))
    return said(f"{what.zh}在哪里", f"where is {what.en}")


@pattern(300)
def place_by_place(rng: Sampler) -> Word:
    (first, second), side = rng.two(lex.OUTINGS), rng.pick(lex.SIDES)
    return said(f"{first.zh}在{second.zh}{side.zh}", f"the {first.en} is {side.en} the {second.en}")


@pattern(300)
def place_is(rng: Sampler) -> Word:
    place, how = rng.pick(lex.PLACES), ph.quality(rng, lex.PLACE_LOOKS)
    return said(f"这个{place.zh}{how.zh}", f"the {place.en} is {how.en}")


@pattern(300)
def city_compared(rng: Sampler) -> Word:
    first, second = rng.two(lex.CITIES)
    look = rng.pick(
        lex.words(
            "大 big, 小 small, 漂亮 beautiful, 安静 quiet, 热闹 lively, 安全 safe, 冷 cold, "
            "暖和 warm"
        )
    )
    return more_than(first, second, look)


# ── weather, of days but not of years; 今天 is first, today is last
PAST_DAYS = [time for time in acts.PAST_TIMES if time.zh != "去年"]
NEXT_DAYS = [time for time in acts.FUTURE_TIMES if time.zh != "明年"]


@pattern(300)
def weather_today(rng: Sampler) -> Word:
    how = ph.quality(rng, lex.WEATHER)
    return said(f"今天天气{how.zh}", f"the weather is {how.en} today")


@pattern(220)
def weather_then(rng: Sampler) -> Word:
    how, look = ph.quality(rng, lex.WEATHER, ph.STRONG), rng.pick(lex.WEATHER)
    zh, en = rng.pick([("会很", "will be"), ("不会太", "will not be too")])
    if rng.chance(0.5):
        time = rng.pick(PAST_DAYS)
        return said(f"{time.zh}天气{how.zh}", f"the weather was {how.en} {time.en}")
    time = rng.pick(NEXT_DAYS)
    return said(f"{time.zh}天气{zh}{look.zh}", f"the weather {en} {look.en} {time.en}")


@pattern(360)
def weather_in_a_city(rng: Sampler) -> Word:
    how, city = ph.quality(rng, lex.WEATHER), rng.pick(lex.CITIES)
    zh, en, time = rng.pick(
        [("今天", "is", "today"), ("今天", "is", "today"), ("昨天", "was", "yesterday")]
    )
    return said(f"{zh}{city.zh}的天气{how.zh}", f"the weather in {city.en} {en} {how.en} {time}")


@pattern(200)
def season_is(rng: Sampler) -> Word:
    (season, looks), city = rng.pick(acts.SEASONS), rng.pick(lex.CITIES)
    how = ph.quality(rng, looks, ph.STRONG)
    return said(f"{city.zh}的{season.zh}{how.zh}", f"{season.en} in {city.en} is {how.en}")


@pattern(200)
def rain_and_snow(rng: Sampler) -> Word:
    what, city = rng.pick(lex.words("下雨 rain, 下雪 snow")), rng.pick(lex.CITIES)
    zh, verb, times = rng.pick(
        [
            ("{}了", english.past(what.en), PAST_DAYS),
            ("会{}", f"will {what.en}", NEXT_DAYS),
            ("没有{}", f"did not {what.en}", PAST_DAYS),
            ("不会{}", f"will not {what.en}", NEXT_DAYS),
        ]
    )
    time = rng.pick(times)
    return said(f"{time.zh}{city.zh}{zh.format(what.zh)}", f"it {verb} in {city.en} {time.en}")
