"""Texts for each kind of step: title, explanation, formula and textbook code.

kinds.py replaces formulas that depend on the model. See docs/guides/inspect.md.
"""

from typing import NamedTuple

from qkv.messages import Both, both


class StepText(NamedTuple):
    """Title, explanation and formula of a kind of step."""

    title: Both
    text: Both
    formula: str
    code: str | None = None  # "module:name" in qkv.textbook


STEP_TEXTS: dict[str, StepText] = {
    "tokens": StepText(
        both("Tokens"),
        both("The tokenizer splits the text into tokens of the vocabulary."),
        "text → tokens",
        "bpe:apply",
    ),
    "ids": StepText(
        both("Token ids"),
        both("Each token is replaced by its id in the vocabulary."),
        "id = vocabulary[token]",
    ),
    "embedding": StepText(
        both("Embedding"),
        both("Each id selects its row of the embedding table."),
        "x = E[id]",
        "transformer:embed_ids",
    ),
    "scaled": StepText(
        both("Scaled embedding"),
        both("The embeddings are multiplied by √d_model before position encodings are added."),
        "x = E[id] · √d_model",
        "transformer:embed_ids",
    ),
    "type": StepText(
        both("Token type embedding"),
        both("The embedding of the segment (first or second sentence) is added."),
        "x = x + T[0]",
    ),
    "positions": StepText(
        both("Position encoding"),
        both(
            "The position encoding is added; without it, attention ignores the order of the tokens."
        ),
        "x = x + P",
    ),
    "embed_norm": StepText(
        both("Norm of the embeddings"),
        both("The embeddings are normalized before the first layer."),
        "norm(x)",
    ),
    "norm": StepText(
        both("Norm"),
        both("Each hidden state is normalized and multiplied by trained weights."),
        "norm(x)",
    ),
    "q": StepText(
        both("Queries"),
        both("Linear projection of each hidden state; a query is compared with all keys."),
        "q = x W_q",
        "attention:MultiHeadAttention.forward",
    ),
    "k": StepText(
        both("Keys"),
        both("Linear projection of each hidden state; queries are compared with the keys."),
        "k = x W_k",
        "attention:MultiHeadAttention.forward",
    ),
    "v": StepText(
        both("Values"),
        both(
            "Linear projection of each hidden state; attention returns weighted sums of the values."
        ),
        "v = x W_v",
        "attention:MultiHeadAttention.forward",
    ),
    "latent": StepText(
        both("Latent vector"),
        both(
            "Keys and values are compressed into one latent vector per token, which the KV"
            " cache holds."
        ),
        "c = norm(x W_down)",
    ),
    "up_projection": StepText(
        both("Up-projected keys and values"),
        both("The keys and values of every head are computed from the latent vector."),
        "k, v = c W_up",
    ),
    "split": StepText(
        both("Split into heads"),
        both("The projections are split into heads, which attend independently."),
        "(length, heads · d_head) → (heads, length, d_head)",
        "attention:split_heads",
    ),
    "qk_norm": StepText(
        both("Norm of queries and keys"),
        both("The queries and keys of each head are normalized (QK-norm)."),
        "q = norm(q), k = norm(k)",
        "norms:RMSNorm",
    ),
    "rotation": StepText(
        both("Rotary position embedding (RoPE)"),
        both(
            "Queries and keys are rotated by angles proportional to their position, so that"
            " scores depend on distances."
        ),
        "(a, b) → (a cos α − b sin α, b cos α + a sin α), α = position · theta^(−2i/d)",
        "positions:rotate_halves",
    ),
    "scores": StepText(
        both("Attention scores"),
        both("Dot product of each query with each key, divided by √d_head."),
        "scores = q kᵀ / √d_head",
        "attention:scaled_dot_product_attention",
    ),
    "alibi": StepText(
        both("ALiBi: linear bias"),
        both("Each score is lowered by the slope of the head times the distance of the tokens."),
        "scores = scores − slope · |position of query − position of key|",
        "positions:alibi_bias",
    ),
    "mask": StepText(
        both("Attention mask"),
        both("Scores of masked keys are set to −∞; their softmax is 0."),
        "scores[¬mask] = −∞",
        "masks:causal_mask",
    ),
    "softmax": StepText(
        both("Softmax: attention weights"),
        both("The softmax turns each row of scores into attention weights that sum to 1."),
        "weights = softmax(scores)",
        "attention:softmax",
    ),
    "mixed": StepText(
        both("Weighted sum of values"),
        both("Each query receives the sum of the values, weighted by its attention weights."),
        "mixed = weights · v",
        "attention:scaled_dot_product_attention",
    ),
    "joined": StepText(
        both("Concatenated heads"),
        both("The outputs of all heads are concatenated."),
        "Concat(head₁ … head_h)",
        "attention:join_heads",
    ),
    "output": StepText(
        both("Output projection"),
        both("A linear projection maps the concatenated heads back to d_model."),
        "joined · W_o",
        "attention:MultiHeadAttention.forward",
    ),
    "residual": StepText(
        both("Residual connection"),
        both("The output of the sublayer is added to the residual stream."),
        "x = x + branch",
    ),
    "mixer": StepText(
        both("Token mixing"),
        both(
            "A layer without attention weights mixes the tokens (recurrence, convolution,"
            " pooling or MLP)."
        ),
        "mix(x)",
    ),
    "gate": StepText(
        both("Gate projection"),
        both(
            "A projection to d_ff; after the activation function it multiplies the up projection."
        ),
        "gate = x W_gate",
        "feed_forward:GatedFeedForward",
    ),
    "up": StepText(
        both("Up projection"),
        both("A projection of each hidden state to d_ff dimensions."),
        "up = x W_up",
    ),
    "activation": StepText(
        both("Activation function"),
        both("The nonlinearity of the feed-forward network."),
        "act(up)",
    ),
    "down": StepText(
        both("Down projection"),
        both("A projection back to d_model dimensions."),
        "act(up) · W_down",
    ),
    "router": StepText(
        both("Router: top-k experts"),
        both("The router scores all experts; each token uses the k of the highest scores."),
        "p = softmax(x W_router), top-k",
        "feed_forward:MixtureOfExperts",
    ),
    "experts": StepText(
        both("Mixture of experts"),
        both("Weighted sum of the outputs of the selected experts."),
        "Σ p_e · FFN_e(x)",
        "feed_forward:MixtureOfExperts",
    ),
    "shared": StepText(
        both("Shared expert"),
        both("An expert that processes every token."),
        "FFN_shared(x)",
        "feed_forward:MixtureOfExperts",
    ),
    "final_norm": StepText(
        both("Final norm"),
        both("The residual stream after the last layer is normalized."),
        "norm(x)",
    ),
    "memory": StepText(
        both("Encoder output (memory)"),
        both("The final hidden states of the source, which cross-attention attends to."),
        "memory = encoder(x)",
        "transformer:Encoder",
    ),
    "vectors": StepText(
        both("Final hidden states"),
        both("The hidden state of each token after the last layer."),
        "encoder(x)",
        "transformer:EncoderOnly.forward",
    ),
    "logits": StepText(
        both("Logits"),
        both("A score for each token of the vocabulary as the next token."),
        "logits = x W_headᵀ",
        "transformer:Transformer.logits",
    ),
    "next": StepText(
        both("Next token"),
        both("The softmax of the logits gives probabilities; the most probable tokens are shown."),
        "p = softmax(logits)",
        "sampling:draw",
    ),
    "pooling": StepText(
        both("Pooling"),
        both("The hidden states of all tokens are pooled into one vector."),
        "s = mean(x)",
        "pooling:mean_pooling",
    ),
    "sentence": StepText(
        both("Sentence vector"),
        both(
            "The pooled vector is normalized to length 1, so that a dot product is a cosine"
            " similarity."
        ),
        "s / |s|",
    ),
}
