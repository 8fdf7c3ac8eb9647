/* Passes 1 to 4: which backend each tensor of the caller's graph belongs to, and why.
 *
 * Pure bookkeeping on `backend_of` and `cause`; pins survive every pass. The order of the passes and
 * their rules are drawn in docs/scheduler.md. */
#include "sched/sched_internal.h"

static void put(sheaf_sched *s, const sheaf_tensor *t, int b, sheaf_cause cause) {
    s->backend_of[t->index] = (int8_t)b;
    s->cause[t->index] = (uint8_t)cause;
}
static int at(const sheaf_sched *s, const sheaf_tensor *t) { return s->backend_of[t->index]; }

bool sched_readable(const sheaf_sched *s, const sheaf_tensor *t, int b) {
    const sheaf_tensor *root = t->view_src ? t->view_src : t;
    if (root->buffer) return sheaf_device_supports_buffer_type(sched_device(s, b), root->buffer->type);
    int owner = at(s, root);
    if (owner < 0) return true; /* not placed yet: it will follow */
    return owner == b || sheaf_device_supports_buffer_type(sched_device(s, b), s->type[owner]);
}

static bool runs_on(const sheaf_sched *s, const sheaf_tensor *t, int b) {
    return t->op == SHEAF_OP_NONE || sheaf_op_is_header(t->op) || sheaf_device_supports_op(sched_device(s, b), t);
}

/* First backend that understands the memory `buffer` and runs `t`; -1: none. */
static int backend_of_buffer(const sheaf_sched *s, const sheaf_buffer *buffer, const sheaf_tensor *t) {
    for (int b = 0; b < s->n; b++)
        if (sheaf_device_supports_buffer_type(sched_device(s, b), buffer->type) && runs_on(s, t, b)) return b;
    return -1;
}

/* A wide batch may be worth carrying a host weight to an accelerator: the device says so itself. */
static int offload_of(const sheaf_sched *s, const sheaf_tensor *t, int home) {
    if (s->opts.offload_min_rows <= 0 || home != s->n - 1 || sheaf_nrows(t) < s->opts.offload_min_rows) return -1;
    for (int b = 0; b < home; b++) {
        sheaf_device *d = sched_device(s, b);
        if (d->iface->wants_offload && runs_on(s, t, b) && d->iface->wants_offload(d, t)) return b;
    }
    return -1;
}

/* Rope's factors and attention's sinks are too small to drag the big operands to where they lie. */
static bool follows_weights(const sheaf_tensor *t) { return t->op != SHEAF_OP_ROPE && t->op != SHEAF_OP_ATTENTION; }

static void seed_by_weight(sheaf_sched *s, const sheaf_tensor *t) {
    if (!follows_weights(t)) return;
    for (int i = 0; i < SHEAF_MAX_SRC; i++) {
        const sheaf_tensor *src = t->src[i];
        const sheaf_buffer *buffer = src ? sched_buffer_of(src) : NULL;
        if (!buffer || buffer->usage != SHEAF_USAGE_WEIGHTS) continue;
        int home = backend_of_buffer(s, buffer, t);
        if (home < 0) continue; /* nobody runs it there: pass 3 finds a backend, pass 5 copies */
        int away = buffer->type->is_host ? offload_of(s, t, home) : -1;
        if (away >= 0)
            put(s, t, away, SHEAF_CAUSE_OFFLOAD);
        else
            put(s, t, home, SHEAF_CAUSE_WEIGHT);
        return;
    }
}

/* Pass 1 for one tensor: is its placement decided already? */
static void seed(sheaf_sched *s, const sheaf_tensor *t) {
    if (at(s, t) >= 0) return;
    const sheaf_buffer *buffer = sched_buffer_of(t);
    if (buffer) {
        int b = backend_of_buffer(s, buffer, t);
        /* A tensor that lies where no backend runs its op is left to pass 3: its sources are copied. A
         * writer into such memory cannot be helped and is refused in pass 4. */
        if (b >= 0) put(s, t, b, t->view_src ? SHEAF_CAUSE_VIEW_SRC : SHEAF_CAUSE_DST);
        return;
    }
    if (t->flags & SHEAF_FLAG_INPUT) {
        put(s, t, s->n - 1, SHEAF_CAUSE_INPUT);
        return;
    }
    seed_by_weight(s, t);
}

static void pass1(sheaf_sched *s) {
    for (int32_t i = 0; i < s->n_pins; i++) {
        const sheaf_tensor *t = s->pins[i].tensor;
        if (t->index >= 0 && t->index < s->n_slots && sheaf_graph_slot(s->user, t->index) == t)
            put(s, t, s->pins[i].backend, SHEAF_CAUSE_USER);
    }
    for (int32_t i = 0; i < s->n_slots; i++) seed(s, sheaf_graph_slot(s->user, i));
}

/* One sweep of pass 2. An accelerator sweep forgets what it carries at a CPU node instead of adopting it,
 * so the CPU never spreads while an accelerator can reach. */
static void sweep(sheaf_sched *s, bool forward, bool accelerators_only) {
    int carried = -1;
    const sheaf_graph *g = s->user;
    for (int32_t k = 0; k < g->n_nodes; k++) {
        const sheaf_tensor *t = g->nodes[forward ? k : g->n_nodes - 1 - k];
        if (sheaf_op_is_header(t->op)) continue;
        int b = at(s, t);
        if (b >= 0) {
            carried = accelerators_only && b == s->n - 1 ? -1 : b;
        } else if (carried >= 0 && runs_on(s, t, carried)) {
            put(s, t, carried, accelerators_only ? SHEAF_CAUSE_SWEEP_ACC : SHEAF_CAUSE_SWEEP_ANY);
        }
    }
}

