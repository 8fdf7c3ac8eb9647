/* The slow, obvious meaning of every op. One function per op, one loop per index, sums in f64. */
#include "tests/backends/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double reference_at(const sheaf_tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    const char *row = (const char *)t->data + (size_t)i1 * t->nb[1] + (size_t)i2 * t->nb[2] + (size_t)i3 * t->nb[3];
    int64_t block = sheaf_type_block(t->type);
    const char *p = row + (size_t)(i0 / block) * t->nb[0];
    float f[256];
    switch (t->type) {
    case SHEAF_F32: return (double)*(const float *)p;
    case SHEAF_F64: return *(const double *)p;
    case SHEAF_I32: return *(const int32_t *)p;
    case SHEAF_I64: return (double)*(const int64_t *)p;
    case SHEAF_I16: return *(const int16_t *)p;
    case SHEAF_I8: return *(const int8_t *)p;
    default: sheaf_to_float(t->type, p, f, block); return (double)f[i0 % block];
    }
}

/* The same with indices that wrap: how small operands broadcast. */
static double wrapped(const sheaf_tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    return reference_at(t, i0 % t->ne[0], i1 % t->ne[1], i2 % t->ne[2], i3 % t->ne[3]);
}

typedef double (*element_fn)(const sheaf_tensor *n, int64_t i0, int64_t i1, int64_t i2, int64_t i3);

static double copied(const sheaf_tensor *n, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    return reference_at(n->src[0], i0, i1, i2, i3);
}
static double added(const sheaf_tensor *n, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    return reference_at(n->src[0], i0, i1, i2, i3) + wrapped(n->src[1], i0, i1, i2, i3);
}
static double subtracted(const sheaf_tensor *n, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    return reference_at(n->src[0], i0, i1, i2, i3) - wrapped(n->src[1], i0, i1, i2, i3);
}
static double multiplied(const sheaf_tensor *n, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    return reference_at(n->src[0], i0, i1, i2, i3) * wrapped(n->src[1], i0, i1, i2, i3);
}
static double divided(const sheaf_tensor *n, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    return reference_at(n->src[0], i0, i1, i2, i3) / wrapped(n->src[1], i0, i1, i2, i3);
}
static double scaled(const sheaf_tensor *n, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    return reference_at(n->src[0], i0, i1, i2, i3) * (double)n->params.scale.factor + (double)n->params.scale.bias;
}
static double filled(const sheaf_tensor *n, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    (void)i0, (void)i1, (void)i2, (void)i3;
    return (double)n->params.fill.value;
}

