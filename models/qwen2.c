/* Qwen2 and Qwen2.5: llama's layers with biases on queries, keys and values, rotated by halves. */
#include "models/weight_rows.h"

static const weight_row rows[] = {
    ROWS_ENDS,       {W_OUTPUT_BIAS, {DIM_VOCAB}, NEED_OPTIONAL, true},
    ROWS_PRE_NORMS,  ROWS_ATTENTION,
    ROWS_QKV_BIASES, ROWS_GATED(NEED_ALWAYS),
};

static void build(graph_build *b) { layer_decoder(b, SHEAF_GLU_SWIGLU); }

const model_arch model_qwen2 = {.name = "qwen2",
                                .rope = SHEAF_ROPE_NEOX,
                                .rows = rows,
                                .n_rows = (int)(sizeof rows / sizeof *rows),
                                .build = build};
