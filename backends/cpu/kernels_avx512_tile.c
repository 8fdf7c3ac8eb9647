/* Tiled matmul for many columns, AVX-512 with VNNI.
 *
 * A tile is 32 rows of w by KC elements, taken apart once into this thread's scratch and then used by
 * every column. Lane = row, so no sum ever crosses lanes and a row's additions do not know its neighbours (K1):
 *
 *     codes   [k/4][32 rows][4 k]   one vpdpbusd takes 16 rows x 4 k against 4 broadcast bytes of a column
 *     scales  [group][32 rows]
 *     sums    [column][32 rows]     f32, or f64 when the caller asks for segments
 *
 * Six columns at a time: 12 integer and 12 float accumulators, each 4-5 cycles from its last use.
 * A piece (KC elements, or a segment) is summed in registers from zero and then added to `sums`. */
#include "backends/cpu/kernels_avx512.h"
#include "backends/cpu/kernels_unpack.h"

enum {
    ROWS = 32,
    KC = 512,      /* elements of a tile: 16 KB of codes, half of L1 */
    KC_F32 = 128,  /* the same in f32 */
    PANEL = 6,     /* columns in registers */
    COLUMNS = 512, /* columns whose sums are kept while a row tile passes */
};

typedef struct tile {
    uint8_t code[KC / 4][ROWS][4]; /* or float [KC_F32][ROWS] */
    float d[KC / 16][ROWS];
    float m[KC / 16][ROWS];
    union {
        float f32[COLUMNS][ROWS];
        double f64[COLUMNS][ROWS];
    } sum;
    uint8_t row[16][KC]; /* codes in element order, before they are interleaved; or float [16][KC_F32] */
} tile;

_Static_assert(sizeof(tile) + 64 <= CPU_MM_SCRATCH, "a tile fits the scratch of a thread");
_Static_assert(sizeof(float) * KC_F32 * ROWS <= sizeof(((tile *)0)->code), "floats fit where codes do");

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

/* Where the parts of the first column of a panel are, at the tile's first element. */
typedef struct columns {
    const char *q, *d, *s, *n;
    size_t stride;
} columns;

typedef struct int_job {
    int32_t blocks, piece; /* 32-element blocks in the tile, and in a piece of it */
    int32_t shift;
    bool f64;
} int_job;

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

typedef void (*panel_fn)(tile *t, const int_job *job, columns x, int64_t column);

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

/* Rows [m, m+rows) of w, elements [k, k+len), into the tile. Rows past the end are zeros with zero scales. */
static void load_int_tile(tile *t, const cpu_mm *a, const int_type *type, int64_t m, int rows, int64_t k, int32_t len) {
    size_t offset = sheaf_row_bytes(type->type, k);
    for (int half = 0; half < 2; half++) {
        for (int r = 0; r < 16; r++) {
            int row = 16 * half + r;
            if (row < rows) {
                const uint8_t *src = (const uint8_t *)a->w + (size_t)(m + row) * a->w_row + offset;
                type->unpack(src, len, t->row[r], &t->d[0][row], &t->m[0][row], ROWS);
                continue;
            }
            memset(t->row[r], 0, (size_t)len);
            for (int g = 0; g < len / type->group; g++) t->d[g][row] = t->m[g][row] = 0.0f;
        }
        for (int32_t i = 0; i < len; i += 64) { /* the last 64 may hold 32 of interest: KC covers them */
            __m512i r[16];
            UNROLL for (int j = 0; j < 16; j++) r[j] = _mm512_load_si512(t->row[j] + i);
            transpose16(r);
            UNROLL for (int j = 0; j < 16; j++) _mm512_store_si512(&t->code[i / 4 + j][16 * half][0], r[j]);
        }
    }
}

