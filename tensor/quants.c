/* Reference conversions: half and brain floats, integers, blocks of 32 elements, and the table that
 * finds the converter of every type.
 *
 * These define what the bytes of a type mean; the kernels in backends/cpu/ are tested against them.
 * Slow on purpose: each block reads like its layout. Does not hold tuned code. */
#include "tensor/quants_internal.h"

#include <math.h>

enum { BLOCK = 32, HALF = BLOCK / 2 };

/* --- half and brain floats --- */

static uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

float sheaf_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 0x1f, fraction = h & 0x3ff;
    if (exponent == 0x1f) return float_of(sign | 0x7f800000 | fraction << 13);
    if (exponent != 0) return float_of(sign | (exponent + 112) << 23 | fraction << 13);
    /* Zero and subnormals are fraction * 2^-24, exactly. */
    return float_of(bits_of((float)fraction * 0x1p-24f) | sign);
}

uint16_t sheaf_f32_to_f16(float f) {
    uint32_t u = bits_of(f), sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffff;
    if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff)); /* stays a NaN */
    if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00);                            /* rounds to infinity */
    if (magnitude < 0x38800000) {
        /* Below the smallest normal half: adding 0.5 puts the rounding point at 2^-24. */
        return (uint16_t)(sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f)));
    }
    uint32_t odd = magnitude >> 13 & 1;
    return (uint16_t)(sign | ((magnitude - 0x38000000 + 0xfff + odd) >> 13));
}

float sheaf_bf16_to_f32(uint16_t h) { return float_of((uint32_t)h << 16); }

uint16_t sheaf_f32_to_bf16(float f) {
    uint32_t u = bits_of(f);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40); /* quiet, or rounding could make it infinite */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* --- plain numbers --- */

/* decode_NAME and encode_NAME for a type that is an array of `ctype`. */
#define PLAIN(name, ctype, to, from)                                                                                   \
    static void decode_##name(const uint8_t *src, float *dst, int64_t n) {                                             \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            ctype x;                                                                                                   \
            memcpy(&x, src + (size_t)i * sizeof x, sizeof x);                                                          \
            dst[i] = to(x);                                                                                            \
        }                                                                                                              \
    }                                                                                                                  \
    static void encode_##name(const float *src, uint8_t *dst, int64_t n) {                                             \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            ctype x = from(src[i]);                                                                                    \
            memcpy(dst + (size_t)i * sizeof x, &x, sizeof x);                                                          \
        }                                                                                                              \
    }

/* Integers carry ids and positions; encoding rounds to nearest and clamps, NaN is 0. The bounds are
 * compared in double: INT64_MAX as float is one past the range. */
#define TO_INTEGER(name, ctype, lo, hi)                                                                                \
    static ctype to_##name(float f) {                                                                                  \
        double r = nearbyint((double)f);                                                                               \
        if (!(r > (double)(lo))) return f < 0 ? (lo) : 0;                                                              \
        return r >= (double)(hi) ? (hi) : (ctype)r;                                                                    \
    }
TO_INTEGER(i8, int8_t, INT8_MIN, INT8_MAX)
TO_INTEGER(i16, int16_t, INT16_MIN, INT16_MAX)
TO_INTEGER(i32, int32_t, INT32_MIN, INT32_MAX)
TO_INTEGER(i64, int64_t, INT64_MIN, INT64_MAX)

PLAIN(f32, float, (float), (float))
PLAIN(f64, double, (float), (double))
PLAIN(f16, uint16_t, sheaf_f16_to_f32, sheaf_f32_to_f16)
PLAIN(bf16, uint16_t, sheaf_bf16_to_f32, sheaf_f32_to_bf16)
PLAIN(i8, int8_t, (float), to_i8)
PLAIN(i16, int16_t, (float), to_i16)
PLAIN(i32, int32_t, (float), to_i32)
PLAIN(i64, int64_t, (float), to_i64)

/* --- blocks of 32: the low nibbles hold elements 0..15, the high ones 16..31 --- */

/* q4_0: [d f16][16 bytes of nibbles]; x = d * (q - 8) */
static void decode_q4_0(const uint8_t *src, float *dst, int64_t n) {
    for (; n > 0; n -= BLOCK, src += 18, dst += BLOCK) {
        float d = load_f16(src);
        for (int j = 0; j < HALF; j++) {
            dst[j] = (float)((src[2 + j] & 15) - 8) * d;
            dst[j + HALF] = (float)((src[2 + j] >> 4) - 8) * d;
        }
    }
}

