/* Matrix products: the fast path over the kernel table, and a plain one for what that does not take.
 *
 * Fast: threads divide the rows of w; every call sees all columns, so that tiles are as wide as they can
 * be. Integer kernels want their columns quantized: that is a step
 * of its own, done once for all products of the same activations (Q, K and V; gate and up).
 * Plain: w's row as f32, sums in f64 (by segments if asked), any strides, batches and lengths. */
#include "backends/cpu/matmul.h"

enum { MIN_CHUNK = 16, CHUNKS_PER_THREAD = 2, OWN_PERCENT = 70 };

/* --- quantized columns -------------------------------------------------------------------------------- */

static void run_quantize(const cpu_step *s, const cpu_task *t) {
    const cpu_operand *x = s->src[0];
    size_t column = cpu_act_bytes(CPU_ACT_Q8, x->ne[0]);
    char *out = cpu_region_at(t, s->region_out);
    int64_t lo, hi;
    cpu_share(t, cpu_rows(x), &lo, &hi);
    for (int64_t i = lo; i < hi; i++) {
        const char *row = cpu_row_at(cpu_at(t, x), x, cpu_row_of(x->ne, i));
        t->run->kernels->quantize_q8((const float *)row, out + (size_t)i * column, x->ne[0]);
    }
}

static cpu_region *quantized(cpu_compiler *c, const sheaf_tensor *node) {
    const sheaf_tensor *x = node->src[1];
    size_t size;
    cpu_region *r = cpu_cache_find(c, run_quantize, x, NULL, NULL);
    if (r) return r;
    if (sheaf_mul_overflow(cpu_act_bytes(CPU_ACT_Q8, x->ne[0]), (size_t)sheaf_nrows(x), &size)) return NULL;
    r = cpu_region_new(c, size);
    if (!r || !cpu_emit(c, node, run_quantize, NULL, node->src + 1, 1, sheaf_nrows(x), NULL, r)) return NULL;
    cpu_cache_add(c, run_quantize, x, NULL, NULL, r);
    return r;
}

/* --- the fast path -------------------------------------------------------------------------------------- */

cpu_handout cpu_hand_out(int64_t m, int nth) {
    if (nth == 1) return (cpu_handout){m, CPU_MAX_CHUNK};
    int64_t own = m * OWN_PERCENT / 100 / nth / MIN_CHUNK * MIN_CHUNK, left = m - own * nth;
    int64_t chunk = left / ((int64_t)nth * CHUNKS_PER_THREAD) / MIN_CHUNK * MIN_CHUNK;
    return (cpu_handout){own, chunk < MIN_CHUNK ? MIN_CHUNK : chunk > CPU_MAX_CHUNK ? CPU_MAX_CHUNK : chunk};
}

/* One chunk of rows of one batch. */
static void mul_chunk(const cpu_step *s, const cpu_task *t, int64_t batch, int64_t m0, int64_t m1) {
    const cpu_operand *w = s->src[0], *x = s->src[1], *d = s->dst;
    int64_t i2 = batch % d->ne[2], i3 = batch / d->ne[2], r2 = d->ne[2] / w->ne[2], r3 = d->ne[3] / w->ne[3];
    cpu_mm a = {
        .w = cpu_at(t, w) + (size_t)(i2 / r2) * w->nb[2] + (size_t)(i3 / r3) * w->nb[3],
        .w_row = w->nb[1],
        .out = cpu_at(t, d) + (size_t)i2 * d->nb[2] + (size_t)i3 * d->nb[3],
        .out_col = d->nb[1],
        .k = w->ne[0],
        .n_total = d->ne[1],
        .segment = s->params.mul_mat.accumulate == SHEAF_ACC_SEGMENTS ? s->params.mul_mat.segment : 0,
        .out_f64 = d->type == SHEAF_F64,
        .scratch = t->scratch,
    };
    if (s->region_in) {
        a.x_col = cpu_act_bytes(CPU_ACT_Q8, w->ne[0]);
        a.x = cpu_region_at(t, s->region_in) + (size_t)(batch * d->ne[1]) * a.x_col;
    } else {
        a.x_col = x->nb[1];
        a.x = cpu_at(t, x) + (size_t)i2 * x->nb[2] + (size_t)i3 * x->nb[3];
    }
    t->run->kernels->mm[w->type].mul(&a, m0, m1, 0, d->ne[1]);
}

static void run_mul(const cpu_step *s, const cpu_task *t) {
    int64_t m = s->dst->ne[0], batches = s->dst->ne[2] * s->dst->ne[3];
    cpu_handout h = cpu_hand_out(m, t->nth);
    for (int64_t b = 0; b < batches && h.own; b++) mul_chunk(s, t, b, h.own * t->ith, h.own * (t->ith + 1));
    int64_t first = h.own * t->nth, per_batch = (m - first + h.chunk - 1) / h.chunk, n = per_batch * batches;
    if (n == 0) return;
    for (int64_t i; (i = cpu_take(s, t)) < n;) {
        int64_t m0 = first + i % per_batch * h.chunk, m1 = m0 + h.chunk < m ? m0 + h.chunk : m;
        mul_chunk(s, t, i / per_batch, m0, m1);
    }
}

