/* Meta buffers: one range of addresses that nobody may touch, and the members' real buffers behind it.
 *
 * Owns: the reserved range (a stray host access traps instead of reading garbage), shard headers and member
 * buffers of static tensors, and the memory of tensors that cross a plan's border (io). Tensors of a compute
 * buffer get nothing here: the plan places each member's bytes; until one is bound as a crossing, it can be
 * neither read nor written. All bytes move by pieces (splitstate/pieces.c): a set writes every holder of a
 * run, a get reads one. */
#include "meta/meta_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

typedef struct static_part {
    struct static_part *next;
    sheaf_buffer *buffer;
    int member;
} static_part;

typedef struct meta_buffer {
    sheaf_buffer base;
    meta_device *device;
    sheaf_arena *arena; /* headers, layouts */
    static_part *parts;
    meta_io *io;
} meta_buffer;

static const sheaf_buffer_iface meta_buffer_iface;

bool meta_is_buffer(const sheaf_buffer *b) { return b && b->iface == &meta_buffer_iface; }

static meta_buffer *buffer_of(sheaf_buffer *b) { return (meta_buffer *)b; }

/* --- shards -------------------------------------------------------------------------------------------- */

static sheaf_status shard_header(const sheaf_tensor *t, const sheaf_layout *l, int device, sheaf_tensor *out) {
    *out = (sheaf_tensor){.type = t->type, .flags = t->flags, .index = -1};
    memcpy(out->name, t->name, sizeof out->name);
    sheaf_layout_local_ne(l, device, t->ne, out->ne);
    out->nb[0] = sheaf_type_bytes(t->type);
    out->nb[1] = sheaf_row_bytes(t->type, out->ne[0]);
    if (out->nb[1] == SIZE_MAX) {
        return sheaf_fail(SHEAF_E_SHAPE, "%s: device %d would hold %" PRId64 " elements of a row, not whole blocks",
                          t->name, device, out->ne[0]);
    }
    out->nb[2] = out->nb[1] * (size_t)out->ne[1];
    out->nb[3] = out->nb[2] * (size_t)out->ne[2];
    return SHEAF_OK;
}

sheaf_status meta_ext_new(const meta_device *m, sheaf_arena *a, const sheaf_tensor *t, const sheaf_layout *layout,
                          meta_ext **out) {
    meta_ext *e = sheaf_arena_alloc(a, sizeof *e);
    if (e) e->shards = sheaf_arena_alloc(a, sizeof *e->shards * (size_t)m->n_local);
    if (!e || !e->shards) return sheaf_arena_status(a);
    e->device = m;
    e->layout = *layout;
    sheaf_status s = sheaf_layout_check(layout, t->ne, m->n_world);
    for (int i = 0; i < m->n_local && !s; i++) s = shard_header(t, layout, m->first + i, &e->shards[i]);
    if (s) return sheaf_error_context(s, "%s", t->name);
    *out = e;
    return SHEAF_OK;
}

sheaf_status meta_shard_alloc(meta_device *m, int member, sheaf_tensor *shard, sheaf_usage usage, sheaf_buffer **out) {
    *out = NULL;
    sheaf_buffer_type *type = m->members[member]->buffer_type;
    if (sheaf_nelements(shard) == 0) { /* nothing to allocate is not a failure (case A15) */
        shard->flags |= SHEAF_FLAG_EMPTY;
        return SHEAF_OK;
    }
    sheaf_status s = sheaf_buffer_alloc(type, sheaf_alloc_size(type, shard), usage, out);
    if (!s) s = sheaf_tensor_place(*out, shard, (*out)->base);
    if (s) {
        sheaf_buffer_free(*out);
        *out = NULL;
        return sheaf_error_context(s, "%s on %s", shard->name, m->members[member]->name);
    }
    meta_count_bytes(m, member, usage, (ptrdiff_t)(*out)->size);
    return SHEAF_OK;
}

void meta_shard_free(meta_device *m, int member, sheaf_usage usage, sheaf_buffer *b) {
    if (!b) return;
    meta_count_bytes(m, member, usage, -(ptrdiff_t)b->size);
    sheaf_buffer_free(b);
}

/* --- the buffer ---------------------------------------------------------------------------------------- */

static void buffer_free(sheaf_buffer *b) {
    meta_buffer *m = buffer_of(b);
    for (static_part *p = m->parts; p; p = p->next) meta_shard_free(m->device, p->member, b->usage, p->buffer);
    for (meta_io *io = m->io, *next; io; io = next) {
        next = io->next;
        meta_io_release(io);
    }
    sheaf_arena_free(m->arena);
    if (b->base) munmap(b->base, b->size);
    sheaf_free(m);
}

