/* The matmul row: the cost model of tensor parallelism.
 *
 *     w {k, m, b2, b3}     x {k, n, b2', b3'}     result {m, n, b2', b3'}
 *     MIRRORED             MIRRORED               MIRRORED
 *     AXIS(1)              MIRRORED               AXIS(0)    column parallel, free
 *     MIRRORED             AXIS(1)                as x
 *     AXIS(0)              AXIS(0), same runs     PARTIAL    row parallel, must be summed
 *     AXIS(2|3)            AXIS(same)             as x       batches
 *
 * Everything else is brought to one of these by moving the activation, which is small, and never the
 * weight unless nothing else fits. */
#include "splitstate/rules_internal.h"

/* Batches: does each device's share of x use just its share of w, in the same ratio as the whole? */
static bool batches_match(const rule_context *c, const sheaf_layout *w, const sheaf_layout *x) {
    int axis = x->axis;
    int64_t nw = c->node->src[0]->ne[axis], nx = c->node->src[1]->ne[axis];
    if (nw == 0 || nx % nw != 0 || !is_axis(w, axis)) return false;
    int64_t ratio = nx / nw;
    for (int d = 0; d < c->env->n_devices; d++) {
        int64_t w0, wn, x0, xn;
        if (!sheaf_layout_stretch(w, d, nw, &w0, &wn) || !sheaf_layout_stretch(x, d, nx, &x0, &xn)) return false;
        if (xn > 0 && (x0 != w0 * ratio || xn != wn * ratio)) return false;
    }
    return true;
}

static sheaf_status by_batch(const rule_context *c, sheaf_rule_result *out) {
    const sheaf_layout w = summed(&c->have[0]), x = summed(&c->have[1]);
    const sheaf_tensor *tw = c->node->src[0];
    if (is_cut(&x) && x.axis >= 2) {
        bool shared = !is_cut(&w) && tw->ne[x.axis] == 1;
        if (shared || batches_match(c, &w, &x)) {
            out->want[0] = w;
            out->want[1] = out->result = x;
            out->rule = "matmul by batch";
            return SHEAF_OK;
        }
        if (!is_cut(&w) && tw->ne[x.axis] == c->node->ne[x.axis]) { /* any slice of a whole tensor is free */
            out->want[0] = sheaf_layout_on_axis(&x, x.axis);
            out->want[1] = out->result = x;
            out->rule = "matmul by batch, w cut alike";
            return SHEAF_OK;
        }
    }
    if (is_cut(&w) && w.axis >= 2 && !is_cut(&x)) {
        int64_t nw = tw->ne[w.axis], nx = c->node->src[1]->ne[w.axis];
        sheaf_layout single;
        sheaf_status s = sheaf_layout_single(c->a, &w, c->env->n_devices, &single);
        if (!s) s = sheaf_layout_scale(c->a, &single, nx, nw, &out->want[1]);
        if (s) return s;
        if (batches_match(c, &single, &out->want[1])) {
            out->want[0] = single;
            out->result = out->want[1];
            out->rule = "matmul by batch, x cut alike";
            return SHEAF_OK;
        }
    }
    return sheaf_rule_gather_all(c, out, "matmul, batches do not meet: gather");
}

sheaf_status sheaf_rule_matmul(const rule_context *c, sheaf_rule_result *out) {
    const sheaf_layout w = summed(&c->have[0]), x = summed(&c->have[1]);
    int n_partial = (c->have[0].kind == SHEAF_PARTIAL) + (c->have[1].kind == SHEAF_PARTIAL);
    out->want[0] = w;
    out->want[1] = x;
    if ((is_cut(&w) && w.axis >= 2) || (is_cut(&x) && x.axis >= 2 && !is_cut(&w))) return by_batch(c, out);
    if (is_axis(&w, 1)) {
        out->want[1] = sheaf_layout_mirrored();
        out->result = sheaf_layout_on_axis(&w, 0);
        out->rule = "matmul, column parallel";
        return SHEAF_OK;
    }
    if (is_axis(&w, 0)) {
        out->result = sheaf_layout_partial();
        out->rule = "matmul, row parallel";
        sheaf_status s = sheaf_layout_single(c->a, &w, c->env->n_devices, &out->want[0]);
        out->want[1] = out->want[0];
        return s;
    }
    out->linear = n_partial == 1;
    if (is_axis(&x, 1)) {
        out->result = x;
        out->rule = "matmul, columns of x";
        return SHEAF_OK;
    }
    return sheaf_rule_gather_all(c, out, is_cut(&x) ? "matmul by a whole weight: gather x" : "matmul, mirrored");
}
