/* DeepSeek V2, V2-Lite, V3 and what is shaped like them: latent attention, some leading dense layers, then experts
 * beside shared ones.
 *
 * Keys and values of all heads are made from one latent a token, and that is what is cached. Its projection up to keys
 * is multiplied into the queries instead, the one up to values follows attention, so a token costs one key that all
 * heads read:
 *
 *     c, r    = split(kv_a x)                 c {lora} normed, r {rope} rotated: the cached key is (c, r)
 *     q       = q_b norm(q_a x), or q x       {nope + rope, n_head}
 *     q'      = (k_b q_nope, rotated q_rope)  {lora + rope, n_head}
 *     y       = attention(q', (c, r), c)      {lora, n_head}
 *     out     = attn_out (v_b y)
 *
 * q_b (q), k_b, v_b and attn_out are cut by head; the latents are small and made on every device. */
#include "models/weight_rows.h"

static const weight_row rows[] = {
    ROWS_ENDS,
    ROWS_PRE_NORMS,
    {W_ATTN_Q, {DIM_EMBD, DIM_Q_MLA}, NEED_NO_LORA_Q, false},
    {W_ATTN_Q_A, {DIM_EMBD, DIM_LORA_Q}, NEED_LORA_Q, false},
    {W_ATTN_Q_A_NORM, {DIM_LORA_Q}, NEED_LORA_Q, true},
    {W_ATTN_Q_B, {DIM_LORA_Q, DIM_Q_MLA}, NEED_LORA_Q, false},
    {W_ATTN_KV_A, {DIM_EMBD, DIM_HEAD_K}, NEED_ALWAYS, false},
    {W_ATTN_KV_A_NORM, {DIM_LORA_KV}, NEED_ALWAYS, true},
    {W_ATTN_K_B, {DIM_NOPE, DIM_LORA_KV, DIM_HEADS}, NEED_ALWAYS, false},
    {W_ATTN_V_B, {DIM_LORA_KV, DIM_V_MLA, DIM_HEADS}, NEED_ALWAYS, false},
    {W_ATTN_OUT, {DIM_ATTN_MLA, DIM_EMBD}, NEED_ALWAYS, false},
    ROWS_GATED(NEED_DENSE),
    ROWS_EXPERTS,
    {W_CHOICE_BIAS, {DIM_EXPERTS}, NEED_EXPERTS_OPTIONAL, true},
    {W_GATE_SHEXP, {DIM_EMBD, DIM_FF_SHARED}, NEED_SHARED, false},
    {W_UP_SHEXP, {DIM_EMBD, DIM_FF_SHARED}, NEED_SHARED, false},
    {W_DOWN_SHEXP, {DIM_FF_SHARED, DIM_EMBD}, NEED_SHARED, false},
};

/* x {head, n_head, n_tokens}: elements [first, first + n) of every head. */
static sheaf_tensor *part(graph_build *b, sheaf_tensor *x, int64_t first, int64_t n) {
    if (!x) return NULL;
    return sheaf_view_3d(b->arena, x, n, x->ne[1], x->ne[2], x->nb[1], x->nb[2], (size_t)first * x->nb[0]);
}

static sheaf_tensor *rotated(graph_build *b, sheaf_tensor *x) {
    return sheaf_rope(b->arena, x, b->in.positions, NULL, &b->hp->rope);
}

/* {lora + rope, n_tokens, n_head}: queries in the terms of the cached keys. */
static sheaf_tensor *queries(graph_build *b, int il, sheaf_tensor *x) {
    const sheaf_hparams *h = b->hp;
    sheaf_arena *a = b->arena;
    int64_t rope = h->rope.rope.n_dims, nope = h->head_k_mla - rope;
    if (h->n_lora_q) {
        x = sheaf_rms_norm(a, layer_matmul(b, il, W_ATTN_Q_A, W_COUNT, x), layer_weight(b, il, W_ATTN_Q_A_NORM),
                           h->rms_eps);
    }
    sheaf_tensor *q = layer_matmul(b, il, h->n_lora_q ? W_ATTN_Q_B : W_ATTN_Q, W_COUNT, x);
    q = sheaf_reshape_3d(a, q, h->head_k_mla, h->layer[il].n_head, b->key.n_tokens);
    sheaf_tensor *latent =
        sheaf_mul_mat(a, layer_weight(b, il, W_ATTN_K_B), sheaf_permute(a, part(b, q, 0, nope), 0, 2, 1, 3));
    sheaf_tensor *turned = sheaf_permute(a, rotated(b, part(b, q, nope, rope)), 0, 2, 1, 3);
    return layer_named(sheaf_concat(a, latent, turned, 0), "Qcur", il);
}

