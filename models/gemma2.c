/* Gemma 2: norms before and after attention and feed-forward, gated by GELU; soft caps on attention scores and on
 * logits; every other layer, the first among them, sees a window of 4096 positions; the embedding, which serves as the
 * output too, is scaled by the root of its width. Weights of norms are stored as what they multiply by. */
#include "models/model_internal.h"

#include <math.h>

static const weight_row rows[] = {
    {W_TOKEN_EMBD, {DIM_EMBD, DIM_VOCAB}, NEED_ALWAYS, false}, {W_OUTPUT_NORM, {DIM_EMBD}, NEED_ALWAYS, true},
    {W_OUTPUT, {DIM_EMBD, DIM_VOCAB}, NEED_OPTIONAL, false},   {W_ATTN_NORM, {DIM_EMBD}, NEED_ALWAYS, true},
    {W_ATTN_Q, {DIM_EMBD, DIM_Q}, NEED_ALWAYS, false},         {W_ATTN_K, {DIM_EMBD, DIM_K}, NEED_ALWAYS, false},
    {W_ATTN_V, {DIM_EMBD, DIM_V}, NEED_ALWAYS, false},         {W_ATTN_OUT, {DIM_ATTN, DIM_EMBD}, NEED_ALWAYS, false},
    {W_ATTN_POST_NORM, {DIM_EMBD}, NEED_ALWAYS, true},         {W_FFN_NORM, {DIM_EMBD}, NEED_ALWAYS, true},
    {W_FFN_GATE, {DIM_EMBD, DIM_FF}, NEED_ALWAYS, false},      {W_FFN_UP, {DIM_EMBD, DIM_FF}, NEED_ALWAYS, false},
    {W_FFN_DOWN, {DIM_FF, DIM_EMBD}, NEED_ALWAYS, false},      {W_FFN_POST_NORM, {DIM_EMBD}, NEED_ALWAYS, true},
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
