/* Matmul for few columns, AVX2: rows are read once, straight from GGUF bytes. The walk over rows is in kernels_rows.h.
 *
 * As kernels_avx512_rows.c with half the width: blocks of 32 go two to a group, four lanes to a block, so that
 * a group ends in one conversion and one FMA; 8-bit blocks and the groups of superblocks have eight lanes each.
 * With segments, lanes are emptied into f64 before one would add across a border. */
#include "backends/cpu/kernels_avx2.h"

enum { ROWS_1 = 4, ROWS_2 = 2, ROWS_3 = 1, ROWS_4 = 1 }; /* four elements fold into one vector */

#include "backends/cpu/kernels_rows.h"

/* Element e = row * NC + column of the register block. Four elements fold into one vector (four lanes of a block
 * are one sum) before they become f64, so that emptying costs a quarter. */
typedef struct acc {
    size_t ahead; /* bytes from what is read to what memory is asked for */
    __m256 f[4];
    __m256d d; /* by element */
} acc;

INLINE void acc_zero(acc *s) {
    UNROLL for (int e = 0; e < 4; e++) s->f[e] = _mm256_setzero_ps();
    s->d = _mm256_setzero_pd();
}

/* In each 128-bit lane: the four elements' sums of that lane. What is not there is zero, and what is there is added in
 * the same way. */
INLINE __m256 acc_fold(const acc *s) {
    __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(s->f[0], s->f[1]), _mm256_unpackhi_ps(s->f[0], s->f[1]));
    __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(s->f[2], s->f[3]), _mm256_unpackhi_ps(s->f[2], s->f[3]));
    __m256 lo = _mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(ab), _mm256_castps_pd(cd)));
    __m256 hi = _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(ab), _mm256_castps_pd(cd)));
    return _mm256_add_ps(lo, hi);
}

/* The two halves are added to each other in f64: they may belong to different segments. */
INLINE void acc_flush(acc *s) {
    __m256 x = acc_fold(s);
    s->d = _mm256_add_pd(s->d, _mm256_add_pd(low_f64(x), high_f64(x)));
    UNROLL for (int e = 0; e < 4; e++) s->f[e] = _mm256_setzero_ps();
}

INLINE void acc_store(const cpu_mm *a, const acc *s, int64_t m, int64_t n, const int R, const int NC, const bool SEG) {
    double sum[4];
    __m256 x = acc_fold(s);
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    _mm256_storeu_pd(sum, SEG ? s->d : _mm256_cvtps_pd(y));
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

INLINE __m256i widen(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

/* Sums of four products where both are signed bytes. */
INLINE __m256i dot_signed(__m256i w, __m256i x) {
    return widen(_mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)));
}

/* --- 32-element blocks, two to a group ----------------------------------------------------------------- */

typedef struct xgroup {
    __m256i lo, hi, start;
    __m256 d, s;
} xgroup;

/* Blocks b and, if `both`, b + 1; the second is zero otherwise. */
INLINE xgroup load_xgroup(const char *x, int64_t k, int64_t b, const bool both, const kind K) {
    const __m256i two = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1), first = _mm256_setr_epi32(-1, 0, 0, 0, -1, 0, 0, 0);
    __m256i z0 = _mm256_loadu_si256((const __m256i *)(x + 32 * b)), z1 = _mm256_setzero_si256();
    const char *at = x + 4 * b;
    if (both) z1 = _mm256_loadu_si256((const __m256i *)(x + 32 * b + 32));
    xgroup g;
    g.lo = _mm256_permute2x128_si256(z0, z1, 0x20);
    g.hi = _mm256_permute2x128_si256(z0, z1, 0x31);
    __m128i d, n;
    if (both) {
        d = _mm_loadl_epi64((const __m128i *)(at + cpu_act_scales_at(k)));
        n = _mm_loadl_epi64((const __m128i *)(at + (has_min(K) ? cpu_act_sums_at(k) : cpu_act_n32_at(k))));
    } else {
        d = _mm_cvtsi32_si128((int)word_at((const uint8_t *)at + cpu_act_scales_at(k)));
        n = _mm_cvtsi32_si128(
            (int)word_at((const uint8_t *)at + (has_min(K) ? cpu_act_sums_at(k) : cpu_act_n32_at(k))));
    }
    g.d = _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(_mm256_castsi128_si256(d), two));
    __m256i once = _mm256_and_si256(first, _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(n), two));
    g.s = has_min(K) ? _mm256_castsi256_ps(once) : _mm256_setzero_ps();
    g.start = has_min(K) ? _mm256_setzero_si256() : _mm256_slli_epi32(once, K == Q4_0 ? 3 : 4);
    return g;
}

