/* The synchronous CPU backend that ends every scheduler array.
 *
 * It owns no threads while others do: a run borrows the threads of every member that is idle at that
 * moment (its ring is empty), all of them walking the one program together; the caller sleeps
 * meanwhile. Only idle teams are borrowed, and all at once under their posting locks: so a borrowed
 * team can always start at once, and no two borrowers can wait for each other. Where nobody is idle,
 * or there are no members, the calling thread does the work itself.
 *
 * It computes on plain host memory and on mapped weights; what lies in a queue-driven device's own
 * memory is copied first, because only that device's queue knows when it is ready. */
#include "backends/cpu/device_internal.h"

#include <stdio.h>
#include <string.h>

enum { MAX_BORROWED = 64 };

typedef struct host_backend {
    sheaf_backend base;
    char *scratch; /* for the calling thread, where nobody's threads are free */
    cpu_team *teams[MAX_BORROWED];
    int n_teams;
    sheaf_queue queue; /* everything on it is done when the call returns */
    atomic_llong spin_ns;
} host_backend;

/* One borrowed run, as the teams see it. */
typedef struct borrowed_member {
    int first; /* of its threads, among all that walk */
    cpu_team *team;
    unsigned ticket;
    struct borrowed *all;
} borrowed_member;

typedef struct borrowed {
    cpu_program *program;
    cpu_run run;
    cpu_barrier barrier;
    int n_threads, n_members;
    borrowed_member member[MAX_BORROWED];
} borrowed;

static sheaf_status walk_borrowed(void *ctx, int i, int n, sheaf_queue *q) {
    borrowed_member *m = ctx;
    (void)n;
    (void)q;
    cpu_program_walk(m->all->program, &m->all->run, &m->all->barrier, m->first + i, m->all->n_threads,
                     m->team->scratch + (size_t)i * CPU_THREAD_SCRATCH);
    return SHEAF_OK;
}

/* Posts the run to every idle team. Returns the threads borrowed. The teams are always locked in the
 * order of the member list, which is the same for all borrowers of a host device. */
static int borrow(host_backend *b, borrowed *r) {
    bool idle[MAX_BORROWED];
    for (int i = 0; i < b->n_teams; i++) pthread_mutex_lock(&b->teams[i]->post);
    for (int i = 0; i < b->n_teams; i++) {
        idle[i] = cpu_team_idle(b->teams[i]);
        if (!idle[i]) continue;
        borrowed_member *m = &r->member[r->n_members++];
        *m = (borrowed_member){r->n_threads, b->teams[i], 0, r};
        r->n_threads += b->teams[i]->n_threads;
    }
    cpu_barrier_init(&r->barrier, r->n_threads, &b->spin_ns);
    for (int i = 0; i < r->n_members; i++) {
        cpu_command c = {.kind = CPU_CMD_CALL, .u.call = {walk_borrowed, &r->member[i]}};
        r->member[i].ticket = cpu_team_post_locked(r->member[i].team, &c);
    }
    for (int i = b->n_teams - 1; i >= 0; i--) pthread_mutex_unlock(&b->teams[i]->post);
    return r->n_threads;
}

static sheaf_status host_run(sheaf_backend *base, sheaf_prepared *p, void *const *addr, void *scratch, sheaf_queue *q) {
    host_backend *b = (host_backend *)base;
    cpu_device *d = cpu_device_of(base->device);
    borrowed r;
    (void)q;
    r.program = (cpu_program *)p;
    r.run = (cpu_run){.kernels = d->kernels, .addr = addr, .scratch = scratch, .counters = r.program->counters};
    r.n_threads = r.n_members = 0;
    if (b->n_teams) atomic_store(&b->spin_ns, atomic_load(&b->teams[0]->spin_ns));
    if (borrow(b, &r) == 0) cpu_program_walk(r.program, &r.run, &r.barrier, 0, 1, b->scratch);
    for (int i = 0; i < r.n_members; i++) cpu_team_wait(r.member[i].team, r.member[i].ticket);
    cpu_program_end(r.program);
    return SHEAF_OK;
}

static sheaf_status host_prepare(sheaf_backend *b, const sheaf_graph *g, sheaf_prepared **out) {
    cpu_program *p;
    sheaf_status s = cpu_program_new(g, cpu_device_of(b->device)->kernels, &p);
    if (s) return sheaf_error_context(s, "%s", b->device->name);
    *out = (sheaf_prepared *)p;
    return SHEAF_OK;
}

