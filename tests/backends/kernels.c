/* Every kernel level that this machine has: against sums in f64 of the dequantised weights, against
 * itself cut in other ways (K1: ranges; M11: segments), and on the edges (tails, NaN, padding). */
#include "backends/cpu/kernels.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const sheaf_type types[] = {
    SHEAF_F32,  SHEAF_F16,  SHEAF_BF16, SHEAF_Q4_0, SHEAF_Q4_1, SHEAF_Q5_0,   SHEAF_Q5_1,   SHEAF_Q8_0,
    SHEAF_Q2_K, SHEAF_Q3_K, SHEAF_Q4_K, SHEAF_Q5_K, SHEAF_Q6_K, SHEAF_IQ4_NL, SHEAF_IQ4_XS, SHEAF_MXFP4,
};
enum { N_TYPES = sizeof types / sizeof *types };

static uint64_t state;
static uint32_t next_u32(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) ^ (uint32_t)(state >> 12);
}
static float uniform(void) { return (float)(next_u32() & 0xffffff) / 16777216.0f; }
static float normal(void) { return (uniform() + uniform() + uniform() + uniform() - 2.0f) * 1.7f; }
static int64_t below(int64_t n) { return (int64_t)(next_u32() % (uint32_t)n); }

static float half_value(float f) { return sheaf_f16_to_f32(sheaf_f32_to_f16(f)); }

/* Random blocks with sane scales: every bit of every code is used, which an encoder would not do. */
static void random_blocks(sheaf_type t, uint8_t *dst, size_t bytes) {
    static const struct {
        sheaf_type type;
        int at[2];
    } halves[] = {
        {SHEAF_Q4_0, {0, -1}}, {SHEAF_Q4_1, {0, 2}},    {SHEAF_Q5_0, {0, -1}},   {SHEAF_Q5_1, {0, 2}},
        {SHEAF_Q8_0, {0, -1}}, {SHEAF_Q2_K, {80, 82}},  {SHEAF_Q3_K, {108, -1}}, {SHEAF_Q4_K, {0, 2}},
        {SHEAF_Q5_K, {0, 2}},  {SHEAF_Q6_K, {208, -1}}, {SHEAF_IQ4_NL, {0, -1}}, {SHEAF_IQ4_XS, {0, -1}},
    };
    for (size_t i = 0; i < bytes; i++) dst[i] = (uint8_t)next_u32();
    size_t block = sheaf_type_bytes(t);
    for (size_t b = 0; b < bytes; b += block) {
        if (t == SHEAF_MXFP4) dst[b] = (uint8_t)(120 + below(8));
        for (size_t r = 0; r < sizeof halves / sizeof *halves; r++) {
            if (halves[r].type != t) continue;
            for (int i = 0; i < 2; i++) {
                uint16_t h = sheaf_f32_to_f16(0.01f + 0.1f * uniform());
                if (halves[r].at[i] >= 0) memcpy(dst + b + halves[r].at[i], &h, 2);
            }
        }
    }
}

typedef struct problem {
    sheaf_type type;
    int64_t m, n, k;
    uint8_t *w;
    float *wf, *x;        /* dequantised weights [m][k]; columns [n][k] */
    double *want, *bound; /* [n][m]; bound without the rounding of activations */
    double *round;        /* [n][m]: what rounding the activations to 8 bits may change */
} problem;

static void problem_fill(problem *p) {
    size_t row = sheaf_row_bytes(p->type, p->k);
    if (p->type == SHEAF_F32 || p->type == SHEAF_F16 || p->type == SHEAF_BF16) {
        for (int64_t i = 0; i < p->m * p->k; i++) p->wf[i] = normal();
        for (int64_t m = 0; m < p->m; m++) sheaf_from_float(p->type, p->wf + m * p->k, p->w + (size_t)m * row, p->k);
    } else {
        random_blocks(p->type, p->w, row * (size_t)p->m);
    }
    for (int64_t m = 0; m < p->m; m++) sheaf_to_float(p->type, p->w + (size_t)m * row, p->wf + m * p->k, p->k);
    for (int64_t i = 0; i < p->n * p->k; i++) p->x[i] = normal();
}

