/* OLMoE: a mixture of experts in every layer, whose weights are used as the softmax over all experts gives them, and
 * norms of queries and keys over all heads at once, which cost a third sum a layer as they do in OLMo 2. */
#include "models/weight_rows.h"

static const weight_row rows[] = {
    ROWS_ENDS, ROWS_PRE_NORMS, ROWS_ATTENTION, ROWS_QK_NORMS(DIM_Q, DIM_K), ROWS_EXPERTS,
};

static void build(graph_build *b) { layer_decoder(b, SHEAF_GLU_SWIGLU); }

const model_arch model_olmoe = {.name = "olmoe",
                                .rope = SHEAF_ROPE_NEOX,
                                .rows = rows,
                                .n_rows = (int)(sizeof rows / sizeof *rows),
                                .build = build,
                                .norm_all_heads = true,
                                .experts = {EXPERTS_ALWAYS, SHEAF_GATING_SOFT_MAX, false}};
