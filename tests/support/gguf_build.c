/* The writer behind tests/support/gguf_build.h: four growing byte strings (keys, tensor infos, data,
 * trailing bytes), put together on request. The host is little-endian, as GGUF is. */
#include "tests/support/gguf_build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct bytes {
    uint8_t *p;
    size_t n, cap;
} bytes;

struct gguf_build {
    bytes keys, infos, data, trailing, whole;
    int64_t n_keys, n_tensors, say_keys, say_tensors;
    uint32_t version, alignment;
};

static void fatal(const char *what) {
    fprintf(stderr, "gguf_build: %s\n", what);
    exit(99);
}

static void put(bytes *b, const void *p, size_t n) {
    if (b->n + n > b->cap) {
        b->cap = (b->n + n) * 2;
        b->p = realloc(b->p, b->cap);
        if (!b->p) fatal("out of memory");
    }
    if (n && p) memcpy(b->p + b->n, p, n);
    if (n && !p) memset(b->p + b->n, 0, n);
    b->n += n;
}

static void put_u32(bytes *b, uint32_t v) { put(b, &v, 4); }
static void put_u64(bytes *b, uint64_t v) { put(b, &v, 8); }

static void put_string(bytes *b, const char *s, size_t n) {
    put_u64(b, n);
    put(b, s, n);
}

static void pad(bytes *b, size_t from, uint32_t alignment) {
    if (alignment == 0) return;
    while ((b->n - from) % alignment) put(b, NULL, 1);
}

gguf_build *gguf_build_new(void) {
    gguf_build *b = calloc(1, sizeof *b);
    if (!b) fatal("out of memory");
    b->version = 3;
    b->alignment = 32;
    b->say_keys = b->say_tensors = -1;
    return b;
}

void gguf_build_free(gguf_build *b) {
    if (!b) return;
    free(b->keys.p);
    free(b->infos.p);
    free(b->data.p);
    free(b->trailing.p);
    free(b->whole.p);
    free(b);
}

void gguf_build_raw_key(gguf_build *b, const char *key, size_t key_n, uint32_t type, const void *value, size_t n) {
    put_string(&b->keys, key, key_n);
    put_u32(&b->keys, type);
    put(&b->keys, value, n);
    b->n_keys++;
}

static void put_key(gguf_build *b, const char *key, sheaf_gguf_type type, const void *value, size_t n) {
    gguf_build_raw_key(b, key, strlen(key), (uint32_t)type, value, n);
}

void gguf_build_u8(gguf_build *b, const char *key, uint8_t v) { put_key(b, key, SHEAF_GGUF_U8, &v, sizeof v); }
void gguf_build_i8(gguf_build *b, const char *key, int8_t v) { put_key(b, key, SHEAF_GGUF_I8, &v, sizeof v); }
void gguf_build_u16(gguf_build *b, const char *key, uint16_t v) { put_key(b, key, SHEAF_GGUF_U16, &v, sizeof v); }
void gguf_build_i16(gguf_build *b, const char *key, int16_t v) { put_key(b, key, SHEAF_GGUF_I16, &v, sizeof v); }
void gguf_build_u32(gguf_build *b, const char *key, uint32_t v) { put_key(b, key, SHEAF_GGUF_U32, &v, sizeof v); }
void gguf_build_i32(gguf_build *b, const char *key, int32_t v) { put_key(b, key, SHEAF_GGUF_I32, &v, sizeof v); }
void gguf_build_u64(gguf_build *b, const char *key, uint64_t v) { put_key(b, key, SHEAF_GGUF_U64, &v, sizeof v); }
void gguf_build_i64(gguf_build *b, const char *key, int64_t v) { put_key(b, key, SHEAF_GGUF_I64, &v, sizeof v); }
void gguf_build_f32(gguf_build *b, const char *key, float v) { put_key(b, key, SHEAF_GGUF_F32, &v, sizeof v); }
void gguf_build_f64(gguf_build *b, const char *key, double v) { put_key(b, key, SHEAF_GGUF_F64, &v, sizeof v); }

void gguf_build_bool(gguf_build *b, const char *key, bool v) {
    uint8_t byte = v;
    put_key(b, key, SHEAF_GGUF_BOOL, &byte, 1);
}

void gguf_build_str_n(gguf_build *b, const char *key, const char *v, size_t n) {
    put_key(b, key, SHEAF_GGUF_STRING, NULL, 0);
    put_string(&b->keys, v, n);
}