static void problem_reference(problem *p) {
    for (int64_t n = 0; n < p->n; n++) {
        for (int64_t m = 0; m < p->m; m++) {
            double sum = 0, size = 0, rounding = 0;
            for (int64_t k0 = 0; k0 < p->k; k0 += 32) {
                double amax = 0, weights = 0;
                for (int64_t k = k0; k < p->k && k < k0 + 32; k++) {
                    double w = p->wf[m * p->k + k], x = p->x[n * p->k + k];
                    sum += w * x;
                    size += fabs(w * x);
                    weights += fabs(w);
                    amax = fabs(x) > amax ? fabs(x) : amax;
                }
                rounding += weights * amax / 254;
            }
            p->want[n * p->m + m] = sum;
            p->bound[n * p->m + m] = size * 4e-6 + 1e-6;
            p->round[n * p->m + m] = rounding * 1.001;
        }
    }
}

static problem problem_new(sheaf_type type, int64_t m, int64_t n, int64_t k) {
    problem p = {.type = type, .m = m, .n = n, .k = k};
    p.w = malloc(sheaf_row_bytes(type, k) * (size_t)m);
    p.wf = malloc((size_t)(m * k) * sizeof(float));
    p.x = malloc((size_t)(n * k) * sizeof(float));
    p.want = malloc((size_t)(m * n) * sizeof(double));
    p.bound = malloc((size_t)(m * n) * sizeof(double));
    p.round = malloc((size_t)(m * n) * sizeof(double));
    problem_fill(&p);
    problem_reference(&p);
    return p;
}

static void problem_free(problem *p) {
    free(p->w);
    free(p->wf);
    free(p->x);
    free(p->want);
    free(p->bound);
    free(p->round);
}

static void *scratch(void) {
    static void *s;
    if (!s) s = aligned_alloc(64, (size_t)CPU_MM_SCRATCH + CPU_ATTN_SCRATCH);
    return s;
}

/* Elements [k0, k0+len) of every column in the level's activation format. */
static char *activations(const cpu_kernels *t, const problem *p, int64_t k0, int64_t len, size_t *stride) {
    cpu_act act = t->mm[p->type].act;
    *stride = cpu_act_bytes(act, len);
    char *x = aligned_alloc(64, cpu_act_pad(*stride * (size_t)p->n + 1));
    memset(x, 0xff, cpu_act_pad(*stride * (size_t)p->n + 1)); /* NaN where nothing was written */
    for (int64_t n = 0; n < p->n; n++) {
        const float *src = p->x + n * p->k + k0;
        if (act == CPU_ACT_Q8)
            t->quantize_q8(src, x + (size_t)n * *stride, len);
        else
            memcpy(x + (size_t)n * *stride, src, (size_t)len * 4);
    }
    return x;
}

/* The product over elements [k0, k0+len) into out ([n][m], f32 or f64), rows and columns cut into `cuts` random ranges.
 */
static void multiply(const cpu_kernels *t, const problem *p, int64_t k0, int64_t len, int32_t segment, bool f64,
                     int cuts, void *out) {
    size_t stride, row = sheaf_row_bytes(p->type, p->k), element = f64 ? 8 : 4;
    char *x = activations(t, p, k0, len, &stride);
    cpu_mm a = {.w = p->w + sheaf_row_bytes(p->type, k0),
                .w_row = row,
                .x = x,
                .x_col = stride,
                .out = out,
                .out_col = (size_t)p->m * element,
                .k = len,
                .n_total = p->n,
                .segment = segment,
                .out_f64 = f64,
                .scratch = scratch()};
    for (int64_t m = 0; m < p->m;) {
        int64_t m1 = cuts ? m + 1 + below(p->m - m) : p->m;
        for (int64_t n = 0; n < p->n;) {
            int64_t n1 = cuts ? n + 1 + below(p->n - n) : p->n;
            t->mm[p->type].mul(&a, m, m1, n, n1);
            n = n1;
        }
        m = m1;
    }
    free(x);
}

static void check_result(const cpu_kernels *t, const problem *p, const float *got, const char *what) {
    for (int64_t i = 0; i < p->m * p->n; i++) {
        double limit = p->bound[i] + (t->mm[p->type].act == CPU_ACT_Q8 ? p->round[i] : 0);
        cr_assert(fabs((double)got[i] - p->want[i]) <= limit,
                  "%s %s %s m=%d n=%d k=%d: row %d column %d is %.9g, want %.9g within %.3g", t->name,
                  sheaf_type_name(p->type), what, (int)p->m, (int)p->n, (int)p->k, (int)(i % p->m), (int)(i / p->m),
                  (double)got[i], p->want[i], limit);
    }
}

