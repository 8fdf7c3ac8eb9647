/* Phi-3 and Phi-4: llama's layers with queries, keys and values in one weight and gate and up in another; LongRoPE's
 * factors, one list for contexts as long as the first training's and one for longer; a window on every layer where
 * the file names one. */
#include "models/weight_rows.h"

static const weight_row rows[] = {
    ROWS_ENDS,
    {W_ROPE_LONG, {DIM_ROPE_PAIRS}, NEED_OPTIONAL, true},
    {W_ROPE_SHORT, {DIM_ROPE_PAIRS}, NEED_OPTIONAL, true},
    ROWS_PRE_NORMS,
    {W_ATTN_QKV, {DIM_EMBD, DIM_QKV}, NEED_ALWAYS, false},
    {W_ATTN_QKV_BIAS, {DIM_QKV}, NEED_OPTIONAL, true},
    {W_ATTN_OUT, {DIM_ATTN, DIM_EMBD}, NEED_ALWAYS, false},
    {W_FFN_UP, {DIM_EMBD, DIM_2FF}, NEED_ALWAYS, false},
    {W_FFN_DOWN, {DIM_FF, DIM_EMBD}, NEED_ALWAYS, false},
};

static sheaf_status read(sheaf_model *m) { return model_read_window(m, 0, 0); }

static void build(graph_build *b) { layer_decoder(b, SHEAF_GLU_SWIGLU); }

const model_arch model_phi3 = {.name = "phi3",
                               .rope = SHEAF_ROPE_NEOX,
                               .rows = rows,
                               .n_rows = (int)(sizeof rows / sizeof *rows),
                               .build = build,
                               .read = read};
