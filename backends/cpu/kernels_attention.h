/* The part of attention that does not know the width of a vector; included once by each level's attention file.
 *
 * A *row* is one query head of one token. Rows that read the same KV head share its chunk of 64 positions, which the
 * level makes f32 once in scratch: K turned (dimension by position) so that scores are whole vectors, V as it is.
 * Both products are then small matrix products of a few rows by many lanes:
 *
 *     score[row][64] = sum_i q[row][i] * kt[i][64]          out[row][..] += sum_p prob[row][p] * v[p][..]
 *
 * A row's arithmetic never looks at another row, chunks start at multiples of 64 from position 0, and a chunk
 * that a row does not see is skipped, so results do not depend on who is given which heads and tokens.
 * Hidden positions: their scores are replaced, not added to, and if V is not finite anywhere in a chunk, that
 * chunk is added position by position without the hidden ones (0 * NaN is NaN). */
#ifndef SHEAF_CPU_KERNELS_ATTENTION_H
#define SHEAF_CPU_KERNELS_ATTENTION_H

#include "backends/cpu/kernels_common.h"

enum {
    CHUNK = CPU_ATTN_CHUNK,
    MAX_ROWS = 256, /* rows that share one pass over the KV positions */
    BLOCK = 4,      /* rows in registers */
};

_Static_assert(CHUNK == 64, "a set of positions is 64 bits");

typedef struct row {
    const float *q;
    float *out;
    float best, sum, slope, sink;
    int32_t token; /* index into `visible` */
} row;

typedef struct work {
    row rows[MAX_ROWS];
    uint64_t visible[MAX_ROWS]; /* by token of the pass: positions of the chunk it sees */
    int32_t n_rows, n_tokens, token0;
    bool finite;                /* all of the chunk's V */
    int32_t k_stride, v_stride; /* floats: heads rounded up to whole vectors */
    float *kt, *v, *lines;      /* [k_stride][64], [64][v_stride], [16][k_stride]: rows of K before they are turned */
    float prob[BLOCK][CHUNK];
} work;

enum { LINES = 16 };

/* --- what the level brings ------------------------------------------------------------------------------ */

/* Positions of [p0, p0+n) that `token` sees. */
static uint64_t seen_by(const cpu_attn *a, int32_t token, int64_t p0, int32_t n);
/* Fills kt, v and `finite` from n positions. kt past n may hold anything finite or not, v past n zeros. */
static void load_chunk(const cpu_attn *a, work *w, const char *k, const char *v, int32_t n);
/* Folds the chunk at p0 into 1..BLOCK rows: out, best and sum. */
static void block_of(const cpu_attn *a, work *w, row **r, int64_t p0, int n);
static float exp_one(float x);

/* --- a pass over the positions ---------------------------------------------------------------------------- */

static void pass_chunk(const cpu_attn *a, work *w, const char *k, const char *v, int64_t p0, int32_t n) {
    uint64_t any = 0;
    for (int32_t t = 0; t < w->n_tokens; t++) any |= w->visible[t] = seen_by(a, w->token0 + t, p0, n);
    if (!any) return;
    load_chunk(a, w, k + (size_t)p0 * a->k_pos, v + (size_t)p0 * a->v_pos, n);
    row *block[BLOCK];
    int count = 0;
    for (int32_t i = 0; i < w->n_rows; i++) {
        if (!w->visible[w->rows[i].token]) continue;
        block[count++] = &w->rows[i];
        if (count < BLOCK) continue;
        block_of(a, w, block, p0, BLOCK);
        count = 0;
    }
    if (count) block_of(a, w, block, p0, count);
}

static void row_begin(const cpu_attn *a, row *r, int32_t h, int32_t t, int32_t token) {
    *r = (row){.q = (const float *)((const char *)a->q + (size_t)t * a->q_token + (size_t)h * a->q_head),
               .out = (float *)((char *)a->out + (size_t)t * a->out_token + (size_t)h * a->out_head),
               .best = -INFINITY,
               .slope = alibi_slope(a, a->q_head0 + h),
               .sink = a->sinks ? a->sinks[a->q_head0 + h] : 0.0f,
               .token = token};
    memset(r->out, 0, (size_t)a->head_v * sizeof *r->out);
}

/* The sink is one more position, with nothing to add. A row that saw nothing is zeros. */
static void row_end(const cpu_attn *a, row *r) {
    float factor = 1.0f;
    if (a->sinks) {
        float top = r->sink > r->best ? r->sink : r->best;
        factor = r->best == -INFINITY ? 0.0f : exp_one(r->best - top);
        r->sum = r->sum * factor + exp_one(r->sink - top);
    }
    factor = r->sum == 0.0f ? 0.0f : factor / r->sum;
    for (int32_t i = 0; i < a->head_v; i++) r->out[i] *= factor;
}

/* Heads [h0, h1), which share a KV head, for tokens [t0, t1): at most MAX_ROWS pairs. */
static void pass(const cpu_attn *a, work *w, int32_t h0, int32_t h1, int32_t t0, int32_t t1) {
    size_t kv = (size_t)kv_head_of(a, h0);
    const char *k = a->k + kv * a->k_head, *v = a->v + kv * a->v_head;
    w->n_rows = 0;
    w->token0 = t0;
    w->n_tokens = t1 - t0;
    for (int32_t t = t0; t < t1; t++) {
        for (int32_t h = h0; h < h1; h++) row_begin(a, &w->rows[w->n_rows++], h, t, t - t0);
    }
    for (int64_t p0 = 0; p0 < a->n_kv; p0 += CHUNK) {
        pass_chunk(a, w, k, v, p0, (int32_t)(a->n_kv - p0 < CHUNK ? a->n_kv - p0 : CHUNK));
    }
    for (int32_t i = 0; i < w->n_rows; i++) row_end(a, &w->rows[i]);
}

/* The kernel; heads whose chunk does not fit the scratch go to the portable one. */
static void attention(const cpu_attn *a, int32_t h0, int32_t h1, int32_t t0, int32_t t1) {
    work *w = (work *)(((uintptr_t)a->scratch + 63) & ~(uintptr_t)63);
    size_t head = (sizeof *w + 63) & ~(size_t)63;
    w->k_stride = (a->head_k + 15) & ~15;
    w->v_stride = (a->head_v + 15) & ~15;
    size_t k = (size_t)w->k_stride * CHUNK, v = (size_t)w->v_stride * CHUNK, lines = (size_t)w->k_stride * LINES;
    if (head + (k + v + lines) * sizeof(float) + 64 > CPU_ATTN_SCRATCH) {
        portable_attention(a, h0, h1, t0, t1);
        return;
    }
    w->kt = (float *)((char *)w + head);
    w->v = w->kt + k;
    w->lines = w->v + v;
    for (int32_t h = h0; h < h1;) {
        int32_t end = h + 1;
        while (end < h1 && end - h < MAX_ROWS && kv_head_of(a, end) == kv_head_of(a, h)) end++;
        int32_t tokens = MAX_ROWS / (end - h);
        for (int32_t t = t0; t < t1; t += tokens) pass(a, w, h, end, t, t1 - t < tokens ? t1 : t + tokens);
        h = end;
    }
}

#endif
