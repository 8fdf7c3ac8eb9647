/* Attention, AVX2: loading a chunk, and its two products four rows by 16 lanes. The walk over heads, tokens and
 * positions, and what must hold, is in kernels_attention.h. */
#include "backends/cpu/kernels_avx2.h"

#include "backends/cpu/kernels_attention.h"

/* --- loading a chunk -------------------------------------------------------------------------------- */

static uint64_t seen_by(const cpu_attn *a, int32_t token, int64_t p0, int32_t n) {
    if (!a->mask) return n == CHUNK ? ~0ull : (1ull << n) - 1;
    const char *m = a->mask + (size_t)token * a->mask_token;
    uint64_t seen = 0;
    int32_t i = 0;
    if (a->mask_type == SHEAF_F32) {
        const float *f = (const float *)m + p0;
        for (; i < n; i++) seen |= (uint64_t)(f[i] != -INFINITY) << i;
        return seen;
    }
    const uint16_t *h = (const uint16_t *)m + p0;
    for (; i + 16 <= n; i += 16) {
        __m256i x = _mm256_loadu_si256((const __m256i *)(h + i));
        __m256i hidden = _mm256_cmpeq_epi16(x, _mm256_set1_epi16((short)0xfc00));
        __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(hidden, hidden), 0x08);
        seen |= (uint64_t)(~(uint32_t)_mm256_movemask_epi8(bytes) & 0xffff) << i;
    }
    for (; i < n; i++) seen |= (uint64_t)(h[i] != 0xfc00) << i;
    return seen;
}

/* A KV row as f32, with zeros up to `stride`. */
static void kv_row(sheaf_type type, const char *p, float *to, int32_t n, int32_t stride) {

    int32_t i = 0;
    if (type == SHEAF_F16) {
        const uint16_t *h = (const uint16_t *)p;
        for (; i + 8 <= n; i += 8) {
            _mm256_store_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(h + i))));
        }
        for (; i < n; i++) to[i] = _cvtsh_ss(h[i]);
    } else if (type == SHEAF_F32) {
        memcpy(to, p, (size_t)n * 4);
    } else {
        sheaf_to_float(type, p, to, n);
    }
    for (i = n; i < stride; i++) to[i] = 0.0f;
}

/* Eight positions' worth of kt. Positions past n repeat the last one: their scores are replaced anyway. */
static void load_keys8(const cpu_attn *a, work *w, const char *k, int32_t at, int32_t n) {
    for (int j = 0; j < 8; j++) {
        int32_t pos = at + j < n ? at + j : n - 1;
        kv_row(a->k_type, k + (size_t)pos * a->k_pos, w->lines + (size_t)j * (size_t)w->k_stride, a->head_k,
               w->k_stride);
    }
    for (int32_t i = 0; i < w->k_stride; i += 8) {
        __m256i r[8];
        UNROLL for (int j = 0; j < 8; j++) {
            r[j] = _mm256_load_si256((const __m256i *)(w->lines + (size_t)j * (size_t)w->k_stride + i));
        }
        transpose8(r);
        UNROLL for (int j = 0; j < 8; j++) _mm256_store_si256((__m256i *)(w->kt + (size_t)(i + j) * CHUNK + at), r[j]);
    }
}

static void load_values(const cpu_attn *a, work *w, const char *v, int32_t n) {
    const __m256i exponent = _mm256_set1_epi32(0x7f800000);
    __m256i bad = _mm256_setzero_si256();
    for (int32_t pos = 0; pos < n; pos++) {
        float *to = w->v + (size_t)pos * (size_t)w->v_stride;
        kv_row(a->v_type, v + (size_t)pos * a->v_pos, to, a->head_v, w->v_stride);
        for (int32_t i = 0; i < w->v_stride; i += 8) {
            __m256i bits = _mm256_and_si256(_mm256_load_si256((const __m256i *)(to + i)), exponent);
            bad = _mm256_or_si256(bad, _mm256_cmpeq_epi32(bits, exponent));
        }
    }
    memset(w->v + (size_t)n * (size_t)w->v_stride, 0, (size_t)(CHUNK - n) * (size_t)w->v_stride * 4);
    w->finite = _mm256_testz_si256(bad, bad);
}

