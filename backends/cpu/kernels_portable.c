/* The portable kernels: plain C, any machine, and the reference that the tests hold the other levels to.
 *
 * A matmul row is dequantised with sheaf_to_float and multiplied in f32, so every type of the table
 * works here. The order of addition is fixed by position alone: lane i mod 8, then a tree over the
 * lanes, restarted at every segment. */
#include "backends/cpu/kernels_angles.h"
#include "backends/cpu/kernels_common.h"

#include <float.h>

enum {
    LANES = 8,
    PIECE = 4096,  /* elements dequantised at a time when sums are plain f32; a multiple of every block */
    COLUMNS = 256, /* columns whose running sums are kept while a row's pieces pass */
};

typedef struct sums {
    float lane[COLUMNS][LANES];
    double total[COLUMNS];
} sums;

static float lanes_sum(const float *l) {
    float a = (l[0] + l[4]) + (l[2] + l[6]);
    float b = (l[1] + l[5]) + (l[3] + l[7]);
    return a + b;
}

/* lane[i mod 8] += w[i]*x[i] */
static void dot_lanes(float *lane, const float *w, const float *x, int64_t n) {
    float acc[LANES];
    memcpy(acc, lane, sizeof acc);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int l = 0; l < LANES; l++) acc[l] += w[i + l] * x[i + l];
    }
    for (int l = 0; i + l < n; l++) acc[l] += w[i + l] * x[i + l];
    memcpy(lane, acc, sizeof acc);
}

/* One row of w against columns [n0, n1), at most COLUMNS of them. */
static void row_times_columns(const cpu_mm *a, sheaf_type type, const char *row, int64_t m, int64_t n0, int64_t n1) {
    float *w = a->scratch;
    sums *s = (sums *)(w + PIECE);
    int32_t segment = segment_piece(a->segment, (int32_t)sheaf_type_block(type), PIECE);
    int64_t piece = segment ? segment : PIECE;
    memset(s, 0, sizeof *s);
    for (int64_t k = 0; k < a->k; k += piece) {
        int64_t len = a->k - k < piece ? a->k - k : piece;
        sheaf_to_float(type, row + sheaf_row_bytes(type, k), w, len);
        for (int64_t n = n0; n < n1; n++) {
            const float *x = (const float *)((const char *)a->x + (size_t)n * a->x_col) + k;
            float *lane = s->lane[n - n0];
            dot_lanes(lane, w, x, len);
            if (!segment) continue;
            s->total[n - n0] += (double)lanes_sum(lane);
            memset(lane, 0, sizeof s->lane[0]);
        }
    }
    for (int64_t n = n0; n < n1; n++) {
        char *column = (char *)a->out + (size_t)n * a->out_col;
        double total = segment ? s->total[n - n0] : (double)lanes_sum(s->lane[n - n0]);
        if (a->out_f64)
            ((double *)column)[m] = total;
        else
            ((float *)column)[m] = (float)total;
    }
}

static void mul_any(sheaf_type type, const cpu_mm *a, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
    for (int64_t n = n0; n < n1; n += COLUMNS) {
        int64_t end = n1 < n + COLUMNS ? n1 : n + COLUMNS;
        for (int64_t m = m0; m < m1; m++) {
            row_times_columns(a, type, (const char *)a->w + (size_t)m * a->w_row, m, n, end);
        }
    }
}

#define X(name, id, text, block, bytes)                                                                                \
    static void mul_##name(const cpu_mm *a, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {                          \
        mul_any(SHEAF_##name, a, m0, m1, n0, n1);                                                                      \
    }                                                                                                                  \
    static void to_float_##name(const void *src, float *dst, int64_t n) { sheaf_to_float(SHEAF_##name, src, dst, n); }
SHEAF_TYPE_TABLE(X)
#undef X

/* --- activations ---------------------------------------------------------------------------------- */

