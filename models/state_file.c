/* Where the bytes of a state go to and come from. What comes is trusted with nothing: lengths are compared with what is
 * there before anything is read, and the checksum over the whole is right before anything is used. */
#include "models/state_internal.h"
#include "tensor/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- out ---------------------------------------------------------------------------------------------------- */

static void write_out(state_sink *k, const void *bytes, size_t n) {
    if (!k->status && k->file) k->status = gguf_output_write(k->file, k->at, bytes, n);
    if (k->status) sheaf_error_save(&k->error, k->status);
    if (!k->status && k->memory) memcpy(k->memory + k->at, bytes, n);
    k->at += n;
}

static void flush(state_sink *k) {
    k->checksum = sheaf_hash_bytes(k->checksum, k->block, k->fill);
    write_out(k, k->block, k->fill);
    k->fill = 0;
}

void state_put(state_sink *k, const void *bytes, size_t n) {
    for (size_t at = 0; k->block && !k->status && at < n;) {
        size_t piece = n - at < STATE_BLOCK - k->fill ? n - at : STATE_BLOCK - k->fill;
        memcpy(k->block + k->fill, (const uint8_t *)bytes + at, piece);
        k->fill += piece;
        at += piece;
        if (k->fill == STATE_BLOCK) flush(k);
    }
}

sheaf_status state_put_end(state_sink *k) {
    if (k->block && !k->status) {
        flush(k);
        write_out(k, &k->checksum, sizeof k->checksum);
    }
    return k->status ? sheaf_error_restore(&k->error) : SHEAF_OK;
}

/* --- in ----------------------------------------------------------------------------------------------------- */

sheaf_status state_source_open(state_source *k, const char *path) {
    struct stat st;
    *k = (state_source){.name = path, .fd = open(path, O_RDONLY | O_CLOEXEC)};
    if (k->fd < 0) return sheaf_fail(errno == ENOENT ? SHEAF_E_NOT_FOUND : SHEAF_E_IO, "%s: %s", path, strerror(errno));
    if (fstat(k->fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        state_source_close(k);
        return sheaf_fail(SHEAF_E_IO, "%s: it is no file", path);
    }
    k->size = (uint64_t)st.st_size;
    return SHEAF_OK;
}

void state_source_close(state_source *k) {
    if (k->fd >= 0) close(k->fd);
    k->fd = -1;
}

sheaf_status state_read(const state_source *k, uint64_t at, void *dst, size_t n) {
    if (at > k->size || n > k->size - at)
        return sheaf_fail(SHEAF_E_FORMAT,
                          "%s: it ends at byte %" PRIu64 ", bytes %" PRIu64 " to %" PRIu64 " are wanted", k->name,
                          k->size, at, at + n);
    if (k->fd < 0) {
        memcpy(dst, k->memory + at, n);
        return SHEAF_OK;
    }
    for (size_t done = 0; done < n;) {
        ssize_t r = pread(k->fd, (uint8_t *)dst + done, n - done, (off_t)(at + done));
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) return sheaf_fail(SHEAF_E_IO, "%s: byte %" PRIu64 ": %s", k->name, at + done, strerror(errno));
        if (r == 0) return sheaf_fail(SHEAF_E_FORMAT, "%s: it now ends at byte %" PRIu64, k->name, at + done);
        done += (size_t)r;
    }
    return SHEAF_OK;
}

/* --- checks, in the order in which a wrong file is best told apart --------------------------------------------- */

static sheaf_status check_start(const state_source *k, const state_header *h) {
    if (memcmp(h->magic, "SHEAF-KV", sizeof h->magic))
        return sheaf_fail(SHEAF_E_FORMAT, "%s: byte 0: this is no saved state", k->name);
    if (h->byte_order != STATE_BYTE_ORDER)
        return sheaf_fail(SHEAF_E_FORMAT, "%s: byte 12: byte order %08x, here it is %08x", k->name, h->byte_order,
                          STATE_BYTE_ORDER);
    if (h->version != STATE_VERSION)
        return sheaf_fail(SHEAF_E_FORMAT, "%s: byte 8: version %u of saved states, this one reads version %d", k->name,
                          h->version, STATE_VERSION);
    uint64_t sum = sheaf_hash_bytes(SHEAF_HASH_SEED, h, offsetof(state_header, checksum));
    if (sum != h->checksum)
        return sheaf_fail(SHEAF_E_FORMAT, "%s: bytes 0 to %zu do not have the checksum at byte %zu: altered", k->name,
                          offsetof(state_header, checksum), offsetof(state_header, checksum));
    if (h->total_bytes != k->size)
        return sheaf_fail(SHEAF_E_FORMAT, "%s: it has %" PRIu64 " bytes, its header says %" PRIu64, k->name, k->size,
                          h->total_bytes);
    return SHEAF_OK;
}

