/* See gguf_write.h. Keys and infos are kept as the bytes that the file will have; gguf_output.c owns the file. */
#include "tensor/gguf_write.h"
#include "tensor/gguf_internal.h"
#include "tensor/gguf_output.h"

#include <stdatomic.h>
#include <string.h>

/* A key with its value, as in the file: string key, u32 type, value. */
typedef struct entry {
    uint8_t *bytes;
    size_t n;
} entry;

typedef struct info {
    char name[SHEAF_MAX_NAME];
    size_t name_n;
    sheaf_type type;
    int n_dims;
    int64_t ne[SHEAF_MAX_DIMS];
    uint64_t offset, bytes; /* offset from the start of data */
} info;

struct sheaf_gguf_writer {
    entry *entries;
    size_t n_entries, cap_entries;
    info *infos;
    size_t n_infos, cap_infos;
    uint64_t data_at; /* 0: not created yet */
    gguf_output out;
    atomic_ullong written;
};

static sheaf_status no_memory(void) { return sheaf_fail(SHEAF_E_NO_MEMORY, "writing GGUF: no memory"); }

sheaf_status sheaf_gguf_writer_new(sheaf_gguf_writer **out) {
    *out = sheaf_calloc(1, sizeof **out);
    if (!*out) return no_memory();
    (*out)->out.fd = -1;
    return SHEAF_OK;
}

void sheaf_gguf_writer_free(sheaf_gguf_writer *w) {
    if (!w) return;
    gguf_output_abandon(&w->out);
    for (size_t i = 0; i < w->n_entries; i++) sheaf_free(w->entries[i].bytes);
    sheaf_free(w->entries);
    sheaf_free(w->infos);
    sheaf_free(w);
}

/* --- bytes that grow; the first failure sticks --- */

typedef struct bytes {
    uint8_t *p;
    size_t n, cap;
    bool failed;
} bytes;

static void append(bytes *b, const void *src, size_t n) {
    size_t want;
    if (b->failed || n == 0) return;
    if (sheaf_add_overflow(b->n, n, &want)) {
        b->failed = true;
        return;
    }
    if (want > b->cap) {
        size_t cap = b->cap ? b->cap : 64;
        while (cap < want) cap = cap > SIZE_MAX / 2 ? want : cap * 2;
        uint8_t *grown = sheaf_realloc(b->p, cap);
        if (!grown) {
            b->failed = true;
            return;
        }
        b->p = grown;
        b->cap = cap;
    }
    memcpy(b->p + b->n, src, n);
    b->n = want;
}

/* The low `size` bytes of v, lowest first. */
static void append_int(bytes *b, uint64_t v, size_t size) {
    uint8_t le[8];
    for (size_t i = 0; i < 8; i++) le[i] = (uint8_t)(v >> (8 * i));
    append(b, le, size);
}

static void append_str(bytes *b, sheaf_str s) {
    append_int(b, s.n, 8);
    append(b, s.s, s.n);
}

static void append_value(bytes *b, sheaf_gguf_type type, const sheaf_gguf_value *v) {
    uint32_t narrow;
    uint64_t wide;
    float f = (float)v->f;
    switch (type) {
    case SHEAF_GGUF_STRING: append_str(b, v->str); break;
    case SHEAF_GGUF_BOOL: append_int(b, v->b, 1); break;
    case SHEAF_GGUF_F32:
        memcpy(&narrow, &f, 4);
        append_int(b, narrow, 4);
        break;
    case SHEAF_GGUF_F64:
        memcpy(&wide, &v->f, 8);
        append_int(b, wide, 8);
        break;
    default: append_int(b, v->u, gguf_scalar_bytes(type)); break;
    }
}

/* --- metadata --- */

static sheaf_str entry_key(const entry *e) {
    return (sheaf_str){(const char *)e->bytes + 8, (size_t)gguf_u64(e->bytes)};
}

static entry *find_entry(const sheaf_gguf_writer *w, sheaf_str key) {
    for (size_t i = 0; i < w->n_entries; i++)
        if (gguf_str_equal(entry_key(&w->entries[i]), key)) return &w->entries[i];
    return NULL;
}

/* One more slot in an array that doubles. */
static bool room(void *array, size_t n, size_t *cap, size_t item) {
    void **p = array;
    if (n < *cap) return true;
    size_t want = *cap ? *cap * 2 : 32;
    void *grown = sheaf_realloc(*p, want * item);
    if (!grown) return false;
    *p = grown;
    *cap = want;
    return true;
}

/* Takes the bytes over, as a new entry or in place of an old one. */
static sheaf_status keep(sheaf_gguf_writer *w, bytes *b) {
    entry made = {b->p, b->n};
    entry *old = b->failed ? NULL : find_entry(w, entry_key(&made));
    if (b->failed || (!old && !room(&w->entries, w->n_entries, &w->cap_entries, sizeof made))) {
        sheaf_free(b->p);
        return no_memory();
    }
    if (old) {
        sheaf_free(old->bytes);
        *old = made;
    } else {
        w->entries[w->n_entries++] = made;
    }
    return SHEAF_OK;
}

