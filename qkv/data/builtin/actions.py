"""Lexicon of the built-in corpus: actions by the tenses they allow, times, numbers.

See docs/guides/data.md.
"""

from typing import NamedTuple

from qkv.data.builtin.words import (
    ANIMALS,
    BARE,
    BOOKS,
    CLOTHES,
    COLORED,
    FOODS,
    MACHINES,
    PARTS,
    PEOPLE,
    PIECES,
    READABLE,
    SMALL_THINGS,
    THINGS,
    Noun,
    Word,
    only,
    words,
)


class Action(NamedTuple):
    """A verb and its object: 听|音乐, listen|to music. Chinese puts 了 between them."""

    verb: Word
    object: Word


def actions(table: str) -> list[Action]:
    """Parse "听 音乐 listen | to music, 跑步 run": one or two Chinese words, then the English."""
    return [_action(entry) for entry in table.replace("\n", ",").split(",") if entry.strip()]


def _action(entry: str) -> Action:
    head, _, rest = entry.partition("|")
    chinese = [part for part in head.split() if not part.isascii()]
    english = " ".join(part for part in head.split() if part.isascii())
    return Action(Word(chinese[0], english), Word("".join(chinese[1:]), rest.strip()))


# ── habits: no article, used with 每天, 总是, 喜欢, 想
HABITS = actions("""弹 钢琴 play | the piano, 踢 足球 play | football, 打 篮球 play | basketball
打 网球 play | tennis
下 象棋 play | chess, 听 音乐 listen | to music, 唱歌 sing, 跳舞 dance, 跑步 run, 游泳 swim
散步 take | a walk
睡觉 sleep, 工作 work, 看 电视 watch | television, 看 电影 watch | movies, 做 作业 do | homework
洗 衣服 wash | clothes
读 报纸 read | the newspaper, 爬 山 climb | mountains, 钓鱼 go | fishing, 购物 go | shopping
做饭 cook, 休息 rest
上网 use | the internet, 拍照 take | photos, 打扫 房间 clean | the room, 骑 自行车 ride | a bicycle
锻炼 exercise
吃 早饭 eat | breakfast, 吃 午饭 eat | lunch, 吃 晚饭 eat | dinner, 喝 茶 drink | tea
喝 咖啡 drink | coffee
玩 游戏 play | games, 写 代码 write | code, 画 画 paint | pictures, 读 书 read | books""")


def _habits(verbs: str) -> list[Action]:
    return [habit for habit in HABITS if habit.verb.zh in verbs.split()]


MEALTIMES = _habits("吃")
OUTDOORS = _habits("踢 唱歌 跳舞 跑步 散步 休息 锻炼 拍照 下 玩")
TOGETHER = _habits("踢 打 下 唱歌 跳舞 跑步 游泳 散步 看 爬 钓鱼 购物 玩 吃 喝 听")
SKILLS = _habits("弹 踢 打 下 唱歌 跳舞 游泳 钓鱼 做饭 骑 写 拍照")
WEEKLY = [habit for habit in HABITS if habit not in MEALTIMES and habit.verb.zh != "睡觉"]
GROUNDS = words(
    "在公园里 in the park, 在花园里 in the garden, 在海滩上 on the beach, "
    "在操场上 on the playground, 在体育馆里 in the gym"
)
GROUNDS_BARE = [Word(place.zh.removeprefix("在"), place.en) for place in GROUNDS]
WORKPLACES = words("""在医院 in the hospital, 在学校 in the school, 在银行 in the bank
在工厂 in the factory, 在图书馆 in the library
在餐馆 in the restaurant, 在博物馆 in the museum, 在书店 in the bookstore, 在酒店 in the hotel
在机场 at the airport
在邮局 at the post office, 在市场 at the market, 在动物园 at the zoo
在火车站 at the train station""")
TOWN_TRANSPORT = words("公共汽车 bus, 地铁 subway, 出租车 taxi")

