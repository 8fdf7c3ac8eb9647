/* Small pieces that the kernels of every level share: packed scales, mask reading, ALiBi slopes, KV head of a query
 * head, and the segment that a level really uses. Private to the kernel files; everything is static. */
#ifndef SHEAF_CPU_KERNELS_COMMON_H
#define SHEAF_CPU_KERNELS_COMMON_H

#include "backends/cpu/kernels.h"

#include <math.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

static inline uint32_t word_at(const void *p) {
    uint32_t w;
    memcpy(&w, p, 4);
    return w;
}

/* The eight six-bit scales and minima of q4_k and q5_k as bytes, from their 12. */
static inline void k_pairs(const uint8_t *p, uint64_t *scales, uint64_t *mins) {
    uint32_t a = word_at(p), b = word_at(p + 4), c = word_at(p + 8);
    *scales = (a & 0x3f3f3f3f) | (uint64_t)((c & 0x0f0f0f0f) | (a >> 6 & 0x03030303) << 4) << 32;
    *mins = (b & 0x3f3f3f3f) | (uint64_t)((c >> 4 & 0x0f0f0f0f) | (b >> 6 & 0x03030303) << 4) << 32;
}

/* ALiBi slope of a global head: 1 when max_bias is 0, else powers of two as the models were trained. */
static inline float alibi_slope(const cpu_attn *a, int32_t global_head) {
    if (a->slope_base <= 0.0f) return 1.0f;
    int32_t n2 = 1;
    while (n2 * 2 <= a->n_head) n2 *= 2;
    float m0 = powf(2.0f, -a->slope_base / (float)n2);
    float m1 = powf(2.0f, -a->slope_base * 0.5f / (float)n2);
    return global_head < n2 ? powf(m0, (float)(global_head + 1)) : powf(m1, (float)(2 * (global_head - n2) + 1));
}

/* Local KV head of local query head h. */
static inline int32_t kv_head_of(const cpu_attn *a, int32_t h) {
    return (a->q_head0 + h) / a->heads_per_kv - a->kv_head0;
}

static inline float mask_at(const cpu_attn *a, int32_t token, int64_t pos) {
    const char *row = a->mask + (size_t)token * a->mask_token;
    if (a->mask_type == SHEAF_F32) return ((const float *)row)[pos];
    return sheaf_f16_to_f32(((const uint16_t *)row)[pos]);
}

/* A segment may be summed in shorter pieces: a cut at a segment's border is a cut at a piece's border
 * too, and f64 above shorter pieces is only more exact. The longest divisor of `segment` that is a
 * multiple of `block` and at most `limit`; 0 stays 0. */
static inline int32_t segment_piece(int32_t segment, int32_t block, int32_t limit) {
    if (segment <= limit || block <= 0) return segment;
    for (int32_t parts = 2; parts <= segment / block; parts++) {
        if (segment % parts == 0 && segment / parts <= limit && segment / parts % block == 0) return segment / parts;
    }
    return block;
}

/* The reference, for shapes that a level's scratch does not hold. */
void portable_attention(const cpu_attn *a, int32_t h0, int32_t h1, int32_t t0, int32_t t1);
/* And for functions that are too rare to be worth vectors. */
void portable_unary(float *out, const float *x, int64_t n, sheaf_unary kind);

#endif
