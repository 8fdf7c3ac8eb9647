/* The tour, 1 of 5: everything in arenas.
 *
 * An arena holds headers, and as much else as is asked of it. Here it holds the bytes too: those of weights and caches
 * for as long as the program runs, those of a graph until the next graph is built. Every tensor has bytes of its own,
 * from its first use to the end of the run, needed or not.
 *
 * The library computes, and owns no memory: the CPU backend walks the graph on the addresses that it finds in it. */
#include "gpt2.h"

#include <stdio.h>
#include <string.h>

typedef struct program {
    gpt2 m;
    sheaf_registry *registry;
    sheaf_backend *backend;
    sheaf_arena *run; /* a graph and what it computes */
    size_t run_bytes; /* the most that it held */
} program;

/* Bytes for every tensor of an arena, from the same arena. A view has its root's. */
static sheaf_status give_bytes(sheaf_arena *a) {
    for (sheaf_tensor *t = sheaf_arena_next(a, NULL); t; t = sheaf_arena_next(a, t)) {
        if (t->view_src) {
            t->data = (char *)t->view_src->data + t->view_offs;
        } else {
            t->data = sheaf_arena_alloc(a, sheaf_nbytes(t));
            if (!t->data) return sheaf_arena_status(a);
        }
    }
    return SHEAF_OK;
}

static sheaf_status set(sheaf_tensor *t, const void *bytes, size_t size) {
    memcpy(t->data, bytes, size);
    return SHEAF_OK;
}

static sheaf_status eval(void *ctx, const int32_t *token, int n, int n_past, float *logits) {
    program *p = ctx;
    sheaf_graph *g = NULL;
    sheaf_arena_reset(p->run); /* the last run's graph and all it computed */
    sheaf_status s = gpt2_graph(&p->m, p->run, n, n_past, &g);
    if (!s) s = give_bytes(p->run);
    if (!s) s = gpt2_feed(g, token, n, n_past, set);
    if (!s) s = sheaf_backend_compute(p->backend, g);
    if (s) return s;
    const sheaf_tensor *out = sheaf_graph_find(g, "logits");
    memcpy(logits, out->data, sheaf_nbytes(out));
    if (sheaf_arena_used(p->run) > p->run_bytes) p->run_bytes = sheaf_arena_used(p->run);
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
    if (!s) s = sheaf_arena_new(1 << 20, &p.run);
    if (!s) s = give_bytes(p.m.weights);
    if (!s) s = give_bytes(p.m.state);
    if (!s) s = gpt2_load(&p.m, set);
    if (!s) s = gpt2_generate(&p.m, eval, &p);
    if (s) {
        fprintf(stderr, "%s\n", sheaf_error());
    } else {
        fprintf(stderr, "weights %zu bytes, caches %zu, a run %zu\n", sheaf_arena_used(p.m.weights),
                sheaf_arena_used(p.m.state), p.run_bytes);
    }
    sheaf_backend_free(p.backend);
    sheaf_registry_free(p.registry);
    sheaf_arena_free(p.run);
    gpt2_close(&p.m);
    return sheaf_status_exit_code(s);
}