/* q4_1: [d f16][m f16][16 bytes of nibbles]; x = d * q + m */
static void decode_q4_1(const uint8_t *src, float *dst, int64_t n) {
    for (; n > 0; n -= BLOCK, src += 20, dst += BLOCK) {
        float d = load_f16(src), m = load_f16(src + 2);
        for (int j = 0; j < HALF; j++) {
            dst[j] = (float)(src[4 + j] & 15) * d + m;
            dst[j + HALF] = (float)(src[4 + j] >> 4) * d + m;
        }
    }
}

/* The fifth bits of a q5 block: bit i of a little-endian word belongs to element i. */
static uint32_t load_high_bits(const uint8_t *p) {
    uint32_t bits;
    memcpy(&bits, p, sizeof bits);
    return bits;
}

static int five_bits(const uint8_t *nibbles, uint32_t high, int i) {
    int low = i < HALF ? nibbles[i] & 15 : nibbles[i - HALF] >> 4;
    return low | (int)(high >> i & 1) << 4;
}

/* q5_0: [d f16][32 high bits][16 bytes of nibbles]; x = d * (q - 16) */
static void decode_q5_0(const uint8_t *src, float *dst, int64_t n) {
    for (; n > 0; n -= BLOCK, src += 22, dst += BLOCK) {
        float d = load_f16(src);
        uint32_t high = load_high_bits(src + 2);
        for (int i = 0; i < BLOCK; i++) dst[i] = (float)(five_bits(src + 6, high, i) - 16) * d;
    }
}

/* q5_1: [d f16][m f16][32 high bits][16 bytes of nibbles]; x = d * q + m */
static void decode_q5_1(const uint8_t *src, float *dst, int64_t n) {
    for (; n > 0; n -= BLOCK, src += 24, dst += BLOCK) {
        float d = load_f16(src), m = load_f16(src + 2);
        uint32_t high = load_high_bits(src + 4);
        for (int i = 0; i < BLOCK; i++) dst[i] = (float)five_bits(src + 8, high, i) * d + m;
    }
}

/* q8_0: [d f16][32 signed bytes]; x = d * q */
static void decode_q8_0(const uint8_t *src, float *dst, int64_t n) {
    for (; n > 0; n -= BLOCK, src += 34, dst += BLOCK) {
        float d = load_f16(src);
        for (int i = 0; i < BLOCK; i++) dst[i] = (float)(int8_t)src[2 + i] * d;
    }
}

const int8_t sheaf_iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/* iq4_nl: [d f16][16 bytes of nibbles]; x = d * values[q] */
static void decode_iq4_nl(const uint8_t *src, float *dst, int64_t n) {
    for (; n > 0; n -= BLOCK, src += 18, dst += BLOCK) {
        float d = load_f16(src);
        for (int j = 0; j < HALF; j++) {
            dst[j] = (float)sheaf_iq4_values[src[2 + j] & 15] * d;
            dst[j + HALF] = (float)sheaf_iq4_values[src[2 + j] >> 4] * d;
        }
    }
}

/* mxfp4: [exponent e8m0][16 bytes of nibbles]; x = 2^(e - 127) * fp4(q). The values are kept doubled
 * so that they are whole, and the exponent one lower. */
static const int8_t mxfp4_doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static void decode_mxfp4(const uint8_t *src, float *dst, int64_t n) {
    for (; n > 0; n -= BLOCK, src += 17, dst += BLOCK) {
        float d = ldexpf(1.0f, (int)src[0] - 128);
        for (int j = 0; j < HALF; j++) {
            dst[j] = (float)mxfp4_doubled[src[1 + j] & 15] * d;
            dst[j + HALF] = (float)mxfp4_doubled[src[1 + j] >> 4] * d;
        }
    }
}

static void range_of(const float *x, int n, float *lo, float *hi) {
    *lo = *hi = x[0];
    for (int i = 1; i < n; i++) {
        if (x[i] < *lo) *lo = x[i];
        if (x[i] > *hi) *hi = x[i];
    }
}

/* Truncates to a code in [0, top]. The comparison is written so that NaN becomes 0. */
static int code_of(float v, int top) { return v > 0 ? (v < (float)top ? (int)v : top) : 0; }

static float inverse(float d) { return d != 0 ? 1.0f / d : 0.0f; }

