/* Qwen3 with experts: qwen3's attention (each head of queries and keys is normed before it is rotated by halves) and a
 * mixture of experts in every layer. */
#include "models/model_internal.h"

static const weight_row rows[] = {
    {W_TOKEN_EMBD, {DIM_EMBD, DIM_VOCAB}, NEED_ALWAYS, false},
    {W_OUTPUT_NORM, {DIM_EMBD}, NEED_ALWAYS, true},
    {W_OUTPUT, {DIM_EMBD, DIM_VOCAB}, NEED_OPTIONAL, false},
    {W_ATTN_NORM, {DIM_EMBD}, NEED_ALWAYS, true},
    {W_ATTN_Q, {DIM_EMBD, DIM_Q}, NEED_ALWAYS, false},
    {W_ATTN_Q_NORM, {DIM_HEAD_K}, NEED_ALWAYS, true},
    {W_ATTN_K, {DIM_EMBD, DIM_K}, NEED_ALWAYS, false},
    {W_ATTN_K_NORM, {DIM_HEAD_K}, NEED_ALWAYS, true},
    {W_ATTN_V, {DIM_EMBD, DIM_V}, NEED_ALWAYS, false},
    {W_ATTN_OUT, {DIM_ATTN, DIM_EMBD}, NEED_ALWAYS, false},
    {W_FFN_NORM, {DIM_EMBD}, NEED_ALWAYS, true},
    {W_ROUTER, {DIM_EMBD, DIM_EXPERTS}, NEED_EXPERTS, false},
    {W_GATE_EXPS, {DIM_EMBD, DIM_FF_EXP, DIM_EXPERTS}, NEED_EXPERTS, false},
    {W_UP_EXPS, {DIM_EMBD, DIM_FF_EXP, DIM_EXPERTS}, NEED_EXPERTS, false},
    {W_DOWN_EXPS, {DIM_FF_EXP, DIM_EMBD, DIM_EXPERTS}, NEED_EXPERTS, false},
};

static void build(graph_build *b) { layer_decoder(b, SHEAF_GLU_SWIGLU); }

const model_arch model_qwen3moe = {.name = "qwen3moe",
                                   .rope = SHEAF_ROPE_NEOX,
                                   .rows = rows,
                                   .n_rows = (int)(sizeof rows / sizeof *rows),
                                   .build = build,
                                   .experts = {EXPERTS_ALWAYS, SHEAF_GATING_SOFT_MAX, true}};
