/* Placement: from a split table and a model's tensors to a layout for each.
 *
 * Tensors are matched to rows, gathered into cuts (one group of one layer each), and the cuts are made in
 * order of layer, so that what rounding took from a device in one it gets back in the next. */
#include "splitstate/policy_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Bounds a pattern that a user wrote badly: an error instead of a hang. */
enum { MATCH_LIMIT = 100000, MAX_TENSORS = 1 << 20 };

typedef struct matched {
    const policy_row *row;
    int layer, cut, member;
} matched;

typedef struct matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
} matcher;

/* One match of a whole name. Layer: the number in the first group, if it is one; else -1. */
static sheaf_status match_row(matcher *x, const policy_row *row, const char *name, bool *hit, int *layer) {
    int n = pcre2_match(row->code, (PCRE2_SPTR)name, strlen(name), 0, 0, x->data, x->context);
    *hit = n >= 0;
    *layer = -1;
    if (n == PCRE2_ERROR_NOMATCH) return SHEAF_OK;
    if (n == PCRE2_ERROR_NOMEMORY)
        return sheaf_fail(SHEAF_E_NO_MEMORY, "split table line %d: no memory to match '%s'", row->line, name);
    if (n < 0)
        return sheaf_fail(SHEAF_E_FORMAT, "split table line %d: pattern gives up on '%s' (%d)", row->line, name, n);
    const size_t *at = pcre2_get_ovector_pointer(x->data);
    if (n < 2 || at[2] == PCRE2_UNSET || at[3] - at[2] > 6) return SHEAF_OK;
    int value = 0;
    for (size_t i = at[2]; i < at[3]; i++) {
        if (name[i] < '0' || name[i] > '9') return SHEAF_OK;
        value = value * 10 + (name[i] - '0');
    }
    if (at[3] > at[2]) *layer = value;
    return SHEAF_OK;
}

static sheaf_status match_tensor(const sheaf_policy *p, matcher *x, const sheaf_named *t, matched *out) {
    *out = (matched){.layer = -1, .cut = -1};
    for (int i = 0; i < p->n_rows; i++) {
        bool hit;
        int layer;
        sheaf_status s = match_row(x, &p->rows[i], t->name, &hit, &layer);
        if (s) return s;
        if (!hit) continue;
        if (out->row) {
            return sheaf_fail(SHEAF_E_FORMAT, "split table lines %d and %d both match %s", out->row->line,
                              p->rows[i].line, t->name);
        }
        out->row = &p->rows[i];
        out->layer = layer;
    }
    if (!out->row)
        return sheaf_fail(SHEAF_E_FORMAT, "split table lines %d to %d: no row matches %s", p->rows[0].line,
                          p->rows[p->n_rows - 1].line, t->name);
    if (out->row->group < 0) return SHEAF_OK;
    if (t->ne[out->row->axis] % (out->row->axis == 0 ? sheaf_type_block(t->type) : 1) != 0) {
        return sheaf_fail(SHEAF_E_SHAPE, "split table line %d: %s: rows are not whole blocks", out->row->line, t->name);
    }
    return SHEAF_OK;
}

static sheaf_status match_all(const sheaf_policy *p, const sheaf_named *tensors, int n, matched *out) {
    matcher x = {pcre2_match_data_create(8, NULL), pcre2_match_context_create(NULL)};
    sheaf_status s = x.data && x.context ? SHEAF_OK : sheaf_fail(SHEAF_E_NO_MEMORY, "matching names");
    if (!s) pcre2_set_match_limit(x.context, MATCH_LIMIT);
    for (int i = 0; i < n && !s; i++) s = match_tensor(p, &x, &tensors[i], &out[i]);
    pcre2_match_data_free(x.data);
    pcre2_match_context_free(x.context);
    return s;
}

/* --- gathering tensors into cuts --- */

typedef struct order {
    int layer, group, tensor;
} order;

