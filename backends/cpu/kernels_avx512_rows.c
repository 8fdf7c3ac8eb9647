/* Matmul for few columns, AVX-512 with VNNI: rows are read once, straight from GGUF bytes, at the speed of memory. The
 * walk over rows is in kernels_rows.h.
 *
 * 32-element blocks go four to a group: the first halves of the four blocks make one vector, the second halves
 * another, so that four lanes belong to each block and a group ends in one conversion and one FMA. With segments,
 * lanes are emptied into f64 before a lane would add across a border: after a whole piece when pieces are whole groups,
 * after every group otherwise (then a lane holds one product of one block, wherever the block lies). */
#include "backends/cpu/kernels_avx512.h"

enum { ROWS_1 = 4, ROWS_2 = 2, ROWS_3 = 2, ROWS_4 = 2 };

#include "backends/cpu/kernels_rows.h"

/* Element e = row * NC + column of the register block. Four elements fold into one vector (four lanes of a block
 * are one sum) before they become f64, so that emptying costs a quarter. */
typedef struct acc {
    size_t ahead;  /* bytes from what is read to what memory is asked for */
    const void *x; /* the columns laid out in scratch, NULL: they did not fit */
    __m512 f[8];
    __m512d lo[2], hi[2]; /* four elements each: [128-bit lane of f][element] */
} acc;

INLINE void acc_zero(acc *s, const int R, const int NC, const bool SEG) {
    UNROLL for (int e = 0; e < R * NC; e++) s->f[e] = _mm512_setzero_ps();
    UNROLL for (int q = 0; q < 2; q++) {
        if (SEG) s->lo[q] = s->hi[q] = _mm512_setzero_pd();
    }
}

/* Elements 4q..4q+3, zeros for those that are not there: what is there is added in the same way. */
INLINE __m512 acc_fold(const acc *s, const int q, const int E) {
    const __m512 z = _mm512_setzero_ps();
    return fold4(s->f[4 * q], 4 * q + 1 < E ? s->f[4 * q + 1] : z, 4 * q + 2 < E ? s->f[4 * q + 2] : z,
                 4 * q + 3 < E ? s->f[4 * q + 3] : z);
}

INLINE void acc_flush(acc *s, const int R, const int NC) {
    UNROLL for (int q = 0; q < (R * NC + 3) / 4; q++) {
        __m512 x = acc_fold(s, q, R * NC);
        s->lo[q] = _mm512_add_pd(s->lo[q], low_f64(x));
        s->hi[q] = _mm512_add_pd(s->hi[q], high_f64(x));
    }
    UNROLL for (int e = 0; e < R * NC; e++) s->f[e] = _mm512_setzero_ps();
}

INLINE void acc_store(const cpu_mm *a, const acc *s, int64_t m, int64_t n, const int R, const int NC, const bool SEG) {
    double sum[8];
    UNROLL for (int q = 0; q < (R * NC + 3) / 4; q++) {
        if (SEG) {
            __m512d x = _mm512_add_pd(s->lo[q], s->hi[q]);
            _mm256_storeu_pd(sum + 4 * q, _mm256_add_pd(_mm512_castpd512_pd256(x), _mm512_extractf64x4_pd(x, 1)));
        } else {
            __m512 x = acc_fold(s, q, R * NC);
            __m256 y = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
            __m128 z = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
            _mm256_storeu_pd(sum + 4 * q, _mm256_cvtps_pd(z));
        }
    }
    UNROLL for (int c = 0; c < NC; c++) {
        char *out = (char *)a->out + (size_t)(n + c) * a->out_col;
        UNROLL for (int r = 0; r < R; r++) {
            if (a->out_f64)
                ((double *)out)[m + r] = sum[r * NC + c];
            else
                ((float *)out)[m + r] = (float)sum[r * NC + c];
        }
    }
}

/* --- 32-element blocks ----------------------------------------------------------------------------- */

/* Four blocks of one column. */
typedef struct xgroup {
    __m512i lo, hi, start;
    __m512 d, s;
} xgroup;