static sheaf_status buffer_alloc(sheaf_buffer_type *t, size_t size, sheaf_buffer **out) {
    meta_buffer *b = sheaf_calloc(1, sizeof *b);
    if (!b) return sheaf_fail(SHEAF_E_NO_MEMORY, "a buffer of %s", t->name);
    b->base = (sheaf_buffer){.iface = &meta_buffer_iface, .type = t, .size = size};
    b->device = meta_of(t->device);
    sheaf_status s = sheaf_arena_new(16384, &b->arena);
    if (!s && size > 0) {
        void *range = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (range == MAP_FAILED) {
            s = sheaf_fail(SHEAF_E_NO_MEMORY, "reserving %zu addresses for %s: %s", size, t->name, strerror(errno));
        } else {
            b->base.base = range;
        }
    }
    if (s) {
        buffer_free(&b->base);
        return s;
    }
    *out = &b->base;
    return SHEAF_OK;
}

static sheaf_status place_shards(meta_buffer *b, meta_ext *e) {
    for (int i = 0; i < b->device->n_local; i++) {
        static_part *part = sheaf_arena_alloc(b->arena, sizeof *part);
        if (!part) return sheaf_arena_status(b->arena);
        sheaf_status s = meta_shard_alloc(b->device, i, &e->shards[i], b->base.usage, &part->buffer);
        if (s) return s;
        part->member = i;
        part->next = b->parts;
        if (part->buffer) b->parts = part;
    }
    return SHEAF_OK;
}

/* Static tensors get layout, headers and memory; what a graph computes gets nothing. */
static sheaf_status init_tensor(sheaf_buffer *base, sheaf_tensor *t) {
    meta_buffer *b = buffer_of(base);
    meta_device *m = b->device;
    if (t->view_src || base->usage == SHEAF_USAGE_COMPUTE) return SHEAF_OK;
    sheaf_layout layout = sheaf_layout_mirrored();
    meta_ext *e = NULL;
    sheaf_status s = m->policy ? m->policy(m->policy_ctx, b->arena, t, &layout) : SHEAF_OK;
    if (!s) s = meta_ext_new(m, b->arena, t, &layout, &e);
    if (!s) s = place_shards(b, e);
    if (s) return s;
    t->ext = e;
    return SHEAF_OK;
}

static sheaf_status clear(sheaf_buffer *base, uint8_t value) {
    meta_buffer *b = buffer_of(base);
    sheaf_status s = SHEAF_OK;
    for (static_part *p = b->parts; p && !s; p = p->next) s = sheaf_buffer_clear(p->buffer, value);
    for (meta_io *io = b->io; io && !s; io = io->next) {
        for (int i = 0; i < b->device->n_local && !s; i++) {
            if (io->parts[i]) s = sheaf_buffer_clear(io->parts[i], value);
        }
    }
    return s;
}

/* --- bytes ----------------------------------------------------------------------------------------------- */

static sheaf_status shards_of(const sheaf_tensor *t, const meta_ext **out) {
    *out = t->ext;
    if (*out && (*out)->shards) return SHEAF_OK;
    return sheaf_fail(SHEAF_E_ARGUMENT, "%s: lies inside a plan, only inputs and outputs can be set and read", t->name);
}

static sheaf_status set(sheaf_buffer *b, sheaf_tensor *t, const void *src, size_t offset, size_t size) {
    const meta_ext *e;
    sheaf_status s = shards_of(t, &e);
    for (int i = 0; !s && i < buffer_of(b)->device->n_local; i++) {
        sheaf_pieces w;
        sheaf_piece p;
        sheaf_pieces_begin(&w, &e->layout, e->device->first + i, t->type, t->ne, offset, size);
        while (!s && sheaf_pieces_next(&w, &p)) {
            s = sheaf_tensor_set(&e->shards[i], (const char *)src + (p.global - offset), p.local, p.bytes);
        }
    }
    return s;
}

/* The local member that a piece is read from; -1: it lies in other processes only. */
static int reader_of(const meta_ext *e, int run) {
    const meta_device *m = e->device;
    if (run < 0) return 0;
    sheaf_device_set local = sheaf_all_devices(m->n_local) << m->first;
    sheaf_device_set holders = e->layout.runs[run].devices & local;
    return holders ? __builtin_ctzll(holders) - m->first : -1;
}

static sheaf_status all_readable(const meta_ext *e, const sheaf_tensor *t) {
    for (int r = 0; r < e->layout.n_runs; r++) {
        if (reader_of(e, r) < 0)
            return sheaf_fail(SHEAF_E_UNSUPPORTED, "%s: a part of it lies in another process", t->name);
    }
    return SHEAF_OK;
}

static sheaf_status get(sheaf_buffer *b, const sheaf_tensor *t, void *dst, size_t offset, size_t size) {
    const meta_ext *e;
    sheaf_status s = shards_of(t, &e);
    if (!s) s = all_readable(e, t);
    for (int i = 0; !s && i < buffer_of(b)->device->n_local; i++) {
        sheaf_pieces w;
        sheaf_piece p;
        sheaf_pieces_begin(&w, &e->layout, e->device->first + i, t->type, t->ne, offset, size);
        while (!s && sheaf_pieces_next(&w, &p)) {
            if (reader_of(e, p.run) != i) continue;
            s = sheaf_tensor_get(&e->shards[i], (char *)dst + (p.global - offset), p.local, p.bytes);
        }
    }
    return s;
}

