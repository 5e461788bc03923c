"""Lexicon of the built-in corpus: Chinese words and their translations, in tables by category.

The categories (food is eaten, drinks are drunk) keep the generated sentences plausible.
See docs/guides/data.md.
"""

from functools import cache
from typing import NamedTuple


class Word(NamedTuple):
    """A Chinese word and its one English translation."""

    zh: str
    en: str


class Noun(NamedTuple):
    """A countable noun with its measure word: 一 本 书, a book."""

    zh: str
    en: str
    measure: str


@cache
def words(table: str) -> list[Word]:
    """Parse a table: words("茶 tea, 水 water") == [Word("茶", "tea"), Word("水", "water")]."""
    entries = (
        entry.strip().partition(" ")
        for entry in table.replace("\n", ",").split(",")
        if entry.strip()
    )
    return [Word(zh, en) for zh, _, en in entries]


def nouns(table: str) -> list[Noun]:
    """Parse a table with one measure word per line: "本: 书 book, 词典 dictionary"."""
    lines = (line.partition(":") for line in table.strip().split("\n"))
    return [
        Noun(word.zh, word.en, measure.strip())
        for measure, _, entries in lines
        for word in words(entries)
    ]


def only(table: list[Noun], names: str) -> list[Noun]:
    """Return the nouns of a table with these Chinese names; an unknown name is a KeyError."""
    known = {noun.zh: noun for noun in table}
    return [known[name] for name in names.split()]


# ── people and animals
NAMES = words("""汤姆 tom, 杰克 jack, 大卫 david, 彼得 peter, 李明 li ming, 王强 wang qiang
玛丽 mary, 安娜 anna, 露西 lucy, 艾玛 emma, 李红 li hong, 王芳 wang fang""")
MEN, WOMEN = NAMES[:6], NAMES[6:]
PROFESSIONS = nouns("""位: 老师 teacher, 医生 doctor, 护士 nurse, 工程师 engineer, 科学家 scientist
位: 司机 driver, 厨师 chef
位: 画家 painter, 作家 writer, 歌手 singer, 律师 lawyer, 经理 manager, 研究员 researcher
位: 程序员 programmer
位: 记者 journalist, 教授 professor, 演员 actor, 飞行员 pilot, 农民 farmer, 艺术家 artist
名: 学生 student, 运动员 athlete, 士兵 soldier""")
CHILDREN = nouns("个: 男孩 boy, 女孩 girl, 孩子 child")
PEOPLE = PROFESSIONS + CHILDREN
LEARNED = only(PEOPLE, "老师 工程师 科学家 研究员 程序员 教授 学生")
FAMILY = words("""妈妈 mother, 爸爸 father, 哥哥 brother, 姐姐 sister, 奶奶 grandmother
爷爷 grandfather, 儿子 son
女儿 daughter, 叔叔 uncle, 阿姨 aunt, 朋友 friend, 同学 classmate, 同事 colleague, 邻居 neighbor""")
SHE = {"妈妈", "姐姐", "奶奶", "女儿", "阿姨", "女孩"}
HE = {"爸爸", "哥哥", "爷爷", "儿子", "叔叔", "男孩"}
ANIMALS = nouns("""只: 动物 animal, 猫 cat, 狗 dog, 鸟 bird, 兔子 rabbit, 老虎 tiger, 猴子 monkey
只: 熊猫 panda, 羊 sheep
只: 鸡 chicken, 鸭子 duck, 熊 bear, 狐狸 fox, 老鼠 mouse, 青蛙 frog, 狮子 lion
匹: 马 horse
头: 牛 cow, 大象 elephant""")

PETS = only(ANIMALS, "猫 狗 鸟 兔子 羊 鸡 鸭子 青蛙 老鼠 马 牛")
WILD = [animal for animal in ANIMALS if animal not in PETS]