static void encode_q4_0(const float *src, uint8_t *dst, int64_t n) {
    for (; n > 0; n -= BLOCK, dst += 18, src += BLOCK) {
        float d = sheaf_extreme(src, BLOCK) / -8.0f, id = inverse(d);
        store_f16(dst, d);
        for (int j = 0; j < HALF; j++) {
            int low = code_of(src[j] * id + 8.5f, 15), high = code_of(src[j + HALF] * id + 8.5f, 15);
            dst[2 + j] = (uint8_t)(low | high << 4);
        }
    }
}

static void encode_q4_1(const float *src, uint8_t *dst, int64_t n) {
    for (; n > 0; n -= BLOCK, dst += 20, src += BLOCK) {
        float lo, hi;
        range_of(src, BLOCK, &lo, &hi);
        float d = (hi - lo) / 15.0f, id = inverse(d);
        store_f16(dst, d);
        store_f16(dst + 2, lo);
        for (int j = 0; j < HALF; j++) {
            int low = code_of((src[j] - lo) * id + 0.5f, 15), high = code_of((src[j + HALF] - lo) * id + 0.5f, 15);
            dst[4 + j] = (uint8_t)(low | high << 4);
        }
    }
}

void sheaf_store_five_bits(uint8_t *dst, const uint8_t code[BLOCK]) {
    uint32_t high = 0;
    for (int i = 0; i < BLOCK; i++) high |= (uint32_t)(code[i] >> 4) << i;
    memcpy(dst, &high, sizeof high);
    for (int j = 0; j < HALF; j++) dst[4 + j] = (uint8_t)((code[j] & 15) | (code[j + HALF] & 15) << 4);
}

void sheaf_store_nibbles(uint8_t *dst, const uint8_t code[BLOCK]) {
    for (int j = 0; j < HALF; j++) dst[j] = (uint8_t)(code[j] | code[j + HALF] << 4);
}

static void encode_q5_0(const float *src, uint8_t *dst, int64_t n) {
    uint8_t code[BLOCK];
    for (; n > 0; n -= BLOCK, dst += 22, src += BLOCK) {
        float d = sheaf_extreme(src, BLOCK) / -16.0f, id = inverse(d);
        store_f16(dst, d);
        for (int i = 0; i < BLOCK; i++) code[i] = (uint8_t)code_of(src[i] * id + 16.5f, 31);
        sheaf_store_five_bits(dst + 2, code);
    }
}

static void encode_q5_1(const float *src, uint8_t *dst, int64_t n) {
    uint8_t code[BLOCK];
    for (; n > 0; n -= BLOCK, dst += 24, src += BLOCK) {
        float lo, hi;
        range_of(src, BLOCK, &lo, &hi);
        float d = (hi - lo) / 31.0f, id = inverse(d);
        store_f16(dst, d);
        store_f16(dst + 2, lo);
        for (int i = 0; i < BLOCK; i++) code[i] = (uint8_t)code_of((src[i] - lo) * id + 0.5f, 31);
        sheaf_store_five_bits(dst + 4, code);
    }
}

static void encode_q8_0(const float *src, uint8_t *dst, int64_t n) {
    for (; n > 0; n -= BLOCK, dst += 34, src += BLOCK) {
        float d = fabsf(sheaf_extreme(src, BLOCK)) / 127.0f, id = inverse(d);
        store_f16(dst, d);
        /* Away from zero at a half, whatever the rounding mode. */
        for (int i = 0; i < BLOCK; i++) {
            float r = roundf(src[i] * id);
            dst[2 + i] = (uint8_t)(int8_t)(r >= -127.0f && r <= 127.0f ? r : 0.0f);
        }
    }
}

/* The exponent puts the largest element between 4 and 8 steps of 1, the range of the values (0 to 6); logarithm and
 * floor are what other writers use, and near a power of two they do not agree with taking the number apart. */
static uint8_t mxfp4_exponent(float most) {
    if (!(most > 0)) return 0;
    float e = floorf(log2f(most)) - 2 + 127;
    return (uint8_t)(e > 0 ? (e < 254 ? e : 254) : 0);
}

static int nearest_mxfp4(float x, float d) {
    int best = 0;
    for (int i = 1; i < 16; i++)
        if (fabsf((float)mxfp4_doubled[i] * d - x) < fabsf((float)mxfp4_doubled[best] * d - x)) best = i;
    return best;
}