static int compare_order(const void *a, const void *b) {
    const order *x = a, *y = b;
    if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
    if (x->group != y->group) return x->group < y->group ? -1 : 1;
    return x->tensor < y->tensor ? -1 : x->tensor > y->tensor;
}

typedef struct cut_list {
    policy_cut *cuts;
    int n;
    policy_member *members;
    int64_t *shares;
    policy_held *held;
} cut_list;

static sheaf_status gather(const sheaf_policy *p, const sheaf_named *tensors, int n, matched *m, int n_devices,
                           cut_list *out) {
    order *by = sheaf_calloc((size_t)n, sizeof *by);
    out->cuts = sheaf_calloc((size_t)n, sizeof *out->cuts);
    out->members = sheaf_calloc((size_t)n, sizeof *out->members);
    out->shares = sheaf_calloc((size_t)n * (size_t)n_devices, sizeof *out->shares);
    out->held = sheaf_calloc((size_t)n * (size_t)n_devices, sizeof *out->held);
    if (!by || !out->cuts || !out->members || !out->shares || !out->held) {
        sheaf_free(by);
        return sheaf_fail(SHEAF_E_NO_MEMORY, "placing %d tensors", n);
    }
    int cut_tensors = 0;
    for (int i = 0; i < n; i++) {
        int group = m[i].row ? m[i].row->group : -1;
        if (group >= 0) by[cut_tensors++] = (order){m[i].layer, group, i};
    }
    qsort(by, (size_t)cut_tensors, sizeof *by, compare_order);
    for (int i = 0; i < cut_tensors; i++) {
        policy_cut *c = out->n > 0 ? &out->cuts[out->n - 1] : NULL;
        if (!c || by[i].layer != by[i - 1].layer || by[i].group != by[i - 1].group) {
            c = &out->cuts[out->n];
            *c = (policy_cut){.group = &p->groups[by[i].group],
                              .layer = by[i].layer,
                              .members = &out->members[i],
                              .share = &out->shares[(size_t)out->n * (size_t)n_devices],
                              .held = &out->held[(size_t)out->n * (size_t)n_devices]};
            out->n++;
        }
        int t = by[i].tensor;
        m[t].cut = out->n - 1;
        m[t].member = c->n_members;
        c->members[c->n_members++] = (policy_member){.tensor = &tensors[t], .row = m[t].row};
    }
    sheaf_free(by);
    return SHEAF_OK;
}

static void cut_list_free(cut_list *l) {
    sheaf_free(l->cuts);
    sheaf_free(l->members);
    sheaf_free(l->shares);
    sheaf_free(l->held);
}

/* Shares as fractions of one. */
static sheaf_status weights_of(const sheaf_policy_env *env, double *out) {
    double sum = 0;
    if (env->n_devices < 1 || env->n_devices > SHEAF_MAX_DEVICES) {
        return sheaf_fail(SHEAF_E_ARGUMENT, "%d devices, not 1 to %d", env->n_devices, SHEAF_MAX_DEVICES);
    }
    for (int d = 0; d < env->n_devices; d++) {
        out[d] = env->weights ? (double)env->weights[d] : 1.0;
        if (!isfinite(out[d]) || out[d] < 0) return sheaf_fail(SHEAF_E_ARGUMENT, "share %d is %g", d, out[d]);
        sum += out[d];
    }
    if (sum <= 0) return sheaf_fail(SHEAF_E_ARGUMENT, "all shares are zero");
    for (int d = 0; d < env->n_devices; d++) out[d] /= sum;
    return SHEAF_OK;
}

static sheaf_status make_cuts(const sheaf_policy_env *env, const double *weight, cut_list *l) {
    double debt[SHEAF_MAX_DEVICES] = {0};
    sheaf_status s = SHEAF_OK;
    for (int i = 0; i < l->n && !s; i++) {
        s = sheaf_policy_measure(env, &l->cuts[i]);
        if (!s) sheaf_policy_apportion(env, weight, debt, &l->cuts[i]);
    }
    return s;
}

