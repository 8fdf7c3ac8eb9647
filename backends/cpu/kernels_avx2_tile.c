/* Tiled matmul for many columns, AVX2: tiles of 16 rows; the walk is in kernels_tile.h.
 *
 * The 8-bit products of AVX2 (unsigned by signed) add in pairs to 16 bits, so how many pairs may be added there before
 * they are widened depends on the codes:
 *
 *     codes up to 15   8 times (32 elements)      up to 63   2 times
 *     codes up to 31   4 times                    8 bits     once, as |w| times x with w's sign
 */
#include "backends/cpu/kernels_avx2.h"

enum { ROWS = 16, HALF = 8, PANEL = 3, PANEL_F32 = 6 };

#include "backends/cpu/kernels_tile.h"

INLINE void add_f64(double *sum, __m256 x) {
    _mm256_store_pd(sum, _mm256_add_pd(_mm256_load_pd(sum), low_f64(x)));
    _mm256_store_pd(sum + 4, _mm256_add_pd(_mm256_load_pd(sum + 4), high_f64(x)));
}

INLINE void add_piece(tile *t, int64_t column, bool f64, __m256 lo, __m256 hi) {
    if (f64) {
        add_f64(t->sum.f64[column], lo);
        add_f64(t->sum.f64[column] + 8, hi);
        return;
    }
    float *sum = t->sum.f32[column];
    _mm256_store_ps(sum, _mm256_add_ps(_mm256_load_ps(sum), lo));
    _mm256_store_ps(sum + 8, _mm256_add_ps(_mm256_load_ps(sum + 8), hi));
}

INLINE __m256 broadcast(const char *p) { return _mm256_broadcast_ss((const float *)p); }

/* --- integer panels --------------------------------------------------------------------------------- */

/* Four elements of 16 rows for NC columns, as 16-bit pairs. */
INLINE void pairs(__m256i p[PANEL][2], const uint8_t *w, const char *q, size_t stride, const int NC,
                  const bool SIGNED) {
    __m256i lo = _mm256_load_si256((const __m256i *)w), hi = _mm256_load_si256((const __m256i *)(w + 32));
    __m256i lo_size = lo, hi_size = hi;
    if (SIGNED) lo_size = _mm256_abs_epi8(lo), hi_size = _mm256_abs_epi8(hi);
    UNROLL for (int j = 0; j < NC; j++) {
        int32_t word;
        memcpy(&word, q + (size_t)j * stride, 4);
        __m256i x = _mm256_set1_epi32(word);
        p[j][0] = _mm256_maddubs_epi16(lo_size, SIGNED ? _mm256_sign_epi8(x, lo) : x);
        p[j][1] = _mm256_maddubs_epi16(hi_size, SIGNED ? _mm256_sign_epi8(x, hi) : x);
    }
}

/* groups x 4 elements: c[j] += w . x, widened to 32 bits after every DEPTH groups. */
INLINE void dot_groups(__m256i c[PANEL][2], const uint8_t *w, const char *q, size_t stride, const int groups,
                       const int NC, const int DEPTH) {
    const __m256i ones = _mm256_set1_epi16(1);
    UNROLL for (int g0 = 0; g0 < groups; g0 += DEPTH) {
        __m256i s[PANEL][2];
        pairs(s, w + g0 * 64, q + 4 * g0, stride, NC, DEPTH == 1);
        UNROLL for (int g = g0 + 1; g < g0 + DEPTH; g++) {
            __m256i p[PANEL][2];
            pairs(p, w + g * 64, q + 4 * g, stride, NC, false);
            UNROLL for (int j = 0; j < NC; j++) {
                s[j][0] = _mm256_add_epi16(s[j][0], p[j][0]);
                s[j][1] = _mm256_add_epi16(s[j][1], p[j][1]);
            }
        }
        UNROLL for (int j = 0; j < NC; j++) {
            __m256i lo = _mm256_madd_epi16(s[j][0], ones), hi = _mm256_madd_epi16(s[j][1], ones);
            c[j][0] = g0 ? _mm256_add_epi32(c[j][0], lo) : lo;
            c[j][1] = g0 ? _mm256_add_epi32(c[j][1], hi) : hi;
        }
    }
}