static void check_same(const cpu_kernels *t, const problem *p, const void *x, const void *y, size_t element,
                       const char *what) {
    for (size_t i = 0; i < (size_t)(p->m * p->n); i++) {
        const char *a = (const char *)x + i * element, *b = (const char *)y + i * element;
        if (memcmp(a, b, element) == 0) continue;
        double va = element == 8 ? *(const double *)a : (double)*(const float *)a;
        double vb = element == 8 ? *(const double *)b : (double)*(const float *)b;
        cr_assert(false, "%s %s %s m=%d n=%d k=%d: element %zu is %.17g and %.17g", t->name, sheaf_type_name(p->type),
                  what, (int)p->m, (int)p->n, (int)p->k, i, va, vb);
    }
}

/* Right, and the same bits however rows and columns are cut (K1). */
static void check_shape(const cpu_kernels *t, sheaf_type type, int64_t m, int64_t n, int64_t k) {
    problem p = problem_new(type, m, n, k);
    size_t bytes = (size_t)(m * n) * sizeof(float);
    float *whole = malloc(bytes + 4), *cut = malloc(bytes + 4);
    whole[m * n] = 12345.0f;
    multiply(t, &p, 0, k, 0, false, 0, whole);
    cr_assert(whole[m * n] == 12345.0f, "%s %s wrote past its result", t->name, sheaf_type_name(type));
    check_result(t, &p, whole, "plain");
    multiply(t, &p, 0, k, 0, false, 1, cut);
    check_same(t, &p, whole, cut, sizeof(float), "cut into ranges");
    free(whole);
    free(cut);
    problem_free(&p);
}

#define FOR_LEVELS(t)                                                                                                  \
    for (int level_ = 0; level_ <= (int)cpu_level_best(); level_++)                                                    \
        for (const cpu_kernels *t = cpu_kernels_get((cpu_level)level_); t; t = NULL)

Test(kernels, every_small_shape_every_type, .timeout = 300) {
    static const int64_t ks[] = {1, 31, 32, 33, 64, 256};
    state = 1;
    FOR_LEVELS(t) {
        for (int i = 0; i < N_TYPES; i++) {
            for (size_t j = 0; j < sizeof ks / sizeof *ks; j++) {
                if (ks[j] % sheaf_type_block(types[i]) != 0) continue;
                /* every m and every n in 1..40, not every pair of them */
                for (int64_t v = 1; v <= 40; v++) {
                    check_shape(t, types[i], v, 1 + below(8), ks[j]);
                    check_shape(t, types[i], 1 + below(40), v, ks[j]);
                }
            }
        }
    }
}

Test(kernels, long_rows_every_type, .timeout = 300) {
    static const int64_t shapes[][3] = {{37, 1, 2048}, {33, 3, 1536}, {70, 13, 1024}, {9, 2, 576},
                                        {40, 7, 4864}, {5, 520, 512}, {16, 5, 8192},  {3, 4, 96}};
    state = 2;
    FOR_LEVELS(t) {
        for (int i = 0; i < N_TYPES; i++) {
            for (size_t j = 0; j < sizeof shapes / sizeof *shapes; j++) {
                const int64_t *s = shapes[j];
                if (s[2] % sheaf_type_block(types[i]) == 0) check_shape(t, types[i], s[0], s[1], s[2]);
            }
        }
    }
}

/* The sum in f64 of the parts' addends, each part over whole segments, rounded once. */
static void glue(const cpu_kernels *t, const problem *p, int32_t segment, int parts, float *out) {
    size_t count = (size_t)(p->m * p->n);
    int64_t segments = p->k / segment, at = 0;
    double *addend[8];
    for (int i = 0; i < parts; i++) {
        int64_t left = segments - at, take = i + 1 == parts ? left : below(left + 1);
        addend[i] = calloc(count, sizeof(double));
        if (take) multiply(t, p, at * segment, take * segment, segment, true, 1, addend[i]);
        at += take;
    }
    for (size_t e = 0; e < count; e++) {
        double sum = 0;
        for (int i = 0; i < parts; i++) sum += addend[i][e];
        out[e] = (float)sum;
    }
    for (int i = 0; i < parts; i++) free(addend[i]);
}

static void check_segments(const cpu_kernels *t, sheaf_type type, int64_t m, int64_t n, int64_t k, int32_t segment) {
    problem p = problem_new(type, m, n, k);
    float *whole = malloc((size_t)(m * n) * sizeof(float)), *glued = malloc((size_t)(m * n) * sizeof(float));
    double *addend = malloc((size_t)(m * n) * sizeof(double));
    multiply(t, &p, 0, k, segment, false, 1, whole);
    check_result(t, &p, whole, "segments");
    multiply(t, &p, 0, k, segment, true, 0, addend);
    for (int64_t i = 0; i < m * n; i++) {
        cr_assert((float)addend[i] == whole[i], "f64 result rounds to %.9g, f32 result is %.9g",
                  (double)(float)addend[i], (double)whole[i]);
    }
    for (int parts = 1; parts <= 5; parts++) {
        glue(t, &p, segment, parts, glued);
        check_same(t, &p, whole, glued, sizeof(float), "cut into shards");
    }
    free(whole);
    free(glued);
    free(addend);
    problem_free(&p);
}

