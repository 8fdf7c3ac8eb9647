/* Queues and events of a CPU device: what the commands of a ring mean, and who keeps failures.
 *
 * States of a queue:   clean --(a command fails)--> failed --(synchronize)--> clean
 * A failed queue skips later runs, calls and copies; records and waits still happen, so that nobody
 * who waits for an event hangs. Whether a command is skipped must be the same for every thread: a
 * failure carries the number of its command, and only commands after that number are skipped. */
#include "backends/cpu/device_internal.h"

#include <string.h>

enum { COPY_PIECE = 256 * 1024 };

static cpu_queue *queue_of(sheaf_queue *q) { return (cpu_queue *)q; }

/* --- executing ------------------------------------------------------------------------------------- */

/* Keeps the first failure, with this thread's text, and tells who asked. */
static void keep_failure(cpu_queue *q, unsigned seq, sheaf_status s) {
    pthread_mutex_lock(&q->lock);
    bool first = !atomic_load(&q->failed);
    if (first) {
        sheaf_error_save(&q->failure, s);
        q->failed_seq = seq;
        if (q->base.on_failure) q->base.on_failure(q->base.on_failure_ctx, s);
        atomic_store(&q->failed, true);
    }
    pthread_mutex_unlock(&q->lock);
}

static bool skipped(cpu_queue *q, unsigned seq) { return atomic_load(&q->failed) && (int)(seq - q->failed_seq) > 0; }

static void execute_run(cpu_team *t, const cpu_command *c, unsigned seq, int i) {
    cpu_program *p = c->u.run.program;
    cpu_run r = {.kernels = t->kernels, .addr = c->u.run.addr, .scratch = c->u.run.scratch, .counters = p->counters};
    cpu_program_walk(p, &r, &t->barrier, i, t->n_threads, t->scratch + (size_t)i * CPU_THREAD_SCRATCH);
    if (i == 0 && t->faults && atomic_load_explicit(&t->faults->kernel, memory_order_relaxed) > 0)
        for (int32_t k = 0; k < p->n_steps; k++)
            if (cpu_fault_hits(&t->faults->kernel))
                keep_failure(
                    c->queue, seq,
                    sheaf_fail(SHEAF_E_DEVICE, "kernel %d (%s): injected fault", k, sheaf_op_name(p->steps[k]->op)));
}

static void execute_copy(cpu_team *t, const cpu_command *c, unsigned seq, int i) {
    if (t->faults && i == 0 && cpu_fault_hits(&t->faults->copy)) {
        keep_failure(c->queue, seq, sheaf_fail(SHEAF_E_DEVICE, "copy of %zu bytes: injected fault", c->u.copy.size));
        return;
    }
    size_t pieces = (c->u.copy.size + COPY_PIECE - 1) / COPY_PIECE;
    for (size_t k = (size_t)i; k < pieces; k += (size_t)t->n_threads) {
        size_t at = k * COPY_PIECE, n = c->u.copy.size - at < COPY_PIECE ? c->u.copy.size - at : COPY_PIECE;
        memcpy((char *)c->u.copy.dst + at, (const char *)c->u.copy.src + at, n);
    }
}

static const sheaf_event_iface cpu_event_iface;

/* Thread 0 waits; the others wait for it at the command's end. */
static void execute_wait(cpu_team *t, const cpu_command *c, unsigned seq, int i) {
    if (i) return;
    sheaf_event *e = c->u.event.event;
    if (e->iface != &cpu_event_iface) { /* another kind of device: only it knows how to wait */
        sheaf_status s = e->iface->synchronize(e);
        if (s) keep_failure(c->queue, seq, s);
        return;
    }
    cpu_event *own = (cpu_event *)e;
    for (;;) {
        unsigned done = sheaf_word_get(&own->done);
        if ((int)(done - c->u.event.ticket) >= 0) return;
        sheaf_word_wait(&own->done, done, atomic_load_explicit(&t->spin_ns, memory_order_relaxed));
    }
}

/* The event may be freed as soon as its word has changed and `busy` is clear again: clearing it is the
 * last touch. */
static void event_happens(cpu_event *e, unsigned ticket) {
    atomic_store(&e->busy, true);
    if ((int)(ticket - sheaf_word_get(&e->done)) > 0) sheaf_word_set(&e->done, ticket);
    atomic_store(&e->busy, false);
}

void cpu_command_execute(cpu_team *t, const cpu_command *c, unsigned seq, int i) {
    bool skip = c->queue && skipped(c->queue, seq);
    switch (c->kind) {
    case CPU_CMD_RUN:
        if (!skip) execute_run(t, c, seq, i);
        break;
    case CPU_CMD_CALL:
        if (!skip) {
            sheaf_status s = c->u.call.fn(c->u.call.ctx, i, t->n_threads, c->queue ? &c->queue->base : NULL);
            if (s && c->queue) keep_failure(c->queue, seq, s);
        }
        break;
    case CPU_CMD_COPY:
        if (!skip) execute_copy(t, c, seq, i);
        break;
    case CPU_CMD_RECORD:
        if (i == 0) event_happens((cpu_event *)c->u.event.event, c->u.event.ticket);
        break;
    case CPU_CMD_WAIT: execute_wait(t, c, seq, i); break;
    case CPU_CMD_QUIT: break;
    }
}

