/* What a sum between devices costs, by size and engine; beside it MPI_Allreduce, in the same run.
 *
 *     bench-collectives [DEVICES [THREADS]]                     bench-collectives cpu/2 2
 *     mpirun -n 2 --bind-to none bench-collectives cpu 1        one device a rank: engine mpi, and mpi-native
 *
 * Honest inputs: before each sum every device rewrites its addends, so they lie in the caches of the core
 * that made them, as a matmul leaves them. The time of the same stream without sums, played just before, is taken off.
 * Each figure is the median of ROUNDS rounds of one plan of OPS sums posted at once, as a token posts its own. */
#include "backends/backend.h"
#include "collectives/comm_internal.h"

#ifdef BENCH_WITH_MPI
#include <mpi.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPS = 32, ROUNDS = 21 };

typedef struct bench {
    sheaf_registry *registry;
    sheaf_world *world;
    sheaf_comm *comm;
    int n, total;
    sheaf_device *device[MAX_DEVICES];
    sheaf_backend *backend[MAX_DEVICES];
    float *out[MAX_DEVICES];
} bench;

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 2];
}

static void must(sheaf_status s) {
    if (!s) return;
    fprintf(stderr, "bench-collectives: %s\n", sheaf_error());
    exit(sheaf_status_exit_code(s));
}

typedef struct writer {
    double *to;
    int64_t n;
    int round;
} writer;

static void rewrite(const writer *w, int i, int n) {
    int64_t a, b;
    run_slice(w->n, i, n, 16, &a, &b);
    for (int64_t e = a; e < b; e++) w->to[e] = (double)(e + w->round);
}

static sheaf_status rewrite_call(void *ctx, int i, int n, sheaf_queue *q) {
    (void)q;
    rewrite(ctx, i, n);
    return SHEAF_OK;
}

static void open_bench(bench *b, const char *list, int threads) {
    memset(b, 0, sizeof *b);
    must(sheaf_world_open(&b->world));
    sheaf_open_options opts = {
        .n_threads = threads, .part = sheaf_world_host_rank(b->world), .n_parts = sheaf_world_host_size(b->world)};
    must(sheaf_registry_new(&b->registry));
    must(sheaf_devices_open(b->registry, list, &opts, b->device, MAX_DEVICES, &b->n));
    for (int k = 0; k < b->n; k++) must(sheaf_backend_new(b->device[k], &b->backend[k]));
    must(sheaf_comm_new(b->world, b->device, b->n, &b->comm));
    b->total = sheaf_comm_devices(b->comm);
}

static void close_bench(bench *b) {
    for (int k = 0; k < b->n; k++) sheaf_backend_free(b->backend[k]);
    sheaf_comm_free(b->comm);
    sheaf_registry_free(b->registry);
    sheaf_world_close(b->world);
}

/* One round: OPS times rewrite, and sum unless `op` is NULL; microseconds for each. */
static double play(bench *b, sheaf_comm_op *const *op, int64_t row, int64_t rows, bool staged, int round) {
    static writer writers[MAX_DEVICES][OPS];
    static double *plain[MAX_DEVICES];
    if (!staged) {
        for (int k = 0; k < b->n; k++) plain[k] = sheaf_comm_staging(b->comm, k, 0);
    }
    must(sheaf_world_barrier(b->world));
    int64_t start = sheaf_now_ns();
    for (int t = 0; t < OPS; t++) {
        for (int k = 0; k < b->n; k++) {
            double *in = staged ? sheaf_comm_staging(b->comm, k, t & 1) : plain[k];
            writers[k][t] = (writer){in, row * rows, round + t};
            must(sheaf_queue_call(b->backend[k]->queue, rewrite_call, &writers[k][t]));
            sheaf_comm_args a = {.in = in, .out = b->out[k], .rows = rows};
            if (op) must(sheaf_comm_post(op[t], k, b->backend[k]->queue, &a));
        }
    }
    for (int k = 0; k < b->n; k++) must(sheaf_queue_synchronize(b->backend[k]->queue));
    return (double)(sheaf_now_ns() - start) / 1000 / OPS;
}

static void check(const bench *b, int64_t count) {
    for (int k = 0; k < b->n; k++) {
        double want = (double)b->total * (double)(count - 1 + ROUNDS + OPS - 2);
        if (b->out[k][count - 1] == (float)want) continue;
        fprintf(stderr, "bench-collectives: wrong sum %g, want %g\n", (double)b->out[k][count - 1], want);
        exit(1);
    }
}