static void load_chunk(const cpu_attn *a, work *w, const char *k, const char *v, int32_t n) {
    for (int32_t at = 0; at < CHUNK; at += 8) load_keys8(a, w, k, at, n);
    load_values(a, w, v, n);
}

static float exp_one(float x) { return _mm256_cvtss_f32(exp8(_mm256_set1_ps(x))); }

/* --- the two products --------------------------------------------------------------------------------- */

/* Dot products of R rows with all 64 positions, into prob. */
INLINE void score_rows(work *w, row *const *r, int32_t head_k, const int R) {
    for (int at = 0; at < CHUNK; at += 16) {
        __m256 s[BLOCK][2];
        UNROLL for (int j = 0; j < R; j++) s[j][0] = s[j][1] = _mm256_setzero_ps();
        const float *k = w->kt + at;
        for (int32_t i = 0; i < head_k; i++, k += CHUNK) {
            __m256 k0 = _mm256_load_ps(k), k1 = _mm256_load_ps(k + 8);
            UNROLL for (int j = 0; j < R; j++) {
                __m256 q = _mm256_broadcast_ss(r[j]->q + i);
                s[j][0] = _mm256_fmadd_ps(q, k0, s[j][0]);
                s[j][1] = _mm256_fmadd_ps(q, k1, s[j][1]);
            }
        }
        UNROLL for (int j = 0; j < R; j++) {
            _mm256_storeu_ps(&w->prob[j][at], s[j][0]);
            _mm256_storeu_ps(&w->prob[j][at + 8], s[j][1]);
        }
    }
}

INLINE __m256 out_load(const float *p, int32_t left) {
    return left >= 8 ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, mask8(left));
}

INLINE void out_store(float *p, int32_t left, __m256 x) {
    if (left >= 8)
        _mm256_storeu_ps(p, x);
    else
        _mm256_maskstore_ps(p, mask8(left), x);
}

/* out[row][i..i+8*NV) = keep*out + prob . v */
INLINE void value_rows(const work *w, row *const *r, const float *keep, int32_t i, int32_t left, const int R,
                       const int NV) {
    __m256 o[BLOCK][2];
    UNROLL for (int j = 0; j < R; j++) {
        UNROLL for (int c = 0; c < NV; c++) {
            o[j][c] = _mm256_mul_ps(out_load(r[j]->out + i + 8 * c, left - 8 * c), _mm256_set1_ps(keep[j]));
        }
    }
    const float *v = w->v + i;
    for (int p = 0; p < CHUNK; p++, v += w->v_stride) {
        __m256 x[2];
        UNROLL for (int c = 0; c < NV; c++) x[c] = _mm256_load_ps(v + 8 * c);
        UNROLL for (int j = 0; j < R; j++) {
            __m256 pr = _mm256_broadcast_ss(&w->prob[j][p]);
            UNROLL for (int c = 0; c < NV; c++) o[j][c] = _mm256_fmadd_ps(pr, x[c], o[j][c]);
        }
    }
    UNROLL for (int j = 0; j < R; j++) {
        UNROLL for (int c = 0; c < NV; c++) out_store(r[j]->out + i + 8 * c, left - 8 * c, o[j][c]);
    }
}

INLINE void values_all(const cpu_attn *a, const work *w, row *const *r, const float *keep, const int R) {
    int32_t i = 0;
    for (; i + 16 <= a->head_v; i += 16) value_rows(w, r, keep, i, 16, R, 2);
    int32_t left = a->head_v - i;
    if (left > 8)
        value_rows(w, r, keep, i, left, R, 2);
    else if (left > 0)
        value_rows(w, r, keep, i, left, R, 1);
}

/* The same for one row whose chunk of V holds something that is no number: hidden positions are left out. */
static void values_seen(const cpu_attn *a, const work *w, row *r, float keep, const float *prob, uint64_t seen) {
    for (int32_t i = 0; i < a->head_v; i += 8) {
        __m256 o = _mm256_mul_ps(out_load(r->out + i, a->head_v - i), _mm256_set1_ps(keep));
        for (uint64_t set = seen; set; set &= set - 1) {
            int p = __builtin_ctzll(set);
            __m256 x = _mm256_load_ps(w->v + (size_t)p * (size_t)w->v_stride + i);
            o = _mm256_fmadd_ps(_mm256_set1_ps(prob[p]), x, o);
        }
        out_store(r->out + i, a->head_v - i, o);
    }
}

