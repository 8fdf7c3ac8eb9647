/* Looking things up in an opened GGUF: metadata by key, tensors by name, their bytes.
 *
 * Everything here trusts positions and counts, because gguf_parse.c checked them all before the
 * gguf was handed out; what it still checks is what callers ask for (types, ranges). */
#include "tensor/gguf_internal.h"

#include <errno.h>
#include <math.h>
#include <string.h>

uint32_t sheaf_gguf_version(const sheaf_gguf *g) { return g->files[0].version; }
uint32_t sheaf_gguf_alignment(const sheaf_gguf *g) { return g->files[0].alignment; }
int sheaf_gguf_shards(const sheaf_gguf *g) { return g->n_files; }
const char *sheaf_gguf_path(const sheaf_gguf *g, int shard) { return g->files[shard].path; }
int sheaf_gguf_fd(const sheaf_gguf *g, int shard) { return g->files[shard].fd; }
uint64_t sheaf_gguf_file_bytes(const sheaf_gguf *g, int shard) { return g->files[shard].size; }
uint64_t sheaf_gguf_data_offset(const sheaf_gguf *g, int shard) { return g->files[shard].data_offset; }

/* --- values --- */

sheaf_str gguf_key_name(const void *file, uint32_t i) {
    const gguf_file *f = file;
    return (sheaf_str){(const char *)f->head + f->entries[i].key_at, f->entries[i].key_n};
}

void gguf_value_at(const gguf_file *f, uint8_t type, uint32_t at, sheaf_gguf_value *out) {
    const uint8_t *p = f->head + at;
    uint32_t w;
    uint64_t x;
    float f32;
    switch ((sheaf_gguf_type)type) {
    case SHEAF_GGUF_U8: out->u = p[0]; break;
    case SHEAF_GGUF_I8: out->i = (p[0] ^ 0x80) - 0x80; break;
    case SHEAF_GGUF_U16: out->u = (uint64_t)(p[0] | p[1] << 8); break;
    case SHEAF_GGUF_I16: out->i = (int16_t)(p[0] | p[1] << 8); break;
    case SHEAF_GGUF_U32: out->u = gguf_u32(p); break;
    case SHEAF_GGUF_I32: out->i = (int32_t)gguf_u32(p); break;
    case SHEAF_GGUF_F32:
        w = gguf_u32(p);
        memcpy(&f32, &w, 4);
        out->f = (double)f32;
        break;
    case SHEAF_GGUF_BOOL: out->b = p[0] != 0; break;
    case SHEAF_GGUF_STRING: out->str = (sheaf_str){(const char *)p + 8, (size_t)gguf_u64(p)}; break;
    case SHEAF_GGUF_U64: out->u = gguf_u64(p); break;
    case SHEAF_GGUF_I64: out->i = (int64_t)gguf_u64(p); break;
    case SHEAF_GGUF_F64:
        x = gguf_u64(p);
        memcpy(&out->f, &x, 8);
        break;
    case SHEAF_GGUF_ARRAY: break;
    }
}

static bool is_unsigned(uint8_t t) {
    return t == SHEAF_GGUF_U8 || t == SHEAF_GGUF_U16 || t == SHEAF_GGUF_U32 || t == SHEAF_GGUF_U64;
}
static bool is_signed(uint8_t t) {
    return t == SHEAF_GGUF_I8 || t == SHEAF_GGUF_I16 || t == SHEAF_GGUF_I32 || t == SHEAF_GGUF_I64;
}
static bool is_float(uint8_t t) { return t == SHEAF_GGUF_F32 || t == SHEAF_GGUF_F64; }

/* `key` only serves the message. */
static sheaf_status wrong_type(const gguf_file *f, const char *key, uint8_t type, const char *wanted) {
    return sheaf_fail(SHEAF_E_FORMAT, "%s: key %s: expected %s, found %s", f->path, key, wanted, gguf_type_text(type));
}

static sheaf_status to_i64(const gguf_file *f, const char *key, uint8_t type, uint32_t at, int64_t *out) {
    sheaf_gguf_value v = {0};
    if (!is_signed(type) && !is_unsigned(type)) return wrong_type(f, key, type, "an integer");
    gguf_value_at(f, type, at, &v);
    if (is_unsigned(type) && v.u > INT64_MAX)
        return sheaf_fail(SHEAF_E_FORMAT, "%s: key %s: %llu is out of range", f->path, key, (unsigned long long)v.u);
    *out = v.i;
    return SHEAF_OK;
}

