/* The tour, 3 of 5: all memory in buffers of the backend that computes.
 *
 * The program no longer knows where a byte is. A device says what memory it has (a buffer type), and buffers of it hold
 * weights, caches and what runs compute; bytes go in and out through sheaf_tensor_set and sheaf_tensor_get. Put another
 * device's name into open_device and everything lies in that device's memory: nothing else here would change.
 *
 * The allocator still plans, in offsets of the compute buffer. */
#include "gpt2.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct program {
    gpt2 m;
    sheaf_registry *registry;
    sheaf_device *device;
    sheaf_backend *backend;
    sheaf_arena *run;
    sheaf_galloc *allocator;
    sheaf_buffer *weights, *state, *compute, *scratch;
} program;

static sheaf_status set(sheaf_tensor *t, const void *bytes, size_t size) { return sheaf_tensor_set(t, bytes, 0, size); }

/* Two buffers for what outlives a run. Cells that nobody wrote are hidden by the mask, but must hold numbers. */
static sheaf_status make_buffers(program *p) {
    sheaf_buffer_type *type = p->device->buffer_type;
    sheaf_status s = sheaf_arena_place_all(p->m.weights, type, SHEAF_USAGE_WEIGHTS, &p->weights);
    if (!s) s = sheaf_arena_place_all(p->m.state, type, SHEAF_USAGE_STATE, &p->state);
    return s ? s : sheaf_buffer_clear(p->state, 0);
}

/* Compiles a graph and plans its memory. */
static sheaf_status prepare(program *p, const sheaf_graph *g, sheaf_prepared **out) {
    sheaf_status s = sheaf_backend_prepare(p->backend, g, out);
    if (s) return s;
    sheaf_prepare_info info = sheaf_prepared_info(p->backend, *out);
    s = sheaf_galloc_assign(p->allocator, g, NULL, info.keep, info.n_keep);
    if (s != SHEAF_E_RANGE) return s;
    s = sheaf_galloc_reserve(p->allocator, g, NULL, info.keep, info.n_keep);
    return s ? s : sheaf_galloc_assign(p->allocator, g, NULL, info.keep, info.n_keep);
}

/* Buffers for the largest graph: what it computes, and what the backend wants for itself meanwhile. */
static sheaf_status make_compute(program *p) {
    sheaf_buffer_type *type = p->device->buffer_type;
    sheaf_galloc_type plan = {.alignment = type->alignment, .max_size = type->max_size};
    sheaf_graph *g = NULL;
    sheaf_prepared *prepared = NULL;
    sheaf_status s = sheaf_galloc_new(&plan, 1, &p->allocator);
    if (!s) s = gpt2_worst_graph(&p->m, p->run, &g);
    if (!s) s = prepare(p, g, &prepared);
    if (!s) s = sheaf_buffer_alloc(type, sheaf_galloc_bytes(p->allocator, 0), SHEAF_USAGE_COMPUTE, &p->compute);
    if (!s) {
        size_t bytes = sheaf_prepared_info(p->backend, prepared).scratch_bytes;
        s = sheaf_buffer_alloc(type, bytes, SHEAF_USAGE_COMPUTE, &p->scratch);
    }
    sheaf_prepared_free(p->backend, prepared);
    return s;
}

/* Places every tensor of the graph, and lists the addresses by slot: that is all that a prepared graph wants to know.
 */
static sheaf_status place(program *p, const sheaf_graph *g, void **addr) {
    sheaf_status s = SHEAF_OK;
    for (int32_t i = 0; i < g->n_leafs + g->n_nodes && !s; i++) {
        sheaf_tensor *t = sheaf_graph_slot(g, i);
        sheaf_place at = sheaf_galloc_place(p->allocator, i);
        if (t->view_src) {
            s = sheaf_view_place(t);
        } else if (at.arena >= 0) {
            s = sheaf_tensor_place(p->compute, t, (char *)p->compute->base + at.offset);
        }
        addr[i] = t->data;
    }
    return s;
}

static sheaf_status run(program *p, sheaf_prepared *prepared, void **addr) {
    sheaf_status s = sheaf_backend_run(p->backend, prepared, addr, p->scratch->base, NULL); /* queued */
    sheaf_status end = sheaf_backend_synchronize(p->backend);                               /* done */
    return s ? s : end;
}

static sheaf_status eval(void *ctx, const int32_t *token, int n, int n_past, float *logits) {
    program *p = ctx;
    sheaf_graph *g = NULL;
    sheaf_prepared *prepared = NULL;
    void **addr = NULL;
    sheaf_arena_reset(p->run);
    sheaf_status s = gpt2_graph(&p->m, p->run, n, n_past, &g);
    if (!s) s = prepare(p, g, &prepared);
    if (!s) addr = sheaf_arena_alloc(p->run, (size_t)(g->n_leafs + g->n_nodes) * sizeof *addr);
    if (!s) s = addr ? place(p, g, addr) : sheaf_arena_status(p->run);
    if (!s) s = gpt2_feed(g, token, n, n_past, set);
    if (!s) s = run(p, prepared, addr);
    if (!s) s = sheaf_tensor_get(sheaf_graph_find(g, "logits"), logits, 0, (size_t)p->m.n_vocab * sizeof *logits);
    sheaf_prepared_free(p->backend, prepared);
    return s;
}

static sheaf_status open_device(program *p) {
    sheaf_open_options o = {0};
    int n;
    sheaf_status s = sheaf_registry_new(&p->registry);
    if (!s) s = sheaf_devices_open(p->registry, "cpu", &o, &p->device, 1, &n);
    return s ? s : sheaf_backend_new(p->device, &p->backend);
}

int main(int argc, char **argv) {
    program p = {0};
    sheaf_status s = gpt2_open(argc, argv, 1, &p.m);
    if (!s) s = open_device(&p);
    if (!s) s = sheaf_arena_new(64 << 10, &p.run);
    if (!s) s = make_buffers(&p);
    if (!s) s = make_compute(&p);
    if (!s) s = gpt2_load(&p.m, set);
    if (!s) s = gpt2_generate(&p.m, eval, &p);
    if (s) {
        fprintf(stderr, "%s\n", sheaf_error());
    } else {
        fprintf(stderr, "on %s: weights %zu bytes, caches %zu, any run %zu\n", p.device->name, p.weights->size,
                p.state->size, p.compute->size + p.scratch->size);
    }
    sheaf_buffer_free(p.scratch);
    sheaf_buffer_free(p.compute);
    sheaf_buffer_free(p.state);
    sheaf_buffer_free(p.weights);
    sheaf_galloc_free(p.allocator);
    sheaf_backend_free(p.backend);
    sheaf_registry_free(p.registry);
    sheaf_arena_free(p.run);
    gpt2_close(&p.m);
    return sheaf_status_exit_code(s);
}
