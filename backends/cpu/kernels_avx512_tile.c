/* Tiled matmul for many columns, AVX-512 with VNNI: tiles of 32 rows; the walk is in kernels_tile.h.
 *
 * Six columns at a time: 12 integer and 12 float accumulators, each 4-5 cycles from its last use. One vpdpbusd takes
 * 16 rows by 4 elements, unsigned codes against the column's signed bytes. */
#include "backends/cpu/kernels_avx512.h"

enum { ROWS = 32, HALF = 16, PANEL = 6, PANEL_F32 = 6 };

#include "backends/cpu/kernels_tile.h"

INLINE void add_f32(float *sum, __m512 lo, __m512 hi) {
    _mm512_store_ps(sum, _mm512_add_ps(_mm512_load_ps(sum), lo));
    _mm512_store_ps(sum + 16, _mm512_add_ps(_mm512_load_ps(sum + 16), hi));
}

INLINE void add_f64(double *sum, __m512 x) {
    _mm512_store_pd(sum, _mm512_add_pd(_mm512_load_pd(sum), low_f64(x)));
    _mm512_store_pd(sum + 8, _mm512_add_pd(_mm512_load_pd(sum + 8), high_f64(x)));
}

INLINE void add_piece(tile *t, int64_t column, bool f64, __m512 lo, __m512 hi) {
    if (f64) {
        add_f64(t->sum.f64[column], lo);
        add_f64(t->sum.f64[column] + 16, hi);
    } else {
        add_f32(t->sum.f32[column], lo, hi);
    }
}

/* --- integer panels --------------------------------------------------------------------------------- */

INLINE __m512 broadcast(const char *p) { return _mm512_set1_ps(*(const float *)p); }

/* `groups` vectors of four elements, for NC columns: c += w . x */
INLINE void dot_groups(__m512i c[PANEL][2], const uint8_t *w, const char *q, size_t stride, int groups, int NC) {
    UNROLL for (int g = 0; g < groups; g++) {
        __m512i lo = _mm512_load_si512(w + g * 128), hi = _mm512_load_si512(w + g * 128 + 64);
        UNROLL for (int j = 0; j < NC; j++) {
            int32_t word;
            memcpy(&word, q + (size_t)j * stride + 4 * g, 4);
            __m512i x = _mm512_set1_epi32(word);
            c[j][0] = _mm512_dpbusd_epi32(c[j][0], lo, x);
            c[j][1] = _mm512_dpbusd_epi32(c[j][1], hi, x);
        }
    }
}

/* One group of GROUP elements whose codes are at w and scales at d (and m): a += d*dx*(w.x) + m*s */
INLINE void add_group(__m512 a[PANEL][2], const uint8_t *w, const float *d, const float *m, const columns *x,
                      size_t at_q, size_t at_d, size_t at_n, const int NC, const int GROUP, const bool MIN,
                      __m512i shift) {
    __m512i c[PANEL][2];
    UNROLL for (int j = 0; j < NC; j++) {
        size_t offset = (size_t)j * x->stride;
        __m512i start = _mm512_setzero_si512();
        if (!MIN) start = _mm512_sllv_epi32(_mm512_set1_epi32(*(const int32_t *)(x->n + offset + at_n)), shift);
        c[j][0] = c[j][1] = start;
    }
    dot_groups(c, w, x->q + at_q, x->stride, GROUP / 4, NC);
    __m512 d0 = _mm512_load_ps(d), d1 = _mm512_load_ps(d + 16);
    UNROLL for (int j = 0; j < NC; j++) {
        __m512 dx = broadcast(x->d + (size_t)j * x->stride + at_d);
        a[j][0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(c[j][0]), _mm512_mul_ps(d0, dx), a[j][0]);
        a[j][1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(c[j][1]), _mm512_mul_ps(d1, dx), a[j][1]);
    }
    if (!MIN) return;
    __m512 m0 = _mm512_load_ps(m), m1 = _mm512_load_ps(m + 16);
    UNROLL for (int j = 0; j < NC; j++) {
        __m512 s = GROUP == 32 ? broadcast(x->s + (size_t)j * x->stride + at_d)
                               : _mm512_mul_ps(broadcast(x->d + (size_t)j * x->stride + at_d),
                                               _mm512_cvtepi32_ps(_mm512_set1_epi32(
                                                   -*(const int32_t *)(x->n + (size_t)j * x->stride + at_n))));
        a[j][0] = _mm512_fmadd_ps(m0, s, a[j][0]);
        a[j][1] = _mm512_fmadd_ps(m1, s, a[j][1]);
    }
}

