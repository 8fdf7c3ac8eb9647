/* The part of the tiled matmul that does not know the width of a vector; included once by each level's tile file, which
 * first says how large its tiles are: enum { ROWS, HALF = ROWS / 2, PANEL, PANEL_F32 }.
 *
 * A tile is ROWS rows of w by KC elements, taken apart once into this thread's scratch and then used by every
 * column. Lane = row, so no sum ever crosses lanes and a row's additions do not know its neighbours (K1):
 *
 *     codes   [k/4][ROWS][4 k]   one vector: four elements of HALF rows, against four broadcast bytes of a column
 *     scales  [group][ROWS]
 *     sums    [column][ROWS]     f32, or f64 when the caller asks for segments
 *
 * A piece (KC elements, or a segment) is summed in registers from zero and then added to `sums`. Rows past the end are
 * zeros with zero scales, and are not stored. */
#ifndef SHEAF_CPU_KERNELS_TILE_H
#define SHEAF_CPU_KERNELS_TILE_H

#include "backends/cpu/kernels_unpack.h"

enum {
    KC = 512,      /* elements of a tile: at most half of L1 in codes */
    KC_F32 = 128,  /* the same in f32 */
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
    uint8_t row[HALF][KC]; /* codes in element order, before they are interleaved; or float [HALF][KC_F32] */
} tile;

_Static_assert(sizeof(tile) + 64 <= CPU_MM_SCRATCH, "a tile fits the scratch of a thread");
_Static_assert(sizeof(float) * KC_F32 * ROWS <= sizeof(((tile *)0)->code), "floats fit where codes do");

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

typedef void (*panel_fn)(tile *t, const int_job *job, columns x, int64_t column);

/* --- what the level brings ------------------------------------------------------------------------------ */

/* Panels for 1..PANEL columns of a type, by number of columns. */
static const panel_fn *panels_of(const int_type *type);
/* `len` elements of the f32 tile times nc (1..PANEL_F32) columns, added to the sums from `column`. */
static void float_panels(tile *t, const char *x, size_t stride, int32_t len, bool f64, int64_t column, int64_t nc);
/* `row` to `code`, as the upper or lower half of the tile's rows. */
static void interleave_codes(tile *t, const int_type *type, int half, int32_t len);
static void interleave_floats(tile *t, int half, int32_t len);
/* F32, F16 or BF16. */
static void row_to_float(sheaf_type type, const void *src, float *dst, int32_t n);

/* --- tiles ------------------------------------------------------------------------------------------------ */

/* Rows [m, m+rows) of w, elements [k, k+len), into the tile. */
static void load_int_tile(tile *t, const cpu_mm *a, const int_type *type, int64_t m, int rows, int64_t k, int32_t len) {
    size_t offset = sheaf_row_bytes(type->type, k);
    for (int half = 0; half < 2; half++) {
        for (int r = 0; r < HALF; r++) {
            int row = HALF * half + r;
            if (row < rows) {
                const uint8_t *src = (const uint8_t *)a->w + (size_t)(m + row) * a->w_row + offset;
                type->unpack(src, len, t->row[r], &t->d[0][row], &t->m[0][row], ROWS);
                continue;
            }
            memset(t->row[r], 0, (size_t)len);
            for (int g = 0; g < len / type->group; g++) t->d[g][row] = t->m[g][row] = 0.0f;
        }
        interleave_codes(t, type, half, len);
    }
}

static void load_float_tile(tile *t, const cpu_mm *a, sheaf_type type, int64_t m, int rows, int64_t k, int32_t len) {
    size_t offset = sheaf_row_bytes(type, k);
    for (int half = 0; half < 2; half++) {
        for (int r = 0; r < HALF; r++) {
            int64_t at = m + HALF * half + r;
            float *row = (float *)t->row + r * KC_F32;
            if (HALF * half + r < rows) {
                row_to_float(type, (const char *)a->w + (size_t)at * a->w_row + offset, row, len);
            } else {
                memset(row, 0, (size_t)len * sizeof *row);
            }
        }
        interleave_floats(t, half, len);
    }
}

/* Asks for the cache lines that the results of a panel will be stored to, while it is being computed. Where another
 * device reads the results (sums between devices) those lines are in its cache, and stores that wait for them
 * were a twentieth of SmolLM2's prefill on two devices. */