/* Blocks [b, b+count), count 1..4; what is absent is zero. */
INLINE xgroup load_xgroup(const char *x, int64_t k, int64_t b, int count, const kind K) {
    const __m512i four = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    const __mmask8 some = (__mmask8)((1u << count) - 1);
    const __mmask64 m0 = count >= 2 ? ~0ull : 0xffffffffull, m1 = count >= 4 ? ~0ull : count == 3 ? 0xffffffffull : 0;
    __m512i z0 = _mm512_maskz_loadu_epi8(m0, x + 32 * b), z1 = _mm512_maskz_loadu_epi8(m1, x + 32 * b + 64);
    __m512 d = _mm512_castps128_ps512(_mm_maskz_loadu_ps(some, x + cpu_act_scales_at(k) + 4 * b));
    xgroup g;
    g.lo = _mm512_shuffle_i64x2(z0, z1, 0x88);
    g.hi = _mm512_shuffle_i64x2(z0, z1, 0xdd);
    g.d = _mm512_permutexvar_ps(four, d);
    g.s = _mm512_setzero_ps();
    g.start = _mm512_setzero_si512();
    if (has_min(K)) {
        __m512 s = _mm512_castps128_ps512(_mm_maskz_loadu_ps(some, x + cpu_act_sums_at(k) + 4 * b));
        g.s = _mm512_maskz_permutexvar_ps(0x1111, four, s); /* once a block, not once a lane */
    } else {
        __m512i n = _mm512_castsi128_si512(_mm_maskz_loadu_epi32(some, x + cpu_act_n32_at(k) + 4 * b));
        n = _mm512_maskz_permutexvar_epi32(0x1111, four, n);
        g.start = _mm512_slli_epi32(n, K == Q4_0 ? 3 : K == Q5_0 ? 4 : 7);
    }
    return g;
}

INLINE __m512i load4(const uint8_t *p, const int o[4]) {
    __m512i z = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(p + o[0])));
    z = _mm512_inserti32x4(z, _mm_loadu_si128((const __m128i *)(p + o[1])), 1);
    z = _mm512_inserti32x4(z, _mm_loadu_si128((const __m128i *)(p + o[2])), 2);
    return _mm512_inserti32x4(z, _mm_loadu_si128((const __m128i *)(p + o[3])), 3);
}

/* The same for the codes of four short blocks that follow one another: one load and a shuffle of words reach all
 * but the end of the fourth block. */
INLINE __m512i nibbles4(const uint8_t *p, const int bytes) {
    const int w = bytes / 2, s = w - 8; /* words of a block, first word of codes */
    __m512i pick = _mm512_set_epi16(
        0, 0, 0, 0, (short)(s + 3 * w + 3), (short)(s + 3 * w + 2), (short)(s + 3 * w + 1), (short)(s + 3 * w),
        (short)(s + 2 * w + 7), (short)(s + 2 * w + 6), (short)(s + 2 * w + 5), (short)(s + 2 * w + 4),
        (short)(s + 2 * w + 3), (short)(s + 2 * w + 2), (short)(s + 2 * w + 1), (short)(s + 2 * w), (short)(s + w + 7),
        (short)(s + w + 6), (short)(s + w + 5), (short)(s + w + 4), (short)(s + w + 3), (short)(s + w + 2),
        (short)(s + w + 1), (short)(s + w), (short)(s + 7), (short)(s + 6), (short)(s + 5), (short)(s + 4),
        (short)(s + 3), (short)(s + 2), (short)(s + 1), (short)s);
    __m512i q = _mm512_permutexvar_epi16(pick, _mm512_loadu_si512(p));
    if (bytes == 18) {
        int64_t end;
        memcpy(&end, p + 64, 8);
        return _mm512_mask_set1_epi64(q, 0x80, end);
    }
    return _mm512_mask_broadcast_i32x4(q, 0xf000, _mm_loadu_si128((const __m128i *)(p + 64)));
}

