/* Attention: hands (heads, token range) pieces to the kernel of the level.
 *
 * A piece is the query heads of one KV head over some tokens. The kernel folds positions in chunks cut at fixed places,
 * so who takes which piece changes nothing. */
#include "backends/cpu/program.h"

enum { TOKENS = 64 }; /* of one piece: K and V of a head are read once for so many tokens */

static cpu_attn describe(const cpu_step *s, const cpu_task *t) {
    const cpu_operand *q = s->src[0], *k = s->src[1], *v = s->src[2], *mask = s->src[3];
    const sheaf_params *p = &s->params;
    return (cpu_attn){
        .q = (const float *)cpu_at(t, q),
        .q_token = q->nb[1],
        .q_head = q->nb[2],
        .k = cpu_at(t, k),
        .k_pos = k->nb[1],
        .k_head = k->nb[2],
        .k_type = k->type,
        .v = cpu_at(t, v),
        .v_pos = v->nb[1],
        .v_head = v->nb[2],
        .v_type = v->type,
        .mask = mask ? cpu_at(t, mask) : NULL,
        .mask_token = mask ? mask->nb[1] : 0,
        .mask_type = mask ? mask->type : SHEAF_F32,
        .out = (float *)cpu_at(t, s->dst),
        .out_head = s->dst->nb[1],
        .out_token = s->dst->nb[2],
        .head_k = (int32_t)k->ne[0],
        .head_v = (int32_t)v->ne[0],
        .n_kv = (int32_t)k->ne[1],
        .n_tokens = (int32_t)q->ne[1],
        .scale = p->attention.scale,
        .soft_cap = p->attention.soft_cap,
        .slope_base = p->attention.max_bias,
        .q_head0 = p->attention.q_head0,
        .kv_head0 = p->attention.kv_head0,
        .heads_per_kv = p->attention.n_head / p->attention.n_kv,
        .n_head = p->attention.n_head,
        .sinks = s->src[4] ? (const float *)cpu_at(t, s->src[4]) : NULL,
        .scratch = t->scratch,
    };
}

/* The query heads of one KV head are one piece, for the kernel turns and widens K and V once for all of them;
 * they are parted only where there are more threads than pieces. */
static void run_attention(const cpu_step *s, const cpu_task *t) {
    cpu_attn a = describe(s, t);
    int32_t heads = (int32_t)s->dst->ne[1], per = a.heads_per_kv, before = a.q_head0 % per, parts = 1;
    int64_t spans = (a.n_tokens + TOKENS - 1) / TOKENS, groups = (before + heads + per - 1) / per;
    while (parts < per && groups * parts * spans < t->nth) parts++;
    for (int64_t i; (i = cpu_take(s, t)) < groups * parts * spans;) {
        int32_t t0 = (int32_t)(i % spans) * TOKENS, t1 = t0 + TOKENS < a.n_tokens ? t0 + TOKENS : a.n_tokens;
        int32_t group = (int32_t)(i / spans / parts), part = (int32_t)(i / spans % parts);
        int32_t h0 = group * per + per * part / parts - before, h1 = group * per + per * (part + 1) / parts - before;
        if (h0 < 0) h0 = 0;
        if (h1 > heads) h1 = heads;
        if (h0 < h1) t->run->kernels->attention(&a, h0, h1, t0, t1);
    }
}

static bool is_kv(const sheaf_tensor *x) {
    return x && sheaf_rows_contiguous(x) && x->ne[3] == 1 &&
           (x->type == SHEAF_F32 || x->type == SHEAF_F16 || x->type == SHEAF_BF16 || sheaf_type_is_quantized(x->type));
}

/* The last local query head's KV head must be a local one: the header came from a plan, not from us. */
static bool heads_fit(const sheaf_tensor *n) {
    const sheaf_params *p = &n->params;
    if (p->attention.n_head <= 0 || p->attention.n_kv <= 0 || p->attention.n_head < p->attention.n_kv) return false;
    int64_t per_kv = p->attention.n_head / p->attention.n_kv, q0 = p->attention.q_head0;
    int64_t first = q0 / per_kv - p->attention.kv_head0;
    int64_t last = (q0 + n->ne[1] - 1) / per_kv - p->attention.kv_head0;
    return q0 >= 0 && q0 + n->ne[1] <= p->attention.n_head && first >= 0 && last < n->src[1]->ne[2];
}

static bool supports_attention(const sheaf_tensor *n) {
    const sheaf_tensor *q = n->src[0], *k = n->src[1], *v = n->src[2], *mask = n->src[3], *sinks = n->src[4];
    if (n->type != SHEAF_F32 || !sheaf_rows_contiguous(n) || !q || q->type != SHEAF_F32 || !sheaf_rows_contiguous(q))
        return false;
    if (!is_kv(k) || !is_kv(v) || q->ne[3] != 1 || k->ne[0] != q->ne[0] || k->ne[1] != v->ne[1] || k->ne[2] != v->ne[2])
        return false;
    if (n->ne[0] != v->ne[0] || n->ne[1] != q->ne[2] || n->ne[2] != q->ne[1] || k->ne[1] > INT32_MAX ||
        k->ne[0] > 4096 || v->ne[0] > 4096)
        return false;
    if (mask && ((mask->type != SHEAF_F32 && mask->type != SHEAF_F16) || !sheaf_rows_contiguous(mask) ||
                 mask->ne[0] < k->ne[1] || mask->ne[1] < q->ne[1]))
        return false;
    if (sinks &&
        (sinks->type != SHEAF_F32 || !sheaf_rows_contiguous(sinks) || sinks->ne[0] < n->params.attention.n_head))
        return false;
    return n->ne[1] == 0 || heads_fit(n);
}

static void lower_attention(cpu_compiler *c, const sheaf_tensor *n) {
    cpu_emit(c, n, run_attention, n, n->src, 5, 0, NULL, NULL);
}

const cpu_op cpu_op_ATTENTION = {supports_attention, lower_attention};
