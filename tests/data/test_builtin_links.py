"""Gold word alignments of the built-in corpus, against alignments written by hand."""

from collections import Counter

import pytest

from qkv.data.builtin import NOTES_SENTENCES, Pair, builtin_pairs, compositions
from qkv.data.builtin_links import GoldLink, gold_links, segments
from qkv.text.words import word_spans

TRAIN, HELD_OUT = builtin_pairs()

# Written by hand: for each English word the Chinese word it comes from, - for none; 他#2 is the second 他 of the sentence.
BY_HAND = """
我爱机器学习: 我=i 爱=love 机器=machine 学习=learning
机器学习很有趣: 机器=machine 学习=learning 很=is 有趣=interesting
今天天气真好: -=the 天气=weather -=is 真=really 好=nice 今天=today
这只动物没有穿过街道，因为它太累了: 这=the 动物=animal 没有=did 没有=not 穿过=cross -=the 街道=street 因为=because 它=it -=was 太=too 累=tired
这只猫本来想过河，但是它太宽了: 这=the 猫=cat 想=wanted -=to 过=cross -=the 河=river ，=, 但是=but 它=the 它=river -=was 太=too 宽=wide
这只猫本来想过河，但是它太累了: 这=the 猫=cat 想=wanted -=to 过=cross -=the 河=river ，=, 但是=but 它=the 它=cat -=was 太=too 累=tired
他的叔叔三十岁: 他的=his 叔叔=uncle -=is 三十=thirty 岁=years 岁=old
虽然这位律师很渴，但是她不生气: 虽然=although 这=the 律师=lawyer 很=is 渴=thirsty ，=, 她=she -=is 不=not 生气=angry
艾玛每天七点吃晚饭: 艾玛=emma 吃=eats 晚饭=dinner 点=at 七=seven 每=every 天=day
那把刀不是我们的: 那=that 刀=knife 是=is 不=not 我们的=ours
李红是村子里最谦虚的老师: 李=li 红=hong 是=is -=the 最=most 谦虚=modest 老师=teacher 里=in -=the 村子=village
律师们买的吉他非常旧: -=the 吉他=guitar -=the 律师=lawyers 买=bought -=is 非常=very 旧=old
如果你的妈妈不忙，她会拜访你: 如果=if 你的=your 妈妈=mother -=is 不=not 忙=busy ，=, 她=she 会=will 拜访=visit 你#2=you
这张桌子放不进厨房，因为它太小了: 这=the 桌子=table 不=does 不=not 放=fit 进=in -=the 厨房=kitchen 因为=because 它=it -=is 太=too 小=small
他们的妈妈想喝一碗汤: 他们的=their 妈妈=mother 想=wants -=to 喝=drink 一=a 碗=bowl -=of 汤=soup
这位厨师给了她八本词典: 这=the 厨师=chef 给=gave 她=her 八=eight 词典=dictionaries
你明天会去学校吗: 会=will 你=you 去=go -=to -=the 学校=school 明天=tomorrow
他们昨天没有去机场: 他们=they 没有=did 没有=not 去=go -=to -=the 机场=airport 昨天=yesterday
彼得今天早上写了代码吗: 吗=did 彼得=peter 写=write 代码=code 今天=this 早上=morning
老师们正在公园里锻炼: -=the 老师=teachers 正在=are 锻炼=exercising 里=in -=the 公园=park
我每天在花园里拍照: 我=i 拍照=take 拍照=photos 在=in -=the 花园=garden 每=every 天=day
农民们在哪里拍照: 哪里=where -=do -=the 农民=farmers 拍照=take 拍照=photos
我们的儿子打算和他的姐姐一起散步: 我们的=our 儿子=son 打算=plans -=to 散步=take 散步=a 散步=walk 和=with 他的=his 姐姐=sister
这位老师去过巴黎两次: 这=the 老师=teacher -=has 去过=been -=to 巴黎=paris 两次=twice
如果明天下雨，这位画家会待在家里: 如果=if -=it 下雨=rains 明天=tomorrow ，=, 这=the 画家=painter 会=will 待=stay 在=at 家里=home
那个编码器正在从例子中学习: 那=that 编码器=encoder 正在=is 学习=learning 从=from 例子=examples
她喜欢编程，但是不喜欢哲学: 她=she 喜欢=likes 编程=programming 但是=but 不=does 不=not 喜欢#2=like 哲学=philosophy
如果她的任务太复杂，训练会花很长时间: 如果=if 她的=her 任务=task -=is 太=too 复杂=complicated ，=, 训练=training 会=will 花=take -=a 长=long 时间=time
如果我的数据集太小，损失会很高: 如果=if 我的=my 数据集=dataset -=is 太=too 小=small ，=, -=the 损失=loss 会=will 很=be 高=high
他们的程序比她的程序复杂一点: 他们的=their 程序=program -=is 一点=a 一点=little -=more 复杂=complicated 比=than 她的=her 程序#2=program
这个模型不能把日语翻译成德语: 这=the 模型=model 不能=cannot 翻译=translate 日语=japanese 成=into 德语=german
这位司机昨天很困，所以他喝了咖啡: 这=the 司机=driver 很=was 困=sleepy 昨天=yesterday ，=, 所以=so 他=he 喝=drank 咖啡=coffee
当护士们累的时候，他们总是喝咖啡: 当=when -=the 护士=nurses -=are 累=tired ，=, 他们=they 总是=always 喝=drink 咖啡=coffee
王强的床很旧: 王=wang 强=qiang's 床=bed 很=is 旧=old
露西和李红一样友好: 露西=lucy -=is 一样=as 友好=friendly 和=as 李=li 红=hong
彼得没有露西善良: 彼得=peter -=is 没有=not 没有=as 善良=kind 没有=as 露西=lucy
这位科学家还没有借这支铅笔: 这=the 科学家=scientist 没有=has 没有=not 借=borrowed 这#2=the 铅笔=pencil 还=yet
我的爸爸已经修理了这辆汽车: 我的=my 爸爸=father -=has 已经=already 修理=repaired 这=the 汽车=car
请不要等公共汽车: 请=please 不要=do 不要=not 等=wait 等=for -=the 公共汽车=bus
银行在商店前面: -=the 银行=bank 在=is 前面=in 前面=front 前面=of -=the 商店=store
那块手表多少钱: 多少钱=how 多少钱=much -=is 那=that 手表=watch
下个月柏林不会下雨: -=it 会=will 不=not 下雨=rain -=in 柏林=berlin 下个=next 月=month
他们昨天坐地铁去了书店: 他们=they 去=went -=to -=the 书店=bookstore 坐=by 地铁=subway 昨天=yesterday
伦敦的秋天真凉快: 秋天=autumn 的=in 伦敦=london -=is 真=really 凉快=cool
艾玛有多少只羊: 多少=how 多少=many 羊=sheep -=does 艾玛=emma 有=have
书架上有五张地图: 有=there 有=are 五=five 地图=maps 上=on -=the 书架=shelf
那支铅笔在箱子里吗: 在=is 那=that 铅笔=pencil 里=in -=the 箱子=box
巴黎的天气会变得更潮湿: -=the 天气=weather 的=in 巴黎=paris 会=will 变得=become 更=more 潮湿=humid
没有数据，你的神经网络不能工作: 没有=without 数据=data ，=, 你的=your 神经=neural 网络=network 不能=cannot 工作=work
你的奶奶想用铅笔写信: 你的=your 奶奶=grandmother 想=wants -=to 写=write -=a 信=letter 用=with -=a 铅笔=pencil
""".strip().split("\n")
TARGETS = {pair.source: pair.target for pairs in compositions().values() for pair in pairs} | dict(NOTES_SENTENCES)
# Short sentences of these patterns, whether the corpus has drawn them or not.
TARGETS |= {"这只猫本来想过河，但是它太宽了": "the cat wanted to cross the river, but the river was too wide",
            "这只猫本来想过河，但是它太累了": "the cat wanted to cross the river, but the cat was too tired"}


