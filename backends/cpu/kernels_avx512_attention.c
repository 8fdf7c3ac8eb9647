/* Attention, AVX-512: loading a chunk, and its two products four rows by 64 lanes. The walk over heads, tokens and
 * positions, and what must hold, is in kernels_attention.h. */
#include "backends/cpu/kernels_avx512.h"

#include "backends/cpu/kernels_attention.h"

/* --- loading a chunk -------------------------------------------------------------------------------- */

static uint64_t seen_by(const cpu_attn *a, int32_t token, int64_t p0, int32_t n) {
    uint64_t inside = n == CHUNK ? ~0ull : (1ull << n) - 1;
    if (!a->mask) return inside;
    const char *m = a->mask + (size_t)token * a->mask_token;
    uint64_t seen = 0;
    if (a->mask_type == SHEAF_F32) {
        for (int i = 0; i < 4; i++) {
            __mmask16 some = (__mmask16)(inside >> (16 * i));
            __m512 x = _mm512_maskz_loadu_ps(some, m + 4 * (p0 + 16 * i));
            __mmask16 open = _mm512_mask_cmp_ps_mask(some, x, _mm512_set1_ps(-INFINITY), _CMP_NEQ_UQ);
            seen |= (uint64_t)open << (16 * i);
        }
        return seen;
    }
    for (int i = 0; i < 2; i++) {
        __mmask32 some = (__mmask32)(inside >> (32 * i));
        __m512i x = _mm512_maskz_loadu_epi16(some, m + 2 * (p0 + 32 * i));
        seen |= (uint64_t)_mm512_mask_cmpneq_epi16_mask(some, x, _mm512_set1_epi16((short)0xfc00)) << (32 * i);
    }
    return seen;
}

