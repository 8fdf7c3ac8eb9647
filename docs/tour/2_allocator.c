/* The tour, 2 of 5: the graph allocator plans what a run computes.
 *
 * Weights and caches live in arenas as before. A graph's arena holds headers only, and the allocator says where each
 * tensor's bytes go in one block: a tensor that nobody reads any more makes room for the next one, and an op that may
 * writes over its source. The block is as large as the largest graph needs, asked for once; offsets come from the
 * library, the memory is the program's. */
#include "gpt2.h"

#include <stdio.h>
#include <string.h>

typedef struct program {
    gpt2 m;
    sheaf_registry *registry;
    sheaf_backend *backend;
    sheaf_arena *run;        /* headers of one graph */
    sheaf_galloc *allocator; /* offsets */
    char *block;
    size_t block_bytes;
} program;

static sheaf_status give_bytes(sheaf_arena *a) {
    for (sheaf_tensor *t = sheaf_arena_next(a, NULL); t; t = sheaf_arena_next(a, t))
        if (!(t->data = sheaf_arena_alloc(a, sheaf_nbytes(t)))) return sheaf_arena_status(a);
    return SHEAF_OK;
}

static sheaf_status set(sheaf_tensor *t, const void *bytes, size_t size) {
    memcpy(t->data, bytes, size);
    return SHEAF_OK;
}

/* Plans the graph, or finds that the plan before fits it. The backend is asked first: where it runs nodes at the same
 * time, or in another order, it wants some tensors to live longer than the order of nodes alone would have them. */
static sheaf_status plan(program *p, const sheaf_graph *g) {
    sheaf_prepared *prepared;
    sheaf_status s = sheaf_backend_prepare(p->backend, g, &prepared);
    if (s) return s;
    sheaf_prepare_info info = sheaf_prepared_info(p->backend, prepared);
    s = sheaf_galloc_assign(p->allocator, g, NULL, info.keep, info.n_keep);
    if (s == SHEAF_E_RANGE) {
        s = sheaf_galloc_reserve(p->allocator, g, NULL, info.keep, info.n_keep);
        if (!s) s = sheaf_galloc_assign(p->allocator, g, NULL, info.keep, info.n_keep);
    }
    sheaf_prepared_free(p->backend, prepared);
    return s;
}

/* The block, from the plan of the largest graph; no later graph needs more. */
static sheaf_status make_block(program *p) {
    const sheaf_galloc_type type = {.alignment = 64};
    sheaf_graph *g = NULL;
    sheaf_status s = sheaf_galloc_new(&type, 1, &p->allocator);
    if (!s) s = gpt2_worst_graph(&p->m, p->run, &g);
    if (!s) s = plan(p, g);
    if (s) return s;
    p->block_bytes = sheaf_galloc_bytes(p->allocator, 0);
    p->block = sheaf_aligned_alloc(64, p->block_bytes);
    return p->block ? SHEAF_OK : sheaf_fail(SHEAF_E_NO_MEMORY, "no memory for %zu bytes", p->block_bytes);
}

/* Offsets become addresses. What has bytes already (weights, caches) got no place. */
static sheaf_status stamp(const program *p, const sheaf_graph *g) {
    for (int32_t i = 0; i < g->n_leafs + g->n_nodes; i++) {
        sheaf_tensor *t = sheaf_graph_slot(g, i);
        sheaf_place at = sheaf_galloc_place(p->allocator, i);
        if (t->view_src) {
            t->data = (char *)t->view_src->data + t->view_offs;
        } else if (at.arena >= 0) {
            if (at.offset + at.size > p->block_bytes) return sheaf_fail(SHEAF_E_RANGE, "%s does not fit", t->name);
            t->data = p->block + at.offset;
        }
    }
    return SHEAF_OK;
}

static sheaf_status eval(void *ctx, const int32_t *token, int n, int n_past, float *logits) {
    program *p = ctx;
    sheaf_graph *g = NULL;
    sheaf_arena_reset(p->run);
    sheaf_status s = gpt2_graph(&p->m, p->run, n, n_past, &g);
    if (!s) s = plan(p, g);
    if (!s) s = stamp(p, g);
    if (!s) s = gpt2_feed(g, token, n, n_past, set);
    if (!s) s = sheaf_backend_compute(p->backend, g);
    if (s) return s;
    const sheaf_tensor *out = sheaf_graph_find(g, "logits");
    memcpy(logits, out->data, sheaf_nbytes(out));
    return SHEAF_OK;
}

static sheaf_status open_cpu(program *p) {
    sheaf_open_options o = {0};
    sheaf_device *cpu;
    int n;
    sheaf_status s = sheaf_registry_new(&p->registry);
    if (!s) s = sheaf_devices_open(p->registry, "cpu", &o, &cpu, 1, &n);
    return s ? s : sheaf_backend_new(cpu, &p->backend);
}

int main(int argc, char **argv) {
    program p = {0};
    sheaf_status s = gpt2_open(argc, argv, 1, &p.m);
    if (!s) s = open_cpu(&p);
    if (!s) s = sheaf_arena_new(64 << 10, &p.run);
    if (!s) s = give_bytes(p.m.weights);
    if (!s) s = give_bytes(p.m.state);
    if (!s) s = make_block(&p);
    if (!s) s = gpt2_load(&p.m, set);
    if (!s) s = gpt2_generate(&p.m, eval, &p);
    if (s) {
        fprintf(stderr, "%s\n", sheaf_error());
    } else {
        fprintf(stderr, "weights %zu bytes, caches %zu, any run %zu\n", sheaf_arena_used(p.m.weights),
                sheaf_arena_used(p.m.state), p.block_bytes);
    }
    sheaf_backend_free(p.backend);
    sheaf_registry_free(p.registry);
    sheaf_free(p.block);
    sheaf_galloc_free(p.allocator);
    sheaf_arena_free(p.run);
    gpt2_close(&p.m);
    return sheaf_status_exit_code(s);
}