static sheaf_status to_f32(const gguf_file *f, const char *key, uint8_t type, uint32_t at, float *out) {
    sheaf_gguf_value v = {0};
    if (!is_float(type) && !is_signed(type) && !is_unsigned(type)) return wrong_type(f, key, type, "a number");
    gguf_value_at(f, type, at, &v);
    double x = is_float(type) ? v.f : is_signed(type) ? (double)v.i : (double)v.u;
    if (isfinite(x) && !isfinite((float)x))
        return sheaf_fail(SHEAF_E_FORMAT, "%s: key %s: %g is out of range of a float", f->path, key, x);
    *out = (float)x;
    return SHEAF_OK;
}

/* --- metadata --- */

int64_t sheaf_gguf_n_keys(const sheaf_gguf *g) { return g->files[0].n_entries; }
sheaf_str sheaf_gguf_key(const sheaf_gguf *g, int64_t i) { return gguf_key_name(&g->files[0], (uint32_t)i); }
sheaf_gguf_type sheaf_gguf_key_type(const sheaf_gguf *g, int64_t i) {
    return (sheaf_gguf_type)g->files[0].entries[i].type;
}

static int64_t find_key(const gguf_file *f, const char *key) {
    return gguf_index_find(&f->keys, gguf_key_name, f, (sheaf_str){key, strlen(key)});
}

int64_t sheaf_gguf_find(const sheaf_gguf *g, const char *key) { return find_key(&g->files[0], key); }

sheaf_status gguf_file_int(const gguf_file *f, const char *key, int64_t *out) {
    int64_t i = find_key(f, key);
    if (i < 0) return SHEAF_E_NOT_FOUND;
    return to_i64(f, key, f->entries[i].type, f->entries[i].value_at, out);
}

/* These three return the entry, or NULL with the failure in *s. */
static const gguf_entry *look_up(const sheaf_gguf *g, const char *key, sheaf_status *s) {
    int64_t i = sheaf_gguf_find(g, key);
    if (i >= 0) return &g->files[0].entries[i];
    *s = sheaf_fail(SHEAF_E_NOT_FOUND, "%s: key %s not found", g->files[0].path, key);
    return NULL;
}

sheaf_status sheaf_gguf_get_i64(const sheaf_gguf *g, const char *key, int64_t *out) {
    sheaf_status s = SHEAF_OK;
    const gguf_entry *e = look_up(g, key, &s);
    return !e ? s : to_i64(&g->files[0], key, e->type, e->value_at, out);
}

sheaf_status sheaf_gguf_get_u32(const sheaf_gguf *g, const char *key, uint32_t *out) {
    int64_t v = 0;
    sheaf_status s = sheaf_gguf_get_i64(g, key, &v);
    if (s) return s;
    if (v < 0 || v > UINT32_MAX)
        return sheaf_fail(SHEAF_E_FORMAT, "%s: key %s: %lld is out of range", g->files[0].path, key, (long long)v);
    *out = (uint32_t)v;
    return SHEAF_OK;
}

sheaf_status sheaf_gguf_get_f32(const sheaf_gguf *g, const char *key, float *out) {
    sheaf_status s = SHEAF_OK;
    const gguf_entry *e = look_up(g, key, &s);
    return !e ? s : to_f32(&g->files[0], key, e->type, e->value_at, out);
}

sheaf_status sheaf_gguf_get_bool(const sheaf_gguf *g, const char *key, bool *out) {
    sheaf_status s = SHEAF_OK;
    const gguf_entry *e = look_up(g, key, &s);
    if (!e) return s;
    if (e->type != SHEAF_GGUF_BOOL) return wrong_type(&g->files[0], key, e->type, "bool");
    sheaf_gguf_value v = {0};
    gguf_value_at(&g->files[0], e->type, e->value_at, &v);
    *out = v.b;
    return SHEAF_OK;
}

