/* The backend of a queue-driven CPU device: prepare compiles, run posts one command to the ring. */
#include "backends/cpu/device_internal.h"

#include <string.h>

static cpu_program *program_of(sheaf_prepared *p) { return (cpu_program *)p; }

static sheaf_status backend_prepare(sheaf_backend *b, const sheaf_graph *g, sheaf_prepared **out) {
    cpu_program *p;
    sheaf_status s = cpu_program_new(g, cpu_device_of(b->device)->kernels, &p);
    if (s) return sheaf_error_context(s, "%s", b->device->name);
    *out = (sheaf_prepared *)p;
    return SHEAF_OK;
}

static void backend_prepared_free(sheaf_backend *b, sheaf_prepared *p) {
    (void)b;
    cpu_program_free(program_of(p));
}

static sheaf_prepare_info backend_prepared_info(sheaf_backend *b, const sheaf_prepared *prepared) {
    (void)b;
    const cpu_program *p = (const cpu_program *)prepared;
    return (sheaf_prepare_info){
        .keep = p->keep, .n_keep = p->n_keep, .scratch_bytes = p->scratch_bytes, .n_kernels = p->n_steps};
}

static sheaf_status backend_run(sheaf_backend *b, sheaf_prepared *p, void *const *addr, void *scratch, sheaf_queue *q) {
    return cpu_queue_run(q ? q : b->queue, program_of(p), addr, scratch);
}

static sheaf_status backend_queue_new(sheaf_backend *b, sheaf_queue **out) {
    cpu_device *d = cpu_device_of(b->device);
    cpu_team *team;
    sheaf_status s = cpu_team_acquire(d, &team);
    if (s) return s;
    s = cpu_queue_create(d, team, out);
    if (s) cpu_team_release(d);
    return s;
}

static sheaf_status backend_event_new(sheaf_backend *b, sheaf_event **out) {
    return cpu_event_create(cpu_device_of(b->device), out);
}

/* Host address of [offset, offset+size) of t, or NULL with the error set. */
static char *range_of(const sheaf_tensor *t, size_t offset, size_t size) {
    size_t n = sheaf_nbytes(t);
    if (!t->data || !t->buffer || !t->buffer->type->is_host) {
        sheaf_fail(SHEAF_E_ARGUMENT, "copying %s: it has no host address", t->name);
        return NULL;
    }
    if (offset > n || size > n - offset) {
        sheaf_fail(SHEAF_E_RANGE, "copying %s: bytes %zu to %zu of %zu", t->name, offset, offset + size, n);
        return NULL;
    }
    return (char *)t->data + offset;
}

static sheaf_status backend_set_async(sheaf_backend *b, sheaf_tensor *t, const void *src, size_t offset, size_t size,
                                      sheaf_queue *q) {
    if (size == 0) return SHEAF_OK;
    char *dst = range_of(t, offset, size);
    if (!dst) return SHEAF_E_RANGE;
    return cpu_queue_copy(q ? q : b->queue, dst, src, size);
}

static sheaf_status backend_get_async(sheaf_backend *b, const sheaf_tensor *t, void *dst, size_t offset, size_t size,
                                      sheaf_queue *q) {
    if (size == 0) return SHEAF_OK;
    const char *src = range_of(t, offset, size);
    if (!src) return SHEAF_E_RANGE;
    return cpu_queue_copy(q ? q : b->queue, dst, src, size);
}

/* Queued on q (NULL: the receiver's own queue). The caller orders it against the sender by events. */
static sheaf_status backend_copy_async(sheaf_backend *from, sheaf_backend *to, const sheaf_tensor *src,
                                       sheaf_tensor *dst, sheaf_queue *q) {
    (void)from;
    size_t n = sheaf_nbytes(src);
    if (n == 0) return SHEAF_OK;
    if (src->type != dst->type || n != sheaf_nbytes(dst) || !sheaf_is_contiguous(src) || !sheaf_is_contiguous(dst))
        return sheaf_fail(SHEAF_E_SHAPE, "copying %s to %s: not the same contiguous bytes", src->name, dst->name);
    const char *a = range_of(src, 0, n);
    char *b = a ? range_of(dst, 0, n) : NULL;
    if (!b) return SHEAF_E_ARGUMENT;
    return cpu_queue_copy(q ? q : to->queue, b, a, n);
}

static sheaf_status backend_synchronize(sheaf_backend *b) { return sheaf_queue_synchronize(b->queue); }

static void backend_free(sheaf_backend *b) {
    b->queue->iface->free(b->queue);
    sheaf_free(b);
}

static const sheaf_backend_iface cpu_backend_iface = {
    .free = backend_free,
    .prepare = backend_prepare,
    .prepared_free = backend_prepared_free,
    .prepared_info = backend_prepared_info,
    .run = backend_run,
    .queue_new = backend_queue_new,
    .event_new = backend_event_new,
    .set_async = backend_set_async,
    .get_async = backend_get_async,
    .copy_async = backend_copy_async,
    .synchronize = backend_synchronize,
};

sheaf_status cpu_backend_create(sheaf_device *d, sheaf_backend **out) {
    sheaf_backend *b = sheaf_calloc(1, sizeof *b);
    if (!b) return sheaf_fail(SHEAF_E_NO_MEMORY, "opening %s: no memory", d->name);
    *b = (sheaf_backend){.iface = &cpu_backend_iface, .device = d};
    sheaf_status s = backend_queue_new(b, &b->queue);
    if (s) {
        sheaf_free(b);
        return s;
    }
    *out = b;
    return SHEAF_OK;
}
