/* What the AVX-512 kernel files share. Lanes are floats unless a name says otherwise. */
#ifndef SHEAF_CPU_KERNELS_AVX512_H
#define SHEAF_CPU_KERNELS_AVX512_H

#include "backends/cpu/kernels_common.h"

#include <immintrin.h>

INLINE __mmask16 mask16(int64_t n) { return n >= 16 ? 0xffff : n <= 0 ? 0 : (__mmask16)((1u << n) - 1); }

INLINE __m512d low_f64(__m512 x) { return _mm512_cvtps_pd(_mm512_castps512_ps256(x)); }
INLINE __m512d high_f64(__m512 x) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)); }

/* Four vectors added up within each 128-bit lane: lane l of the result holds the four sums of their lanes l. */
INLINE __m512 fold4(__m512 a, __m512 b, __m512 c, __m512 d) {
    __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    __m512 lo = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd)));
    __m512 hi = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd)));
    return _mm512_add_ps(lo, hi);
}

INLINE double sum_lanes_f64(__m512d x) {
    __m256d y = _mm256_add_pd(_mm512_castpd512_pd256(x), _mm512_extractf64x4_pd(x, 1));
    __m128d z = _mm_add_pd(_mm256_castpd256_pd128(y), _mm256_extractf128_pd(y, 1));
    return _mm_cvtsd_f64(_mm_add_sd(z, _mm_unpackhi_pd(z, z)));
}

INLINE float sum_lanes(__m512 x) {
    __m256 y = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 z = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    z = _mm_add_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_add_ss(z, _mm_movehdup_ps(z)));
}

/* 16 rows of 16 dwords -> 16 columns. */
INLINE void transpose16(__m512i r[16]) {
    __m512i t[16];
    UNROLL for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    UNROLL for (int i = 0; i < 4; i++) { /* r[4i+j]: in each 128-bit lane l, column 4l+j of rows 4i..4i+3 */
        r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    UNROLL for (int j = 0; j < 4;
                j++) { /* gather lanes: t[j], t[4+j]: columns j and 8+j ..; t[8+j], t[12+j]: 4+j, 12+j */
        __m512i a = _mm512_shuffle_i32x4(r[j], r[4 + j], 0x88), b = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0x88);
        __m512i c = _mm512_shuffle_i32x4(r[j], r[4 + j], 0xdd), d = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0xdd);
        t[j] = _mm512_shuffle_i32x4(a, b, 0x88);
        t[8 + j] = _mm512_shuffle_i32x4(a, b, 0xdd);
        t[4 + j] = _mm512_shuffle_i32x4(c, d, 0x88);
        t[12 + j] = _mm512_shuffle_i32x4(c, d, 0xdd);
    }
    UNROLL for (int i = 0; i < 16; i++) r[i] = t[i];
}

/* e^x, about one ulp; NaN stays, overflow is inf, underflow goes through the denormals to zero. */
INLINE __m512 exp16(__m512 x) {
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504088896341f)), 8);
    n = _mm512_min_ps(_mm512_set1_ps(200.0f),
                      _mm512_max_ps(_mm512_set1_ps(-200.0f), n)); /* inf - inf below otherwise */
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    /* past the ends of the range the reduced argument is meaningless: only its sign may matter */
    r = _mm512_min_ps(_mm512_set1_ps(1.0f), _mm512_max_ps(_mm512_set1_ps(-1.0f), r));
    __m512 p = _mm512_set1_ps(1.9875691500e-4f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
    p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
    return _mm512_scalef_ps(p, n);
}

/* Odd polynomial near zero, 1 - 2/(e^2x + 1) elsewhere. */
INLINE __m512 tanh16(__m512 x) {
    const __m512 one = _mm512_set1_ps(1.0f), two = _mm512_set1_ps(2.0f);
    __m512 z = _mm512_mul_ps(x, x), p = _mm512_set1_ps(-5.70498872745e-3f);
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(2.06390887954e-2f));
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(-5.37397155531e-2f));
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(1.33314422036e-1f));
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(-3.33332819422e-1f));
    __m512 small = _mm512_fmadd_ps(_mm512_mul_ps(p, z), x, x);
    __m512 size = _mm512_abs_ps(x);
    __m512 big = _mm512_sub_ps(one, _mm512_div_ps(two, _mm512_add_ps(exp16(_mm512_mul_ps(two, size)), one)));
    __m512i sign = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32((int)0x80000000));
    big = _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(big), sign));
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(size, _mm512_set1_ps(0.625f), _CMP_LT_OQ), big, small);
}

/* kernels_avx512_tile.c */
void avx512_tiles(cpu_kernels *t);
/* The tiled matmul of any type; the row-by-row kernels hand over to it when columns are many. */
void avx512_mul_tiled(sheaf_type type, const cpu_mm *a, int64_t m0, int64_t m1, int64_t n0, int64_t n1);
/* kernels_avx512_rows.c */
void avx512_rows(cpu_kernels *t);
/* kernels_avx512_attention.c */
void avx512_attention(cpu_kernels *t);
/* kernels_avx512_vector.c */
void avx512_vectors(cpu_kernels *t);

#endif
