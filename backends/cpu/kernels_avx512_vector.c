/* Row operations, AVX-512: activations to 8 bits, norms, softmax, elementwise functions, sums of addends.
 * Tails are masked lanes of the same steps, and what crosses lanes does so in one fixed tree. */
#include "backends/cpu/kernels_angles.h"
#include "backends/cpu/kernels_avx512.h"

#include <float.h>

/* --- activations ------------------------------------------------------------------------------------- */

/* Each float of x by its block's inverse scale, rounded to nearest even, as 16 bytes. */
INLINE __m128i to_bytes(__m512 x, __m512 inverse, __mmask16 keep) {
    return _mm512_maskz_cvtsepi32_epi8(keep, _mm512_cvtps_epi32(_mm512_mul_ps(x, inverse)));
}

INLINE int32_t sum_bytes(__m128i q) {
    __m128i s = _mm_sad_epu8(_mm_xor_si128(q, _mm_set1_epi8((char)0x80)), _mm_setzero_si128());
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_unpackhi_epi64(s, s))) - 16 * 128;
}

static void quantize_q8(const float *x, void *column, int64_t k) {
    char *c = column;
    float *d = (float *)(c + cpu_act_scales_at(k)), *s = (float *)(c + cpu_act_sums_at(k));
    int32_t *n32 = (int32_t *)(c + cpu_act_n32_at(k)), *n16 = (int32_t *)(c + cpu_act_n16_at(k));
    for (int64_t b = 0; b < k / 32; b++, x += 32, c += 32) {
        __m512 x0 = _mm512_loadu_ps(x), x1 = _mm512_loadu_ps(x + 16);
        float amax = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(x0), _mm512_abs_ps(x1)));
        if (_mm512_cmp_ps_mask(x0, x1, _CMP_UNORD_Q)) amax = NAN;
        float scale = amax / 127.0f, inverse = 127.0f / amax;
        bool usable = inverse <= FLT_MAX && amax <= FLT_MAX; /* false for zero, what is nearly so, inf and NaN */
        if (!usable && amax < 1.0f) scale = 0.0f;
        __mmask16 keep = usable ? 0xffff : 0;
        __m128i q0 = to_bytes(x0, _mm512_set1_ps(inverse), keep), q1 = to_bytes(x1, _mm512_set1_ps(inverse), keep);
        _mm_storeu_si128((__m128i *)c, q0);
        _mm_storeu_si128((__m128i *)(c + 16), q1);
        int32_t a = sum_bytes(q0), e = sum_bytes(q1);
        d[b] = scale;
        s[b] = scale * (float)(a + e);
        n32[b] = -(a + e);
        n16[2 * b] = -a;
        n16[2 * b + 1] = -e;
    }
}

/* --- elementwise --------------------------------------------------------------------------------------- */

#define EACH(n, ...)                                                                                                   \
    for (int64_t i = 0; i < (n); i += 16) {                                                                            \
        const __mmask16 some = mask16((n)-i);                                                                          \
        __VA_ARGS__                                                                                                    \
    }
#define LOAD(p)     _mm512_maskz_loadu_ps(some, (p) + i)
#define STORE(p, v) _mm512_mask_storeu_ps((p) + i, some, (v))

static void add(float *out, const float *x, const float *y, int64_t n) {
    EACH(n, STORE(out, _mm512_add_ps(LOAD(x), LOAD(y)));)
}

static void mul(float *out, const float *x, const float *y, int64_t n) {
    EACH(n, STORE(out, _mm512_mul_ps(LOAD(x), LOAD(y)));)
}

static void scale(float *out, const float *x, float factor, float bias, int64_t n) {
    EACH(n, STORE(out, _mm512_add_ps(_mm512_mul_ps(LOAD(x), _mm512_set1_ps(factor)), _mm512_set1_ps(bias)));)
}

INLINE __m512 sigmoid16(__m512 x) {
    const __m512 one = _mm512_set1_ps(1.0f);
    return _mm512_div_ps(one, _mm512_add_ps(one, exp16(_mm512_sub_ps(_mm512_setzero_ps(), x))));
}

INLINE __m512 silu16(__m512 x) {
    const __m512 one = _mm512_set1_ps(1.0f);
    return _mm512_div_ps(x, _mm512_add_ps(one, exp16(_mm512_sub_ps(_mm512_setzero_ps(), x))));
}

/* (1 + tanh(u))/2 is 1/(1 + e^-2u), without the cancellation where u is negative. */
INLINE __m512 gelu16(__m512 x) {
    const __m512 one = _mm512_set1_ps(1.0f);
    __m512 cube = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_set1_ps(0.044715f), x), x, one);
    __m512 u = _mm512_mul_ps(_mm512_mul_ps(_mm512_set1_ps(-2.0f * 0.79788456080286535588f), x), cube);
    return _mm512_div_ps(x, _mm512_add_ps(one, exp16(u)));
}

/* NaN stays: max returns its second operand then. */
INLINE __m512 relu16(__m512 x) { return _mm512_max_ps(_mm512_setzero_ps(), x); }