INLINE __m256i load2(const uint8_t *p, int second) {
    __m256i z = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)p));
    return _mm256_inserti128_si256(z, _mm_loadu_si128((const __m128i *)(p + second)), 1);
}

/* The f16 of each block in that block's four lanes. */
INLINE __m256 scales2(const uint8_t *p, int second) {
    __m128i a = _mm_set1_epi16((short)half_word(p)), b = _mm_set1_epi16((short)half_word(p + second));
    return _mm256_cvtph_ps(_mm_unpacklo_epi64(a, b));
}

/* 16 bits to each half: 16 where set. */
INLINE __m256i spread16(uint32_t first, uint32_t second) {
    const __m256i pick = _mm256_setr_epi64x(0, 0x0101010101010101, 0, 0x0101010101010101);
    const __m256i one = _mm256_set1_epi64x((int64_t)0x8040201008040201);
    __m256i x = _mm256_setr_epi32((int)first, 0, 0, 0, (int)second, 0, 0, 0);
    x = _mm256_and_si256(_mm256_shuffle_epi8(x, pick), one);
    return _mm256_and_si256(_mm256_cmpeq_epi8(x, one), _mm256_set1_epi8(16));
}

typedef struct wgroup {
    __m256i lo, hi;
    __m256 d, m;
} wgroup;

INLINE wgroup load_wgroup(const uint8_t *p, int second, const kind K) {
    const __m256i low = _mm256_set1_epi8(15);
    wgroup g;
    g.d = scales2(p, second);
    g.m = has_min(K) ? scales2(p + 2, second) : _mm256_setzero_ps();
    __m256i q = load2(p + block_bytes(K) - 16, second);
    g.lo = _mm256_and_si256(q, low);
    g.hi = _mm256_and_si256(_mm256_srli_epi16(q, 4), low);
    if (K == Q5_0 || K == Q5_1) {
        uint32_t a = word_at(p + block_bytes(K) - 20), b = word_at(p + block_bytes(K) - 20 + second);
        g.lo = _mm256_or_si256(g.lo, spread16(a & 0xffff, b & 0xffff));
        g.hi = _mm256_or_si256(g.hi, spread16(a >> 16, b >> 16));
    }
    if (K == IQ4_NL) {
        const __m256i table = _mm256_broadcastsi128_si256(
            _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113));
        g.lo = _mm256_shuffle_epi8(table, g.lo);
        g.hi = _mm256_shuffle_epi8(table, g.hi);
    }
    return g;
}

INLINE __m256i group_dot(const wgroup *g, const xgroup *x, const kind K) {
    if (K == IQ4_NL) return _mm256_add_epi32(dot_signed(g->lo, x->lo), dot_signed(g->hi, x->hi));
    __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(g->lo, x->lo), _mm256_maddubs_epi16(g->hi, x->hi));
    return has_min(K) ? widen(pairs) : _mm256_add_epi32(x->start, widen(pairs));
}

INLINE void blocks_step(const cpu_mm *a, acc *s, const uint8_t *w, const char *x, int64_t b, const bool both,
                        const int R, const int NC, const kind K) {
    xgroup xs[4];
    UNROLL for (int c = 0; c < NC; c++) xs[c] = load_xgroup(x + (size_t)c * a->x_col, a->k, b, both, K);
    UNROLL for (int r = 0; r < R; r++) {
        const uint8_t *p = w + (size_t)r * a->w_row + b * block_bytes(K);
        _mm_prefetch((const char *)p + s->ahead, _MM_HINT_T1);
        wgroup g = load_wgroup(p, both ? block_bytes(K) : 0, K);
        UNROLL for (int c = 0; c < NC; c++) {
            __m256 dot = _mm256_cvtepi32_ps(group_dot(&g, &xs[c], K));
            s->f[r * NC + c] = _mm256_fmadd_ps(dot, _mm256_mul_ps(g.d, xs[c].d), s->f[r * NC + c]);
            if (has_min(K)) s->f[r * NC + c] = _mm256_fmadd_ps(g.m, xs[c].s, s->f[r * NC + c]);
        }
    }
}