Test(kernels, segments_give_the_same_bits_however_k_is_cut, .timeout = 300) {
    static const struct {
        int64_t m, n, k;
        int32_t segment;
    } shapes[] = {
        {33, 1, 576, 64},  {20, 9, 576, 64},    {17, 2, 192, 32},   {17, 7, 192, 32},    {40, 1, 1536, 96},
        {40, 6, 1536, 96}, {9, 1, 1536, 768},   {9, 13, 1536, 768}, {35, 3, 2048, 256},  {35, 20, 2048, 256},
        {8, 4, 3072, 512}, {8, 15, 3072, 1536}, {6, 1, 4096, 2048}, {64, 64, 1024, 128},
    };
    state = 3;
    FOR_LEVELS(t) {
        for (int i = 0; i < N_TYPES; i++) {
            for (size_t j = 0; j < sizeof shapes / sizeof *shapes; j++) {
                if (shapes[j].segment % sheaf_type_block(types[i]) != 0) continue;
                check_segments(t, types[i], shapes[j].m, shapes[j].n, shapes[j].k, shapes[j].segment);
            }
        }
    }
}

static int spoiled(const cpu_kernels *t, sheaf_type type, int64_t n, float bad, int32_t segment) {
    problem p = problem_new(type, 21, n, 512);
    float out[21 * 16];
    int64_t column = n / 2;
    p.x[column * p.k + 300] = bad;
    multiply(t, &p, 0, p.k, segment, false, 0, out);
    int failures = 0;
    for (int64_t i = 0; i < p.m * n; i++) failures += (i / p.m == column) == (isfinite(out[i]) != 0);
    problem_free(&p);
    return failures;
}

Test(kernels, not_a_number_stays_in_its_column, .timeout = 60) {
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    state = 4;
    FOR_LEVELS(t) {
        for (int i = 0; i < N_TYPES; i++) {
            for (int64_t n = 1; n <= 16; n += 5) {
                for (int j = 0; j < 3; j++) {
                    int a = spoiled(t, types[i], n, bad[j], 0), b = spoiled(t, types[i], n, bad[j], 256);
                    cr_assert(a == 0 && b == 0, "%s %s n=%d bad=%f: %d and %d elements are wrong", t->name,
                              sheaf_type_name(types[i]), (int)n, (double)bad[j], a, b);
                }
            }
        }
    }
}

Test(kernels, quantized_columns_are_exact_in_their_parts, .timeout = 60) {
    state = 5;
    enum { K = 32 * 37 };
    static float x[K];
    for (int i = 0; i < K; i++)
        x[i] = normal() * (i / 32 == 3 ? 0.0f : i / 32 == 4 ? 1e-42f : i / 32 == 5 ? 1e30f : 1.0f);
    FOR_LEVELS(t) {
        char *c = aligned_alloc(64, cpu_act_pad(cpu_act_bytes(CPU_ACT_Q8, K)));
        t->quantize_q8(x, c, K);
        const float *d = (const float *)(c + cpu_act_scales_at(K)), *s = (const float *)(c + cpu_act_sums_at(K));
        const int32_t *n32 = (const int32_t *)(c + cpu_act_n32_at(K)), *n16 = (const int32_t *)(c + cpu_act_n16_at(K));
        for (int b = 0; b < K / 32; b++) {
            int32_t sum[2] = {0, 0};
            for (int i = 0; i < 32; i++) {
                int q = ((const int8_t *)c)[32 * b + i];
                sum[i / 16] += q;
                double error = fabs((double)x[32 * b + i] - (double)d[b] * q), limit = (double)d[b] * 0.5001 + 1e-38;
                cr_assert(error <= limit, "%s block %d: %g is %g * %d", t->name, b, (double)x[32 * b + i], (double)d[b],
                          q);
            }
            cr_assert(n16[2 * b] == -sum[0] && n16[2 * b + 1] == -sum[1] && n32[b] == -sum[0] - sum[1],
                      "%s block %d: sums %d %d %d, want %d %d", t->name, b, n16[2 * b], n16[2 * b + 1], n32[b], -sum[0],
                      -sum[1]);
            cr_assert(s[b] == d[b] * (float)(sum[0] + sum[1]), "%s block %d: s %g", t->name, b, (double)s[b]);
        }
        free(c);
    }
}