def links_by_hand(source: str, entries: list[str]) -> list[GoldLink]:
    """The links of a line of BY_HAND."""
    links = []
    for word, entry in enumerate(entries):
        chinese, _, _ = entry.rpartition("=")
        text, _, number = chinese.partition("#")
        start = -1
        for _ in range(int(number or 1)):
            start = source.find(text, start + 1)
        assert chinese == "-" or start >= 0, f"{chinese} is not in {source}"
        links += [] if chinese == "-" else [GoldLink(start, start + len(text), word)]
    return links


@pytest.mark.parametrize("line", BY_HAND, ids=lambda line: line.split(":")[0])
def test_the_sure_links_of_a_sentence_are_those_written_by_hand(line):
    source, entries = line.split(":")[0], line.split(": ")[1].split(" ")
    target = TARGETS[source]
    assert [target[start:end] for start, end in word_spans(target)] == [entry.rpartition("=")[2] for entry in entries]
    assert [link for link in gold_links(source, target) if link.sure] == links_by_hand(source, entries)


@pytest.mark.parametrize("source, target, by_hand", [
    ("这只猫想穿过街道", "the cat wants to cross the street", {("只", "the"), ("想", "to")}),
    ("他喝了咖啡", "he drank coffee", {("了", "drank")}),
    ("这杯茶太热了", "the cup of tea is too hot", {("了", "too")}),
    ("音乐比物理难", "music is more difficult than physics", {("难", "more")}),
    ("汤姆是村子里最高的孩子", "tom is the tallest child in the village", {("最", "tallest"), ("的", "tallest")}),
    ("他们每天在花园里下象棋", "they play chess in the garden every day", {("里", "in")}),
    ("玛丽紧张吗", "is mary nervous", {("吗", "is")}),
    ("她经常和汤姆一起跑步", "she often runs with tom", {("一起", "with")}),
])
def test_the_possible_links_of_a_sentence_are_those_written_by_hand(source, target, by_hand):
    words = [target[start:end] for start, end in word_spans(target)]
    assert {(source[link.start : link.end], words[link.word]) for link in gold_links(source, target) if not link.sure} == by_hand