/* One group of GROUP elements whose codes are at w and scales at d (and m): a += d*dx*(w.x) + m*s */
INLINE void add_group(__m256 a[PANEL][2], const uint8_t *w, const float *d, const float *m, const columns *x,
                      size_t at_q, size_t at_d, size_t at_n, const int NC, const int GROUP, const bool MIN,
                      const int DEPTH, int32_t shift) {
    __m256i c[PANEL][2];
    dot_groups(c, w, x->q + at_q, x->stride, GROUP / 4, NC, DEPTH);
    UNROLL for (int j = 0; j < NC; j++) {
        size_t offset = (size_t)j * x->stride;
        if (!MIN && DEPTH > 1) {
            int32_t n = *(const int32_t *)(x->n + offset + at_n);
            __m256i start = _mm256_set1_epi32(n * (1 << shift));
            c[j][0] = _mm256_add_epi32(c[j][0], start);
            c[j][1] = _mm256_add_epi32(c[j][1], start);
        }
        __m256 dx = broadcast(x->d + offset + at_d);
        a[j][0] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(c[j][0]), _mm256_mul_ps(_mm256_load_ps(d), dx), a[j][0]);
        a[j][1] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(c[j][1]), _mm256_mul_ps(_mm256_load_ps(d + 8), dx), a[j][1]);
        if (!MIN) continue;
        __m256 s = broadcast(x->s + offset + at_d);
        if (GROUP == 16) s = _mm256_mul_ps(dx, _mm256_set1_ps((float)-*(const int32_t *)(x->n + offset + at_n)));
        a[j][0] = _mm256_fmadd_ps(_mm256_load_ps(m), s, a[j][0]);
        a[j][1] = _mm256_fmadd_ps(_mm256_load_ps(m + 8), s, a[j][1]);
    }
}

INLINE void int_panel(tile *t, const int_job *job, columns x, int64_t column, const int NC, const int GROUP,
                      const bool MIN, const int DEPTH) {
    for (int32_t b0 = 0; b0 < job->blocks; b0 += job->piece) {
        int32_t end = b0 + job->piece < job->blocks ? b0 + job->piece : job->blocks;
        __m256 a[PANEL][2];
        UNROLL for (int j = 0; j < NC; j++) a[j][0] = a[j][1] = _mm256_setzero_ps();
        for (int32_t b = b0; b < end; b++) {
            size_t q = (size_t)b * 32, d = (size_t)b * 4;
            const uint8_t *w = &t->code[b * 8][0][0];
            if (GROUP == 32) {
                add_group(a, w, t->d[b], t->m[b], &x, q, d, d, NC, 32, MIN, DEPTH, job->shift);
            } else {
                add_group(a, w, t->d[2 * b], t->m[2 * b], &x, q, d, 2 * d, NC, 16, MIN, DEPTH, job->shift);
                add_group(a, w + 256, t->d[2 * b + 1], t->m[2 * b + 1], &x, q + 16, d, 2 * d + 4, NC, 16, MIN, DEPTH,
                          job->shift);
            }
        }
        UNROLL for (int j = 0; j < NC; j++) add_piece(t, column + j, job->f64, a[j][0], a[j][1]);
    }
}

#define PANEL_OF(name, NC, GROUP, MIN, DEPTH)                                                                          \
    static void name##_##NC(tile *t, const int_job *job, columns x, int64_t column) {                                  \
        int_panel(t, job, x, column, NC, GROUP, MIN, DEPTH);                                                           \
    }
