/* Running a plan: addresses first, then the steps, posted on each member's queue in plan order.
 *
 * Binding gives every shard an address; it is done when places are known and again when a workspace has moved.
 * A run posts and returns: nothing here waits, allocates or looks at a tensor. Members meet in collectives
 * only. Step by step over all members, so that a bounded queue can never hold one member's posts back
 * while another waits for them in a collective.
 *
 * Contexts share the members, whose threads take commands one after another, whoever posted them. So a whole run is
 * posted under the device's lock: were A's before B's on one member and behind them on the next, each would wait there
 * for the other's collective. */
#include <string.h>

#include "meta/plan_internal.h"
#include "tensor/wait.h"

/* --- the object -------------------------------------------------------------------------------------------------- */

static size_t slots_of(const meta_plan *p, int i, int32_t k) {
    const sheaf_graph *g = p->pieces[k].graphs[i];
    return g ? (size_t)g->n_leafs + (size_t)g->n_nodes : 0;
}

static size_t total_slots(const meta_plan *p) {
    size_t n = 0;
    for (int i = 0; i < p->n_local; i++) {
        for (int32_t k = 0; k < p->n_pieces; k++) n += slots_of(p, i, k);
    }
    return n;
}

sheaf_status meta_prepared_new(meta_backend *b, meta_plan *p, meta_prepared **out) {
    size_t pieces = (size_t)p->n_local * (size_t)p->n_pieces, slots = total_slots(p);
    if (p->spare) {
        *out = p->spare;
        p->spare = NULL;
        p->refs++;
        return SHEAF_OK;
    }
    meta_prepared *x = sheaf_calloc(1, sizeof *x);
    if (!x) return sheaf_fail(SHEAF_E_NO_MEMORY, "binding a plan");
    x->backend = b;
    x->plan = p;
    x->n_io = p->n_crossings;
    x->io = sheaf_calloc((size_t)p->n_crossings + 1, sizeof(meta_io *));
    x->fixed = sheaf_calloc((size_t)p->n_local * (size_t)p->n_values + 1, sizeof *x->fixed);
    x->addr = sheaf_calloc(2 * pieces + 1, sizeof *x->addr);
    x->pool = sheaf_calloc(2 * slots + 1, sizeof *x->pool);
    p->refs++;
    if (!x->io || !x->fixed || !x->addr || !x->pool) {
        meta_prepared_free(x);
        return sheaf_fail(SHEAF_E_NO_MEMORY, "binding a plan of %zu addresses", 2 * slots);
    }
    void **at = x->pool;
    for (int parity = 0; parity < 2; parity++) {
        for (int i = 0; i < p->n_local; i++) {
            for (int32_t k = 0; k < p->n_pieces; k++) {
                x->addr[(size_t)parity * pieces + (size_t)i * (size_t)p->n_pieces + (size_t)k] = at;
                at += slots_of(p, i, k);
            }
        }
    }
    *out = x;
    return SHEAF_OK;
}

void meta_prepared_discard(meta_prepared *x) {
    if (!x) return;
    sheaf_free(x->pool);
    sheaf_free(x->addr);
    sheaf_free(x->fixed);
    sheaf_free(x->io);
    sheaf_free(x);
}

/* A whole one waits with its plan for the next binding, which fills every address again. */
void meta_prepared_free(meta_prepared *x) {
    if (!x) return;
    meta_plan *p = x->plan;
    for (int i = 0; x->io && i < x->n_io; i++) {
        meta_io_release(x->io[i]);
        x->io[i] = NULL;
    }
    x->bound = false;
    p->refs--;
    if (p->spare || !x->io || !x->fixed || !x->addr || !x->pool)
        meta_prepared_discard(x);
    else
        p->spare = x;
}

/* --- addresses ---------------------------------------------------------------------------------------------------- */