# ── actions on one thing; STEADY ones allow 正在 (progressive), SUDDEN ones do not
STEADY = [
    (word, table)
    for word, table in zip(
        words("""修理 repair, 洗 wash, 画 draw, 读 read, 写 write, 吃 eat
喂 feed, 使用 use"""),
        [
            MACHINES,
            CLOTHES + only(THINGS, "杯子 盘子 汽车"),
            ANIMALS + only(THINGS, "花 桌子 机器人 球"),
            READABLE,
            only(READABLE, "书 报告 信 论文 文章 故事"),
            FOODS,
            ANIMALS,
            only(THINGS, "电脑 手机 相机 打印机 地图 词典 刀 铅笔 钢笔 雨伞"),
        ],
        strict=True,
    )
]
SEARCHES = [(words("寻找 look for")[0], SMALL_THINGS + ANIMALS), (words("等 wait for")[0], PEOPLE)]
SUDDEN = [
    (word, table)
    for word, table in zip(
        words("""买 buy, 卖 sell, 借 borrow, 打开 open, 带来 bring, 帮助 help
拜访 visit, 邀请 invite, 感谢 thank"""),
        [
            THINGS + FOODS,
            THINGS,
            BOOKS + only(THINGS, "自行车 汽车 雨伞 铅笔 钢笔 吉他 相机 椅子"),
            only(THINGS, "箱子 包 礼物 雨伞 书"),
            SMALL_THINGS + FOODS + BOOKS,
            PEOPLE,
            PEOPLE,
            PEOPLE,
            PEOPLE,
        ],
        strict=True,
    )
]
LUCK = [
    (word, table)
    for word, table in zip(
        words("看见 see, 找到 find, 弄丢 lose, 遇见 meet"),
        [
            ANIMALS + PEOPLE + COLORED,
            SMALL_THINGS + ANIMALS,
            SMALL_THINGS + only(THINGS, "手机 书 相机 帽子"),
            PEOPLE,
        ],
        strict=True,
    )
]
GREETINGS = words(
    "帮助 help, 感谢 thank, 相信 trust, 理解 understand, 邀请 invite, 等 wait for, 想念 miss, "
    "记得 remember"
)
ORDERS = actions("""打开 门 open | the door, 打开 窗户 open | the window, 关上 门 close | the door
关上 窗户 close | the window
打扫 房间 clean | the room, 洗 盘子 wash | the plates, 读 这本书 read | the book
喝 水 drink | water, 喂 狗 feed | the dog
检查 代码 check | the code, 运行 程序 run | the program, 训练 模型 train | the model
写 报告 write | the report, 回答 问题 answer | the question, 翻译 这个句子 translate | the sentence
使用 电脑 use | the computer, 等 公共汽车 wait | for the bus, 帮助 孩子们 help | the children""")
REACTIONS = {
    mood: actions(table)
    for mood, table in {
        "累": "睡觉 sleep, 休息 rest, 听 音乐 listen | to music, 回家 go | home, "
        "喝 咖啡 drink | coffee",
        "饿": "吃 面包 eat | bread, 吃 米饭 eat | rice, 做饭 cook, 吃 面条 eat | noodles, "
        "吃 鸡蛋 eat | eggs",
        "渴": "喝 水 drink | water, 喝 茶 drink | tea, 喝 果汁 drink | juice, 喝 牛奶 drink | milk",
        "高兴": "唱歌 sing, 跳舞 dance, 笑 laugh, 听 音乐 listen | to music, "
        "弹 钢琴 play | the piano",
        "难过": "哭 cry, 听 音乐 listen | to music, 回家 go | home, 散步 take | a walk",
        "生气": "离开 房间 leave | the room, 回家 go | home, 哭 cry, 散步 take | a walk",
        "紧张": "喝 水 drink | water, 散步 take | a walk, 笑 laugh, 听 音乐 listen | to music",
        "困": "睡觉 sleep, 喝 咖啡 drink | coffee, 喝 茶 drink | tea, 回家 go | home, 休息 rest",
    }.items()
}

# ── machine learning: agents, verbs, objects
_THINGS_OF_ML: dict[str, Noun | Word] = {
    **{noun.zh: noun for noun in PARTS + PIECES},
    **{word.zh: word for word in BARE},
}


class Craft(NamedTuple):
    """A verb with its possible agents and objects."""

    doers: list[Noun]
    verb: Word
    objects: list[Noun | Word]


def _crafts(table: str) -> list[Craft]:
    """Parse a table with one line per verb: agents: verb: objects."""
    rows = (line.split(":") for line in table.strip().split("\n"))
    return [
        Craft(
            only(PARTS + PEOPLE, who),
            words(verb)[0],
            [_THINGS_OF_ML[name] for name in objects.split()],
        )
        for who, verb, objects in rows
    ]


