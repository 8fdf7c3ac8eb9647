/* Importance matrices: opening one of either form, and finding a tensor's weights. */
#include "models/imatrix_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A .dat holds a few bytes a column; files beyond this are none. */
enum { LARGEST_DAT = 1 << 30 };

static sheaf_status no_memory(const sheaf_imatrix *m) {
    return sheaf_fail(SHEAF_E_NO_MEMORY, "%s: no memory", m->path);
}

sheaf_status imatrix_add(sheaf_imatrix *m, sheaf_str name, int64_t n, float **weights) {
    size_t bytes;
    if (m->n == m->cap) {
        int cap = m->cap ? m->cap * 2 : 64;
        imatrix_entry *grown = sheaf_realloc(m->entries, (size_t)cap * sizeof *grown);
        if (!grown) return no_memory(m);
        m->entries = grown;
        m->cap = cap;
    }
    imatrix_entry e = {sheaf_malloc(name.n + 1), NULL, n};
    if (e.name && !sheaf_mul_overflow((size_t)n, sizeof *e.weights, &bytes)) e.weights = sheaf_malloc(bytes);
    if (!e.weights) {
        sheaf_free(e.name);
        return no_memory(m);
    }
    if (name.n) memcpy(e.name, name.s, name.n);
    e.name[name.n] = 0;
    m->entries[m->n++] = e;
    *weights = e.weights;
    return SHEAF_OK;
}

sheaf_status imatrix_set_dataset(sheaf_imatrix *m, sheaf_str text) {
    size_t size = text.n < 256 ? text.n * 4 + 1 : 1024; /* shown, and kept, as printable text */
    m->dataset = sheaf_malloc(size);
    if (!m->dataset) return no_memory(m);
    sheaf_str_text(text, m->dataset, size);
    return SHEAF_OK;
}

/* --- what is read must make sense --- */

static int by_name(const void *a, const void *b) {
    return strcmp(((const imatrix_entry *)a)->name, ((const imatrix_entry *)b)->name);
}

static sheaf_status check_entry(const sheaf_imatrix *m, const imatrix_entry *e) {
    char name[160];
    sheaf_str_text((sheaf_str){e->name, strlen(e->name)}, name, sizeof name);
    for (int64_t i = 0; i < e->n; i++)
        if (!isfinite(e->weights[i]) || e->weights[i] < 0)
            return sheaf_fail(SHEAF_E_FORMAT, "%s: %s: the importance of column %lld is %g", m->path, name,
                              (long long)i, (double)e->weights[i]);
    return SHEAF_OK;
}

static sheaf_status finish(sheaf_imatrix *m) {
    char name[160];
    if (m->n == 0) return sheaf_fail(SHEAF_E_FORMAT, "%s: it holds no importance of any tensor", m->path);
    qsort(m->entries, (size_t)m->n, sizeof *m->entries, by_name);
    for (int i = 1; i < m->n; i++)
        if (!strcmp(m->entries[i - 1].name, m->entries[i].name))
            return sheaf_fail(
                SHEAF_E_FORMAT, "%s: tensor %s occurs twice", m->path,
                sheaf_str_text((sheaf_str){m->entries[i].name, strlen(m->entries[i].name)}, name, sizeof name));
    for (int i = 0; i < m->n; i++) {
        sheaf_status s = check_entry(m, &m->entries[i]);
        if (s) return s;
    }
    return SHEAF_OK;
}

static bool is_gguf(const uint8_t *bytes, size_t n) { return n >= 4 && !memcmp(bytes, "GGUF", 4); }

/* --- opening --- */

static sheaf_status begin(const char *path, sheaf_imatrix **out) {
    *out = sheaf_calloc(1, sizeof **out);
    if (*out) (*out)->path = sheaf_strdup(path);
    if (*out && (*out)->path) return SHEAF_OK;
    sheaf_imatrix_free(*out);
    *out = NULL;
    return sheaf_fail(SHEAF_E_NO_MEMORY, "%s: no memory", path);
}

/* `s` is what filling *out came to. */
static sheaf_status end(sheaf_imatrix **out, sheaf_status s) {
    if (!s) s = finish(*out);
    if (!s) return s;
    sheaf_imatrix_free(*out);
    *out = NULL;
    return s;
}

