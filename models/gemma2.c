/* Gemma 2: norms before and after attention and feed-forward, gated by GELU; soft caps on attention scores and on
 * logits; every other layer, the first among them, sees a window of 4096 positions; the embedding, which serves as the
 * output too, is scaled by the root of its width. Weights of norms are stored as what they multiply by. */
#include "models/weight_rows.h"

#include <math.h>

static const weight_row rows[] = {
    ROWS_ENDS, ROWS_PRE_NORMS, ROWS_ATTENTION, ROWS_GATED(NEED_ALWAYS), ROWS_POST_NORMS,
};

static sheaf_status read(sheaf_model *m) {
    sheaf_hparams *h = &m->hp;
    h->embed_scale = sqrtf((float)h->n_embd);
    /* The 27B was trained with scores divided by the width per head, which its file does not say. */
    int32_t width = h->n_embd / h->layer[0].n_head;
    if (h->n_layer == 46) h->attn_scale = 1.0f / sqrtf((float)width);
    return model_read_window(m, 4096, 2);
}

static void build(graph_build *b) { layer_decoder(b, SHEAF_GLU_GEGLU); }

const model_arch model_gemma2 = {.name = "gemma2",
                                 .rope = SHEAF_ROPE_NEOX,
                                 .rows = rows,
                                 .n_rows = (int)(sizeof rows / sizeof *rows),
                                 .build = build,
                                 .read = read};
