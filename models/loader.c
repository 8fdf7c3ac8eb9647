/* Bytes of the file to weights on their devices.
 *
 *   one device that computes on mapped pages:  its weights are the file's pages, nothing is copied
 *   one device otherwise:                      read into its memory, or through a chunk where it is no host memory
 *   several:                                   the file is read once, in windows; each window's bytes go
 *                                              to the members that hold them
 *
 * Beyond the weights themselves this holds one window, and for devices whose memory the host cannot write
 * one packed piece of it, 4 MiB each (case I05).
 * Reads are as large as that (E08). A file that changes while it is read is an error at the end. */
#include "models/model_internal.h"

#include <string.h>

enum { CHUNK = 4 << 20 };

typedef struct load {
    sheaf_model *m;
    const sheaf_model_options *o;
    uint8_t *window, *packed; /* CHUNK each; NULL until needed */
    uint64_t done;
} load;

static sheaf_status report(load *l, uint64_t bytes) {
    l->done += bytes;
    uint64_t all = l->m->hp.bytes;
    if (!l->o->progress || l->o->progress(l->o->progress_ctx, all ? (float)((double)l->done / (double)all) : 1.0f))
        return SHEAF_OK;
    return sheaf_fail(SHEAF_E_CANCELLED, "%s: loading was cancelled", l->m->path);
}

static sheaf_status add_buffer(sheaf_model *m, sheaf_buffer *b) {
    sheaf_buffer **grown = sheaf_realloc(m->buffers, (size_t)(m->n_buffers + 1) * sizeof(sheaf_buffer *));
    if (!grown) {
        sheaf_buffer_free(b);
        return sheaf_fail(SHEAF_E_NO_MEMORY, "%s: no memory for a buffer", m->path);
    }
    m->buffers = grown;
    m->buffers[m->n_buffers++] = b;
    return SHEAF_OK;
}

/* --- mapped: the weights are the file's pages ----------------------------------------------------------- */

/* The bytes of shard `shard` that weights use: [begin, end). False: none. */
static bool used_range(const sheaf_model *m, int shard, uint64_t *begin, uint64_t *end) {
    *begin = UINT64_MAX;
    *end = 0;
    for (int32_t i = 0; i < m->n_weights; i++) {
        const sheaf_gguf_tensor *t = m->source[i];
        if (t->shard != shard) continue;
        if (t->offset < *begin) *begin = t->offset;
        if (t->offset + t->bytes > *end) *end = t->offset + t->bytes;
    }
    return *end > 0;
}

static sheaf_status alias_shard(sheaf_model *m, int shard) {
    uint64_t begin, end;
    const void *base;
    size_t size;
    if (!used_range(m, shard, &begin, &end)) return SHEAF_OK;
    sheaf_gguf_mapping(m->gguf, shard, &base, &size);
    sheaf_buffer *b = NULL;
    /* Read-only pages: WEIGHTS are never written. */
    sheaf_status s = m->device->iface->buffer_from_host_ptr(m->device, (char *)base + begin, (size_t)(end - begin), &b);
    if (!s) b->usage = SHEAF_USAGE_WEIGHTS;
    if (!s) s = add_buffer(m, b);
    for (int32_t i = 0; i < m->n_weights && !s; i++) {
        const sheaf_gguf_tensor *t = m->source[i];
        if (t->shard == shard) s = sheaf_tensor_place(b, m->weight[i], (char *)b->base + (t->offset - begin));
    }
    return s;
}

static sheaf_status load_mapped(load *l) {
    sheaf_model *m = l->m;
    sheaf_status s = sheaf_gguf_map(m->gguf);
    for (int shard = 0; shard < sheaf_gguf_shards(m->gguf) && !s; shard++) s = alias_shard(m, shard);
    return s ? s : report(l, m->hp.bytes);
}

/* --- read ----------------------------------------------------------------------------------------------- */

/* One of the two chunks, made when it is first needed. */
static sheaf_status need_chunk(const load *l, uint8_t **chunk) {
    if (!*chunk) *chunk = sheaf_aligned_alloc(64, CHUNK);
    return *chunk ? SHEAF_OK : sheaf_fail(SHEAF_E_NO_MEMORY, "%s: no memory to read with", l->m->path);
}

static size_t chunk_at(const sheaf_gguf_tensor *t, uint64_t offset) {
    return t->bytes - offset < CHUNK ? (size_t)(t->bytes - offset) : CHUNK;
}

/* One device: straight into its memory where the host may write there. */
static sheaf_status read_whole(load *l, sheaf_tensor *w, const sheaf_gguf_tensor *t) {
    sheaf_status s = SHEAF_OK;
    for (uint64_t at = 0; at < t->bytes && !s; at += CHUNK) {
        size_t n = chunk_at(t, at);
        void *direct = sheaf_host_write(w, (size_t)at, n);
        if (!direct) s = need_chunk(l, &l->window);
        if (!s) s = sheaf_gguf_read(l->m->gguf, t, at, direct ? direct : l->window, n);
        if (!s && !direct) s = sheaf_tensor_set(w, l->window, (size_t)at, n);
        if (!s) s = report(l, n);
    }
    return s;
}

