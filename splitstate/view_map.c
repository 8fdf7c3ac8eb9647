/* Views of cut tensors: from a root's runs and a view's strides to the view's own cut.
 *
 * VIEW, RESHAPE, PERMUTE, TRANSPOSE and the results of in-place writers are all one thing here: a shape
 * and strides over a root's bytes. A chain of views is described by its last link alone. Drawn in
 * rules_internal.h. What does not fit is not an error: the rule then asks for the root to be gathered. */
#include "splitstate/rules_internal.h"

#include <inttypes.h>

bool sheaf_view_map(const sheaf_tensor *node, const sheaf_layout *root, view_map *m) {
    const sheaf_tensor *r = node->view_src;
    *m = (view_map){.top = -1};
    if (root->kind != SHEAF_AXIS) return true;
    if (root->axis == 0) {
        m->unit = sheaf_type_bytes(r->type);
        m->unit_elements = (size_t)sheaf_type_block(r->type);
    } else {
        m->unit = r->nb[root->axis];
        m->unit_elements = 1;
    }
    m->period = (size_t)r->ne[root->axis] / m->unit_elements * m->unit;
    if (m->period == 0) return false;
    m->n_outer = node->view_offs / m->period;
    m->offset = node->view_offs % m->period;
    size_t span = sheaf_type_bytes(node->type); /* of all inner dimensions */
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        if (node->ne[i] <= 1 || node->nb[i] >= m->period) continue;
        /* dimension 0 of a block type steps by blocks */
        size_t steps = i == 0 ? (size_t)(node->ne[0] / sheaf_type_block(node->type)) - 1 : (size_t)node->ne[i] - 1;
        span += steps * node->nb[i];
        if (steps > 0 && (m->top < 0 || node->nb[i] > m->step)) {
            m->top = i;
            m->step = node->nb[i];
        }
    }
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        if (node->ne[i] > 1 && node->nb[i] >= m->period && node->nb[i] % m->period != 0) return false;
    }
    m->window = span;
    if (m->top >= 0) {
        size_t n = m->top == 0 ? (size_t)(node->ne[0] / sheaf_type_block(node->type)) : (size_t)node->ne[m->top];
        m->window = span - (n - 1) * m->step;
        if (m->window > m->step) return false; /* windows overlap: a sliding view */
    }
    return m->offset + span <= m->period;
}

/* Windows of the view, counted from 0, that begin at or after byte `at` of the period. */
static int64_t windows_from(const view_map *m, size_t at, int64_t count) {
    if (at <= m->offset) return 0;
    int64_t k = (int64_t)((at - m->offset + m->step - 1) / m->step);
    return k < count ? k : count;
}

static int64_t window_count(const sheaf_tensor *node, const view_map *m) {
    if (m->top < 0) return 1;
    return m->top == 0 ? node->ne[0] / sheaf_type_block(node->type) : node->ne[m->top];
}

/* A stretch of windows inside one run. */
typedef struct stretch {
    int64_t first, count;
    size_t local; /* byte of the first window in device's period */
} stretch;

/* Windows inside run r, which begins at byte `at` of the period. False: one straddles its end. */
static bool stretch_of(const view_map *m, int64_t count, size_t at, size_t bytes, stretch *s) {
    s->first = windows_from(m, at, count);
    s->count = windows_from(m, at + bytes, count) - s->first;
    if (s->count == 0) return true;
    size_t last_end = m->offset + (size_t)(s->first + s->count - 1) * m->step + m->window;
    return last_end <= at + bytes;
}

static size_t run_bytes(const view_map *m, const sheaf_run *r) {
    return (size_t)r->length / m->unit_elements * m->unit;
}

/* Device's windows: how many, where the first lies in its period; false if they are not evenly spaced. */
static bool device_windows(const view_map *m, const sheaf_layout *root, int64_t count, int device, int64_t *held,
                           size_t *local) {
    size_t at = 0, mine = 0, next = 0;
    *held = 0;
    *local = 0;
    for (int i = 0; i < root->n_runs; i++) {
        size_t bytes = run_bytes(m, &root->runs[i]);
        stretch s;
        if (!stretch_of(m, count, at, bytes, &s)) return false;
        bool has = root->runs[i].devices >> device & 1;
        if (has && s.count > 0) {
            size_t first = mine + (m->offset + (size_t)s.first * m->step - at);
            if (*held > 0 && first != next) return false;
            if (*held == 0) *local = first;
            next = first + (size_t)s.count * m->step;
            *held += s.count;
        }
        at += bytes;
        if (has) mine += bytes;
    }
    return true;
}