/* 16 elements of a KV row from element i, zeros past n. */
INLINE __m512 kv_load(sheaf_type type, const char *p, int32_t i, int32_t n) {
    __mmask16 some = mask16(n - i);
    if (type == SHEAF_F32) return _mm512_maskz_loadu_ps(some, p + 4 * i);
    __m256i h = _mm256_maskz_loadu_epi16(some, p + 2 * i);
    if (type == SHEAF_F16) return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

static bool is_float(sheaf_type t) { return t == SHEAF_F32 || t == SHEAF_F16 || t == SHEAF_BF16; }

/* A quantized KV row becomes f32 in `tmp` first. */
static const char *plain_row(sheaf_type *type, const char *p, float *tmp, int32_t n) {
    if (is_float(*type)) return p;
    sheaf_to_float(*type, p, tmp, n);
    *type = SHEAF_F32;
    return (const char *)tmp;
}

/* 16 positions' worth of kt. Positions past n repeat the last one: their scores are replaced anyway. */
static void load_keys16(const cpu_attn *a, work *w, const char *k, int32_t at, int32_t n) {
    const char *p[16];
    sheaf_type type = a->k_type;
    for (int j = 0; j < 16; j++) {
        int32_t pos = at + j < n ? at + j : n - 1;
        type = a->k_type;
        p[j] = plain_row(&type, k + (size_t)pos * a->k_pos, w->lines + (size_t)j * (size_t)w->k_stride, a->head_k);
    }
    for (int32_t i = 0; i < a->head_k; i += 16) {
        __m512i r[16];
        for (int j = 0; j < 16; j++) r[j] = _mm512_castps_si512(kv_load(type, p[j], i, a->head_k));
        transpose16(r);
        int32_t rows = a->head_k - i < 16 ? a->head_k - i : 16;
        for (int j = 0; j < rows; j++) _mm512_store_si512(w->kt + (size_t)(i + j) * CHUNK + at, r[j]);
    }
}

static void load_values(const cpu_attn *a, work *w, const char *v, int32_t n) {
    __mmask16 bad = 0;
    for (int32_t pos = 0; pos < n; pos++) {
        float *to = w->v + (size_t)pos * (size_t)w->v_stride;
        sheaf_type type = a->v_type;
        const char *p = plain_row(&type, v + (size_t)pos * a->v_pos, to, a->head_v);
        for (int32_t i = 0; i < a->head_v; i += 16) {
            __m512 x = kv_load(type, p, i, a->head_v);
            bad |= _mm512_fpclass_ps_mask(x, 0x99); /* NaN and infinities */
            _mm512_store_ps(to + i, x);
        }
    }
    memset(w->v + (size_t)n * (size_t)w->v_stride, 0, (size_t)(CHUNK - n) * (size_t)w->v_stride * 4);
    w->finite = bad == 0;
}

static void load_chunk(const cpu_attn *a, work *w, const char *k, const char *v, int32_t n) {
    for (int32_t at = 0; at < CHUNK; at += 16) load_keys16(a, w, k, at, n);
    load_values(a, w, v, n);
}

static float exp_one(float x) { return _mm512_cvtss_f32(exp16(_mm512_set1_ps(x))); }

/* --- the two products --------------------------------------------------------------------------------- */

INLINE void score_rows(const work *w, const row *const *r, int32_t head_k, __m512 s[BLOCK][4], const int R) {
    UNROLL for (int j = 0; j < R; j++) s[j][0] = s[j][1] = s[j][2] = s[j][3] = _mm512_setzero_ps();
    for (int32_t i = 0; i < head_k; i++) {
        const float *k = w->kt + (size_t)i * CHUNK;
        __m512 k0 = _mm512_load_ps(k), k1 = _mm512_load_ps(k + 16), k2 = _mm512_load_ps(k + 32),
               k3 = _mm512_load_ps(k + 48);
        UNROLL for (int j = 0; j < R; j++) {
            __m512 q = _mm512_set1_ps(r[j]->q[i]);
            s[j][0] = _mm512_fmadd_ps(q, k0, s[j][0]);
            s[j][1] = _mm512_fmadd_ps(q, k1, s[j][1]);
            s[j][2] = _mm512_fmadd_ps(q, k2, s[j][2]);
            s[j][3] = _mm512_fmadd_ps(q, k3, s[j][3]);
        }
    }
}

/* out[row][i..i+16*NV) = keep*out + prob . v */
INLINE void value_rows(const work *w, row *const *r, const float *keep, int32_t i, __mmask16 last, const int R,
                       const int NV) {
    __m512 o[BLOCK][4];
    UNROLL for (int j = 0; j < R; j++) {
        UNROLL for (int c = 0; c < NV; c++) {
            __m512 x = _mm512_maskz_loadu_ps(c == NV - 1 ? last : 0xffff, r[j]->out + i + 16 * c);
            o[j][c] = _mm512_mul_ps(x, _mm512_set1_ps(keep[j]));
        }
    }
    const float *v = w->v + i;
    for (int p = 0; p < CHUNK; p++, v += w->v_stride) {
        __m512 x[4];
        UNROLL for (int c = 0; c < NV; c++) x[c] = _mm512_load_ps(v + 16 * c);
        UNROLL for (int j = 0; j < R; j++) {
            __m512 pr = _mm512_set1_ps(w->prob[j][p]);
            UNROLL for (int c = 0; c < NV; c++) o[j][c] = _mm512_fmadd_ps(pr, x[c], o[j][c]);
        }
    }
    UNROLL for (int j = 0; j < R; j++) {
        UNROLL for (int c = 0; c < NV; c++) {
            _mm512_mask_storeu_ps(r[j]->out + i + 16 * c, c == NV - 1 ? last : 0xffff, o[j][c]);
        }
    }
}

INLINE void values_all(const cpu_attn *a, const work *w, row *const *r, const float *keep, const int R) {
    int32_t i = 0;
    for (; i + 64 <= a->head_v; i += 64) value_rows(w, r, keep, i, 0xffff, R, 4);
    int32_t left = a->head_v - i, vectors = (left + 15) / 16;
    __mmask16 last = mask16(left - 16 * (vectors - 1));
    if (vectors == 1) value_rows(w, r, keep, i, last, R, 1);
    if (vectors == 2) value_rows(w, r, keep, i, last, R, 2);
    if (vectors == 3) value_rows(w, r, keep, i, last, R, 3);
    if (vectors == 4) value_rows(w, r, keep, i, last, R, 4);
}

/* The same for one row whose chunk of V holds something that is no number: hidden positions are left out. */
static void values_seen(const cpu_attn *a, const work *w, row *r, float keep, const float *prob, uint64_t seen) {
    for (int32_t i = 0; i < a->head_v; i += 16) {
        __mmask16 some = mask16(a->head_v - i);
        __m512 o = _mm512_mul_ps(_mm512_maskz_loadu_ps(some, r->out + i), _mm512_set1_ps(keep));
        for (uint64_t left = seen; left; left &= left - 1) {
            int p = __builtin_ctzll(left);
            __m512 x = _mm512_load_ps(w->v + (size_t)p * (size_t)w->v_stride + i);
            o = _mm512_fmadd_ps(_mm512_set1_ps(prob[p]), x, o);
        }
        _mm512_mask_storeu_ps(r->out + i, some, o);
    }
}

/* --- softmax of one row's chunk ------------------------------------------------------------------------- */

INLINE __m512 mask_load(const cpu_attn *a, int32_t token, int64_t pos, __mmask16 some) {
    const char *m = a->mask + (size_t)token * a->mask_token;
    if (a->mask_type == SHEAF_F32) return _mm512_maskz_loadu_ps(some, m + 4 * pos);
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(some, m + 2 * pos));
}

