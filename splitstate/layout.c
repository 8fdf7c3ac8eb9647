/* The layout value and its algebra.
 *
 * Owns: what makes a layout well-formed (sheaf_layout_check) and the one spelling of each: runs never
 * empty, neighbours with equal device sets merged, MIRRORED where every run is everywhere. Two layouts
 * that say the same are therefore equal member by member. Run lists lie in the caller's arena. Does
 * not know tensors' bytes (pieces.c) nor ops (rules.c). */
#include "splitstate/splitstate.h"
#include "tensor/hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

sheaf_device_set sheaf_all_devices(int n_devices) {
    return n_devices >= 64 ? ~(sheaf_device_set)0 : ((sheaf_device_set)1 << n_devices) - 1;
}

static bool holds(const sheaf_run *r, int device) { return r->devices >> device & 1; }

static bool is_everywhere(const sheaf_run *runs, int n, sheaf_device_set all) {
    for (int i = 0; i < n; i++) {
        if ((runs[i].devices & all) != all) return false;
    }
    return true;
}

/* Drops empty runs and merges neighbours, in place; returns how many are left. */
static int merge(sheaf_run *runs, int n) {
    int m = 0;
    for (int i = 0; i < n; i++) {
        if (runs[i].length == 0) continue;
        if (m > 0 && runs[m - 1].devices == runs[i].devices) {
            runs[m - 1].length += runs[i].length;
        } else {
            runs[m++] = runs[i];
        }
    }
    return m;
}

sheaf_status sheaf_layout_axis(sheaf_arena *a, int axis, const sheaf_run *runs, int n_runs, int n_devices,
                               sheaf_layout *out) {
    *out = sheaf_layout_mirrored();
    sheaf_device_set all = sheaf_all_devices(n_devices);
    for (int i = 0; i < n_runs; i++) {
        if (runs[i].length < 0 || (runs[i].devices & ~all) != 0 || runs[i].devices == 0) {
            return sheaf_fail(SHEAF_E_RANGE, "layout: run %d of %" PRId64 " elements on devices %" PRIx64 " of %d", i,
                              runs[i].length, runs[i].devices, n_devices);
        }
    }
    if (axis < 0 || axis >= SHEAF_MAX_DIMS) return sheaf_fail(SHEAF_E_RANGE, "layout: axis %d", axis);
    if (n_runs == 0 || is_everywhere(runs, n_runs, all)) return SHEAF_OK;
    sheaf_run *copy = sheaf_arena_alloc(a, sizeof *copy * (size_t)n_runs);
    if (!copy) return sheaf_arena_status(a);
    memcpy(copy, runs, sizeof *copy * (size_t)n_runs);
    int m = merge(copy, n_runs);
    if (m == 0 || is_everywhere(copy, m, all)) return SHEAF_OK;
    *out = (sheaf_layout){SHEAF_AXIS, axis, m, copy};
    return SHEAF_OK;
}

sheaf_status sheaf_layout_shares(sheaf_arena *a, int axis, const int64_t *share, int n_devices, sheaf_layout *out) {
    sheaf_run runs[SHEAF_MAX_DEVICES];
    int n = 0;
    if (n_devices < 1 || n_devices > SHEAF_MAX_DEVICES)
        return sheaf_fail(SHEAF_E_RANGE, "layout: %d devices", n_devices);
    for (int d = 0; d < n_devices; d++) {
        if (share[d] != 0) runs[n++] = (sheaf_run){share[d], (sheaf_device_set)1 << d};
    }
    return sheaf_layout_axis(a, axis, runs, n, n_devices, out);
}

_Static_assert(sizeof(sheaf_run) == sizeof(int64_t) + sizeof(sheaf_device_set), "runs have no padding");

bool sheaf_layout_equal(const sheaf_layout *x, const sheaf_layout *y) {
    if (x->kind != y->kind) return false;
    if (x->kind != SHEAF_AXIS) return true;
    if (x->axis != y->axis || x->n_runs != y->n_runs) return false;
    return x->runs == y->runs || memcmp(x->runs, y->runs, (size_t)x->n_runs * sizeof *x->runs) == 0;
}

int64_t sheaf_layout_length(const sheaf_layout *l) {
    int64_t sum = 0;
    if (l->kind != SHEAF_AXIS) return 0;
    for (int i = 0; i < l->n_runs; i++) sum += l->runs[i].length;
    return sum;
}

