/* Ops that need a whole row at once: norms, soft-max, row sums, argmax. A row is one thread's. */
#include "backends/cpu/program.h"

#include <math.h>

static const float *row_in(const cpu_task *t, const cpu_operand *o, cpu_row r) {
    return (const float *)cpu_row_at(cpu_at(t, o), o, r);
}

static float *row_out(const cpu_step *s, const cpu_task *t, cpu_row r) {
    return (float *)cpu_row_at(cpu_at(t, s->dst), s->dst, r);
}

static bool is_f32_rows(const sheaf_tensor *x) { return x && x->type == SHEAF_F32 && sheaf_rows_contiguous(x); }

/* A vector of one row's length, or absent. */
static bool is_row_vector(const sheaf_tensor *v, const sheaf_tensor *x) {
    return !v || (is_f32_rows(v) && v->ne[0] == x->ne[0] && sheaf_nrows(v) == 1);
}

/* --- norms ------------------------------------------------------------------------------------------- */

static void run_rms_norm(const cpu_step *s, const cpu_task *t) {
    const float *weight = s->src[1] ? (const float *)cpu_at(t, s->src[1]) : NULL;
    int64_t lo, hi;
    cpu_share(t, cpu_rows(s->dst), &lo, &hi);
    for (int64_t i = lo; i < hi; i++) {
        cpu_row r = cpu_row_of(s->dst->ne, i);
        t->run->kernels->rms_norm(row_out(s, t, r), row_in(t, s->src[0], r), weight, s->dst->ne[0], s->params.norm.eps);
    }
}

/* Mean and variance in f64, in order of position. */
static void norm_row(float *out, const float *x, const float *weight, const float *bias, int64_t n, float eps) {
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i];
    double mean = sum / (double)n;
    for (int64_t i = 0; i < n; i++) squares += ((double)x[i] - mean) * ((double)x[i] - mean);
    double scale = 1.0 / sqrt(squares / (double)n + (double)eps);
    for (int64_t i = 0; i < n; i++) {
        float y = (float)(((double)x[i] - mean) * scale);
        if (weight) y *= weight[i];
        if (bias) y += bias[i];
        out[i] = y;
    }
}

static void run_norm(const cpu_step *s, const cpu_task *t) {
    const float *weight = s->src[1] ? (const float *)cpu_at(t, s->src[1]) : NULL;
    const float *bias = s->src[2] ? (const float *)cpu_at(t, s->src[2]) : NULL;
    int64_t lo, hi;
    cpu_share(t, cpu_rows(s->dst), &lo, &hi);
    for (int64_t i = lo; i < hi; i++) {
        cpu_row r = cpu_row_of(s->dst->ne, i);
        norm_row(row_out(s, t, r), row_in(t, s->src[0], r), weight, bias, s->dst->ne[0], s->params.norm.eps);
    }
}

static bool supports_norm(const sheaf_tensor *n) {
    return is_f32_rows(n) && is_f32_rows(n->src[0]) && sheaf_same_shape(n, n->src[0]) && is_row_vector(n->src[1], n) &&
           is_row_vector(n->src[2], n);
}

static bool supports_rms_norm(const sheaf_tensor *n) { return supports_norm(n) && !n->src[2]; }

static void lower_rms_norm(cpu_compiler *c, const sheaf_tensor *n) {
    cpu_emit(c, n, run_rms_norm, n, n->src, 2, sheaf_nrows(n), NULL, NULL);
}
static void lower_norm(cpu_compiler *c, const sheaf_tensor *n) {
    cpu_emit(c, n, run_norm, n, n->src, 3, sheaf_nrows(n), NULL, NULL);
}

const cpu_op cpu_op_RMS_NORM = {supports_rms_norm, lower_rms_norm};
const cpu_op cpu_op_NORM = {supports_norm, lower_norm};

/* --- soft-max ------------------------------------------------------------------------------------------ */

/* ALiBi's slope of a head (dimension 2); 1 without bias. */
static float slope_of(float max_bias, int64_t n_head, int64_t head) {
    if (max_bias <= 0.0f) return 1.0f;
    int64_t pow2 = 1;
    while (pow2 * 2 <= n_head) pow2 *= 2;
    float m0 = powf(2.0f, -max_bias / (float)pow2), m1 = powf(2.0f, -max_bias * 0.5f / (float)pow2);
    return head < pow2 ? powf(m0, (float)(head + 1)) : powf(m1, (float)(2 * (head - pow2) + 1));
}