MACHINE_CRAFTS = _crafts("""模型 神经网络 解码器: 预测 predict: 下一个词 概率 答案 标签 结果
模型 神经网络 编码器 程序: 处理 process: 图像 数据 句子 文本 序列 输入
模型 神经网络 解码器: 生成 generate: 文本 句子 图像 答案 代码 序列
模型 神经网络: 理解 understand: 句子 问题 语言 文本 任务
模型 神经网络 注意力机制: 忽略 ignore: 噪声 填充 错误
编码器 分词器 程序: 读取 read: 句子 序列 文本 输入 数据
编码器 算法: 压缩 compress: 序列 输入 数据 图像
解码器 程序: 输出 output: 句子 词 序列 答案 结果
分词器: 切分 split: 句子 文本 词
优化器 算法: 更新 update: 参数 权重
注意力机制 算法: 计算 compute: 权重 分数 相似度 概率
损失函数 算法: 测量 measure: 错误 相似度 损失
优化器 算法 程序: 减少 reduce: 错误 损失 噪声""")
HUMAN_CRAFTS = _crafts("""工程师 研究员 程序员 学生 科学家: 训练 train: 模型 神经网络 分词器 解码器
工程师 研究员 程序员 学生 科学家: 测试 test: 模型 神经网络 算法 程序 优化器
工程师 研究员 科学家 教授: 设计 design: 模型 算法 任务 实验 损失函数 编码器
工程师 程序员 研究员: 改进 improve: 模型 算法 程序 这段代码 数据集 准确率
工程师 研究员 学生: 调整 adjust: 学习率 参数 权重
研究员 科学家 学生 教授: 分析 analyze: 这份数据 结果 错误 实验
研究员 科学家 工程师: 收集 collect: 数据 文本
教授 老师 研究员 学生: 解释 explain: 公式 算法 结果 注意力机制 矩阵 例子
教授 程序员 老师 学生: 检查 check: 这段代码 梯度 公式 答案 输出
教授 学生 科学家: 计算 compute: 梯度 概率 向量 矩阵""")
LEARNT_FROM = words(
    "数据 data, 文本 text, 图像 images, 例子 examples, 错误 errors, 经验 experience, 反馈 feedback"
)
LOADS = [
    (Word("学习率", "learning rate"), words("高 high, 低 low")),
    (Word("模型", "model"), words("大 big, 小 small, 慢 slow, 复杂 complicated")),
    (Word("数据集", "dataset"), words("大 big, 小 small")),
    (Word("任务", "task"), words("难 difficult, 复杂 complicated")),
    (Word("句子", "sentences"), words("长 long, 复杂 complicated")),
    (Word("代码", "code"), words("慢 slow, 复杂 complicated")),
]
OUTCOMES = words("""训练会失败 training will fail, 训练会很慢 training will be slow
结果会很差 the result will be bad
准确率会很低 the accuracy will be low, 训练会花很长时间 training will take a long time
结果会不稳定 the result will not be stable
实验会失败 the experiment will fail, 我们需要更多时间 we need more time
损失会很高 the loss will be high""")
TRENDS = [
    (Word("损失", "the loss"), words("小 small, 低 low")),
    (Word("准确率", "the accuracy"), words("高 high, 低 low")),
    (
        Word("模型", "the model"),
        words("大 big, 快 fast, 准确 accurate, 强大 powerful, 复杂 complicated"),
    ),
    (
        Word("天气", "the weather"),
        words("冷 cold, 热 hot, 暖和 warm, 凉快 cool, 糟糕 terrible, 潮湿 humid, 干燥 dry"),
    ),
    (
        Word("城市", "the city"),
        words("大 big, 漂亮 beautiful, 拥挤 crowded, 安静 quiet, 热闹 lively, 干净 clean"),
    ),
    (Word("手机", "the phone"), words("便宜 cheap, 贵 expensive, 小 small, 轻 light, 快 fast")),
    (
        Word("问题", "the question"),
        words("难 difficult, 简单 simple, 复杂 complicated, 重要 important"),
    ),
]
TOOLS = [
    (tool, actions(table))
    for tool, table in zip(
        words("""数据 data, 显卡 a graphics card, 筷子 chopsticks, 刀 a knife
铅笔 a pencil, 相机 a camera, 电脑 a computer, 手机 a phone"""),
        [
            "训练 模型 train | the model, 测试 模型 test | the model, "
            "改进 算法 improve | the algorithm",
            "训练 神经网络 train | the neural network, 训练 模型 train | the model, "
            "运行 程序 run | the program",
            "吃 面条 eat | noodles, 吃 米饭 eat | rice, 吃 豆腐 eat | tofu",
            "切 面包 cut | bread, 切 牛肉 cut | beef, 切 奶酪 cut | cheese",
            "写 信 write | a letter, 画 地图 draw | a map, 画 花 draw | flowers",
            "拍照 take | photos",
            "写 代码 write | code, 看 电影 watch | movies, 玩 游戏 play | games, "
            "写 报告 write | a report",
            "拍照 take | photos, 听 音乐 listen | to music, 看 电影 watch | movies",
        ],
        strict=True,
    )
]

