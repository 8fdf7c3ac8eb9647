/* The llama family: Llama 1 to 3, Mistral, SmolLM, TinyLlama and what is shaped like them, with a dense
 * feed-forward or (Mixtral) a mixture of experts.
 * The layers are the common ones (layer_decoder), with a bias wherever the file has one. */
#include "models/weight_rows.h"

static const weight_row rows[] = {
    ROWS_ENDS,
    {W_ROPE_FREQS, {DIM_ROPE_PAIRS}, NEED_OPTIONAL, true},
    ROWS_PRE_NORMS,
    ROWS_ATTENTION,
    ROWS_QKV_BIASES,
    {W_ATTN_OUT_BIAS, {DIM_EMBD}, NEED_OPTIONAL, true},
    ROWS_GATED(NEED_DENSE),
    {W_FFN_GATE_BIAS, {DIM_FF}, NEED_DENSE_OPTIONAL, true},
    {W_FFN_UP_BIAS, {DIM_FF}, NEED_DENSE_OPTIONAL, true},
    {W_FFN_DOWN_BIAS, {DIM_EMBD}, NEED_DENSE_OPTIONAL, true},
    ROWS_EXPERTS,
};

static void build(graph_build *b) { layer_decoder(b, SHEAF_GLU_SWIGLU); }

const model_arch model_llama = {.name = "llama",
                                .rope = SHEAF_ROPE_NORM,
                                .rows = rows,
                                .n_rows = (int)(sizeof rows / sizeof *rows),
                                .build = build,
                                .experts = {EXPERTS_MAYBE, SHEAF_GATING_SOFT_MAX, true}};