sheaf_status sheaf_gguf_get_str(const sheaf_gguf *g, const char *key, sheaf_str *out) {
    sheaf_status s = SHEAF_OK;
    const gguf_entry *e = look_up(g, key, &s);
    if (!e) return s;
    if (e->type != SHEAF_GGUF_STRING) return wrong_type(&g->files[0], key, e->type, "a string");
    sheaf_gguf_value v = {0};
    gguf_value_at(&g->files[0], e->type, e->value_at, &v);
    *out = v.str;
    return SHEAF_OK;
}

/* Where element j of an array lies; nested arrays have no such place. */
static uint32_t element_at(const gguf_file *f, const gguf_entry *e, int64_t j) {
    if (e->element == SHEAF_GGUF_STRING) return f->strings[e->first_string + (uint32_t)j];
    return e->value_at + (uint32_t)j * gguf_scalar_bytes(e->element);
}

static const gguf_entry *look_up_array(const sheaf_gguf *g, const char *key, sheaf_status *s) {
    const gguf_entry *e = look_up(g, key, s);
    if (!e || e->type == SHEAF_GGUF_ARRAY) return e;
    *s = wrong_type(&g->files[0], key, e->type, "an array");
    return NULL;
}

static const gguf_entry *look_up_element(const sheaf_gguf *g, const char *key, int64_t i, sheaf_status *s) {
    const gguf_entry *e = look_up_array(g, key, s);
    if (!e || (i >= 0 && i < e->n)) return e;
    *s = sheaf_fail(SHEAF_E_RANGE, "%s: key %s: element %lld of %lld", g->files[0].path, key, (long long)i,
                    (long long)e->n);
    return NULL;
}

sheaf_status sheaf_gguf_array(const sheaf_gguf *g, const char *key, sheaf_gguf_type *element, int64_t *n) {
    sheaf_status s = SHEAF_OK;
    const gguf_entry *e = look_up_array(g, key, &s);
    if (!e) return s;
    *element = (sheaf_gguf_type)e->element;
    *n = e->n;
    return SHEAF_OK;
}

sheaf_status sheaf_gguf_array_str(const sheaf_gguf *g, const char *key, int64_t i, sheaf_str *out) {
    sheaf_status s = SHEAF_OK;
    const gguf_entry *e = look_up_element(g, key, i, &s);
    if (!e) return s;
    if (e->element != SHEAF_GGUF_STRING) return wrong_type(&g->files[0], key, e->element, "an array of strings");
    sheaf_gguf_value v = {0};
    gguf_value_at(&g->files[0], e->element, element_at(&g->files[0], e, i), &v);
    *out = v.str;
    return SHEAF_OK;
}

sheaf_status sheaf_gguf_array_i64(const sheaf_gguf *g, const char *key, int64_t i, int64_t *out) {
    sheaf_status s = SHEAF_OK;
    const gguf_entry *e = look_up_element(g, key, i, &s);
    return !e ? s : to_i64(&g->files[0], key, e->element, element_at(&g->files[0], e, i), out);
}

sheaf_status sheaf_gguf_array_f32(const sheaf_gguf *g, const char *key, int64_t i, float *out) {
    sheaf_status s = SHEAF_OK;
    const gguf_entry *e = look_up_element(g, key, i, &s);
    return !e ? s : to_f32(&g->files[0], key, e->element, element_at(&g->files[0], e, i), out);
}

static sheaf_status key_in_range(const sheaf_gguf *g, int64_t i) {
    if (i >= 0 && i < sheaf_gguf_n_keys(g)) return SHEAF_OK;
    return sheaf_fail(SHEAF_E_RANGE, "%s: key number %lld of %lld", g->files[0].path, (long long)i,
                      (long long)sheaf_gguf_n_keys(g));
}

sheaf_status sheaf_gguf_scalar(const sheaf_gguf *g, int64_t i, sheaf_gguf_type *type, sheaf_gguf_value *out) {
    sheaf_status s = key_in_range(g, i);
    if (s) return s;
    const gguf_entry *e = &g->files[0].entries[i];
    if (e->type == SHEAF_GGUF_ARRAY)
        return sheaf_fail(SHEAF_E_FORMAT, "%s: key number %lld is an array", g->files[0].path, (long long)i);
    *type = (sheaf_gguf_type)e->type;
    gguf_value_at(&g->files[0], e->type, e->value_at, out);
    return SHEAF_OK;
}

