/* What a decode brings out of the devices: rows of logits, or only the best of each row.
 *
 * Where the vocabulary is cut, a row of logits lies in parts. Most samplers look at a few of the best only; then each
 * device finds those of its own part, and what is read is a few pairs a device:
 *
 *     logits   |.....device 0.....|.....device 1.....|     stay where they are
 *     pairs    |k best|                 |k best|           read, merged in strict order
 *
 * The graph keeps the rows until the next decode, so they can still be fetched (for their hash, at the end of a run).
 * Over processes nobody holds a whole row then: ranks exchange their parts on demand. */
#include "models/model_internal.h"

#include <string.h>

/* --- room ------------------------------------------------------------------------------------------------- */

/* Devices that have a part of the vocabulary; 1 where it is not cut. */
static int32_t vocabulary_places(const sheaf_model *m) {
    int32_t w = m->hp.tied ? m->global[W_TOKEN_EMBD] : m->global[W_OUTPUT], n = 0;
    const sheaf_layout *l = w >= 0 && m->is_meta ? &m->placement[w].layout : NULL;
    if (!l || l->kind != SHEAF_AXIS || l->axis != 1) return 1;
    for (int d = 0; d < m->n_world_devices; d++) n += sheaf_layout_share(l, d, 0) > 0;
    return n;
}

sheaf_status outputs_init(sheaf_context *c) {
    decode_outputs *o = &c->out;
    o->places = vocabulary_places(c->model);
    if (c->o.n_best > c->model->hp.n_tokens) c->o.n_best = c->model->hp.n_tokens;
    if (c->o.n_best < 1) return SHEAF_OK;
    size_t pairs = (size_t)o->places * (size_t)c->o.n_best;
    o->pairs = sheaf_malloc(pairs * sizeof *o->pairs);
    return o->pairs ? SHEAF_OK : sheaf_fail(SHEAF_E_NO_MEMORY, "no memory for %zu of the best logits", pairs);
}

void outputs_free(sheaf_context *c) {
    sheaf_free(c->out.logits);
    sheaf_free(c->out.best);
    sheaf_free(c->out.pairs);
}

static sheaf_status reserve_best(sheaf_context *c, int32_t rows) {
    decode_outputs *o = &c->out;
    if (rows <= o->best_capacity) return SHEAF_OK;
    sheaf_best *grown = sheaf_realloc(o->best, (size_t)rows * (size_t)c->o.n_best * sizeof *grown);
    if (!grown) return sheaf_fail(SHEAF_E_NO_MEMORY, "no memory for the best logits of %d rows", rows);
    o->best = grown;
    o->best_capacity = rows;
    return SHEAF_OK;
}

sheaf_status outputs_reserve(sheaf_context *c, int32_t rows, bool best) {
    decode_outputs *o = &c->out;
    size_t bytes;
    if (best) return reserve_best(c, rows);
    if (rows <= o->capacity) return SHEAF_OK;
    if (sheaf_mul_overflow((size_t)rows * sizeof(float), (size_t)c->model->hp.n_vocab, &bytes))
        return sheaf_fail(SHEAF_E_NO_MEMORY, "%d rows of logits", rows);
    sheaf_free(o->logits);
    o->capacity = 0;
    o->logits = sheaf_aligned_alloc(64, bytes);
    if (!o->logits) return sheaf_fail(SHEAF_E_NO_MEMORY, "no memory for %d rows of logits (%zu bytes)", rows, bytes);
    o->capacity = rows;
    return SHEAF_OK;
}

/* --- graphs ----------------------------------------------------------------------------------------------- */

void outputs_mark(const sheaf_context *c, graph_build *b) {
    sheaf_set_flag(b->logits, SHEAF_FLAG_OUTPUT);
    layer_emit(b, b->logits);
    if (b->key.n_best < 1) return;
    sheaf_set_flag(b->logits, SHEAF_FLAG_APART);
    b->best = sheaf_best_of(b->arena, b->logits, b->hp->n_tokens, b->key.n_best, c->out.places);
    sheaf_set_flag(layer_named(b->best, "result_best", -1), SHEAF_FLAG_OUTPUT);
    layer_emit(b, b->best);
}

/* --- rows ------------------------------------------------------------------------------------------------- */

static size_t row_bytes(const sheaf_context *c) { return (size_t)c->model->hp.n_vocab * sizeof(float); }

/* Does a come before b? As in sheaf_best_of. */
static bool before(int64_t a, int64_t b) {
    float x = sheaf_best_value(a), y = sheaf_best_value(b);
    if (x != x || y != y) return (x != x) == (y != y) ? sheaf_best_id(a) < sheaf_best_id(b) : y != y;
    return x > y || (x == y && sheaf_best_id(a) < sheaf_best_id(b));
}

