/* Rows that most families share, for their tables of weights: a table names these and adds what is its own. */
#ifndef SHEAF_MODELS_WEIGHT_ROWS_H
#define SHEAF_MODELS_WEIGHT_ROWS_H

#include "models/model_internal.h"

/* clang-format off */

/* Before and behind the layers. Without an output matrix the embeddings serve again (tied). */
#define ROWS_ENDS                                                \
    {W_TOKEN_EMBD,  {DIM_EMBD, DIM_VOCAB}, NEED_ALWAYS,   false}, \
    {W_OUTPUT_NORM, {DIM_EMBD},            NEED_ALWAYS,   true},  \
    {W_OUTPUT,      {DIM_EMBD, DIM_VOCAB}, NEED_OPTIONAL, false}

/* Norms in front of attention and feed-forward, and behind them. */
#define ROWS_PRE_NORMS                           \
    {W_ATTN_NORM, {DIM_EMBD}, NEED_ALWAYS, true}, \
    {W_FFN_NORM,  {DIM_EMBD}, NEED_ALWAYS, true}
#define ROWS_POST_NORMS                               \
    {W_ATTN_POST_NORM, {DIM_EMBD}, NEED_ALWAYS, true}, \
    {W_FFN_POST_NORM,  {DIM_EMBD}, NEED_ALWAYS, true}

#define ROWS_ATTENTION                                      \
    {W_ATTN_Q,   {DIM_EMBD, DIM_Q},    NEED_ALWAYS, false}, \
    {W_ATTN_K,   {DIM_EMBD, DIM_K},    NEED_ALWAYS, false}, \
    {W_ATTN_V,   {DIM_EMBD, DIM_V},    NEED_ALWAYS, false}, \
    {W_ATTN_OUT, {DIM_ATTN, DIM_EMBD}, NEED_ALWAYS, false}

#define ROWS_QKV_BIASES                              \
    {W_ATTN_Q_BIAS, {DIM_Q}, NEED_OPTIONAL, true}, \
    {W_ATTN_K_BIAS, {DIM_K}, NEED_OPTIONAL, true}, \
    {W_ATTN_V_BIAS, {DIM_V}, NEED_OPTIONAL, true}

/* Norms of queries and keys: of each head (DIM_HEAD_K twice), or of all heads at once (DIM_Q, DIM_K). */
#define ROWS_QK_NORMS(q, k)                  \
    {W_ATTN_Q_NORM, {q}, NEED_ALWAYS, true}, \
    {W_ATTN_K_NORM, {k}, NEED_ALWAYS, true}

/* A gated feed-forward, in the layers that `need` says. */
#define ROWS_GATED(need)                             \
    {W_FFN_GATE, {DIM_EMBD, DIM_FF}, (need), false}, \
    {W_FFN_UP,   {DIM_EMBD, DIM_FF}, (need), false}, \
    {W_FFN_DOWN, {DIM_FF, DIM_EMBD}, (need), false}

#define ROWS_EXPERTS                                                          \
    {W_ROUTER,    {DIM_EMBD, DIM_EXPERTS},             NEED_EXPERTS, false}, \
    {W_GATE_EXPS, {DIM_EMBD, DIM_FF_EXP, DIM_EXPERTS}, NEED_EXPERTS, false}, \
    {W_UP_EXPS,   {DIM_EMBD, DIM_FF_EXP, DIM_EXPERTS}, NEED_EXPERTS, false}, \
    {W_DOWN_EXPS, {DIM_FF_EXP, DIM_EMBD, DIM_EXPERTS}, NEED_EXPERTS, false}

/* clang-format on */

#endif