def test_links_belong_to_a_pair():
    assert NOTES_SENTENCES[0].links == [GoldLink(0, 1, 0), GoldLink(1, 2, 1), GoldLink(2, 4, 2), GoldLink(4, 6, 3)]
    assert Pair("我爱艺术", "i love art").links == [GoldLink(0, 1, 0), GoldLink(1, 2, 1), GoldLink(2, 4, 2)]


def unlinked(pairs: list[Pair]) -> tuple[Counter[str], Counter[str]]:
    """The English words without a sure link, and the Chinese words without any link."""
    english, chinese = Counter[str](), Counter[str]()
    for pair in pairs:
        links, spans = pair.links, word_spans(pair.target)
        sure, starts = [link.word for link in links if link.sure], {link.start for link in links}
        assert len(sure) == len(set(sure)), f"{pair}: a word with two sure links"
        english.update(pair.target[slice(*spans[word])] for word in range(len(spans)) if word not in sure)
        chinese.update(segment.text for segment in segments(pair.source) if segment.start not in starts)
    return english, chinese


def test_only_function_words_are_left_without_a_link_in_the_whole_corpus():
    english, chinese = unlinked(TRAIN + HELD_OUT)
    assert set(english) <= {"the", "a", "an", "of", "to", "in", "on", "for", "is", "am", "are", "was", "were", "be", "it", "has",
                            "have", "do", "does", "more", "costs"}
    assert set(chinese) <= {"，", "但是", "的", "吗", "把", "的时候", "在", "很"}
    assert sum(english.values()) < 0.15 * sum(len(word_spans(pair.target)) for pair in TRAIN + HELD_OUT)