static void expect_stores(const cpu_mm *a, int64_t m, int rows, int64_t n0, int64_t n1) {
    size_t element = a->out_f64 ? sizeof(double) : sizeof(float);
    for (int64_t n = n0; n < n1; n++) {
        const char *out = (const char *)a->out + (size_t)n * a->out_col + (size_t)m * element;
        for (size_t at = 0; at < (size_t)rows * element; at += 64) __builtin_prefetch(out + at, 1, 2);
    }
}

static void int_tile_columns(tile *t, const cpu_mm *a, const int_type *type, int64_t k, int32_t len, int32_t piece,
                             int64_t n0, int64_t n1, int64_t m, int rows) {
    const panel_fn *panels = panels_of(type);
    int_job job = {.blocks = len / 32, .piece = piece / 32, .shift = type->shift, .f64 = a->segment != 0};
    size_t n_at = type->group == 32 ? cpu_act_n32_at(a->k) + (size_t)k / 8 : cpu_act_n16_at(a->k) + (size_t)k / 4;
    for (int64_t n = n0; n < n1; n += PANEL) {
        const char *x = (const char *)a->x + (size_t)n * a->x_col;
        if (k + len == a->k) expect_stores(a, m, rows, n, n1 - n < PANEL ? n1 : n + PANEL);
        columns c = {.q = x + k,
                     .d = x + cpu_act_scales_at(a->k) + k / 8,
                     .s = x + cpu_act_sums_at(a->k) + k / 8,
                     .n = x + n_at,
                     .stride = a->x_col};
        panels[n1 - n < PANEL ? n1 - n : PANEL](t, &job, c, n - n0);
    }
}

static void float_tile_columns(tile *t, const cpu_mm *a, int64_t k, int32_t len, int64_t n0, int64_t n1) {
    for (int64_t n = n0; n < n1; n += PANEL_F32) {
        const char *x = (const char *)a->x + (size_t)n * a->x_col + (size_t)k * sizeof(float);
        float_panels(t, x, a->x_col, len, a->segment != 0, n - n0, n1 - n < PANEL_F32 ? n1 - n : PANEL_F32);
    }
}

/* --- driver ----------------------------------------------------------------------------------------------- */

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

/* Tile by tile down the rows, along k, across the columns (at most COLUMNS). `type` NULL: through f32. */
static void mul_block(const cpu_mm *a, sheaf_type weight, const int_type *type, int64_t m0, int64_t m1, int64_t n0,
                      int64_t n1) {
    tile *t = (tile *)(((uintptr_t)a->scratch + 63) & ~(uintptr_t)63);
    int32_t kc = type ? KC : KC_F32, piece = segment_piece(a->segment, (int32_t)sheaf_type_block(weight), kc);
    if (piece) kc = type ? kc / piece * piece : piece;
    for (int64_t m = m0; m < m1; m += ROWS) {
        int rows = m1 - m < ROWS ? (int)(m1 - m) : ROWS;
        memset(&t->sum, 0, (size_t)(n1 - n0) * ROWS * (a->segment ? sizeof(double) : sizeof(float)));
        for (int64_t k = 0; k < a->k; k += kc) {
            int32_t len = (int32_t)(a->k - k < kc ? a->k - k : kc);
            if (type) {
                load_int_tile(t, a, type, m, rows, k, len);
                int_tile_columns(t, a, type, k, len, piece ? piece : kc, n0, n1, m, rows);
            } else {
                load_float_tile(t, a, weight, m, rows, k, len);
                float_tile_columns(t, a, k, len, n0, n1);
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

static void mul_tiled(sheaf_type type, const cpu_mm *a, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
    for (int64_t n = n0; n < n1; n += COLUMNS) {
        mul_block(a, type, int_type_of(type), m0, m1, n, n1 < n + COLUMNS ? n1 : n + COLUMNS);
    }
}

#define TILED(name)                                                                                                    \
    static void mul_##name(const cpu_mm *a, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {                          \
        mul_tiled(SHEAF_##name, a, m0, m1, n0, n1);                                                                    \
    }
#define X(name, unpack, shift, group, min) TILED(name)
INT_TYPES(X)
#undef X
TILED(F32)
TILED(F16)
TILED(BF16)

/* Every type with a tile, over what the table has. */
static void put_tiles(cpu_kernels *t) {
#define X(name, unpack, shift, group, min)                                                                             \
    t->mm[SHEAF_##name].act = CPU_ACT_Q8;                                                                              \
    t->mm[SHEAF_##name].mul = mul_##name;
    INT_TYPES(X)
#undef X
    t->mm[SHEAF_F32].mul = mul_F32;
    t->mm[SHEAF_F16].mul = mul_F16;
    t->mm[SHEAF_BF16].mul = mul_BF16;
}

#endif