int64_t sheaf_layout_share(const sheaf_layout *l, int device, int64_t whole) {
    int64_t sum = 0;
    if (l->kind != SHEAF_AXIS) return whole;
    for (int i = 0; i < l->n_runs; i++) sum += holds(&l->runs[i], device) ? l->runs[i].length : 0;
    return sum;
}

void sheaf_layout_local_ne(const sheaf_layout *l, int device, const int64_t ne[4], int64_t out[4]) {
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) out[i] = ne[i];
    if (l->kind == SHEAF_AXIS) out[l->axis] = sheaf_layout_share(l, device, ne[l->axis]);
}

sheaf_status sheaf_layout_slice(sheaf_arena *a, const sheaf_layout *l, int64_t begin, int64_t end, int n_devices,
                                sheaf_layout *out) {
    *out = *l;
    if (l->kind != SHEAF_AXIS) return SHEAF_OK;
    if (begin < 0 || end < begin || end > sheaf_layout_length(l)) {
        return sheaf_fail(SHEAF_E_RANGE, "layout: slice [%" PRId64 ", %" PRId64 ") of %" PRId64, begin, end,
                          sheaf_layout_length(l));
    }
    sheaf_run *runs = sheaf_arena_alloc(a, sizeof *runs * (size_t)l->n_runs);
    if (!runs) return sheaf_arena_status(a);
    int n = 0;
    int64_t at = 0;
    for (int i = 0; i < l->n_runs; i++) {
        int64_t lo = at > begin ? at : begin;
        int64_t hi = at + l->runs[i].length < end ? at + l->runs[i].length : end;
        if (lo < hi) runs[n++] = (sheaf_run){hi - lo, l->runs[i].devices};
        at += l->runs[i].length;
    }
    return sheaf_layout_axis(a, l->axis, runs, n, n_devices, out);
}

sheaf_status sheaf_layout_scale(sheaf_arena *a, const sheaf_layout *l, int64_t num, int64_t den, sheaf_layout *out) {
    *out = *l;
    if (l->kind != SHEAF_AXIS || num == den) return SHEAF_OK;
    if (num <= 0 || den <= 0) return sheaf_fail(SHEAF_E_SHAPE, "layout: scale by %" PRId64 "/%" PRId64, num, den);
    sheaf_run *runs = sheaf_arena_alloc(a, sizeof *runs * (size_t)l->n_runs);
    if (!runs) return sheaf_arena_status(a);
    for (int i = 0; i < l->n_runs; i++) {
        int64_t scaled;
        if (__builtin_mul_overflow(l->runs[i].length, num, &scaled) || scaled % den != 0) {
            return sheaf_fail(SHEAF_E_SHAPE, "layout: a run of %" PRId64 " does not scale by %" PRId64 "/%" PRId64,
                              l->runs[i].length, num, den);
        }
        runs[i] = (sheaf_run){scaled / den, l->runs[i].devices};
    }
    out->runs = runs;
    return SHEAF_OK;
}

sheaf_layout sheaf_layout_on_axis(const sheaf_layout *l, int axis) {
    sheaf_layout out = *l;
    if (l->kind == SHEAF_AXIS) out.axis = axis;
    return out;
}

sheaf_status sheaf_layout_refine(sheaf_arena *a, const sheaf_layout *x, const sheaf_layout *y, sheaf_layout *out) {
    *out = *x;
    if (x->kind != SHEAF_AXIS || y->kind != SHEAF_AXIS || sheaf_layout_length(x) != sheaf_layout_length(y)) {
        return sheaf_fail(SHEAF_E_SHAPE, "layout: borders of two layouts of %" PRId64 " and %" PRId64 " elements",
                          sheaf_layout_length(x), sheaf_layout_length(y));
    }
    sheaf_run *runs = sheaf_arena_alloc(a, sizeof *runs * (size_t)(x->n_runs + y->n_runs));
    if (!runs) return sheaf_arena_status(a);
    int n = 0, i = 0, j = 0;
    int64_t left_x = x->runs[0].length, left_y = y->runs[0].length;
    while (i < x->n_runs && j < y->n_runs) {
        int64_t step = left_x < left_y ? left_x : left_y;
        runs[n++] = (sheaf_run){step, x->runs[i].devices};
        left_x -= step;
        left_y -= step;
        if (left_x == 0 && ++i < x->n_runs) left_x = x->runs[i].length;
        if (left_y == 0 && ++j < y->n_runs) left_y = y->runs[j].length;
    }
    out->runs = runs;
    out->n_runs = n;
    return SHEAF_OK;
}

