/* A context's state, saved and restored: which cells hold what, and the rows behind them.
 *
 * Rows are written as they lie in a cache on one device, so a file does not know how many there were; cells keep their
 * numbers, because attention adds in their order. Over processes rank 0 has the file: rows are gathered from all ranks,
 * or told to all, a chunk at a time, and no rank fails alone. */
#include "models/state_internal.h"
#include "tensor/hash.h"

#include <inttypes.h>
#include <stdlib.h>

enum { CHUNK = 1 << 20, SAMPLE = 64 };

/* --- what a state must fit ------------------------------------------------------------------------------------ */

static uint64_t hash_params(uint64_t h, const sheaf_params *p) { return sheaf_hash_bytes(h, p, sizeof *p); }

/* Names, types and shapes of the weights and a sample of each one's bytes: another training of the same model differs.
 */
sheaf_status state_fingerprint(const sheaf_model *m, uint64_t *out) {
    uint64_t h = hash_params(hash_params(SHEAF_HASH_SEED, &m->hp.rope), &m->hp.rope_window);
    for (int32_t i = 0; i < m->n_weights; i++) {
        const sheaf_gguf_tensor *t = m->source[i];
        uint8_t sample[SAMPLE] = {0};
        size_t n = t->bytes < SAMPLE ? (size_t)t->bytes : SAMPLE;
        sheaf_status s = sheaf_gguf_read(m->gguf, t, (t->bytes - n) / 2, sample, n);
        if (s) return s;
        h = sheaf_hash_bytes(h, t->name.s, t->name.n);
        h = sheaf_hash_word(h, (uint64_t)t->type);
        h = sheaf_hash_bytes(h, t->ne, sizeof t->ne);
        h = sheaf_hash_bytes(h, sample, sizeof sample);
    }
    *out = h;
    return SHEAF_OK;
}

static int32_t window_of(const sheaf_context *c) { return c->window_cells.n ? c->model->hp.window : 0; }

static bool long_positions(const sheaf_context *c) {
    const sheaf_model *m = c->model;
    return m->global[W_ROPE_LONG] >= 0 && c->o.n_ctx > m->hp.rope.rope.n_ctx_orig;
}

size_t state_words(const state_header *h) {
    return 2 * ((size_t)h->cells + (size_t)h->window_cells) + (h->window ? (size_t)h->n_seq : 0);
}

static const int32_t *window_pairs(const state_tables *t) { return t->words + 2 * (size_t)t->h.cells; }
static const int32_t *lost_of(const state_tables *t) { return window_pairs(t) + 2 * (size_t)t->h.window_cells; }

sheaf_status state_check_header(const sheaf_context *c, const state_header *h) {
    if (h->n_layer != c->model->hp.n_layer || h->window != window_of(c))
        return sheaf_fail(SHEAF_E_FORMAT, "%d layers with a window of %d, the model has %d and %d", h->n_layer,
                          h->window, c->model->hp.n_layer, window_of(c));
    if (h->type_k != (int32_t)c->o.type_k || h->type_v != (int32_t)c->o.type_v)
        return sheaf_fail(SHEAF_E_FORMAT, "its cache has keys of %s and values of %s, this one %s and %s",
                          sheaf_type_valid(h->type_k) ? sheaf_type_name((sheaf_type)h->type_k) : "an unknown type",
                          sheaf_type_valid(h->type_v) ? sheaf_type_name((sheaf_type)h->type_v) : "an unknown type",
                          sheaf_type_name(c->o.type_k), sheaf_type_name(c->o.type_v));
    if (h->long_positions != (int32_t)long_positions(c))
        return sheaf_fail(SHEAF_E_FORMAT, "positions were rotated for a %s context, here for a %s one",
                          h->long_positions ? "long" : "short", long_positions(c) ? "long" : "short");
    if (h->cells < 0 || h->window_cells < 0 || h->n_seq < 1 || h->n_seq > 1 << 20 || h->window_hand < 0 || h->zero)
        return sheaf_fail(SHEAF_E_FORMAT, "%d and %d cells of %d sequences, hand at %d", h->cells, h->window_cells,
                          h->n_seq, h->window_hand);
    if (h->cells > c->cells.n || h->window_cells > c->window_cells.n)
        return sheaf_fail(SHEAF_E_RANGE, "%d cells (%d of layers with a window) do not fit this context's %d (%d)",
                          h->cells, h->window_cells, c->cells.n, c->window_cells.n);
    return SHEAF_OK;
}

