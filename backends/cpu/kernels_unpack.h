/* Rows of quantized weights taken apart for the integer tiles: unsigned codes in element order, and one
 * f32 scale (and minimum) per group. Included by the AVX2 and AVX-512 files only; everything is static.
 *
 *     w[i] = d[g] * (code[i] - offset) + m[g]        g = i / group
 *
 * Scales go to d[g * stride], so that a tile can interleave those of its rows. */
#ifndef SHEAF_CPU_KERNELS_UNPACK_H
#define SHEAF_CPU_KERNELS_UNPACK_H

#include "backends/cpu/kernels_common.h"

#include <immintrin.h>

/* src holds n codes (a multiple of the type's block); writes n bytes and n/group scales. */
typedef void (*unpack_fn)(const uint8_t *src, int64_t n, uint8_t *code, float *d, float *m, int stride);

typedef struct int_type {
    sheaf_type type;
    unpack_fn unpack;
    int32_t shift; /* offset = 1 << shift; 0: none */
    int32_t group; /* elements per scale: 32 or 16 */
    bool min;      /* m is not zero */
} int_type;

static inline float half_at(const void *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return _cvtsh_ss(h);
}

/* 16 bytes of nibbles -> low ones, then high ones */
static inline __m256i nibbles(const uint8_t *p) {
    __m128i x = _mm_loadu_si128((const __m128i *)p);
    __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(x), _mm_srli_epi16(x, 4), 1);
    return _mm256_and_si256(both, _mm256_set1_epi8(15));
}

/* 32 bits -> 32 bytes of `value` or 0 */
static inline __m256i spread_bits(uint32_t bits, int value) {
    const __m256i pick = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i one = _mm256_set1_epi64x((int64_t)0x8040201008040201);
    __m256i x = _mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), pick);
    __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(x, one), one);
    return _mm256_and_si256(set, _mm256_set1_epi8((char)value));
}

static inline void put(uint8_t *code, __m256i x) { _mm256_storeu_si256((__m256i *)code, x); }

static void unpack_q4_0(const uint8_t *src, int64_t n, uint8_t *code, float *d, float *m, int stride) {
    (void)m;
    for (; n > 0; n -= 32, src += 18, code += 32, d += stride) {
        put(code, nibbles(src + 2));
        *d = half_at(src);
    }
}

static void unpack_q4_1(const uint8_t *src, int64_t n, uint8_t *code, float *d, float *m, int stride) {
    for (; n > 0; n -= 32, src += 20, code += 32, d += stride, m += stride) {
        put(code, nibbles(src + 4));
        *d = half_at(src);
        *m = half_at(src + 2);
    }
}

static void unpack_q5_0(const uint8_t *src, int64_t n, uint8_t *code, float *d, float *m, int stride) {
    (void)m;
    for (; n > 0; n -= 32, src += 22, code += 32, d += stride) {
        put(code, _mm256_or_si256(nibbles(src + 6), spread_bits(word_at(src + 2), 16)));
        *d = half_at(src);
    }
}

static void unpack_q5_1(const uint8_t *src, int64_t n, uint8_t *code, float *d, float *m, int stride) {
    for (; n > 0; n -= 32, src += 24, code += 32, d += stride, m += stride) {
        put(code, _mm256_or_si256(nibbles(src + 8), spread_bits(word_at(src + 4), 16)));
        *d = half_at(src);
        *m = half_at(src + 2);
    }
}

static void unpack_q8_0(const uint8_t *src, int64_t n, uint8_t *code, float *d, float *m, int stride) {
    (void)m;
    for (; n > 0; n -= 32, src += 34, code += 32, d += stride) {
        __m256i x = _mm256_loadu_si256((const __m256i *)(src + 2));
        put(code, _mm256_xor_si256(x, _mm256_set1_epi8((char)0x80)));
        *d = half_at(src);
    }
}

/* The uneven 4-bit values, 128 added. */
static inline __m256i iq4_codes(__m256i q) {
    const __m256i table =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(1, 24, 45, 63, 79, 93, 106, 118, (char)129, (char)141, (char)153,
                                                  (char)166, (char)181, (char)197, (char)217, (char)241));
    return _mm256_shuffle_epi8(table, q);
}

