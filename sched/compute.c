/* Running what was allocated: for each split, copies in, then the piece; ordered across backends.
 *
 * Orders kept: a source is ready before it is copied; a copy's destination is no longer read by an earlier
 * run; and a split waits for the split before it on another backend even when it has no inputs, because the
 * allocator may have given it memory that the other still uses. Allocates nothing. */
#include "sched/sched_internal.h"

static sheaf_status wait_backend(sheaf_sched *s, int b) {
    if (!s->in_flight[b]) return SHEAF_OK;
    s->in_flight[b] = false;
    return sheaf_backend_synchronize(s->backend[b]);
}

/* One input of a split. A user's tensor is copied before we return, so its backend's earlier run must be over;
 * anything else may stay on the queues if the source's backend knows how. */
static sheaf_status copy_in(sheaf_sched *s, const sched_split *p, const sched_input *in) {
    sheaf_backend *from = s->backend[in->from_backend], *to = s->backend[p->backend];
    if (!in->user && from->iface->copy_async) {
        sheaf_status status = from->iface->copy_async(from, to, in->from, in->to, NULL);
        if (status != SHEAF_E_UNSUPPORTED) return status;
    }
    sheaf_status status = wait_backend(s, in->from_backend);
    if (!status) status = wait_backend(s, p->backend);
    return status ? status : sheaf_tensor_copy(in->from, in->to);
}

static sheaf_status run_split(sheaf_sched *s, sched_split *p) {
    for (int32_t i = 0; i < p->n_inputs; i++) {
        sheaf_status status = copy_in(s, p, &p->inputs[i]);
        if (status) return sheaf_error_context(status, "copying %s", p->inputs[i].to->name);
    }
    void *scratch = s->scratch[p->backend] ? s->scratch[p->backend]->base : NULL;
    sheaf_status status = sheaf_backend_run(s->backend[p->backend], p->prepared, p->addr, scratch, NULL);
    s->in_flight[p->backend] = true;
    if (status || !p->seen) return status;
    status = wait_backend(s, p->backend);
    return status ? status : s->see(s->eval_ctx, p->seen);
}

static sheaf_status run_all(sheaf_sched *s) {
    for (int32_t k = 0; k < s->n_splits; k++) {
        sched_split *p = &s->splits[k];
        /* the first split follows the last one of the run before, which may still be reading across */
        int before = s->splits[k ? k - 1 : s->n_splits - 1].backend;
        sheaf_status status = before != p->backend ? wait_backend(s, before) : SHEAF_OK;
        if (!status) status = run_split(s, p);
        if (status) return status;
    }
    return SHEAF_OK;
}

sheaf_status sheaf_sched_compute(sheaf_sched *s) {
    if (!s->allocated) return sheaf_fail(SHEAF_E_ARGUMENT, "scheduler: compute without an allocated graph");
    s->stats.computes++;
    sheaf_status status = run_all(s);
    if (!status) return SHEAF_OK;
    sheaf_error_box box; /* leave nothing running behind an error; the first failure is the one to tell */
    sheaf_error_save(&box, status);
    (void)sched_wait_all(s);
    return sheaf_error_restore(&box);
}

sheaf_status sheaf_sched_synchronize(sheaf_sched *s) { return sched_wait_all(s); }