static int compare_keys(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Every used cell a sequence of the context and a position below `end` of it, no two alike; the last one in use. */
static sheaf_status check_pairs(const sheaf_context *c, const int32_t *pairs, int32_t n, const int32_t *end) {
    uint64_t *key = sheaf_malloc((size_t)n * sizeof *key + 1);
    sheaf_status s = key ? SHEAF_OK : sheaf_fail(SHEAF_E_NO_MEMORY, "no memory to check %d cells", n);
    int32_t used = 0;
    for (int32_t i = 0; i < n && !s; i++) {
        int32_t seq = pairs[2 * i], pos = pairs[2 * i + 1];
        if (seq == -1 && pos == 0 && i + 1 < n) continue;
        if (seq >= c->o.n_seq && seq < 1 << 20 && pos >= 0)
            s = sheaf_fail(SHEAF_E_RANGE, "cell %d holds sequence %d, this context has %d", i, seq, c->o.n_seq);
        else if (seq < 0 || seq >= c->o.n_seq || pos < 0 || pos >= (end ? end[seq] : INT32_MAX - 1))
            s = sheaf_fail(SHEAF_E_FORMAT, "cell %d of %d holds position %d of sequence %d", i, n, pos, seq);
        else
            key[used++] = (uint64_t)(uint32_t)seq << 32 | (uint32_t)pos;
    }
    if (!s) qsort(key, (size_t)used, sizeof *key, compare_keys);
    for (int32_t i = 1; i < used && !s; i++)
        if (key[i] == key[i - 1])
            s = sheaf_fail(SHEAF_E_FORMAT, "two cells hold position %u of sequence %u", (unsigned)key[i],
                           (unsigned)(key[i] >> 32));
    sheaf_free(key);
    return s;
}

/* The position after each sequence's last. */
static sheaf_status find_ends(const sheaf_context *c, const state_tables *t, int32_t **out) {
    int32_t *end = *out = sheaf_calloc((size_t)c->o.n_seq, sizeof *end);
    if (!end) return sheaf_fail(SHEAF_E_NO_MEMORY, "no memory for %d sequences", c->o.n_seq);
    for (int32_t i = 0; i < t->h.cells; i++) {
        int32_t seq = t->words[2 * i], pos = t->words[2 * i + 1];
        if (seq >= 0 && pos >= end[seq]) end[seq] = pos + 1;
    }
    return SHEAF_OK;
}

/* Windowed layers hold no position that the others do not: what may not be given up is then never all there is. */
sheaf_status state_check_cells(const sheaf_context *c, const state_tables *t) {
    int32_t *end = NULL;
    sheaf_status s = check_pairs(c, t->words, t->h.cells, NULL);
    if (!s) s = find_ends(c, t, &end);
    if (!s) s = check_pairs(c, window_pairs(t), t->h.window_cells, end);
    for (int32_t q = 0; t->h.window && q < t->h.n_seq && !s; q++) {
        int32_t lost = lost_of(t)[q];
        if (lost < 0 || lost > (q < c->o.n_seq ? end[q] : 0))
            s = sheaf_fail(SHEAF_E_FORMAT, "sequence %d has given up %d positions", q, lost);
    }
    sheaf_free(end);
    return s;
}

/* --- the walk over rows ----------------------------------------------------------------------------------------- */

typedef struct walk {
    sheaf_context *c;
    const state_tables *t;
    uint8_t *buffer;
    size_t capacity;
    state_sink *sink;           /* saving */
    const state_source *source; /* restoring: NULL on ranks that follow */
    uint64_t at;                /* in the source */
} walk;

typedef sheaf_status (*chunk_fn)(walk *w, sheaf_tensor *t, size_t offset, size_t n);

/* Number i of all caches: the keys of layer 0, its values, ... */
static sheaf_tensor *cache_at(const sheaf_context *c, int32_t i) {
    return i % 2 ? c->cache_v[i / 2] : c->cache_k[i / 2];
}

static size_t row_of(const sheaf_tensor *t) { return t->ne[0] ? t->nb[1] : 0; }

static const int32_t *pairs_of(const sheaf_context *c, const state_tables *t, int32_t i, int32_t *n) {
    bool windowed = c->model->windowed && c->model->windowed[i / 2];
    *n = windowed ? t->h.window_cells : t->h.cells;
    return windowed ? window_pairs(t) : t->words;
}

uint64_t state_rows_bytes(const sheaf_context *c, const state_tables *t) {
    uint64_t bytes = 0;
    for (int32_t i = 0; i < 2 * c->model->hp.n_layer; i++) {
        int32_t n, used = 0;
        const int32_t *pairs = pairs_of(c, t, i, &n);
        for (int32_t k = 0; k < n; k++) used += pairs[2 * k] >= 0;
        bytes += (uint64_t)used * row_of(cache_at(c, i)); /* no more than the cache itself has */
    }
    return bytes;
}

/* Neighbouring cells in use go together, as many as fit the buffer. */
static sheaf_status walk_cache(walk *w, int32_t i, chunk_fn fn) {
    int32_t n;
    const int32_t *pairs = pairs_of(w->c, w->t, i, &n);
    sheaf_tensor *t = cache_at(w->c, i);
    size_t row = row_of(t);
    sheaf_status s = SHEAF_OK;
    for (int32_t k = 0; row && k < n && !s; k++) {
        int32_t first = k;
        while (k < n && pairs[2 * k] >= 0 && (size_t)(k - first + 1) * row <= w->capacity) k++;
        if (k > first) s = fn(w, t, (size_t)first * row, (size_t)(k-- - first) * row);
    }
    return s;
}

/* All ranks walk, or none: `mine` is what came of getting ready here. */
static sheaf_status walk_rows(walk *w, chunk_fn fn, sheaf_status mine) {
    sheaf_status s = mine;
    w->capacity = CHUNK;
    for (int32_t i = 0; i < 2 * w->c->model->hp.n_layer; i++)
        if (row_of(cache_at(w->c, i)) > w->capacity) w->capacity = row_of(cache_at(w->c, i));
    w->buffer = sheaf_malloc(w->capacity);
    if (!s && !w->buffer) s = sheaf_fail(SHEAF_E_NO_MEMORY, "no memory for %zu bytes of a state", w->capacity);
    s = follow_agree(w->c->model->world, s);
    for (int32_t i = 0; i < 2 * w->c->model->hp.n_layer && !s; i++) s = walk_cache(w, i, fn);
    sheaf_free(w->buffer);
    return s;
}

/* --- saving --------------------------------------------------------------------------------------------------- */

static void fill_pairs(const kv_cells *k, int32_t *pairs) {
    for (int32_t i = 0; i < k->high; i++) {
        pairs[2 * i] = k->seq[i];
        pairs[2 * i + 1] = k->seq[i] < 0 ? 0 : k->pos[i];
    }
}

/* The header without its checksum and fingerprint, and the tables. */
static sheaf_status describe(const sheaf_context *c, uint64_t note_bytes, state_tables *t) {
    t->h = (state_header){.magic = {'S', 'H', 'E', 'A', 'F', '-', 'K', 'V'},
                          .version = STATE_VERSION,
                          .byte_order = STATE_BYTE_ORDER,
                          .type_k = (int32_t)c->o.type_k,
                          .type_v = (int32_t)c->o.type_v,
                          .n_layer = c->model->hp.n_layer,
                          .window = window_of(c),
                          .long_positions = long_positions(c),
                          .n_seq = c->o.n_seq,
                          .cells = c->cells.high,
                          .window_cells = c->window_cells.high,
                          .window_hand = c->window_cells.hand,
                          .note_bytes = note_bytes};
    t->n_words = state_words(&t->h);
    t->words = sheaf_malloc(t->n_words * sizeof *t->words + 1);
    if (!t->words) return sheaf_fail(SHEAF_E_NO_MEMORY, "no memory for the cells of a state");
    fill_pairs(&c->cells, t->words);
    if (t->h.window) {
        fill_pairs(&c->window_cells, t->words + 2 * (size_t)t->h.cells);
        memcpy(t->words + t->n_words - c->o.n_seq, c->window_cells.lost, (size_t)c->o.n_seq * sizeof(int32_t));
    }
    t->h.rows_bytes = state_rows_bytes(c, t);
    t->h.total_bytes = sizeof t->h + t->n_words * sizeof *t->words + note_bytes + t->h.rows_bytes + sizeof(uint64_t);
    return SHEAF_OK;
}

static sheaf_status save_chunk(walk *w, sheaf_tensor *t, size_t offset, size_t n) {
    sheaf_status s = follow_gather(w->c, t, offset, n, w->buffer);
    if (!s && w->sink) state_put(w->sink, w->buffer, n);
    return s;
}

/* Rank 0 or alone. A sink that fails drops the rest, but the walk goes on: the other ranks are walking too. */
static sheaf_status save_to(sheaf_context *c, state_tables *t, const void *note, state_sink *k) {
    walk w = {.c = c, .t = t, .sink = k};
    sheaf_status s = state_fingerprint(c->model, &t->h.fingerprint);
    t->h.checksum = sheaf_hash_bytes(SHEAF_HASH_SEED, &t->h, offsetof(state_header, checksum));
    k->checksum = SHEAF_HASH_SEED;
    k->block = sheaf_malloc(STATE_BLOCK);
    if (!s && !k->block) s = sheaf_fail(SHEAF_E_NO_MEMORY, "no memory to write a state");
    if (!s) {
        state_put(k, &t->h, sizeof t->h);
        state_put(k, t->words, t->n_words * sizeof *t->words);
        state_put(k, note, (size_t)t->h.note_bytes);
        if (follow_leads(c)) s = follow_send(c, FOLLOW_SAVE, 0, 0, 0);
    }
    if (!s) s = walk_rows(&w, save_chunk, SHEAF_OK);
    if (!s) s = state_put_end(k);
    sheaf_free(k->block);
    return s;
}

sheaf_status state_follow_save(sheaf_context *c) {
    state_tables t = {.words = NULL};
    walk w = {.c = c, .t = &t};
    sheaf_status s = walk_rows(&w, save_chunk, describe(c, 0, &t));
    state_tables_free(&t);
    return s;
}

sheaf_status sheaf_state_size(const sheaf_context *c, size_t note_bytes, size_t *out) {
    state_tables t = {.words = NULL};
    sheaf_status s = describe(c, note_bytes, &t);
    *out = s ? 0 : (size_t)t.h.total_bytes;
    state_tables_free(&t);
    return s;
}

sheaf_status sheaf_state_get(sheaf_context *c, const void *note, size_t note_bytes, void *dst, size_t size) {
    state_tables t = {.words = NULL};
    state_sink k = {.memory = dst};
    sheaf_status s = describe(c, note_bytes, &t);
    if (!s && size < t.h.total_bytes)
        s = sheaf_fail(SHEAF_E_RANGE, "%" PRIu64 " bytes do not fit %zu", t.h.total_bytes, size);
    if (!s) s = save_to(c, &t, note, &k);
    state_tables_free(&t);
    return s ? sheaf_error_context(s, "saving a state") : SHEAF_OK;
}

sheaf_status sheaf_state_save(sheaf_context *c, const char *path, const void *note, size_t note_bytes) {
    state_tables t = {.words = NULL};
    gguf_output file = {.fd = -1};
    state_sink k = {.file = &file};
    sheaf_status s = describe(c, note_bytes, &t);
    if (!s) s = gguf_output_create(&file, path, t.h.total_bytes);
    if (!s) s = save_to(c, &t, note, &k);
    if (!s) s = gguf_output_commit(&file);
    if (s) {
        sheaf_error_box box;
        sheaf_error_save(&box, s);
        gguf_output_abandon(&file);
        s = sheaf_error_restore(&box);
    }
    state_tables_free(&t);
    return s ? sheaf_error_context(s, "saving a state") : SHEAF_OK;
}

/* --- restoring ------------------------------------------------------------------------------------------------ */

/* Rank 0's bytes on every rank; nothing to do alone. */
static sheaf_status tell(const sheaf_context *c, void *bytes, size_t n) {
    bool alone = !c->model->world || sheaf_world_size(c->model->world) < 2;
    return alone || n == 0 ? SHEAF_OK : sheaf_world_broadcast(c->model->world, bytes, n);
}

static sheaf_status restore_chunk(walk *w, sheaf_tensor *t, size_t offset, size_t n) {
    sheaf_status s = w->source ? state_read(w->source, w->at, w->buffer, n) : SHEAF_OK;
    w->at += n;
    s = follow_agree(w->c->model->world, s);
    if (!s) s = tell(w->c, w->buffer, n);
    if (!s) s = sheaf_tensor_set(t, w->buffer, offset, n);
    return follow_agree(w->c->model->world, s);
}

/* Cells that were in use may be free now, and what lies in them are still numbers [M3]. */
static sheaf_status restore_rows(sheaf_context *c, const state_tables *t, const state_source *source) {
    uint64_t rows_at = t->h.total_bytes - sizeof(uint64_t) - t->h.rows_bytes;
    walk w = {.c = c, .t = t, .source = source, .at = rows_at};
    context_kv_clear(c);
    c->out.n = c->out.last = 0; /* logits of another past */
    sheaf_status s = walk_rows(&w, restore_chunk, SHEAF_OK);
    if (s) return s;
    kv_cells_load(&c->cells, t->words, t->h.cells);
    if (!t->h.window) return SHEAF_OK;
    kv_cells *k = &c->window_cells;
    kv_cells_load(k, window_pairs(t), t->h.window_cells);
    k->hand = t->h.window_hand < k->n ? t->h.window_hand : 0;
    for (int32_t q = 0; q < c->o.n_seq && q < t->h.n_seq; q++) k->lost[q] = lost_of(t)[q];
    return SHEAF_OK;
}

/* A rank of another build may be speaking: what it says is checked as a file is. */
sheaf_status state_follow_restore(sheaf_context *c) {
    state_tables t = {.words = NULL};
    sheaf_status s = tell(c, &t.h, sizeof t.h), bad = SHEAF_OK;
    if (!s) bad = state_check_header(c, &t.h);
    if (!s && !bad) {
        t.n_words = state_words(&t.h);
        t.words = sheaf_malloc(t.n_words * sizeof *t.words + 1);
        if (!t.words) bad = sheaf_fail(SHEAF_E_NO_MEMORY, "no memory for the cells of a state");
    }
    if (!s) s = follow_agree(c->model->world, bad);
    if (!s) s = tell(c, t.words, t.n_words * sizeof *t.words);
    if (!s) s = follow_agree(c->model->world, state_check_cells(c, &t));
    if (!s) s = restore_rows(c, &t, NULL);
    state_tables_free(&t);
    return s;
}

static sheaf_status lead_restore(sheaf_context *c, state_tables *t, const state_source *k) {
    sheaf_status s = SHEAF_OK;
    if (follow_leads(c)) {
        s = follow_send(c, FOLLOW_RESTORE, 0, 0, 0);
        if (!s) s = tell(c, &t->h, sizeof t->h);
        if (!s) s = follow_agree(c->model->world, SHEAF_OK);
        if (!s) s = tell(c, t->words, t->n_words * sizeof *t->words);
        if (!s) s = follow_agree(c->model->world, SHEAF_OK);
    }
    return s ? s : restore_rows(c, t, k);
}

static sheaf_status read_note(const state_source *k, const state_tables *t, void **note, size_t *note_bytes) {
    if (!note || !t->h.note_bytes) return SHEAF_OK;
    *note = sheaf_malloc((size_t)t->h.note_bytes);
    if (!*note) return sheaf_fail(SHEAF_E_NO_MEMORY, "%s: no memory for its note", k->name);
    *note_bytes = (size_t)t->h.note_bytes;
    return state_read(k, sizeof t->h + t->n_words * sizeof *t->words, *note, *note_bytes);
}

static sheaf_status restore_from(sheaf_context *c, const state_source *k, void **note, size_t *note_bytes) {
    state_tables t;
    if (note) *note = NULL, *note_bytes = 0;
    sheaf_status s = state_read_tables(c, k, &t);
    if (!s) s = read_note(k, &t, note, note_bytes);
    if (!s) s = lead_restore(c, &t, k);
    state_tables_free(&t);
    if (!s) return SHEAF_OK;
    if (note) {
        sheaf_free(*note);
        *note = NULL, *note_bytes = 0;
    }
    return sheaf_error_context(s, "restoring");
}

sheaf_status sheaf_state_restore(sheaf_context *c, const char *path, void **note, size_t *note_bytes) {
    state_source k;
    sheaf_status s = state_source_open(&k, path);
    if (s) return sheaf_error_context(s, "saved state");
    s = restore_from(c, &k, note, note_bytes);
    state_source_close(&k);
    return s;
}

sheaf_status sheaf_state_set(sheaf_context *c, const void *src, size_t size, void **note, size_t *note_bytes) {
    state_source k = {.name = "memory", .fd = -1, .memory = src, .size = size};
    uint64_t said = size;
    state_header h;
    if (size >= sizeof h) { /* the buffer may be longer than what was written to it */
        memcpy(&h, src, sizeof h);
        said = h.total_bytes;
    }
    if (said < k.size && said >= sizeof h + sizeof(uint64_t)) k.size = said;
    return restore_from(c, &k, note, note_bytes);
}