/* Eight-bit blocks need no taking apart: one block, eight lanes. */
INLINE void bytes_step(const cpu_mm *a, acc *s, const uint8_t *w, const char *x, int64_t b, const int R, const int NC) {
    UNROLL for (int r = 0; r < R; r++) {
        const uint8_t *p = w + (size_t)r * a->w_row + b * 34;
        _mm_prefetch((const char *)p + s->ahead, _MM_HINT_T1);
        __m256i q = _mm256_loadu_si256((const __m256i *)(p + 2));
        float d = _cvtsh_ss((unsigned short)half_word(p));
        UNROLL for (int c = 0; c < NC; c++) {
            const char *col = x + (size_t)c * a->x_col;
            __m256i v = _mm256_loadu_si256((const __m256i *)(col + 32 * b));
            __m256 scale = _mm256_set1_ps(d * ((const float *)(col + cpu_act_scales_at(a->k)))[b]);
            s->f[r * NC + c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot_signed(q, v)), scale, s->f[r * NC + c]);
        }
    }
}

INLINE void blocks_rows(const cpu_mm *a, int64_t m, int64_t n, size_t ahead, const int R, const int NC, const kind K,
                        const bool SEG) {
    const uint8_t *w = (const uint8_t *)a->w + (size_t)m * a->w_row;
    const char *x = (const char *)a->x + (size_t)n * a->x_col;
    const int step = K == Q8_0 ? 1 : 2;
    int64_t blocks = a->k / 32, b = 0;
    int64_t per_piece = a->segment % 64 == 0 ? segment_piece(a->segment, 64, PIECE_LIMIT) / 32 : step;
    acc s;
    s.ahead = ahead;
    acc_zero(&s);
    while (b + step <= blocks) {
        int64_t end = SEG && b + per_piece < blocks ? b + per_piece : blocks;
        for (; b + step <= end; b += step) {
            if (K == Q8_0)
                bytes_step(a, &s, w, x, b, R, NC);
            else
                blocks_step(a, &s, w, x, b, true, R, NC, K);
        }
        if (SEG) acc_flush(&s);
    }
    if (b < blocks) {
        blocks_step(a, &s, w, x, b, false, R, NC, K);
        if (SEG) acc_flush(&s);
    }
    acc_store(a, &s, m, n, R, NC, SEG);
}

/* --- superblocks of 256 ---------------------------------------------------------------------------- */

INLINE __m256 bytes_to_float(uint64_t x) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((int64_t)x)));
}

INLINE __m256 half_everywhere(const uint8_t *p) { return _mm256_cvtph_ps(_mm_set1_epi16((short)half_word(p))); }

typedef struct wsuper {
    __m256i v[8];
    __m256 d[2], m; /* scales by 32 in d[0], or by 16 in both */
} wsuper;

/* The head of q4_k and q5_k: eight scales and eight minima, each times its f16. */
INLINE void k_head(wsuper *g, const uint8_t *p) {
    uint64_t scales, mins;
    k_pairs(p + 4, &scales, &mins);
    g->d[0] = _mm256_mul_ps(bytes_to_float(scales), half_everywhere(p));
    g->m = _mm256_mul_ps(bytes_to_float(mins), half_everywhere(p + 2));
}

/* Group i (32 elements, in element order) of a superblock. */
INLINE __m256i codes32(const uint8_t *p, const int i, const kind K) {
    const __m256i low = _mm256_set1_epi8(15);
    if (K == Q6_K) {
        const int half = i / 4, part = i % 4;
        __m256i q = _mm256_loadu_si256((const __m256i *)(p + 64 * half + 32 * (part % 2)));
        __m256i h = _mm256_loadu_si256((const __m256i *)(p + 128 + 32 * half));
        if (part >= 2) q = _mm256_srli_epi16(q, 4);
        h = part == 0   ? _mm256_slli_epi16(h, 4)
            : part == 1 ? _mm256_slli_epi16(h, 2)
            : part == 2 ? h
                        : _mm256_srli_epi16(h, 2);
        return _mm256_or_si256(_mm256_and_si256(q, low), _mm256_and_si256(h, _mm256_set1_epi8(0x30)));
    }
    const int at = K == Q4_K ? 16 : 48;
    __m256i q = _mm256_loadu_si256((const __m256i *)(p + at + 32 * (i / 2)));
    if (i % 2) q = _mm256_srli_epi16(q, 4);
    q = _mm256_and_si256(q, low);
    if (K == Q4_K) return q;
    __m256i h = _mm256_loadu_si256((const __m256i *)(p + 16));
    h = i < 4 ? _mm256_slli_epi16(h, 4 - i) : _mm256_srli_epi16(h, i - 4);
    return _mm256_or_si256(q, _mm256_and_si256(h, _mm256_set1_epi8(16)));
}

