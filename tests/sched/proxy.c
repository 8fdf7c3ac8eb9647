/* See proxy.h. Only what the scheduler asks is passed on. */
#include "tests/sched/proxy.h"

#include <stdio.h>
#include <string.h>

static proxy *of_device(sheaf_device *d) { return (proxy *)d; }
static proxy *of_backend(sheaf_backend *b) { return (proxy *)((char *)b - offsetof(proxy, backend)); }

static bool supports_op(sheaf_device *d, const sheaf_tensor *t) {
    proxy *p = of_device(d);
    return !(p->refused >> t->op & 1) && sheaf_device_supports_op(p->inner, t);
}
static bool supports_type(sheaf_device *d, const sheaf_buffer_type *t) {
    return sheaf_device_supports_buffer_type(of_device(d)->inner, t);
}
static const sheaf_device_iface device_iface = {.supports_op = supports_op, .supports_buffer_type = supports_type};

static sheaf_status prepare(sheaf_backend *b, const sheaf_graph *g, sheaf_prepared **out) {
    return sheaf_backend_prepare(of_backend(b)->inner_backend, g, out);
}
static void prepared_free(sheaf_backend *b, sheaf_prepared *x) { sheaf_prepared_free(of_backend(b)->inner_backend, x); }
static sheaf_prepare_info prepared_info(sheaf_backend *b, const sheaf_prepared *x) {
    return sheaf_prepared_info(of_backend(b)->inner_backend, x);
}
static sheaf_status run(sheaf_backend *b, sheaf_prepared *x, void *const *addr, void *scratch, sheaf_queue *q) {
    proxy *p = of_backend(b);
    p->busy = true;
    p->beside += p->other && p->other->busy;
    if (++p->runs == p->fail_run) return sheaf_fail(SHEAF_E_DEVICE, "%s: run %d fails", p->device.name, p->runs);
    return sheaf_backend_run(p->inner_backend, x, addr, scratch, q);
}
static sheaf_status synchronize(sheaf_backend *b) {
    of_backend(b)->busy = false;
    return sheaf_backend_synchronize(of_backend(b)->inner_backend);
}
static const sheaf_backend_iface backend_iface = {.prepare = prepare,
                                                  .prepared_free = prepared_free,
                                                  .prepared_info = prepared_info,
                                                  .run = run,
                                                  .synchronize = synchronize};

sheaf_status proxy_open(proxy *p, const char *name, sheaf_device *inner) {
    memset(p, 0, sizeof *p);
    p->inner = inner;
    p->device = *inner;
    p->device.iface = &device_iface;
    p->device.kind = SHEAF_DEVICE_GPU;
    snprintf(p->device.name, sizeof p->device.name, "%s", name);
    sheaf_status s = sheaf_backend_new(inner, &p->inner_backend);
    if (s) return s;
    p->backend.iface = &backend_iface;
    p->backend.device = &p->device;
    p->backend.queue = p->inner_backend->queue;
    return SHEAF_OK;
}

void proxy_close(proxy *p) { sheaf_backend_free(p->inner_backend); }