/* --- the plain path --------------------------------------------------------------------------------------- */

double cpu_dot_plain(const float *w, const char *x, size_t x_step, int64_t k, int64_t segment) {
    double sum = 0;
    for (int64_t at = 0; at < k; at += segment) {
        double part = 0;
        for (int64_t i = at; i < at + segment && i < k; i++)
            part += (double)w[i] * (double)*(const float *)(x + (size_t)i * x_step);
        sum += segment < k ? (double)(float)part : part;
    }
    return sum;
}

static void run_plain(const cpu_step *s, const cpu_task *t) {
    const cpu_operand *w = s->src[0], *x = s->src[1], *d = s->dst;
    int64_t k = w->ne[0], r2 = d->ne[2] / w->ne[2], r3 = d->ne[3] / w->ne[3], lo, hi;
    int64_t segment = s->params.mul_mat.accumulate == SHEAF_ACC_SEGMENTS ? s->params.mul_mat.segment : k;
    float *row = (float *)t->scratch;
    cpu_share(t, d->ne[0] * d->ne[2] * d->ne[3], &lo, &hi);
    for (int64_t i = lo; i < hi; i++) {
        int64_t m = i % d->ne[0], i2 = i / d->ne[0] % d->ne[2], i3 = i / d->ne[0] / d->ne[2];
        const char *src =
            cpu_at(t, w) + (size_t)m * w->nb[1] + (size_t)(i2 / r2) * w->nb[2] + (size_t)(i3 / r3) * w->nb[3];
        sheaf_to_float(w->type, src, row, k);
        for (int64_t n = 0; n < d->ne[1]; n++) {
            cpu_row r = {n, i2, i3};
            double sum = cpu_dot_plain(row, cpu_row_at(cpu_at(t, x), x, r), x->nb[0], k, segment > 0 ? segment : 1);
            char *out = cpu_row_at(cpu_at(t, d), d, r) + (size_t)m * d->nb[0];
            if (d->type == SHEAF_F64)
                *(double *)out = sum;
            else
                *(float *)out = (float)sum;
        }
    }
}

/* --- the op ---------------------------------------------------------------------------------------------------- */

static bool supports_mul_mat(const sheaf_tensor *n) {
    const sheaf_tensor *w = n->src[0], *x = n->src[1];
    if (!w || !x || x->type != SHEAF_F32 || (n->type != SHEAF_F32 && n->type != SHEAF_F64)) return false;
    if (!sheaf_rows_contiguous(w) || !sheaf_rows_contiguous(n) || w->ne[0] != x->ne[0]) return false;
    if (w->type != SHEAF_F32 && w->type != SHEAF_F16 && w->type != SHEAF_BF16 && !sheaf_type_is_quantized(w->type))
        return false;
    for (int i = 2; i < SHEAF_MAX_DIMS; i++)
        if (n->ne[i] != x->ne[i] || (w->ne[i] == 0 ? n->ne[i] != 0 : n->ne[i] % w->ne[i] != 0)) return false;
    return n->ne[0] == w->ne[1] && n->ne[1] == x->ne[1] && w->ne[0] <= CPU_THREAD_SCRATCH / (int64_t)sizeof(float);
}

/* Can the kernel table do it? Sets whether its columns must be quantized. */
static bool fast_path(const cpu_kernels *k, const sheaf_tensor *n, bool *quantize) {
    const sheaf_tensor *w = n->src[0], *x = n->src[1];
    *quantize = k->mm[w->type].act == CPU_ACT_Q8;
    if (!k->mm[w->type].mul || w->ne[0] == 0 || x->nb[0] != sizeof(float)) return false;
    return !*quantize || w->ne[0] % 32 == 0;
}

static void lower_mul_mat(cpu_compiler *c, const sheaf_tensor *n) {
    bool quantize;
    if (!fast_path(cpu_compiler_kernels(c), n, &quantize)) {
        cpu_emit(c, n, run_plain, n, n->src, 2, 0, NULL, NULL);
        return;
    }
    cpu_region *columns = quantize ? quantized(c, n) : NULL;
    if (quantize && !columns) return;
    sheaf_tensor *src[] = {n->src[0], quantize ? NULL : n->src[1]}; /* quantized columns lie in the region */
    cpu_emit(c, n, run_mul, n, src, 2, 0, columns, NULL);
}

const cpu_op cpu_op_MUL_MAT = {supports_mul_mat, lower_mul_mat};
