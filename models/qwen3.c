/* Qwen3: llama's layers without biases; each head of queries and keys is normed before it is rotated by halves. Heads
 * have a size of their own: their widths need not add up to the model's. */
#include "models/weight_rows.h"

static const weight_row rows[] = {
    ROWS_ENDS, ROWS_PRE_NORMS, ROWS_ATTENTION, ROWS_QK_NORMS(DIM_HEAD_K, DIM_HEAD_K), ROWS_GATED(NEED_ALWAYS),
};

static void build(graph_build *b) { layer_decoder(b, SHEAF_GLU_SWIGLU); }

const model_arch model_qwen3 = {.name = "qwen3",
                                .rope = SHEAF_ROPE_NEOX,
                                .rows = rows,
                                .n_rows = (int)(sizeof rows / sizeof *rows),
                                .build = build};