/* The f16 at p[o[i]] for each block, in that block's four lanes. */
INLINE __m512 scales4(const uint8_t *p, const int o[4], const bool full, const int bytes, const int at) {
    if (!full) {
        __m128i h = _mm_cvtsi32_si128(half_word(p + at + o[0]));
        h = _mm_insert_epi16(h, half_word(p + at + o[1]), 2);
        h = _mm_insert_epi16(h, half_word(p + at + o[2]), 4);
        h = _mm_insert_epi16(h, half_word(p + at + o[3]), 6);
        const __m512i words = _mm512_castsi256_si512(_mm256_setr_epi16(0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6));
        return _mm512_cvtph_ps(_mm512_castsi512_si256(_mm512_permutexvar_epi16(words, _mm512_castsi128_si512(h))));
    }
    /* whole group: pick words out of one or two loads that stay inside its 4*bytes */
    const int w = bytes / 2, s = at / 2;
    if (4 * bytes <= 80) {
        const __m512i pick = _mm512_castsi256_si512(_mm256_setr_epi16(
            (short)s, (short)s, (short)s, (short)s, (short)(s + w), (short)(s + w), (short)(s + w), (short)(s + w),
            (short)(s + 2 * w), (short)(s + 2 * w), (short)(s + 2 * w), (short)(s + 2 * w), (short)(s + 3 * w),
            (short)(s + 3 * w), (short)(s + 3 * w), (short)(s + 3 * w)));
        return _mm512_cvtph_ps(_mm512_castsi512_si256(_mm512_permutexvar_epi16(pick, _mm512_loadu_si512(p))));
    }
    const int second = 2 * bytes + 64 <= 4 * bytes ? 2 * bytes : 4 * bytes - 64;
    const int t = 32 + s + 2 * w - second / 2, u = t + w;
    const __m512i pick = _mm512_castsi256_si512(_mm256_setr_epi16(
        (short)s, (short)s, (short)s, (short)s, (short)(s + w), (short)(s + w), (short)(s + w), (short)(s + w),
        (short)t, (short)t, (short)t, (short)t, (short)u, (short)u, (short)u, (short)u));
    __m512i both = _mm512_permutex2var_epi16(_mm512_loadu_si512(p), pick, _mm512_loadu_si512(p + second));
    return _mm512_cvtph_ps(_mm512_castsi512_si256(both));
}

typedef struct wgroup {
    __m512i lo, hi;
    __m512 d, m;
} wgroup;

INLINE void fifth_bits(wgroup *g, const uint8_t *p, const int o[4]) {
    uint32_t a = word_at(p + o[0]), b = word_at(p + o[1]), c = word_at(p + o[2]), d = word_at(p + o[3]);
    uint64_t lo = (a & 0xffff) | b << 16 | (uint64_t)((c & 0xffff) | d << 16) << 32;
    uint64_t hi = a >> 16 | (b & 0xffff0000) | (uint64_t)(c >> 16 | (d & 0xffff0000)) << 32;
    const __m512i fifth = _mm512_set1_epi8(16);
    g->lo = _mm512_mask_add_epi8(g->lo, lo, g->lo, fifth);
    g->hi = _mm512_mask_add_epi8(g->hi, hi, g->hi, fifth);
}

/* Four blocks of one row, o[i] bytes from p; `full`: they are i*bytes apart. */
INLINE wgroup load_wgroup(const uint8_t *p, const int o[4], const bool full, const kind K) {
    const __m512i low = _mm512_set1_epi8(15);
    wgroup g;
    g.d = scales4(p, o, full, block_bytes(K), 0);
    g.m = has_min(K) ? scales4(p, o, full, block_bytes(K), 2) : _mm512_setzero_ps();
    if (K == Q8_0) {
        const __m512i flip = _mm512_set1_epi8((char)0x80);
        g.lo = _mm512_xor_si512(load4(p + 2, o), flip);
        g.hi = _mm512_xor_si512(load4(p + 18, o), flip);
        return g;
    }
    __m512i q = full && block_bytes(K) <= 20 ? nibbles4(p, block_bytes(K)) : load4(p + block_bytes(K) - 16, o);
    g.lo = _mm512_and_si512(q, low);
    g.hi = _mm512_and_si512(_mm512_srli_epi16(q, 4), low);
    if (K == Q5_0) fifth_bits(&g, p + 2, o);
    if (K == Q5_1) fifth_bits(&g, p + 4, o);
    if (K == IQ4_NL) {
        const __m512i table =
            _mm512_broadcast_i32x4(_mm_setr_epi8(1, 24, 45, 63, 79, 93, 106, 118, (char)129, (char)141, (char)153,
                                                 (char)166, (char)181, (char)197, (char)217, (char)241));
        g.lo = _mm512_shuffle_epi8(table, g.lo);
        g.hi = _mm512_shuffle_epi8(table, g.hi);
    }
    return g;
}

