/* Cutting one group of one layer: how many units there are, who gets how many, and what that means for
 * each tensor of the group.
 *
 * A unit is what may not be cut. Its size on the model alone (heads raised to whole quant blocks; a block
 * of columns) also gives the matmul's segment, which must be the same on any number of devices; the cut
 * itself is made in multiples of it that the buffer's packing likes too. */
#include "splitstate/policy_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t gcd(int64_t a, int64_t b) {
    while (b != 0) {
        int64_t t = a % b;
        a = b;
        b = t;
    }
    return a;
}

static int64_t lcm(int64_t a, int64_t b) { return a / gcd(a, b) * b; }

/* --- counts ------------------------------------------------------------------------------------------ */

static bool lookup(const sheaf_policy_env *env, const char *key, int layer, int64_t *out) {
    char *end;
    long long v = strtoll(key, &end, 10);
    if (*key && !*end) {
        *out = v;
        return true;
    }
    char by_layer[MAX_KEY + 16];
    snprintf(by_layer, sizeof by_layer, "%s[%d]", key, layer);
    if (layer >= 0 && env->get && env->get(env->ctx, by_layer, out) == SHEAF_OK) return true;
    return env->get && env->get(env->ctx, key, out) == SHEAF_OK;
}

/* A number, or the first of the keys between '|' that the model has. */
static sheaf_status value_of(const sheaf_policy_env *env, const char *keys, int layer, int line, int64_t *out) {
    char copy[MAX_KEY], *save = NULL;
    snprintf(copy, sizeof copy, "%s", keys);
    for (char *key = strtok_r(copy, "|", &save); key; key = strtok_r(NULL, "|", &save)) {
        if (!lookup(env, key, layer, out)) continue;
        if (*out >= 1 && *out <= 1 << 24) return SHEAF_OK;
        return sheaf_fail(SHEAF_E_FORMAT, "split table line %d: %s is %" PRId64, line, key, *out);
    }
    return sheaf_fail(SHEAF_E_NOT_FOUND, "split table line %d: the model does not give %s", line, keys);
}

static int64_t part_count(const policy_cut *c, const policy_part *p) { return p->kv ? c->n_kv : c->n_q; }

static sheaf_status bad_shape(const policy_cut *c, const policy_member *m) {
    return sheaf_fail(SHEAF_E_SHAPE,
                      "split table line %d: %s: %" PRId64
                      " elements of dimension %d are not whole parts of group %s (%" PRId64 " and %" PRId64 ")",
                      m->row->line, m->tensor->name, m->tensor->ne[m->row->axis], m->row->axis, c->group->name, c->n_q,
                      c->n_kv);
}

/* Elements per head of each part: given, or what is left shared evenly. */
static sheaf_status part_sizes(const sheaf_policy_env *env, const policy_cut *c, policy_member *m) {
    int64_t left = m->tensor->ne[m->row->axis], open = 0;
    for (int i = 0; i < m->row->n_parts; i++) {
        const policy_part *p = &m->row->parts[i];
        m->size[i] = 0;
        if (p->size[0]) {
            sheaf_status s = value_of(env, p->size, c->layer, m->row->line, &m->size[i]);
            if (s) return s;
        }
        left -= m->size[i] * part_count(c, p);
        if (!p->size[0]) open += part_count(c, p);
    }
    if (left < 0 || (open == 0 && left != 0) || (open > 0 && (left == 0 || left % open != 0))) return bad_shape(c, m);
    int64_t each = open > 0 ? left / open : 0;
    for (int i = 0; i < m->row->n_parts; i++) {
        if (!m->row->parts[i].size[0]) m->size[i] = each;
    }
    return SHEAF_OK;
}

static sheaf_status count_heads(const sheaf_policy_env *env, policy_cut *c) {
    const policy_group *g = c->group;
    sheaf_status s = value_of(env, g->count, c->layer, g->line, &c->n_q);
    if (!s) s = value_of(env, g->kv_count, c->layer, g->line, &c->n_kv);
    if (s) return s;
    if (c->n_q % c->n_kv == 0) return SHEAF_OK;
    return sheaf_fail(SHEAF_E_FORMAT, "split table line %d: %" PRId64 " query heads over %" PRId64 " KV heads", g->line,
                      c->n_q, c->n_kv);
}