/* {lora + rope, n_tokens}: one key a token. */
static sheaf_tensor *keys(graph_build *b, int il, sheaf_tensor *x) {
    const sheaf_hparams *h = b->hp;
    sheaf_arena *a = b->arena;
    sheaf_tensor *both = layer_matmul(b, il, W_ATTN_KV_A, W_COUNT, x);
    both = sheaf_reshape_3d(a, both, h->head_k, 1, b->key.n_tokens);
    sheaf_tensor *latent =
        sheaf_rms_norm(a, part(b, both, 0, h->n_lora_kv), layer_weight(b, il, W_ATTN_KV_A_NORM), h->rms_eps);
    sheaf_tensor *turned = rotated(b, part(b, both, h->n_lora_kv, h->rope.rope.n_dims));
    sheaf_tensor *key = sheaf_concat(a, latent, turned, 0);
    return layer_named(sheaf_reshape_2d(a, key, h->head_k, b->key.n_tokens), "Kcur", il);
}

static sheaf_tensor *attention(graph_build *b, int il, sheaf_tensor *x, bool select) {
    const sheaf_hparams *h = b->hp;
    sheaf_arena *a = b->arena;
    sheaf_tensor *q = queries(b, il, x);
    layer_emit(b, q);
    sheaf_tensor *cache = sheaf_set_rows(a, b->cache_k[il], keys(b, il, x), b->in.cells);
    layer_emit(b, cache);
    if (!cache) return NULL;
    size_t row = cache->nb[1];
    sheaf_tensor *k = sheaf_view_3d(a, cache, h->head_k, b->key.n_kv, 1, row, row, 0);
    sheaf_tensor *v = sheaf_view_3d(a, cache, h->n_lora_kv, b->key.n_kv, 1, row, row, 0); /* the key's first part */
    sheaf_tensor *y = sheaf_attention(a, q, k, v, b->in.mask, NULL, h->attn_scale, 0, 0);
    y = sheaf_mul_mat(a, layer_weight(b, il, W_ATTN_V_B), sheaf_permute(a, y, 0, 2, 1, 3));
    y = sheaf_cont(a, sheaf_permute(a, y, 0, 2, 1, 3));
    y = sheaf_reshape_2d(a, y, (int64_t)h->head_v_mla * h->layer[il].n_head, b->key.n_tokens);
    y = layer_named(y, "kqv_out", il);
    if (select) y = layer_select(b, y);
    return layer_named(layer_matmul(b, il, W_ATTN_OUT, W_COUNT, y), "attn_out", il);
}

static sheaf_tensor *layer(graph_build *b, int il, sheaf_tensor *x) {
    bool last = il == b->hp->n_layer - 1;
    sheaf_tensor *y = attention(b, il, layer_rms_norm(b, il, x, W_ATTN_NORM, "attn_norm"), last);
    if (last) x = layer_select(b, x);
    x = layer_named(sheaf_add(b->arena, y, x), "ffn_inp", il);
    return layer_ffn(b, il, layer_rms_norm(b, il, x, W_FFN_NORM, "ffn_norm"), x, SHEAF_GLU_SWIGLU);
}

static void build(graph_build *b) {
    sheaf_tensor *x = layer_embed(b);
    for (int il = 0; il < b->hp->n_layer; il++) x = layer(b, il, x);
    layer_logits(b, layer_rms_norm(b, -1, x, W_OUTPUT_NORM, "result_norm"));
}

const model_arch model_deepseek2 = {.name = "deepseek2",
                                    .rope = SHEAF_ROPE_NORM,
                                    .rows = rows,
                                    .n_rows = (int)(sizeof rows / sizeof *rows),
                                    .build = build,
                                    .read = model_read_latents,
                                    .experts = {EXPERTS_MAYBE, SHEAF_GATING_SOFT_MAX, false}};