/* The heads of all places, best first; a place ends at id -1. */
static void merge(const sheaf_context *c, sheaf_best *out) {
    int32_t at[SHEAF_MAX_DEVICES] = {0}, k = c->o.n_best;
    for (int32_t i = 0; i < k; i++) {
        int32_t from = -1;
        for (int32_t p = 0; p < c->out.places; p++) {
            const int64_t *pairs = c->out.pairs + (size_t)p * (size_t)k;
            if (at[p] == k || sheaf_best_id(pairs[at[p]]) < 0) continue;
            if (from < 0 || before(pairs[at[p]], c->out.pairs[(size_t)from * (size_t)k + (size_t)at[from]])) from = p;
        }
        int64_t pair = from < 0 ? sheaf_best_pair(0, -1) : c->out.pairs[(size_t)from * (size_t)k + (size_t)at[from]++];
        out[i] = (sheaf_best){sheaf_best_id(pair), sheaf_best_value(pair)};
    }
}

static sheaf_status take_best(sheaf_context *c, int32_t rows) {
    decode_outputs *o = &c->out;
    size_t bytes = (size_t)o->places * (size_t)c->o.n_best * sizeof *o->pairs;
    for (int32_t r = 0; r < rows; r++) {
        sheaf_status s = sheaf_tensor_get(c->best_node, o->pairs, (size_t)r * bytes, bytes);
        if (s) return s;
        merge(c, o->best + (size_t)(o->n + r) * (size_t)c->o.n_best);
    }
    c->stats.logits_bytes += (size_t)rows * bytes;
    return SHEAF_OK;
}

sheaf_status outputs_take(sheaf_context *c, int32_t rows) {
    decode_outputs *o = &c->out;
    sheaf_status s = SHEAF_OK;
    o->has_best = c->batch.best;
    o->last = rows;
    if (rows && o->has_best) {
        s = take_best(c, rows);
    } else if (rows) {
        size_t bytes = (size_t)rows * row_bytes(c);
        s = sheaf_tensor_get(c->logits_node, (char *)o->logits + (size_t)o->n * row_bytes(c), 0, bytes);
        c->stats.logits_bytes += bytes;
    }
    o->n += rows;
    o->whole_from = o->has_best ? o->n : 0;
    return s;
}

/* --- whole rows on demand ----------------------------------------------------------------------------------- */

sheaf_status outputs_fetch(sheaf_context *c) {
    decode_outputs *o = &c->out;
    if (o->last < 1) return sheaf_fail(SHEAF_E_RANGE, "no row of logits was wanted of the last micro-batch");
    sheaf_status s = follow_agree(c->model->world, outputs_reserve(c, o->last, false));
    if (s) return s;
    s = follow_gather(c, c->logits_node, 0, (size_t)o->last * row_bytes(c), o->logits);
    if (!s) o->whole_from = o->n - o->last;
    return s;
}

sheaf_status sheaf_logits_fetch(sheaf_context *c) {
    if (c->out.n > 0 && c->out.whole_from < c->out.n) return SHEAF_OK;
    sheaf_status s = follow_leads(c) ? follow_send(c, FOLLOW_LOGITS, 0, 0, 0) : SHEAF_OK;
    if (!s) s = outputs_fetch(c);
    return s ? sheaf_error_context(s, "whole rows of logits") : SHEAF_OK;
}

/* --- asking ------------------------------------------------------------------------------------------------- */

const float *sheaf_logits(const sheaf_context *c, int32_t i) {
    const decode_outputs *o = &c->out;
    return i < o->whole_from || i < 0 || i >= o->n
               ? NULL
               : o->logits + (size_t)(i - o->whole_from) * (size_t)c->model->hp.n_vocab;
}

const sheaf_best *sheaf_logits_best(const sheaf_context *c, int32_t i, int32_t *n) {
    const decode_outputs *o = &c->out;
    *n = 0;
    if (!o->has_best || i < 0 || i >= o->n) return NULL;
    const sheaf_best *row = o->best + (size_t)i * (size_t)c->o.n_best;
    while (*n < c->o.n_best && row[*n].id >= 0) ++*n;
    return row;
}

int32_t sheaf_n_best(const sheaf_context *c) { return c->o.n_best; }
int32_t sheaf_n_outputs(const sheaf_context *c) { return c->out.n; }

/* FNV-1a over 32-bit words: the bits themselves, so that 0 and -0 differ. */
uint64_t sheaf_logits_hash(const sheaf_context *c, int32_t i) {
    const float *row = sheaf_logits(c, i);
    uint64_t h = 0xcbf29ce484222325u;
    for (int32_t k = 0; row && k < c->model->hp.n_vocab; k++) {
        uint32_t bits;
        memcpy(&bits, &row[k], sizeof bits);
        h = (h ^ bits) * 0x100000001b3u;
    }
    return h;
}
