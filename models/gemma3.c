/* Gemma 3: norms before and after attention and feed-forward and of each head of queries and keys, gated by GELU; five
 * layers of six see a window and rotate with a base of their own; the embedding, which serves as the output too, is
 * scaled by the root of its width. Weights of norms are stored as what they multiply by. */
#include "models/weight_rows.h"

#include <math.h>

static const weight_row rows[] = {
    ROWS_ENDS,       ROWS_PRE_NORMS, ROWS_ATTENTION, ROWS_QK_NORMS(DIM_HEAD_K, DIM_HEAD_K), ROWS_GATED(NEED_ALWAYS),
    ROWS_POST_NORMS,
};

static sheaf_status read(sheaf_model *m) {
    sheaf_hparams *h = &m->hp;
    h->embed_scale = sqrtf((float)h->n_embd);
    /* The 27B was trained with scores divided by the width per head, which its file does not say. */
    int32_t width = h->n_embd / h->layer[0].n_head;
    if (h->n_layer == 62) h->attn_scale = 1.0f / sqrtf((float)width);
    h->rope_window.rope.freq_base = 10000.0f;
    h->rope_window.rope.freq_scale = 1.0f; /* the stretching for long contexts is for layers that see them */
    h->rope_window.rope.ext_factor = 0.0f;
    h->rope_window.rope.attn_factor = 1.0f;
    return model_read_window(m, 0, 6);
}

static void build(graph_build *b) { layer_decoder(b, SHEAF_GLU_GEGLU); }

const model_arch model_gemma3 = {.name = "gemma3",
                                 .rope = SHEAF_ROPE_NEOX,
                                 .rows = rows,
                                 .n_rows = (int)(sizeof rows / sizeof *rows),
                                 .build = build,
                                 .read = read};