/* One block of 32. A NaN or an infinity makes the block's scale NaN or inf, so every sum it enters is not a number. */
static void quantize_block(const float *x, int8_t *q, float *d, float *s, int32_t *n32, int32_t *n16) {
    float amax = 0.0f;
    bool nan = false;
    for (int i = 0; i < 32; i++) {
        float v = fabsf(x[i]);
        nan |= v != v;
        amax = v > amax ? v : amax;
    }
    if (nan) amax = NAN;
    *d = amax / 127.0f;
    bool finite = amax > 0.0f && amax <= FLT_MAX;
    float inverse = finite ? 127.0f / amax : 0.0f;
    if (finite && inverse > FLT_MAX) inverse = 0.0f, *d = 0.0f; /* below what 1/x can say: zero */
    int32_t sum[2] = {0, 0};
    for (int i = 0; i < 32; i++) {
        int32_t v = inverse != 0.0f ? (int32_t)nearbyintf(x[i] * inverse) : 0;
        q[i] = (int8_t)v;
        sum[i / 16] += v;
    }
    *s = *d * (float)(sum[0] + sum[1]);
    *n32 = -(sum[0] + sum[1]);
    n16[0] = -sum[0];
    n16[1] = -sum[1];
}

static void quantize_q8(const float *x, void *column, int64_t k) {
    char *c = column;
    float *d = (float *)(c + cpu_act_scales_at(k)), *s = (float *)(c + cpu_act_sums_at(k));
    int32_t *n32 = (int32_t *)(c + cpu_act_n32_at(k)), *n16 = (int32_t *)(c + cpu_act_n16_at(k));
    for (int64_t b = 0; b < k / 32; b++) {
        quantize_block(x + b * 32, (int8_t *)c + b * 32, d + b, s + b, n32 + b, n16 + 2 * b);
    }
}

/* --- attention ------------------------------------------------------------------------------------ */

static float dot_kv(sheaf_type type, const char *row, const float *q, float *tmp, int32_t n) {
    float lane[LANES] = {0};
    sheaf_to_float(type, row, tmp, n);
    dot_lanes(lane, tmp, q, n);
    return lanes_sum(lane);
}

/* Scores of one query row over positions [p0, p0+n); returns their maximum. Hidden positions are -inf whatever K holds.
 */
static float chunk_scores(const cpu_attn *a, const float *q, const char *k, int32_t token, float slope, int64_t p0,
                          int32_t n, float *score, float *tmp) {
    float best = -INFINITY;
    for (int32_t i = 0; i < n; i++) {
        float mask = a->mask ? mask_at(a, token, p0 + i) : 0.0f;
        score[i] = -INFINITY;
        if (mask == -INFINITY) continue;
        float s = dot_kv(a->k_type, k + (size_t)(p0 + i) * a->k_pos, q, tmp, a->head_k) * a->scale;
        if (a->soft_cap != 0.0f) s = a->soft_cap * tanhf(s / a->soft_cap);
        score[i] = s + slope * mask;
        if (!(score[i] <= best)) best = score[i];
    }
    return best;
}

static void attend_row(const cpu_attn *a, int32_t h, int32_t t) {
    float *tmp = a->scratch;
    const float *q = (const float *)((const char *)a->q + (size_t)t * a->q_token + (size_t)h * a->q_head);
    float *out = (float *)((char *)a->out + (size_t)t * a->out_token + (size_t)h * a->out_head);
    int32_t head = a->q_head0 + h;
    size_t kv = (size_t)kv_head_of(a, h);
    const char *k = a->k + kv * a->k_head, *v = a->v + kv * a->v_head;
    float slope = alibi_slope(a, head), best = -INFINITY, sum = 0.0f, score[CPU_ATTN_CHUNK];
    memset(out, 0, (size_t)a->head_v * sizeof *out);
    for (int64_t p0 = 0; p0 < a->n_kv; p0 += CPU_ATTN_CHUNK) {
        int32_t n = (int32_t)(a->n_kv - p0 < CPU_ATTN_CHUNK ? a->n_kv - p0 : CPU_ATTN_CHUNK);
        float chunk = chunk_scores(a, q, k, t, slope, p0, n, score, tmp);
        if (chunk == -INFINITY) continue;
        float next = chunk > best || chunk != chunk ? chunk : best;
        float keep = expf(best - next);
        best = next;
        sum *= keep;
        for (int32_t j = 0; j < a->head_v; j++) out[j] *= keep;
        for (int32_t i = 0; i < n; i++) {
            if (score[i] == -INFINITY) continue;
            float p = expf(score[i] - best);
            sum += p;
            sheaf_to_float(a->v_type, v + (size_t)(p0 + i) * a->v_pos, tmp, a->head_v);
            for (int32_t j = 0; j < a->head_v; j++) out[j] += p * tmp[j];
        }
    }
    if (a->sinks) {
        float next = a->sinks[head] > best ? a->sinks[head] : best;
        float keep = expf(best - next);
        sum = sum * keep + expf(a->sinks[head] - next);
        for (int32_t j = 0; j < a->head_v; j++) out[j] *= keep;
    }
    float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
    for (int32_t j = 0; j < a->head_v; j++) out[j] *= inverse;
}