static double gelu(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
static double silu(double x) { return x / (1 + exp(-x)); }

static double mapped(const sheaf_tensor *n, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    double x = reference_at(n->src[0], i0, i1, i2, i3);
    switch ((sheaf_unary)n->params.unary.kind) {
    case SHEAF_UNARY_SILU: return silu(x);
    case SHEAF_UNARY_GELU: return gelu(x);
    case SHEAF_UNARY_GELU_ERF: return 0.5 * x * (1 + erf(x / sqrt(2)));
    case SHEAF_UNARY_RELU: return x > 0 ? x : 0;
    case SHEAF_UNARY_SIGMOID: return 1 / (1 + exp(-x));
    case SHEAF_UNARY_TANH: return tanh(x);
    case SHEAF_UNARY_EXP: return exp(x);
    case SHEAF_UNARY_NEG: return -x;
    case SHEAF_UNARY_SQR: return x * x;
    case SHEAF_UNARY_COUNT: break;
    }
    return NAN;
}

static double gated(const sheaf_tensor *n, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    double g = reference_at(n->src[0], i0, i1, i2, i3), up = reference_at(n->src[1], i0, i1, i2, i3);
    if (n->params.glu.kind == SHEAF_GLU_SWIGLU) return silu(g) * up;
    if (n->params.glu.kind == SHEAF_GLU_SWIGLU_OAI) {
        double limit = (double)n->params.glu.limit;
        g = fmin(g, limit);
        return g / (1 + exp(-(double)n->params.glu.alpha * g)) * (fmax(-limit, fmin(limit, up)) + 1);
    }
    return (n->params.glu.kind == SHEAF_GLU_GEGLU ? gelu(g) : g > 0 ? g : 0) * up;
}

static double normed_rms(const sheaf_tensor *n, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    const sheaf_tensor *x = n->src[0], *w = n->src[1];
    double sum = 0;
    for (int64_t k = 0; k < x->ne[0]; k++) sum += pow(reference_at(x, k, i1, i2, i3), 2);
    double y = reference_at(x, i0, i1, i2, i3) / sqrt(sum / (double)x->ne[0] + (double)n->params.norm.eps);
    return w ? y * reference_at(w, i0, 0, 0, 0) : y;
}

static double squares(const sheaf_tensor *n, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    const sheaf_tensor *x = n->src[i0];
    double sum = 0;
    for (int64_t k = n->params.sum_squares.skip[i0]; k < x->ne[0]; k++) sum += pow(reference_at(x, k, i1, i2, i3), 2);
    return sum;
}

static double normed_by(const sheaf_tensor *n, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    double sum = reference_at(n->src[1], n->params.norm_by.index, i1, i2, i3);
    double y = reference_at(n->src[0], i0, i1, i2, i3) /
               sqrt(sum / (double)n->params.norm_by.length + (double)n->params.norm_by.eps);
    return n->src[2] ? y * reference_at(n->src[2], i0, 0, 0, 0) : y;
}

static double normed(const sheaf_tensor *n, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    const sheaf_tensor *x = n->src[0], *w = n->src[1], *b = n->src[2];
    double mean = 0, var = 0, len = (double)x->ne[0];
    for (int64_t k = 0; k < x->ne[0]; k++) mean += reference_at(x, k, i1, i2, i3) / len;
    for (int64_t k = 0; k < x->ne[0]; k++) var += pow(reference_at(x, k, i1, i2, i3) - mean, 2) / len;
    double y = (reference_at(x, i0, i1, i2, i3) - mean) / sqrt(var + (double)n->params.norm.eps);
    if (w) y *= reference_at(w, i0, 0, 0, 0);
    return b ? y + reference_at(b, i0, 0, 0, 0) : y;
}

static double alibi(double max_bias, int64_t n_head, int64_t head) {
    if (max_bias <= 0) return 1;
    double n2 = pow(2, floor(log2((double)n_head)));
    if ((double)head < n2) return pow(pow(2, -max_bias / n2), (double)head + 1);
    return pow(pow(2, -max_bias / 2 / n2), 2 * ((double)head - n2) + 1);
}

static double soft_maxed(const sheaf_tensor *n, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    const sheaf_tensor *x = n->src[0], *m = n->src[1];
    double slope = alibi((double)n->params.soft_max.max_bias, x->ne[2], i2), max = -INFINITY, sum = 0, mine = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t k = 0; k < x->ne[0]; k++) {
            double v = reference_at(x, k, i1, i2, i3) * (double)n->params.soft_max.scale;
            if (m) v += slope * wrapped(m, k, i1, i2, i3);
            if (pass == 0)
                max = fmax(max, v);
            else
                sum += v == -INFINITY ? 0 : exp(v - max);
            if (pass == 1 && k == i0) mine = v == -INFINITY ? 0 : exp(v - max);
        }
    }
    return sum > 0 ? mine / sum : 0;
}

