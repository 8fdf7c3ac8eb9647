/* What a CPU device's machinery costs by itself: meeting at a barrier, dispatching a command, walking a
 * graph of steps that do next to nothing. Prints medians of rounds.
 *
 *     bench-team [DEVICES [THREADS]]        bench-team cpu 2; bench-team cpu/2 2 */
#include "tests/backends/workbench.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 31, MEETINGS = 2000, CALLS = 500 };

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 2];
}

static sheaf_status meet(void *ctx, int i, int n, sheaf_queue *q) {
    (void)ctx, (void)n;
    for (int k = 0; k < MEETINGS; k++) sheaf_queue_barrier(q, i);
    return SHEAF_OK;
}

static sheaf_status nothing(void *ctx, int i, int n, sheaf_queue *q) {
    (void)ctx, (void)i, (void)n, (void)q;
    return SHEAF_OK;
}

static double time_calls(sheaf_queue *q, sheaf_queue_fn fn, int calls) {
    double v[ROUNDS];
    for (int r = 0; r < ROUNDS; r++) {
        double begin = now_us();
        for (int k = 0; k < calls; k++) sheaf_queue_call(q, fn, NULL);
        sheaf_queue_synchronize(q);
        v[r] = now_us() - begin;
    }
    return median(v, ROUNDS);
}

/* A graph of `n` dependent small nodes, prepared once: what a token pays for walking it. */
static int time_graph(workbench *w, int n, double *run_us, double *prepare_us, int *kernels) {
    sheaf_graph *g;
    sheaf_prepared *p = NULL;
    double v[ROUNDS];
    if (workbench_clear(w)) return 1;
    sheaf_tensor *x = sheaf_new_1d(w->arena, SHEAF_F32, 64);
    for (int i = 0; i < n; i++) x = sheaf_scale(w->arena, x, 1.0f, 0.5f);
    if (workbench_graph(w, x, &g) || workbench_place(w, 1)) return 1;
    for (int r = 0; r < ROUNDS; r++) {
        sheaf_prepared_free(w->backend, p);
        double begin = now_us();
        if (sheaf_backend_prepare(w->backend, g, &p)) return 1;
        v[r] = now_us() - begin;
    }
    *prepare_us = median(v, ROUNDS);
    *kernels = sheaf_prepared_info(w->backend, p).n_kernels;
    void **addr = calloc((size_t)(g->n_leafs + g->n_nodes), sizeof *addr);
    for (int i = 0; addr && i < g->n_leafs + g->n_nodes; i++) addr[i] = sheaf_graph_slot(g, i)->data;
    for (int r = 0; addr && r < ROUNDS; r++) {
        double begin = now_us();
        sheaf_backend_run(w->backend, p, addr, NULL, NULL);
        sheaf_backend_synchronize(w->backend);
        v[r] = now_us() - begin;
    }
    *run_us = median(v, ROUNDS);
    sheaf_prepared_free(w->backend, p);
    free(addr);
    return 0;
}

int main(int argc, char **argv) {
    const char *list = argc > 1 ? argv[1] : "cpu";
    workbench w;
    if (workbench_open(&w, list, argc > 2 ? atoi(argv[2]) : 0, "")) {
        fprintf(stderr, "bench-team: %s\n", sheaf_error());
        return 1;
    }
    sheaf_queue *q = w.backend->queue;
    double empty = time_calls(q, nothing, 1), many = time_calls(q, nothing, CALLS), meetings = time_calls(q, meet, 1);
    double run, prepare;
    int kernels;
    if (time_graph(&w, 500, &run, &prepare, &kernels)) {
        fprintf(stderr, "bench-team: %s\n", sheaf_error());
        return 1;
    }
    printf("%s, %d threads\n", w.device->name, w.device->n_threads);
    printf("barrier              %8.3f us\n", (meetings - empty) / MEETINGS);
    printf("call, posted ahead   %8.3f us\n", many / CALLS);
    printf("call and synchronize %8.3f us\n", empty);
    printf("run of %d steps     %8.1f us (%.3f us a step)\n", kernels, run, run / kernels);
    printf("prepare              %8.1f us\n", prepare);
    workbench_close(&w);
    return 0;
}
