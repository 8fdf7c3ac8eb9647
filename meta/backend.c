/* The meta backend: a backend per member, their workspaces, one communicator, and the plans.
 *
 * Owns all of those; queues are its members' own compute queues. One thread at a time. A failed run is handed
 * over by synchronize, once: then queues are clean, the communicator is reset, and the next run may succeed. */
#include <string.h>

#include "meta/plan_internal.h"

static meta_backend *backend_of(sheaf_backend *b) { return (meta_backend *)b; }

/* --- synchronize ----------------------------------------------------------------------------------------------------
 */

static sheaf_status synchronize(sheaf_backend *base) {
    meta_backend *b = backend_of(base);
    sheaf_status first = SHEAF_OK;
    sheaf_error_box box;
    for (int i = 0; i < b->device->n_local; i++) {
        sheaf_status s = sheaf_backend_synchronize(b->members[i].backend);
        if (s && !first) {
            first = s;
            sheaf_error_save(&box, s);
        }
    }
    /* A reset is a meeting of all ranks. One that has just not come is not waited for again: the next synchronize
     * tries. */
    bool lost = first == SHEAF_E_TIMEOUT && b->device->n_local < b->device->n_world;
    if (lost) {
        b->failed = true;
    } else if (first || b->failed) { /* members skipped different numbers of posts: start counting again */
        sheaf_status s = sheaf_comm_reset(b->comm);
        b->failed = s != SHEAF_OK;
        if (s && !first) return s;
    }
    return first ? sheaf_error_restore(&box) : SHEAF_OK;
}

/* --- workspaces -------------------------------------------------------------------------------------------- */

static void work_free(meta_backend *b, int i, sheaf_buffer **buffer) {
    if (!*buffer) return;
    meta_count_bytes(b->device, i, SHEAF_USAGE_COMPUTE, -(ptrdiff_t)(*buffer)->size);
    sheaf_buffer_free(*buffer);
    *buffer = NULL;
}

/* Makes *buffer hold `bytes`; what was in it is gone. Nothing may be in flight. */
static sheaf_status fit(meta_backend *b, int i, sheaf_buffer **buffer, size_t bytes) {
    if (bytes == 0 || (*buffer && (*buffer)->size >= bytes)) return SHEAF_OK;
    work_free(b, i, buffer);
    b->generation++;
    sheaf_status s = sheaf_buffer_alloc(b->device->members[i]->buffer_type, bytes, SHEAF_USAGE_COMPUTE, buffer);
    if (s) return sheaf_error_context(s, "workspace of %s", b->device->members[i]->name);
    meta_count_bytes(b->device, i, SHEAF_USAGE_COMPUTE, (ptrdiff_t)(*buffer)->size);
    return SHEAF_OK;
}

static bool has_room(const meta_backend *b, const meta_plan *p) {
    if (p->staging_bytes > b->staging_bytes) return false;
    for (int i = 0; i < p->n_local; i++) {
        const workspace *w = &b->members[i].work;
        const plan_member *m = &p->members[i];
        if (m->scratch_bytes > (w->scratch ? w->scratch->size : 0)) return false;
        for (int k = 0; k < m->n_chunks; k++) {
            if (m->chunk_bytes[k] > (w->chunks[k] ? w->chunks[k]->size : 0)) return false;
        }
    }
    return true;
}

static sheaf_status make_room(meta_backend *b, const meta_plan *p) {
    if (has_room(b, p)) return SHEAF_OK;
    sheaf_status s = synchronize(&b->base);
    for (int i = 0; i < p->n_local && !s; i++) {
        const plan_member *m = &p->members[i];
        workspace *w = &b->members[i].work;
        for (int k = 0; k < m->n_chunks && !s; k++) s = fit(b, i, &w->chunks[k], m->chunk_bytes[k]);
        if (!s) s = fit(b, i, &w->scratch, m->scratch_bytes);
    }
    if (s || p->staging_bytes <= b->staging_bytes) return s;
    s = sheaf_comm_reserve_staging(b->comm, p->staging_bytes);
    if (s) return s;
    for (int i = 0; i < p->n_local; i++) {
        meta_count_bytes(b->device, i, SHEAF_USAGE_COMPUTE, 2 * (ptrdiff_t)(p->staging_bytes - b->staging_bytes));
    }
    b->staging_bytes = p->staging_bytes;
    b->generation++;
    return SHEAF_OK;
}