/* --- attention ------------------------------------------------------------------------------------------ */

typedef struct attention_case {
    int32_t heads, per_kv, q_head0, n_head, head_k, head_v, n_kv, n_tokens;
    sheaf_type kv, mask; /* mask F64: none */
    float soft_cap, max_bias;
    bool sinks, poison; /* poison: hidden positions hold NaN */
} attention_case;

typedef struct attention_data {
    cpu_attn a;
    float *q, *kf, *vf, *maskf, *sinks;
    void *k, *v, *mask;
    float *out;
    double *want;
} attention_data;

static double slope_of(const attention_case *c, int head) {
    if (c->max_bias == 0) return 1;
    int n2 = 1;
    while (2 * n2 <= c->n_head) n2 *= 2;
    return head < n2 ? pow(2, -(double)c->max_bias / n2 * (head + 1))
                     : pow(2, -(double)c->max_bias / 2 / n2 * (2 * (head - n2) + 1));
}

static void attention_reference(const attention_case *c, attention_data *d) {
    int32_t kv_head0 = c->q_head0 / c->per_kv;
    double *s = malloc((size_t)c->n_kv * sizeof(double));
    for (int t = 0; t < c->n_tokens; t++) {
        for (int h = 0; h < c->heads; h++) {
            int head = c->q_head0 + h, kv = head / c->per_kv - kv_head0;
            double best = c->sinks ? (double)d->sinks[head] : -INFINITY, sum = 0;
            for (int p = 0; p < c->n_kv; p++) {
                double dot = 0, mask = c->mask == SHEAF_F64 ? 0 : (double)d->maskf[t * c->n_kv + p];
                s[p] = -INFINITY;
                if (mask == -INFINITY) continue;
                for (int i = 0; i < c->head_k; i++) {
                    dot += (double)d->q[(t * c->heads + h) * c->head_k + i] *
                           (double)d->kf[((size_t)kv * c->n_kv + p) * c->head_k + i];
                }
                dot *= (double)d->a.scale;
                if (c->soft_cap != 0) dot = (double)c->soft_cap * tanh(dot / (double)c->soft_cap);
                s[p] = dot + slope_of(c, head) * mask;
                best = s[p] > best ? s[p] : best;
            }
            for (int p = 0; p < c->n_kv; p++) sum += s[p] == -INFINITY ? 0 : exp(s[p] - best);
            if (c->sinks) sum += exp((double)d->sinks[head] - best);
            for (int j = 0; j < c->head_v; j++) {
                double o = 0;
                for (int p = 0; p < c->n_kv; p++) {
                    if (s[p] != -INFINITY)
                        o += exp(s[p] - best) * (double)d->vf[((size_t)kv * c->n_kv + p) * c->head_v + j];
                }
                d->want[(t * c->heads + h) * c->head_v + j] = sum == 0 ? 0 : o / sum;
            }
        }
    }
    free(s);
}

/* Fills n floats, encodes them, and reads back what the type kept. */
static void *encode(sheaf_type type, float *f, int64_t n, int64_t row) {
    size_t bytes = sheaf_row_bytes(type, row);
    char *out = malloc(bytes * (size_t)(n / row));
    for (int64_t r = 0; r < n / row; r++) {
        sheaf_from_float(type, f + r * row, out + (size_t)r * bytes, row);
        sheaf_to_float(type, out + (size_t)r * bytes, f + r * row, row);
    }
    return out;
}

/* Which positions a token sees: causal with some holes, then a hidden padding of n_kv / 4. */
static bool sees(const attention_case *c, int t, int p) {
    int used = c->n_kv - c->n_kv / 4;
    return p < used && p <= used - c->n_tokens + t && (p * 7 + 3) % 11 != 0;
}