/* Columns of the group: what all its tensors must agree on. */
static sheaf_status count_columns(policy_cut *c) {
    for (int i = 0; i < c->n_members; i++) {
        policy_member *m = &c->members[i];
        int64_t n = m->tensor->ne[m->row->axis];
        if (n % m->row->n_parts != 0) return bad_shape(c, m);
        n /= m->row->n_parts;
        if (i > 0 && n != c->n_q) {
            return sheaf_fail(SHEAF_E_SHAPE, "split table line %d: %s has %" PRId64 " columns, %s has %" PRId64,
                              m->row->line, m->tensor->name, n, c->members[0].tensor->name, c->n_q);
        }
        c->n_q = n;
    }
    return SHEAF_OK;
}

/* --- units ------------------------------------------------------------------------------------------- */

static int64_t block_of(const policy_member *m) { return m->row->axis == 0 ? sheaf_type_block(m->tensor->type) : 1; }

static bool packs(const sheaf_policy_env *env, const policy_member *m) {
    return m->row->axis == 1 && env->pack_rows > 1;
}

static void head_units(const sheaf_policy_env *env, policy_cut *c) {
    int64_t packed = 1;
    c->unit = c->group->unit ? c->group->unit : 1;
    c->kv_unit = 1;
    for (int i = 0; i < c->n_members; i++) {
        const policy_member *m = &c->members[i];
        for (int p = 0; p < m->row->n_parts; p++) {
            int64_t *unit = m->row->parts[p].kv ? &c->kv_unit : &c->unit;
            *unit = lcm(*unit, block_of(m) / gcd(block_of(m), m->size[p]));
            unit = m->row->parts[p].kv ? &c->kv_unit : &packed;
            if (packs(env, m)) *unit = lcm(*unit, env->pack_rows / gcd(env->pack_rows, m->size[p]));
        }
    }
    c->cut_unit = lcm(c->unit, packed);
}

/* The block of columns: long enough for a fast inner loop, short enough that sixteen devices can share and,
 * where that can be had, an even number of them, since most machines have 2, 4 or 8 devices. */
static int64_t column_unit(int64_t n, int64_t block) {
    static const int64_t sizes[] = {256, 128, 64, 32};
    for (int even = 1; even >= 0; even--) {
        for (int i = 0; i < 4; i++) {
            int64_t u = sizes[i];
            if (u % block == 0 && n % u == 0 && n / u >= 16 && (!even || n / u % 2 == 0)) return u;
        }
    }
    if (block >= 32) return block;
    int64_t best = block; /* small and odd: the largest divisor up to 32 */
    for (int64_t u = block; u <= 32; u += block) {
        if (n % u == 0) best = u;
    }
    return best;
}

static sheaf_status column_units(const sheaf_policy_env *env, policy_cut *c) {
    int64_t block = 1;
    c->cut_unit = 1;
    for (int i = 0; i < c->n_members; i++) {
        block = lcm(block, block_of(&c->members[i]));
        if (packs(env, &c->members[i])) c->cut_unit = env->pack_rows;
    }
    if (c->group->unit) {
        c->unit = c->group->unit;
    } else if (c->group->kind == GROUP_ROWS) {
        c->unit = lcm(c->n_q >= 128 * 64 ? 128 : 32, block);
    } else {
        c->unit = column_unit(c->n_q, block);
    }
    c->cut_unit = lcm(c->unit, c->cut_unit);
    if (c->unit % block == 0 && (c->group->kind == GROUP_ROWS || c->n_q % c->unit == 0)) return SHEAF_OK;
    return sheaf_fail(SHEAF_E_SHAPE,
                      "split table line %d: group %s: %s: a unit of %" PRId64 " of %" PRId64
                      " columns cuts a block of %" PRId64,
                      c->group->line, c->group->name, c->members[0].tensor->name, c->unit, c->n_q, block);
}

static sheaf_status check_unit(const policy_cut *c) {
    if (c->n_q < 1) return sheaf_fail(SHEAF_E_SHAPE, "%s: nothing to cut", c->members[0].tensor->name);
    if (c->unit < 1 || c->unit > 1 << 24 || c->cut_unit > 1 << 24) {
        return sheaf_fail(SHEAF_E_RANGE, "split table line %d: group %s: unit of %" PRId64, c->group->line,
                          c->group->name, c->cut_unit);
    }
    return SHEAF_OK;
}

sheaf_status sheaf_policy_measure(const sheaf_policy_env *env, policy_cut *c) {
    sheaf_status s = c->group->kind == GROUP_HEADS ? count_heads(env, c) : count_columns(c);
    if (!s && c->n_q < 1) s = check_unit(c);
    for (int i = 0; i < c->n_members && !s; i++) s = part_sizes(env, c, &c->members[i]);
    if (s) return s;
    if (c->group->kind == GROUP_HEADS) {
        head_units(env, c);
    } else {
        s = column_units(env, c);
    }
    return s ? s : check_unit(c);
}