static void host_prepared_free(sheaf_backend *b, sheaf_prepared *p) {
    (void)b;
    cpu_program_free((cpu_program *)p);
}

static sheaf_prepare_info host_prepared_info(sheaf_backend *b, const sheaf_prepared *prepared) {
    (void)b;
    const cpu_program *p = (const cpu_program *)prepared;
    return (sheaf_prepare_info){
        .keep = p->keep, .n_keep = p->n_keep, .scratch_bytes = p->scratch_bytes, .n_kernels = p->n_steps};
}

/* --- its queue: calls are done on return ------------------------------------------------------------------ */

static void now_free(sheaf_queue *q) { sheaf_free(q); }
static void now_embedded_free(sheaf_queue *q) { (void)q; }
static sheaf_status now_call(sheaf_queue *q, sheaf_queue_fn fn, void *ctx) { return fn(ctx, 0, 1, q); }
static sheaf_status now_wait(sheaf_queue *q, sheaf_event *e) {
    (void)q;
    return e->iface->synchronize(e);
}
static sheaf_status now_record(sheaf_queue *q, sheaf_event *e) {
    (void)e;
    return sheaf_fail(SHEAF_E_UNSUPPORTED, "recording an event on %s: its work is done when a call returns",
                      q->device->name);
}
static sheaf_status now_synchronize(sheaf_queue *q) {
    (void)q;
    return SHEAF_OK;
}
static void now_barrier(sheaf_queue *q, int i) {
    (void)q;
    (void)i;
}

static const sheaf_queue_iface now_iface = {now_free, now_call, now_record, now_wait, now_synchronize, now_barrier};
static const sheaf_queue_iface now_embedded_iface = {now_embedded_free, now_call,        now_record,
                                                     now_wait,          now_synchronize, now_barrier};

static sheaf_status host_queue_new(sheaf_backend *b, sheaf_queue **out) {
    sheaf_queue *q = sheaf_calloc(1, sizeof *q);
    if (!q) return sheaf_fail(SHEAF_E_NO_MEMORY, "making a queue of %s: no memory", b->device->name);
    *q = (sheaf_queue){.iface = &now_iface, .device = b->device};
    *out = q;
    return SHEAF_OK;
}

static sheaf_status host_synchronize(sheaf_backend *b) {
    (void)b;
    return SHEAF_OK;
}

static void host_backend_free(sheaf_backend *base) {
    host_backend *b = (host_backend *)base;
    cpu_device *d = cpu_device_of(base->device);
    for (int i = 0; i < b->n_teams; i++) cpu_team_release(d->members[i]);
    sheaf_free(b->scratch);
    sheaf_free(b);
}

static const sheaf_backend_iface host_backend_iface = {
    .free = host_backend_free,
    .prepare = host_prepare,
    .prepared_free = host_prepared_free,
    .prepared_info = host_prepared_info,
    .run = host_run,
    .queue_new = host_queue_new,
    .synchronize = host_synchronize,
};

sheaf_status cpu_host_backend_create(sheaf_device *d, sheaf_backend **out) {
    cpu_device *host = cpu_device_of(d);
    host_backend *b = sheaf_calloc(1, sizeof *b);
    if (!b) return sheaf_fail(SHEAF_E_NO_MEMORY, "opening %s: no memory", d->name);
    b->queue = (sheaf_queue){.iface = &now_embedded_iface, .device = d};
    b->base = (sheaf_backend){.iface = &host_backend_iface, .device = d, .queue = &b->queue};
    b->scratch = sheaf_aligned_alloc(4096, CPU_THREAD_SCRATCH);
    if (!b->scratch) {
        host_backend_free(&b->base);
        return sheaf_fail(SHEAF_E_NO_MEMORY, "opening %s: no memory", d->name);
    }
    for (; b->n_teams < host->n_members; b->n_teams++) {
        sheaf_status s = cpu_team_acquire(host->members[b->n_teams], &b->teams[b->n_teams]);
        if (!s) continue;
        host_backend_free(&b->base);
        return s;
    }
    *out = &b->base;
    return SHEAF_OK;
}

