/* Qwen3 with experts: qwen3's attention (each head of queries and keys is normed before it is rotated by halves) and a
 * mixture of experts in every layer. */
#include "models/weight_rows.h"

static const weight_row rows[] = {
    ROWS_ENDS, ROWS_PRE_NORMS, ROWS_ATTENTION, ROWS_QK_NORMS(DIM_HEAD_K, DIM_HEAD_K), ROWS_EXPERTS,
};

static void build(graph_build *b) { layer_decoder(b, SHEAF_GLU_SWIGLU); }

const model_arch model_qwen3moe = {.name = "qwen3moe",
                                   .rope = SHEAF_ROPE_NEOX,
                                   .rows = rows,
                                   .n_rows = (int)(sizeof rows / sizeof *rows),
                                   .build = build,
                                   .experts = {EXPERTS_ALWAYS, SHEAF_GATING_SOFT_MAX, true}};
