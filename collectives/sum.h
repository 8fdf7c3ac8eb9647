/* Adding vectors by a canonical program, and rounding once.
 *
 * What is added, and in what: F64 in F64 (the result is F32), F32 in F32, F16 and BF16 widened to F32 and
 * rounded once at the end, I32 wrapping. One interpreter serves all types; blocks are small enough that
 * whatever lies between two additions stays in the first-level cache. */
#ifndef SHEAF_COLLECTIVES_SUM_H
#define SHEAF_COLLECTIVES_SUM_H

#include "collectives/canonical.h"
#include "tensor/tensor.h"

enum { SUM_BLOCK = 256 };

typedef struct sum_kind {
    sheaf_type type;
    size_t in_bytes, acc_bytes, out_bytes;
    void (*load)(void *acc, const void *in, int64_t n); /* NULL: an addend is an accumulator already */
    void (*add)(void *acc, const void *x, const void *y, int64_t n);
    void (*store)(void *out, const void *acc, int64_t n);
} sum_kind;

/* NULL for types that are not summed. */
const sum_kind *sum_kind_of(sheaf_type type);

/* out[0, n) = the program's sum of elements [at, at + n) of the leaves, rounded to the result type.
 * Leaves hold addends (or accumulators, when `from_acc`). An empty program gives zeros. */
void sum_round(const sum_kind *k, const canon_program *p, const void *const *leaf, bool from_acc, int64_t at, int64_t n,
               void *out);
/* The same, kept as accumulators. */
void sum_keep(const sum_kind *k, const canon_program *p, const void *const *leaf, bool from_acc, int64_t at, int64_t n,
              void *acc);
/* out[i] += residual[i] */
void sum_residual(float *out, const float *residual, int64_t n);

#endif