/* --- shares ------------------------------------------------------------------------------------------ */

bool sheaf_policy_is_state(const char *name) { return strstr(name, ".cache_") != NULL; }

/* Bytes of `elements` of the cut dimension. */
static double stretch_bytes(const policy_member *m, double elements) {
    for (int d = 0; d < SHEAF_MAX_DIMS; d++) elements *= d == m->row->axis ? 1 : (double)m->tensor->ne[d];
    return elements * (double)sheaf_type_bytes(m->tensor->type) / (double)sheaf_type_block(m->tensor->type);
}

/* Bytes of weights that one query head or one KV head or one column stands for. */
static double bytes_of_one(const policy_cut *c, bool kv) {
    double sum = 0;
    for (int i = 0; i < c->n_members; i++) {
        const policy_member *m = &c->members[i];
        if (sheaf_policy_is_state(m->tensor->name)) continue;
        for (int p = 0; p < m->row->n_parts; p++)
            if (m->row->parts[p].kv == kv) sum += stretch_bytes(m, (double)m->size[p]);
    }
    return sum;
}

/* n units by weight: everybody's whole part, then the rest to whom most is owed. */
static void divide(int64_t n, int n_devices, const double *weight, const double *debt_units, int64_t *out) {
    bool given[SHEAF_MAX_DEVICES] = {false};
    int64_t left = n;
    for (int d = 0; d < n_devices; d++) {
        out[d] = (int64_t)((double)n * weight[d] + 1e-9 * (double)n);
        left -= out[d];
    }
    for (; left > 0; left--) {
        int best = -1;
        double most = 0;
        for (int d = 0; d < n_devices; d++) {
            double owed = (double)n * weight[d] - (double)out[d] + debt_units[d];
            if (given[d] || weight[d] <= 0 || (best >= 0 && owed <= most + 1e-9)) continue;
            best = d;
            most = owed;
        }
        if (best < 0) break;
        given[best] = true;
        out[best]++;
    }
}

static double largest_excess(int64_t n, int n_devices, const double *weight, const int64_t *units, bool *idle) {
    double worst = 0;
    *idle = false;
    for (int d = 0; d < n_devices; d++) {
        if (weight[d] <= 0) continue;
        double over = (double)units[d] / ((double)n * weight[d]);
        worst = over > worst ? over : worst;
        *idle = *idle || units[d] == 0;
    }
    return worst;
}

/* Kernels like multiples of 128: taken where nobody is idle for it and the slowest device gets at most a
 * sixteenth more than by the finer unit. */
static int64_t liked_unit(const policy_cut *c, int n_devices, const double *weight, const double *none) {
    int64_t coarse = lcm(c->cut_unit, 128), fine[SHEAF_MAX_DEVICES], wide[SHEAF_MAX_DEVICES];
    if (c->group->kind != GROUP_COLUMNS || c->group->unit || coarse == c->cut_unit || c->n_q % coarse != 0)
        return c->cut_unit;
    bool fine_idle, wide_idle;
    divide(c->n_q / c->cut_unit, n_devices, weight, none, fine);
    divide(c->n_q / coarse, n_devices, weight, none, wide);
    double a = largest_excess(c->n_q / c->cut_unit, n_devices, weight, fine, &fine_idle);
    double b = largest_excess(c->n_q / coarse, n_devices, weight, wide, &wide_idle);
    return (!wide_idle || fine_idle) && b <= a * 17 / 16 ? coarse : c->cut_unit;
}

/* Devices that hold KV head k: whose query heads read it, widened to whole KV units. */
static sheaf_device_set kv_holders(const policy_cut *c, int n_devices, int64_t k) {
    sheaf_device_set set = 0;
    int64_t group = c->n_q / c->n_kv, q = 0;
    for (int d = 0; d < n_devices; q += c->share[d++]) {
        if (c->share[d] == 0) continue;
        int64_t first = q / group / c->kv_unit * c->kv_unit;
        int64_t last = (q + c->share[d] - 1) / group / c->kv_unit * c->kv_unit + c->kv_unit - 1;
        if (k >= first && k <= last) set |= (sheaf_device_set)1 << d;
    }
    return set;
}