/* One group of `count` blocks for all rows and columns of the register block. */
INLINE void blocks_step(const cpu_mm *a, acc *s, const uint8_t *w, const char *x, int64_t b, int count, const bool full,
                        const int R, const int NC, const kind K) {
    const int bytes = block_bytes(K);
    const int o[4] = {0, full || count > 1 ? bytes : 0, full || count > 2 ? 2 * bytes : 0, full ? 3 * bytes : 0};
    xgroup loaded[4];
    const xgroup *xs = s->x ? (const xgroup *)s->x + b / 4 * NC : loaded;
    if (!s->x) {
        UNROLL for (int c = 0; c < NC; c++) {
            loaded[c] = load_xgroup(x + (size_t)c * a->x_col, a->k, b, full ? 4 : count, K);
        }
    }
    UNROLL for (int r = 0; r < R; r++) {
        const uint8_t *p = w + (size_t)r * a->w_row + b * bytes;
        UNROLL for (int i = 0; i < 4 * bytes; i += 64) _mm_prefetch((const char *)p + s->ahead + i, _MM_HINT_T1);
        wgroup g = load_wgroup(p, o, full, K);
        UNROLL for (int c = 0; c < NC; c++) {
            __m512i dot = _mm512_dpbusd_epi32(xs[c].start, g.lo, xs[c].lo);
            dot = _mm512_dpbusd_epi32(dot, g.hi, xs[c].hi);
            s->f[r * NC + c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(g.d, xs[c].d), s->f[r * NC + c]);
            if (has_min(K)) s->f[r * NC + c] = _mm512_fmadd_ps(g.m, xs[c].s, s->f[r * NC + c]);
        }
    }
}

INLINE void blocks_rows(const cpu_mm *a, int64_t m, int64_t n, size_t ahead, const void *ready, const int R,
                        const int NC, const kind K, const bool SEG) {
    const uint8_t *w = (const uint8_t *)a->w + (size_t)m * a->w_row;
    const char *x = (const char *)a->x + (size_t)n * a->x_col;
    int64_t blocks = a->k / 32, b = 0;
    int64_t per_piece = a->segment % 128 == 0 ? segment_piece(a->segment, 128, PIECE_LIMIT) / 32 : 4;
    acc s;
    s.ahead = ahead;
    s.x = ready;
    acc_zero(&s, R, NC, SEG);
    while (b + 4 <= blocks) {
        int64_t end = SEG && b + per_piece < blocks ? b + per_piece : blocks;
        for (; b + 4 <= end; b += 4) blocks_step(a, &s, w, x, b, 4, true, R, NC, K);
        if (SEG) acc_flush(&s, R, NC);
    }
    if (b < blocks) {
        blocks_step(a, &s, w, x, b, (int)(blocks - b), false, R, NC, K);
        if (SEG) acc_flush(&s, R, NC);
    }
    acc_store(a, &s, m, n, R, NC, SEG);
}

/* --- superblocks of 256 ---------------------------------------------------------------------------- */

/* 256 elements of one column: vectors as the type wants them, and scales by 32 (or by 16). */
typedef struct xsuper {
    __m512i v[4], start[4];
    __m512 d, s;
} xsuper;

INLINE xsuper load_xsuper(const char *x, int64_t k, int64_t sb, const kind K) {
    const char *q = x + 256 * sb;
    __m512i z0 = _mm512_loadu_si512(q), z1 = _mm512_loadu_si512(q + 64);
    __m512i z2 = _mm512_loadu_si512(q + 128), z3 = _mm512_loadu_si512(q + 192);
    __m512 d = _mm512_zextps256_ps512(_mm256_loadu_ps((const float *)(x + cpu_act_scales_at(k)) + 8 * sb));
    xsuper g;
    if (K == Q6_K) {
        const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
        const __m512i first = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
        __m512i n = _mm512_slli_epi32(_mm512_loadu_si512((const int32_t *)(x + cpu_act_n16_at(k)) + 16 * sb), 5);
        g.v[0] = z0, g.v[1] = z1, g.v[2] = z2, g.v[3] = z3;
        UNROLL for (int i = 0; i < 4; i++) {
            __m512i index = _mm512_add_epi32(first, _mm512_set1_epi32(4 * i));
            g.start[i] = _mm512_maskz_permutexvar_epi32(0x1111, index, n);
        }
        g.d = _mm512_permutexvar_ps(twice, d);
        g.s = _mm512_setzero_ps();
        return g;
    }
    /* nibbles put groups 0 and 2 side by side, then 1 and 3 */
    g.v[0] = _mm512_shuffle_i64x2(z0, z1, 0x44);
    g.v[1] = _mm512_shuffle_i64x2(z0, z1, 0xee);
    g.v[2] = _mm512_shuffle_i64x2(z2, z3, 0x44);
    g.v[3] = _mm512_shuffle_i64x2(z2, z3, 0xee);
    g.d = d;
    g.s = _mm512_zextps256_ps512(_mm256_loadu_ps((const float *)(x + cpu_act_sums_at(k)) + 8 * sb));
    UNROLL for (int i = 0; i < 4; i++) g.start[i] = _mm512_setzero_si512();
    return g;
}

