/* The feed-forward of a mixture of experts.
 *
 *     logits  = router x                                  {experts, n}      mirrored
 *     ids     = the `used` best of gating(logits)         {used, n}         some models: of the best groups alone
 *     weights = gating(logits) at ids, normed and scaled  {used, n}
 *     h       = act(gate[ids] x) * up[ids] x * weights    {ff, used, n}     cut by columns of every expert
 *     y       = sum over used of down[ids] h              {n_embd, n}       addends, unrounded
 *     y      += down_shared(act(gate_shared x) * ...)                       the same
 *     out     = round(y) + residual                                         one collective
 *
 * The weights are multiplied in before `down`, where a column is still each device's own: what is left after it are
 * sums and nothing else, which are the same bits in any order (docs/architecture.md). A bias of `down` is the
 * same on all devices and joins the residual. */
#include "models/model_internal.h"

typedef struct choice {
    sheaf_tensor *ids;     /* {used, n} i32 */
    sheaf_tensor *weights; /* {1, used, n} */
} choice;

static sheaf_tensor *gated(graph_build *b, sheaf_tensor *logits) {
    switch (b->hp->expert_gating) {
    case SHEAF_GATING_SOFT_MAX: return sheaf_soft_max(b->arena, logits, NULL, 1.0f, 0);
    case SHEAF_GATING_SIGMOID: return sheaf_unary_op(b->arena, logits, SHEAF_UNARY_SIGMOID);
    case SHEAF_GATING_SOFT_MAX_CHOSEN: break;
    }
    return logits;
}

/* The `k` largest of each column of x {n, columns}, largest first, and where they are. */
static sheaf_tensor *largest(graph_build *b, sheaf_tensor *x, int64_t k) {
    return sheaf_pick(b->arena, x, sheaf_top_k(b->arena, x, k));
}

/* Experts of the `n_group_used` best groups only: the scores of others become so low that none of them is chosen. A
 * group is as good as its best expert (DeepSeek V2), or as the sum of its two best (V3, whose scores are sigmoids).
 *
 *     groups = sum of the best of each     {n_group, n}
 *     least  = the last group's to be used {1, n}
 *     scores - 1e30 * max(least - groups, 0)     which is nothing where a group is used
 *
 * A difference of two scores is 0 or at least 1e-8 of them, so 1e30 times it is more than any score. */
static sheaf_tensor *within_groups(graph_build *b, sheaf_tensor *scores) {
    const sheaf_hparams *h = b->hp;
    sheaf_arena *a = b->arena;
    if (!scores || h->n_group == 1) return scores;
    int64_t n = scores->ne[1], each = h->n_expert / h->n_group, last = h->n_group_used - 1;
    sheaf_tensor *groups = sheaf_reshape_2d(a, scores, each, h->n_group * n);
    groups = largest(b, groups, h->expert_gating == SHEAF_GATING_SIGMOID ? 2 : 1);
    groups = sheaf_reshape_2d(a, sheaf_sum_rows(a, groups), h->n_group, n);
    sheaf_tensor *used = largest(b, groups, h->n_group_used);
    if (!used) return NULL;
    sheaf_tensor *least = sheaf_view_2d(a, used, 1, n, used->nb[1], (size_t)last * used->nb[0]);
    sheaf_tensor *short_of = sheaf_unary_op(a, sheaf_scale(a, sheaf_sub(a, groups, least), -1.0f, 0), SHEAF_UNARY_RELU);
    short_of = sheaf_reshape_3d(a, sheaf_scale(a, short_of, -1e30f, 0), 1, h->n_group, n);
    scores = sheaf_add(a, sheaf_reshape_3d(a, scores, each, h->n_group, n), short_of);
    return sheaf_reshape_2d(a, scores, h->n_expert, n);
}

static choice choose(graph_build *b, int il, sheaf_tensor *x) {
    const sheaf_hparams *h = b->hp;
    sheaf_arena *a = b->arena;
    sheaf_tensor *logits = layer_named(layer_matmul(b, il, W_ROUTER, W_ROUTER_BIAS, x), "ffn_moe_logits", il);
    sheaf_tensor *probs = layer_named(gated(b, logits), "ffn_moe_probs", il);
    sheaf_tensor *bias = layer_weight(b, il, W_CHOICE_BIAS); /* of the choice only, not of the weights */
    sheaf_tensor *scores = within_groups(b, bias ? sheaf_add(a, probs, bias) : probs);
    sheaf_tensor *ids = sheaf_top_k(a, scores, h->n_expert_used);
    ids = layer_named(ids, "ffn_moe_topk", il);
    sheaf_tensor *w = sheaf_pick(a, probs, ids);
    if (h->expert_gating == SHEAF_GATING_SOFT_MAX_CHOSEN) w = sheaf_soft_max(a, w, NULL, 1.0f, 0);
    if (h->expert_norm) { /* a sum of zeros must not divide zeros */
        sheaf_tensor *sum = sheaf_sum_rows(a, w);
        w = sheaf_div(a, w, sheaf_scale(a, sum, 1.0f, 1e-20f));
    }
    if (h->expert_scale != 1.0f) w = sheaf_scale(a, w, h->expert_scale, 0);
    w = layer_named(w, "ffn_moe_weights", il);
    return (choice){ids, sheaf_reshape_3d(a, w, 1, h->n_expert_used, x ? x->ne[1] : 0)};
}

