/* What products share: how rows are handed out, and the plain sum. For ops_matmul.c and ops_experts.c. */
#ifndef SHEAF_CPU_MATMUL_H
#define SHEAF_CPU_MATMUL_H

#include "backends/cpu/program.h"

enum { CPU_MAX_CHUNK = 256 };

/* How rows of w are handed out. Most are a thread's from the start, in one piece: taking a chunk costs a
 * cache line's trip between cores, which is a tenth of a small product. The rest is taken chunk by
 * chunk by whoever is done first. Which rows are together does not change a bit (kernels.h, K1). */
typedef struct cpu_handout {
    int64_t own;   /* rows that are each thread's */
    int64_t chunk; /* rows taken at a time of what is left */
} cpu_handout;
cpu_handout cpu_hand_out(int64_t m, int nth);

/* Sum of w[i] x[i], x at any stride: each segment rounded to f32 (one segment: not at all), all in f64. */
double cpu_dot_plain(const float *w, const char *x, size_t x_step, int64_t k, int64_t segment);

#endif