typedef struct wsuper {
    __m512i v[4];
    __m512 d, m;
} wsuper;

INLINE __m256 bytes_to_float(uint64_t x) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((int64_t)x)));
}

INLINE __m256 half_everywhere(const uint8_t *p) { return _mm256_cvtph_ps(_mm_set1_epi16((short)half_word(p))); }

/* The head of q4_k and q5_k: eight scales and eight minima, each times its f16. */
INLINE void k_head(wsuper *g, const uint8_t *p) {
    uint64_t scales, mins;
    k_pairs(p + 4, &scales, &mins);
    g->d = _mm512_zextps256_ps512(_mm256_mul_ps(bytes_to_float(scales), half_everywhere(p)));
    g->m = _mm512_zextps256_ps512(_mm256_mul_ps(bytes_to_float(mins), half_everywhere(p + 2)));
}

INLINE void load_q4_k(wsuper *g, const uint8_t *p) {
    const __m512i low = _mm512_set1_epi8(15);
    __m512i q0 = _mm512_loadu_si512(p + 16), q1 = _mm512_loadu_si512(p + 80);
    k_head(g, p);
    g->v[0] = _mm512_and_si512(q0, low);
    g->v[1] = _mm512_and_si512(_mm512_srli_epi16(q0, 4), low);
    g->v[2] = _mm512_and_si512(q1, low);
    g->v[3] = _mm512_and_si512(_mm512_srli_epi16(q1, 4), low);
}

/* Moves bit a of the lower and bit b of the upper half's bytes to bit 4. */
INLINE __m512i fifth(__m512i h, const int a, const int b) {
    const __m512i left = _mm512_setr_epi64(a < 4 ? 4 - a : 0, a < 4 ? 4 - a : 0, a < 4 ? 4 - a : 0, a < 4 ? 4 - a : 0,
                                           b < 4 ? 4 - b : 0, b < 4 ? 4 - b : 0, b < 4 ? 4 - b : 0, b < 4 ? 4 - b : 0);
    const __m512i right = _mm512_setr_epi64(a > 4 ? a - 4 : 0, a > 4 ? a - 4 : 0, a > 4 ? a - 4 : 0, a > 4 ? a - 4 : 0,
                                            b > 4 ? b - 4 : 0, b > 4 ? b - 4 : 0, b > 4 ? b - 4 : 0, b > 4 ? b - 4 : 0);
    if (a < 4) h = _mm512_sllv_epi64(h, left);
    if (b > 4) h = _mm512_srlv_epi64(h, right);
    return _mm512_and_si512(h, _mm512_set1_epi8(16));
}

INLINE void load_q5_k(wsuper *g, const uint8_t *p) {
    const __m512i low = _mm512_set1_epi8(15);
    __m512i q0 = _mm512_loadu_si512(p + 48), q1 = _mm512_loadu_si512(p + 112);
    __m512i h = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(p + 16)));
    k_head(g, p);
    g->v[0] = _mm512_or_si512(_mm512_and_si512(q0, low), fifth(h, 0, 2));
    g->v[1] = _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(q0, 4), low), fifth(h, 1, 3));
    g->v[2] = _mm512_or_si512(_mm512_and_si512(q1, low), fifth(h, 4, 6));
    g->v[3] = _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(q1, 4), low), fifth(h, 5, 7));
}