/* Scales of group i of 32, each in the lanes it belongs to. */
INLINE __m256 scale32(const __m256 d[2], const int i, const kind K) {
    if (K != Q6_K) return _mm256_permutevar8x32_ps(d[0], _mm256_set1_epi32(i));
    const int s = 2 * i % 8;
    return _mm256_permutevar8x32_ps(d[i / 4], _mm256_setr_epi32(s, s, s, s, s + 1, s + 1, s + 1, s + 1));
}

INLINE void super_head(wsuper *g, const uint8_t *p, const kind K) {
    if (K != Q6_K) {
        k_head(g, p);
        return;
    }
    __m128i bytes = _mm_loadu_si128((const __m128i *)(p + 192));
    __m256 super = half_everywhere(p + 208);
    g->d[0] = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), super);
    g->d[1] = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))), super);
}

INLINE void super_step(const cpu_mm *a, acc *s, const uint8_t *w, const char *x, int64_t sb, const int R, const int NC,
                       const kind K) {
    const __m256i twice_lo = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3),
                  twice_hi = _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7);
    UNROLL for (int r = 0; r < R; r++) {
        const uint8_t *p = w + (size_t)r * a->w_row + sb * block_bytes(K);
        wsuper g;
        UNROLL for (int i = 0; i < block_bytes(K); i += 64) {
            _mm_prefetch((const char *)p + s->ahead + i, _MM_HINT_T1);
        }
        super_head(&g, p, K);
        UNROLL for (int i = 0; i < 8; i++) g.v[i] = codes32(p, i, K);
        UNROLL for (int c = 0; c < NC; c++) {
            const char *col = x + (size_t)c * a->x_col, *q = col + 256 * sb;
            __m256 dx = _mm256_loadu_ps((const float *)(col + cpu_act_scales_at(a->k)) + 8 * sb), f = s->f[r * NC + c],
                   d[2];
            const int32_t *n16 = (const int32_t *)(col + cpu_act_n16_at(a->k)) + 16 * sb;
            if (K == Q6_K) {
                d[0] = _mm256_mul_ps(g.d[0], _mm256_permutevar8x32_ps(dx, twice_lo));
                d[1] = _mm256_mul_ps(g.d[1], _mm256_permutevar8x32_ps(dx, twice_hi));
            } else {
                d[0] = d[1] = _mm256_mul_ps(g.d[0], dx);
            }
            UNROLL for (int i = 0; i < 8; i++) {
                __m256i v = _mm256_loadu_si256((const __m256i *)(q + 32 * i));
                __m256i dot = widen(_mm256_maddubs_epi16(g.v[i], v));
                if (K == Q6_K) { /* 32 less for every code: four lanes, and so eight, share it */
                    __m256i n = _mm256_setr_epi32(n16[2 * i], 0, 0, 0, n16[2 * i + 1], 0, 0, 0);
                    dot = _mm256_add_epi32(dot, _mm256_slli_epi32(n, 5));
                }
                f = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale32(d, i, K), f);
            }
            if (K != Q6_K) {
                f = _mm256_fnmadd_ps(g.m, _mm256_loadu_ps((const float *)(col + cpu_act_sums_at(a->k)) + 8 * sb), f);
            }
            s->f[r * NC + c] = f;
        }
    }
}