static double rotated(const sheaf_tensor *n, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    const sheaf_tensor *x = n->src[0];
    int64_t dims = n->params.rope.n_dims, pair, first, second;
    if (i0 >= dims) return reference_at(x, i0, i1, i2, i3);
    bool neox = n->params.rope.kind == SHEAF_ROPE_NEOX;
    pair = neox ? i0 % (dims / 2) : i0 / 2;
    first = neox ? pair : 2 * pair;
    second = neox ? pair + dims / 2 : 2 * pair + 1;
    double base = (double)n->params.rope.freq_base, scale = (double)n->params.rope.freq_scale;
    double trained = reference_at(n->src[1], i2, 0, 0, 0) * pow(base, -2.0 * (double)pair / (double)dims);
    double magnitude = (double)n->params.rope.attn_factor, mix = 0;
    if (n->src[2]) trained /= reference_at(n->src[2], pair, 0, 0, 0);
    if (n->params.rope.ext_factor != 0) {
        double ctx = n->params.rope.n_ctx_orig, d = (double)dims;
        double low = d * log(ctx / ((double)n->params.rope.beta_fast * 2 * M_PI)) / (2 * log(base));
        double high = d * log(ctx / ((double)n->params.rope.beta_slow * 2 * M_PI)) / (2 * log(base));
        low = fmax(0, floor(low));
        high = fmin(d - 1, ceil(high));
        double ramp = fmin(1, fmax(0, ((double)pair - low) / fmax(0.001, high - low)));
        mix = (1 - ramp) * (double)n->params.rope.ext_factor;
        magnitude *= 1 + 0.1 * log(1 / scale);
    }
    double angle = trained * scale * (1 - mix) + trained * mix;
    double a = reference_at(x, first, i1, i2, i3), b = reference_at(x, second, i1, i2, i3);
    return magnitude * (i0 == first ? a * cos(angle) - b * sin(angle) : a * sin(angle) + b * cos(angle));
}

/* All elements of one (i2, i3) matrix, contiguous. */
static double *matrix(const sheaf_tensor *t, int64_t i2, int64_t i3) {
    double *m = malloc((size_t)(t->ne[0] * t->ne[1] + 1) * sizeof *m), *p = m;
    float row[256];
    int64_t block = sheaf_type_block(t->type);
    for (int64_t i1 = 0; i1 < t->ne[1]; i1++)
        for (int64_t i0 = 0; i0 < t->ne[0]; i0++) {
            if (block == 1) {
                *p++ = reference_at(t, i0, i1, i2, i3);
                continue;
            }
            const char *b = (const char *)t->data + (size_t)(i0 / block) * t->nb[0] + (size_t)i1 * t->nb[1];
            if (i0 % block == 0) sheaf_to_float(t->type, b + (size_t)i2 * t->nb[2] + (size_t)i3 * t->nb[3], row, block);
            *p++ = (double)row[i0 % block];
        }
    return m;
}

static void matmul(const sheaf_tensor *n, double *out) {
    const sheaf_tensor *w = n->src[0], *x = n->src[1];
    int64_t len = w->ne[0];
    for (int64_t i3 = 0; i3 < n->ne[3]; i3++)
        for (int64_t i2 = 0; i2 < n->ne[2]; i2++) {
            double *a = matrix(w, i2 / (x->ne[2] / w->ne[2]), i3 / (x->ne[3] / w->ne[3])), *b = matrix(x, i2, i3);
            for (int64_t i1 = 0; i1 < n->ne[1]; i1++)
                for (int64_t i0 = 0; i0 < n->ne[0]; i0++) {
                    double sum = 0;
                    for (int64_t k = 0; k < len; k++) sum += a[i0 * len + k] * b[i1 * len + k];
                    *out++ = sum;
                }
            free(a);
            free(b);
        }
}

/* Every expert dense, one behind the other. */
static double **experts(const sheaf_tensor *w) {
    double **all = malloc((size_t)(w->ne[2] + 1) * sizeof *all);
    for (int64_t id = 0; id < w->ne[2]; id++) all[id] = matrix(w, id, 0);
    return all;
}

/* A foreign id adds nothing: zeros. */
static void matmul_id(const sheaf_tensor *n, double *out) {
    const sheaf_tensor *w = n->src[0], *x = n->src[1], *ids = n->src[2];
    bool sum = n->params.mul_mat.over_used;
    double **dense = experts(w), *column = malloc((size_t)(w->ne[0] + 1) * sizeof *column);
    memset(out, 0, (size_t)sheaf_nelements(n) * sizeof *out);
    for (int64_t t = 0; t < ids->ne[1]; t++)
        for (int64_t j = 0; j < ids->ne[0]; j++) {
            int64_t id = (int64_t)reference_at(ids, j, t, 0, 0);
            double *into = out + (sum ? t : t * ids->ne[0] + j) * n->ne[0];
            if (id < 0 || id >= w->ne[2]) continue;
            for (int64_t k = 0; k < w->ne[0]; k++) column[k] = wrapped(x, k, j, t, 0);
            for (int64_t m = 0; m < w->ne[1]; m++) {
                double one = 0;
                for (int64_t k = 0; k < w->ne[0]; k++) one += dense[id][m * w->ne[0] + k] * column[k];
                into[m] += one;
            }
        }
    for (int64_t id = 0; id < w->ne[2]; id++) free(dense[id]);
    free(column);
    free(dense);
}