bool sheaf_layout_is_single(const sheaf_layout *l) {
    if (l->kind != SHEAF_AXIS) return false;
    for (int i = 0; i < l->n_runs; i++) {
        if (__builtin_popcountll(l->runs[i].devices) != 1) return false;
    }
    return true;
}

sheaf_status sheaf_layout_single(sheaf_arena *a, const sheaf_layout *l, int n_devices, sheaf_layout *out) {
    *out = *l;
    if (l->kind != SHEAF_AXIS || sheaf_layout_is_single(l)) return SHEAF_OK;
    sheaf_run *runs = sheaf_arena_alloc(a, sizeof *runs * (size_t)l->n_runs);
    if (!runs) return sheaf_arena_status(a);
    for (int i = 0; i < l->n_runs; i++) {
        runs[i] = (sheaf_run){l->runs[i].length, l->runs[i].devices & -l->runs[i].devices};
    }
    return sheaf_layout_axis(a, l->axis, runs, l->n_runs, n_devices, out);
}

sheaf_status sheaf_layout_join(sheaf_arena *a, const sheaf_layout *x, const sheaf_layout *y, int n_devices,
                               sheaf_layout *out) {
    *out = *x;
    if (x->kind != SHEAF_AXIS || y->kind != SHEAF_AXIS || x->axis != y->axis) {
        return sheaf_fail(SHEAF_E_SHAPE, "layout: only cuts of one axis can be joined");
    }
    sheaf_run *runs = sheaf_arena_alloc(a, sizeof *runs * (size_t)(x->n_runs + y->n_runs));
    if (!runs) return sheaf_arena_status(a);
    memcpy(runs, x->runs, sizeof *runs * (size_t)x->n_runs);
    memcpy(runs + x->n_runs, y->runs, sizeof *runs * (size_t)y->n_runs);
    return sheaf_layout_axis(a, x->axis, runs, x->n_runs + y->n_runs, n_devices, out);
}

bool sheaf_layout_covers(const sheaf_layout *have, const sheaf_layout *need, int n_devices) {
    if (have->kind == SHEAF_PARTIAL || need->kind == SHEAF_PARTIAL) return have->kind == need->kind;
    if (have->kind == SHEAF_MIRRORED) return true;
    if (need->kind == SHEAF_MIRRORED) return n_devices == 1;
    if (have->axis != need->axis || sheaf_layout_length(have) != sheaf_layout_length(need)) return false;
    int i = 0, j = 0;
    int64_t end_i = have->runs[0].length, end_j = need->runs[0].length;
    for (;;) {
        if (need->runs[j].devices & ~have->runs[i].devices) return false;
        bool next_i = end_i <= end_j, next_j = end_j <= end_i;
        if (next_i && ++i == have->n_runs) return true;
        if (next_j && ++j == need->n_runs) return true;
        if (next_i) end_i += have->runs[i].length;
        if (next_j) end_j += need->runs[j].length;
    }
}

int64_t sheaf_layout_local_index(const sheaf_layout *l, int device, int64_t i) {
    if (l->kind != SHEAF_AXIS) return i;
    int64_t at = 0, local = 0;
    for (int r = 0; r < l->n_runs; r++) {
        bool mine = holds(&l->runs[r], device);
        if (i < at + l->runs[r].length) return mine && i >= at ? local + (i - at) : -1;
        at += l->runs[r].length;
        if (mine) local += l->runs[r].length;
    }
    return -1;
}

bool sheaf_layout_stretch(const sheaf_layout *l, int device, int64_t whole, int64_t *first, int64_t *length) {
    *first = 0;
    *length = l->kind == SHEAF_AXIS ? 0 : whole;
    if (l->kind != SHEAF_AXIS) return true;
    int64_t at = 0;
    for (int r = 0; r < l->n_runs; at += l->runs[r++].length) {
        if (!holds(&l->runs[r], device)) continue;
        if (*length > 0 && at != *first + *length) return false;
        if (*length == 0) *first = at;
        *length += l->runs[r].length;
    }
    return true;
}

