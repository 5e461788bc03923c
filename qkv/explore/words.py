"""What each kind of step is called and what it does, in one sentence, in English and Chinese.

In: nothing. Out: WORDS, kind -> (title, sentence, formula, the textbook code that does the same). Formulas that depend
on the model's choices are chosen in kinds.py. Told in docs/explore.md, "The walk".
"""

from typing import NamedTuple

from qkv.messages import Both, both


class Words(NamedTuple):
    """A kind of step."""

    title: Both
    text: Both
    formula: str
    code: str | None = None  # module of qkv.textbook : name in it


WORDS: dict[str, Words] = {
    "tokens": Words(
        both("Tokens"),
        both(
            "The text is cut into pieces of the vocabulary, longer ones where merges were learned."
        ),
        "text → pieces",
        "bpe:apply",
    ),
    "ids": Words(
        both("Ids"),
        both("Each piece is replaced by its number in the vocabulary."),
        "id = vocabulary[piece]",
    ),
    "embedding": Words(
        both("Embedding"),
        both("Each id looks up its own trained vector."),
        "x = E[id]",
        "transformer:enter",
    ),
    "scaled": Words(
        both("Scaled embedding"),
        both(
            "The vectors are multiplied by √d_model, so that they outweigh the positions added next."
        ),
        "x = E[id] · √d_model",
        "transformer:enter",
    ),
    "type": Words(
        both("Token type"),
        both("A vector for the first or the second sentence is added."),
        "x = x + T[0]",
    ),
    "positions": Words(
        both("Positions"),
        both("Without this, the model would see a bag of words: each place adds its own vector."),
        "x = x + P",
        None,
    ),
    "embed_norm": Words(
        both("Norm of the embeddings"),
        both("The vectors are brought to a steady size before the first layer."),
        "norm(x)",
    ),
    "norm": Words(
        both("Norm"),
        both("Each token's vector is brought to a steady size and stretched by a trained gain."),
        "norm(x)",
    ),
    "q": Words(
        both("Queries"),
        both("What each token asks for."),
        "q = x W_q",
        "attention:MultiHeadAttention.forward",
    ),
    "k": Words(
        both("Keys"),
        both("What each token offers to be found by."),
        "k = x W_k",
        "attention:MultiHeadAttention.forward",
    ),
    "v": Words(
        both("Values"),
        both("What each token gives when it is found."),
        "v = x W_v",
        "attention:MultiHeadAttention.forward",
    ),
    "latent": Words(
        both("Latent"),
        both(
            "Keys and values are folded into one short vector per token, and only that one is cached."
        ),
        "c = norm(x W_down)",
    ),
    "unfold": Words(
        both("Unfolded keys and values"),
        both("The keys and values of every head are unfolded from the latent."),
        "k, v = c W_up",
    ),
    "split": Words(
        both("Split into heads"),
        both("The vectors are cut into heads, each of which looks for something else."),
        "(length, heads · d_head) → (heads, length, d_head)",
        "attention:split_heads",
    ),
    "qk_norm": Words(
        both("Norm of queries and keys"),
        both("Each head's queries and keys are brought to a steady size."),
        "q = norm(q), k = norm(k)",
        "norms:RMSNorm",
    ),
    "rotation": Words(
        both("Rotation"),
        both(
            "Queries and keys are turned by an angle that grows with their place, so scores know distances."
        ),
        "(a, b) → (a cos θ − b sin θ, b cos θ + a sin θ), θ = place · base^(−2i/d)",
        "positions:rotate_halves",
    ),
    "scores": Words(
        both("Scores"),
        both("How well each query fits each key: their dot product, divided by √d_head."),
        "scores = q kᵀ / √d_head",
        "attention:scaled_dot_product_attention",
    ),
    "mask": Words(
        both("Mask"),
        both("What may not be seen gets −∞, which the softmax turns into 0."),
        "scores[hidden] = −∞",
        "masks:look_ahead_mask",
    ),
    "softmax": Words(
        both("Softmax: the attention weights"),
        both("Scores become shares that sum to one in each row: where each token looks."),
        "weights = softmax(scores)",
        "attention:softmax",
    ),
    "mixed": Words(
        both("Weighted values"),
        both("Each token gathers the values of the others, by these shares."),
        "mixed = weights · v",
        "attention:scaled_dot_product_attention",
    ),
    "joined": Words(
        both("Heads joined"),
        both("What the heads have gathered stands side by side again."),
        "Concat(head₁ … head_h)",
        "attention:join_heads",
    ),
    "output": Words(
        both("Output map"),
        both("One map mixes what the heads have found, back to the width of the stream."),
        "joined · W_o",
        "attention:MultiHeadAttention.forward",
    ),
    "residual": Words(
        both("Residual"),
        both("The result is added to the stream, which carries everything so far."),
        "x = x + branch",
        None,
    ),
    "mixer": Words(
        both("Mixing tokens"),
        both("Here something else than attention lets tokens know of each other."),
        "mix(x)",
    ),
    "gate": Words(
        both("Gate"),
        both("A wide vector that decides how much of the other one passes."),
        "gate = x W_gate",
        "feed_forward:GatedFeedForward",
    ),
    "up": Words(
        both("Up: the wide layer"),
        both("Each token alone goes up to a wider space."),
        "up = x W_up",
    ),
    "activation": Words(
        both("The bend"), both("What is not a straight line: here the layer decides."), "act(up)"
    ),
    "down": Words(both("Down"), both("Back to the width of the stream."), "act(up) · W_down"),
    "router": Words(
        both("Router: who answers"),
        both("Each token chooses the few experts of the highest score."),
        "p = softmax(x W_router), top few",
        "feed_forward:MixtureOfExperts",
    ),
    "experts": Words(
        both("Experts"),
        both("The chosen experts' answers, weighted and summed."),
        "Σ p_e · FFN_e(x)",
        "feed_forward:MixtureOfExperts",
    ),
    "shared": Words(
        both("Shared expert"),
        both("One expert answers every token."),
        "FFN_shared(x)",
        "feed_forward:MixtureOfExperts",
    ),
    "final_norm": Words(
        both("Final norm"),
        both("The stream after all layers is brought to a steady size."),
        "norm(x)",
    ),
    "memory": Words(
        both("Memory"),
        both(
            "The encoder is done: a vector in context for each source token, which the decoder will look at."
        ),
        "memory = encoder(x)",
        "transformer:Encoder",
    ),
    "vectors": Words(
        both("Token vectors"),
        both("After all layers: a vector in context for each token."),
        "encoder(x)",
        "transformer:EncoderOnly.forward",
    ),
    "logits": Words(
        both("Logits"),
        both("A score for each token of the vocabulary: how well it would go on from here."),
        "logits = x W_headᵀ",
        "transformer:Transformer.logits",
    ),
    "next": Words(
        both("The next token"),
        both("The softmax of the logits gives probabilities; the likeliest ones are shown."),
        "p = softmax(logits)",
        "sampling:draw",
    ),
    "pooling": Words(
        both("Pooling"),
        both("The token vectors become one vector for the sentence."),
        "s = mean(x)",
        "pooling:mean_pooling",
    ),
    "sentence": Words(
        both("Sentence vector"),
        both("Brought to length one, so that the dot product of two sentences is their cosine."),
        "s / |s|",
    ),
}