int64_t sheaf_gguf_array_length(const sheaf_gguf *g, int64_t i) {
    if (i < 0 || i >= sheaf_gguf_n_keys(g) || g->files[0].entries[i].type != SHEAF_GGUF_ARRAY) return -1;
    return g->files[0].entries[i].n;
}

sheaf_status sheaf_gguf_element(const sheaf_gguf *g, int64_t i, int64_t j, sheaf_gguf_type *type,
                                sheaf_gguf_value *out) {
    sheaf_status s = key_in_range(g, i);
    if (s) return s;
    const gguf_entry *e = &g->files[0].entries[i];
    if (j < 0 || j >= sheaf_gguf_array_length(g, i))
        return sheaf_fail(SHEAF_E_RANGE, "%s: key number %lld has no element %lld", g->files[0].path, (long long)i,
                          (long long)j);
    if (e->element == SHEAF_GGUF_ARRAY)
        return sheaf_fail(SHEAF_E_UNSUPPORTED, "%s: key number %lld is an array of arrays", g->files[0].path,
                          (long long)i);
    *type = (sheaf_gguf_type)e->element;
    gguf_value_at(&g->files[0], e->element, element_at(&g->files[0], e, j), out);
    return SHEAF_OK;
}

/* --- tensors --- */

sheaf_str gguf_tensor_name(const void *tensors, uint32_t i) { return ((const sheaf_gguf_tensor *)tensors)[i].name; }

int64_t sheaf_gguf_n_tensors(const sheaf_gguf *g) { return g->n_tensors; }
const sheaf_gguf_tensor *sheaf_gguf_tensor_at(const sheaf_gguf *g, int64_t i) { return &g->tensors[i]; }

const sheaf_gguf_tensor *sheaf_gguf_find_tensor(const sheaf_gguf *g, const char *name) {
    int64_t i = gguf_index_find(&g->names, gguf_tensor_name, g->tensors, (sheaf_str){name, strlen(name)});
    return i < 0 ? NULL : &g->tensors[i];
}

sheaf_status sheaf_gguf_read(const sheaf_gguf *g, const sheaf_gguf_tensor *t, uint64_t offset, void *dst, size_t n) {
    const gguf_file *f = &g->files[t->shard];
    char name[160];
    if (offset > t->bytes || n > t->bytes - offset)
        return sheaf_fail(SHEAF_E_RANGE, "%s: %s: %zu bytes at %llu asked for, the tensor has %llu", f->path,
                          sheaf_str_text(t->name, name, sizeof name), n, (unsigned long long)offset,
                          (unsigned long long)t->bytes);
    int64_t got = gguf_file_pread(f, t->offset + offset, dst, n);
    if (got < 0)
        return sheaf_fail(SHEAF_E_IO, "%s: %s: %s", f->path, sheaf_str_text(t->name, name, sizeof name),
                          strerror(errno));
    if ((uint64_t)got < n)
        return sheaf_fail(SHEAF_E_IO, "%s: %s: %llu bytes are missing: the file now ends at byte %llu", f->path,
                          sheaf_str_text(t->name, name, sizeof name), (unsigned long long)(n - (uint64_t)got),
                          (unsigned long long)(t->offset + offset + (uint64_t)got));
    return SHEAF_OK;
}

sheaf_status sheaf_gguf_unchanged(const sheaf_gguf *g) {
    sheaf_status s = SHEAF_OK;
    for (int i = 0; i < g->n_files && !s; i++) s = gguf_file_same_size(&g->files[i]);
    return s;
}

sheaf_status sheaf_gguf_map(sheaf_gguf *g) {
    sheaf_status s = SHEAF_OK;
    for (int i = 0; i < g->n_files && !s; i++) s = gguf_file_map(&g->files[i]);
    return s;
}

const void *sheaf_gguf_mapped(const sheaf_gguf *g, const sheaf_gguf_tensor *t) {
    const gguf_file *f = &g->files[t->shard];
    return f->map ? (const uint8_t *)f->map + t->offset : NULL;
}

void sheaf_gguf_mapping(const sheaf_gguf *g, int shard, const void **base, size_t *size) {
    *base = g->files[shard].map;
    *size = g->files[shard].map ? (size_t)g->files[shard].size : 0;
}