static void int_tile_columns(tile *t, const cpu_mm *a, const int_type *type, int64_t k, int32_t len, int32_t piece,
                             int64_t n0, int64_t n1) {
    const panel_fn *panels =
        type->group == 32 ? (type->min ? panel_min : panel_offset) : (type->min ? panel_min16 : panel_offset16);
    int_job job = {.blocks = len / 32, .piece = piece / 32, .shift = type->shift, .f64 = a->segment != 0};
    size_t n_at = type->group == 32 ? cpu_act_n32_at(a->k) + (size_t)k / 8 : cpu_act_n16_at(a->k) + (size_t)k / 4;
    for (int64_t n = n0; n < n1; n += PANEL) {
        const char *x = (const char *)a->x + (size_t)n * a->x_col;
        columns c = {.q = x + k,
                     .d = x + cpu_act_scales_at(a->k) + k / 8,
                     .s = x + cpu_act_sums_at(a->k) + k / 8,
                     .n = x + n_at,
                     .stride = a->x_col};
        panels[n1 - n < PANEL ? n1 - n : PANEL](t, &job, c, n - n0);
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

static void load_float_tile(tile *t, const cpu_mm *a, sheaf_type type, int64_t m, int rows, int64_t k, int32_t len) {
    float *w = (float *)t->code, *row = (float *)t->row;
    size_t offset = sheaf_row_bytes(type, k);
    for (int half = 0; half < 2; half++) {
        for (int r = 0; r < 16; r++) {
            int64_t at = m + 16 * half + r;
            if (16 * half + r < rows) {
                row_to_float(type, (const char *)a->w + (size_t)at * a->w_row + offset, row + r * KC_F32, len);
            } else {
                memset(row + r * KC_F32, 0, (size_t)len * 4);
            }
        }
        for (int32_t i = 0; i < len; i += 16) {
            __m512i r[16];
            UNROLL for (int j = 0; j < 16; j++) r[j] = _mm512_load_si512(row + j * KC_F32 + i);
            transpose16(r);
            UNROLL for (int j = 0; j < 16; j++) _mm512_store_si512(w + (i + j) * ROWS + 16 * half, r[j]);
        }
    }
}

/* --- driver ----------------------------------------------------------------------------------------- */

/* Where a row's sum goes: f32 or f64 results, from f32 or f64 sums. */
static void store_column(const cpu_mm *a, const tile *t, int64_t column, char *out, int64_t m, int rows) {
    const double *f64 = t->sum.f64[column];
    const float *f32 = t->sum.f32[column];
    if (a->out_f64) {
        for (int r = 0; r < rows; r++) ((double *)out)[m + r] = a->segment ? f64[r] : (double)f32[r];
        return;
    }
    float *to = (float *)out + m;
    if (!a->segment) {
        memcpy(to, f32, (size_t)rows * sizeof *to);
        return;
    }
    for (int r = 0; r < rows; r++) to[r] = (float)f64[r];
}

/* Tile by tile down the rows, along k, across the columns. `type` NULL: through f32. */
static void mul_block(const cpu_mm *a, sheaf_type weight, const int_type *type, int64_t m0, int64_t m1, int64_t n0,
                      int64_t n1) {
    tile *t = (tile *)(((uintptr_t)a->scratch + 63) & ~(uintptr_t)63);
    int32_t kc = type ? KC : KC_F32, block = (int32_t)sheaf_type_block(weight);
    int32_t piece = segment_piece(a->segment, type && block < 32 ? 32 : block, kc);
    if (piece) kc = type ? kc / piece * piece : piece;
    for (int64_t m = m0; m < m1; m += ROWS) {
        int rows = m1 - m < ROWS ? (int)(m1 - m) : ROWS;
        memset(&t->sum, 0, (size_t)(n1 - n0) * ROWS * (a->segment ? 8 : 4));
        for (int64_t k = 0; k < a->k; k += kc) {
            int32_t len = (int32_t)(a->k - k < kc ? a->k - k : kc);
            if (type) {
                load_int_tile(t, a, type, m, rows, k, len);
                int_tile_columns(t, a, type, k, len, piece ? piece : kc, n0, n1);
                continue;
            }
            load_float_tile(t, a, weight, m, rows, k, len);
            for (int64_t n = n0; n < n1; n += PANEL) {
                const char *x = (const char *)a->x + (size_t)n * a->x_col + (size_t)k * 4;
                float_panels(t, x, a->x_col, len, a->segment != 0, n - n0, n1 - n < PANEL ? n1 - n : PANEL);
            }
        }
        for (int64_t n = n0; n < n1; n++) store_column(a, t, n - n0, (char *)a->out + (size_t)n * a->out_col, m, rows);
    }
}

static const int_type *int_type_of(sheaf_type type) {
    static const int_type types[] = {
#define X(name, unpack, shift, group, min) {SHEAF_##name, unpack, shift, group, min},
        INT_TYPES(X)
#undef X
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (types[i].type == type) return &types[i];
    }
    return NULL;
}

void avx512_mul_tiled(sheaf_type type, const cpu_mm *a, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
    for (int64_t n = n0; n < n1; n += COLUMNS) {
        mul_block(a, type, int_type_of(type), m0, m1, n, n1 < n + COLUMNS ? n1 : n + COLUMNS);
    }
}

#define TILED(name)                                                                                                    \
    static void mul_##name(const cpu_mm *a, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {                          \
        avx512_mul_tiled(SHEAF_##name, a, m0, m1, n0, n1);                                                             \
    }
#define X(name, unpack, shift, group, min) TILED(name)
INT_TYPES(X)
#undef X
TILED(F32)
TILED(F16)
TILED(BF16)

void avx512_tiles(cpu_kernels *t) {
#define X(name, unpack, shift, group, min)                                                                             \
    t->mm[SHEAF_##name].act = CPU_ACT_Q8;                                                                              \
    t->mm[SHEAF_##name].mul = mul_##name;
    INT_TYPES(X)
#undef X
    t->mm[SHEAF_F32].mul = mul_F32;
    t->mm[SHEAF_F16].mul = mul_F16;
    t->mm[SHEAF_BF16].mul = mul_BF16;
}
