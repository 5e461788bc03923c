"""Glossary: the operations and architectures of a model. Names are paths inside qkv."""

from qkv.checkpoint.glossary.entry import Entry
from qkv.messages import N_

OPERATIONS = (
    Entry(
        N_("scaled dot-product attention"),
        N_("softmax(Q K^T / sqrt(d_k) + mask) V"),
        name="model.attention.SdpaCore",
        textbook="attention.scaled_dot_product_attention",
    ),
    Entry(
        N_("softmax"),
        N_("e^x_i / sum_j e^x_j: scores -> probabilities"),
        name="model.attention.EagerCore",
        textbook="attention.softmax",
    ),
    Entry(
        N_("self-attention"),
        N_("queries, keys and values come from the same sequence"),
        name="model.attention.GroupedQueryAttention",
        textbook="attention.SingleHeadAttention",
    ),
    Entry(
        N_("multi-head attention (MHA)"),
        N_("attention in several heads in parallel, joined by W_O"),
        name="model.attention.GroupedQueryAttention",
        textbook="attention.MultiHeadAttention",
    ),
    Entry(
        N_("grouped-query attention (GQA)"),
        N_("groups of query heads share one key/value head"),
        name="model.attention.GroupedQueryAttention",
        textbook="attention.MultiHeadAttention",
    ),
    Entry(
        N_("multi-head latent attention (MLA)"),
        N_("keys and values of all heads are projected from one cached latent per token"),
        name="model.latent.MultiHeadLatentAttention",
    ),
    Entry(
        N_("cross-attention"),
        N_("queries from the decoder, keys and values from the encoder's memory"),
        name="model.attention.CrossAttention",
        textbook="transformer.DecoderLayer",
    ),
    Entry(
        N_("sliding-window attention"),
        N_("a token attends to the last `window` positions only"),
        name="model.spec.Attention.window",
        textbook="masks.window_mask",
    ),
    Entry(
        N_("feed-forward network (FFN, MLP)"),
        N_("down(act(up(x))), applied to each position"),
        name="model.feed_forward.DenseFeedForward",
        textbook="feed_forward.FeedForward",
    ),
    Entry(
        N_("gated linear unit (SwiGLU, GeGLU)"),
        N_("down(act(gate(x)) * up(x)); SwiGLU with SiLU, GeGLU with GELU"),
        name="model.feed_forward.GatedFeedForward",
        textbook="feed_forward.GatedFeedForward",
    ),
    Entry(
        N_("mixture of experts (MoE)"),
        N_("a router sends each token to its top-k feed-forward experts"),
        name="model.experts.ExpertFeedForward",
        textbook="feed_forward.MixtureOfExperts",
    ),
    Entry(
        N_("activation function"),
        N_("nonlinearity of a feed-forward network: ReLU, GELU, SiLU"),
        name="model.feed_forward.ACTIVATIONS",
        textbook="feed_forward.gelu",
    ),
    Entry(
        N_("residual connection"),
        N_("x + sublayer(x)"),
        name="model.block.PreNorm",
        textbook="decoder_only.PreNorm",
    ),
    Entry(
        N_("pre-norm"),
        N_("x + sublayer(norm(x)): GPT-2, Llama"),
        name="model.block.PreNorm",
        textbook="decoder_only.PreNorm",
    ),
    Entry(
        N_("post-norm"),
        N_("norm(x + sublayer(x)): the paper of 2017, BERT, Marian"),
        name="model.block.PostNorm",
        textbook="transformer.PostNorm",
    ),
    Entry(
        N_("layer normalization (LayerNorm)"),
        N_("(x - mean) / sqrt(variance + eps) * gain + bias"),
        name="model.norms.make_norm",
        textbook="norms.LayerNorm",
    ),
    Entry(
        N_("RMSNorm"),
        N_("x / sqrt(mean(x^2) + eps) * gain"),
        name="model.norms.RMSNorm",
        textbook="norms.RMSNorm",
    ),
    Entry(
        N_("sinusoidal position encoding"),
        N_("fixed sines and cosines of the position, added to the embeddings"),
        symbol="PE",
        name="model.positions.SinusoidalPositions",
        textbook="positions.sinusoidal",
    ),
    Entry(
        N_("rotary position embedding (RoPE)"),
        N_("rotates queries and keys by angles proportional to their positions"),
        symbol="R",
        name="model.positions.RotaryPositions",
        textbook="positions.rotate_halves",
    ),
    Entry(
        N_("weight tying"),
        N_("the language-model head uses the token embedding as its matrix"),
        name="model.spec.LmHead.tied",
        textbook="transformer.Transformer",
    ),
    Entry(
        N_("dropout"),
        N_("in training, sets random values to zero and scales the others up"),
        name="model.dropout.Dropout",
    ),
    Entry(
        N_("pooling"),
        N_("hidden states of a text -> one vector: first token, mean or maximum"),
        name="model.pooling.pool",
        textbook="pooling.mean_pooling",
    ),
    Entry(
        N_("encoder-decoder"),
        N_("an encoder for the source and a decoder with cross-attention for the target"),
        name="model.presets.encoder_decoder",
        textbook="transformer.Transformer",
    ),
    Entry(
        N_("decoder-only"),
        N_("one causal stack that predicts the next token: GPT, Llama"),
        name="model.presets.decoder_only",
        textbook="decoder_only.DecoderOnly",
    ),
    Entry(
        N_("encoder-only"),
        N_("one stack without a causal mask: BERT"),
        name="model.presets.encoder_only",
        textbook="transformer.EncoderOnly",
    ),
)
