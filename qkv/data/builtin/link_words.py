"""Words for the gold alignments that are not in the lexicon: literals, function words, compounds.

See docs/guides/data.md.
"""

from qkv.data.builtin.words import words

MEASURE_WORDS = set("个件份位匹只台名块头封幅张把支本朵条架根盏篇辆部顶颗段片座")

# Content words written in the patterns, and idioms: one Chinese word, several English words.
LITERAL_WORDS = [
    word
    for row in """
我 i, 我 me, 你 you, 他 he, 他 him, 她 she, 她 her, 我们 we, 我们 us, 他们 they, 他们 them, 它 it
它们 they, 谁 who
我的 my, 我的 mine, 你的 your, 你的 yours, 他的 his, 她的 her, 她的 hers, 我们的 our, 我们的 ours
他们的 their, 他们的 theirs
爱 love, 喜欢 like, 更喜欢 prefer, 讨厌 hate, 学习 learn, 学会 learn, 研究 study, 觉得 think, 说 say
说 speak, 知道 know, 教 teach, 想 want
需要 need, 打算 plan, 应该 should, 必须 must, 能 can, 会 will, 成为 become, 变得 become, 给 give
去 go, 去过 been, 住 live
待 stay, 家里 home, 买 buy, 卖 sell, 借 borrow, 看见 see, 喝 drink, 吃 eat, 写 write, 读 read
读完 finish, 过 cross
穿过 cross, 跨过 cross, 切 cut, 进步 improve, 失败 fail, 差 bad, 好喝 delicious, 凉 cold
稳定 stable, 花 take, 时间 time, 训练 training, 更多 more
天气 weather, 今天 today, 现在 now, 两次 twice, 层 layers, 杯 cup, 杯 glass, 碗 bowl, 书架 shelf
地板 floor, 上面 on, 下面 under
如果 if, 当 when, 虽然 although, 但是 but, 所以 so, 因为 because, 关于 about, 请 please, 让 let
岁 years old, 年 years
星期 weeks, 月 months, 元 yuan, 每个 every, 得多 much, 多少 how many, 多少钱 how much, 比 than
太 too
非常 very, 真 really, 不能 cannot, 成 into, 用 with, 从 from, 坐 by, 点 at, 越来越 is getting
还 yet, 散步 take a walk
钓鱼 go fishing, 购物 go shopping, 上网 use the internet, 拍照 take photos, 起床 get up
出门 leave home, 上课 go to class
回家 go home""".strip().split("\n")
    for word in words(row)
]

# Each slot is linked to the first of its words without a link in the clause; "?": possible link.
FUNCTION_WORDS = {
    row.partition(": ")[0].strip(": "): row.partition(":")[2].split()
    for row in """
没有: without did/do/does not as as have/has
不: do/does not
不要: do not
很: is/am/are/was/were/be
是: is/are/am
正在: is/am/are
正: is/am/are
在: is/at/in/on
有: there is/are/have/has
里: in
上: on
的: in
吗: do/does/did ?is/are/am
为什么: why ?do/does
什么时候: when ?do/does
哪里: where ?do/does
已经: already ?have/has
最: most
更: more
一起: ?with
一样: as
和: with/as
下雨: rain/rains/rained ?it
下雪: snow/snows/snowed ?it
去过: been ?have/has
多少: how many ?do/does
多少钱: how much ?is
元: yuan ?costs
一点: a little
的时候: ?when
本来: ?wanted
了:
们:
中: ?from
，: ,""".strip().split("\n")
}

# Compounds whose parts have separate translations.
SPLITS = {
    "".join(part.split("=")[0] for part in row.split(" ")): [
        tuple(part.split("=")) for part in row.split(" ")
    ]
    for row in """
机器=machine 学习=learning
深度=deep 学习=learning
强化=reinforcement 学习=learning
人工=artificial 智能=intelligence
自然=natural 语言=language 处理=processing
计算机=computer 视觉=vision
机器=machine 翻译=translation
概率=probability 论=theory
线性=linear 代数=algebra
数据=data 科学=science
神经=neural 网络=network
注意力=attention 机制=mechanism
注意力=attention 头=head
损失=loss 函数=function
学习=learning 率=rate
下一个=next 词=word
火车=train 站=station
李=li 明=ming
李=li 红=hong
王=wang 强=qiang
王=wang 芳=fang
上=last 周=week
下=next 周=week
上个=last 月=month
下个=next 月=month
去=last 年=year
明=next 年=year
昨天=last 晚上=night
今天=this 早上=morning
这个=this 周末=weekend
每=every 天=day
每天=every 早上=morning
每天=every 下午=afternoon
每天=every 晚上=evening
每个=every 周末=weekend
五=five 百=hundred
八=eight 百=hundred
一=one 千=thousand
两=two 千=thousand
五=five 千=thousand
来=come 自=from
放=fit 不=does+not 进=in
显=graphics 卡=card
孩子=children 们=""".strip().split("\n")
}
