"""What each kind of step is called and what it does, in one sentence, in English and Chinese.

In: nothing. Out: WORDS, kind -> (title, sentence, formula, the textbook code that does the same). Formulas that depend
on the model's choices are chosen in kinds.py. Told in docs/explore.md, "The walk".
"""

from typing import NamedTuple


class Both(NamedTuple):
    """The same in English and Chinese."""

    en: str
    zh: str


class Words(NamedTuple):
    """A kind of step."""

    title: Both
    text: Both
    formula: str
    code: str | None = None  # module of qkv.textbook : name in it


WORDS: dict[str, Words] = {
    "tokens": Words(Both("Tokens", "词元"),
        Both("The text is cut into pieces of the vocabulary, longer ones where merges were learned.",
             "文本被切成词表中的片段；学过合并的地方片段较长。"), "text → pieces", "bpe:apply"),
    "ids": Words(Both("Ids", "编号"),
        Both("Each piece is replaced by its number in the vocabulary.", "每个片段换成它在词表中的编号。"),
        "id = vocabulary[piece]"),
    "embedding": Words(Both("Embedding", "词嵌入"),
        Both("Each id looks up its own trained vector.", "每个编号查出自己那条训练得到的向量。"), "x = E[id]", "transformer:enter"),
    "scaled": Words(Both("Scaled embedding", "放大的词嵌入"),
        Both("The vectors are multiplied by √d_model, so that they outweigh the positions added next.",
             "向量乘以 √d_model，使其大于接下来加上的位置。"), "x = E[id] · √d_model", "transformer:enter"),
    "type": Words(Both("Token type", "句段类型"),
        Both("A vector for the first or the second sentence is added.", "加上表示第一句或第二句的向量。"), "x = x + T[0]"),
    "positions": Words(Both("Positions", "位置"),
        Both("Without this, the model would see a bag of words: each place adds its own vector.",
             "没有这一步，模型看到的只是一袋词：每个位置加上自己的向量。"), "x = x + P", None),
    "embed_norm": Words(Both("Norm of the embeddings", "嵌入的归一化"),
        Both("The vectors are brought to a steady size before the first layer.", "进入第一层之前，先把向量调到稳定的大小。"), "norm(x)"),
    "norm": Words(Both("Norm", "归一化"),
        Both("Each token's vector is brought to a steady size and stretched by a trained gain.",
             "每个词元的向量被调到稳定的大小，再乘以训练得到的增益。"), "norm(x)"),
    "q": Words(Both("Queries", "查询 q"),
        Both("What each token asks for.", "每个词元在问什么。"), "q = x W_q", "attention:MultiHeadAttention.forward"),
    "k": Words(Both("Keys", "键 k"),
        Both("What each token offers to be found by.", "每个词元凭什么被找到。"), "k = x W_k", "attention:MultiHeadAttention.forward"),
    "v": Words(Both("Values", "值 v"),
        Both("What each token gives when it is found.", "每个词元被找到时给出什么。"), "v = x W_v", "attention:MultiHeadAttention.forward"),
    "latent": Words(Both("Latent", "潜向量"),
        Both("Keys and values are folded into one short vector per token, and only that one is cached.",
             "键和值被压进每个词元的一条短向量，只缓存这一条。"), "c = norm(x W_down)"),
    "unfold": Words(Both("Unfolded keys and values", "展开的键和值"),
        Both("The keys and values of every head are unfolded from the latent.", "从潜向量展开每个头的键和值。"), "k, v = c W_up"),
    "split": Words(Both("Split into heads", "分成多头"),
        Both("The vectors are cut into heads, each of which looks for something else.",
             "向量被切成多个头，每个头各看各的。"), "(length, heads · d_head) → (heads, length, d_head)", "attention:split_heads"),
    "qk_norm": Words(Both("Norm of queries and keys", "查询和键的归一化"),
        Both("Each head's queries and keys are brought to a steady size.", "每个头的查询和键被调到稳定的大小。"), "q = norm(q), k = norm(k)",
        "norms:RMSNorm"),
    "rotation": Words(Both("Rotation", "旋转"),
        Both("Queries and keys are turned by an angle that grows with their place, so scores know distances.",
             "查询和键按所在位置旋转一个角度，于是得分知道距离。"), "(a, b) → (a cos θ − b sin θ, b cos θ + a sin θ), θ = place · base^(−2i/d)",
        "positions:rotate_halves"),
    "scores": Words(Both("Scores", "得分"),
        Both("How well each query fits each key: their dot product, divided by √d_head.",
             "每个查询与每个键有多合适：点积除以 √d_head。"), "scores = q kᵀ / √d_head", "attention:scaled_dot_product_attention"),
    "mask": Words(Both("Mask", "掩码"),
        Both("What may not be seen gets −∞, which the softmax turns into 0.", "不许看的位置变成 −∞，经 softmax 后为 0。"),
        "scores[hidden] = −∞", "masks:look_ahead_mask"),
    "softmax": Words(Both("Softmax: the attention weights", "Softmax：注意力权重"),
        Both("Scores become shares that sum to one in each row: where each token looks.",
             "得分变成每行和为一的份额：每个词元看向哪里。"), "weights = softmax(scores)", "attention:softmax"),
    "mixed": Words(Both("Weighted values", "加权的值"),
        Both("Each token gathers the values of the others, by these shares.", "每个词元按这些份额收集其他词元的值。"),
        "mixed = weights · v", "attention:scaled_dot_product_attention"),
    "joined": Words(Both("Heads joined", "合并多头"),
        Both("What the heads have gathered stands side by side again.", "各头收集到的内容重新并排放好。"), "Concat(head₁ … head_h)",
        "attention:join_heads"),
    "output": Words(Both("Output map", "输出映射"),
        Both("One map mixes what the heads have found, back to the width of the stream.",
             "一个映射把各头所得混合起来，回到主流的宽度。"), "joined · W_o", "attention:MultiHeadAttention.forward"),
    "residual": Words(Both("Residual", "残差"),
        Both("The result is added to the stream, which carries everything so far.", "结果加到主流上，主流保留着此前的一切。"),
        "x = x + branch", None),
    "mixer": Words(Both("Mixing tokens", "混合词元"),
        Both("Here something else than attention lets tokens know of each other.", "这里用注意力之外的办法让词元互通消息。"), "mix(x)"),
    "gate": Words(Both("Gate", "门"),
        Both("A wide vector that decides how much of the other one passes.", "一条宽向量，决定另一条能通过多少。"), "gate = x W_gate",
        "feed_forward:GatedFeedForward"),
    "up": Words(Both("Up: the wide layer", "升维"),
        Both("Each token alone goes up to a wider space.", "每个词元各自升到更宽的空间。"), "up = x W_up"),
    "activation": Words(Both("The bend", "激活"),
        Both("What is not a straight line: here the layer decides.", "不是直线的地方：这一层在此作出取舍。"), "act(up)"),
    "down": Words(Both("Down", "降维"),
        Both("Back to the width of the stream.", "回到主流的宽度。"), "act(up) · W_down"),
    "router": Words(Both("Router: who answers", "路由：谁来回答"),
        Both("Each token chooses the few experts of the highest score.", "每个词元选出得分最高的几位专家。"),
        "p = softmax(x W_router), top few", "feed_forward:MixtureOfExperts"),
    "experts": Words(Both("Experts", "专家"),
        Both("The chosen experts' answers, weighted and summed.", "被选专家的回答，加权求和。"), "Σ p_e · FFN_e(x)",
        "feed_forward:MixtureOfExperts"),
    "shared": Words(Both("Shared expert", "共享专家"),
        Both("One expert answers every token.", "有一位专家回答每个词元。"), "FFN_shared(x)", "feed_forward:MixtureOfExperts"),
    "final_norm": Words(Both("Final norm", "最后的归一化"),
        Both("The stream after all layers is brought to a steady size.", "所有层之后，主流被调到稳定的大小。"), "norm(x)"),
    "memory": Words(Both("Memory", "记忆"),
        Both("The encoder is done: a vector in context for each source token, which the decoder will look at.",
             "编码完成：每个源词元有了结合上下文的向量，供解码器查看。"), "memory = encoder(x)", "transformer:Encoder"),
    "vectors": Words(Both("Token vectors", "词元向量"),
        Both("After all layers: a vector in context for each token.", "所有层之后：每个词元都有结合上下文的向量。"), "encoder(x)",
        "transformer:EncoderOnly.forward"),
    "logits": Words(Both("Logits", "logits"),
        Both("A score for each token of the vocabulary: how well it would go on from here.",
             "词表中每个词元的得分：作为下一个有多合适。"), "logits = x W_headᵀ", "transformer:Transformer.logits"),
    "next": Words(Both("The next token", "下一个词元"),
        Both("The softmax of the logits gives probabilities; the likeliest ones are shown.",
             "logits 经 softmax 得到概率；这里显示最可能的几个。"), "p = softmax(logits)", "sampling:draw"),
    "pooling": Words(Both("Pooling", "池化"),
        Both("The token vectors become one vector for the sentence.", "词元向量合成一条句向量。"), "s = mean(x)", "pooling:mean_pooling"),
    "sentence": Words(Both("Sentence vector", "句向量"),
        Both("Brought to length one, so that the dot product of two sentences is their cosine.",
             "长度归一，两句的点积就是余弦。"), "s / |s|"),
}
