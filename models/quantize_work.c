/* The work of a quantization: threads that take pieces of tensors, one after another over the whole file.
 *
 * A piece is some whole rows of a tensor that changes its type, or some bytes of one that does not. A thread reads it,
 * makes floats, encodes them and writes them to where the new file has them, all in its own buffers: nothing waits
 * for anything, and memory depends on the longest row, not on the file. Rows are encoded one by one, so that the
 * bytes do not depend on pieces or threads. */
#include "models/quantize_internal.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "backends/backend.h"

enum { PIECE = 1 << 18 /* elements, or one row */, COPY_BYTES = 1 << 20, MAX_THREADS = 256 };

/* A half ends here: only rows that go beyond can have scales that it does not hold. */
#define LARGEST_HALF 65504.0f

typedef struct job {
    const sheaf_gguf *g;
    const sheaf_quantize_row *plan;
    sheaf_gguf_writer *w;
    const sheaf_quantize_options *o;
    const sheaf_imatrix *m;
    int64_t *first_piece; /* of every tensor, and one past the last */
    size_t raw_bytes, floats, out_bytes;
    atomic_llong next;
    atomic_ullong done; /* bytes of the input */
    uint64_t total;
    atomic_bool stop;
    pthread_mutex_t lock; /* around error */
    sheaf_error_box error;
} job;

typedef struct buffers {
    uint8_t *raw, *out;
    float *x;
} buffers;

static int64_t rows_of(const sheaf_gguf_tensor *t) { return t->ne[1] * t->ne[2] * t->ne[3]; }
static int64_t piece_rows(const sheaf_gguf_tensor *t) { return t->ne[0] >= PIECE ? 1 : PIECE / t->ne[0]; }

const float *quantize_importance(const sheaf_imatrix *m, const sheaf_gguf_tensor *t, int64_t row) {
    int64_t n = 0;
    const float *w = m ? sheaf_imatrix_find(m, t->name, &n) : NULL;
    if (!w || n != t->ne[0] * t->ne[2] || t->ne[3] != 1) return NULL;
    return w + row / t->ne[1] * t->ne[0];
}

/* --- one piece --- */

static sheaf_status bad_value(const job *j, const sheaf_gguf_tensor *t, int64_t row, int64_t column, float v,
                              const char *what) {
    char name[160];
    return sheaf_fail(SHEAF_E_FORMAT, "%s: %s: row %lld, column %lld: %g %s", sheaf_gguf_path(j->g, t->shard),
                      sheaf_str_text(t->name, name, sizeof name), (long long)row, (long long)column, (double)v, what);
}

/* Sets *largest; refuses NaN and infinity, from which no scale can be made. */
static sheaf_status check_floats(const job *j, const sheaf_gguf_tensor *t, int64_t row, const float *x,
                                 float *largest) {
    *largest = 0;
    for (int64_t i = 0; i < t->ne[0]; i++) {
        if (!isfinite(x[i])) return bad_value(j, t, row, i, x[i], "is no finite number");
        if (fabsf(x[i]) > *largest) *largest = fabsf(x[i]);
    }
    return SHEAF_OK;
}

/* Looks at the row as a reader will see it; x is overwritten. */
static sheaf_status check_result(const job *j, const sheaf_gguf_tensor *t, int64_t row, sheaf_type type,
                                 const uint8_t *bytes, float *x) {
    sheaf_status s = sheaf_to_float(type, bytes, x, t->ne[0]);
    for (int64_t i = 0; i < t->ne[0] && !s; i++)
        if (!isfinite(x[i]))
            s = bad_value(j, t, row, i, x[i],
                          "is left: a number, or its importance, is too large for the type (bf16 and f32 hold it)");
    return s;
}

static sheaf_status convert_row(const job *j, const sheaf_gguf_tensor *t, sheaf_type to, int64_t row,
                                const uint8_t *raw, float *x, uint8_t *out) {
    float largest;
    sheaf_status s = sheaf_to_float(t->type, raw, x, t->ne[0]);
    if (!s) s = check_floats(j, t, row, x, &largest);
    const float *importance = quantize_importance(j->m, t, row);
    if (!s) s = sheaf_from_float_weighted(to, x, out, t->ne[0], importance);
    /* sums of large importances overflow, products of large numbers too */
    if (!s && (importance || largest > LARGEST_HALF)) s = check_result(j, t, row, to, out, x);
    return s;
}

/* Bytes of a tensor that stays as it is. */
static sheaf_status copy_piece(job *j, int64_t i, int64_t piece, const buffers *b) {
    const sheaf_gguf_tensor *t = sheaf_gguf_tensor_at(j->g, i);
    uint64_t at = (uint64_t)piece * COPY_BYTES, n = t->bytes - at < COPY_BYTES ? t->bytes - at : COPY_BYTES;
    sheaf_status s = sheaf_gguf_read(j->g, t, at, b->raw, (size_t)n);
    if (!s) s = sheaf_gguf_write(j->w, i, at, b->raw, (size_t)n);
    if (!s) atomic_fetch_add(&j->done, n);
    return s;
}

static sheaf_status convert_piece(job *j, int64_t i, int64_t piece, const buffers *b) {
    const sheaf_gguf_tensor *t = sheaf_gguf_tensor_at(j->g, i);
    sheaf_type to = j->plan[i].to;
    int64_t row = piece * piece_rows(t), n = rows_of(t) - row;
    if (n > piece_rows(t)) n = piece_rows(t);
    size_t from_bytes = sheaf_row_bytes(t->type, t->ne[0]), to_bytes = sheaf_row_bytes(to, t->ne[0]);
    sheaf_status s = sheaf_gguf_read(j->g, t, (uint64_t)row * from_bytes, b->raw, (size_t)n * from_bytes);
    for (int64_t r = 0; r < n && !s; r++)
        s = convert_row(j, t, to, row + r, b->raw + (size_t)r * from_bytes, b->x, b->out + (size_t)r * to_bytes);
    if (!s) s = sheaf_gguf_write(j->w, i, (uint64_t)row * to_bytes, b->out, (size_t)n * to_bytes);
    if (!s) atomic_fetch_add(&j->done, (unsigned long long)n * from_bytes);
    return s;
}

