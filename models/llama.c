/* The llama family: Llama 1 to 3, Mistral, SmolLM, TinyLlama and what is shaped like them, with a dense
 * feed-forward or (Mixtral) a mixture of experts.
 * The layers are the common ones (layer_decoder), with a bias wherever the file has one. */
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
    {W_FFN_GATE, {DIM_EMBD, DIM_FF}, NEED_DENSE, false},
    {W_FFN_GATE_BIAS, {DIM_FF}, NEED_DENSE_OPTIONAL, true},
    {W_FFN_UP, {DIM_EMBD, DIM_FF}, NEED_DENSE, false},
    {W_FFN_UP_BIAS, {DIM_FF}, NEED_DENSE_OPTIONAL, true},
    {W_FFN_DOWN, {DIM_FF, DIM_EMBD}, NEED_DENSE, false},
    {W_FFN_DOWN_BIAS, {DIM_EMBD}, NEED_DENSE_OPTIONAL, true},
    {W_ROUTER, {DIM_EMBD, DIM_EXPERTS}, NEED_EXPERTS, false},
    {W_GATE_EXPS, {DIM_EMBD, DIM_FF_EXP, DIM_EXPERTS}, NEED_EXPERTS, false},
    {W_UP_EXPS, {DIM_EMBD, DIM_FF_EXP, DIM_EXPERTS}, NEED_EXPERTS, false},
    {W_DOWN_EXPS, {DIM_FF_EXP, DIM_EMBD, DIM_EXPERTS}, NEED_EXPERTS, false},
};

static void build(graph_build *b) { layer_decoder(b, SHEAF_GLU_SWIGLU); }

const model_arch model_llama = {.name = "llama",
                                .rope = SHEAF_ROPE_NORM,
                                .rows = rows,
                                .n_rows = (int)(sizeof rows / sizeof *rows),
                                .build = build,
                                .experts = {EXPERTS_MAYBE, SHEAF_GATING_SOFT_MAX, true}};
