// What the page says, in English and Chinese side by side.
// In: a key and values for its blanks. Out: the sentence in the person's language.
// What the model's back end says comes in both languages at once, so switching needs no request.

const WORDS = {
  walk: ["Walk", "一步步看"],
  attention: ["Attention", "注意力"],
  tryout: ["Try things", "动手试试"],
  run: ["Run", "运行"],
  askTranslator: ["A sentence to translate", "要翻译的句子"],
  askGenerator: ["The beginning of a text", "一段文字的开头"],
  askEmbedder: ["A sentence", "一个句子"],
  examples: ["For example", "例如"],
  recordedTexts: ["Recorded in this file", "此文件中记录的句子"],
  begin: ["Type a sentence above, and watch what the model does with it.", "在上方输入一句话，看看模型如何处理它。"],
  emptyText: ["type something first", "请先输入文字"],
  light: ["Light", "浅色"],
  dark: ["Dark", "深色"],
  language: ["Language", "语言"],
  theme: ["Colours", "配色"],
  views: ["Views", "视图"],
  edited: ["changed: {0}", "已改动：{0}"],
  undoAll: ["as it was", "还原"],
  translator: ["translator", "翻译模型"],
  generator: ["language model", "语言模型"],
  embedder: ["sentence encoder", "句子编码器"],

  layers: ["{0} layers", "{0} 层"],
  parameters: ["{0} parameters", "{0} 个参数"],
  steps: ["Steps", "步骤"],
  before: ["Back", "上一步"],
  after: ["Next", "下一步"],
  stepOf: ["step {0} of {1}", "第 {0} 步，共 {1} 步"],
  layer: ["layer {0}", "第 {0} 层"],
  layerAlone: ["Layer {0}", "第 {0} 层"],
  encoder: ["Encoder", "编码器"],
  decoder: ["Decoder", "解码器"],
  endMemory: ["Memory", "记忆"],
  endNext: ["Next token", "下一个词元"],
  endVector: ["Vectors", "向量"],
  textbook: ["Textbook code", "教科书代码"],
  hoverHint: ["point at a cell for its value, click for a row", "指向格子看数值，点击看一整行"],
  row: ["row", "行"],
  column: ["column", "列"],
  head: ["head", "头"],
  headNumber: ["head {0}", "头 {0}"],
  which: ["numbers", "数值"],
  rowsOf: ["rows {0}–{1} of {2}", "第 {0}–{1} 行，共 {2} 行"],
  bestOf: ["the {0} highest of {1} tokens after “{2}”", "“{2}”之后 {1} 个词元中分数最高的 {0} 个"],
  chanceOf: ["after “{0}”", "在“{0}”之后"],
  chanceWhere: ["in the place of “{0}”", "在“{0}”的位置上"],
  chooseWord: ["Choose an output word", "选择一个输出词"],
  choosePosition: ["Choose a position", "选择一个位置"],
  looksAt: ["Where “{0}” looks", "“{0}”看向哪里"],
  looksAtWriting: ["Where the decoder looks while writing “{0}”", "写出“{0}”时解码器看向哪里"],
  source: ["source", "源句"],
  target: ["target", "译文"],
  text: ["text", "文本"],

  film: ["The whole pass, as a film", "整个过程的动画"],
  play: ["Play", "播放"],
  pause: ["Pause", "暂停"],
  frame: ["moment", "时刻"],
  filmRead: ["The sentence is cut into tokens; each becomes a vector.", "句子切成词元，每个词元变成一个向量。"],
  filmEncode: ["Encoder layer {0}: each token gathers from all the others (mean of the heads).",
    "编码器第 {0} 层：每个词元从所有词元收集信息（各头平均）。"],
  filmThink: ["Layer {0}: each token gathers from the ones before it (mean of the heads).",
    "第 {0} 层：每个词元从它前面的词元收集信息（各头平均）。"],
  filmSelf: ["Word {0}: the decoder looks back at what it has written.", "第 {0} 个词：解码器回看已写出的词。"],
  filmCross: ["Word {0}: through cross-attention it looks most at “{1}”, {2} (mean of all layers and heads).",
    "第 {0} 个词：通过交叉注意力，最多看向“{1}”，{2}（所有层与头平均）。"],
  filmWrite: ["Word {0}: “{1}” is the likeliest, {2}. It looks most at “{3}”, {4} (mean of all layers and heads).",
    "第 {0} 个词：“{1}”最有可能，{2}。它最多看向“{3}”，{4}（所有层与头平均）。"],
  filmNext: ["The vector of “{0}” becomes a chance for every token; “{1}” is the likeliest next, {2}.",
    "“{0}”的向量变成每个词元的概率；下一个最有可能是“{1}”，{2}。"],
  filmChances: ["The vector of “{0}” becomes a chance for every token.", "“{0}”的向量变成每个词元的概率。"],
  filmPool: ["The token vectors are pooled into one vector for the sentence.", "词元向量汇聚成整个句子的一个向量。"],

  pieces: ["Pieces", "词元"],
  wholeWords: ["Words", "整词"],
  matrix: ["Matrix", "矩阵"],
  lines: ["Lines", "连线"],
  mode: ["How much of it", "看多少"],
  whichAttention: ["Which attention", "哪种注意力"],
  unit: ["Pieces or words", "词元或整词"],
  form: ["Drawing", "画法"],
  allLayers: ["All layers, mean", "所有层平均"],
  allLayersAbout: ["mean of every head of every layer", "所有层、所有头的平均"],
  oneLayer: ["One layer", "单层"],
  oneHead: ["One head", "单头"],
  headsMean: ["mean of the heads", "各头平均"],
  rollout: ["Rollout", "逐层累积"],
  rolloutAbout: ["All layers multiplied together: where information in the end came from.", "把所有层相乘：信息最终来自哪里。"],
  allHeads: ["Every layer and head", "所有层与头"],
  compare: ["Compare with", "对比句子"],
  compareRun: ["Compare", "对比"],
  compareStop: ["One sentence", "只看一句"],
  rowsLook: ["each row looks at the columns; a row sums to 1", "每一行看向各列；每行之和为 1"],
  rowsWrite: ["rows: the word being written; columns: the sentence", "行：正在写出的词；列：源句"],
  clickWord: ["click a word to follow it", "点击一个词来跟踪它"],
  tooLongLines: ["lines show the first {0} of {1} tokens", "连线只显示前 {0} 个词元（共 {1} 个）"],

  chances: ["From logits to a choice", "从分数到选择"],
  chancesAbout: ["Temperature flattens or sharpens; top-k and top-p cut the tail. The mark shows the chance before.",
    "温度使分布变平或变尖；top-k 与 top-p 截去尾部。竖线是原来的概率。"],
  temperature: ["temperature", "温度"],
  topK: ["top-k", "top-k"],
  topP: ["top-p", "top-p"],
  off: ["off", "关"],
  leftOver: ["{0} of {1} tokens can be drawn", "可抽取的词元：{0} / {1}"],
  draw: ["Draw one", "抽一个"],
  drawn: ["drawn: {0}", "抽到：{0}"],
  switches: ["Switch parts off", "关掉一些部件"],
  switchesAbout: ["Each button is a part of the model; press to silence it and see what changes.",
    "每个按钮是模型的一个部件；按下使它沉默，看看有何变化。"],
  partLayer: ["whole layer", "整层"],
  partAttn: ["self-attention", "自注意力"],
  partCross: ["cross-attention", "交叉注意力"],
  partFfn: ["feed-forward", "前馈网络"],
  wholeLayer: ["all", "全部"],
  positionsOf: ["positions", "位置"],
  saidBefore: ["before", "原来"],
  saidAfter: ["after", "现在"],
  openEdited: ["Walk through the changed model", "走查改动后的模型"],
  onlyOne: ["This file has recorded each part off alone: one at a time. `qkv explore` switches off several.",
    "此文件记录的是单独关掉每个部件：一次关一个。`qkv explore` 可同时关掉多个。"],
  nothingOff: ["nothing is switched off", "没有关掉任何部件"],
  firstPlaces: ["chances are compared at the first {0} positions; choose one of them", "只比较前 {0} 个位置的概率；请选择其中之一"],
  similarity: ["similarity to before (cosine)", "与原来的相似度（余弦）"],
  swap: ["Swap a token", "替换一个词元"],
  swapAbout: ["Click a token, type another one in its place.", "点击一个词元，在原处输入另一个。"],
  swapWith: ["instead of “{0}”", "替换“{0}”"],
  swapDo: ["Swap", "替换"],
  unreachable: ["the server does not answer; is `qkv explore` still running?", "服务器没有应答；`qkv explore` 还在运行吗？"],
  notRecorded: ["this is not recorded in the file; start `qkv explore` to see it", "文件中没有记录这一项；请启动 `qkv explore` 查看"],
  noAttention: ["this model mixes its tokens without attention weights", "此模型不用注意力权重来混合词元"],
  swapOne: ["“{0}” is {1} tokens; type one that is a single token", "“{0}”是 {1} 个词元；请输入单个词元"],
  lens: ["Logit lens", "逐层解读"],
  lensAbout: ["What each layer would say if it were the last.", "如果某一层就是最后一层，它会说什么。"],
  beam: ["Beam search", "束搜索"],
  beamAbout: ["Every kept beginning with its score; the winning way is bold. Numbers: log probability of the token.",
    "每个保留的开头及其得分；获胜的路径加粗。数字：该词元的对数概率。"],
  beamSize: ["beams", "束宽"],
  lengthPenalty: ["length penalty", "长度惩罚"],
  score: ["score", "得分"],
  hypotheses: ["Finished texts, best first", "完成的文本，最优在前"],
  waves: ["Positions as waves", "位置之波"],
  place: ["place", "位置"],
  component: ["component", "分量"],
  map: ["Embedding space", "词向量空间"],
  mapAbout: ["The text's tokens and their neighbours, on the two directions that differ most ({0} of the variance).",
    "文本的词元及其近邻，投影到差异最大的两个方向（解释 {0} 的方差）。"],
  neighbours: ["Nearest to “{0}”", "与“{0}”最近"],
  nearest: ["Nearest sentences", "最近的句子"],
  nearestAbout: ["One sentence a line; the closest by cosine come first ({0} pooling).", "每行一个句子；按余弦相似度排序（{0} 池化）。"],
  measure: ["Measure", "计算"],
  noSentences: ["no sentences yet: type some, one a line", "还没有句子：请每行输入一个"],
  partial: ["a piece of a character", "一个字符的一部分"],
  unexpected: ["something went wrong: {0}", "出错了：{0}"],
};

const LANGUAGES = ["en", "zh"];
let language = "en";

export function setLanguage(chosen) {
  language = LANGUAGES.includes(chosen) ? chosen : "en";
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
}

export function currentLanguage() {
  return language;
}

// A sentence in both languages, for trouble that is told later.
export function both(key, ...values) {
  const [en, zh] = WORDS[key].map((words) => words.replace(/\{(\d)\}/g, (_, at) => values[at]));
  return { en, zh };
}

// t("stepOf", 3, 87) -> "step 3 of 87"
export function t(key, ...values) {
  return both(key, ...values)[language];
}

// A text that the back end gives in both languages.
export function say(text) {
  return typeof text === "object" && text !== null ? text[language] ?? text.en : String(text ?? "");
}