INLINE void load_q6_k(wsuper *g, const uint8_t *p) {
    const __m512i low = _mm512_set1_epi8(15), pair = _mm512_set1_epi8(0x30);
    const __m512i up = _mm512_setr_epi64(4, 4, 4, 4, 2, 2, 2, 2), down = _mm512_setr_epi64(0, 0, 0, 0, 2, 2, 2, 2);
    __m512i scales = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(p + 192)));
    g->d = _mm512_mul_ps(_mm512_cvtepi32_ps(scales), _mm512_cvtph_ps(_mm256_set1_epi16((short)half_word(p + 208))));
    g->m = _mm512_setzero_ps();
    UNROLL for (int i = 0; i < 2; i++) {
        __m512i q = _mm512_loadu_si512(p + 64 * i);
        __m512i h = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(p + 128 + 32 * i)));
        __m512i h0 = _mm512_and_si512(_mm512_sllv_epi64(h, up), pair);
        __m512i h1 = _mm512_and_si512(_mm512_srlv_epi64(h, down), pair);
        g->v[2 * i] = _mm512_or_si512(_mm512_and_si512(q, low), h0);
        g->v[2 * i + 1] = _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(q, 4), low), h1);
    }
}

/* Which scale each lane of vector i takes. */
INLINE __m512i lane_scale(const int i, const kind K) {
    if (K == Q6_K) {
        const int s = 4 * i;
        return _mm512_setr_epi32(s, s, s, s, s + 1, s + 1, s + 1, s + 1, s + 2, s + 2, s + 2, s + 2, s + 3, s + 3,
                                 s + 3, s + 3);
    }
    const int s = i / 2 * 4 + i % 2, t = s + 2;
    return _mm512_setr_epi32(s, s, s, s, s, s, s, s, t, t, t, t, t, t, t, t);
}

INLINE void super_step(const cpu_mm *a, acc *s, const uint8_t *w, const char *x, int64_t sb, const int R, const int NC,
                       const kind K) {
    xsuper loaded[4];
    const xsuper *xs = s->x ? (const xsuper *)s->x + sb * NC : loaded;
    if (!s->x) { UNROLL for (int c = 0; c < NC; c++) loaded[c] = load_xsuper(x + (size_t)c * a->x_col, a->k, sb, K); }
    UNROLL for (int r = 0; r < R; r++) {
        const uint8_t *p = w + (size_t)r * a->w_row + sb * block_bytes(K);
        wsuper g;
        UNROLL for (int i = 0; i < block_bytes(K); i += 64) {
            _mm_prefetch((const char *)p + s->ahead + i, _MM_HINT_T1);
        }
        if (K == Q4_K) load_q4_k(&g, p);
        if (K == Q5_K) load_q5_k(&g, p);
        if (K == Q6_K) load_q6_k(&g, p);
        UNROLL for (int c = 0; c < NC; c++) {
            __m512 scale = _mm512_mul_ps(g.d, xs[c].d), f = s->f[r * NC + c];
            UNROLL for (int i = 0; i < 4; i++) {
                __m512 dot = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(xs[c].start[i], g.v[i], xs[c].v[i]));
                f = _mm512_fmadd_ps(dot, _mm512_permutexvar_ps(lane_scale(i, K), scale), f);
            }
            if (K != Q6_K) f = _mm512_fnmadd_ps(g.m, xs[c].s, f);
            s->f[r * NC + c] = f;
        }
    }
}

INLINE void super_rows(const cpu_mm *a, int64_t m, int64_t n, size_t ahead, const void *ready, const int R,
                       const int NC, const kind K, const bool SEG) {
    const uint8_t *w = (const uint8_t *)a->w + (size_t)m * a->w_row;
    const char *x = (const char *)a->x + (size_t)n * a->x_col;
    int64_t supers = a->k / 256, piece = SEG ? segment_piece(a->segment, 256, PIECE_LIMIT) / 256 : supers;
    acc s;
    s.ahead = ahead;
    s.x = ready;
    acc_zero(&s, R, NC, SEG);
    for (int64_t b = 0; b < supers;) {
        int64_t end = b + piece < supers ? b + piece : supers;
        for (; b < end; b++) super_step(a, &s, w, x, b, R, NC, K);
        if (SEG) acc_flush(&s, R, NC);
    }
    acc_store(a, &s, m, n, R, NC, SEG);
}