static void attention_make(const attention_case *c, attention_data *d) {
    int32_t kv_head0 = c->q_head0 / c->per_kv, kv_heads = (c->q_head0 + c->heads - 1) / c->per_kv - kv_head0 + 1;
    int64_t nq = (int64_t)c->n_tokens * c->heads * c->head_k, nk = (int64_t)kv_heads * c->n_kv * c->head_k;
    int64_t nv = (int64_t)kv_heads * c->n_kv * c->head_v, no = (int64_t)c->n_tokens * c->heads * c->head_v;
    d->q = malloc((size_t)nq * 4);
    d->kf = malloc((size_t)nk * 4);
    d->vf = malloc((size_t)nv * 4);
    d->maskf = malloc((size_t)c->n_tokens * (size_t)c->n_kv * 4);
    d->sinks = malloc((size_t)c->n_head * 4);
    d->out = malloc((size_t)no * 4);
    d->want = malloc((size_t)no * 8);
    for (int64_t i = 0; i < nq; i++) d->q[i] = normal();
    for (int64_t i = 0; i < nk; i++)
        d->kf[i] = c->poison && i / c->head_k % c->n_kv >= c->n_kv - c->n_kv / 4 ? NAN : normal();
    for (int64_t i = 0; i < nv; i++)
        d->vf[i] = c->poison && i / c->head_v % c->n_kv >= c->n_kv - c->n_kv / 4 ? NAN : normal();
    for (int i = 0; i < c->n_head; i++) d->sinks[i] = normal();
    for (int t = 0; t < c->n_tokens; t++) {
        for (int p = 0; p < c->n_kv; p++) {
            float v = c->max_bias != 0 ? (float)(p - c->n_kv) : half_value(0.3f * normal());
            d->maskf[t * c->n_kv + p] = sees(c, t, p) ? v : -INFINITY;
        }
    }
    d->k = encode(c->kv, d->kf, nk, c->head_k);
    d->v = encode(c->kv, d->vf, nv, c->head_v);
    d->mask = c->mask == SHEAF_F64 ? NULL : encode(c->mask, d->maskf, (int64_t)c->n_tokens * c->n_kv, c->n_kv);
    size_t krow = sheaf_row_bytes(c->kv, c->head_k), vrow = sheaf_row_bytes(c->kv, c->head_v);
    d->a = (cpu_attn){.q = d->q,
                      .q_token = (size_t)(c->heads * c->head_k) * 4,
                      .q_head = (size_t)c->head_k * 4,
                      .k = d->k,
                      .k_pos = krow,
                      .k_head = krow * (size_t)c->n_kv,
                      .k_type = c->kv,
                      .v = d->v,
                      .v_pos = vrow,
                      .v_head = vrow * (size_t)c->n_kv,
                      .v_type = c->kv,
                      .mask = d->mask,
                      .mask_token = (size_t)c->n_kv * (c->mask == SHEAF_F32 ? 4 : 2),
                      .mask_type = c->mask,
                      .out = d->out,
                      .out_token = (size_t)(c->heads * c->head_v) * 4,
                      .out_head = (size_t)c->head_v * 4,
                      .head_k = c->head_k,
                      .head_v = c->head_v,
                      .n_kv = c->n_kv,
                      .n_tokens = c->n_tokens,
                      .scale = 1.0f / sqrtf((float)c->head_k),
                      .soft_cap = c->soft_cap,
                      .q_head0 = c->q_head0,
                      .kv_head0 = kv_head0,
                      .heads_per_kv = c->per_kv,
                      .sinks = c->sinks ? d->sinks : NULL,
                      .slope_base = c->max_bias,
                      .n_head = c->n_head,
                      .scratch = scratch()};
}