static double added_id(const sheaf_tensor *n, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    int64_t id = (int64_t)reference_at(n->src[2], i1, i2, 0, 0);
    double x = reference_at(n->src[0], i0, i1, i2, i3);
    return id < 0 || id >= n->src[1]->ne[1] ? x : x + reference_at(n->src[1], i0, id, 0, 0);
}

/* The element that i0 others come before. */
static double ranked(const sheaf_tensor *n, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    (void)i2, (void)i3;
    const sheaf_tensor *x = n->src[0];
    for (int64_t a = 0; a < x->ne[0]; a++) {
        double va = reference_at(x, a, i1, 0, 0);
        int64_t earlier = 0;
        for (int64_t b = 0; b < x->ne[0]; b++) {
            double vb = reference_at(x, b, i1, 0, 0);
            bool equal = va == vb || (isnan(va) && isnan(vb));
            earlier += equal ? b < a : vb > va || (isnan(va) && !isnan(vb));
        }
        if (earlier == i0) return (double)a;
    }
    return NAN;
}

static double picked(const sheaf_tensor *n, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    (void)i2, (void)i3;
    int64_t id = (int64_t)reference_at(n->src[1], i0, i1, 0, 0);
    return id < 0 || id >= n->src[0]->ne[0] ? 0 : reference_at(n->src[0], id, i1, 0, 0);
}

static double got_row(const sheaf_tensor *n, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    (void)i2, (void)i3;
    int64_t id = (int64_t)reference_at(n->src[1], i1, 0, 0, 0);
    return id < 0 || id >= n->src[0]->ne[1] ? 0 : reference_at(n->src[0], i0, id, 0, 0);
}

static double set_row(const sheaf_tensor *n, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    (void)i2, (void)i3;
    for (int64_t k = n->src[1]->ne[1] - 1; k >= 0; k--)
        if ((int64_t)reference_at(n->src[2], k, 0, 0, 0) == i1) return reference_at(n->src[1], i0, k, 0, 0);
    return reference_at(n->src[0], i0, i1, 0, 0);
}

static double joined(const sheaf_tensor *n, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    int64_t i[4] = {i0, i1, i2, i3};
    int dim = n->params.concat.dim;
    const sheaf_tensor *x = n->src[0];
    if (i[dim] >= x->ne[dim]) i[dim] -= x->ne[dim], x = n->src[1];
    return reference_at(x, i[0], i[1], i[2], i[3]);
}

static double summed(const sheaf_tensor *n, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    double sum = 0;
    for (int64_t k = 0; k < n->src[0]->ne[0]; k++) sum += reference_at(n->src[0], k, i1, i2, i3);
    return i0 == 0 ? sum : NAN;
}

static double largest(const sheaf_tensor *n, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    (void)i1, (void)i2, (void)i3;
    int64_t best = 0;
    for (int64_t k = 1; k < n->src[0]->ne[0]; k++)
        if (reference_at(n->src[0], k, i0, 0, 0) > reference_at(n->src[0], best, i0, 0, 0)) best = k;
    return (double)best;
}