/* Address of a shard of member i when the plan's first staged sum uses slot `parity`; NULL: it has no bytes. */
static void *shard_address(const meta_prepared *x, int i, int32_t shard, int parity) {
    const meta_plan *p = x->plan;
    const plan_member *m = &p->members[i];
    const plan_shard *s = &m->shards[shard];
    size_t offset = 0;
    if (s->root >= 0) {
        offset = s->header.view_offs;
        shard = s->root;
        s = &m->shards[shard];
    }
    char *base = NULL;
    const workspace *w = &x->backend->members[i].work;
    switch (s->home) {
    case HOME_WORK:
        if (s->place.chunk >= 0 && w->chunks[s->place.chunk])
            base = (char *)w->chunks[s->place.chunk]->base + s->place.offset;
        break;
    case HOME_STATIC:
    case HOME_IO: base = x->fixed[(size_t)i * (size_t)p->n_values + (size_t)shard]; break;
    case HOME_STAGING: base = sheaf_comm_staging(x->backend->comm, i, (p->values[shard].staging + parity) & 1); break;
    case HOME_VIEW: break;
    }
    return base ? base + offset : NULL;
}

static void fill_addresses(meta_prepared *x) {
    const meta_plan *p = x->plan;
    size_t pieces = (size_t)p->n_local * (size_t)p->n_pieces;
    for (int parity = 0; parity < 2; parity++) {
        for (int i = 0; i < p->n_local; i++) {
            for (int32_t k = 0; k < p->n_pieces; k++) {
                void **addr = x->addr[(size_t)parity * pieces + (size_t)i * (size_t)p->n_pieces + (size_t)k];
                const int32_t *shard = p->pieces[k].shard_of_slot[i];
                for (size_t slot = 0; slot < slots_of(p, i, k); slot++)
                    addr[slot] = shard_address(x, i, shard[slot], parity);
            }
        }
    }
    x->generation = x->backend->generation;
}

static void set_fixed(meta_prepared *x, int32_t value, const meta_ext *e) {
    const meta_plan *p = x->plan;
    for (int i = 0; i < p->n_local; i++) x->fixed[(size_t)i * (size_t)p->n_values + (size_t)value] = e->shards[i].data;
}

static sheaf_status bind_static(meta_prepared *x, int32_t value, const sheaf_tensor *t) {
    const meta_ext *e = t->ext;
    if (!e || !sheaf_layout_equal(&e->layout, &x->plan->values[value].layout)) {
        return sheaf_fail(SHEAF_E_INTERNAL, "%s: is not laid out as its plan says", t->name);
    }
    set_fixed(x, value, e);
    return SHEAF_OK;
}

static sheaf_status bind_crossing(meta_prepared *x, int k, sheaf_tensor *t) {
    int32_t value = x->plan->crossing[k];
    meta_io *old = x->io[k];
    if (!meta_is_buffer(t->buffer))
        return sheaf_fail(SHEAF_E_ARGUMENT, "%s: has no place on %s", t->name, x->backend->base.device->name);
    const meta_ext *bound = t->ext; /* by who computed it: then the plan must have known its layout */
    if (value < x->plan->n_leafs && bound && bound->shards &&
        !sheaf_layout_equal(&bound->layout, &x->plan->values[value].layout)) {
        return sheaf_fail(SHEAF_E_INTERNAL, "%s: is not laid out as the plan that reads it says", t->name);
    }
    sheaf_status s = meta_io_bind(t->buffer, t, &x->plan->values[value].layout, &x->io[k]);
    meta_io_release(old);
    if (s) {
        x->io[k] = NULL;
        return s;
    }
    set_fixed(x, value, x->io[k]->ext);
    return SHEAF_OK;
}

sheaf_status meta_prepared_bind(meta_prepared *x, const sheaf_graph *g) {
    const meta_plan *p = x->plan;
    x->bound = false;
    for (int32_t i = 0; i < p->n_leafs; i++) { /* leafs come first among values, slot by slot */
        if (p->values[i].home != HOME_STATIC) continue;
        sheaf_status s = bind_static(x, i, g->leafs[i]);
        if (s) return s;
    }
    for (int k = 0; k < p->n_crossings; k++) {
        sheaf_status s = bind_crossing(x, k, sheaf_graph_slot(g, p->values[p->crossing[k]].slot));
        if (s) return s;
    }
    fill_addresses(x);
    x->bound = true;
    return SHEAF_OK;
}

