/* Layers that families share: lookups of weights, matmuls with their bias and summing order, attention
 * over the cache, the gated feed-forward, and the stack of layers that most families are made of.
 *
 * Node names follow llama.cpp's ("Qcur-3", "kqv_out-3", "l_out-3"), so that dumps of both can be compared.
 * Nothing is checked here: a constructor that fails leaves NULL behind and its error in the arena. */
#include "models/model_internal.h"
#include "tensor/settings.h"

sheaf_tensor *layer_weight(const graph_build *b, int il, model_weight w) {
    const sheaf_model *m = b->model;
    return model_weight_at(b->weight, il < 0 ? m->global[w] : m->layer[il * W_COUNT + (int)w]);
}

static int32_t segment_of(const graph_build *b, int il, model_weight w) {
    const sheaf_model *m = b->model;
    int32_t i = il < 0 ? m->global[w] : m->layer[il * W_COUNT + (int)w];
    return i < 0 || !sheaf_settings()->same_bits ? 0 : m->placement[i].segment;
}

int32_t layer_segment(const graph_build *b, int il, model_weight w) {
    int32_t segment = segment_of(b, il, w);
    const sheaf_tensor *t = layer_weight(b, il, w);
    return segment > 0 || !t ? segment : (int32_t)t->ne[0];
}

void layer_emit(graph_build *b, sheaf_tensor *t) {
    if (!b->status && t) b->status = sheaf_graph_expand(b->graph, t);
}

sheaf_tensor *layer_named(sheaf_tensor *t, const char *name, int il) {
    return il < 0 ? sheaf_set_name(t, "%s", name) : sheaf_set_name(t, "%s-%d", name, il);
}

static sheaf_tensor *matmul(graph_build *b, int il, model_weight w, sheaf_tensor *x) {
    sheaf_tensor *y = sheaf_mul_mat(b->arena, layer_weight(b, il, w), x);
    int32_t segment = segment_of(b, il, w);
    return segment > 0 ? sheaf_mul_mat_segments(b->arena, y, segment) : y;
}

static sheaf_tensor *add_bias(graph_build *b, int il, model_weight bias, sheaf_tensor *y) {
    sheaf_tensor *t = layer_weight(b, il, bias);
    return t ? sheaf_add(b->arena, y, t) : y;
}

sheaf_tensor *layer_matmul(graph_build *b, int il, model_weight w, model_weight bias, sheaf_tensor *x) {
    sheaf_tensor *y = matmul(b, il, w, x);
    return bias == W_COUNT ? y : add_bias(b, il, bias, y);
}

sheaf_tensor *layer_embed(graph_build *b) {
    sheaf_tensor *x = sheaf_get_rows(b->arena, layer_weight(b, -1, W_TOKEN_EMBD), b->in.tokens);
    if (b->hp->embed_scale != 1.0f) x = sheaf_scale(b->arena, x, b->hp->embed_scale, 0);
    return layer_named(x, "inp_embd", -1);
}

sheaf_tensor *layer_select(graph_build *b, sheaf_tensor *x) {
    return b->in.outputs ? sheaf_get_rows(b->arena, x, b->in.outputs) : x;
}

sheaf_tensor *layer_rms_norm(graph_build *b, int il, sheaf_tensor *x, model_weight w, const char *name) {
    sheaf_tensor *weight = layer_weight(b, il, w);
    return weight ? layer_named(sheaf_rms_norm(b->arena, x, weight, b->hp->rms_eps), name, il) : x;
}

static bool windowed(const graph_build *b, int il) { return b->model->windowed && b->model->windowed[il]; }

/* What a pair's frequency is divided by: one list, or (LongRoPE) one for contexts up to the first training's, one
 * beyond. NULL: nothing. */
static sheaf_tensor *rope_factors(const graph_build *b) {
    sheaf_tensor *t = layer_weight(b, -1, W_ROPE_FREQS);
    return t ? t : layer_weight(b, -1, b->n_ctx > b->hp->rope.rope.n_ctx_orig ? W_ROPE_LONG : W_ROPE_SHORT);
}

/* Elements [first, first + n * head) of each token's column as heads: {head, n, n_tokens}. */
static sheaf_tensor *heads_of(graph_build *b, sheaf_tensor *t, int64_t first, int32_t head, int32_t n) {
    if (!t) return NULL;
    size_t bytes = (size_t)head * sizeof(float);
    return sheaf_view_3d(b->arena, t, head, n, b->key.n_tokens, bytes, t->nb[1], (size_t)first * sizeof(float));
}

/* Heads of one projection: {head * n, n_tokens} or heads already -> {head, n, n_tokens}, normed if the model norms
 * heads, rotated by position. */