static const sheaf_buffer_iface meta_buffer_iface = {
    .free = buffer_free, .init_tensor = init_tensor, .set = set, .get = get, .clear = clear};

const sheaf_buffer_type_iface meta_buffer_type_iface = {.alloc = buffer_alloc};

/* --- what the loader asks ---------------------------------------------------------------------------------- */

static const meta_ext *ext_of(const sheaf_tensor *t) {
    const sheaf_tensor *root = t->view_src ? t->view_src : t;
    return meta_is_buffer(root->buffer) ? root->ext : NULL;
}

const sheaf_layout *sheaf_meta_layout(const sheaf_tensor *t) {
    const meta_ext *e = ext_of(t);
    return e ? &e->layout : NULL;
}

sheaf_tensor *sheaf_meta_shard(const sheaf_tensor *t, int i) {
    const meta_ext *e = ext_of(t);
    return e && e->shards && i >= 0 && i < e->device->n_local ? &e->shards[i] : NULL;
}

sheaf_status sheaf_meta_shard_set(sheaf_tensor *t, int i, const void *src, size_t offset, size_t size) {
    sheaf_tensor *shard = sheaf_meta_shard(t, i);
    if (!shard) return sheaf_fail(SHEAF_E_ARGUMENT, "%s: no shard %d", t->name, i);
    return size == 0 ? SHEAF_OK : sheaf_tensor_set(shard, src, offset, size);
}

/* --- crossings --------------------------------------------------------------------------------------------- */

static bool fits(const meta_io *io, const sheaf_tensor *t, size_t begin, const sheaf_layout *layout) {
    const sheaf_tensor *shard = &io->ext->shards[0];
    int64_t ne[4];
    sheaf_layout_local_ne(layout, io->device->first, t->ne, ne);
    return io->begin == begin && io->end == begin + sheaf_nbytes(t) && shard->type == t->type &&
           memcmp(ne, shard->ne, sizeof ne) == 0 && sheaf_layout_equal(&io->ext->layout, layout);
}

void meta_io_release(meta_io *io) {
    if (!io || --io->refs > 0) return;
    for (int i = 0; io->parts && i < io->device->n_local; i++)
        meta_shard_free(io->device, i, SHEAF_USAGE_COMPUTE, io->parts[i]);
    sheaf_arena_free(io->arena);
    sheaf_free(io);
}

/* Forgets what the scheduler has since given to others and no binding uses any more. */
static void drop_overlapping(meta_buffer *b, size_t begin, size_t end) {
    for (meta_io **at = &b->io; *at;) {
        meta_io *io = *at;
        if (io->refs > 1 || io->end <= begin || io->begin >= end) {
            at = &io->next;
            continue;
        }
        *at = io->next;
        meta_io_release(io);
    }
}

static sheaf_status io_new(meta_buffer *b, const sheaf_tensor *t, size_t begin, const sheaf_layout *layout,
                           meta_io **out) {
    meta_io *io = sheaf_calloc(1, sizeof *io);
    if (!io) return sheaf_fail(SHEAF_E_NO_MEMORY, "%s", t->name);
    io->device = b->device;
    io->refs = 1;
    io->begin = begin;
    io->end = begin + sheaf_nbytes(t);
    sheaf_layout own = *layout; /* its runs move to the io's arena: the plan may go first */
    sheaf_status s = sheaf_arena_new(1024, &io->arena);
    if (!s && layout->kind == SHEAF_AXIS) {
        s = sheaf_layout_axis(io->arena, layout->axis, layout->runs, layout->n_runs, b->device->n_world, &own);
    }
    if (!s) s = meta_ext_new(b->device, io->arena, t, &own, &io->ext);
    if (!s && !(io->parts = sheaf_arena_alloc(io->arena, sizeof(sheaf_buffer *) * (size_t)b->device->n_local)))
        s = sheaf_arena_status(io->arena);
    for (int i = 0; !s && i < b->device->n_local; i++) {
        s = meta_shard_alloc(b->device, i, &io->ext->shards[i], SHEAF_USAGE_COMPUTE, &io->parts[i]);
    }
    if (s) {
        meta_io_release(io);
        return s;
    }
    io->next = b->io;
    b->io = io;
    *out = io;
    return SHEAF_OK;
}

sheaf_status meta_io_bind(sheaf_buffer *base, sheaf_tensor *t, const sheaf_layout *layout, meta_io **out) {
    meta_buffer *b = buffer_of(base);
    size_t begin = (size_t)((char *)t->data - (char *)base->base);
    meta_io *io = b->io;
    while (io && !fits(io, t, begin, layout)) io = io->next;
    if (!io) {
        drop_overlapping(b, begin, begin + sheaf_nbytes(t));
        sheaf_status s = io_new(b, t, begin, layout, &io);
        if (s) return s;
    }
    io->refs++;
    t->ext = io->ext;
    *out = io;
    return SHEAF_OK;
}
