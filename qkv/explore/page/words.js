// Texts of the page, in English and Chinese.
// t(key, ...values) gives the text in the current language; {0}, {1} are replaced by the values.
// Texts from the server come in both languages, so switching the language needs no request.

const WORDS = {
  steps: ["Steps", "逐步查看"],
  attention: ["Attention", "注意力"],
  experiments: ["Experiments", "实验"],
  run: ["Run", "运行"],
  inputTranslator: ["Text to translate", "要翻译的文本"],
  inputGenerator: ["Prompt", "提示文本"],
  inputEmbedder: ["A sentence", "一个句子"],
  examples: ["Examples", "示例"],
  recordedTexts: ["Recorded texts", "已记录的文本"],
  begin: ["Type a text above to see every step of the model on it.", "在上方输入文本，查看模型对它的每一步计算。"],
  emptyText: ["type some text first", "请先输入文本"],
  light: ["Light", "浅色"],
  dark: ["Dark", "深色"],
  language: ["Language", "语言"],
  theme: ["Theme", "主题"],
  views: ["Views", "视图"],
  edited: ["edits: {0}", "编辑：{0}"],
  undoAll: ["undo edits", "撤销编辑"],
  translator: ["encoder-decoder", "编码器-解码器"],
  generator: ["decoder-only", "仅解码器"],
  embedder: ["encoder-only", "仅编码器"],

  layers: ["{0} layers", "{0} 层"],
  parameters: ["{0} parameters", "{0} 个参数"],
  stepList: ["List of steps", "步骤列表"],
  before: ["Previous", "上一步"],
  after: ["Next", "下一步"],
  stepOf: ["step {0} of {1}", "第 {0} 步，共 {1} 步"],
  layer: ["layer {0}", "第 {0} 层"],
  layerAlone: ["Layer {0}", "第 {0} 层"],
  encoder: ["Encoder", "编码器"],
  decoder: ["Decoder", "解码器"],
  endMemory: ["Output (memory)", "输出（memory）"],
  endNext: ["Next token", "下一个词元"],
  endVector: ["Sentence vector", "句向量"],
  textbook: ["Textbook code", "教科书代码"],
  hoverHint: ["hover over a cell for its value, click for a row", "悬停查看数值，点击查看整行"],
  row: ["row", "行"],
  column: ["column", "列"],
  head: ["head", "头"],
  headNumber: ["head {0}", "头 {0}"],
  tensor: ["tensor", "张量"],
  rowsOf: ["rows {0}–{1} of {2}", "第 {0}–{1} 行，共 {2} 行"],
  topOf: ["top {0} of {1} tokens after “{2}”", "“{2}”之后 {1} 个词元中分数最高的 {0} 个"],
  probabilityAfter: ["after “{0}”", "在“{0}”之后"],
  probabilityAt: ["at the position of “{0}”", "在“{0}”的位置上"],
  chooseWord: ["Select an output token", "选择一个输出词元"],
  choosePosition: ["Select a position", "选择一个位置"],
  weightsOf: ["Attention weights of “{0}”", "“{0}”的注意力权重"],
  weightsOfPrediction: ["Cross-attention weights when predicting “{0}”", "预测“{0}”时的交叉注意力权重"],
  source: ["source", "源句"],
  target: ["target", "译文"],
  text: ["text", "文本"],

  animation: ["Animation of the whole pass", "整个前向计算的动画"],
  play: ["Play", "播放"],
  pause: ["Pause", "暂停"],
  frame: ["frame", "帧"],
  animationTokens: ["The text is split into tokens; each is replaced by its embedding.", "文本切分成词元，每个词元换成它的词嵌入。"],
  animationEncoder: ["Encoder layer {0}: self-attention over all tokens (mean of the heads).",
    "编码器第 {0} 层：对所有词元的自注意力（各头平均）。"],
  animationDecoder: ["Layer {0}: causal self-attention over the preceding tokens (mean of the heads).",
    "第 {0} 层：对前面词元的因果自注意力（各头平均）。"],
  animationSelf: ["Token {0}: self-attention over the tokens generated so far.", "第 {0} 个词元：对已生成词元的自注意力。"],
  animationCross: ["Token {0}: the largest cross-attention weight is on “{1}”, {2} ({3}).",
    "第 {0} 个词元：交叉注意力权重最大的是“{1}”，{2}（{3}）。"],
  animationPrediction: ["Token {0}: “{1}” has probability {2}, the highest. Largest weight: “{3}”, {4} ({5}).",
    "第 {0} 个词元：“{1}”概率最高，{2}。最大权重：“{3}”，{4}（{5}）。"],
  animationNext: ["The logits at “{0}” give a probability for every token; the most probable next token is “{1}”, {2}.",
    "“{0}”处的 logits 给出每个词元的概率；下一个词元概率最高的是“{1}”，{2}。"],
  animationLogits: ["The logits at “{0}” give a probability for every token.", "“{0}”处的 logits 给出每个词元的概率。"],
  animationPool: ["The hidden states of all tokens are pooled into one sentence vector.", "所有词元的隐藏状态池化为一个句向量。"],
  guidedHead: ["guided alignment head", "对齐引导头"],
  meanOfAll: ["mean of all layers and heads", "所有层与头的平均"],

  tokens: ["Tokens", "词元"],
  wholeWords: ["Words", "整词"],
  matrix: ["Matrix", "矩阵"],
  lines: ["Lines", "连线"],
  mode: ["Layers and heads", "层与头"],
  attentionKind: ["Kind of attention", "注意力类型"],
  unit: ["Tokens or words", "词元或整词"],
  form: ["Drawing", "绘图方式"],
  allLayers: ["All layers, mean", "所有层平均"],
  allLayersAbout: ["mean of every head of every layer", "所有层、所有头的平均"],
  oneLayer: ["One layer", "单层"],
  oneHead: ["One head", "单头"],
  headsMean: ["mean of the heads", "各头平均"],
  rollout: ["Rollout", "Rollout 累积"],
  rolloutAbout: ["Attention rollout: the product over all layers of (mean of the heads + identity) / 2.",
    "注意力 rollout：所有层（各头平均 + 单位阵）/ 2 的乘积。"],
  allHeads: ["Every layer and head", "所有层与头"],
  compare: ["Compare with", "对比句子"],
  compareRun: ["Compare", "对比"],
  compareStop: ["Stop comparing", "停止对比"],
  rowsAreQueries: ["rows: queries; columns: keys; a row sums to 1", "行：查询；列：键；每行之和为 1"],
  rowsArePredictions: ["rows: predicted target tokens; columns: source tokens", "行：预测的译文词元；列：源句词元"],
  clickWord: ["click a word to show only its attention weights", "点击一个词，只显示它的注意力权重"],
  tooLongLines: ["lines show the first {0} of {1} tokens", "连线只显示前 {0} 个词元（共 {1} 个）"],

  probabilities: ["Sampling from the logits", "从 logits 采样"],
  probabilitiesAbout: ["Temperature, top-k and top-p; the mark on a bar is the probability without them.",
    "温度、top-k 与 top-p；竖线是未使用它们时的概率。"],
  temperature: ["temperature", "温度"],
  topK: ["top-k", "top-k"],
  topP: ["top-p", "top-p"],
  off: ["off", "关"],
  candidates: ["{0} of {1} tokens have a nonzero probability", "概率非零的词元：{0} / {1}"],
  sample: ["Sample", "采样"],
  sampled: ["sampled: {0}", "采样结果：{0}"],
  ablation: ["Ablation", "消融"],
  ablationAbout: ["Ablate heads, sublayers, layers or positions, and compare the predictions.",
    "消融注意力头、子层、层或位置编码，并比较预测。"],
  partLayer: ["whole layer", "整层"],
  partAttn: ["self-attention", "自注意力"],
  partCross: ["cross-attention", "交叉注意力"],
  partFfn: ["feed-forward network", "前馈网络"],
  wholePart: ["all", "全部"],
  positionsOf: ["position encoding", "位置编码"],
  generatedBefore: ["before", "原来"],
  generatedAfter: ["after", "现在"],
  openEdited: ["Open the edited model in Steps", "逐步查看编辑后的模型"],
  onlyOne: ["This file has recorded each ablation alone: one at a time. `qkv explore` combines several.",
    "此文件记录了各项单独的消融：一次一项。`qkv explore` 可同时消融多项。"],
  noEdits: ["nothing is ablated", "没有消融任何部分"],
  firstPositions: ["probabilities are compared at the first {0} positions; select one of them",
    "只比较前 {0} 个位置的概率；请选择其中之一"],
  similarity: ["cosine similarity to before", "与原来的余弦相似度"],
  swap: ["Swap a token", "替换一个词元"],
  swapAbout: ["Click a token and type its replacement.", "点击一个词元，输入替换它的词元。"],
  swapWith: ["instead of “{0}”", "替换“{0}”"],
  swapDo: ["Swap", "替换"],
  unreachable: ["the server does not respond; is `qkv explore` still running?", "服务器没有响应；`qkv explore` 还在运行吗？"],
  notRecorded: ["not recorded in this file; run `qkv explore` to see it", "此文件没有记录这一项；请运行 `qkv explore` 查看"],
  noAttention: ["this model has no attention weights", "此模型没有注意力权重"],
  swapOne: ["“{0}” is {1} tokens; type a single token", "“{0}”是 {1} 个词元；请输入单个词元"],
  logitLens: ["Logit lens", "Logit lens（逐层 logits）"],
  logitLensAbout: ["Top tokens of the residual stream after each layer, through the final norm and lm_head.",
    "每层之后的残差流经最终归一化与 lm_head：概率最高的词元。"],
  beam: ["Beam search", "束搜索"],
  beamAbout: ["All candidates of the search; the best path is highlighted. Numbers: log-probability of the token.",
    "搜索的全部候选；最佳路径突出显示。数字：该词元的对数概率。"],
  beamSize: ["beam size", "束宽"],
  lengthPenalty: ["length penalty", "长度惩罚"],
  score: ["score", "得分"],
  hypotheses: ["Finished hypotheses, best first", "完成的假设，最优在前"],
  positions: ["Position encoding", "位置编码"],
  position: ["position", "位置"],
  component: ["component", "分量"],
  projection: ["Embedding space (PCA)", "词嵌入空间（PCA）"],
  projectionAbout: ["Tokens and nearest neighbors on the first two principal components ({0} of the variance).",
    "词元及其最近邻在前两个主成分上的投影（解释 {0} 的方差）。"],
  neighbors: ["Nearest to “{0}” by cosine similarity", "与“{0}”余弦相似度最高"],
  nearest: ["Nearest sentences", "最近的句子"],
  nearestAbout: ["One sentence per line; sorted by cosine similarity ({0} pooling).", "每行一个句子；按余弦相似度排序（{0} 池化）。"],
  measure: ["Compute", "计算"],
  noSentences: ["no sentences yet: type some, one per line", "还没有句子：请每行输入一个"],
  partial: ["part of a character", "一个字符的一部分"],
  unexpected: ["unexpected error: {0}", "意外错误：{0}"],
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

// A text in both languages, for errors that are shown later.
export function both(key, ...values) {
  const [en, zh] = WORDS[key].map((words) => words.replace(/\{(\d)\}/g, (_, index) => values[index]));
  return { en, zh };
}

// t("stepOf", 3, 87) -> "step 3 of 87"
export function t(key, ...values) {
  return both(key, ...values)[language];
}

// A text that the server gives in both languages.
export function localized(text) {
  return typeof text === "object" && text !== null ? text[language] ?? text.en : String(text ?? "");
}