/* --- prepare, bind, run ------------------------------------------------------------------------------------ */

/* The layout of what leaves one piece of the scheduler's is known to the next before either has a place. */
static void announce(const meta_plan *p, const sheaf_graph *g) {
    for (int k = 0; k < p->n_crossings; k++) {
        sheaf_tensor *t = sheaf_graph_slot(g, p->values[p->crossing[k]].slot);
        if (t->op == SHEAF_OP_NONE || t->ext || t->buffer) continue;
        t->ext = p->announced[k];
    }
}

/* Ranks must have compiled the same plan, and have room for it, before it first runs. Every rank comes here, with
 * what it found; so one that failed leaves nobody waiting. */
static sheaf_status agree(const meta_backend *b, uint64_t hash, sheaf_status found) {
    sheaf_world *w = b->device->world;
    int n = w ? sheaf_world_size(w) : 1;
    if (n == 1) return found;
    struct {
        uint64_t hash;
        int64_t status;
    } mine = {hash, found}, *all;
    sheaf_error_box box;
    sheaf_error_save(&box, found);
    all = sheaf_calloc((size_t)n, sizeof *all);
    if (!all) return sheaf_fail(SHEAF_E_NO_MEMORY, "comparing plans");
    sheaf_status s = sheaf_world_allgather(w, &mine, sizeof mine, all);
    if (found) s = sheaf_error_restore(&box);
    for (int r = 0; r < n && !s; r++) {
        if (all[r].status) {
            s = sheaf_fail(SHEAF_E_PEER, "rank %d could not compile its plan: %s", r,
                           sheaf_status_text((sheaf_status)all[r].status));
        } else if (all[r].hash != hash) {
            s = sheaf_fail(SHEAF_E_MISMATCH, "rank %d compiled another plan than rank %d", r, sheaf_world_rank(w));
        }
    }
    sheaf_free(all);
    return s;
}

static sheaf_status compile(meta_backend *b, const sheaf_graph *g, meta_plan **out) {
    sheaf_status s = meta_plan_compile(b, g, meta_plan_key(b, g), out);
    if (!s) s = make_room(b, *out);
    s = agree(b, *out ? (*out)->hash : 0, s);
    if (!s) {
        plan_cache_put(b->cache, *out);
        return SHEAF_OK;
    }
    meta_plan_free(*out);
    *out = NULL;
    return s;
}

static sheaf_status prepare(sheaf_backend *base, const sheaf_graph *g, sheaf_prepared **out) {
    meta_backend *b = backend_of(base);
    meta_plan *p = plan_cache_find(b->cache, b, g);
    sheaf_status s = p ? SHEAF_OK : compile(b, g, &p);
    meta_prepared *x = NULL;
    if (!s) s = make_room(b, p);
    if (!s) s = meta_prepared_new(b, p, &x);
    if (s) return s;
    announce(p, g);
    *out = (sheaf_prepared *)x;
    return SHEAF_OK;
}

static void prepared_free(sheaf_backend *b, sheaf_prepared *p) {
    (void)b;
    meta_prepared_free((meta_prepared *)p);
}

/* Members' scratch and lifetimes are the plan's own affair: the scheduler only assigns ranges of addresses. */
static sheaf_prepare_info prepared_info(sheaf_backend *b, const sheaf_prepared *p) {
    (void)b;
    return (sheaf_prepare_info){.n_kernels = ((const meta_prepared *)p)->plan->n_steps};
}

static sheaf_status bind(sheaf_backend *b, sheaf_prepared *p, sheaf_graph *g) {
    (void)b;
    return meta_prepared_bind((meta_prepared *)p, g);
}