/* --- softmax of one row's chunk ------------------------------------------------------------------------- */

/* The mask of `n` visible or hidden positions from `pos`; past the KV's end it is 0. */
static void mask_line(const cpu_attn *a, int32_t token, int64_t pos, int32_t n, float *to) {
    const char *m = a->mask + (size_t)token * a->mask_token;
    memset(to, 0, CHUNK * sizeof *to);
    if (a->mask_type == SHEAF_F32) {
        memcpy(to, (const float *)m + pos, (size_t)n * sizeof *to);
        return;
    }
    const uint16_t *h = (const uint16_t *)m + pos;
    int32_t i = 0;
    for (; i + 8 <= n; i += 8) { _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(h + i)))); }
    for (; i < n; i++) to[i] = _cvtsh_ss(h[i]);
}

/* All ones in the lanes of positions 8c..8c+7 that are seen. */
INLINE __m256 seen_lanes(uint64_t seen, int c) {
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    __m256i x = _mm256_and_si256(_mm256_set1_epi32((int)(seen >> (8 * c) & 255)), bit);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(x, bit));
}

/* Raw dot products to probabilities against the row's new maximum; returns what its older sums are worth now. */
static float soft_max_chunk(const cpu_attn *a, row *r, int32_t token, int64_t p0, uint64_t seen, float *prob) {
    const __m256 hidden = _mm256_set1_ps(-INFINITY), cap = _mm256_set1_ps(a->soft_cap);
    int64_t left = a->n_kv - p0;
    float mask[CHUNK];
    __m256 best = hidden, sum = _mm256_setzero_ps();
    if (a->mask) mask_line(a, token, p0, left < CHUNK ? (int32_t)left : CHUNK, mask);
    for (int c = 0; c < 8; c++) {
        __m256 x = _mm256_mul_ps(_mm256_loadu_ps(prob + 8 * c), _mm256_set1_ps(a->scale));
        if (a->soft_cap != 0.0f) x = _mm256_mul_ps(cap, tanh8(_mm256_div_ps(x, cap)));
        if (a->mask) x = _mm256_fmadd_ps(_mm256_set1_ps(r->slope), _mm256_loadu_ps(mask + 8 * c), x);
        x = _mm256_blendv_ps(hidden, x, seen_lanes(seen, c));
        _mm256_storeu_ps(prob + 8 * c, x);
        best = _mm256_max_ps(best, x);
    }
    float top = max_lanes(best);
    top = top > r->best ? top : r->best;
    float keep = r->best == -INFINITY ? 0.0f : exp_one(r->best - top);
    for (int c = 0; c < 8; c++) {
        __m256 p = exp8(_mm256_sub_ps(_mm256_loadu_ps(prob + 8 * c), _mm256_set1_ps(top)));
        p = _mm256_and_ps(p, seen_lanes(seen, c));
        _mm256_storeu_ps(prob + 8 * c, p);
        sum = _mm256_add_ps(sum, p);
    }
    r->best = top;
    r->sum = r->sum * keep + sum_lanes(sum);
    return keep;
}

INLINE void block_rows(const cpu_attn *a, work *w, row **r, int64_t p0, const int R) {
    float keep[BLOCK];
    score_rows(w, r, a->head_k, R);
    for (int j = 0; j < R; j++) {
        keep[j] = soft_max_chunk(a, r[j], w->token0 + r[j]->token, p0, w->visible[r[j]->token], w->prob[j]);
    }
    if (w->finite) {
        values_all(a, w, r, keep, R);
        return;
    }
    for (int j = 0; j < R; j++) values_seen(a, w, r[j], keep[j], w->prob[j], w->visible[r[j]->token]);
}

static void block_of(const cpu_attn *a, work *w, row **r, int64_t p0, int n) {
    switch (n) {
    case 1: block_rows(a, w, r, p0, 1); break;
    case 2: block_rows(a, w, r, p0, 2); break;
    case 3: block_rows(a, w, r, p0, 3); break;
    default: block_rows(a, w, r, p0, 4); break;
    }
}

void avx2_attention(cpu_kernels *t) { t->attention = attention; }
