/* GPT-2: learned positions, norms that subtract the mean, biases everywhere, queries, keys and values in one weight,
 * and a feed-forward of two matrices with GELU between them.
 *
 *     x = embed(tokens) + positions
 *     each layer:  x += attention(norm(x));  x += down(gelu(up(norm(x))))
 *     logits = output(norm(x)), of the wanted tokens only; output is the embedding where the file has none */
#include "models/weight_rows.h"

static const weight_row rows[] = {
    ROWS_ENDS,
    {W_POS_EMBD, {DIM_EMBD, DIM_POSITIONS}, NEED_ALWAYS, false},
    {W_OUTPUT_NORM_BIAS, {DIM_EMBD}, NEED_ALWAYS, true},
    ROWS_PRE_NORMS,
    {W_ATTN_NORM_BIAS, {DIM_EMBD}, NEED_ALWAYS, true},
    {W_ATTN_QKV, {DIM_EMBD, DIM_QKV}, NEED_ALWAYS, false},
    {W_ATTN_QKV_BIAS, {DIM_QKV}, NEED_ALWAYS, true},
    {W_ATTN_OUT, {DIM_ATTN, DIM_EMBD}, NEED_ALWAYS, false},
    {W_ATTN_OUT_BIAS, {DIM_EMBD}, NEED_ALWAYS, true},
    {W_FFN_NORM_BIAS, {DIM_EMBD}, NEED_ALWAYS, true},
    {W_FFN_UP, {DIM_EMBD, DIM_FF}, NEED_ALWAYS, false},
    {W_FFN_UP_BIAS, {DIM_FF}, NEED_ALWAYS, true},
    {W_FFN_DOWN, {DIM_FF, DIM_EMBD}, NEED_ALWAYS, false},
    {W_FFN_DOWN_BIAS, {DIM_EMBD}, NEED_ALWAYS, true},
};

static sheaf_tensor *norm(graph_build *b, int il, sheaf_tensor *x, model_weight w, model_weight bias,
                          const char *name) {
    x = sheaf_norm(b->arena, x, layer_weight(b, il, w), layer_weight(b, il, bias), b->hp->norm_eps);
    return layer_named(x, name, il);
}

static sheaf_tensor *feed_forward(graph_build *b, int il, sheaf_tensor *x) {
    x = layer_matmul(b, il, W_FFN_UP, W_FFN_UP_BIAS, x);
    x = sheaf_unary_op(b->arena, x, SHEAF_UNARY_GELU);
    return layer_named(layer_matmul(b, il, W_FFN_DOWN, W_FFN_DOWN_BIAS, x), "ffn_out", il);
}

static sheaf_tensor *layer(graph_build *b, int il, sheaf_tensor *x) {
    bool last = il == b->hp->n_layer - 1;
    sheaf_tensor *y = norm(b, il, x, W_ATTN_NORM, W_ATTN_NORM_BIAS, "attn_norm");
    y = layer_attention(b, il, y, last);
    if (last) x = layer_select(b, x);
    x = layer_named(sheaf_add(b->arena, y, x), "ffn_inp", il);
    y = feed_forward(b, il, norm(b, il, x, W_FFN_NORM, W_FFN_NORM_BIAS, "ffn_norm"));
    return layer_named(sheaf_add(b->arena, y, x), "l_out", il);
}

static void build(graph_build *b) {
    sheaf_tensor *positions = sheaf_get_rows(b->arena, layer_weight(b, -1, W_POS_EMBD), b->in.positions);
    sheaf_tensor *x = sheaf_add(b->arena, layer_embed(b), layer_named(positions, "pos_embd", -1));
    for (int il = 0; il < b->hp->n_layer; il++) x = layer(b, il, x);
    layer_logits(b, norm(b, -1, x, W_OUTPUT_NORM, W_OUTPUT_NORM_BIAS, "result_norm"));
}

const model_arch model_gpt2 = {.name = "gpt2",
                               .rows = rows,
                               .n_rows = (int)(sizeof rows / sizeof *rows),
                               .build = build,
                               .layer_norm = true,
                               .learned_positions = true};
