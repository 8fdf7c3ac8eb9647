/* Row operations, AVX2: activations to 8 bits, norms, softmax, elementwise functions, sums of addends.
 * What crosses lanes does so in one fixed tree; tails are masked lanes of the same steps. */
#include "backends/cpu/kernels_angles.h"
#include "backends/cpu/kernels_avx2.h"

#include <float.h>

/* --- activations ------------------------------------------------------------------------------------- */

INLINE __m256i to_ints(__m256 x, __m256 inverse) { return _mm256_cvtps_epi32(_mm256_mul_ps(x, inverse)); }

INLINE int32_t sum_bytes(__m128i q) {
    __m128i s = _mm_sad_epu8(_mm_xor_si128(q, _mm_set1_epi8((char)0x80)), _mm_setzero_si128());
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_unpackhi_epi64(s, s))) - 16 * 128;
}

static void quantize_q8(const float *x, void *column, int64_t k) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    char *c = column;
    float *d = (float *)(c + cpu_act_scales_at(k)), *s = (float *)(c + cpu_act_sums_at(k));
    int32_t *n32 = (int32_t *)(c + cpu_act_n32_at(k)), *n16 = (int32_t *)(c + cpu_act_n16_at(k));
    for (int64_t b = 0; b < k / 32; b++, x += 32, c += 32) {
        __m256 v[4], nan = _mm256_setzero_ps(), top = _mm256_setzero_ps();
        UNROLL for (int i = 0; i < 4; i++) {
            v[i] = _mm256_loadu_ps(x + 8 * i);
            nan = _mm256_or_ps(nan, _mm256_cmp_ps(v[i], v[i], _CMP_UNORD_Q));
            top = _mm256_max_ps(top, _mm256_andnot_ps(sign, v[i]));
        }
        float amax = _mm256_movemask_ps(nan) ? NAN : max_lanes(top);
        float scale = amax / 127.0f, inverse = 127.0f / amax;
        bool usable = inverse <= FLT_MAX && amax <= FLT_MAX; /* false for zero, what is nearly so, inf and NaN */
        if (!usable && amax < 1.0f) scale = 0.0f;
        __m256 factor = _mm256_set1_ps(usable ? inverse : 0.0f);
        __m256i a = _mm256_packs_epi32(to_ints(v[0], factor), to_ints(v[1], factor));
        __m256i e = _mm256_packs_epi32(to_ints(v[2], factor), to_ints(v[3], factor));
        __m256i q = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, e), order);
        if (!usable) q = _mm256_setzero_si256();
        _mm256_storeu_si256((__m256i *)c, q);
        int32_t s0 = sum_bytes(_mm256_castsi256_si128(q)), s1 = sum_bytes(_mm256_extracti128_si256(q, 1));
        d[b] = scale;
        s[b] = scale * (float)(s0 + s1);
        n32[b] = -(s0 + s1);
        n16[2 * b] = -s0;
        n16[2 * b + 1] = -s1;
    }
}

/* --- elementwise --------------------------------------------------------------------------------------- */

/* The body for every eight elements; the last, partial eight go through masked loads and stores. */
#define EACH(n, ...)                                                                                                   \
    for (int64_t i = 0; i < (n); i += 8) {                                                                             \
        const __m256i some = mask8((n)-i);                                                                             \
        __VA_ARGS__                                                                                                    \
    }
#define LOAD(p)     _mm256_maskload_ps((p) + i, some)
#define STORE(p, v) _mm256_maskstore_ps((p) + i, some, (v))

static void add(float *out, const float *x, const float *y, int64_t n) {
    EACH(n, STORE(out, _mm256_add_ps(LOAD(x), LOAD(y)));)
}

static void mul(float *out, const float *x, const float *y, int64_t n) {
    EACH(n, STORE(out, _mm256_mul_ps(LOAD(x), LOAD(y)));)
}

static void scale(float *out, const float *x, float factor, float bias, int64_t n) {
    EACH(n, STORE(out, _mm256_add_ps(_mm256_mul_ps(LOAD(x), _mm256_set1_ps(factor)), _mm256_set1_ps(bias)));)
}

INLINE __m256 over_one_plus_exp(__m256 x, __m256 u) {
    return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), exp8(u)));
}

INLINE __m256 negated(__m256 x) { return _mm256_xor_ps(x, _mm256_set1_ps(-0.0f)); }
INLINE __m256 sigmoid8(__m256 x) { return over_one_plus_exp(_mm256_set1_ps(1.0f), negated(x)); }
INLINE __m256 silu8(__m256 x) { return over_one_plus_exp(x, negated(x)); }

/* (1 + tanh(u))/2 is 1/(1 + e^-2u), without the cancellation where u is negative. */
INLINE __m256 gelu8(__m256 x) {
    __m256 cube = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_set1_ps(0.044715f), x), x, _mm256_set1_ps(1.0f));
    __m256 u = _mm256_mul_ps(_mm256_mul_ps(_mm256_set1_ps(-2.0f * 0.79788456080286535588f), x), cube);
    return over_one_plus_exp(x, u);
}

/* NaN stays: max returns its second operand then. */
INLINE __m256 relu8(__m256 x) { return _mm256_max_ps(_mm256_setzero_ps(), x); }

static void glu(float *out, const float *gate, const float *up, int64_t n, sheaf_glu kind) {
    switch (kind) {
    case SHEAF_GLU_GEGLU: EACH(n, STORE(out, _mm256_mul_ps(gelu8(LOAD(gate)), LOAD(up)));) break;
    case SHEAF_GLU_REGLU: EACH(n, STORE(out, _mm256_mul_ps(relu8(LOAD(gate)), LOAD(up)));) break;
    default: EACH(n, STORE(out, _mm256_mul_ps(silu8(LOAD(gate)), LOAD(up)));) break;
    }
}

