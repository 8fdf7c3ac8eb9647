/* What the AVX2 kernel files share. Lanes are floats unless a name says otherwise. */
#ifndef SHEAF_CPU_KERNELS_AVX2_H
#define SHEAF_CPU_KERNELS_AVX2_H

#include "backends/cpu/kernels_common.h"

#include <immintrin.h>

/* All ones in the first n of eight lanes. */
INLINE __m256i mask8(int64_t n) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    int32_t count = n >= 8 ? 8 : n <= 0 ? 0 : (int32_t)n;
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane);
}

INLINE __m256d low_f64(__m256 x) { return _mm256_cvtps_pd(_mm256_castps256_ps128(x)); }
INLINE __m256d high_f64(__m256 x) { return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)); }

INLINE double sum_lanes_f64(__m256d y) {
    __m128d z = _mm_add_pd(_mm256_castpd256_pd128(y), _mm256_extractf128_pd(y, 1));
    return _mm_cvtsd_f64(_mm_add_sd(z, _mm_unpackhi_pd(z, z)));
}

INLINE float sum_lanes(__m256 y) {
    __m128 z = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    z = _mm_add_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_add_ss(z, _mm_movehdup_ps(z)));
}

INLINE float max_lanes(__m256 y) {
    __m128 z = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    z = _mm_max_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_max_ss(z, _mm_movehdup_ps(z)));
}

/* Eight rows of eight dwords -> eight columns. */
INLINE void transpose8(__m256i r[8]) {
    __m256i t[8];
    UNROLL for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    UNROLL for (int i = 0; i < 2; i++) { /* r[4i+j]: in each 128-bit lane l, column 4l+j of rows 4i..4i+3 */
        r[4 * i] = _mm256_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 1] = _mm256_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 2] = _mm256_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        r[4 * i + 3] = _mm256_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    UNROLL for (int j = 0; j < 4; j++) {
        t[j] = _mm256_permute2x128_si256(r[j], r[4 + j], 0x20);
        t[4 + j] = _mm256_permute2x128_si256(r[j], r[4 + j], 0x31);
    }
    UNROLL for (int i = 0; i < 8; i++) r[i] = t[i];
}

/* 2^n for whole n in -252..254, in two factors so that neither leaves the range of exponents. */
INLINE __m256 times_power(__m256 p, __m256 n) {
    __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1), rest = _mm256_sub_epi32(whole, half);
    const __m256i bias = _mm256_set1_epi32(127);
    __m256 a = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
    __m256 b = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
    return _mm256_mul_ps(_mm256_mul_ps(p, a), b);
}

/* e^x, about one ulp; NaN stays, overflow is inf, underflow goes through the denormals to zero. */
INLINE __m256 exp8(__m256 x) {
    __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504088896341f)), 8);
    n = _mm256_min_ps(_mm256_set1_ps(200.0f),
                      _mm256_max_ps(_mm256_set1_ps(-200.0f), n)); /* inf - inf below otherwise */
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
    /* past the ends of the range the reduced argument is meaningless: only its sign may matter */
    r = _mm256_min_ps(_mm256_set1_ps(1.0f), _mm256_max_ps(_mm256_set1_ps(-1.0f), r));
    __m256 p = _mm256_set1_ps(1.9875691500e-4f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.3981999507e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.3334519073e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.1665795894e-2f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.6666665459e-1f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(5.0000001201e-1f));
    p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), _mm256_add_ps(r, _mm256_set1_ps(1.0f)));
    __m256 e = times_power(p, n);
    return _mm256_blendv_ps(e, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

/* Odd polynomial near zero, 1 - 2/(e^2x + 1) elsewhere. */
INLINE __m256 tanh8(__m256 x) {
    const __m256 one = _mm256_set1_ps(1.0f), two = _mm256_set1_ps(2.0f), sign = _mm256_set1_ps(-0.0f);
    __m256 z = _mm256_mul_ps(x, x), p = _mm256_set1_ps(-5.70498872745e-3f);
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(2.06390887954e-2f));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(-5.37397155531e-2f));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(1.33314422036e-1f));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(-3.33332819422e-1f));
    __m256 small = _mm256_fmadd_ps(_mm256_mul_ps(p, z), x, x);
    __m256 size = _mm256_andnot_ps(sign, x);
    __m256 big = _mm256_sub_ps(one, _mm256_div_ps(two, _mm256_add_ps(exp8(_mm256_mul_ps(two, size)), one)));
    big = _mm256_or_ps(big, _mm256_and_ps(sign, x));
    return _mm256_blendv_ps(big, small, _mm256_cmp_ps(size, _mm256_set1_ps(0.625f), _CMP_LT_OQ));
}

/* kernels_avx2_tile.c */
void avx2_tiles(cpu_kernels *t);
/* The tiled matmul of any type; the row-by-row kernels hand over to it when columns are many. */
void avx2_mul_tiled(sheaf_type type, const cpu_mm *a, int64_t m0, int64_t m1, int64_t n0, int64_t n1);
/* kernels_avx2_rows.c */
void avx2_rows(cpu_kernels *t);
/* kernels_avx2_attention.c */
void avx2_attention(cpu_kernels *t);
/* kernels_avx2_vector.c */
void avx2_vectors(cpu_kernels *t);

#endif