static void attention_free(attention_data *d) {
    void *all[] = {d->q, d->kf, d->vf, d->maskf, d->sinks, d->k, d->v, d->mask, d->out, d->want};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static void check_attention(const cpu_kernels *t, const attention_case *c, int index) {
    attention_data d = {0};
    attention_make(c, &d);
    attention_reference(c, &d);
    int64_t n = (int64_t)c->n_tokens * c->heads * c->head_v;
    float *again = malloc((size_t)n * 4);
    t->attention(&d.a, 0, c->heads, 0, c->n_tokens);
    for (int64_t i = 0; i < n; i++) {
        cr_assert(fabs((double)d.out[i] - d.want[i]) <= 1e-5 * (1 + fabs(d.want[i])),
                  "%s case %d: element %d is %.9g, want %.9g", t->name, index, (int)i, (double)d.out[i], d.want[i]);
    }
    d.a.out = again;
    for (int h = 0; h < c->heads;) {
        int h1 = h + 1 + (int)below(c->heads - h);
        for (int k = 0; k < c->n_tokens;) {
            int k1 = k + 1 + (int)below(c->n_tokens - k);
            t->attention(&d.a, h, h1, k, k1);
            k = k1;
        }
        h = h1;
    }
    for (int64_t i = 0; i < n; i++) {
        cr_assert(memcmp(&again[i], &d.out[i], 4) == 0, "%s case %d: element %d is %.9g and, cut, %.9g", t->name, index,
                  (int)i, (double)d.out[i], (double)again[i]);
    }
    free(again);
    attention_free(&d);
}

Test(kernels, attention_by_global_head_in_any_range, .timeout = 120) {
    static const attention_case cases[] = {
        {9, 3, 0, 9, 64, 64, 96, 5, SHEAF_F16, SHEAF_F16, 0, 0, false, false},
        {4, 3, 5, 9, 64, 64, 200, 1, SHEAF_F16, SHEAF_F16, 0, 0, false, true},
        {5, 3, 0, 9, 64, 64, 300, 40, SHEAF_F16, SHEAF_F32, 0, 0, false, true},
        {2, 1, 3, 8, 128, 128, 257, 3, SHEAF_F32, SHEAF_F32, 0, 0, true, false},
        {3, 2, 1, 6, 32, 32, 33, 7, SHEAF_F32, SHEAF_F16, 0, 8.0f, false, false},
        {6, 2, 6, 12, 96, 64, 70, 4, SHEAF_BF16, SHEAF_F16, 0, 8.0f, true, true},
        {2, 2, 0, 2, 80, 80, 65, 9, SHEAF_F16, SHEAF_F16, 30.0f, 0, false, true},
        {2, 2, 0, 2, 256, 256, 130, 2, SHEAF_Q8_0, SHEAF_F16, 0, 0, false, false},
        {1, 1, 0, 1, 20, 12, 17, 3, SHEAF_F32, SHEAF_F16, 0, 0, false, true},
        {8, 8, 8, 32, 64, 64, 64, 6, SHEAF_F16, SHEAF_F64, 0, 0, false, false},
        {1, 1, 0, 1, 576, 512, 90, 5, SHEAF_F16, SHEAF_F16, 0, 0, false, true},
    };
    state = 6;
    FOR_LEVELS(t) {
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_attention(t, &cases[i], (int)i);
    }
}

Test(kernels, soft_cap_leaves_hidden_positions_hidden, .timeout = 120) {
    state = 7;
    FOR_LEVELS(t) {
        for (int n_kv = 1; n_kv <= 70; n_kv++) {
            attention_case c = {2, 2,         0,         2,     32, 32,    n_kv + n_kv / 3 + 1,
                                3, SHEAF_F16, SHEAF_F16, 50.0f, 0,  false, true};
            check_attention(t, &c, n_kv);
        }
    }
}

/* --- rows ------------------------------------------------------------------------------------------------- */

static void check_close(const cpu_kernels *t, const char *what, const float *got, const float *want, int n,
                        double bound) {
    for (int i = 0; i < n; i++) {
        double w = (double)want[i], g = (double)got[i];
        bool same = isnan(w) ? isnan(g) : isinf(w) ? g == w : fabs(g - w) <= bound * (1e-3 + fabs(w));
        cr_assert(same, "%s %s, n=%d: element %d is %.9g, want %.9g", t->name, what, n, i, g, w);
    }
}

enum { ROW = 700 };

static void check_rows(const cpu_kernels *t, const cpu_kernels *ref, int n, bool odd) {
    static float x[ROW], y[ROW], got[ROW], want[ROW];
    static const float special[] = {0.0f,    -0.0f, INFINITY, -INFINITY, NAN,   100.0f,
                                    -100.0f, 88.0f, -88.0f,   1e-20f,    20.0f, -20.0f};
    for (int i = 0; i < n; i++) {
        x[i] = odd && i % 5 == 0 ? special[below(12)] : 4.0f * normal();
        y[i] = normal();
    }
    t->add(got, x, y, n), ref->add(want, x, y, n);
    check_close(t, "add", got, want, n, 0);
    t->mul(got, x, y, n), ref->mul(want, x, y, n);
    check_close(t, "mul", got, want, n, 0);
    t->scale(got, x, 1.7f, 0.3f, n), ref->scale(want, x, 1.7f, 0.3f, n);
    check_close(t, "scale", got, want, n, 0);
    for (int kind = 0; kind < SHEAF_GLU_SWIGLU_OAI; kind++) {
        t->glu(got, x, y, n, (sheaf_glu)kind), ref->glu(want, x, y, n, (sheaf_glu)kind);
        check_close(t, "glu", got, want, n, 2e-6);
    }
    for (int kind = 0; kind < SHEAF_UNARY_COUNT; kind++) {
        t->unary(got, x, n, (sheaf_unary)kind), ref->unary(want, x, n, (sheaf_unary)kind);
        check_close(t, "unary", got, want, n, 2e-6);
    }
    t->rms_norm(got, x, y, n, 1e-5f), ref->rms_norm(want, x, y, n, 1e-5f);
    check_close(t, "rms_norm", got, want, n, 1e-6);
    t->rms_norm(got, x, NULL, n, 1e-5f), ref->rms_norm(want, x, NULL, n, 1e-5f);
    check_close(t, "rms_norm without weight", got, want, n, 1e-6);
    double *a = malloc((size_t)n * sizeof *a), *b = malloc((size_t)n * sizeof *b);
    for (int64_t j = 0; j < n; j++) a[j] = (double)x[j] / 3, b[j] = (double)y[j] / 7;
    t->sum_f64(got, a, b, NULL, n), ref->sum_f64(want, a, b, NULL, n);
    check_close(t, "sum_f64", got, want, n, 0);
    t->sum_f64(got, a, b, x, n), ref->sum_f64(want, a, b, x, n);
    check_close(t, "sum_f64 with a residual", got, want, n, 0);
    free(b);
    free(a);
    if (odd) return;
    for (int i = 0; i < n; i += 3) y[i] = -INFINITY;
    t->soft_max(got, x, y, 0.5f, 2.0f, n), ref->soft_max(want, x, y, 0.5f, 2.0f, n);
    check_close(t, "soft_max", got, want, n, 2e-6);
    t->soft_max(got, x, NULL, 0.5f, 2.0f, n), ref->soft_max(want, x, NULL, 0.5f, 2.0f, n);
    check_close(t, "soft_max without mask", got, want, n, 2e-6);
}

Test(kernels, rows_agree_with_the_portable_ones, .timeout = 120) {
    state = 8;
    const cpu_kernels *ref = cpu_kernels_get(CPU_LEVEL_PORTABLE);
    FOR_LEVELS(t) {
        for (int n = 1; n <= ROW; n += n < 70 ? 1 : 97) {
            check_rows(t, ref, n, false);
            check_rows(t, ref, n, true);
        }
    }
}

/* Every angle within half an ulp of an f32 in [-1, 1] of libm's, which is beyond what f32 keeps; the rest as libm. */
Test(kernels, rotations_are_cosines_and_sines, .timeout = 60) {
    enum { N = 203 };
    static double angle[N];
    static float got[2 * N];
    static const double scales[] = {1e-9, 1, 50, 1e4, 9.9e5, 3e6, 1e18};
    state = 9;
    FOR_LEVELS(t) {
        for (size_t k = 0; k < sizeof scales / sizeof *scales; k++) {
            for (int i = 0; i < N; i++) angle[i] = (double)normal() * scales[k];
            for (int i = 0; i < 16; i++) angle[i] = (i - 8) * 1.57079632679489661923 / 2; /* the borders of a quarter */
            for (int n = 0; n <= N; n += n < 20 ? 1 : 61) {
                got[2 * n < 2 * N ? 2 * n : 0] = 777.0f;
                t->rotation(got, angle, 1.5, n);
                cr_assert(n == 0 || n == N || got[2 * n] == 777.0f, "%s: wrote past %d angles", t->name, n);
                for (int i = 0; i < n; i++) {
                    double c = fabs(got[2 * i] - 1.5 * cos(angle[i])), s = fabs(got[2 * i + 1] - 1.5 * sin(angle[i]));
                    cr_assert(c < 9e-8 && s < 9e-8, "%s: angle %.17g is off by %g and %g", t->name, angle[i], c, s);
                }
            }
        }
        angle[3] = NAN;
        t->rotation(got, angle, 1.0, N);
        cr_assert(isnan(got[6]) && isnan(got[7]) && !isnan(got[8]), "%s: a NaN is not kept where it is", t->name);
    }
}

Test(kernels, a_level_is_named_or_refused, .timeout = 30) {
    cpu_level l;
    cr_assert(cpu_level_from_name("portable", &l) == SHEAF_OK && l == CPU_LEVEL_PORTABLE);
    cr_assert_eq(cpu_level_from_name("sse9", &l), SHEAF_E_ARGUMENT);
    cr_assert(strstr(sheaf_error(), "sse9") != NULL, "text is: %s", sheaf_error());
    for (int i = 0; i < CPU_LEVEL_COUNT; i++) {
        sheaf_status s = cpu_level_from_name(cpu_level_name((cpu_level)i), &l);
        cr_assert_eq(s == SHEAF_OK, cpu_kernels_get((cpu_level)i) != NULL, "level %d: %s", i, sheaf_status_name(s));
    }
}