/* What each device then holds. */
static void weigh(const sheaf_policy_env *env, policy_cut *c) {
    double one = bytes_of_one(c, false), one_kv = bytes_of_one(c, true);
    int64_t heads[SHEAF_MAX_DEVICES] = {0};
    bool shared = false;
    for (int64_t k = 0; k < c->n_kv && one_kv > 0; k++) {
        sheaf_device_set set = kv_holders(c, env->n_devices, k);
        shared = shared || (set & (set - 1)) != 0;
        for (int d = 0; d < env->n_devices; d++) heads[d] += (int64_t)(set >> d & 1);
    }
    for (int d = 0; d < env->n_devices; d++) {
        double kv = (double)heads[d] * one_kv;
        c->held[d] = (policy_held){one * (double)c->share[d] + (shared ? 0 : kv), shared ? kv : 0};
    }
}

void sheaf_policy_apportion(const sheaf_policy_env *env, const double *weight, double *debt, policy_cut *c) {
    double none[SHEAF_MAX_DEVICES] = {0}, owed[SHEAF_MAX_DEVICES] = {0}, total = 0;
    int64_t unit = liked_unit(c, env->n_devices, weight, none), units = (c->n_q + unit - 1) / unit, left = c->n_q;
    /* as many KV heads as query heads: each has its own, and they are cut together */
    double bytes = bytes_of_one(c, false) + (c->n_kv == c->n_q ? bytes_of_one(c, true) : 0);
    for (int d = 0; d < env->n_devices; d++) owed[d] = bytes > 0 ? debt[d] / (bytes * (double)unit) : 0;
    divide(units, env->n_devices, weight, owed, c->share);
    for (int d = 0; d < env->n_devices; d++) {
        int64_t n = c->share[d] * unit < left ? c->share[d] * unit : left; /* the last unit may be short */
        c->share[d] = n;
        left -= n;
    }
    weigh(env, c);
    for (int d = 0; d < env->n_devices; d++) total += c->held[d].cut;
    for (int d = 0; d < env->n_devices; d++) debt[d] += total * weight[d] - c->held[d].cut;
    c->bytes_handed_out = total / (double)c->n_q * (double)unit;
}

/* --- layouts ----------------------------------------------------------------------------------------- */

static int part_runs(const sheaf_policy_env *env, const policy_cut *c, const policy_part *p, int64_t size,
                     sheaf_run *runs) {
    int n = 0;
    if (p->kv) {
        for (int64_t k = 0; k < c->n_kv; k++) runs[n++] = (sheaf_run){size, kv_holders(c, env->n_devices, k)};
        return n;
    }
    for (int d = 0; d < env->n_devices; d++) {
        if (c->share[d] > 0) runs[n++] = (sheaf_run){c->share[d] * size, (sheaf_device_set)1 << d};
    }
    return n;
}

/* Largest stretch of whole blocks, at most 256 elements (or one block), that divides the unit. */
static int32_t segment_of(int64_t unit, int64_t block) {
    int64_t best = block;
    for (int64_t s = block; s <= 256; s += block) {
        if (unit % s == 0) best = s;
    }
    return (int32_t)best;
}

static bool is_row_parallel(const policy_member *m) {
    return m->row->axis == 0 && m->row->n_parts == 1 && !m->row->parts[0].kv && m->tensor->ne[1] > 1;
}

sheaf_status sheaf_policy_layout(const sheaf_policy_env *env, const policy_cut *c, const policy_member *m,
                                 sheaf_arena *a, sheaf_placement *out) {
    size_t most = (size_t)m->row->n_parts * (size_t)(c->n_kv > env->n_devices ? c->n_kv : env->n_devices);
    sheaf_run *runs = sheaf_calloc(most, sizeof *runs);
    if (!runs) return sheaf_fail(SHEAF_E_NO_MEMORY, "%s: %zu runs", m->tensor->name, most);
    int n = 0;
    for (int p = 0; p < m->row->n_parts; p++) n += part_runs(env, c, &m->row->parts[p], m->size[p], runs + n);
    sheaf_status s = sheaf_layout_axis(a, m->row->axis, runs, n, env->n_devices, &out->layout);
    sheaf_free(runs);
    if (!s) s = sheaf_layout_check(&out->layout, m->tensor->ne, env->n_devices);
    if (is_row_parallel(m)) out->segment = segment_of(c->unit * m->size[0], sheaf_type_block(m->tensor->type));
    out->group = c->group->name;
    out->rule = m->row->pattern;
    out->line = m->row->line;
    return s ? sheaf_error_context(s, "%s", m->tensor->name) : SHEAF_OK;
}
