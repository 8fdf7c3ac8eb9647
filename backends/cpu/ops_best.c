/* The best of a row as (value, id) pairs: in two steps, so that all threads look at one long row.
 *
 *     row |....chunk 0....|....chunk 1....| ... --each chunk's k best--> region --merged--> k pairs
 *
 * Chunks are the same for any number of threads, and the order is strict, so neither shows in the result. */
#include "backends/cpu/program.h"

enum { CHUNKS = 16 };

/* Elements of x that have an id below the end. */
static int64_t counted(const cpu_step *s) {
    int64_t n = s->src[0]->ne[0], ids = (int64_t)s->params.best.id_end - s->params.best.id_first;
    return ids < 0 ? 0 : ids < n ? ids : n;
}

static int32_t *chunk_at(const cpu_task *t, const cpu_region *r, int64_t unit, int32_t k) {
    return (int32_t *)(void *)cpu_region_at(t, r) + unit * k;
}

/* Where the k best of each chunk are in the row, then -1. */
static void run_chunks(const cpu_step *s, const cpu_task *t) {
    const cpu_operand *x = s->src[0];
    int64_t n = counted(s), lo, hi;
    int32_t k = s->params.best.k;
    cpu_share(t, x->ne[1] * CHUNKS, &lo, &hi);
    for (int64_t unit = lo; unit < hi; unit++) {
        const float *row = (const float *)(const void *)(cpu_at(t, x) + (size_t)(unit / CHUNKS) * x->nb[1]);
        int64_t first = n * (unit % CHUNKS) / CHUNKS, length = n * (unit % CHUNKS + 1) / CHUNKS - first;
        int32_t *out = chunk_at(t, s->region_out, unit, k), have = length < k ? (int32_t)length : k;
        cpu_top_k(row + first, length, out, have);
        for (int32_t i = 0; i < have; i++) out[i] += (int32_t)first;
        for (int32_t i = have; i < k; i++) out[i] = -1;
    }
}

/* Candidates of a row in ascending chunks: of equal ones the earlier has the lower id. */
static int32_t collect(const cpu_step *s, const cpu_task *t, int64_t r, float *value, int32_t *at) {
    const cpu_operand *x = s->src[0];
    const float *row = (const float *)(const void *)(cpu_at(t, x) + (size_t)r * x->nb[1]);
    int32_t n = 0, k = s->params.best.k;
    for (int64_t unit = r * CHUNKS; unit < (r + 1) * CHUNKS; unit++) {
        const int32_t *in = chunk_at(t, s->region_in, unit, k);
        for (int32_t i = 0; i < k && in[i] >= 0; i++) {
            at[n] = in[i];
            value[n++] = row[in[i]];
        }
    }
    return n;
}

static void run_merge(const cpu_step *s, const cpu_task *t) {
    int32_t k = s->params.best.k;
    float *value = (float *)(void *)t->scratch;
    int32_t *at = (int32_t *)(void *)(value + (size_t)CHUNKS * (size_t)k), *order = at + (size_t)CHUNKS * (size_t)k;
    int64_t lo, hi;
    cpu_share(t, s->dst->ne[1], &lo, &hi);
    for (int64_t r = lo; r < hi; r++) {
        int64_t *out = (int64_t *)(void *)(cpu_at(t, s->dst) + (size_t)r * s->dst->nb[1]);
        int32_t n = collect(s, t, r, value, at), have = n < k ? n : k;
        cpu_top_k(value, n, order, have);
        for (int32_t i = 0; i < have; i++)
            out[i] = sheaf_best_pair(value[order[i]], at[order[i]] + s->params.best.id_first);
        for (int64_t i = have; i < s->dst->ne[0]; i++) out[i] = sheaf_best_pair(-__builtin_inff(), -1);
    }
}

static bool supports_best(const sheaf_tensor *n) {
    const sheaf_tensor *x = n->src[0];
    int32_t k = n->params.best.k;
    return x && n->type == SHEAF_I64 && x->type == SHEAF_F32 && sheaf_rows_contiguous(n) && sheaf_rows_contiguous(x) &&
           sheaf_nrows(x) == x->ne[1] && sheaf_nrows(n) == n->ne[1] && n->ne[1] == x->ne[1] && k >= 1 &&
           k <= SHEAF_MAX_BEST && n->ne[0] >= k && x->ne[0] <= INT32_MAX;
}

_Static_assert(CHUNKS *SHEAF_MAX_BEST * 3 * sizeof(int32_t) <= CPU_THREAD_SCRATCH, "candidates of a row fit");

static void lower_best(cpu_compiler *c, const sheaf_tensor *n) {
    size_t bytes = (size_t)n->ne[1] * CHUNKS * (size_t)n->params.best.k * sizeof(int32_t);
    cpu_region *r = cpu_region_new(c, bytes);
    if (!r) return;
    cpu_emit(c, n, run_chunks, NULL, n->src, 1, 0, NULL, r);
    cpu_emit(c, n, run_merge, n, n->src, 1, 0, r, NULL);
}

const cpu_op cpu_op_BEST = {supports_best, lower_best};
