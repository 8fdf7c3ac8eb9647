/* Speed of the matmul kernels on one thread, by level and type, beside a plain reader of memory.
 *
 *     bench-kernels [level|all] [type|all] [seconds per figure] [elements of a row: 2048]
 *
 * Columns: `memory` is one column over weights larger than any cache, in GB/s of weights and as a
 * share of what the plain reader gets in the same second; `cache` the same over 1 MB; then Gop/s (two
 * per multiply) for 4, 16, 64 and 512 columns, plain, and for 512 columns with 64- and 256-element segments. */
#include "backends/cpu/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_K = 16384 };
static int64_t K = 2048;
static const size_t BIG = (size_t)192 << 20, SMALL = (size_t)1 << 20;
static double seconds_each = 0.3;

/* This thread's own time: what others do on a shared core is not ours. */
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One pass over `bytes`, best of the passes that fit the time: GB/s. */
static double read_speed(const char *p, size_t bytes) {
    static volatile uint64_t sink;
    double best = 0, end = now() + seconds_each;
    do {
        double t0 = now();
        uint64_t sum[8] = {0};
        for (size_t i = 0; i < bytes; i += 64) {
            __builtin_prefetch(p + i + 4096, 0, 2);
            const uint64_t *q = (const uint64_t *)(p + i);
            for (int j = 0; j < 8; j++) sum[j] += q[j];
        }
        sink = sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
        double speed = (double)bytes / (now() - t0) * 1e-9;
        if (speed > best) best = speed;
    } while (now() < end);
    (void)sink;
    return best;
}

typedef struct bench {
    const cpu_kernels *t;
    sheaf_type type;
    char *w, *x, *out;
    void *scratch;
    size_t row, x_col;
} bench;

/* Best time of a pass over `rows` rows and n columns. */
static double pass_seconds(const bench *b, int64_t rows, int64_t n, int32_t segment) {
    cpu_mm a = {.w = b->w,
                .w_row = b->row,
                .x = b->x,
                .x_col = b->x_col,
                .out = b->out,
                .out_col = (size_t)rows * 4,
                .k = K,
                .n_total = n,
                .segment = segment,
                .scratch = b->scratch};
    double best = 1e9, end = now() + seconds_each;
    do {
        double t0 = now();
        b->t->mm[b->type].mul(&a, 0, rows, 0, n);
        double t = now() - t0;
        if (t < best) best = t;
    } while (now() < end);
    return best;
}

static void bench_type(bench *b) {
    cpu_act act = b->t->mm[b->type].act;
    if (K % sheaf_type_block(b->type) != 0) return;
    b->row = sheaf_row_bytes(b->type, K);
    b->x_col = cpu_act_bytes(act, K);
    static float x[MAX_K];
    for (int n = 0; n < 512; n++) {
        for (int i = 0; i < K; i++) x[i] = (float)((i * 7 + n * 13) % 255 - 127) / 64.0f;
        if (act == CPU_ACT_Q8)
            b->t->quantize_q8(x, b->x + (size_t)n * b->x_col, K);
        else
            memcpy(b->x + (size_t)n * b->x_col, x, (size_t)K * sizeof *x);
    }
    double read = read_speed(b->w, BIG);
    int64_t big = (int64_t)(BIG / b->row), small = (int64_t)(SMALL / b->row);
    double memory = (double)big * (double)b->row / pass_seconds(b, big, 1, 0) * 1e-9;
    double cache = (double)small * (double)b->row / pass_seconds(b, small, 1, 0) * 1e-9;
    double cut = (double)small * (double)b->row / pass_seconds(b, small, 1, K % 256 ? 64 : 256) * 1e-9;
    printf("%-9s %-7s %6.1f %5.0f%% %6.1f %6.1f |", b->t->name, sheaf_type_name(b->type), memory, 100 * memory / read,
           cache, cut);
    static const int columns[][2] = {{4, 0}, {16, 0}, {64, 0}, {512, 0}, {512, 64}, {512, 256}};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        int64_t rows = 256, n = columns[i][0];
        if (columns[i][1] && (columns[i][1] % sheaf_type_block(b->type) != 0 || K % columns[i][1] != 0)) {
            printf("        -");
            continue;
        }
        printf(" %8.1f", 2.0 * (double)rows * (double)K * (double)n / pass_seconds(b, rows, n, columns[i][1]) * 1e-9);
    }
    printf("\n");
    fflush(stdout);
}

int main(int argc, char **argv) {
    static const sheaf_type types[] = {SHEAF_F32,  SHEAF_F16,    SHEAF_BF16, SHEAF_Q4_0, SHEAF_Q4_1,
                                       SHEAF_Q5_0, SHEAF_Q5_1,   SHEAF_Q8_0, SHEAF_Q4_K, SHEAF_Q5_K,
                                       SHEAF_Q6_K, SHEAF_IQ4_NL, SHEAF_Q2_K, SHEAF_Q3_K};
    const char *level = argc > 1 ? argv[1] : "all", *type = argc > 2 ? argv[2] : "all";
    if (argc > 3) seconds_each = atof(argv[3]);
    if (argc > 4) K = atoi(argv[4]);
    if (K < 32 || K > MAX_K || K % 32 != 0) return 1;
    bench b = {.w = aligned_alloc(1 << 21, BIG),
               .x = aligned_alloc(64, (size_t)512 * (size_t)K * 4),
               .out = aligned_alloc(64, (size_t)8 << 20),
               .scratch = aligned_alloc(64, CPU_MM_SCRATCH)};
    if (!b.w || !b.x || !b.out || !b.scratch) return 1;
    /* every f16 in it is a sane number, whatever the block layout */
    for (size_t i = 0; i < BIG; i++) b.w[i] = (char)(i * 2654435761u >> 13 & 0x3b);
    printf("level     type    memory  share  cache seg256 |    n=4     n=16     n=64    n=512  seg 64  seg 256\n");
    for (int l = CPU_LEVEL_COUNT - 1; l >= 0; l--) {
        b.t = cpu_kernels_get((cpu_level)l);
        if (!b.t || (strcmp(level, "all") != 0 && strcmp(level, b.t->name) != 0)) continue;
        for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
            b.type = types[i];
            if (strcmp(type, "all") == 0 || strcmp(type, sheaf_type_name(b.type)) == 0) bench_type(&b);
        }
    }
    free(b.w);
    free(b.x);
    free(b.out);
    free(b.scratch);
    return 0;
}
