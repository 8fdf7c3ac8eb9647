/* The attention rule: query heads lead, each device needs the KV heads that its query heads read.
 *
 *     q {head, n_tokens, n_head}  k, v {head, n_kv, n_head_kv}  -> {head_v, n_head, n_tokens}
 *     cut along dimension 2 (heads), result along 1; a device's heads are one stretch, numbered by
 *     q_head0 and kv_head0, because grouping, sinks and slopes go by global head. */
#include "splitstate/rules_internal.h"

enum { Q, K, V, MASK, SINKS };

/* Does every device's one stretch of KV heads hold what its one stretch of query heads reads? */
static bool heads_meet(const rule_context *c, const sheaf_layout *q, const sheaf_layout *kv) {
    int64_t n_q = c->node->src[Q]->ne[2], n_kv = c->node->src[K]->ne[2], group = n_q / n_kv;
    for (int d = 0; d < c->env->n_devices; d++) {
        int64_t q0, qn, k0, kn;
        if (!sheaf_layout_stretch(q, d, n_q, &q0, &qn) || !sheaf_layout_stretch(kv, d, n_kv, &k0, &kn)) return false;
        if (qn > 0 && (q0 / group < k0 || (q0 + qn - 1) / group >= k0 + kn)) return false;
    }
    return true;
}

static void whole(const rule_context *c, sheaf_rule_result *out) {
    for (int i = 0; i < c->n_src; i++) out->want[i] = sheaf_layout_mirrored();
}

/* Queries cut by head. */
static sheaf_status by_head(const rule_context *c, const sheaf_layout *q, sheaf_rule_result *out) {
    const sheaf_layout k = summed(&c->have[K]), v = summed(&c->have[V]);
    whole(c, out);
    out->want[Q] = *q;
    out->result = sheaf_layout_on_axis(q, 1);
    out->rule = "attention by head";
    if (!heads_meet(c, q, &(sheaf_layout){SHEAF_MIRRORED}))
        return sheaf_rule_gather_all(c, out, "attention, heads apart: gather");
    if (!is_axis(&k, 2) && !is_axis(&v, 2)) return SHEAF_OK;
    const sheaf_layout *kv = is_axis(&k, 2) ? &k : &v;
    bool other_fits = sheaf_layout_equal(&k, &v) || !is_cut(&k) || !is_cut(&v); /* a slice of a whole is free */
    if (other_fits && heads_meet(c, q, kv)) {
        out->want[K] = out->want[V] = *kv;
    } else {
        out->rule = "attention by head, KV elsewhere: gather KV";
    }
    return SHEAF_OK;
}

sheaf_status sheaf_rule_attention(const rule_context *c, sheaf_rule_result *out) {
    const sheaf_layout q = summed(&c->have[Q]), k = summed(&c->have[K]);
    int64_t n_q = c->node->src[Q]->ne[2], n_kv = c->node->src[K]->ne[2];
    if (n_kv <= 0 || n_q % n_kv != 0)
        return sheaf_fail(SHEAF_E_SHAPE, "%d query heads over %d KV heads", (int)n_q, (int)n_kv);
    if (is_axis(&q, 2)) return by_head(c, &q, out);
    if (is_axis(&q, 1)) { /* tokens */
        whole(c, out);
        out->want[Q] = q;
        out->result = sheaf_layout_on_axis(&q, 2);
        if (c->n_src > MASK && c->node->src[MASK]) out->want[MASK] = q;
        out->rule = "attention by token";
        return SHEAF_OK;
    }
    if (!is_cut(&q) && is_axis(&k, 2)) { /* any slice of whole queries is free; moving KV is not */
        sheaf_layout single, heads;
        sheaf_status s = sheaf_layout_single(c->a, &k, c->env->n_devices, &single);
        if (!s) s = sheaf_layout_scale(c->a, &single, n_q / n_kv, 1, &heads);
        if (s) return s;
        return by_head(c, &heads, out);
    }
    return sheaf_rule_gather_all(c, out, is_cut(&q) ? "attention, head is cut: gather" : "attention, mirrored");
}