void cpu_command_end(const cpu_command *c) {
    if (c->kind == CPU_CMD_RUN) cpu_program_end(c->u.run.program);
}

/* --- posting --------------------------------------------------------------------------------------- */

static sheaf_status post(cpu_queue *q, cpu_command c) {
    c.queue = q;
    q->last = cpu_team_post(q->team, &c);
    return SHEAF_OK;
}

static sheaf_status queue_call(sheaf_queue *q, sheaf_queue_fn fn, void *ctx) {
    return post(queue_of(q), (cpu_command){.kind = CPU_CMD_CALL, .u.call = {fn, ctx}});
}

sheaf_status cpu_queue_run(sheaf_queue *q, cpu_program *p, void *const *addr, void *scratch) {
    return post(queue_of(q), (cpu_command){.kind = CPU_CMD_RUN, .u.run = {p, addr, scratch}});
}

sheaf_status cpu_queue_copy(sheaf_queue *q, void *dst, const void *src, size_t size) {
    return post(queue_of(q), (cpu_command){.kind = CPU_CMD_COPY, .u.copy = {dst, src, size}});
}

static sheaf_status queue_record(sheaf_queue *q, sheaf_event *e) {
    if (e->iface != &cpu_event_iface)
        return sheaf_fail(SHEAF_E_ARGUMENT, "recording an event on %s: it is another device's kind", q->device->name);
    unsigned ticket = atomic_fetch_add(&((cpu_event *)e)->posted, 1) + 1;
    return post(queue_of(q), (cpu_command){.kind = CPU_CMD_RECORD, .u.event = {e, ticket}});
}

static sheaf_status queue_wait(sheaf_queue *q, sheaf_event *e) {
    unsigned ticket = 0;
    if (e->iface == &cpu_event_iface) {
        ticket = atomic_load(&((cpu_event *)e)->posted);
        if (ticket == 0) return SHEAF_OK; /* never recorded: nothing to wait for */
    }
    return post(queue_of(q), (cpu_command){.kind = CPU_CMD_WAIT, .u.event = {e, ticket}});
}

static sheaf_status queue_synchronize(sheaf_queue *base) {
    cpu_queue *q = queue_of(base);
    cpu_team_wait(q->team, q->last);
    if (!atomic_load(&q->failed)) return SHEAF_OK;
    pthread_mutex_lock(&q->lock);
    sheaf_status s = sheaf_error_restore(&q->failure);
    atomic_store(&q->failed, false);
    pthread_mutex_unlock(&q->lock);
    return s;
}

static void queue_barrier(sheaf_queue *q, int i) {
    (void)i;
    cpu_barrier_wait(&queue_of(q)->team->barrier);
}

static void queue_free(sheaf_queue *base) {
    cpu_queue *q = queue_of(base);
    cpu_team_wait(q->team, q->last);
    cpu_team_release(cpu_device_of(base->device));
    pthread_mutex_destroy(&q->lock);
    sheaf_free(q);
}

static const sheaf_queue_iface cpu_queue_iface = {
    .free = queue_free,
    .call = queue_call,
    .record = queue_record,
    .wait = queue_wait,
    .synchronize = queue_synchronize,
    .barrier = queue_barrier,
};

sheaf_status cpu_queue_create(cpu_device *d, cpu_team *team, sheaf_queue **out) {
    cpu_queue *q = sheaf_calloc(1, sizeof *q);
    if (!q) return sheaf_fail(SHEAF_E_NO_MEMORY, "making a queue of %s: no memory", d->base.name);
    q->base = (sheaf_queue){.iface = &cpu_queue_iface, .device = &d->base};
    q->team = team;
    q->last = sheaf_word_get(&team->done);
    pthread_mutex_init(&q->lock, NULL);
    *out = &q->base;
    return SHEAF_OK;
}

/* --- events ------------------------------------------------------------------------------------------ */

static void event_free(sheaf_event *base) {
    cpu_event *e = (cpu_event *)base;
    while (atomic_load(&e->busy)) sched_yield();
    sheaf_free(e);
}

static sheaf_status event_synchronize(sheaf_event *base) {
    cpu_event *e = (cpu_event *)base;
    unsigned ticket = atomic_load(&e->posted);
    for (;;) {
        unsigned done = sheaf_word_get(&e->done);
        if ((int)(done - ticket) >= 0) return SHEAF_OK;
        sheaf_word_wait(&e->done, done, 0);
    }
}

static const sheaf_event_iface cpu_event_iface = {.free = event_free, .synchronize = event_synchronize};

sheaf_status cpu_event_create(cpu_device *d, sheaf_event **out) {
    cpu_event *e = sheaf_calloc(1, sizeof *e);
    if (!e) return sheaf_fail(SHEAF_E_NO_MEMORY, "making an event of %s: no memory", d->base.name);
    e->base = (sheaf_event){.iface = &cpu_event_iface, .device = &d->base};
    *out = &e->base;
    return SHEAF_OK;
}