void portable_attention(const cpu_attn *a, int32_t h0, int32_t h1, int32_t t0, int32_t t1) {
    for (int32_t t = t0; t < t1; t++) {
        for (int32_t h = h0; h < h1; h++) attend_row(a, h, t);
    }
}

/* --- rows ----------------------------------------------------------------------------------------- */

static void add(float *out, const float *x, const float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = x[i] + y[i];
}

static void mul(float *out, const float *x, const float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = x[i] * y[i];
}

static void scale(float *out, const float *x, float factor, float bias, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = x[i] * factor + bias;
}

/* (1 + tanh(u))/2 is 1/(1 + e^-2u), without the cancellation where u is negative. */
static float gelu(float x) {
    float u = 0.79788456080286535588f * x * (1.0f + 0.044715f * x * x);
    return x / (1.0f + expf(-2.0f * u));
}

static float silu(float x) { return x / (1.0f + expf(-x)); }

static float apply(float x, sheaf_unary kind) {
    switch (kind) {
    case SHEAF_UNARY_SILU: return silu(x);
    case SHEAF_UNARY_GELU: return gelu(x);
    case SHEAF_UNARY_GELU_ERF: return 0.5f * x * (1.0f + erff(x * 0.70710678118654752440f));
    case SHEAF_UNARY_RELU: return x > 0.0f ? x : x != x ? x : 0.0f;
    case SHEAF_UNARY_SIGMOID: return 1.0f / (1.0f + expf(-x));
    case SHEAF_UNARY_TANH: return tanhf(x);
    case SHEAF_UNARY_EXP: return expf(x);
    case SHEAF_UNARY_NEG: return -x;
    case SHEAF_UNARY_SQR: return x * x;
    case SHEAF_UNARY_COUNT: break;
    }
    return x;
}

void portable_unary(float *out, const float *x, int64_t n, sheaf_unary kind) {
    for (int64_t i = 0; i < n; i++) out[i] = apply(x[i], kind);
}

static void glu(float *out, const float *gate, const float *up, int64_t n, sheaf_glu kind) {
    sheaf_unary act = kind == SHEAF_GLU_SWIGLU  ? SHEAF_UNARY_SILU
                      : kind == SHEAF_GLU_GEGLU ? SHEAF_UNARY_GELU
                                                : SHEAF_UNARY_RELU;
    for (int64_t i = 0; i < n; i++) out[i] = apply(gate[i], act) * up[i];
}

static void rms_norm(float *out, const float *x, const float *weight, int64_t n, float eps) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    float factor = (float)(1.0 / sqrt(sum / (double)n + (double)eps));
    for (int64_t i = 0; i < n; i++) out[i] = weight ? x[i] * factor * weight[i] : x[i] * factor;
}

/* A row that is all -inf gives zeros: nothing is visible, so nothing is attended to. */
static void sum_f64(float *out, const double *x, const double *y, const float *residual, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float sum = (float)(x[i] + y[i]);
        out[i] = residual ? sum + residual[i] : sum;
    }
}

static void soft_max(float *out, const float *x, const float *mask, float factor, float slope, int64_t n) {
    float best = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
        out[i] = x[i] * factor + (mask ? slope * mask[i] : 0.0f);
        if (!(out[i] <= best)) best = out[i];
    }
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        out[i] = best == -INFINITY ? 0.0f : expf(out[i] - best);
        sum += (double)out[i];
    }
    float inverse = sum == 0.0 ? 0.0f : (float)(1.0 / sum);
    for (int64_t i = 0; i < n; i++) out[i] *= inverse;
}

void cpu_kernels_portable(cpu_kernels *t) {
#define X(name, id, text, block, bytes)                                                                                \
    t->mm[id].act = CPU_ACT_F32;                                                                                       \
    t->mm[id].mul = mul_##name;                                                                                        \
    t->to_float[id] = to_float_##name;
    SHEAF_TYPE_TABLE(X)
#undef X
    t->quantize_q8 = quantize_q8;
    t->attention = portable_attention;
    t->add = add;
    t->mul = mul;
    t->scale = scale;
    t->glu = glu;
    t->unary = portable_unary;
    t->rms_norm = rms_norm;
    t->sum_f64 = sum_f64;
    t->rotation = rotation;
    t->soft_max = soft_max;
}
