/* The part of the row-by-row matmul that does not know the width of a vector; included once by each level's rows file.
 *
 * R rows and NC columns at a time: which R a level takes for 1..FEW columns it says in enum { ROWS_1 .. ROWS_4 } before
 * it includes this, and it brings lay_out and rows. A row's additions do not know its neighbours, and rows left over do
 * the same steps one by one (K1).
 *
 * Weights wait in memory, so while rows are read memory is asked, for every line, for those about AHEAD bytes below:
 * one group of rows, or a few short ones. Into the second cache: it can wait for twice as many lines as the first. On
 * Zen 4 this reads as fast as a plain reader; asking 16 KB ahead loses a fifth, asking into the first cache half. */
#ifndef SHEAF_CPU_KERNELS_ROWS_H
#define SHEAF_CPU_KERNELS_ROWS_H

#include "backends/cpu/kernels_common.h"

enum {
    FEW = 4,            /* columns up to which a matmul goes row by row from GGUF bytes; tiles above */
    PIECE_LIMIT = 1024, /* longest piece of a segment summed in f32 */
    AHEAD = 5 * 1024,   /* bytes of weights asked for before they are read */
};

/* 32-element blocks, then superblocks, then floats. */
typedef enum kind { Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, Q4_K, Q5_K, Q6_K, F32, F16, BF16 } kind;

INLINE int block_bytes(const kind K) {
    switch (K) {
    case Q4_1: return 20;
    case Q5_0: return 22;
    case Q5_1: return 24;
    case Q8_0: return 34;
    case Q4_K: return 144;
    case Q5_K: return 176;
    case Q6_K: return 210;
    default: return 18;
    }
}

INLINE bool has_min(const kind K) { return K == Q4_1 || K == Q5_1; }

INLINE int half_word(const uint8_t *p) {
    uint16_t w;
    memcpy(&w, p, 2);
    return w;
}

/* --- what the level brings ------------------------------------------------------------------------------ */

/* Columns n.. as the steps want them, once for all rows, in this thread's scratch. NULL: a level that does not, or no
 * room, and then each group of rows reads the columns as they are, to the same bits. */
INLINE const void *lay_out(const cpu_mm *a, int64_t n, const int NC, const kind K);
/* R rows from m times NC columns from n. */
INLINE void rows(const cpu_mm *a, int64_t m, int64_t n, size_t ahead, const void *x, const int R, const int NC,
                 const kind K, const bool SEG);
static void mul_many(sheaf_type type, const cpu_mm *a, int64_t m0, int64_t m1, int64_t n0, int64_t n1);

/* --- the walk --------------------------------------------------------------------------------------------- */

/* Whole groups of R rows that are about AHEAD bytes: memory is asked for those while these are read, but for
 * no row past m1, which is another thread's. */
INLINE int64_t rows_ahead(const cpu_mm *a, const int R) {
    size_t group = (size_t)R * a->w_row;
    return group >= AHEAD || group == 0 ? R : (int64_t)(AHEAD / group) * R;
}

/* All rows for NC columns from n, R at a time and the rest one by one. */
INLINE void sweep_rows(const cpu_mm *a, int64_t m0, int64_t m1, int64_t n, const int R, const int NC, const kind K,
                       const bool SEG) {
    int64_t m = m0, next = rows_ahead(a, R);
    const void *x = lay_out(a, n, NC, K);
    for (; m + R <= m1; m += R) rows(a, m, n, m + next + R <= m1 ? (size_t)next * a->w_row : 0, x, R, NC, K, SEG);
    for (; m < m1; m++) rows(a, m, n, 0, x, 1, NC, K, SEG);
}

INLINE void sweep(const cpu_mm *a, int64_t m0, int64_t m1, int64_t n, const int R, const int NC, const kind K) {
    if (a->segment)
        sweep_rows(a, m0, m1, n, R, NC, K, true);
    else
        sweep_rows(a, m0, m1, n, R, NC, K, false);
}

/* Which of the two ways is taken depends on the columns of the whole op, not on what this call is given of them. */
static inline bool few_columns(const cpu_mm *a, int64_t n1) { return (a->n_total > 0 ? a->n_total : n1) <= FEW; }

#define SWEEP(K, N)                                                                                                    \
    static void sweep_##K##_##N(const cpu_mm *a, int64_t m0, int64_t m1, int64_t n) {                                  \
        sweep(a, m0, m1, n, ROWS_##N, N, K);                                                                           \
    }
#define MUL(K)                                                                                                         \
    SWEEP(K, 1)                                                                                                        \
    SWEEP(K, 2)                                                                                                        \
    SWEEP(K, 3)                                                                                                        \
    SWEEP(K, 4)                                                                                                        \
    static void mul_##K(const cpu_mm *a, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {                             \
        if (!few_columns(a, n1)) {                                                                                     \
            mul_many(SHEAF_##K, a, m0, m1, n0, n1);                                                                    \
            return;                                                                                                    \
        }                                                                                                              \
        switch (n1 - n0) {                                                                                             \
        case 1: sweep_##K##_1(a, m0, m1, n0); break;                                                                   \
        case 2: sweep_##K##_2(a, m0, m1, n0); break;                                                                   \
        case 3: sweep_##K##_3(a, m0, m1, n0); break;                                                                   \
        case 4: sweep_##K##_4(a, m0, m1, n0); break;                                                                   \
        default: break;                                                                                                \
        }                                                                                                              \
    }

#define ROW_TYPES(X) X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(IQ4_NL) X(Q4_K) X(Q5_K) X(Q6_K) X(F32) X(F16) X(BF16)
ROW_TYPES(MUL)

/* Every type with rows, over its tile. */
static void put_rows(cpu_kernels *t) {
#define X(K) t->mm[SHEAF_##K].mul = mul_##K;
    ROW_TYPES(X)
#undef X
}

#endif