INLINE void super_rows(const cpu_mm *a, int64_t m, int64_t n, size_t ahead, const int R, const int NC, const kind K,
                       const bool SEG) {
    const uint8_t *w = (const uint8_t *)a->w + (size_t)m * a->w_row;
    const char *x = (const char *)a->x + (size_t)n * a->x_col;
    int64_t supers = a->k / 256, piece = SEG ? segment_piece(a->segment, 256, PIECE_LIMIT) / 256 : supers;
    acc s;
    s.ahead = ahead;
    acc_zero(&s);
    for (int64_t b = 0; b < supers;) {
        int64_t end = b + piece < supers ? b + piece : supers;
        for (; b < end; b++) super_step(a, &s, w, x, b, R, NC, K);
        if (SEG) acc_flush(&s);
    }
    acc_store(a, &s, m, n, R, NC, SEG);
}

/* --- floats ---------------------------------------------------------------------------------------- */

INLINE __m256 load_weights(const uint8_t *p, int64_t i, const kind K) {
    if (K == F32) return _mm256_loadu_ps((const float *)p + i);
    __m128i h = _mm_loadu_si128((const __m128i *)((const uint16_t *)p + i));
    if (K == F16) return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

/* The last 1..7 elements before `end`; zeros after them. */
INLINE __m256 load_weights_tail(const uint8_t *p, int64_t i, int64_t n, const kind K) {
    if (K == F32) return _mm256_maskload_ps((const float *)p + i, mask8(n));
    uint16_t part[8] = {0};
    memcpy(part, (const uint16_t *)p + i, (size_t)n * 2);
    return load_weights((const uint8_t *)part, 0, K);
}

INLINE void float_step(const cpu_mm *a, acc *s, const uint8_t *w, const char *x, int64_t k, int64_t left, const int R,
                       const int NC, const kind K) {
    __m256 xs[4];
    UNROLL for (int c = 0; c < NC; c++) {
        const float *p = (const float *)(x + (size_t)c * a->x_col) + k;
        xs[c] = left >= 8 ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, mask8(left));
    }
    UNROLL for (int r = 0; r < R; r++) {
        const uint8_t *p = w + (size_t)r * a->w_row;
        _mm_prefetch((const char *)p + s->ahead + (K == F32 ? 4 : 2) * k, _MM_HINT_T1);
        __m256 v = left >= 8 ? load_weights(p, k, K) : load_weights_tail(p, k, left, K);
        UNROLL for (int c = 0; c < NC; c++) s->f[r * NC + c] = _mm256_fmadd_ps(v, xs[c], s->f[r * NC + c]);
    }
}

INLINE void float_rows(const cpu_mm *a, int64_t m, int64_t n, size_t ahead, const int R, const int NC, const kind K,
                       const bool SEG) {
    const uint8_t *w = (const uint8_t *)a->w + (size_t)m * a->w_row;
    const char *x = (const char *)a->x + (size_t)n * a->x_col;
    int64_t piece = SEG ? segment_piece(a->segment, 8, PIECE_LIMIT) : a->k;
    acc s;
    s.ahead = ahead;
    acc_zero(&s);
    for (int64_t k = 0; k < a->k;) {
        int64_t end = k + piece < a->k ? k + piece : a->k;
        for (; k + 8 <= end; k += 8) float_step(a, &s, w, x, k, 8, R, NC, K);
        if (k < end) float_step(a, &s, w, x, k, end - k, R, NC, K);
        k = end;
        if (SEG) acc_flush(&s);
    }
    acc_store(a, &s, m, n, R, NC, SEG);
}

/* --- the table ------------------------------------------------------------------------------------- */

INLINE void rows(const cpu_mm *a, int64_t m, int64_t n, size_t ahead, const void *x, const int R, const int NC,
                 const kind K, const bool SEG) {
    (void)x;
    if (K >= F32)
        float_rows(a, m, n, ahead, R, NC, K, SEG);
    else if (K >= Q4_K)
        super_rows(a, m, n, ahead, R, NC, K, SEG);
    else
        blocks_rows(a, m, n, ahead, R, NC, K, SEG);
}

INLINE const void *lay_out(const cpu_mm *a, int64_t n, const int NC, const kind K) {
    (void)a, (void)n, (void)NC, (void)K;
    return NULL;
}

static void mul_many(sheaf_type type, const cpu_mm *a, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
    avx2_mul_tiled(type, a, m0, m1, n0, n1);
}

void avx2_rows(cpu_kernels *t) { put_rows(t); }