/* Member i's pieces of the window [at, at + n) of a tensor: straight to their places where the host may
 * write there. Else, as they are one stretch of the shard, they are packed and set in one go. */
static sheaf_status give_member(load *l, sheaf_tensor *w, int i, const sheaf_layout *layout, uint64_t at, size_t n) {
    sheaf_pieces walk;
    sheaf_piece p;
    size_t first = 0, held = 0;
    sheaf_tensor *shard = sheaf_meta_shard(w, i);
    uint8_t *direct = shard ? sheaf_host_write(shard, 0, sheaf_nbytes(shard)) : NULL;
    sheaf_status s = direct ? SHEAF_OK : need_chunk(l, &l->packed);
    if (s) return s;
    sheaf_pieces_begin(&walk, layout, sheaf_meta_first(l->m->device) + i, w->type, w->ne, (size_t)at, n);
    while (sheaf_pieces_next(&walk, &p)) {
        const uint8_t *from = l->window + (p.global - at);
        if (direct) {
            memcpy(direct + p.local, from, p.bytes);
            continue;
        }
        if (held == 0) first = p.local;
        if (p.local != first + held || held + p.bytes > CHUNK)
            return sheaf_fail(SHEAF_E_INTERNAL, "%s: pieces of %s do not follow each other", l->m->path, w->name);
        memcpy(l->packed + held, from, p.bytes);
        held += p.bytes;
    }
    return held ? sheaf_meta_shard_set(w, i, l->packed, first, held) : SHEAF_OK;
}

/* Does any member of this process hold something of the window? */
static bool wanted_here(const load *l, const sheaf_tensor *w, const sheaf_layout *layout, uint64_t at, size_t n) {
    for (int i = 0; i < l->m->n_members; i++) {
        sheaf_pieces walk;
        sheaf_piece p;
        sheaf_pieces_begin(&walk, layout, sheaf_meta_first(l->m->device) + i, w->type, w->ne, (size_t)at, n);
        if (sheaf_pieces_next(&walk, &p)) return true;
    }
    return false;
}

static sheaf_status read_split(load *l, sheaf_tensor *w, const sheaf_gguf_tensor *t) {
    const sheaf_layout *layout = sheaf_meta_layout(w);
    sheaf_status s = need_chunk(l, &l->window);
    for (uint64_t at = 0; at < t->bytes && !s; at += CHUNK) {
        size_t n = chunk_at(t, at);
        if (!wanted_here(l, w, layout, at, n)) continue;
        s = sheaf_gguf_read(l->m->gguf, t, at, l->window, n);
        for (int i = 0; i < l->m->n_members && !s; i++) s = give_member(l, w, i, layout, at, n);
        if (!s) s = report(l, n);
    }
    return s;
}

static sheaf_status load_read(load *l) {
    sheaf_model *m = l->m;
    sheaf_buffer *b = NULL;
    sheaf_status s = l->o->no_data ? SHEAF_OK : model_need_memory(m, m->arena);
    if (!s) s = sheaf_arena_place_all(m->arena, m->device->buffer_type, SHEAF_USAGE_WEIGHTS, &b);
    if (!s && b) s = add_buffer(m, b);
    if (s) return sheaf_error_context(s, "%s: memory for weights on %s", m->path, m->device->name);
    for (int32_t i = 0; i < m->n_weights && !s && !l->o->no_data; i++)
        s = m->is_meta ? read_split(l, m->weight[i], m->source[i]) : read_whole(l, m->weight[i], m->source[i]);
    return s;
}

/* Pages are used as they are only where every tensor begins as the device wants it: general.alignment may be 1. */
static bool can_map(const sheaf_model *m) {
    enum { MAPPED_ALIGNMENT = 8 }; /* of the elements that kernels read with plain loads */
    for (int64_t i = 0; i < sheaf_gguf_n_tensors(m->gguf); i++)
        if (sheaf_gguf_tensor_at(m->gguf, i)->offset % MAPPED_ALIGNMENT) return false;
    return true;
}

sheaf_status model_load_weights(sheaf_model *m, const sheaf_model_options *o) {
    load l = {.m = m, .o = o};
    const sheaf_device *d = m->device;
    bool mapped = !m->is_meta && !o->no_mmap && d->caps.host_ptr && d->iface->buffer_from_host_ptr && can_map(m);
    sheaf_status s = mapped ? load_mapped(&l) : load_read(&l);
    sheaf_free(l.window);
    sheaf_free(l.packed);
    for (int32_t i = 0; i < m->n_buffers && !s; i++) m->weight_bytes += m->buffers[i]->size;
    return s ? s : sheaf_gguf_unchanged(m->gguf);
}
