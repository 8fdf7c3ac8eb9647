/* How a group of floats gets its scale: searches over a few candidates, each refined by weighted least squares.
 *
 * A group is `n` elements (at most 256 here) that share one step, or a step and a minimum; `w[i]` says how much the
 * error of element i matters. Every search leaves the codes that it chose, also where the step is 0: an encoder
 * keeps those when the step, rounded to what the format can store, comes out as 0.
 *
 * The order of every sum and the form of every product are part of the contract: files must come out byte for byte
 * as other programs write them, and one different rounding changes a code. Do not regroup. */
#ifndef SHEAF_TENSOR_QUANTS_FIT_H
#define SHEAF_TENSOR_QUANTS_FIT_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

/* Nearest whole number within lo..hi, halves to even; NaN becomes lo. */
static inline int fit_nearest(float v, int lo, int hi) {
    if (!(v > (float)lo)) return lo;
    return v >= (float)hi ? hi : (int)lrintf(v);
}

/* Below this magnitude a group counts as zero. */
#define FIT_NOTHING 1e-15f

/* x ~ step * c, c in -half..half-1; code[i] = c + half. The step's sign puts the largest element on the longer
 * side. 19 scales are tried around the one that reaches it. A group of nothing: 0, and codes 0. */
float sheaf_fit_signed(const float *x, const float *w, int n, int half, uint8_t *code);

/* The same by another way: one scale, then single codes are changed while that helps, weighted by x^2. */
float sheaf_fit_signed_by_codes(const float *x, int n, int half, uint8_t *code);

/* Which scales an affine search tries: (top + first + by * k) / range for k = 0..last; errors count squared, or
 * as they are. */
typedef struct fit_search {
    float first, by;
    int last;
    bool absolute;
} fit_search;

/* x ~ step * c - min, c in 0..top, min >= 0. A constant group: step 0, codes 0. */
float sheaf_fit_affine(const float *x, const float *w, int n, int top, const fit_search *how, uint8_t *code,
                       float *min);

/* x >= 0, x ~ step * c, c in 0..top: steps and minima of a super-block's groups, to their codes. */
float sheaf_fit_positive(const float *x, const float *w, int n, int top, uint8_t *code);

#endif