static void unpack_iq4_nl(const uint8_t *src, int64_t n, uint8_t *code, float *d, float *m, int stride) {
    (void)m;
    for (; n > 0; n -= 32, src += 18, code += 32, d += stride) {
        put(code, iq4_codes(nibbles(src + 2)));
        *d = half_at(src);
    }
}

static void unpack_iq4_xs(const uint8_t *src, int64_t n, uint8_t *code, float *d, float *m, int stride) {
    (void)m;
    for (; n > 0; n -= 256, src += 136) {
        float super = half_at(src);
        unsigned high = src[2] | (unsigned)src[3] << 8;
        for (int g = 0; g < 8; g++, code += 32, d += stride) {
            int scale = (src[4 + g / 2] >> (g % 2 * 4) & 15) | (int)(high >> (2 * g) & 3) << 4;
            put(code, iq4_codes(nibbles(src + 8 + 16 * g)));
            *d = super * (float)(scale - 32);
        }
    }
}

static inline void k_scales(const uint8_t *src, float *d, float *m, int stride) {
    float super = half_at(src), super_min = half_at(src + 2);
    uint64_t scales, mins;
    k_pairs(src + 4, &scales, &mins);
    for (int g = 0; g < 8; g++, scales >>= 8, mins >>= 8) {
        d[g * stride] = super * (float)(scales & 255);
        m[g * stride] = -(super_min * (float)(mins & 255));
    }
}

static void unpack_q4_k(const uint8_t *src, int64_t n, uint8_t *code, float *d, float *m, int stride) {
    const __m256i low = _mm256_set1_epi8(15);
    for (; n > 0; n -= 256, src += 144, code += 256, d += 8 * stride, m += 8 * stride) {
        k_scales(src, d, m, stride);
        for (int j = 0; j < 4; j++) {
            __m256i x = _mm256_loadu_si256((const __m256i *)(src + 16 + 32 * j));
            put(code + 64 * j, _mm256_and_si256(x, low));
            put(code + 64 * j + 32, _mm256_and_si256(_mm256_srli_epi16(x, 4), low));
        }
    }
}

static void unpack_q5_k(const uint8_t *src, int64_t n, uint8_t *code, float *d, float *m, int stride) {
    const __m256i low = _mm256_set1_epi8(15), fifth = _mm256_set1_epi8(16), one = _mm256_set1_epi8(1);
    for (; n > 0; n -= 256, src += 176, code += 256, d += 8 * stride, m += 8 * stride) {
        __m256i high = _mm256_loadu_si256((const __m256i *)(src + 16));
        k_scales(src, d, m, stride);
        for (int j = 0; j < 4; j++) {
            __m256i x = _mm256_loadu_si256((const __m256i *)(src + 48 + 32 * j));
            __m256i h0 = _mm256_slli_epi16(_mm256_and_si256(high, one), 4);
            __m256i h1 = _mm256_slli_epi16(_mm256_and_si256(_mm256_srli_epi16(high, 1), one), 4);
            put(code + 64 * j, _mm256_or_si256(_mm256_and_si256(x, low), _mm256_and_si256(h0, fifth)));
            x = _mm256_and_si256(_mm256_srli_epi16(x, 4), low);
            put(code + 64 * j + 32, _mm256_or_si256(x, _mm256_and_si256(h1, fifth)));
            high = _mm256_srli_epi16(high, 2);
        }
    }
}

static void unpack_q6_k(const uint8_t *src, int64_t n, uint8_t *code, float *d, float *m, int stride) {
    const __m256i low = _mm256_set1_epi8(15), pair = _mm256_set1_epi8(0x30);
    (void)m;
    for (; n > 0; n -= 256, src += 210, d += 16 * stride) {
        float super = half_at(src + 208);
        for (int g = 0; g < 16; g++) d[g * stride] = super * (float)(int8_t)src[192 + g];
        for (int half = 0; half < 2; half++, code += 128) {
            __m256i x0 = _mm256_loadu_si256((const __m256i *)(src + 64 * half));
            __m256i x1 = _mm256_loadu_si256((const __m256i *)(src + 64 * half + 32));
            __m256i h = _mm256_loadu_si256((const __m256i *)(src + 128 + 32 * half));
            __m256i h0 = _mm256_and_si256(_mm256_slli_epi16(h, 4), pair);
            __m256i h1 = _mm256_and_si256(_mm256_slli_epi16(h, 2), pair);
            __m256i h2 = _mm256_and_si256(h, pair);
            __m256i h3 = _mm256_and_si256(_mm256_srli_epi16(h, 2), pair);
            put(code, _mm256_or_si256(_mm256_and_si256(x0, low), h0));
            put(code + 32, _mm256_or_si256(_mm256_and_si256(x1, low), h1));
            put(code + 64, _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(x0, 4), low), h2));
            put(code + 96, _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(x1, 4), low), h3));
        }
    }
}