INLINE void int_panel(tile *t, const int_job *job, columns x, int64_t column, const int NC, const int GROUP,
                      const bool MIN) {
    const __m512i shift = _mm512_set1_epi32(job->shift);
    for (int32_t b0 = 0; b0 < job->blocks; b0 += job->piece) {
        int32_t end = b0 + job->piece < job->blocks ? b0 + job->piece : job->blocks;
        __m512 a[PANEL][2];
        UNROLL for (int j = 0; j < NC; j++) a[j][0] = a[j][1] = _mm512_setzero_ps();
        for (int32_t b = b0; b < end; b++) {
            size_t q = (size_t)b * 32, d = (size_t)b * 4;
            if (GROUP == 32) {
                add_group(a, &t->code[b * 8][0][0], t->d[b], t->m[b], &x, q, d, d, NC, 32, MIN, shift);
            } else {
                add_group(a, &t->code[b * 8][0][0], t->d[2 * b], t->m[2 * b], &x, q, d, 2 * d, NC, 16, MIN, shift);
                add_group(a, &t->code[b * 8 + 4][0][0], t->d[2 * b + 1], t->m[2 * b + 1], &x, q + 16, d, 2 * d + 4, NC,
                          16, MIN, shift);
            }
        }
        UNROLL for (int j = 0; j < NC; j++) add_piece(t, column + j, job->f64, a[j][0], a[j][1]);
    }
}

#define PANEL_OF(name, NC, GROUP, MIN)                                                                                 \
    static void name##_##NC(tile *t, const int_job *job, columns x, int64_t column) {                                  \
        int_panel(t, job, x, column, NC, GROUP, MIN);                                                                  \
    }
#define PANELS(name, GROUP, MIN)                                                                                       \
    PANEL_OF(name, 1, GROUP, MIN)                                                                                      \
    PANEL_OF(name, 2, GROUP, MIN)                                                                                      \
    PANEL_OF(name, 3, GROUP, MIN)                                                                                      \
    PANEL_OF(name, 4, GROUP, MIN)                                                                                      \
    PANEL_OF(name, 5, GROUP, MIN)                                                                                      \
    PANEL_OF(name, 6, GROUP, MIN)                                                                                      \
    static const panel_fn name[PANEL + 1] = {NULL, name##_1, name##_2, name##_3, name##_4, name##_5, name##_6};
PANELS(panel_offset, 32, false)
PANELS(panel_min, 32, true)
PANELS(panel_offset16, 16, false)
PANELS(panel_min16, 16, true)

static const panel_fn *panels_of(const int_type *type) {
    if (type->group == 32) return type->min ? panel_min : panel_offset;
    return type->min ? panel_min16 : panel_offset16;
}

static void interleave_codes(tile *t, const int_type *type, int half, int32_t len) {
    (void)type;
    for (int32_t i = 0; i < len; i += 64) { /* the last 64 may hold 32 of interest: KC covers them */
        __m512i r[16];
        UNROLL for (int j = 0; j < 16; j++) r[j] = _mm512_load_si512(t->row[j] + i);
        transpose16(r);
        UNROLL for (int j = 0; j < 16; j++) _mm512_store_si512(&t->code[i / 4 + j][16 * half][0], r[j]);
    }
}

/* --- float panels ----------------------------------------------------------------------------------- */

INLINE void float_panel(tile *t, const char *x, size_t stride, int32_t len, bool f64, int64_t column, const int NC) {
    const float *w = (const float *)t->code;
    __m512 a[PANEL][2];
    UNROLL for (int j = 0; j < NC; j++) a[j][0] = a[j][1] = _mm512_setzero_ps();
    for (int32_t k = 0; k < len; k++) {
        __m512 lo = _mm512_load_ps(w + k * ROWS), hi = _mm512_load_ps(w + k * ROWS + 16);
        UNROLL for (int j = 0; j < NC; j++) {
            __m512 v = broadcast(x + (size_t)j * stride + 4 * (size_t)k);
            a[j][0] = _mm512_fmadd_ps(lo, v, a[j][0]);
            a[j][1] = _mm512_fmadd_ps(hi, v, a[j][1]);
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
    if (type == SHEAF_F32) {
        memcpy(dst, src, (size_t)n * 4);
        return;
    }
    const uint16_t *h = src;
    for (int32_t i = 0; i < n; i += 16) {
        __mmask16 some = mask16(n - i);
        __m256i x = _mm256_maskz_loadu_epi16(some, h + i);
        __m512 wide = type == SHEAF_F16 ? _mm512_cvtph_ps(x)
                                        : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
        _mm512_store_ps(dst + i, wide);
    }
}

static void interleave_floats(tile *t, int half, int32_t len) {
    float *w = (float *)t->code, *row = (float *)t->row;
    for (int32_t i = 0; i < len; i += 16) {
        __m512i r[16];
        UNROLL for (int j = 0; j < 16; j++) r[j] = _mm512_load_si512(row + j * KC_F32 + i);
        transpose16(r);
        UNROLL for (int j = 0; j < 16; j++) _mm512_store_si512(w + (i + j) * ROWS + 16 * half, r[j]);
    }
}

void avx512_mul_tiled(sheaf_type type, const cpu_mm *a, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
    mul_tiled(type, a, m0, m1, n0, n1);
}

void avx512_tiles(cpu_kernels *t) { put_tiles(t); }