/* A row of the mask as floats, converted into the thread's scratch if it is f16. */
static const float *mask_row(const cpu_task *t, const cpu_operand *m, cpu_row r) {
    if (!m) return NULL;
    const char *row = cpu_row_at(cpu_at(t, m), m, r);
    if (m->type == SHEAF_F32) return (const float *)row;
    float *tmp = (float *)t->scratch;
    if (t->run->kernels->to_float[m->type])
        t->run->kernels->to_float[m->type](row, tmp, m->ne[0]);
    else
        sheaf_to_float(m->type, row, tmp, m->ne[0]);
    return tmp;
}

static void run_soft_max(const cpu_step *s, const cpu_task *t) {
    int64_t lo, hi;
    cpu_share(t, cpu_rows(s->dst), &lo, &hi);
    for (int64_t i = lo; i < hi; i++) {
        cpu_row r = cpu_row_of(s->dst->ne, i);
        float slope = slope_of(s->params.soft_max.max_bias, s->dst->ne[2], r.i2);
        t->run->kernels->soft_max(row_out(s, t, r), row_in(t, s->src[0], r), mask_row(t, s->src[1], r),
                                  s->params.soft_max.scale, slope, s->dst->ne[0]);
    }
}

static bool supports_soft_max(const sheaf_tensor *n) {
    const sheaf_tensor *m = n->src[1];
    if (!is_f32_rows(n) || !is_f32_rows(n->src[0]) || !sheaf_same_shape(n, n->src[0])) return false;
    if (!m) return true;
    if (!sheaf_rows_contiguous(m) || m->ne[0] != n->ne[0] || !sheaf_can_broadcast(m, n)) return false;
    return m->type == SHEAF_F32 || (m->type == SHEAF_F16 && n->ne[0] <= CPU_THREAD_SCRATCH / (int64_t)sizeof(float));
}

static void lower_soft_max(cpu_compiler *c, const sheaf_tensor *n) {
    cpu_emit(c, n, run_soft_max, n, n->src, 2, sheaf_nrows(n), NULL, NULL);
}

const cpu_op cpu_op_SOFT_MAX = {supports_soft_max, lower_soft_max};

/* --- reductions ------------------------------------------------------------------------------------------ */

static void run_sum_rows(const cpu_step *s, const cpu_task *t) {
    int64_t lo, hi;
    cpu_share(t, cpu_rows(s->dst), &lo, &hi);
    for (int64_t i = lo; i < hi; i++) {
        cpu_row r = cpu_row_of(s->dst->ne, i);
        const float *x = row_in(t, s->src[0], r);
        double sum = 0;
        for (int64_t k = 0; k < s->src[0]->ne[0]; k++) sum += (double)x[k];
        *row_out(s, t, r) = (float)sum;
    }
}

static bool supports_sum_rows(const sheaf_tensor *n) {
    const sheaf_tensor *x = n->src[0];
    return is_f32_rows(n) && is_f32_rows(x) && n->ne[0] == 1 && n->ne[1] == x->ne[1] && n->ne[2] == x->ne[2] &&
           n->ne[3] == x->ne[3];
}

static void lower_sum_rows(cpu_compiler *c, const sheaf_tensor *n) {
    cpu_emit(c, n, run_sum_rows, n, n->src, 1, sheaf_nrows(n), NULL, NULL);
}

const cpu_op cpu_op_SUM_ROWS = {supports_sum_rows, lower_sum_rows};

/* Rounded squares have 24 bits, so sums of them in f64 are exact as long as they are less than 2^28 apart, in any order
 * and in any number of parts. */
static double sum_of_squares(const float *x, int64_t first, int64_t n) {
    double sum = 0;
    for (int64_t k = first; k < n; k++) {
        float square = x[k] * x[k];
        sum += (double)square;
    }
    return sum;
}

static void run_sum_squares(const cpu_step *s, const cpu_task *t) {
    int64_t lo, hi;
    cpu_share(t, cpu_rows(s->dst), &lo, &hi);
    for (int64_t i = lo; i < hi; i++) {
        cpu_row r = cpu_row_of(s->dst->ne, i);
        char *out = cpu_row_at(cpu_at(t, s->dst), s->dst, r);
        for (int j = 0; j < (int)s->dst->ne[0]; j++) {
            double sum = sum_of_squares(row_in(t, s->src[j], r), s->params.sum_squares.skip[j], s->src[j]->ne[0]);
            if (s->dst->type == SHEAF_F64) {
                ((double *)(void *)out)[j] = sum;
            } else {
                ((float *)(void *)out)[j] = (float)sum;
            }
        }
    }
}

