/* gpt-oss: attention with biases, a sink a head and a window in every other layer; experts with biases and a clamped
 * activation. The norm before the experts is called after attention in the file.
 *
 *     x += attention(norm(x));  x += experts(norm(x)) */
#include "models/weight_rows.h"

static const weight_row rows[] = {
    ROWS_ENDS,
    {W_ATTN_NORM, {DIM_EMBD}, NEED_ALWAYS, true},
    ROWS_ATTENTION,
    ROWS_QKV_BIASES,
    {W_ATTN_OUT_BIAS, {DIM_EMBD}, NEED_OPTIONAL, true},
    {W_ATTN_SINKS, {DIM_HEADS}, NEED_ALWAYS, true},
    {W_ATTN_POST_NORM, {DIM_EMBD}, NEED_ALWAYS, true},
    ROWS_EXPERTS,
    {W_ROUTER_BIAS, {DIM_EXPERTS}, NEED_EXPERTS, true},
    {W_GATE_EXPS_BIAS, {DIM_FF_EXP, DIM_EXPERTS}, NEED_EXPERTS, true},
    {W_UP_EXPS_BIAS, {DIM_FF_EXP, DIM_EXPERTS}, NEED_EXPERTS, true},
    {W_DOWN_EXPS_BIAS, {DIM_EMBD, DIM_EXPERTS}, NEED_EXPERTS, true},
};

static sheaf_status read(sheaf_model *m) { return model_read_window(m, 128, 2); }

static sheaf_tensor *layer(graph_build *b, int il, sheaf_tensor *x) {
    bool last = il == b->hp->n_layer - 1;
    sheaf_tensor *y = layer_attention(b, il, layer_rms_norm(b, il, x, W_ATTN_NORM, "attn_norm"), last);
    if (last) x = layer_select(b, x);
    x = layer_named(sheaf_add(b->arena, y, x), "ffn_inp", il);
    y = layer_rms_norm(b, il, x, W_ATTN_POST_NORM, "attn_post_norm");
    return layer_ffn(b, il, y, x, SHEAF_GLU_SWIGLU_OAI);
}

static void build(graph_build *b) {
    sheaf_tensor *x = layer_embed(b);
    for (int il = 0; il < b->hp->n_layer; il++) x = layer(b, il, x);
    layer_logits(b, layer_rms_norm(b, -1, x, W_OUTPUT_NORM, "result_norm"));
}

const model_arch model_gpt_oss = {.name = "gpt-oss",
                                  .rope = SHEAF_ROPE_NEOX,
                                  .rows = rows,
                                  .n_rows = (int)(sizeof rows / sizeof *rows),
                                  .build = build,
                                  .read = read,
                                  .experts = {EXPERTS_ALWAYS, SHEAF_GATING_SOFT_MAX_CHOSEN, false}};