void gguf_build_str(gguf_build *b, const char *key, const char *v) { gguf_build_str_n(b, key, v, strlen(v)); }

static void put_array_head(gguf_build *b, const char *key, sheaf_gguf_type type, int64_t n) {
    put_key(b, key, SHEAF_GGUF_ARRAY, NULL, 0);
    put_u32(&b->keys, (uint32_t)type);
    put_u64(&b->keys, (uint64_t)n);
}

void gguf_build_array(gguf_build *b, const char *key, sheaf_gguf_type type, const void *values, int64_t n) {
    static const size_t size[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    put_array_head(b, key, type, n);
    put(&b->keys, values, (size_t)n * size[type]);
}

void gguf_build_strs(gguf_build *b, const char *key, const char *const *values, int64_t n) {
    put_array_head(b, key, SHEAF_GGUF_STRING, n);
    for (int64_t i = 0; i < n; i++) put_string(&b->keys, values[i], strlen(values[i]));
}

void gguf_build_raw_tensor(gguf_build *b, const char *name, size_t name_n, uint32_t n_dims, const uint64_t *ne,
                           uint32_t type, uint64_t offset) {
    put_string(&b->infos, name, name_n);
    put_u32(&b->infos, n_dims);
    for (uint32_t d = 0; d < n_dims && ne; d++) put_u64(&b->infos, ne[d]);
    put_u32(&b->infos, type);
    put_u64(&b->infos, offset);
    b->n_tensors++;
}

void gguf_build_tensor(gguf_build *b, const char *name, sheaf_type type, int n_dims, const int64_t *ne,
                       const void *data) {
    uint64_t dims[SHEAF_MAX_DIMS];
    size_t total = sheaf_row_bytes(type, ne[0]);
    for (int d = 0; d < n_dims; d++) {
        dims[d] = (uint64_t)ne[d];
        if (d) total *= (size_t)ne[d];
    }
    pad(&b->data, 0, b->alignment);
    gguf_build_raw_tensor(b, name, strlen(name), (uint32_t)n_dims, dims, (uint32_t)type, b->data.n);
    put(&b->data, data, total);
}

void gguf_build_tensor_f32(gguf_build *b, const char *name, sheaf_type type, int n_dims, const int64_t *ne,
                           const float *values) {
    int64_t n = 1;
    for (int d = 0; d < n_dims; d++) n *= ne[d];
    size_t size = sheaf_row_bytes(type, ne[0]) * (size_t)(n / ne[0]);
    void *converted = malloc(size);
    if (!converted) fatal("out of memory");
    if (sheaf_from_float(type, values, converted, n)) fatal(sheaf_error());
    gguf_build_tensor(b, name, type, n_dims, ne, converted);
    free(converted);
}

void gguf_build_version(gguf_build *b, uint32_t version) { b->version = version; }

void gguf_build_alignment(gguf_build *b, uint32_t alignment, bool key) {
    b->alignment = alignment;
    if (key) gguf_build_u32(b, "general.alignment", alignment);
}

void gguf_build_counts(gguf_build *b, int64_t n_tensors, int64_t n_keys) {
    b->say_tensors = n_tensors;
    b->say_keys = n_keys;
}

void gguf_build_trailing(gguf_build *b, const void *p, size_t n) { put(&b->trailing, p, n); }

const uint8_t *gguf_build_bytes(gguf_build *b, size_t *size) {
    bytes *w = &b->whole;
    w->n = 0;
    put(w, "GGUF", 4);
    put_u32(w, b->version);
    put_u64(w, (uint64_t)(b->say_tensors == -1 ? b->n_tensors : b->say_tensors));
    put_u64(w, (uint64_t)(b->say_keys == -1 ? b->n_keys : b->say_keys));
    put(w, b->keys.p, b->keys.n);
    put(w, b->infos.p, b->infos.n);
    if (b->n_tensors) pad(w, 0, b->alignment);
    if (b->data.n) put(w, b->data.p, b->data.n);
    if (b->trailing.n) put(w, b->trailing.p, b->trailing.n);
    *size = w->n;
    return w->p;
}

void gguf_build_file(gguf_build *b, const char *path) {
    size_t size;
    const uint8_t *p = gguf_build_bytes(b, &size);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(p, 1, size, f) != size || fclose(f) != 0) fatal(path);
}