static sheaf_tensor *rotated(graph_build *b, int il, sheaf_tensor *t, int32_t n_head, model_weight norm) {
    const sheaf_params *p = windowed(b, il) ? &b->hp->rope_window : &b->hp->rope;
    if (!t || sheaf_is_contiguous(t)) t = sheaf_reshape_3d(b->arena, t, b->hp->head_k, n_head, b->key.n_tokens);
    if (norm != W_COUNT) t = layer_rms_norm(b, il, t, norm, norm == W_ATTN_Q_NORM ? "Qcur_normed" : "Kcur_normed");
    return p->rope.n_dims > 0 ? sheaf_rope(b->arena, t, b->in.positions, rope_factors(b), p) : t;
}

/* Columns of heads, {n, n_tokens}, where they are. */
static sheaf_tensor *as_columns(graph_build *b, sheaf_tensor *t, int64_t n) {
    if (!t || sheaf_is_contiguous(t)) return sheaf_reshape_2d(b->arena, t, n, b->key.n_tokens);
    return sheaf_view_2d(b->arena, t, n, b->key.n_tokens, t->nb[2], 0); /* heads of a fused projection */
}

/* Writes this batch's keys or values into their cells and returns the first n_kv cells (of a windowed layer, n_window)
 * as heads:
 *
 *     cache {head * n_head_kv, cells}   one row a cell
 *     view  {head, n_kv, n_head_kv}     strides: element, row, head
 */
static sheaf_tensor *cached(graph_build *b, int il, sheaf_tensor *cache, sheaf_tensor *rows, int32_t head) {
    sheaf_arena *a = b->arena;
    int32_t n_head_kv = b->hp->layer[il].n_head_kv;
    int64_t n = (int64_t)head * n_head_kv, n_kv = windowed(b, il) ? b->key.n_window : b->key.n_kv;
    sheaf_tensor *cells = windowed(b, il) ? b->in.window_cells : b->in.cells;
    sheaf_tensor *written = sheaf_set_rows(a, cache, as_columns(b, rows, n), cells);
    layer_emit(b, written);
    if (!written) return NULL;
    size_t head_bytes = sheaf_row_bytes(cache->type, head);
    return sheaf_view_4d(
        a, written, (int64_t[]){head, n_kv, n_head_kv, 1},
        (size_t[]){sheaf_type_bytes(cache->type), cache->nb[1], head_bytes, head_bytes * (size_t)n_head_kv}, 0);
}

typedef struct qkv {
    sheaf_tensor *q, *k, *v;
} qkv;

static qkv project_apart(graph_build *b, int il, sheaf_tensor *x) {
    /* The three matmuls stand together: they read one x, and a backend can run them as one. */
    qkv p = {matmul(b, il, W_ATTN_Q, x), matmul(b, il, W_ATTN_K, x), matmul(b, il, W_ATTN_V, x)};
    layer_emit(b, p.q);
    layer_emit(b, p.k);
    layer_emit(b, p.v);
    return (qkv){add_bias(b, il, W_ATTN_Q_BIAS, p.q), add_bias(b, il, W_ATTN_K_BIAS, p.k),
                 add_bias(b, il, W_ATTN_V_BIAS, p.v)};
}

/* One weight: all queries, then all keys, then all values. */
static qkv project_fused(graph_build *b, int il, sheaf_tensor *x) {
    const sheaf_hparams *h = b->hp;
    int32_t n_head = h->layer[il].n_head, n_head_kv = h->layer[il].n_head_kv;
    int64_t q = (int64_t)n_head * h->head_k, k = (int64_t)n_head_kv * h->head_k;
    sheaf_tensor *t = layer_named(layer_matmul(b, il, W_ATTN_QKV, W_ATTN_QKV_BIAS, x), "wqkv", il);
    layer_emit(b, t);
    return (qkv){heads_of(b, t, 0, h->head_k, n_head), heads_of(b, t, q, h->head_k, n_head_kv),
                 heads_of(b, t, q + k, h->head_v, n_head_kv)};
}

/* Queries and keys normed over all heads at once. Rows are cut by head, so what the devices sum is two numbers a
 * token, in one collective. */
static void norm_all_heads(graph_build *b, int il, qkv *p) {
    sheaf_tensor *q = layer_weight(b, il, W_ATTN_Q_NORM), *k = layer_weight(b, il, W_ATTN_K_NORM);
    sheaf_tensor *sums = layer_named(sheaf_sum_squares(b->arena, p->q, p->k), "qk_squares", il);
    layer_emit(b, sums);
    p->q = layer_named(sheaf_rms_norm_by(b->arena, p->q, sums, 0, q, b->hp->rms_eps), "Qcur_normed", il);
    p->k = layer_named(sheaf_rms_norm_by(b->arena, p->k, sums, 1, k, b->hp->rms_eps), "Kcur_normed", il);
}

