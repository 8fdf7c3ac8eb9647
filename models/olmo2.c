/* OLMo 2, and OLMo 3, which says it is one: norms after attention and feed-forward and none before, and norms of
 * queries and keys over all heads at once. These cost a third sum a layer, of two numbers a token: gathering the rows
 * instead would move them whole. With a window (OLMo 3) every fourth layer sees everything, and only there are
 * positions stretched. */
#include "models/model_internal.h"

static const weight_row rows[] = {
    {W_TOKEN_EMBD, {DIM_EMBD, DIM_VOCAB}, NEED_ALWAYS, false},
    {W_OUTPUT_NORM, {DIM_EMBD}, NEED_ALWAYS, true},
    {W_OUTPUT, {DIM_EMBD, DIM_VOCAB}, NEED_OPTIONAL, false},
    {W_ATTN_Q, {DIM_EMBD, DIM_Q}, NEED_ALWAYS, false},
    {W_ATTN_Q_NORM, {DIM_Q}, NEED_ALWAYS, true},
    {W_ATTN_K, {DIM_EMBD, DIM_K}, NEED_ALWAYS, false},
    {W_ATTN_K_NORM, {DIM_K}, NEED_ALWAYS, true},
    {W_ATTN_V, {DIM_EMBD, DIM_V}, NEED_ALWAYS, false},
    {W_ATTN_OUT, {DIM_ATTN, DIM_EMBD}, NEED_ALWAYS, false},
    {W_ATTN_POST_NORM, {DIM_EMBD}, NEED_ALWAYS, true},
    {W_FFN_GATE, {DIM_EMBD, DIM_FF}, NEED_ALWAYS, false},
    {W_FFN_UP, {DIM_EMBD, DIM_FF}, NEED_ALWAYS, false},
    {W_FFN_DOWN, {DIM_FF, DIM_EMBD}, NEED_ALWAYS, false},
    {W_FFN_POST_NORM, {DIM_EMBD}, NEED_ALWAYS, true},
};

static sheaf_status read(sheaf_model *m) {
    sheaf_params *p = &m->hp.rope_window;
    p->rope.freq_scale = p->rope.attn_factor = 1.0f;
    p->rope.ext_factor = 0.0f;
    return model_read_window(m, 0, 4);
}

static void build(graph_build *b) { layer_decoder(b, SHEAF_GLU_SWIGLU); }

const model_arch model_olmo2 = {.name = "olmo2",
                                .rope = SHEAF_ROPE_NEOX,
                                .rows = rows,
                                .n_rows = (int)(sizeof rows / sizeof *rows),
                                .build = build,
                                .read = read,
                                .norm_all_heads = true};