static sheaf_status check_sum(const state_source *k) {
    uint64_t sum = SHEAF_HASH_SEED, said, end = k->size - sizeof said;
    uint8_t *block = sheaf_malloc(STATE_BLOCK);
    sheaf_status s = block ? SHEAF_OK : sheaf_fail(SHEAF_E_NO_MEMORY, "%s: no memory to read it", k->name);
    uint64_t at = 0;
    while (!s && at < end) {
        size_t n = end - at < STATE_BLOCK ? (size_t)(end - at) : STATE_BLOCK;
        s = state_read(k, at, block, n);
        if (!s) sum = sheaf_hash_bytes(sum, block, n);
        at += n;
    }
    if (!s && end % STATE_BLOCK == 0) sum = sheaf_hash_bytes(sum, block, 0); /* a writer's last block is then empty */
    sheaf_free(block);
    if (!s) s = state_read(k, end, &said, sizeof said);
    if (!s && sum != said)
        s = sheaf_fail(SHEAF_E_FORMAT, "%s: its %" PRIu64 " bytes do not have the checksum at their end: altered",
                       k->name, k->size);
    return s;
}

/* No length of the header says more than there is. */
static sheaf_status check_lengths(const sheaf_context *c, const state_source *k, const state_tables *t) {
    uint64_t sum = sizeof t->h + (uint64_t)t->n_words * sizeof(int32_t), rows = state_rows_bytes(c, t);
    if (t->h.rows_bytes != rows || t->h.note_bytes > k->size || rows > k->size ||
        sum + t->h.note_bytes + rows + sizeof(uint64_t) != k->size)
        return sheaf_fail(SHEAF_E_FORMAT,
                          "%s: %" PRIu64 " bytes of header and cells, %" PRIu64 " of note and %" PRIu64
                          " of rows (%" PRIu64 " expected) do not make %" PRIu64,
                          k->name, sum, t->h.note_bytes, t->h.rows_bytes, rows, k->size);
    return SHEAF_OK;
}

static sheaf_status read_words(const sheaf_context *c, const state_source *k, state_tables *out) {
    out->n_words = state_words(&out->h);
    out->words = sheaf_malloc(out->n_words * sizeof *out->words + 1);
    if (!out->words) return sheaf_fail(SHEAF_E_NO_MEMORY, "%s: no memory for its cells", k->name);
    sheaf_status s = state_read(k, sizeof out->h, out->words, out->n_words * sizeof *out->words);
    if (!s) s = state_check_cells(c, out);
    return s ? s : check_lengths(c, k, out);
}

sheaf_status state_read_tables(const sheaf_context *c, const state_source *k, state_tables *out) {
    uint64_t fingerprint;
    *out = (state_tables){.words = NULL};
    sheaf_status s = state_read(k, 0, &out->h, sizeof out->h);
    if (!s) s = check_start(k, &out->h);
    if (!s) s = check_sum(k);
    if (!s) s = state_fingerprint(c->model, &fingerprint);
    if (!s && fingerprint != out->h.fingerprint)
        s = sheaf_fail(SHEAF_E_FORMAT,
                       "%s: it was saved with another model than %s (%016" PRIx64 ", not %016" PRIx64 ")", k->name,
                       c->model->path, out->h.fingerprint, fingerprint);
    if (!s) s = state_check_header(c, &out->h);
    if (!s) s = read_words(c, k, out);
    return s ? sheaf_error_context(s, "saved state") : SHEAF_OK;
}

void state_tables_free(state_tables *t) { sheaf_free(t->words); }
