/* What it costs to compile the plan of a whole model, and to find it again.
 *
 *     bench-plans [LAYERS [DEVICES]]        bench-plans 64 8
 *
 * A dense model of 64 layers, declared and placed but not read; graphs of one token and of a micro-batch. Prints
 * medians of rounds, in microseconds of this thread's own time, which does all of it: other work on the machine then
 * does not count, and neither do sleeps, of which there are none. In brackets what a clock on the wall says. */
#include "fixture.h"
#include "models/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 21, FINDS = 200 };

static double now_us(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
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

typedef struct timing {
    double own[ROUNDS], wall[ROUNDS];
} timing;

static void begin(timing *t, int k) {
    t->wall[k] = now_us(CLOCK_MONOTONIC);
    t->own[k] = now_us(CLOCK_THREAD_CPUTIME_ID);
}

static void end(timing *t, int k, int times) {
    t->own[k] = (now_us(CLOCK_THREAD_CPUTIME_ID) - t->own[k]) / times;
    t->wall[k] = (now_us(CLOCK_MONOTONIC) - t->wall[k]) / times;
}

/* A new backend has no plan yet; the second prepare of the same graph finds the first one's. */
static sheaf_status measure(sheaf_device *device, const sheaf_graph *g, timing *made, timing *found) {
    sheaf_status s = SHEAF_OK;
    for (int k = 0; k < ROUNDS && !s; k++) {
        sheaf_backend *b = NULL;
        sheaf_prepared *p = NULL, *again = NULL;
        s = sheaf_backend_new(device, &b);
        begin(made, k);
        if (!s) s = sheaf_backend_prepare(b, g, &p);
        end(made, k, 1);
        begin(found, k);
        for (int i = 0; i < FINDS && !s; i++) {
            s = sheaf_backend_prepare(b, g, &again);
            if (!s) sheaf_prepared_free(b, again);
        }
        end(found, k, FINDS);
        if (!s && sheaf_meta_cache_stats(b).compiles != 1)
            s = sheaf_fail(SHEAF_E_INTERNAL, "a plan was compiled again");
        if (p) sheaf_prepared_free(b, p);
        sheaf_backend_free(b);
    }
    return s;
}

static sheaf_status run(const char *path, int n_devices) {
    char list[32];
    sheaf_registry *registry = NULL;
    sheaf_device *devices[SHEAF_MAX_DEVICES];
    sheaf_model *m = NULL;
    sheaf_context *c = NULL;
    int n = 0;
    snprintf(list, sizeof list, "cpu/%d", n_devices);
    sheaf_open_options open = {.n_threads = 1};
    sheaf_status s = sheaf_registry_new(&registry);
    if (!s) s = sheaf_devices_open(registry, list, &open, devices, SHEAF_MAX_DEVICES, &n);
    sheaf_model_options mo = {
        .registry = registry, .devices = devices, .n_devices = n, .devices_name = list, .no_data = true};
    sheaf_context_options co = sheaf_context_defaults();
    co.n_ctx = 2048, co.n_best = 40;
    if (!s) s = sheaf_model_load(path, &mo, &m);
    if (!s) s = sheaf_context_new(m, &co, &c);
    for (int tokens = 1; tokens <= 512 && !s; tokens += 511) {
        timing made, found;
        sheaf_graph *g;
        s = sheaf_context_graph(c, tokens, 1024, &g);
        if (!s) s = measure(sheaf_model_device(m), g, &made, &found);
        if (!s)
            printf("%d devices, %d nodes of %d token%s: compiled in %.0f us (%.0f), found in %.1f us (%.1f)\n", n,
                   g->n_nodes, tokens, tokens > 1 ? "s" : "", median(made.own, ROUNDS), median(made.wall, ROUNDS),
                   median(found.own, ROUNDS), median(found.wall, ROUNDS));
    }
    sheaf_context_free(c);
    sheaf_model_free(m);
    sheaf_registry_free(registry);
    return s;
}

int main(int argc, char **argv) {
    char path[] = "/tmp/sheaf-bench-plans-XXXXXX";
    fixture_case f = {.name = "bench",
                      .family = "llama",
                      .type = "q4_0",
                      .alt = "-",
                      .rope = "none",
                      .layers = argc > 1 ? atoi(argv[1]) : 64,
                      .width = 256,
                      .heads = 16,
                      .kv_heads = 8,
                      .head_size = 32,
                      .feed_forward = 768,
                      .vocab = 512};
    int fd = mkstemp(path);
    if (fd < 0 || close(fd) || fixture_write(&f, path)) return 1;
    sheaf_status s = run(path, argc > 2 ? atoi(argv[2]) : 8);
    unlink(path);
    if (s) fprintf(stderr, "bench-plans: %s\n", sheaf_error());
    return s ? 1 : 0;
}