# ── things
FRUIT = nouns("""个: 苹果 apple, 橙子 orange, 梨 pear, 桃子 peach, 西红柿 tomato, 土豆 potato
根: 香蕉 banana
颗: 草莓 strawberry""")
SNACKS = nouns("""个: 鸡蛋 egg, 三明治 sandwich, 饺子 dumpling, 汉堡 hamburger
块: 饼干 cookie""")
FOODS = FRUIT + SNACKS
MEALS = words(
    "米饭 rice, 面条 noodles, 面包 bread, 牛肉 beef, 鱼肉 fish, 豆腐 tofu, 巧克力 chocolate, "
    "奶酪 cheese, 沙拉 salad"
)
DRINKS = words(
    "水 water, 茶 tea, 咖啡 coffee, 牛奶 milk, 果汁 juice, 啤酒 beer, 汤 soup, 葡萄酒 wine"
)
VESSELS = {"茶": ("杯", "cup"), "咖啡": ("杯", "cup"), "汤": ("碗", "bowl")}  # the others: glass
READABLE = nouns("""本: 书 book, 杂志 magazine, 词典 dictionary
份: 报告 report
封: 信 letter
篇: 论文 paper, 文章 article
个: 故事 story""")
CLOTHES = nouns("""件: 衬衫 shirt, 外套 coat, 毛衣 sweater
条: 裙子 skirt
顶: 帽子 hat""")
MACHINES = nouns("""部: 手机 phone
台: 电脑 computer, 相机 camera, 打印机 printer
辆: 自行车 bicycle, 汽车 car
个: 机器人 robot, 钟 clock""")
SMALL_THINGS = nouns("""支: 铅笔 pencil, 钢笔 pen
个: 杯子 cup, 包 bag, 箱子 box, 球 ball, 玩具 toy, 盘子 plate
把: 雨伞 umbrella, 钥匙 key, 刀 knife, 吉他 guitar
块: 手表 watch
张: 地图 map, 照片 photo, 票 ticket
份: 礼物 gift
朵: 花 flower""")
FURNITURE = nouns("""张: 桌子 table, 床 bed
把: 椅子 chair
盏: 灯 lamp
架: 钢琴 piano
幅: 画 painting""")
PLENTY = (
    SMALL_THINGS + FOODS + only(READABLE, "书 杂志 词典") + CLOTHES + PETS
)  # plausible in the plural
BOOKS = only(READABLE, "书 杂志 词典")
THINGS = BOOKS + CLOTHES + MACHINES + SMALL_THINGS + FURNITURE
COLORED = CLOTHES + only(THINGS, "手机 自行车 汽车 铅笔 钢笔 杯子 包 箱子 球 雨伞 花 桌子 椅子 灯")
COLORS = words("""红色 red, 蓝色 blue, 绿色 green, 白色 white, 黑色 black, 黄色 yellow, 灰色 gray
棕色 brown
粉色 pink, 紫色 purple""")
LUGGAGE = only(THINGS, "箱子 包 桌子 椅子 床 灯 钢琴 画 自行车 机器人")
ROOMS = words(
    "汽车 car, 房间 room, 厨房 kitchen, 办公室 office, 教室 classroom, 电梯 elevator, 车库 garage"
)

# ── places; the preposition belongs to the place
INSIDE = words("""公园 park, 图书馆 library, 医院 hospital, 商店 store, 餐馆 restaurant, 银行 bank
博物馆 museum
超市 supermarket, 办公室 office, 酒店 hotel, 教室 classroom, 厨房 kitchen, 花园 garden, 工厂 factory
村子 village
学校 school, 书店 bookstore, 体育馆 gym""")
POINTS = words(
    "机场 airport, 火车站 train station, 邮局 post office, 海滩 beach, 市场 market, 动物园 zoo"
)
PLACES = INSIDE + POINTS
OUTINGS = [place for place in PLACES if place.zh not in "厨房教室办公室"]
CITIES = words(
    "北京 beijing, 上海 shanghai, 巴黎 paris, 伦敦 london, 东京 tokyo, 纽约 new york, 柏林 berlin, "
    "罗马 rome"
)
TRANSPORT = words("火车 train, 飞机 plane, 公共汽车 bus, 地铁 subway, 船 boat, 出租车 taxi")
SPOTS = words("""桌子上 on the table, 桌子下面 under the table, 椅子上 on the chair
椅子下面 under the chair
床上 on the bed, 床下面 under the bed, 箱子里 in the box, 门后面 behind the door
窗户旁边 next to the window
包里 in the bag, 书架上 on the shelf, 地板上 on the floor""")
SIDES = words("旁边 next to, 前面 in front of, 后面 behind, 对面 opposite, 附近 near")

# ── things to cross, the Chinese verb, and reasons not to
CROSSINGS = [
    (words(row[0])[0], row[1], words(row[2]))
    for row in (
        entry.split(";")
        for entry in """
街道 street;穿过;宽 wide, 繁忙 busy, 危险 dangerous, 滑 slippery, 吵 noisy
马路 road;穿过;宽 wide, 繁忙 busy, 危险 dangerous, 滑 slippery
公路 highway;穿过;宽 wide, 繁忙 busy, 危险 dangerous
广场 square;穿过;大 big, 拥挤 crowded, 吵 noisy
森林 forest;穿过;大 big, 黑 dark, 危险 dangerous
沙漠 desert;穿过;大 big, 热 hot, 干燥 dry, 危险 dangerous
田野 field;穿过;宽 wide, 大 big, 泥泞 muddy
山谷 valley;穿过;宽 wide, 深 deep, 危险 dangerous
操场 playground;穿过;大 big, 拥挤 crowded, 泥泞 muddy
河 river;过;宽 wide, 深 deep, 冷 cold, 危险 dangerous
小溪 stream;跨过;宽 wide, 深 deep, 冷 cold
桥 bridge;过;长 long, 窄 narrow, 高 high, 滑 slippery, 危险 dangerous""".strip().split("\n")
    )
]
WEAKNESSES = words("""累 tired, 饿 hungry, 渴 thirsty, 害怕 scared, 虚弱 weak, 慢 slow, 小 small
老 old, 懒 lazy
困 sleepy, 紧张 nervous""")