static bool supports_sum_squares(const sheaf_tensor *n) {
    const sheaf_tensor *x = n->src[0], *y = n->src[1];
    if ((n->type != SHEAF_F32 && n->type != SHEAF_F64) || !sheaf_rows_contiguous(n) || n->ne[0] != (y ? 2 : 1))
        return false;
    for (int i = 1; i < SHEAF_MAX_DIMS; i++)
        if (n->ne[i] != x->ne[i] || (y && n->ne[i] != y->ne[i])) return false;
    return is_f32_rows(x) && (!y || is_f32_rows(y));
}

static void lower_sum_squares(cpu_compiler *c, const sheaf_tensor *n) {
    cpu_emit(c, n, run_sum_squares, n, n->src, 2, sheaf_nrows(n), NULL, NULL);
}

const cpu_op cpu_op_SUM_SQUARES = {supports_sum_squares, lower_sum_squares};

static void run_rms_norm_by(const cpu_step *s, const cpu_task *t) {
    const float *weight = s->src[2] ? (const float *)cpu_at(t, s->src[2]) : NULL;
    double length = (double)s->params.norm_by.length, eps = (double)s->params.norm_by.eps;
    int64_t lo, hi;
    cpu_share(t, cpu_rows(s->dst), &lo, &hi);
    for (int64_t i = lo; i < hi; i++) {
        cpu_row r = cpu_row_of(s->dst->ne, i);
        const float *x = row_in(t, s->src[0], r);
        float *out = row_out(s, t, r);
        double sum = (double)row_in(t, s->src[1], r)[s->params.norm_by.index];
        float scale = (float)(1.0 / sqrt(sum / length + eps));
        for (int64_t k = 0; k < s->dst->ne[0]; k++) out[k] = x[k] * scale * (weight ? weight[k] : 1.0f);
    }
}

static bool supports_rms_norm_by(const sheaf_tensor *n) {
    const sheaf_tensor *x = n->src[0], *sums = n->src[1];
    return is_f32_rows(n) && is_f32_rows(x) && is_f32_rows(sums) && sheaf_same_shape(n, x) &&
           is_row_vector(n->src[2], n) && sums->ne[1] == x->ne[1] && sums->ne[2] == x->ne[2] &&
           sums->ne[3] == x->ne[3] && n->params.norm_by.index < sums->ne[0];
}

static void lower_rms_norm_by(cpu_compiler *c, const sheaf_tensor *n) {
    cpu_emit(c, n, run_rms_norm_by, n, n->src, 3, sheaf_nrows(n), NULL, NULL);
}

const cpu_op cpu_op_RMS_NORM_BY = {supports_rms_norm_by, lower_rms_norm_by};

/* The lowest index of the largest value; a NaN is never the largest. */
static int32_t argmax(const float *x, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[best] || (isnan(x[best]) && !isnan(x[i]))) best = i;
    return (int32_t)best;
}

static void run_argmax(const cpu_step *s, const cpu_task *t) {
    int64_t lo, hi;
    cpu_share(t, s->dst->ne[0], &lo, &hi);
    for (int64_t i = lo; i < hi; i++)
        *(int32_t *)(cpu_at(t, s->dst) + (size_t)i * s->dst->nb[0]) =
            argmax(row_in(t, s->src[0], (cpu_row){i, 0, 0}), s->src[0]->ne[0]);
}

static bool supports_argmax(const sheaf_tensor *n) {
    const sheaf_tensor *x = n->src[0];
    return n->type == SHEAF_I32 && is_f32_rows(x) && x->ne[0] > 0 && x->ne[0] <= INT32_MAX &&
           sheaf_nrows(x) == x->ne[1] && n->ne[0] == x->ne[1] && sheaf_nrows(n) == 1;
}

static void lower_argmax(cpu_compiler *c, const sheaf_tensor *n) {
    cpu_emit(c, n, run_argmax, n, n->src, 1, n->ne[0], NULL, NULL);
}

const cpu_op cpu_op_ARGMAX = {supports_argmax, lower_argmax};