/* One whole result at a time: scores are made once a (head, token). */
static void attention(const sheaf_tensor *n, double *out) {
    const sheaf_tensor *q = n->src[0], *k = n->src[1], *v = n->src[2], *m = n->src[3], *sinks = n->src[4];
    double cap = (double)n->params.attention.soft_cap, bias = (double)n->params.attention.max_bias;
    double *score = malloc((size_t)(k->ne[1] + 1) * sizeof *score);
    int64_t per_kv = n->params.attention.n_head / n->params.attention.n_kv;
    for (int64_t t = 0; t < q->ne[1]; t++) {
        for (int64_t h = 0; h < q->ne[2]; h++) {
            int64_t head = n->params.attention.q_head0 + h, kv = head / per_kv - n->params.attention.kv_head0;
            double max = sinks ? reference_at(sinks, head, 0, 0, 0) : -INFINITY, sum = 0;
            for (int64_t p = 0; p < k->ne[1]; p++) {
                double s = 0;
                for (int64_t i = 0; i < q->ne[0]; i++) s += reference_at(q, i, t, h, 0) * reference_at(k, i, p, kv, 0);
                s *= (double)n->params.attention.scale;
                if (cap != 0) s = cap * tanh(s / cap);
                if (m) s += alibi(bias, n->params.attention.n_head, head) * reference_at(m, p, t, 0, 0);
                score[p] = s;
                max = fmax(max, s);
            }
            for (int64_t p = 0; p < k->ne[1]; p++) sum += score[p] = score[p] == -INFINITY ? 0 : exp(score[p] - max);
            if (sinks) sum += exp(reference_at(sinks, head, 0, 0, 0) - max);
            for (int64_t i = 0; i < v->ne[0]; i++) {
                double y = 0;
                for (int64_t p = 0; p < k->ne[1]; p++)
                    if (score[p] > 0) y += score[p] * reference_at(v, i, p, kv, 0);
                out[(t * q->ne[2] + h) * v->ne[0] + i] = sum > 0 ? y / sum : 0;
            }
        }
    }
    free(score);
}

static element_fn meaning(sheaf_op op) {
    static const element_fn table[SHEAF_OP_COUNT] = {
        [SHEAF_OP_CONT] = copied,           [SHEAF_OP_CPY] = copied,       [SHEAF_OP_ADD] = added,
        [SHEAF_OP_SUB] = subtracted,        [SHEAF_OP_MUL] = multiplied,   [SHEAF_OP_DIV] = divided,
        [SHEAF_OP_SCALE] = scaled,          [SHEAF_OP_UNARY] = mapped,     [SHEAF_OP_GLU] = gated,
        [SHEAF_OP_RMS_NORM] = normed_rms,   [SHEAF_OP_NORM] = normed,      [SHEAF_OP_SOFT_MAX] = soft_maxed,
        [SHEAF_OP_ROPE] = rotated,          [SHEAF_OP_GET_ROWS] = got_row, [SHEAF_OP_SET_ROWS] = set_row,
        [SHEAF_OP_CONCAT] = joined,         [SHEAF_OP_SUM_ROWS] = summed,  [SHEAF_OP_FILL] = filled,
        [SHEAF_OP_ARGMAX] = largest,        [SHEAF_OP_ADD_ID] = added_id,  [SHEAF_OP_ARGSORT] = ranked,
        [SHEAF_OP_PICK] = picked,           [SHEAF_OP_ROUND] = copied,     [SHEAF_OP_SUM_SQUARES] = squares,
        [SHEAF_OP_RMS_NORM_BY] = normed_by,
    };
    return table[op];
}

void reference_eval(const sheaf_tensor *n, double *out) {
    if (n->op == SHEAF_OP_ATTENTION || n->op == SHEAF_OP_MUL_MAT || n->op == SHEAF_OP_MUL_MAT_ID) {
        (n->op == SHEAF_OP_ATTENTION ? attention : n->op == SHEAF_OP_MUL_MAT ? matmul : matmul_id)(n, out);
        return;
    }
    element_fn fn = meaning(n->op);
    for (int64_t i3 = 0; i3 < n->ne[3]; i3++)
        for (int64_t i2 = 0; i2 < n->ne[2]; i2++)
            for (int64_t i1 = 0; i1 < n->ne[1]; i1++)
                for (int64_t i0 = 0; i0 < n->ne[0]; i0++) *out++ = fn ? fn(n, i0, i1, i2, i3) : NAN;
}