sheaf_tensor *layer_attention(graph_build *b, int il, sheaf_tensor *x, bool select) {
    const sheaf_hparams *h = b->hp;
    int32_t n_head = h->layer[il].n_head, n_head_kv = h->layer[il].n_head_kv;
    sheaf_arena *a = b->arena;
    qkv p = layer_weight(b, il, W_ATTN_QKV) ? project_fused(b, il, x) : project_apart(b, il, x);
    bool whole = b->model->arch->norm_all_heads;
    if (whole) norm_all_heads(b, il, &p);
    sheaf_tensor *q = layer_named(rotated(b, il, p.q, n_head, whole ? W_COUNT : W_ATTN_Q_NORM), "Qcur", il);
    sheaf_tensor *k = layer_named(rotated(b, il, p.k, n_head_kv, whole ? W_COUNT : W_ATTN_K_NORM), "Kcur", il);
    sheaf_tensor *v = layer_named(p.v, "Vcur", il);
    layer_emit(b, q);
    sheaf_tensor *keys = cached(b, il, b->cache_k[il], k, h->head_k);
    sheaf_tensor *values = cached(b, il, b->cache_v[il], v, h->head_v);
    sheaf_tensor *y =
        sheaf_attention(a, sheaf_permute(a, q, 0, 2, 1, 3), keys, values, windowed(b, il) ? b->in.window : b->in.mask,
                        layer_weight(b, il, W_ATTN_SINKS), h->attn_scale, 0, h->attn_soft_cap);
    y = layer_named(sheaf_reshape_2d(a, y, (int64_t)h->head_v * n_head, b->key.n_tokens), "kqv_out", il);
    /* Choosing the wanted tokens before the projection keeps the lookup local where heads are cut, and
     * everything after it small. */
    if (select) y = layer_select(b, y);
    return layer_named(layer_matmul(b, il, W_ATTN_OUT, W_ATTN_OUT_BIAS, y), "attn_out", il);
}

/* Columns [first, first + n) of gate and up in one. */
static sheaf_tensor *part(graph_build *b, sheaf_tensor *t, int64_t first, int64_t n) {
    return t ? sheaf_view_2d(b->arena, t, n, t->ne[1], t->nb[1], (size_t)first * sizeof(float)) : NULL;
}

sheaf_tensor *layer_ffn_gated(graph_build *b, int il, sheaf_tensor *x, sheaf_glu kind) {
    bool fused = !layer_weight(b, il, W_FFN_GATE);
    sheaf_tensor *gate = fused ? NULL : matmul(b, il, W_FFN_GATE, x), *up = matmul(b, il, W_FFN_UP, x);
    layer_emit(b, gate);
    layer_emit(b, up);
    if (!fused) gate = add_bias(b, il, W_FFN_GATE_BIAS, gate);
    up = add_bias(b, il, W_FFN_UP_BIAS, up);
    if (fused) {
        gate = part(b, up, 0, b->hp->layer[il].n_ff);
        up = part(b, up, b->hp->layer[il].n_ff, b->hp->layer[il].n_ff);
    }
    sheaf_tensor *y = sheaf_glu_op(b->arena, gate, up, kind);
    return layer_named(layer_matmul(b, il, W_FFN_DOWN, W_FFN_DOWN_BIAS, y), "ffn_out", il);
}

sheaf_tensor *layer_ffn(graph_build *b, int il, sheaf_tensor *x, sheaf_tensor *residual, sheaf_glu kind) {
    if (b->hp->layer[il].n_expert) return layer_named(layer_ffn_experts(b, il, x, residual, kind), "l_out", il);
    sheaf_tensor *y = layer_rms_norm(b, il, layer_ffn_gated(b, il, x, kind), W_FFN_POST_NORM, "ffn_post_norm");
    return layer_named(sheaf_add(b->arena, y, residual), "l_out", il);
}

static sheaf_tensor *decoder_layer(graph_build *b, int il, sheaf_tensor *x, sheaf_glu kind) {
    bool last = il == b->hp->n_layer - 1;
    sheaf_tensor *y = layer_attention(b, il, layer_rms_norm(b, il, x, W_ATTN_NORM, "attn_norm"), last);
    y = layer_rms_norm(b, il, y, W_ATTN_POST_NORM, "attn_post_norm");
    if (last) x = layer_select(b, x);
    x = layer_named(sheaf_add(b->arena, y, x), "ffn_inp", il);
    return layer_ffn(b, il, layer_rms_norm(b, il, x, W_FFN_NORM, "ffn_norm"), x, kind);
}

void layer_logits(graph_build *b, sheaf_tensor *x) {
    float cap = b->hp->logit_soft_cap;
    x = layer_matmul(b, -1, b->hp->tied ? W_TOKEN_EMBD : W_OUTPUT, W_OUTPUT_BIAS, x);
    if (cap > 0) {
        x = sheaf_unary_op(b->arena, sheaf_scale(b->arena, x, 1.0f / cap, 0), SHEAF_UNARY_TANH);
        x = sheaf_scale(b->arena, x, cap, 0);
    }
    b->logits = layer_named(x, "result_output", -1);
}

void layer_decoder(graph_build *b, sheaf_glu kind) {
    sheaf_tensor *x = layer_embed(b);
    for (int il = 0; il < b->hp->n_layer; il++) x = decoder_layer(b, il, x, kind);
    layer_logits(b, layer_rms_norm(b, -1, x, W_OUTPUT_NORM, "result_norm"));
}