/* --- bytes by device --- */

static uint64_t bytes_of(const sheaf_named *t) {
    uint64_t bytes = sheaf_row_bytes(t->type, t->ne[0]);
    for (int d = 1; d < SHEAF_MAX_DIMS; d++) bytes *= (uint64_t)t->ne[d];
    return bytes;
}

static void find_errors(sheaf_shares *out) {
    out->error_min = INFINITY;
    for (int d = 0; d < out->n_devices; d++) {
        double asked = out->device[d].asked * (double)out->cut;
        if (asked <= 0) continue;
        double off = fabs((double)out->device[d].cut - asked) / asked;
        out->error_max = fmax(out->error_max, off);
        out->error_min = fmin(out->error_min, off);
    }
    if (isinf(out->error_min)) out->error_min = 0;
}

static sheaf_share share_of(const cut_list *l, int device, double asked, uint64_t mirrored, bool alone) {
    double cut = 0, copies = 0; /* whole numbers below 2^53: exact */
    for (int i = 0; i < l->n; i++) {
        cut += l->cuts[i].held[device].cut;
        copies += l->cuts[i].held[device].copies;
    }
    /* what is mirrored on one device is held once */
    return (sheaf_share){asked, (uint64_t)cut + (alone ? mirrored : 0), (uint64_t)copies, alone ? 0 : mirrored};
}

static void add_up(const sheaf_named *tensors, int n, const matched *m, const cut_list *l, const double *weight,
                   int n_devices, sheaf_shares *out) {
    uint64_t mirrored = 0;
    *out = (sheaf_shares){.n_devices = n_devices};
    for (int i = 0; i < n; i++)
        if (m[i].cut < 0 && !sheaf_policy_is_state(tensors[i].name)) mirrored += bytes_of(&tensors[i]);
    for (int d = 0; d < n_devices; d++) {
        out->device[d] = share_of(l, d, weight[d], mirrored, n_devices == 1);
        out->cut += out->device[d].cut;
    }
    for (int i = 0; i < l->n; i++)
        out->largest_unit = (uint64_t)fmax((double)out->largest_unit, l->cuts[i].bytes_handed_out);
    find_errors(out);
}

sheaf_status sheaf_policy_place(const sheaf_policy *p, const sheaf_policy_env *env, const sheaf_named *tensors, int n,
                                sheaf_arena *a, sheaf_placement *out, sheaf_shares *shares) {
    if (n < 0 || n > MAX_TENSORS) return sheaf_fail(SHEAF_E_ARGUMENT, "%d tensors", n);
    if (shares) *shares = (sheaf_shares){.n_devices = env->n_devices};
    double weight[SHEAF_MAX_DEVICES];
    sheaf_status s = weights_of(env, weight);
    if (s || n == 0) return s;
    cut_list cuts = {0};
    matched *m = sheaf_calloc((size_t)n, sizeof *m);
    if (!m) return sheaf_fail(SHEAF_E_NO_MEMORY, "placing %d tensors", n);
    s = match_all(p, tensors, n, m);
    if (!s) s = gather(p, tensors, n, m, env->n_devices, &cuts);
    if (!s) s = make_cuts(env, weight, &cuts);
    for (int i = 0; i < n && !s; i++) {
        const policy_row *row = m[i].row;
        out[i] = (sheaf_placement){.layout = sheaf_layout_mirrored(), .group = "mirrored"};
        if (row) out[i].rule = row->pattern, out[i].line = row->line;
        if (m[i].cut < 0) continue;
        const policy_cut *c = &cuts.cuts[m[i].cut];
        s = sheaf_policy_layout(env, c, &c->members[m[i].member], a, &out[i]);
    }
    if (!s && shares) add_up(tensors, n, m, &cuts, weight, env->n_devices, shares);
    cut_list_free(&cuts);
    sheaf_free(m);
    return s;
}