static sheaf_status too_late(const sheaf_gguf_writer *w) {
    return w->data_at ? sheaf_fail(SHEAF_E_ARGUMENT, "writing GGUF: its header is written already") : SHEAF_OK;
}

sheaf_status sheaf_gguf_put(sheaf_gguf_writer *w, sheaf_str key, sheaf_gguf_type type, const sheaf_gguf_value *v) {
    bytes b = {0};
    sheaf_status s = too_late(w);
    if (s) return s;
    if (type == SHEAF_GGUF_ARRAY || (type != SHEAF_GGUF_STRING && !gguf_scalar_bytes(type)))
        return sheaf_fail(SHEAF_E_ARGUMENT, "writing GGUF: value type %d is no scalar", (int)type);
    append_str(&b, key);
    append_int(&b, type, 4);
    append_value(&b, type, v);
    return keep(w, &b);
}

sheaf_status sheaf_gguf_put_u32(sheaf_gguf_writer *w, const char *key, uint32_t v) {
    return sheaf_gguf_put(w, (sheaf_str){key, strlen(key)}, SHEAF_GGUF_U32, &(sheaf_gguf_value){.u = v});
}

sheaf_status sheaf_gguf_put_str(sheaf_gguf_writer *w, const char *key, const char *v) {
    sheaf_gguf_value text = {.str = {v, strlen(v)}};
    return sheaf_gguf_put(w, (sheaf_str){key, strlen(key)}, SHEAF_GGUF_STRING, &text);
}

sheaf_status sheaf_gguf_put_array(sheaf_gguf_writer *w, sheaf_str key, sheaf_gguf_type element,
                                  const sheaf_gguf_value *v, int64_t n) {
    bytes b = {0};
    sheaf_status s = too_late(w);
    if (s) return s;
    if (n < 0 || element == SHEAF_GGUF_ARRAY || (element != SHEAF_GGUF_STRING && !gguf_scalar_bytes(element)))
        return sheaf_fail(SHEAF_E_ARGUMENT, "writing GGUF: %lld elements of type %d are no array", (long long)n,
                          (int)element);
    append_str(&b, key);
    append_int(&b, SHEAF_GGUF_ARRAY, 4);
    append_int(&b, element, 4);
    append_int(&b, (uint64_t)n, 8);
    for (int64_t i = 0; i < n; i++) append_value(&b, element, &v[i]);
    return keep(w, &b);
}

sheaf_status sheaf_gguf_put_from(sheaf_gguf_writer *w, const sheaf_gguf *g, int64_t i) {
    bytes b = {0};
    sheaf_status s = too_late(w);
    if (s) return s;
    if (i < 0 || i >= sheaf_gguf_n_keys(g))
        return sheaf_fail(SHEAF_E_RANGE, "writing GGUF: key number %lld of %lld", (long long)i,
                          (long long)sheaf_gguf_n_keys(g));
    const gguf_file *f = &g->files[0];
    const gguf_entry *e = &f->entries[i];
    append(&b, f->head + e->key_at - 8, e->value_end - (e->key_at - 8));
    return keep(w, &b);
}

void sheaf_gguf_drop(sheaf_gguf_writer *w, const char *key) {
    entry *e = find_entry(w, (sheaf_str){key, strlen(key)});
    if (!e || w->data_at) return;
    sheaf_free(e->bytes);
    memmove(e, e + 1, (size_t)(w->entries + w->n_entries - (e + 1)) * sizeof *e);
    w->n_entries--;
}

/* --- tensors --- */

sheaf_status sheaf_gguf_add(sheaf_gguf_writer *w, sheaf_str name, sheaf_type type, int n_dims, const int64_t *ne) {
    info t = {.type = type, .n_dims = n_dims, .name_n = name.n};
    sheaf_status s = too_late(w);
    if (s) return s;
    if (name.n >= SHEAF_MAX_NAME || !sheaf_type_valid(type) || n_dims < 1 || n_dims > SHEAF_MAX_DIMS)
        return sheaf_fail(SHEAF_E_ARGUMENT, "writing GGUF: a tensor of type %d, %d dimensions and a name of %zu bytes",
                          (int)type, n_dims, name.n);
    if (name.n) memcpy(t.name, name.s, name.n);
    size_t total = sheaf_row_bytes(type, ne[0]);
    for (int d = 0; d < n_dims; d++) {
        t.ne[d] = ne[d];
        if (ne[d] < 1 || total == SIZE_MAX || (d && sheaf_mul_overflow(total, (size_t)ne[d], &total)))
            return sheaf_fail(SHEAF_E_ARGUMENT, "writing GGUF: %s: its shape has no size in %s", t.name,
                              sheaf_type_name(type));
    }
    t.bytes = total;
    if (!room(&w->infos, w->n_infos, &w->cap_infos, sizeof t)) return no_memory();
    w->infos[w->n_infos++] = t;
    return SHEAF_OK;
}