/* --- threads --- */

static void fail(job *j, sheaf_status s) {
    pthread_mutex_lock(&j->lock);
    if (!j->error.status) sheaf_error_save(&j->error, s);
    pthread_mutex_unlock(&j->lock);
    atomic_store(&j->stop, true);
}

/* The tensor that holds a piece. */
static int64_t tensor_of(const job *j, int64_t piece) {
    int64_t lo = 0, hi = sheaf_gguf_n_tensors(j->g);
    while (hi - lo > 1) {
        int64_t mid = lo + (hi - lo) / 2;
        if (j->first_piece[mid] <= piece)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

static bool report(const job *j, int64_t i) {
    sheaf_quantize_progress p = {sheaf_gguf_tensor_at(j->g, i), j->plan[i].to, atomic_load(&j->done), j->total};
    return !j->o->progress || j->o->progress(j->o->ctx, &p);
}

static sheaf_status get_buffers(const job *j, buffers *b) {
    *b = (buffers){sheaf_malloc(j->raw_bytes), sheaf_malloc(j->out_bytes), sheaf_malloc(j->floats * sizeof(float))};
    if (b->raw && b->out && b->x) return SHEAF_OK;
    return sheaf_fail(SHEAF_E_NO_MEMORY, "quantizing: no memory for pieces of %zu bytes", j->raw_bytes);
}

static void free_buffers(buffers *b) {
    sheaf_free(b->raw);
    sheaf_free(b->out);
    sheaf_free(b->x);
}

/* Takes pieces until there are none; `leads` reports between them. */
static void work(job *j, bool leads) {
    buffers b;
    int64_t n = j->first_piece[sheaf_gguf_n_tensors(j->g)];
    sheaf_status s = get_buffers(j, &b);
    while (!s && !atomic_load(&j->stop)) {
        int64_t piece = atomic_fetch_add(&j->next, 1);
        if (piece >= n) break;
        int64_t i = tensor_of(j, piece);
        if (leads && !report(j, i))
            s = sheaf_fail(SHEAF_E_CANCELLED, "quantizing: stopped");
        else if (j->plan[i].to == sheaf_gguf_tensor_at(j->g, i)->type)
            s = copy_piece(j, i, piece - j->first_piece[i], &b);
        else
            s = convert_piece(j, i, piece - j->first_piece[i], &b);
    }
    if (s) fail(j, s);
    free_buffers(&b);
}

static void *follow(void *arg) {
    work(arg, false);
    return NULL;
}

/* Pieces of every tensor, and the largest buffers that one needs. */
static sheaf_status lay_out(job *j) {
    int64_t n = sheaf_gguf_n_tensors(j->g), pieces = 0;
    j->first_piece = sheaf_calloc((size_t)n + 1, sizeof *j->first_piece);
    if (!j->first_piece) return sheaf_fail(SHEAF_E_NO_MEMORY, "quantizing: no memory for %lld tensors", (long long)n);
    j->floats = j->out_bytes = 1;
    j->raw_bytes = COPY_BYTES;
    for (int64_t i = 0; i < n; i++) {
        const sheaf_gguf_tensor *t = sheaf_gguf_tensor_at(j->g, i);
        j->first_piece[i] = pieces;
        j->total += t->bytes;
        if (j->plan[i].to == t->type) {
            pieces += (int64_t)((t->bytes + COPY_BYTES - 1) / COPY_BYTES);
            continue;
        }
        pieces += (rows_of(t) + piece_rows(t) - 1) / piece_rows(t);
        size_t rows = (size_t)(rows_of(t) < piece_rows(t) ? rows_of(t) : piece_rows(t));
        size_t raw = rows * sheaf_row_bytes(t->type, t->ne[0]), out = rows * sheaf_row_bytes(j->plan[i].to, t->ne[0]);
        if (raw > j->raw_bytes) j->raw_bytes = raw;
        if (out > j->out_bytes) j->out_bytes = out;
        if ((size_t)t->ne[0] > j->floats) j->floats = (size_t)t->ne[0];
    }
    j->first_piece[n] = pieces;
    return SHEAF_OK;
}

static void run_threads(job *j) {
    pthread_t threads[MAX_THREADS];
    int64_t pieces = j->first_piece[sheaf_gguf_n_tensors(j->g)];
    int want = j->o->threads > 0 ? j->o->threads : sheaf_default_threads(), n = 0;
    if (want > MAX_THREADS) want = MAX_THREADS;
    if (want > pieces) want = (int)pieces;
    /* fewer threads than asked for do it as well */
    while (n < want - 1 && pthread_create(&threads[n], NULL, follow, j) == 0) n++;
    work(j, true);
    for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
}

sheaf_status quantize_work(const sheaf_gguf *g, const sheaf_quantize_row *plan, sheaf_gguf_writer *w,
                           const sheaf_quantize_options *o, const sheaf_imatrix *m) {
    job j = {.g = g, .plan = plan, .w = w, .o = o, .m = m, .lock = PTHREAD_MUTEX_INITIALIZER};
    sheaf_status s = lay_out(&j);
    if (s) return s;
    run_threads(&j);
    if (j.error.status) s = sheaf_error_restore(&j.error);
    pthread_mutex_destroy(&j.lock);
    sheaf_free(j.first_piece);
    return s;
}