static void unary(float *out, const float *x, int64_t n, sheaf_unary kind) {
    switch (kind) {
    case SHEAF_UNARY_SILU: EACH(n, STORE(out, silu8(LOAD(x)));) break;
    case SHEAF_UNARY_GELU: EACH(n, STORE(out, gelu8(LOAD(x)));) break;
    case SHEAF_UNARY_RELU: EACH(n, STORE(out, relu8(LOAD(x)));) break;
    case SHEAF_UNARY_SIGMOID: EACH(n, STORE(out, sigmoid8(LOAD(x)));) break;
    case SHEAF_UNARY_TANH: EACH(n, STORE(out, tanh8(LOAD(x)));) break;
    case SHEAF_UNARY_EXP: EACH(n, STORE(out, exp8(LOAD(x)));) break;
    default: portable_unary(out, x, n, kind); break;
    }
}

/* --- rows that are summed -------------------------------------------------------------------------------- */

static void rms_norm(float *out, const float *x, const float *weight, int64_t n, float eps) {
    __m256d lo = _mm256_setzero_pd(), hi = lo;
    EACH(n, {
        __m256 v = LOAD(x);
        __m256d a = low_f64(v), b = high_f64(v);
        lo = _mm256_fmadd_pd(a, a, lo);
        hi = _mm256_fmadd_pd(b, b, hi);
    })
    double sum = sum_lanes_f64(_mm256_add_pd(lo, hi));
    const __m256 factor = _mm256_set1_ps((float)(1.0 / sqrt(sum / (double)n + (double)eps)));
    if (weight) {
        EACH(n, STORE(out, _mm256_mul_ps(_mm256_mul_ps(LOAD(x), factor), LOAD(weight)));)
    } else {
        EACH(n, STORE(out, _mm256_mul_ps(LOAD(x), factor));)
    }
}

static void sum_f64(float *out, const double *x, const double *y, const float *residual, int64_t n) {
    EACH(n, {
        const __m256i lo = _mm256_cvtepi32_epi64(_mm256_castsi256_si128(some));
        const __m256i hi = _mm256_cvtepi32_epi64(_mm256_extracti128_si256(some, 1));
        __m256d a = _mm256_add_pd(_mm256_maskload_pd(x + i, lo), _mm256_maskload_pd(y + i, lo));
        __m256d b = _mm256_add_pd(_mm256_maskload_pd(x + i + 4, hi), _mm256_maskload_pd(y + i + 4, hi));
        __m256 sum = _mm256_set_m128(_mm256_cvtpd_ps(b), _mm256_cvtpd_ps(a));
        if (residual) sum = _mm256_add_ps(sum, LOAD(residual));
        STORE(out, sum);
    })
}

static void soft_max(float *out, const float *x, const float *mask, float factor, float slope, int64_t n) {
    const __m256 hidden = _mm256_set1_ps(-INFINITY);
    __m256 top = hidden, nan = _mm256_setzero_ps();
    EACH(n, {
        __m256 v = _mm256_mul_ps(LOAD(x), _mm256_set1_ps(factor));
        if (mask) v = _mm256_add_ps(v, _mm256_mul_ps(LOAD(mask), _mm256_set1_ps(slope)));
        STORE(out, v);
        v = _mm256_blendv_ps(hidden, v, _mm256_castsi256_ps(some));
        nan = _mm256_or_ps(nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
        top = _mm256_max_ps(top, v);
    })
    float best = _mm256_movemask_ps(nan) ? NAN : max_lanes(top);
    if (best == -INFINITY) {
        memset(out, 0, (size_t)n * sizeof *out);
        return;
    }
    __m256d lo = _mm256_setzero_pd(), hi = lo;
    EACH(n, {
        __m256 p = _mm256_and_ps(exp8(_mm256_sub_ps(LOAD(out), _mm256_set1_ps(best))), _mm256_castsi256_ps(some));
        STORE(out, p);
        lo = _mm256_add_pd(lo, low_f64(p));
        hi = _mm256_add_pd(hi, high_f64(p));
    })
    const __m256 inverse = _mm256_set1_ps((float)(1.0 / sum_lanes_f64(_mm256_add_pd(lo, hi))));
    EACH(n, STORE(out, _mm256_mul_ps(LOAD(out), inverse));)
}

/* --- to f32 ------------------------------------------------------------------------------------------------ */

static void from_f16(const void *src, float *dst, int64_t n) {
    const uint16_t *h = src;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(h + i))));
    }
    for (; i < n; i++) dst[i] = _cvtsh_ss(h[i]);
}

static void from_bf16(const void *src, float *dst, int64_t n) {
    const uint16_t *h = src;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(h + i)));
        _mm256_storeu_si256((__m256i *)(dst + i), _mm256_slli_epi32(wide, 16));
    }
    for (; i < n; i++) dst[i] = sheaf_bf16_to_f32(h[i]);
}

void avx2_vectors(cpu_kernels *t) {
    t->quantize_q8 = quantize_q8;
    t->add = add;
    t->mul = mul;
    t->scale = scale;
    t->glu = glu;
    t->unary = unary;
    t->rms_norm = rms_norm;
    t->sum_f64 = sum_f64;
    t->rotation = rotation;
    t->soft_max = soft_max;
    t->to_float[SHEAF_F16] = from_f16;
    t->to_float[SHEAF_BF16] = from_bf16;
}
