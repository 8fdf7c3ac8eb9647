/* Rules of lookup and of concatenation. */
#include "splitstate/rules_internal.h"

static bool all_stretches(const rule_context *c, const sheaf_layout *l, int64_t whole) {
    int64_t first, length;
    for (int d = 0; d < c->env->n_devices; d++) {
        if (!sheaf_layout_stretch(l, d, whole, &first, &length)) return false;
    }
    return true;
}

/* table {ne0, n_rows}, ids {n} -> {ne0, n} */
sheaf_status sheaf_rule_get_rows(const rule_context *c, sheaf_rule_result *out) {
    const sheaf_layout table = summed(&c->have[0]), *ids = &c->have[1];
    out->linear = c->have[0].kind == SHEAF_PARTIAL && !is_cut(ids);
    if (is_axis(&table, 0)) {
        out->want[1] = sheaf_layout_mirrored();
        out->result = table;
        out->rule = "get rows, columns of the table";
        return SHEAF_OK;
    }
    if (is_axis(&table, 1)) {
        sheaf_status s = sheaf_layout_single(c->a, &table, c->env->n_devices, &out->want[0]);
        if (s) return s;
        bool lower =
            c->env->lowerings >> SHEAF_LOWER_LOOKUP & 1 && all_stretches(c, &out->want[0], c->node->src[0]->ne[1]);
        if (!lower) return sheaf_rule_gather_all(c, out, "get rows of a cut table: gather");
        out->want[1] = sheaf_layout_mirrored();
        out->result = sheaf_layout_partial(); /* one addend is the row, the others are zeros */
        out->lowering = SHEAF_LOWER_LOOKUP;
        out->rule = "get rows, each its own ids";
        return SHEAF_OK;
    }
    if (is_axis(ids, 0) && !is_cut(&table)) {
        out->want[0] = sheaf_layout_mirrored();
        out->result = sheaf_layout_on_axis(ids, 1);
        out->rule = "get rows, cut ids";
        return SHEAF_OK;
    }
    return sheaf_rule_gather_all(c, out, is_cut(&table) ? "get rows of a cut batch: gather" : out->rule);
}

/* x {n, rows} -> {k * places, rows}. A cut row gives each device that has a part of it one place, if there are as many
 * places; ids are made global by the number of the part's first element, so a part must be one stretch. */
sheaf_status sheaf_rule_best(const rule_context *c, sheaf_rule_result *out) {
    const sheaf_layout x = summed(&c->have[0]);
    sheaf_run runs[SHEAF_MAX_DEVICES];
    int n = 0;
    if (is_axis(&x, 1)) {
        out->want[0] = out->result = x;
        return SHEAF_OK;
    }
    if (!is_axis(&x, 0)) return sheaf_rule_gather_all(c, out, is_cut(&x) ? "row is cut: gather" : out->rule);
    sheaf_status s = sheaf_layout_single(c->a, &x, c->env->n_devices, &out->want[0]);
    if (s) return s;
    for (int d = 0; d < c->env->n_devices; d++) {
        if (sheaf_layout_share(&out->want[0], d, 0) == 0) continue;
        runs[n++] = (sheaf_run){c->node->params.best.k, (sheaf_device_set)1 << d};
    }
    bool fits = (int64_t)n * c->node->params.best.k == c->node->ne[0] &&
                all_stretches(c, &out->want[0], c->node->src[0]->ne[0]);
    if (!fits) return sheaf_rule_gather_all(c, out, "row is cut otherwise than there are places: gather");
    out->rule = "row is cut: the best of each part";
    return sheaf_layout_axis(c->a, 0, runs, n, c->env->n_devices, &out->result);
}

/* Along the joined dimension a shard of the result is the shards one after the other, which is what run
 * lists say too; along any other both must be cut alike. */
sheaf_status sheaf_rule_concat(const rule_context *c, sheaf_rule_result *out) {
    const sheaf_layout x = summed(&c->have[0]), y = summed(&c->have[1]);
    int dim = c->node->params.concat.dim;
    out->linear = c->have[0].kind == SHEAF_PARTIAL && c->have[1].kind == SHEAF_PARTIAL;
    out->want[0] = x;
    out->want[1] = y;
    if (is_axis(&x, dim) && is_axis(&y, dim)) {
        out->rule = "concat of parts";
        return sheaf_layout_join(c->a, &x, &y, c->env->n_devices, &out->result);
    }
    const sheaf_layout *l = is_cut(&x) ? &x : &y;
    if (!is_cut(l)) return sheaf_rule_gather_all(c, out, out->rule);
    if (l->axis == dim) return sheaf_rule_gather_all(c, out, "concat of a part and a whole: gather");
    out->want[0] = out->want[1] = out->result = *l;
    out->rule = "concat, cut alike";
    return SHEAF_OK;
}