# ── times and numbers; the first of each list fits every action
PAST_TIMES = words(
    "昨天 yesterday, 上周 last week, 昨天晚上 last night, 今天早上 this morning, 去年 last year, "
    "上个月 last month"
)
RECENTLY = PAST_TIMES[:1] + PAST_TIMES[2:4]  # for frequent actions
FUTURE_TIMES = words(
    "明天 tomorrow, 下周 next week, 明年 next year, 今天晚上 tonight, 下个月 next month, "
    "这个周末 this weekend"
)
SOON = [FUTURE_TIMES[0], FUTURE_TIMES[3], FUTURE_TIMES[5]]
DAILY_TIMES = words(
    "每天 every day, 每天早上 every morning, 每天下午 every afternoon, 每天晚上 every evening, "
    "每个周末 every weekend"
)
WEEKDAYS = words(
    "星期一 monday, 星期二 tuesday, 星期三 wednesday, 星期四 thursday, 星期五 friday, "
    "星期六 saturday, 星期日 sunday"
)
MONTHS = words("""一月 january, 二月 february, 三月 march, 四月 april, 五月 may, 六月 june
七月 july, 八月 august
九月 september, 十月 october, 十一月 november, 十二月 december""")
SEASONS = [
    (Word("春天", "spring"), words("暖和 warm, 舒服 pleasant, 潮湿 humid")),
    (Word("夏天", "summer"), words("热 hot, 潮湿 humid, 暖和 warm")),
    (Word("秋天", "autumn"), words("凉快 cool, 舒服 pleasant, 干燥 dry")),
    (Word("冬天", "winter"), words("冷 cold, 干燥 dry, 潮湿 humid")),
]
OFTEN = words("总是 always, 经常 often, 有时 sometimes, 通常 usually, 从不 never, 很少 rarely")
NUMBERS = words(
    "两 two, 三 three, 四 four, 五 five, 六 six, 七 seven, 八 eight, 九 nine, 十 ten, 十二 twelve, "
    "二十 twenty"
)
AMOUNTS = [*NUMBERS, *words("几 several")]
SCHEDULE = [
    (actions(what)[0], words(hours))
    for what, hours in {
        "起床 get | up": "六 six, 七 seven, 八 eight",
        "吃 早饭 eat | breakfast": "七 seven, 八 eight",
        "出门 leave | home": "七 seven, 八 eight, 九 nine",
        "上课 go | to class": "八 eight, 九 nine, 十 ten",
        "吃 午饭 eat | lunch": "十一 eleven, 十二 twelve",
        "回家 go | home": "五 five, 六 six, 七 seven",
        "吃 晚饭 eat | dinner": "六 six, 七 seven",
        "睡觉 sleep": "九 nine, 十 ten, 十一 eleven",
    }.items()
]
EXPERTS = [
    (words(place)[0], only(PEOPLE, who))
    for place, who in {
        "学校 school": "学生 老师 孩子",
        "医院 hospital": "医生 护士",
        "工厂 factory": "工程师 经理",
        "村子 village": "农民 孩子 老师 医生",
        "酒店 hotel": "厨师 经理",
        "餐馆 restaurant": "厨师",
        "体育馆 gym": "运动员",
        "办公室 office": "律师 程序员 记者 经理",
        "教室 classroom": "学生 孩子",
    }.items()
]
RELATIVE_AGES = {
    "奶奶 爷爷": "六十 sixty, 八十 eighty",
    "爸爸 妈妈 叔叔 阿姨": "三十 thirty, 四十 forty, 五十 fifty",
    "儿子 女儿": "五 five, 八 eight, 十 ten, 十二 twelve, 十五 fifteen",
    "朋友 哥哥 姐姐 同学": "十五 fifteen, 二十 twenty, 三十 thirty",
}
AGES = words(
    "五 five, 八 eight, 十 ten, 十二 twelve, 十五 fifteen, 二十 twenty, 三十 thirty, 四十 forty, "
    "六十 sixty, 八十 eighty"
)
PRICES = words("五 five, 十 ten, 二十 twenty, 三十 thirty, 四十 forty, 五十 fifty, 八十 eighty")
HIGH_PRICES = words(
    "五百 five hundred, 八百 eight hundred, 一千 one thousand, 两千 two thousand, "
    "五千 five thousand"
)