static void glu(float *out, const float *gate, const float *up, int64_t n, sheaf_glu kind) {
    switch (kind) {
    case SHEAF_GLU_GEGLU: EACH(n, STORE(out, _mm512_mul_ps(gelu16(LOAD(gate)), LOAD(up)));) break;
    case SHEAF_GLU_REGLU: EACH(n, STORE(out, _mm512_mul_ps(relu16(LOAD(gate)), LOAD(up)));) break;
    default: EACH(n, STORE(out, _mm512_mul_ps(silu16(LOAD(gate)), LOAD(up)));) break;
    }
}

static void unary(float *out, const float *x, int64_t n, sheaf_unary kind) {
    switch (kind) {
    case SHEAF_UNARY_SILU: EACH(n, STORE(out, silu16(LOAD(x)));) break;
    case SHEAF_UNARY_GELU: EACH(n, STORE(out, gelu16(LOAD(x)));) break;
    case SHEAF_UNARY_RELU: EACH(n, STORE(out, relu16(LOAD(x)));) break;
    case SHEAF_UNARY_SIGMOID: EACH(n, STORE(out, sigmoid16(LOAD(x)));) break;
    case SHEAF_UNARY_TANH: EACH(n, STORE(out, tanh16(LOAD(x)));) break;
    case SHEAF_UNARY_EXP: EACH(n, STORE(out, exp16(LOAD(x)));) break;
    default: portable_unary(out, x, n, kind); break;
    }
}

/* --- rows that are summed -------------------------------------------------------------------------------- */

static void rms_norm(float *out, const float *x, const float *weight, int64_t n, float eps) {
    __m512d lo = _mm512_setzero_pd(), hi = lo;
    EACH(n, {
        __m512 v = LOAD(x);
        __m512d a = low_f64(v), b = high_f64(v);
        lo = _mm512_fmadd_pd(a, a, lo);
        hi = _mm512_fmadd_pd(b, b, hi);
    })
    double sum = sum_lanes_f64(_mm512_add_pd(lo, hi));
    const __m512 factor = _mm512_set1_ps((float)(1.0 / sqrt(sum / (double)n + (double)eps)));
    if (weight) {
        EACH(n, STORE(out, _mm512_mul_ps(_mm512_mul_ps(LOAD(x), factor), LOAD(weight)));)
    } else {
        EACH(n, STORE(out, _mm512_mul_ps(LOAD(x), factor));)
    }
}

static void sum_f64(float *out, const double *x, const double *y, const float *residual, int64_t n) {
    EACH(n, {
        const __mmask8 lo = (__mmask8)some, hi = (__mmask8)(some >> 8);
        __m512d a = _mm512_add_pd(_mm512_maskz_loadu_pd(lo, x + i), _mm512_maskz_loadu_pd(lo, y + i));
        __m512d b = _mm512_add_pd(_mm512_maskz_loadu_pd(hi, x + i + 8), _mm512_maskz_loadu_pd(hi, y + i + 8));
        __m512 sum = _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(a)), _mm512_cvtpd_ps(b), 1);
        if (residual) sum = _mm512_add_ps(sum, LOAD(residual));
        STORE(out, sum);
    })
}

static void soft_max(float *out, const float *x, const float *mask, float factor, float slope, int64_t n) {
    const __m512 hidden = _mm512_set1_ps(-INFINITY);
    __m512 top = hidden;
    __mmask16 nan = 0;
    EACH(n, {
        __m512 v = _mm512_mul_ps(LOAD(x), _mm512_set1_ps(factor));
        if (mask) v = _mm512_add_ps(v, _mm512_mul_ps(LOAD(mask), _mm512_set1_ps(slope)));
        STORE(out, v);
        nan |= _mm512_mask_cmp_ps_mask(some, v, v, _CMP_UNORD_Q);
        top = _mm512_mask_max_ps(top, some, top, v);
    })
    float best = nan ? NAN : _mm512_reduce_max_ps(top);
    if (best == -INFINITY) {
        memset(out, 0, (size_t)n * sizeof *out);
        return;
    }
    __m512d lo = _mm512_setzero_pd(), hi = lo;
    EACH(n, {
        __m512 p = _mm512_maskz_mov_ps(some, exp16(_mm512_sub_ps(LOAD(out), _mm512_set1_ps(best))));
        STORE(out, p);
        lo = _mm512_add_pd(lo, low_f64(p));
        hi = _mm512_add_pd(hi, high_f64(p));
    })
    const __m512 inverse = _mm512_set1_ps((float)(1.0 / sum_lanes_f64(_mm512_add_pd(lo, hi))));
    EACH(n, STORE(out, _mm512_mul_ps(LOAD(out), inverse));)
}

/* --- to f32 ------------------------------------------------------------------------------------------------ */

static void from_f16(const void *src, float *dst, int64_t n) {
    const uint16_t *h = src;
    EACH(n, STORE(dst, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(some, h + i)));)
}

static void from_bf16(const void *src, float *dst, int64_t n) {
    const uint16_t *h = src;
    EACH(n, {
        __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, h + i));
        STORE(dst, _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16)));
    })
}

void avx512_vectors(cpu_kernels *t) {
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