/* --- the device ----------------------------------------------------------------------------------------------- */

static void host_free(sheaf_device *base) {
    cpu_device *d = cpu_device_of(base);
    sheaf_free(d->members);
    sheaf_free(d);
}

static sheaf_status host_memory_of(sheaf_device *d, size_t *total, size_t *free_bytes) {
    return cpu_device_iface.memory(d, total, free_bytes);
}

static bool host_supports_op(sheaf_device *d, const sheaf_tensor *node) {
    (void)d;
    return cpu_op_supported(node);
}

static bool host_supports_buffer_type(sheaf_device *d, const sheaf_buffer_type *t) {
    (void)d;
    return t == sheaf_host_buffer_type() || cpu_is_mapped_type(t);
}

static sheaf_status host_from_host_ptr(sheaf_device *d, void *p, size_t size, sheaf_buffer **out) {
    return cpu_device_iface.buffer_from_host_ptr(d, p, size, out);
}

static const sheaf_row_kernels *host_row_kernels(sheaf_device *d) { return &cpu_device_of(d)->rows; }

const sheaf_device_iface cpu_host_device_iface = {
    .free = host_free,
    .memory = host_memory_of,
    .supports_op = host_supports_op,
    .supports_buffer_type = host_supports_buffer_type,
    .backend_new = cpu_host_backend_create,
    .buffer_from_host_ptr = host_from_host_ptr,
    .row_kernels = host_row_kernels,
};

/* Members of other kinds lend nothing. */
static void take_members(cpu_device *d, sheaf_device *const *members, int n) {
    for (int i = 0; i < n && d->n_members < MAX_BORROWED; i++) {
        if (members[i]->iface != &cpu_device_iface) continue;
        d->members[d->n_members++] = cpu_device_of(members[i]);
        d->base.n_threads += members[i]->n_threads;
    }
    if (d->n_members == 0) d->base.n_threads = 1;
}

bool cpu_host_lends(const sheaf_device *base, sheaf_device *const *members, int n) {
    if (base->iface != &cpu_host_device_iface) return false;
    const cpu_device *d = (const cpu_device *)base;
    int k = 0;
    for (int i = 0; i < n && k < MAX_BORROWED; i++) {
        if (members[i]->iface != &cpu_device_iface) continue;
        if (k == d->n_members || &d->members[k]->base != members[i]) return false;
        k++;
    }
    return k == d->n_members;
}

sheaf_status cpu_host_device_open(cpu_host *h, sheaf_device *const *members, int n, sheaf_device **out) {
    cpu_device *d = sheaf_aligned_alloc(64, sizeof *d);
    if (!d) return sheaf_fail(SHEAF_E_NO_MEMORY, "opening the host device: no memory");
    memset(d, 0, sizeof *d);
    d->members = sheaf_calloc((size_t)n + 1, sizeof(cpu_device *));
    if (!d->members) {
        host_free(&d->base);
        return sheaf_fail(SHEAF_E_NO_MEMORY, "opening the host device: no memory");
    }
    d->host = h;
    d->is_host = true;
    d->shares = 1;
    d->base = (sheaf_device){.iface = &cpu_host_device_iface,
                             .name = "host",
                             .kind = SHEAF_DEVICE_CPU,
                             .caps = {.host_ptr = true, .host_memory = true},
                             .buffer_type = sheaf_host_buffer_type(),
                             .mapped_buffer_type = &d->mapped,
                             .numa = -1};
    take_members(d, members, n);
    sheaf_status s = SHEAF_OK;
    if (d->n_members)
        d->kernels = d->members[0]->kernels;
    else
        s = cpu_choose_kernels(&(sheaf_open_options){0}, &d->kernels);
    if (s) {
        host_free(&d->base);
        return s;
    }
    d->rows = (sheaf_row_kernels){d->kernels->rms_norm, d->kernels->sum_f64};
    d->mapped = (sheaf_buffer_type){.iface = &cpu_mapped_type_iface,
                                    .name = "host mapped",
                                    .device = &d->base,
                                    .alignment = 8,
                                    .pack_rows = 1,
                                    .is_host = true};
    snprintf(d->base.description, sizeof d->base.description, "fallback on the host, %s kernels", d->kernels->name);
    *out = &d->base;
    return SHEAF_OK;
}