/* --- floats ---------------------------------------------------------------------------------------- */

INLINE __m512 load_weights(const uint8_t *p, int64_t i, __mmask16 some, const kind K) {
    if (K == F32) return _mm512_maskz_loadu_ps(some, p + 4 * i);
    __m256i h = _mm256_maskz_loadu_epi16(some, p + 2 * i);
    if (K == F16) return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

INLINE void float_step(const cpu_mm *a, acc *s, const uint8_t *w, const char *x, int64_t k, __mmask16 some, const int R,
                       const int NC, const kind K) {
    __m512 xs[4];
    UNROLL for (int c = 0; c < NC; c++) xs[c] = _mm512_maskz_loadu_ps(some, x + (size_t)c * a->x_col + 4 * (size_t)k);
    UNROLL for (int r = 0; r < R; r++) {
        const uint8_t *p = w + (size_t)r * a->w_row;
        _mm_prefetch((const char *)p + s->ahead + (K == F32 ? 4 : 2) * k, _MM_HINT_T1);
        __m512 v = load_weights(p, k, some, K);
        UNROLL for (int c = 0; c < NC; c++) s->f[r * NC + c] = _mm512_fmadd_ps(v, xs[c], s->f[r * NC + c]);
    }
}

INLINE void float_rows(const cpu_mm *a, int64_t m, int64_t n, size_t ahead, const int R, const int NC, const kind K,
                       const bool SEG) {
    const uint8_t *w = (const uint8_t *)a->w + (size_t)m * a->w_row;
    const char *x = (const char *)a->x + (size_t)n * a->x_col;
    int64_t piece = SEG ? segment_piece(a->segment, 16, PIECE_LIMIT) : a->k;
    acc s;
    s.ahead = ahead;
    acc_zero(&s, R, NC, SEG);
    for (int64_t k = 0; k < a->k;) {
        int64_t end = k + piece < a->k ? k + piece : a->k;
        for (; k + 16 <= end; k += 16) float_step(a, &s, w, x, k, 0xffff, R, NC, K);
        if (k < end) float_step(a, &s, w, x, k, mask16(end - k), R, NC, K);
        k = end;
        if (SEG) acc_flush(&s, R, NC);
    }
    acc_store(a, &s, m, n, R, NC, SEG);
}

/* --- the table ------------------------------------------------------------------------------------- */

INLINE void rows(const cpu_mm *a, int64_t m, int64_t n, size_t ahead, const void *ready, const int R, const int NC,
                 const kind K, const bool SEG) {
    if (K >= F32)
        float_rows(a, m, n, ahead, R, NC, K, SEG);
    else if (K >= Q4_K)
        super_rows(a, m, n, ahead, ready, R, NC, K, SEG);
    else
        blocks_rows(a, m, n, ahead, ready, R, NC, K, SEG);
}

/* Room is there for 157,000 elements of one column. */
INLINE const void *lay_out(const cpu_mm *a, int64_t n, const int NC, const kind K) {
    const char *x = (const char *)a->x + (size_t)n * a->x_col;
    void *to = (void *)(((uintptr_t)a->scratch + 63) & ~(uintptr_t)63);
    if (K >= F32) return NULL;
    int64_t blocks = a->k / 32, groups = K >= Q4_K ? a->k / 256 : (blocks + 3) / 4;
    size_t each = (K >= Q4_K ? sizeof(xsuper) : sizeof(xgroup)) * (size_t)NC;
    if ((size_t)groups > (CPU_MM_SCRATCH - 64) / each) return NULL;
    for (int64_t g = 0; g < groups; g++) {
        UNROLL for (int c = 0; c < NC; c++) {
            const char *column = x + (size_t)c * a->x_col;
            int count = blocks - 4 * g < 4 ? (int)(blocks - 4 * g) : 4;
            if (K >= Q4_K)
                ((xsuper *)to)[g * NC + c] = load_xsuper(column, a->k, g, K);
            else
                ((xgroup *)to)[g * NC + c] = load_xgroup(column, a->k, 4 * g, count, K);
        }
    }
    return to;
}

static void mul_many(sheaf_type type, const cpu_mm *a, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
    avx512_mul_tiled(type, a, m0, m1, n0, n1);
}

void avx512_rows(cpu_kernels *t) { put_rows(t); }