/* A higher-priority backend on identical memory takes a node for free, if it reads all its sources. */
static void upgrade(sheaf_sched *s, const sheaf_tensor *t) {
    int now = at(s, t);
    for (int b = 0; b < now; b++) {
        if (s->type[b] != s->type[now] || !runs_on(s, t, b)) continue;
        bool reads_all = true;
        for (int i = 0; i < SHEAF_MAX_SRC && reads_all; i++)
            if (t->src[i]) reads_all = sched_readable(s, t->src[i], b);
        if (!reads_all) continue;
        put(s, t, b, SHEAF_CAUSE_UPGRADE);
        return;
    }
}

/* The backend that can read most of the sources where they are; ties to the higher priority. */
static void guess(sheaf_sched *s, const sheaf_tensor *t) {
    int best = -1, best_count = -1;
    for (int b = 0; b < s->n; b++) {
        if (!runs_on(s, t, b)) continue;
        int count = 0;
        for (int i = 0; i < SHEAF_MAX_SRC; i++) {
            const sheaf_tensor *src = t->src[i];
            if (src && (sched_buffer_of(src) || at(s, src) >= 0) && sched_readable(s, src, b)) count++;
        }
        if (count > best_count) best = b, best_count = count;
    }
    if (best >= 0) put(s, t, best, SHEAF_CAUSE_BEST);
}

static void pass3(sheaf_sched *s) {
    for (int32_t i = 0; i < s->user->n_nodes; i++) {
        const sheaf_tensor *t = s->user->nodes[i];
        if (sheaf_op_is_header(t->op) || s->cause[t->index] == SHEAF_CAUSE_USER) continue;
        if (at(s, t) >= 0)
            upgrade(s, t);
        else
            guess(s, t);
    }
}

/* A node that writes into its source's bytes stays with them, whatever the sweeps said: the bytes are not copied back.
 */
static void keep_aliases_home(sheaf_sched *s) {
    for (int32_t i = 0; i < s->user->n_nodes; i++) {
        const sheaf_tensor *t = s->user->nodes[i];
        if (!t->view_src || sheaf_op_is_header(t->op) || s->cause[t->index] == SHEAF_CAUSE_USER) continue;
        int home = at(s, t->view_src);
        if (home >= 0 && home != at(s, t) && runs_on(s, t, home)) put(s, t, home, SHEAF_CAUSE_ALIAS);
    }
}

static void inherit(sheaf_sched *s, const sheaf_tensor *src, int consumer) {
    if (at(s, src) >= 0) return;
    if (src->view_src && at(s, src->view_src) >= 0)
        put(s, src, at(s, src->view_src), SHEAF_CAUSE_SRC_VIEW);
    else
        put(s, src, consumer, SHEAF_CAUSE_SRC_CUR);
}

/* Pass 4 for the sources of one placed node. A root without a place follows its first consumer, before its views ask.
 */
static void pass4_node(sheaf_sched *s, const sheaf_tensor *t) {
    for (int i = 0; i < SHEAF_MAX_SRC; i++) {
        const sheaf_tensor *src = t->src[i];
        if (!src) continue;
        if (src->view_src) inherit(s, src->view_src, at(s, t));
        inherit(s, src, at(s, t));
    }
}

static sheaf_status nobody_runs(const sheaf_tensor *t) {
    char shape[96];
    const sheaf_tensor *src = t->src[0];
    return sheaf_fail(SHEAF_E_UNSUPPORTED, "placing %s: no backend runs %s on %s %s%s%s", t->name, sheaf_op_name(t->op),
                      sheaf_type_name(src ? src->type : t->type), sheaf_shape_text(src ? src : t, shape, sizeof shape),
                      src ? " of " : "", src ? src->name : "");
}

static sheaf_status pass4(sheaf_sched *s) {
    for (int32_t i = s->user->n_nodes - 1; i >= 0; i--) {
        const sheaf_tensor *t = s->user->nodes[i];
        if (at(s, t) < 0 && !sheaf_op_is_header(t->op)) return nobody_runs(t);
        if (at(s, t) >= 0) pass4_node(s, t);
    }
    /* what only headers read, and headers that nothing reads */
    for (int32_t i = 0; i < s->n_slots; i++) {
        const sheaf_tensor *t = sheaf_graph_slot(s->user, i);
        if (at(s, t) < 0) inherit(s, t, s->n - 1);
    }
    return SHEAF_OK;
}

/* A writer into memory that its backend cannot reach would write nowhere. */
static sheaf_status check_writers(const sheaf_sched *s) {
    for (int32_t i = 0; i < s->user->n_nodes; i++) {
        const sheaf_tensor *t = s->user->nodes[i];
        if (!t->view_src || sheaf_op_is_header(t->op) || sched_readable(s, t->view_src, at(s, t))) continue;
        return sheaf_fail(SHEAF_E_UNSUPPORTED, "placing %s: %s writes into %s, which %s cannot reach", t->name,
                          sheaf_op_name(t->op), t->view_src->name, sched_device(s, at(s, t))->name);
    }
    return SHEAF_OK;
}

sheaf_status sched_assign(sheaf_sched *s) {
    pass1(s);
    sweep(s, true, true);
    sweep(s, false, true);
    sweep(s, true, false);
    sweep(s, false, false);
    pass3(s);
    keep_aliases_home(s);
    sheaf_status status = pass4(s);
    return status ? status : check_writers(s);
}