/* A single window lives on one run's devices: that is a cut of a dimension of one element. */
static int place_dim(const sheaf_tensor *node) {
    for (int i = SHEAF_MAX_DIMS - 1; i >= 0; i--) {
        if (node->ne[i] == 1) return i;
    }
    return -1;
}

sheaf_status sheaf_view_layout(sheaf_arena *a, const sheaf_tensor *node, const sheaf_layout *root, int n_devices,
                               sheaf_layout *out, bool *fits) {
    view_map m;
    *out = summed(root);
    *fits = sheaf_view_map(node, root, &m);
    if (root->kind != SHEAF_AXIS || !*fits) return SHEAF_OK;
    int axis = m.top >= 0 ? m.top : place_dim(node);
    int64_t count = window_count(node, &m), held;
    size_t local, at = 0;
    *fits = axis >= 0;
    if (m.top < 0) m.step = m.window; /* so that windows_from() counts the only one */
    for (int d = 0; d < n_devices && *fits; d++) *fits = device_windows(&m, root, count, d, &held, &local);
    if (!*fits) return SHEAF_OK;
    sheaf_run *runs = sheaf_arena_alloc(a, sizeof *runs * (size_t)root->n_runs);
    if (!runs) return sheaf_arena_status(a);
    int64_t scale = axis == 0 && m.top == 0 ? sheaf_type_block(node->type) : 1;
    int n = 0;
    for (int i = 0; i < root->n_runs; i++) {
        stretch s;
        size_t bytes = run_bytes(&m, &root->runs[i]);
        stretch_of(&m, count, at, bytes, &s);
        if (s.count > 0) runs[n++] = (sheaf_run){s.count * scale, root->runs[i].devices};
        at += bytes;
    }
    return sheaf_layout_axis(a, axis, runs, n, n_devices, out);
}

sheaf_status sheaf_view_local(const sheaf_tensor *node, const sheaf_layout *root, int device, sheaf_local *out) {
    view_map m;
    int64_t held;
    size_t local;
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        out->ne[i] = node->ne[i];
        out->nb[i] = node->nb[i];
    }
    out->view_offs = node->view_offs;
    if (root->kind != SHEAF_AXIS) return SHEAF_OK;
    bool fits = sheaf_view_map(node, root, &m);
    int axis = m.top >= 0 ? m.top : place_dim(node);
    if (m.top < 0) m.step = m.window;
    if (!fits || axis < 0 || !device_windows(&m, root, window_count(node, &m), device, &held, &local)) {
        return sheaf_fail(SHEAF_E_SHAPE, "%s: no view of a tensor so cut", node->name);
    }
    size_t period = (size_t)sheaf_layout_share(root, device, 0) / m.unit_elements * m.unit;
    int64_t scale = m.top == 0 ? sheaf_type_block(node->type) : 1;
    out->ne[axis] = held * scale;
    out->empty = held == 0;
    out->view_offs = held == 0 ? 0 : m.n_outer * period + local;
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        if (node->nb[i] >= m.period && node->nb[i] % m.period == 0) out->nb[i] = node->nb[i] / m.period * period;
    }
    /* strides that nobody steps by follow the shape, so that a contiguous shard says so */
    for (int i = 1; i < SHEAF_MAX_DIMS; i++) {
        size_t below = i == 1 ? sheaf_row_bytes(node->type, node->ne[0]) : node->nb[i - 1] * (size_t)node->ne[i - 1];
        if (node->ne[i] != 1 || node->nb[i] != below) continue;
        out->nb[i] = i == 1 ? sheaf_row_bytes(node->type, out->ne[0]) : out->nb[i - 1] * (size_t)out->ne[i - 1];
    }
    return SHEAF_OK;
}