#define PANELS(name, GROUP, MIN, DEPTH)                                                                                \
    PANEL_OF(name, 1, GROUP, MIN, DEPTH)                                                                               \
    PANEL_OF(name, 2, GROUP, MIN, DEPTH)                                                                               \
    PANEL_OF(name, 3, GROUP, MIN, DEPTH)                                                                               \
    static const panel_fn name[PANEL + 1] = {NULL, name##_1, name##_2, name##_3};
PANELS(panel_offset_4bit, 32, false, 8)
PANELS(panel_offset_5bit, 32, false, 4)
PANELS(panel_signed_8bit, 32, false, 1)
PANELS(panel_min_4bit, 32, true, 8)
PANELS(panel_min_5bit, 32, true, 4)
PANELS(panel_offset16, 16, false, 2)
PANELS(panel_min16, 16, true, 4)

static const panel_fn *panels_of(const int_type *type) {
    switch (type->type) {
    case SHEAF_Q4_0: return panel_offset_4bit;
    case SHEAF_Q5_0:
    case SHEAF_MXFP4: return panel_offset_5bit;
    case SHEAF_Q4_1:
    case SHEAF_Q4_K: return panel_min_4bit;
    case SHEAF_Q5_1:
    case SHEAF_Q5_K: return panel_min_5bit;
    case SHEAF_Q2_K: return panel_min16;
    case SHEAF_Q3_K:
    case SHEAF_Q6_K: return panel_offset16;
    default: return panel_signed_8bit; /* q8_0, iq4_nl, iq4_xs: offset 128, made signed when the tile is laid out */
    }
}

/* Codes of types whose offset is 128 become signed here. */
static void interleave_codes(tile *t, const int_type *type, int half, int32_t len) {
    const __m256i flip = _mm256_set1_epi8(type->shift == 7 ? (char)0x80 : 0);
    for (int32_t i = 0; i < len; i += 32) {
        __m256i r[8];
        UNROLL for (int j = 0; j < 8; j++) r[j] = _mm256_load_si256((const __m256i *)(t->row[j] + i));
        transpose8(r);
        UNROLL for (int j = 0; j < 8; j++) {
            _mm256_store_si256((__m256i *)&t->code[i / 4 + j][8 * half][0], _mm256_xor_si256(r[j], flip));
        }
    }
}

/* --- float panels ----------------------------------------------------------------------------------- */

INLINE void float_panel(tile *t, const char *x, size_t stride, int32_t len, bool f64, int64_t column, const int NC) {
    const float *w = (const float *)t->code;
    __m256 a[PANEL_F32][2];
    UNROLL for (int j = 0; j < NC; j++) a[j][0] = a[j][1] = _mm256_setzero_ps();
    for (int32_t k = 0; k < len; k++) {
        __m256 lo = _mm256_load_ps(w + k * ROWS), hi = _mm256_load_ps(w + k * ROWS + 8);
        UNROLL for (int j = 0; j < NC; j++) {
            __m256 v = broadcast(x + (size_t)j * stride + 4 * (size_t)k);
            a[j][0] = _mm256_fmadd_ps(lo, v, a[j][0]);
            a[j][1] = _mm256_fmadd_ps(hi, v, a[j][1]);
        }
    }
    UNROLL for (int j = 0; j < NC; j++) add_piece(t, column + j, f64, a[j][0], a[j][1]);
}

static void float_panels(tile *t, const char *x, size_t stride, int32_t len, bool f64, int64_t column, int64_t nc) {
    switch (nc) {
    case 1: float_panel(t, x, stride, len, f64, column, 1); break;
    case 2: float_panel(t, x, stride, len, f64, column, 2); break;
    case 3: float_panel(t, x, stride, len, f64, column, 3); break;
    case 4: float_panel(t, x, stride, len, f64, column, 4); break;
    case 5: float_panel(t, x, stride, len, f64, column, 5); break;
    default: float_panel(t, x, stride, len, f64, column, 6); break;
    }
}

static void row_to_float(sheaf_type type, const void *src, float *dst, int32_t n) {
    const uint16_t *h = src;
    int32_t i = 0;
    if (type == SHEAF_F32) {
        memcpy(dst, src, (size_t)n * 4);
        return;
    }
    for (; i + 8 <= n; i += 8) {
        __m128i x = _mm_loadu_si128((const __m128i *)(h + i));
        __m256 wide = type == SHEAF_F16 ? _mm256_cvtph_ps(x)
                                        : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
        _mm256_storeu_ps(dst + i, wide);
    }
    for (; i < n; i++) dst[i] = type == SHEAF_F16 ? _cvtsh_ss(h[i]) : sheaf_bf16_to_f32(h[i]);
}

static void interleave_floats(tile *t, int half, int32_t len) {
    float *w = (float *)t->code, *row = (float *)t->row;
    for (int32_t i = 0; i < len; i += 8) {
        __m256i r[8];
        UNROLL for (int j = 0; j < 8; j++) r[j] = _mm256_load_si256((const __m256i *)(row + j * KC_F32 + i));
        transpose8(r);
        UNROLL for (int j = 0; j < 8; j++) _mm256_store_si256((__m256i *)(w + (i + j) * ROWS + 8 * half), r[j]);
    }
}

void avx2_mul_tiled(sheaf_type type, const cpu_mm *a, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
    mul_tiled(type, a, m0, m1, n0, n1);
}

void avx2_tiles(cpu_kernels *t) { put_tiles(t); }
