/* The thin wrappers of backends.h over the interface tables, and the one-call compute for tests. */
#include "backends/backend.h"

sheaf_status sheaf_backend_new(sheaf_device *d, sheaf_backend **out) {
    *out = NULL;
    return d->iface->backend_new(d, out);
}

void sheaf_backend_free(sheaf_backend *b) {
    if (b) b->iface->free(b);
}

sheaf_status sheaf_backend_prepare(sheaf_backend *b, const sheaf_graph *g, sheaf_prepared **out) {
    *out = NULL;
    return b->iface->prepare(b, g, out);
}

void sheaf_prepared_free(sheaf_backend *b, sheaf_prepared *p) {
    if (p) b->iface->prepared_free(b, p);
}

sheaf_prepare_info sheaf_prepared_info(sheaf_backend *b, const sheaf_prepared *p) {
    return b->iface->prepared_info(b, p);
}

sheaf_status sheaf_backend_bind(sheaf_backend *b, sheaf_prepared *p, sheaf_graph *g) {
    return b->iface->bind ? b->iface->bind(b, p, g) : SHEAF_OK;
}

sheaf_status sheaf_backend_run(sheaf_backend *b, sheaf_prepared *p, void *const *addr, void *scratch, sheaf_queue *q) {
    return b->iface->run(b, p, addr, scratch, q);
}

sheaf_status sheaf_backend_synchronize(sheaf_backend *b) { return b->iface->synchronize(b); }

bool sheaf_device_supports_op(sheaf_device *d, const sheaf_tensor *node) { return d->iface->supports_op(d, node); }

bool sheaf_device_supports_buffer_type(sheaf_device *d, const sheaf_buffer_type *t) {
    return d->iface->supports_buffer_type(d, t);
}

sheaf_status sheaf_queue_call(sheaf_queue *q, sheaf_queue_fn fn, void *ctx) { return q->iface->call(q, fn, ctx); }
sheaf_status sheaf_queue_record(sheaf_queue *q, sheaf_event *e) { return q->iface->record(q, e); }
sheaf_status sheaf_queue_wait(sheaf_queue *q, sheaf_event *e) { return q->iface->wait(q, e); }
sheaf_status sheaf_queue_synchronize(sheaf_queue *q) { return q->iface->synchronize(q); }
void sheaf_queue_barrier(sheaf_queue *q, int i) { q->iface->barrier(q, i); }

/* --- compute in one call ----------------------------------------------------------------------------- */

/* The address of every slot, as the tensors carry them. */
static sheaf_status collect_addresses(const sheaf_graph *g, void **addr) {
    for (int32_t i = 0; i < g->n_leafs + g->n_nodes; i++) {
        const sheaf_tensor *t = sheaf_graph_slot(g, i);
        if (!t->data && sheaf_nelements(t) > 0)
            return sheaf_fail(SHEAF_E_ARGUMENT, "computing a graph: slot %d (%s) has no place", i, t->name);
        addr[i] = t->data;
    }
    return SHEAF_OK;
}

sheaf_status sheaf_backend_compute(sheaf_backend *b, const sheaf_graph *g) {
    sheaf_prepared *p = NULL;
    sheaf_buffer *scratch = NULL;
    void **addr = sheaf_calloc((size_t)(g->n_leafs + g->n_nodes) + 1, sizeof *addr);
    if (!addr) return sheaf_fail(SHEAF_E_NO_MEMORY, "computing a graph: no memory");
    sheaf_status s = collect_addresses(g, addr);
    if (!s) s = sheaf_backend_prepare(b, g, &p);
    if (!s) {
        size_t bytes = sheaf_prepared_info(b, p).scratch_bytes;
        s = sheaf_buffer_alloc(b->device->buffer_type, bytes, SHEAF_USAGE_COMPUTE, &scratch);
    }
    if (!s) s = sheaf_backend_bind(b, p, (sheaf_graph *)g);
    if (!s) {
        s = sheaf_backend_run(b, p, addr, scratch->base, NULL);
        sheaf_status end = sheaf_backend_synchronize(b);
        if (!s) s = end;
    }
    sheaf_buffer_free(scratch);
    sheaf_prepared_free(b, p);
    sheaf_free(addr);
    return s;
}