/* --- layout --- */

static sheaf_status alignment_of(const sheaf_gguf_writer *w, uint64_t *alignment) {
    static const char key[] = "general.alignment";
    const entry *e = find_entry(w, (sheaf_str){key, sizeof key - 1});
    *alignment = 32;
    if (!e) return SHEAF_OK;
    const uint8_t *type = e->bytes + 8 + sizeof key - 1;
    uint32_t size = gguf_scalar_bytes(gguf_u32(type));
    *alignment = 0;
    for (uint32_t i = 0; i < size; i++) *alignment |= (uint64_t)type[4 + i] << (8 * i);
    if (*alignment && !(*alignment & (*alignment - 1)) && *alignment <= UINT32_MAX) return SHEAF_OK;
    return sheaf_fail(SHEAF_E_ARGUMENT, "writing GGUF: %s is no power of two that fits 32 bits", key);
}

/* Gives every tensor its place; the size of data, padded, in *size. False when a sum wraps. */
static bool place(sheaf_gguf_writer *w, uint64_t alignment, uint64_t *size) {
    size_t at = 0;
    for (size_t i = 0; i < w->n_infos; i++) {
        w->infos[i].offset = at;
        if (sheaf_add_overflow(at, w->infos[i].bytes, &at) || !sheaf_align_up(at, alignment, &at)) return false;
    }
    *size = at;
    return true;
}

static void append_header(const sheaf_gguf_writer *w, bytes *b) {
    append(b, "GGUF", 4);
    append_int(b, 3, 4);
    append_int(b, w->n_infos, 8);
    append_int(b, w->n_entries, 8);
    for (size_t i = 0; i < w->n_entries; i++) append(b, w->entries[i].bytes, w->entries[i].n);
    for (size_t i = 0; i < w->n_infos; i++) {
        const info *t = &w->infos[i];
        append_str(b, (sheaf_str){t->name, t->name_n});
        append_int(b, (uint64_t)t->n_dims, 4);
        for (int d = 0; d < t->n_dims; d++) append_int(b, (uint64_t)t->ne[d], 8);
        append_int(b, t->type, 4);
        append_int(b, t->offset, 8);
    }
}

sheaf_status sheaf_gguf_create(sheaf_gguf_writer *w, const char *path) {
    bytes header = {0};
    uint64_t alignment, data = 0;
    size_t data_at, total;
    sheaf_status s = too_late(w);
    if (!s) s = alignment_of(w, &alignment);
    if (s) return s;
    bool fits = place(w, alignment, &data);
    append_header(w, &header);
    if (header.failed) {
        s = no_memory();
    } else if (!fits || !sheaf_align_up(header.n, alignment, &data_at) || sheaf_add_overflow(data_at, data, &total) ||
               total > INT64_MAX) {
        s = sheaf_fail(SHEAF_E_ARGUMENT, "writing %s: its size wraps", path);
    } else {
        s = gguf_output_create(&w->out, path, total);
        if (!s) s = gguf_output_write(&w->out, 0, header.p, header.n);
        if (!s) w->data_at = data_at;
    }
    sheaf_free(header.p);
    return s;
}

uint64_t sheaf_gguf_writer_bytes(const sheaf_gguf_writer *w) { return w->out.size; }

sheaf_status sheaf_gguf_write(sheaf_gguf_writer *w, int64_t i, uint64_t offset, const void *data, size_t n) {
    if (!w->data_at || i < 0 || (size_t)i >= w->n_infos || offset > w->infos[i].bytes || n > w->infos[i].bytes - offset)
        return sheaf_fail(SHEAF_E_ARGUMENT, "writing GGUF: %zu bytes at %llu of tensor number %lld", n,
                          (unsigned long long)offset, (long long)i);
    sheaf_status s = gguf_output_write(&w->out, w->data_at + w->infos[i].offset + offset, data, n);
    if (!s) atomic_fetch_add_explicit(&w->written, n, memory_order_relaxed);
    return s;
}

sheaf_status sheaf_gguf_commit(sheaf_gguf_writer *w) {
    uint64_t want = 0, written = atomic_load_explicit(&w->written, memory_order_relaxed);
    for (size_t i = 0; i < w->n_infos; i++) want += w->infos[i].bytes;
    if (!w->data_at || written != want)
        return sheaf_fail(SHEAF_E_ARGUMENT, "writing GGUF: %llu bytes of data were given of %llu",
                          (unsigned long long)written, (unsigned long long)want);
    return gguf_output_commit(&w->out);
}