/* All of a regular file. */
static sheaf_status slurp(const char *path, uint8_t **bytes, size_t *n) {
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return sheaf_fail(SHEAF_E_IO, "%s: %s", path, strerror(errno));
    sheaf_status s = SHEAF_OK;
    *bytes = NULL;
    *n = 0;
    if (fstat(fd, &st) != 0)
        s = sheaf_fail(SHEAF_E_IO, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        s = sheaf_fail(SHEAF_E_IO, "%s: %s, not a file", path,
                       S_ISDIR(st.st_mode) ? "a directory" : "a device or pipe");
    else if (st.st_size > LARGEST_DAT)
        s = sheaf_fail(SHEAF_E_FORMAT, "%s: %lld bytes are no importance matrix", path, (long long)st.st_size);
    else if (!(*bytes = sheaf_malloc((size_t)st.st_size + 1)))
        s = sheaf_fail(SHEAF_E_NO_MEMORY, "%s: no memory for %lld bytes", path, (long long)st.st_size);
    while (!s && *n < (size_t)st.st_size) {
        ssize_t got = read(fd, *bytes + *n, (size_t)st.st_size - *n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) s = sheaf_fail(SHEAF_E_IO, "%s: %s", path, strerror(errno));
        if (got <= 0) break; /* shorter than it was: the parser says what is missing */
        *n += (size_t)got;
    }
    close(fd);
    return s;
}

static sheaf_status open_gguf(const char *path, sheaf_imatrix *m) {
    sheaf_gguf *g = NULL;
    sheaf_status s = sheaf_gguf_open(path, &g);
    if (!s) s = imatrix_read_gguf(m, g);
    sheaf_gguf_close(g);
    return s;
}

static sheaf_status open_dat(const char *path, sheaf_imatrix *m) {
    uint8_t *bytes = NULL;
    size_t n = 0;
    sheaf_status s = slurp(path, &bytes, &n);
    if (!s) s = imatrix_read_dat(m, bytes, n);
    sheaf_free(bytes);
    return s;
}

sheaf_status sheaf_imatrix_open(const char *path, sheaf_imatrix **out) {
    uint8_t magic[4] = {0};
    sheaf_status s = begin(path, out);
    if (s) return s;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t got = fd < 0 ? 0 : read(fd, magic, sizeof magic);
    if (fd >= 0) close(fd);
    return end(out, got == 4 && is_gguf(magic, 4) ? open_gguf(path, *out) : open_dat(path, *out));
}

sheaf_status sheaf_imatrix_open_memory(const void *bytes, size_t n, sheaf_imatrix **out) {
    sheaf_status s = begin("(memory)", out);
    if (s) return s;
    if (!is_gguf(bytes, n)) return end(out, imatrix_read_dat(*out, bytes, n));
    sheaf_gguf *g = NULL;
    s = sheaf_gguf_open_memory(bytes, n, &g);
    if (!s) s = imatrix_read_gguf(*out, g);
    sheaf_gguf_close(g);
    return end(out, s);
}

void sheaf_imatrix_free(sheaf_imatrix *m) {
    if (!m) return;
    for (int i = 0; i < m->n; i++) {
        sheaf_free(m->entries[i].name);
        sheaf_free(m->entries[i].weights);
    }
    sheaf_free(m->entries);
    sheaf_free(m->path);
    sheaf_free(m->dataset);
    sheaf_free(m);
}

/* --- asking --- */

const float *sheaf_imatrix_find(const sheaf_imatrix *m, sheaf_str tensor, int64_t *n) {
    char name[SHEAF_MAX_NAME];
    if (tensor.n >= sizeof name) return NULL;
    memcpy(name, tensor.s, tensor.n);
    name[tensor.n] = 0;
    imatrix_entry key = {.name = name};
    const imatrix_entry *e = bsearch(&key, m->entries, (size_t)m->n, sizeof *m->entries, by_name);
    if (!e) return NULL;
    *n = e->n;
    return e->weights;
}

int sheaf_imatrix_entries(const sheaf_imatrix *m) { return m->n; }
uint32_t sheaf_imatrix_chunks(const sheaf_imatrix *m) { return m->chunks; }
const char *sheaf_imatrix_dataset(const sheaf_imatrix *m) { return m->dataset ? m->dataset : ""; }
const char *sheaf_imatrix_path(const sheaf_imatrix *m) { return m->path; }