/* Raw dot products to probabilities against the row's new maximum; returns what its older sums are worth now. */
INLINE float soft_max_chunk(const cpu_attn *a, row *r, int32_t token, int64_t p0, uint64_t seen, const __m512 s[4],
                            float *prob) {
    const __m512 hidden = _mm512_set1_ps(-INFINITY);
    __m512 x[4], best = hidden;
    UNROLL for (int c = 0; c < 4; c++) {
        __mmask16 some = (__mmask16)(seen >> (16 * c));
        x[c] = _mm512_mul_ps(s[c], _mm512_set1_ps(a->scale));
        if (a->soft_cap != 0.0f) {
            __m512 cap = _mm512_set1_ps(a->soft_cap);
            x[c] = _mm512_mul_ps(cap, tanh16(_mm512_div_ps(x[c], cap)));
        }
        if (a->mask) x[c] = _mm512_fmadd_ps(_mm512_set1_ps(r->slope), mask_load(a, token, p0 + 16 * c, some), x[c]);
        x[c] = _mm512_mask_blend_ps(some, hidden, x[c]);
        best = _mm512_max_ps(best, x[c]);
    }
    float top = _mm512_reduce_max_ps(best);
    top = top > r->best ? top : r->best;
    float keep = r->best == -INFINITY ? 0.0f : exp_one(r->best - top);
    __m512 sum = _mm512_setzero_ps();
    UNROLL for (int c = 0; c < 4; c++) {
        __mmask16 some = (__mmask16)(seen >> (16 * c));
        __m512 p = _mm512_maskz_mov_ps(some, exp16(_mm512_sub_ps(x[c], _mm512_set1_ps(top))));
        _mm512_storeu_ps(prob + 16 * c, p);
        sum = _mm512_add_ps(sum, p);
    }
    r->best = top;
    r->sum = r->sum * keep + sum_lanes(sum);
    return keep;
}

INLINE void block_rows(const cpu_attn *a, work *w, row **r, int64_t p0, const int R) {
    __m512 s[BLOCK][4];
    float keep[BLOCK];
    score_rows(w, (const row *const *)r, a->head_k, s, R);
    UNROLL for (int j = 0; j < R; j++) {
        keep[j] = soft_max_chunk(a, r[j], w->token0 + r[j]->token, p0, w->visible[r[j]->token], s[j], w->prob[j]);
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

void avx512_attention(cpu_kernels *t) { t->attention = attention; }