/* Columns of the chosen experts' w, and their bias: {ff, used, n}. */
static sheaf_tensor *by_id(graph_build *b, int il, model_weight w, sheaf_tensor *x, sheaf_tensor *ids) {
    sheaf_tensor *y = sheaf_mul_mat_id(b->arena, layer_weight(b, il, w), x, ids);
    layer_emit(b, y);
    return y;
}

static sheaf_tensor *with_bias(graph_build *b, int il, model_weight bias, sheaf_tensor *y, sheaf_tensor *ids) {
    sheaf_tensor *rows = layer_weight(b, il, bias);
    return rows ? sheaf_add_id(b->arena, y, rows, ids) : y;
}

static sheaf_tensor *routed(graph_build *b, int il, sheaf_tensor *x, const choice *c, sheaf_glu kind) {
    sheaf_arena *a = b->arena;
    if (!x) return NULL;
    sheaf_tensor *column = sheaf_reshape_3d(a, x, x->ne[0], 1, x->ne[1]);
    sheaf_tensor *gate = by_id(b, il, W_GATE_EXPS, column, c->ids), *up = by_id(b, il, W_UP_EXPS, column, c->ids);
    gate = layer_named(with_bias(b, il, W_GATE_EXPS_BIAS, gate, c->ids), "ffn_moe_gate", il);
    up = layer_named(with_bias(b, il, W_UP_EXPS_BIAS, up, c->ids), "ffn_moe_up", il);
    sheaf_tensor *h = sheaf_mul(a, sheaf_glu_op(a, gate, up, kind), c->weights);
    return sheaf_mul_mat_id_sum(a, layer_weight(b, il, W_DOWN_EXPS), h, c->ids, layer_segment(b, il, W_DOWN_EXPS));
}

/* What all tokens use; an addend as the others. */
static sheaf_tensor *shared(graph_build *b, int il, sheaf_tensor *x, sheaf_glu kind) {
    sheaf_arena *a = b->arena;
    sheaf_tensor *gate = layer_matmul(b, il, W_GATE_SHEXP, W_COUNT, x),
                 *up = layer_matmul(b, il, W_UP_SHEXP, W_COUNT, x);
    layer_emit(b, gate);
    layer_emit(b, up);
    sheaf_tensor *y = sheaf_mul_mat(a, layer_weight(b, il, W_DOWN_SHEXP), sheaf_glu_op(a, gate, up, kind));
    return sheaf_unrounded(a, sheaf_mul_mat_segments(a, y, layer_segment(b, il, W_DOWN_SHEXP)));
}

/* residual + sum over used of weight * bias[id]: a product of length 1. */
static sheaf_tensor *with_down_bias(graph_build *b, int il, const choice *c, sheaf_tensor *residual) {
    sheaf_arena *a = b->arena;
    sheaf_tensor *bias = layer_weight(b, il, W_DOWN_EXPS_BIAS);
    if (!bias) return residual;
    bias = sheaf_reshape_3d(a, bias, 1, bias->ne[0], bias->ne[1]);
    sheaf_tensor *sum = sheaf_round(a, sheaf_mul_mat_id_sum(a, bias, c->weights, c->ids, 1));
    sheaf_tensor *y = sheaf_add(a, residual, sum);
    layer_emit(b, y);
    return y;
}

sheaf_tensor *layer_ffn_experts(graph_build *b, int il, sheaf_tensor *x, sheaf_tensor *residual, sheaf_glu kind) {
    choice c = choose(b, il, x);
    residual = with_down_bias(b, il, &c, residual);
    sheaf_tensor *y = routed(b, il, x, &c, kind);
    if (layer_weight(b, il, W_DOWN_SHEXP)) y = sheaf_add(b->arena, y, shared(b, il, x, kind));
    y = layer_named(sheaf_round(b->arena, y), "ffn_moe_out", il);
    return sheaf_add(b->arena, y, residual);
}
