"""Glossary: tokenization, training, inference and evaluation. Names are paths inside qkv."""

from qkv.checkpoint.glossary.entry import Entry
from qkv.messages import N_

TOKENIZATION = (
    Entry(
        N_("tokenization"),
        N_("text -> token ids"),
        name="text.tokenizer.Tokenizer.encode",
        textbook="bpe.apply",
    ),
    Entry(N_("vocabulary"), N_("all tokens, each with its id"), name="text.tokenizer.Tokenizer"),
    Entry(
        N_("byte-pair encoding (BPE)"),
        N_("a vocabulary by repeatedly merging the most frequent pair of neighboring tokens"),
        name="text.train_tokenizer.train_tokenizer",
        textbook="bpe.train",
    ),
    Entry(
        N_("byte-level BPE"),
        N_("BPE on the bytes of the text: every text can be encoded"),
        name="text.train_tokenizer.train_tokenizer",
        textbook="bpe.byte_chars",
    ),
    Entry(
        N_("BPE-dropout"),
        N_("in training, skips random merges so that a word has several tokenizations"),
        name="train.recipe.TranslateRecipe.bpe_dropout",
    ),
    Entry(
        N_("special tokens"),
        N_("tokens that are not text: bos, eos, pad, cls, sep, mask, unk"),
        name="text.special_tokens.SpecialTokenIds",
    ),
)
TRAINING = (
    Entry(
        N_("cross-entropy"),
        N_("-log p of the target token, averaged over the tokens that are not padding"),
        symbol="L",
        name="model.transformer.Transformer.loss",
        textbook="loss.cross_entropy",
    ),
    Entry(
        N_("teacher forcing"),
        N_("in training, the decoder's input is the reference shifted right by one token"),
        name="data.batches.pair_batch",
    ),
    Entry(
        N_("label smoothing"),
        N_("probability mass spread uniformly over the vocabulary"),
        symbol="ε",
        name="train.recipe.TranslateRecipe.label_smoothing",
        textbook="loss.smooth_labels",
    ),
    Entry(
        N_("masked language modeling (MLM)"),
        N_("predict the tokens that were replaced by a mask token"),
        name="train.masking.Masking",
    ),
    Entry(
        N_("contrastive loss (InfoNCE)"),
        N_("a text must be nearer to its partner than to the in-batch negatives"),
        name="train.contrastive.contrastive_loss",
        textbook="loss.contrastive",
    ),
    Entry(
        N_("in-batch negatives"),
        N_("the other texts of a batch, from which a text's partner must be distinguished"),
        name="train.contrastive.group_labels",
        textbook="loss.contrastive",
    ),
    Entry(
        N_("R-Drop"),
        N_("two passes with different dropout, and the KL divergence of their predictions"),
        name="train.recipe.TranslateRecipe.r_drop",
        textbook="loss.r_drop_loss",
    ),
    Entry(
        N_("load-balancing loss"),
        N_("mixture of experts: penalizes an uneven use of the experts"),
        name="train.recipe.Recipe.router_aux_loss_coef",
        textbook="feed_forward.load_balancing_loss",
    ),
    Entry(
        N_("learning-rate warmup"),
        N_("the learning rate grows linearly over the first steps"),
        name="train.recipe.Recipe.warmup_steps",
        textbook="schedule.paper",
    ),
    Entry(
        N_("learning-rate schedule"),
        N_("learning rate by step: inverse square root, cosine, warmup-stable-decay"),
        name="train.schedule.lr_factor",
        textbook="schedule.cosine",
    ),
    Entry(
        N_("gradient accumulation"),
        N_("sums the gradients of several micro-batches before each optimizer step"),
        name="train.recipe.Recipe.gradient_accumulation_steps",
    ),
    Entry(
        N_("gradient clipping"),
        N_("scales the gradient down to a maximum norm"),
        name="train.recipe.Recipe.max_grad_norm",
    ),
    Entry(
        N_("exponential moving average (EMA)"),
        N_("a running average of the weights, used for evaluation"),
        name="train.average.Ema",
    ),
    Entry(
        N_("early stopping"),
        N_("ends training after several validations without an improvement"),
        name="train.recipe.Recipe.patience",
    ),
    Entry(
        N_("fine-tuning"),
        N_("training that starts from the weights of another model"),
        name="train.recipe.GenerateRecipe.init_from",
    ),
)
INFERENCE = (
    Entry(
        N_("prefill"),
        N_("processes all tokens of the prompt in one pass and fills the KV cache"),
        name="engine.stepper.Stepper.prefill",
    ),
    Entry(
        N_("decode"),
        N_("produces one token per step from the KV cache"),
        name="engine.stepper.Stepper.step",
    ),
    Entry(
        N_("greedy decoding"),
        N_("takes the most probable token at each step"),
        name="generate.decode.greedy",
    ),
    Entry(
        N_("beam search"),
        N_("keeps the best hypotheses at each step"),
        name="generate.beam.beam_search",
        textbook="beam.beam_search",
    ),
    Entry(
        N_("hypothesis"),
        N_("a partial or finished output of beam search, with its log-probability"),
        name="generate.backend.Hypothesis",
        textbook="beam.Hypothesis",
    ),
    Entry(
        N_("length penalty"),
        N_("divides the score of a hypothesis by ((5 + length) / 6)^alpha"),
        symbol="α",
        name="generate.config.TranslationConfig.length_penalty",
        textbook="beam.length_penalty",
    ),
    Entry(
        N_("sampling"),
        N_("draws the next token from the predicted probabilities"),
        name="generate.sampling.sample",
        textbook="sampling.draw",
    ),
    Entry(
        N_("temperature"),
        N_("divides the logits; below 1: more deterministic, above 1: more diverse"),
        symbol="T",
        name="generate.sampling.apply_temperature",
        textbook="sampling.temperature",
    ),
    Entry(
        N_("top-k sampling"),
        N_("samples from the k most probable tokens"),
        symbol="k",
        name="generate.sampling.top_k",
        textbook="sampling.top_k",
    ),
    Entry(
        N_("top-p (nucleus) sampling"),
        N_("samples from the fewest tokens whose probabilities sum to p"),
        symbol="p",
        name="generate.sampling.top_p",
        textbook="sampling.top_p",
    ),
    Entry(
        N_("min-p sampling"),
        N_("samples from the tokens with probability >= p x the maximum"),
        name="generate.sampling.min_p",
        textbook="sampling.min_p",
    ),
    Entry(
        N_("repetition penalty"),
        N_("lowers the logits of tokens that have occurred"),
        name="generate.sampling.apply_repetition_penalty",
        textbook="sampling.repetition_penalty",
    ),
    Entry(
        N_("quantization (int8)"),
        N_("weights as 8-bit integers with a scale per row"),
        name="engine.int8.int8_product",
    ),
    Entry(
        N_("speculative decoding"),
        N_("a fast draft proposes tokens, the model verifies them in one pass"),
        name="engine.speculative.SpeculativeDecoding",
        textbook="speculative.speculative_decode",
    ),
    Entry(
        N_("logit lens"),
        N_("the head applied to the hidden state of an earlier layer"),
        name="explore.predictions.logit_lens",
    ),
    Entry(
        N_("ablation"),
        N_("sets the output of a head or sublayer to zero to measure its effect"),
        name="explore.edits.edited",
    ),
)
EVALUATION = (
    Entry(
        N_("perplexity"),
        N_("e^cross-entropy: the number of equally likely tokens"),
        symbol="PPL",
        name="evaluate.perplexity.Perplexity",
        textbook="loss.perplexity",
    ),
    Entry(
        N_("BLEU"),
        N_("n-gram precision of translations with a brevity penalty"),
        name="evaluate.scores.score",
        textbook="bleu.bleu",
    ),
    Entry(
        N_("chrF"),
        N_("F-score of the character n-grams of translations"),
        name="evaluate.scores.score",
    ),
    Entry(
        N_("alignment error rate (AER)"),
        N_("disagreement of predicted and reference word alignments"),
        name="evaluate.alignment_error.alignment_error_rate",
        textbook="alignment.alignment_error_rate",
    ),
    Entry(
        N_("recall at 1"),
        N_("fraction of texts whose nearest neighbor is their partner"),
        name="train.embedding.recall_at_1",
    ),
)