/* --- running ----------------------------------------------------------------------------------------------- */

static sheaf_status run_piece(meta_prepared *x, int32_t k, int parity) {
    const meta_plan *p = x->plan;
    size_t pieces = (size_t)p->n_local * (size_t)p->n_pieces;
    for (int i = 0; i < p->n_local; i++) {
        sheaf_prepared *work = p->pieces[k].prepared[i];
        if (!work) continue;
        meta_member *m = &x->backend->members[i];
        void **addr = x->addr[(size_t)parity * pieces + (size_t)i * (size_t)p->n_pieces + (size_t)k];
        void *scratch = m->work.scratch ? m->work.scratch->base : NULL;
        sheaf_status s = sheaf_backend_run(m->backend, work, addr, scratch, NULL);
        if (s) return s;
    }
    return SHEAF_OK;
}

static sheaf_status run_collective(meta_prepared *x, const plan_step *step, int parity) {
    const meta_plan *p = x->plan;
    const plan_item *t = &p->items[step->item];
    for (int i = 0; i < p->n_local; i++) {
        int32_t in = p->members[i].compact_of[step->item];
        sheaf_comm_args args = {.rows = step->rows, .out = shard_address(x, i, t->out, parity)};
        if (in >= 0) args.in = shard_address(x, i, in, parity);
        if (t->residual >= 0) args.residual = shard_address(x, i, t->residual, parity);
        if (t->norm_weight >= 0) args.norm_weight = shard_address(x, i, t->norm_weight, parity);
        if (t->norm_out >= 0) args.norm_out = shard_address(x, i, t->norm_out, parity);
        sheaf_status s = sheaf_comm_post(step->op, i, x->backend->members[i].backend->queue, &args);
        if (s) return s;
    }
    return SHEAF_OK;
}

/* Two marks in each member's queue, around all of a run. */
static sheaf_status mark_begin(void *ctx, int i, int n, sheaf_queue *q) {
    (void)n, (void)q;
    if (i == 0) ((meta_member *)ctx)->begun_ns = sheaf_now_ns();
    return SHEAF_OK;
}

static sheaf_status mark_end(void *ctx, int i, int n, sheaf_queue *q) {
    (void)n, (void)q;
    meta_member *m = ctx;
    if (i == 0) atomic_fetch_add_explicit(&m->busy_ns, (uint64_t)(sheaf_now_ns() - m->begun_ns), memory_order_relaxed);
    return SHEAF_OK;
}

static sheaf_status mark(meta_backend *b, sheaf_queue_fn fn) {
    for (int i = 0; i < b->device->n_local; i++) {
        sheaf_status s = sheaf_queue_call(b->members[i].backend->queue, fn, &b->members[i]);
        if (s) return s;
    }
    return SHEAF_OK;
}

static sheaf_status run_steps(meta_prepared *x, int parity) {
    const meta_plan *p = x->plan;
    sheaf_status s = mark(x->backend, mark_begin);
    for (int32_t k = 0; k < p->n_steps && !s; k++) {
        const plan_step *step = &p->steps[k];
        s = step->is_collective ? run_collective(x, step, parity) : run_piece(x, step->piece, parity);
    }
    return s ? s : mark(x->backend, mark_end);
}

sheaf_status meta_prepared_run(meta_prepared *x) {
    meta_backend *b = x->backend;
    if (!x->bound) return sheaf_fail(SHEAF_E_ARGUMENT, "%s: running a plan that is not bound", b->base.device->name);
    if (x->generation != b->generation) fill_addresses(x);
    /* the first staged sum must not use the slot that the last one before it used */
    int parity = sheaf_comm_next_slot(b->comm);
    pthread_mutex_lock(&b->device->posting);
    sheaf_status s = run_steps(x, parity);
    pthread_mutex_unlock(&b->device->posting);
    if (s) {
        sheaf_error_box box;
        sheaf_error_save(&box, s);
        b->failed = true;
        sheaf_comm_cancel(b->comm); /* members that wait for what will not be posted */
        return sheaf_error_restore(&box);
    }
    return SHEAF_OK;
}