static void encode_mxfp4(const float *src, uint8_t *dst, int64_t n) {
    for (; n > 0; n -= BLOCK, dst += 17, src += BLOCK) {
        dst[0] = mxfp4_exponent(fabsf(sheaf_extreme(src, BLOCK)));
        float d = ldexpf(1.0f, (int)dst[0] - 128);
        for (int j = 0; j < HALF; j++)
            dst[1 + j] = (uint8_t)(nearest_mxfp4(src[j], d) | nearest_mxfp4(src[j + HALF], d) << 4);
    }
}

/* --- the table --- */

typedef struct converter {
    void (*decode)(const uint8_t *src, float *dst, int64_t n);
    void (*encode)(const float *src, uint8_t *dst, int64_t n); /* NULL: only the other, which takes no importance too */
    encode_fn *encode_weighted;                                /* NULL: importance does not matter to this type */
} converter;

static const converter converters[SHEAF_TYPE_COUNT] = {
    [SHEAF_F32] = {decode_f32, encode_f32, NULL},
    [SHEAF_F16] = {decode_f16, encode_f16, NULL},
    [SHEAF_BF16] = {decode_bf16, encode_bf16, NULL},
    [SHEAF_F64] = {decode_f64, encode_f64, NULL},
    [SHEAF_I8] = {decode_i8, encode_i8, NULL},
    [SHEAF_I16] = {decode_i16, encode_i16, NULL},
    [SHEAF_I32] = {decode_i32, encode_i32, NULL},
    [SHEAF_I64] = {decode_i64, encode_i64, NULL},
    [SHEAF_Q4_0] = {decode_q4_0, encode_q4_0, sheaf_encode_weighted_q4_0},
    [SHEAF_Q4_1] = {decode_q4_1, encode_q4_1, sheaf_encode_weighted_q4_1},
    [SHEAF_Q5_0] = {decode_q5_0, encode_q5_0, sheaf_encode_weighted_q5_0},
    [SHEAF_Q5_1] = {decode_q5_1, encode_q5_1, sheaf_encode_weighted_q5_1},
    [SHEAF_Q8_0] = {decode_q8_0, encode_q8_0, NULL},
    [SHEAF_IQ4_NL] = {decode_iq4_nl, NULL, sheaf_encode_iq4_nl},
    [SHEAF_MXFP4] = {decode_mxfp4, encode_mxfp4, NULL},
    [SHEAF_Q2_K] = {sheaf_decode_q2_k, NULL, sheaf_encode_q2_k},
    [SHEAF_Q3_K] = {sheaf_decode_q3_k, NULL, sheaf_encode_q3_k},
    [SHEAF_Q4_K] = {sheaf_decode_q4_k, NULL, sheaf_encode_q4_k},
    [SHEAF_Q5_K] = {sheaf_decode_q5_k, NULL, sheaf_encode_q5_k},
    [SHEAF_Q6_K] = {sheaf_decode_q6_k, NULL, sheaf_encode_q6_k},
    [SHEAF_IQ4_XS] = {sheaf_decode_iq4_xs, NULL, sheaf_encode_iq4_xs},
};

static sheaf_status check_row(sheaf_type t, int64_t n) {
    if (!sheaf_type_valid(t)) return sheaf_fail(SHEAF_E_UNSUPPORTED, "type %d is unknown", (int)t);
    if (sheaf_row_bytes(t, n) != SIZE_MAX) return SHEAF_OK;
    return sheaf_fail(SHEAF_E_SHAPE, "%s: %lld elements are not whole blocks of %lld", sheaf_type_name(t), (long long)n,
                      (long long)sheaf_type_block(t));
}

sheaf_status sheaf_to_float(sheaf_type t, const void *src, float *dst, int64_t n) {
    sheaf_status s = check_row(t, n);
    if (s) return s;
    converters[t].decode(src, dst, n);
    return SHEAF_OK;
}

sheaf_status sheaf_from_float(sheaf_type t, const float *src, void *dst, int64_t n) {
    return sheaf_from_float_weighted(t, src, dst, n, NULL);
}

sheaf_status sheaf_from_float_weighted(sheaf_type t, const float *src, void *dst, int64_t n, const float *importance) {
    sheaf_status s = check_row(t, n);
    if (s) return s;
    const converter *c = &converters[t];
    if (c->encode && !(importance && c->encode_weighted))
        c->encode(src, dst, n);
    else
        c->encode_weighted(src, dst, n, importance);
    return SHEAF_OK;
}
