/* OLMo 2, and OLMo 3, which says it is one: norms after attention and feed-forward and none before, and norms of
 * queries and keys over all heads at once. These cost a third sum a layer, of two numbers a token: gathering the rows
 * instead would move them whole. With a window (OLMo 3) every fourth layer sees everything, and only there are
 * positions stretched. */
#include "models/weight_rows.h"

static const weight_row rows[] = {
    ROWS_ENDS, ROWS_ATTENTION, ROWS_QK_NORMS(DIM_Q, DIM_K), ROWS_GATED(NEED_ALWAYS), ROWS_POST_NORMS,
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
