/* The two forms of an importance matrix.
 *
 * GGUF: per tensor NAME, f32 tensors NAME.in_sum2 (sums of squared inputs, a row a matrix of it) and NAME.counts (how
 * many inputs each matrix saw). Importance is the mean; a matrix that saw nothing weighs everything alike.
 *
 * .dat: i32 entries, then { i32 length, name, i32 calls, i32 values, f32 values[] }, then, if the writer was new
 * enough, { i32 chunks, i32 length, dataset }. Values are sums over calls. Little-endian, no padding. */
#include "models/imatrix_internal.h"

#include <math.h>
#include <string.h>

/* --- GGUF --- */

static bool split_suffix(sheaf_str name, const char *suffix, sheaf_str *stem) {
    size_t n = strlen(suffix);
    if (name.n <= n || memcmp(name.s + name.n - n, suffix, n) != 0) return false;
    *stem = (sheaf_str){name.s, name.n - n};
    return true;
}

static int64_t elements(const sheaf_gguf_tensor *t) { return t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]; }

static sheaf_status odd(const sheaf_imatrix *m, sheaf_str name, const char *what) {
    char text[160];
    return sheaf_fail(SHEAF_E_FORMAT, "%s: %s: %s", m->path, sheaf_str_text(name, text, sizeof text), what);
}

/* The counts that belong to a tensor's sums. */
static const sheaf_gguf_tensor *counts_of(const sheaf_gguf *g, sheaf_str stem) {
    char name[SHEAF_MAX_NAME + 16];
    memcpy(name, stem.s, stem.n);
    memcpy(name + stem.n, ".counts", sizeof ".counts");
    return sheaf_gguf_find_tensor(g, name);
}

static sheaf_status read_sums(sheaf_imatrix *m, const sheaf_gguf *g, const sheaf_gguf_tensor *sums, sheaf_str stem) {
    const sheaf_gguf_tensor *counts = counts_of(g, stem);
    float *w;
    if (!counts) return odd(m, stem, "its sums have no counts");
    if (sums->type != SHEAF_F32 || counts->type != SHEAF_F32) return odd(m, stem, "its sums or counts are not f32");
    int64_t n = elements(sums), matrices = elements(counts);
    if (n % matrices) return odd(m, stem, "its sums are no whole number of rows, one a count");
    sheaf_status s = imatrix_add(m, stem, n, &w);
    if (!s) s = sheaf_gguf_read(g, sums, 0, w, (size_t)n * sizeof *w);
    for (int64_t j = 0; j < matrices && !s; j++) {
        float count;
        s = sheaf_gguf_read(g, counts, (uint64_t)j * sizeof count, &count, sizeof count);
        if (s) break;
        if (!isfinite(count)) return odd(m, stem, "a count is no finite number");
        count = roundf(count);
        for (int64_t i = j * (n / matrices); i < (j + 1) * (n / matrices); i++) w[i] = count > 0 ? w[i] / count : 1;
    }
    return s;
}

sheaf_status imatrix_read_gguf(sheaf_imatrix *m, const sheaf_gguf *g) {
    sheaf_status s = SHEAF_OK;
    sheaf_str stem;
    for (int64_t i = 0; i < sheaf_gguf_n_tensors(g) && !s; i++) {
        const sheaf_gguf_tensor *t = sheaf_gguf_tensor_at(g, i);
        if (split_suffix(t->name, ".in_sum2", &stem)) s = read_sums(m, g, t, stem);
    }
    sheaf_gguf_type type;
    int64_t n = 0, at = sheaf_gguf_find(g, "imatrix.datasets");
    if (!s && at >= 0 && !sheaf_gguf_array(g, "imatrix.datasets", &type, &n) && n > 0 && type == SHEAF_GGUF_STRING) {
        s = sheaf_gguf_array_str(g, "imatrix.datasets", 0, &stem);
        if (!s) s = imatrix_set_dataset(m, stem);
    }
    if (!s && sheaf_gguf_find(g, "imatrix.chunk_count") >= 0)
        s = sheaf_gguf_get_u32(g, "imatrix.chunk_count", &m->chunks);
    return s;
}

/* --- .dat --- */

typedef struct cursor {
    const uint8_t *p;
    size_t n, at;
    const char *path;
} cursor;

static sheaf_status cut(const cursor *c, size_t wanted, const char *what) {
    return sheaf_fail(SHEAF_E_FORMAT,
                      "%s: no importance matrix, or a cut one: %zu bytes of %s needed at byte %zu of %zu", c->path,
                      wanted, what, c->at, c->n);
}

static sheaf_status take_i32(cursor *c, const char *what, int32_t lowest, int32_t *out) {
    if (c->n - c->at < 4) return cut(c, 4, what);
    memcpy(out, c->p + c->at, 4);
    if (*out < lowest)
        return sheaf_fail(SHEAF_E_FORMAT, "%s: no importance matrix: %s is %d at byte %zu", c->path, what, *out, c->at);
    c->at += 4;
    return SHEAF_OK;
}

static sheaf_status take_text(cursor *c, const char *what, sheaf_str *out) {
    int32_t n = 0;
    sheaf_status s = take_i32(c, what, 0, &n);
    if (s) return s;
    if (c->n - c->at < (size_t)n) return cut(c, (size_t)n, what);
    *out = (sheaf_str){(const char *)c->p + c->at, (size_t)n};
    c->at += (size_t)n;
    return SHEAF_OK;
}

static sheaf_status take_entry(sheaf_imatrix *m, cursor *c) {
    sheaf_str name = {"", 0};
    int32_t calls = 0, n = 0;
    float *w;
    sheaf_status s = take_text(c, "a name", &name);
    if (!s) s = take_i32(c, "the number of calls", INT32_MIN, &calls);
    if (!s) s = take_i32(c, "the number of values", 1, &n);
    if (!s && (c->n - c->at) / sizeof *w < (size_t)n) s = cut(c, (size_t)n * sizeof *w, "values");
    if (!s) s = imatrix_add(m, name, n, &w);
    if (s) return s;
    memcpy(w, c->p + c->at, (size_t)n * sizeof *w);
    c->at += (size_t)n * sizeof *w;
    for (int32_t i = 0; i < n && calls > 0; i++) w[i] /= (float)calls;
    return SHEAF_OK;
}

sheaf_status imatrix_read_dat(sheaf_imatrix *m, const uint8_t *bytes, size_t n) {
    cursor c = {bytes, n, 0, m->path};
    int32_t entries = 0, chunks = 0;
    sheaf_str dataset = {"", 0};
    sheaf_status s = take_i32(&c, "the number of entries", 1, &entries);
    for (int32_t i = 0; i < entries && !s; i++) s = take_entry(m, &c);
    if (s || c.at == c.n) return s; /* older writers end here */
    s = take_i32(&c, "the number of chunks", INT32_MIN, &chunks);
    if (!s && c.at < c.n) s = take_text(&c, "the dataset's name", &dataset);
    m->chunks = chunks > 0 ? (uint32_t)chunks : 0;
    return s || !dataset.n ? s : imatrix_set_dataset(m, dataset);
}