static sheaf_status run(sheaf_backend *b, sheaf_prepared *p, void *const *addr, void *scratch, sheaf_queue *q) {
    (void)addr, (void)scratch;
    if (q && q != b->queue)
        return sheaf_fail(SHEAF_E_UNSUPPORTED, "%s: runs on its members' own queues", b->device->name);
    return meta_prepared_run((meta_prepared *)p);
}

/* --- life -------------------------------------------------------------------------------------------------- */

static void backend_free(sheaf_backend *base) {
    meta_backend *b = backend_of(base);
    if (b->members && b->comm && b->cache) (void)synchronize(base);
    plan_cache_free(b->cache);
    for (int i = 0; b->members && i < b->device->n_local; i++) {
        meta_member *m = &b->members[i];
        for (int k = 0; k < META_MAX_CHUNKS; k++) work_free(b, i, &m->work.chunks[k]);
        work_free(b, i, &m->work.scratch);
        meta_count_bytes(b->device, i, SHEAF_USAGE_COMPUTE, -2 * (ptrdiff_t)b->staging_bytes);
    }
    sheaf_comm_free(b->comm);
    for (int i = 0; b->members && i < b->device->n_local; i++) sheaf_backend_free(b->members[i].backend);
    sheaf_free(b->members);
    sheaf_free(b);
}

static const sheaf_backend_iface meta_backend_iface = {
    .free = backend_free,
    .prepare = prepare,
    .prepared_free = prepared_free,
    .prepared_info = prepared_info,
    .bind = bind,
    .run = run,
    .synchronize = synchronize,
};

sheaf_status meta_backend_create(sheaf_device *d, sheaf_backend **out) {
    meta_device *m = meta_of(d);
    meta_backend *b = sheaf_calloc(1, sizeof *b);
    if (!b) return sheaf_fail(SHEAF_E_NO_MEMORY, "opening %s", d->name);
    b->base = (sheaf_backend){.iface = &meta_backend_iface, .device = d};
    b->device = m;
    sheaf_status s = SHEAF_OK;
    b->members = sheaf_calloc((size_t)m->n_local, sizeof *b->members);
    if (!b->members) s = sheaf_fail(SHEAF_E_NO_MEMORY, "opening %s", d->name);
    for (int i = 0; i < m->n_local && !s; i++) s = sheaf_backend_new(m->members[i], &b->members[i].backend);
    if (!s) s = sheaf_comm_new(m->world, m->members, m->n_local, &b->comm);
    if (!s) s = plan_cache_new(&b->cache);
    if (s) {
        backend_free(&b->base);
        return sheaf_error_context(s, "opening %s", d->name);
    }
    for (int i = 0; i < m->n_local; i++) sheaf_comm_attach(b->comm, i, b->members[i].backend->queue);
    *out = &b->base;
    return SHEAF_OK;
}

sheaf_member_times sheaf_meta_times(sheaf_backend *meta_backend_, int i, bool reset) {
    meta_backend *b = backend_of(meta_backend_);
    if (i < 0 || i >= b->device->n_local) return (sheaf_member_times){0};
    meta_member *m = &b->members[i];
    sheaf_comm_stats c = sheaf_comm_stats_of(b->comm, i);
    uint64_t busy = atomic_load_explicit(&m->busy_ns, memory_order_relaxed), apart = c.wait_ns + c.reduce_ns;
    sheaf_member_times now = {busy > apart ? busy - apart : 0, c.wait_ns, c.reduce_ns}, before = m->taken;
    if (reset) m->taken = now;
    return (sheaf_member_times){now.compute_ns - before.compute_ns, now.wait_ns - before.wait_ns,
                                now.reduce_ns - before.reduce_ns};
}

void sheaf_meta_set_strict(sheaf_backend *meta_backend_, bool strict) { backend_of(meta_backend_)->strict = strict; }

sheaf_plan_cache_stats sheaf_meta_cache_stats(sheaf_backend *meta_backend_) {
    return plan_cache_stats(backend_of(meta_backend_)->cache);
}