/* Two-bit codes of 128 elements in 32 bytes, as q2_k and q3_k keep them. */
static inline __m256i two_bits(__m256i x, int part) {
    return _mm256_and_si256(_mm256_srl_epi16(x, _mm_cvtsi32_si128(2 * part)), _mm256_set1_epi8(3));
}

static void unpack_q2_k(const uint8_t *src, int64_t n, uint8_t *code, float *d, float *m, int stride) {
    for (; n > 0; n -= 256, src += 84, code += 256, d += 16 * stride, m += 16 * stride) {
        float super = half_at(src + 80), super_min = half_at(src + 82);
        for (int g = 0; g < 16; g++) {
            d[g * stride] = super * (float)(src[g] & 15);
            m[g * stride] = -(super_min * (float)(src[g] >> 4));
        }
        for (int p = 0; p < 8; p++) {
            __m256i x = _mm256_loadu_si256((const __m256i *)(src + 16 + 32 * (p / 4)));
            put(code + 32 * p, two_bits(x, p % 4));
        }
    }
}

static void unpack_q3_k(const uint8_t *src, int64_t n, uint8_t *code, float *d, float *m, int stride) {
    const __m256i one = _mm256_set1_epi8(1);
    (void)m;
    for (; n > 0; n -= 256, src += 110, code += 256, d += 16 * stride) {
        const uint8_t *s = src + 96;
        float super = half_at(src + 108);
        for (int g = 0; g < 16; g++) {
            int scale = (g < 8 ? s[g] & 15 : s[g - 8] >> 4) | (s[8 + g % 4] >> (g / 4 * 2) & 3) << 4;
            d[g * stride] = super * (float)(scale - 32);
        }
        __m256i high = _mm256_loadu_si256((const __m256i *)src);
        for (int p = 0; p < 8; p++) {
            __m256i x = _mm256_loadu_si256((const __m256i *)(src + 32 + 32 * (p / 4)));
            __m256i h = _mm256_and_si256(_mm256_srl_epi16(high, _mm_cvtsi32_si128(p)), one);
            put(code + 32 * p, _mm256_or_si256(two_bits(x, p % 4), _mm256_slli_epi16(h, 2)));
        }
    }
}

/* 2^(e-127), halved because the fp4 values are kept doubled. */
static inline float e8m0_half(uint8_t e) {
    uint32_t bits = e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static void unpack_mxfp4(const uint8_t *src, int64_t n, uint8_t *code, float *d, float *m, int stride) {
    const __m256i table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4)); /* doubled fp4, 16 added */
    (void)m;
    for (; n > 0; n -= 32, src += 17, code += 32, d += stride) {
        put(code, _mm256_shuffle_epi8(table, nibbles(src + 1)));
        *d = e8m0_half(src[0]);
    }
}

#define INT_TYPES(X)                                                                                                   \
    X(Q4_0, unpack_q4_0, 3, 32, false)                                                                                 \
    X(Q4_1, unpack_q4_1, 0, 32, true)                                                                                  \
    X(Q5_0, unpack_q5_0, 4, 32, false)                                                                                 \
    X(Q5_1, unpack_q5_1, 0, 32, true)                                                                                  \
    X(Q8_0, unpack_q8_0, 7, 32, false)                                                                                 \
    X(IQ4_NL, unpack_iq4_nl, 7, 32, false)                                                                             \
    X(MXFP4, unpack_mxfp4, 4, 32, false)                                                                               \
    X(Q2_K, unpack_q2_k, 0, 16, true)                                                                                  \
    X(Q3_K, unpack_q3_k, 2, 16, false)                                                                                 \
    X(Q4_K, unpack_q4_k, 0, 32, true)                                                                                  \
    X(Q5_K, unpack_q5_k, 0, 32, true)                                                                                  \
    X(Q6_K, unpack_q6_k, 5, 16, false)                                                                                 \
    X(IQ4_XS, unpack_iq4_xs, 7, 32, false)

#endif