static void line(const bench *b, const char *name, int64_t row, int64_t rows, double us) {
    double bytes = (double)(row * rows) * 8;
    if (sheaf_world_rank(b->world) != 0) return;
    printf("%-12s %2d devices %8ld x %-4ld %10.0f bytes %10.2f us %8.2f GB/s\n", name, b->total, (long)row, (long)rows,
           bytes, us, us > 0 ? bytes / us / 1000 : 0.0);
    fflush(stdout);
}

static void bench_engine(bench *b, const char *pin, int64_t row, int64_t rows) {
    sheaf_comm_op *op[OPS];
    double cost[ROUNDS];
    bool staged = strcmp(pin, "peer") != 0 && strcmp(pin, "ring") != 0;
    snprintf(b->comm->pin, sizeof b->comm->pin, "%s", pin);
    must(sheaf_comm_reserve_staging(b->comm, (size_t)(row * rows) * 8));
    for (int k = 0; k < b->n; k++) {
        b->out[k] = sheaf_aligned_alloc(64, (size_t)(row * rows) * 4);
        if (!b->out[k]) must(sheaf_fail(SHEAF_E_NO_MEMORY, "results"));
    }
    sheaf_comm_desc d = {.kind = SHEAF_COMM_ALLREDUCE,
                         .type = SHEAF_F64,
                         .row = row,
                         .max_rows = rows,
                         .staged = staged,
                         .name = "bench"};
    for (int t = 0; t < OPS; t++) must(sheaf_comm_compile(b->comm, &d, &op[t]));
    for (int r = 0; r < ROUNDS; r++) {
        double without = play(b, NULL, row, rows, staged, r);
        cost[r] = play(b, op, row, rows, staged, r) - without;
    }
    check(b, row * rows);
    const char *name = sheaf_comm_op_engine(op[0], NULL);
    line(b, name, row, rows, median(cost, ROUNDS));
    for (int t = 0; t < OPS; t++) sheaf_comm_op_free(op[t]);
    for (int k = 0; k < b->n; k++) sheaf_free(b->out[k]);
}

#ifdef BENCH_WITH_MPI
static double play_native(bench *b, double *in, double *out, int64_t count, bool sum, int round) {
    must(sheaf_world_barrier(b->world));
    int64_t start = sheaf_now_ns();
    for (int t = 0; t < OPS; t++) {
        writer w = {in, count, round + t};
        rewrite(&w, 0, 1);
        if (sum) MPI_Allreduce(in, out, (int)count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
    return (double)(sheaf_now_ns() - start) / 1000 / OPS;
}

/* MPI's own, called by the main thread as a program of one thread a rank would. */
static void bench_native(bench *b, int64_t row, int64_t rows) {
    int64_t count = row * rows;
    double cost[ROUNDS];
    double *in = sheaf_aligned_alloc(64, (size_t)count * 8), *out = sheaf_aligned_alloc(64, (size_t)count * 8);
    if (!in || !out) must(sheaf_fail(SHEAF_E_NO_MEMORY, "vectors"));
    for (int r = 0; r < ROUNDS; r++) {
        double without = play_native(b, in, out, count, false, r);
        cost[r] = play_native(b, in, out, count, true, r) - without;
    }
    line(b, "mpi-native", row, rows, median(cost, ROUNDS));
    sheaf_free(in);
    sheaf_free(out);
}
#endif

int main(int argc, char **argv) {
    static const struct {
        int64_t row, rows;
    } shapes[] = {{64, 1}, {576, 1}, {2048, 1}, {8192, 1}, {576, 64}, {2048, 64}, {2048, 512}};
    bench b;
    open_bench(&b, argc > 1 ? argv[1] : "cpu/2", argc > 2 ? atoi(argv[2]) : 0);
    for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++) {
        bench_engine(&b, "", shapes[k].row, shapes[k].rows);
        if (sheaf_world_size(b.world) == 1) bench_engine(&b, "peer", shapes[k].row, shapes[k].rows);
        if (sheaf_world_size(b.world) == 1) bench_engine(&b, "ring", shapes[k].row, shapes[k].rows);
#ifdef BENCH_WITH_MPI
        if (sheaf_world_size(b.world) > 1) bench_native(&b, shapes[k].row, shapes[k].rows);
#endif
    }
    close_bench(&b);
    return 0;
}
