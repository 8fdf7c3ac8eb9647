/* The llama family: Llama 1 to 3, Mistral, SmolLM, TinyLlama and what is shaped like them.
 *
 *     x = embed(tokens)
 *     each layer:  x += attention(rms_norm(x));  x += down(silu(gate(n)) * up(n)), n = rms_norm(x)
 *     logits = output(rms_norm(x)), of the wanted tokens only; output is the embedding where the file has none
 *
 * Of the last layer only the wanted tokens go beyond attention. */
#include "models/model_internal.h"

static const weight_row rows[] = {
    {W_TOKEN_EMBD, {DIM_EMBD, DIM_VOCAB}, NEED_ALWAYS, false},
    {W_OUTPUT_NORM, {DIM_EMBD}, NEED_ALWAYS, true},
    {W_OUTPUT, {DIM_EMBD, DIM_VOCAB}, NEED_OPTIONAL, false},
    {W_ROPE_FREQS, {DIM_ROPE_PAIRS}, NEED_OPTIONAL, true},
    {W_ATTN_NORM, {DIM_EMBD}, NEED_ALWAYS, true},
    {W_ATTN_Q, {DIM_EMBD, DIM_Q}, NEED_ALWAYS, false},
    {W_ATTN_Q_BIAS, {DIM_Q}, NEED_OPTIONAL, true},
    {W_ATTN_K, {DIM_EMBD, DIM_K}, NEED_ALWAYS, false},
    {W_ATTN_K_BIAS, {DIM_K}, NEED_OPTIONAL, true},
    {W_ATTN_V, {DIM_EMBD, DIM_V}, NEED_ALWAYS, false},
    {W_ATTN_V_BIAS, {DIM_V}, NEED_OPTIONAL, true},
    {W_ATTN_OUT, {DIM_ATTN, DIM_EMBD}, NEED_ALWAYS, false},
    {W_ATTN_OUT_BIAS, {DIM_EMBD}, NEED_OPTIONAL, true},
    {W_FFN_NORM, {DIM_EMBD}, NEED_ALWAYS, true},
    {W_FFN_GATE, {DIM_EMBD, DIM_FF}, NEED_ALWAYS, false},
    {W_FFN_GATE_BIAS, {DIM_FF}, NEED_OPTIONAL, true},
    {W_FFN_UP, {DIM_EMBD, DIM_FF}, NEED_ALWAYS, false},
    {W_FFN_UP_BIAS, {DIM_FF}, NEED_OPTIONAL, true},
    {W_FFN_DOWN, {DIM_FF, DIM_EMBD}, NEED_ALWAYS, false},
    {W_FFN_DOWN_BIAS, {DIM_EMBD}, NEED_OPTIONAL, true},
};

static sheaf_tensor *norm(graph_build *b, sheaf_tensor *x, model_weight w, const char *name, int il) {
    return layer_named(sheaf_rms_norm(b->arena, x, layer_weight(b, il, w), b->hp->rms_eps), name, il);
}

static sheaf_tensor *layer(graph_build *b, int il, sheaf_tensor *x) {
    bool last = il == b->hp->n_layer - 1;
    sheaf_tensor *y = layer_attention(b, il, norm(b, x, W_ATTN_NORM, "attn_norm", il), last);
    if (last) x = layer_select(b, x);
    x = layer_named(sheaf_add(b->arena, y, x), "ffn_inp", il);
    y = layer_ffn_swiglu(b, il, norm(b, x, W_FFN_NORM, "ffn_norm", il));
    return layer_named(sheaf_add(b->arena, y, x), "l_out", il);
}

static void build(graph_build *b) {
    sheaf_tensor *x = layer_embed(b);
    for (int il = 0; il < b->hp->n_layer; il++) x = layer(b, il, x);
    x = norm(b, x, W_OUTPUT_NORM, "result_norm", -1);
    b->logits = layer_matmul(b, -1, b->hp->tied ? W_TOKEN_EMBD : W_OUTPUT, W_COUNT, x);
    layer_named(b->logits, "result_output", -1);
}

const model_arch model_llama = {"llama", SHEAF_ROPE_NORM, rows, (int)(sizeof rows / sizeof *rows), build};