sheaf_status sheaf_layout_check(const sheaf_layout *l, const int64_t ne[4], int n_devices) {
    if (n_devices < 1 || n_devices > SHEAF_MAX_DEVICES)
        return sheaf_fail(SHEAF_E_RANGE, "layout: %d devices", n_devices);
    if (l->kind == SHEAF_MIRRORED || l->kind == SHEAF_PARTIAL) return SHEAF_OK;
    if (l->kind != SHEAF_AXIS) return sheaf_fail(SHEAF_E_RANGE, "layout: kind %d", (int)l->kind);
    if (l->axis < 0 || l->axis >= SHEAF_MAX_DIMS) return sheaf_fail(SHEAF_E_RANGE, "layout: axis %d", l->axis);
    if (l->n_runs < 1 || !l->runs) return sheaf_fail(SHEAF_E_RANGE, "layout: %d runs", l->n_runs);
    sheaf_device_set all = sheaf_all_devices(n_devices);
    int64_t sum = 0;
    for (int i = 0; i < l->n_runs; i++) {
        const sheaf_run *r = &l->runs[i];
        if (r->length <= 0 || __builtin_add_overflow(sum, r->length, &sum)) {
            return sheaf_fail(SHEAF_E_RANGE, "layout: run %d of %" PRId64 " elements", i, r->length);
        }
        if (r->devices == 0 || (r->devices & ~all)) {
            return sheaf_fail(SHEAF_E_RANGE, "layout: run %d on devices %" PRIx64 " of %d", i, r->devices, n_devices);
        }
        if (i > 0 && r[-1].devices == r->devices)
            return sheaf_fail(SHEAF_E_RANGE, "layout: runs %d and %d are one", i - 1, i);
    }
    if (is_everywhere(l->runs, l->n_runs, all)) return sheaf_fail(SHEAF_E_RANGE, "layout: a cut that mirrors");
    if (sum != ne[l->axis]) {
        return sheaf_fail(SHEAF_E_SHAPE, "layout: runs of %" PRId64 " elements for a dimension of %" PRId64, sum,
                          ne[l->axis]);
    }
    return SHEAF_OK;
}

/* Appends to buf[n] at *at; cuts silently, as snprintf does. */
SHEAF_PRINTF(4, 5) static void append(char *buf, size_t n, size_t *at, const char *format, ...) {
    if (*at >= n) return;
    va_list args;
    va_start(args, format);
    int k = vsnprintf(buf + *at, n - *at, format, args);
    va_end(args);
    if (k > 0) *at += (size_t)k;
}

const char *sheaf_layout_text(const sheaf_layout *l, char *buf, size_t n) {
    size_t at = 0;
    if (n == 0) return buf;
    buf[0] = 0;
    if (l->kind == SHEAF_MIRRORED) append(buf, n, &at, "MIRRORED");
    if (l->kind == SHEAF_PARTIAL) append(buf, n, &at, "PARTIAL");
    if (l->kind != SHEAF_AXIS) return buf;
    append(buf, n, &at, "AXIS(%d)", l->axis);
    for (int i = 0; i < l->n_runs; i++) {
        append(buf, n, &at, " [%" PRId64 ":{", l->runs[i].length);
        const char *comma = "";
        for (int d = 0; d < SHEAF_MAX_DEVICES; d++) {
            if (!holds(&l->runs[i], d)) continue;
            append(buf, n, &at, "%s%d", comma, d);
            comma = ",";
        }
        append(buf, n, &at, "}]");
    }
    return buf;
}

uint64_t sheaf_layout_hash(const sheaf_layout *l) {
    uint64_t h = sheaf_hash_word(SHEAF_HASH_SEED, (uint64_t)l->kind);
    if (l->kind != SHEAF_AXIS) return h;
    h = sheaf_hash_word(h, (uint64_t)l->axis);
    for (int i = 0; i < l->n_runs; i++) {
        h = sheaf_hash_word(h, (uint64_t)l->runs[i].length);
        h = sheaf_hash_word(h, l->runs[i].devices);
    }
    return h;
}