# ── adjectives, by what they describe
MOODS = words(
    "累 tired, 饿 hungry, 渴 thirsty, 忙 busy, 高兴 happy, 难过 sad, 生气 angry, 紧张 nervous, "
    "害怕 scared, 困 sleepy"
)
TRAITS = words("""高 tall, 矮 short, 年轻 young, 聪明 smart, 善良 kind, 友好 friendly, 诚实 honest
勇敢 brave, 有名 famous
强壮 strong, 有耐心 patient, 勤奋 hardworking, 懒 lazy, 细心 careful, 谦虚 modest""")
ANIMAL_LOOKS = words(
    "大 big, 小 small, 漂亮 beautiful, 聪明 smart, 可爱 cute, 危险 dangerous, 强壮 strong, "
    "懒 lazy, 慢 slow, 快 fast"
)
THING_LOOKS = words(
    "贵 expensive, 便宜 cheap, 漂亮 beautiful, 重 heavy, 轻 light, 新 new, 旧 old, 干净 clean, "
    "脏 dirty, 有用 useful"
)
TASTES = words("好吃 delicious, 甜 sweet, 新鲜 fresh, 酸 sour, 贵 expensive, 便宜 cheap")
PLACE_LOOKS = words(
    "大 big, 小 small, 安静 quiet, 热闹 lively, 干净 clean, 漂亮 beautiful, 拥挤 crowded, 远 far, "
    "安全 safe, 有名 famous"
)
# extreme adjectives take neither 太 nor 非常, positive ones do not take 太
LIMITS = {"好吃", "好喝", "糟糕"}
WELCOME = LIMITS | {
    "有趣",
    "重要",
    "有用",
    "新鲜",
    "诚实",
    "善良",
    "友好",
    "聪明",
    "勇敢",
    "有名",
    "漂亮",
    "可爱",
    "好",
    "舒服",
    "高兴",
    "准确",
    "有效",
    "稳定",
    "强大",
    "安全",
    "干净",
    "流行",
    "强壮",
    "有耐心",
    "勤奋",
    "细心",
    "谦虚",
    "便宜",
    "新",
    "快",
    "凉快",
}
WEATHER = words(
    "好 nice, 冷 cold, 热 hot, 暖和 warm, 凉快 cool, 糟糕 terrible, 潮湿 humid, 干燥 dry, "
    "舒服 pleasant"
)
SUBJECT_LOOKS = words(
    "有趣 interesting, 难 difficult, 容易 easy, 重要 important, 有用 useful, 无聊 boring, "
    "复杂 complicated, 流行 popular"
)
MACHINE_LOOKS = words(
    "快 fast, 慢 slow, 大 big, 小 small, 准确 accurate, 强大 powerful, 复杂 complicated, "
    "简单 simple, 稳定 stable, 有效 effective"
)
STORY_LOOKS = words(
    "有趣 interesting, 无聊 boring, 长 long, 短 short, 难 difficult, 重要 important, 有名 famous"
)

# ── studies, and the parts of machine learning
STUDIES = words("""机器学习 machine learning, 深度学习 deep learning
强化学习 reinforcement learning
人工智能 artificial intelligence, 自然语言处理 natural language processing
计算机视觉 computer vision
机器翻译 machine translation, 概率论 probability theory, 线性代数 linear algebra
数据科学 data science
数学 mathematics, 物理 physics, 化学 chemistry, 历史 history, 音乐 music, 艺术 art
语言学 linguistics
统计学 statistics, 编程 programming, 生物学 biology, 哲学 philosophy, 地理 geography
经济学 economics
文学 literature, 科学 science""")
LANGUAGES = words(
    "英语 english, 中文 chinese, 法语 french, 德语 german, 日语 japanese, 西班牙语 spanish"
)
PARTS = nouns("""个: 模型 model, 神经网络 neural network, 编码器 encoder, 解码器 decoder
个: 分词器 tokenizer, 优化器 optimizer
个: 算法 algorithm, 程序 program, 注意力机制 attention mechanism, 损失函数 loss function
个: 数据集 dataset""")
MODELS = only(PARTS, "模型 神经网络 编码器 解码器 分词器 算法 程序")
PIECES = nouns("""个: 句子 sentence, 序列 sequence, 词 word, 向量 vector, 矩阵 matrix, 问题 question
个: 答案 answer
个: 标签 label, 公式 formula, 任务 task, 实验 experiment, 例子 example, 错误 error
张: 图像 image""")
BARE = words("""数据 data, 文本 text, 代码 code, 噪声 noise, 语言 language, 学习率 the learning rate
损失 the loss
参数 the parameters, 权重 the weights, 梯度 the gradient, 概率 the probability
下一个词 the next word, 结果 the result
分数 the scores, 相似度 the similarity, 输入 the input, 输出 the output, 填充 the padding
准确率 the accuracy
这段代码 the code, 这份数据 the data""")
