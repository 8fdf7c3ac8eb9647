/* Reading GGUF files (v2, v3, little-endian; one file or split shards).
 *
 * Nouns: a *gguf* (an opened set of shard files: metadata and tensor infos, all validated before it
 * is handed out; no tensor data is read) and its *entries*. Owned by the caller; immutable after
 * open, so any number of threads may read it. Strings are length-counted: they may hold NULs.
 *
 * Everything in a file is hostile until checked: counts against the file's size, products and sums
 * against wrap, offsets against the end, types against the table. Memory used while opening is
 * bounded by a small multiple of the bytes really present.
 */
#ifndef SHEAF_TENSOR_GGUF_H
#define SHEAF_TENSOR_GGUF_H

#include "tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sheaf_gguf sheaf_gguf;

typedef enum sheaf_gguf_type {
    SHEAF_GGUF_U8 = 0,
    SHEAF_GGUF_I8 = 1,
    SHEAF_GGUF_U16 = 2,
    SHEAF_GGUF_I16 = 3,
    SHEAF_GGUF_U32 = 4,
    SHEAF_GGUF_I32 = 5,
    SHEAF_GGUF_F32 = 6,
    SHEAF_GGUF_BOOL = 7,
    SHEAF_GGUF_STRING = 8,
    SHEAF_GGUF_ARRAY = 9,
    SHEAF_GGUF_U64 = 10,
    SHEAF_GGUF_I64 = 11,
    SHEAF_GGUF_F64 = 12,
} sheaf_gguf_type;

typedef struct sheaf_str {
    const char *s;
    size_t n;
} sheaf_str; /* not NUL-terminated */

/* A file's string as one printable line in buf[n]: what is not well-formed UTF-8, controls and
 * backslashes are escaped (\xNN, \n, \t, \\); cut with "..." when it does not fit. Returns buf. */
SHEAF_API char *sheaf_str_text(sheaf_str t, char *buf, size_t n);

typedef struct sheaf_gguf_tensor {
    sheaf_str name;
    sheaf_type type;
    int n_dims;
    int64_t ne[SHEAF_MAX_DIMS];
    int shard;       /* which file */
    uint64_t offset; /* absolute, in that file */
    uint64_t bytes;
} sheaf_gguf_tensor;

/* Opens `path`; any shard of a split set opens the whole set (case G02). Errors name the file, the
 * key or tensor, the byte, and what was found: SHEAF_E_IO, _FORMAT, _UNSUPPORTED, _NO_MEMORY. */
SHEAF_API sheaf_status sheaf_gguf_open(const char *path, sheaf_gguf **out);
/* The same for looking only: tensors may have element types that nothing here computes with (type is then the file's
 * number, sheaf_type_valid false of it). */
SHEAF_API sheaf_status sheaf_gguf_open_to_look(const char *path, sheaf_gguf **out);
SHEAF_API const char *sheaf_gguf_element_name(sheaf_type type); /* sheaf_type_name, and names of those */
/* The same on bytes in memory (fuzzing, tests); the bytes must outlive the gguf. */
SHEAF_API sheaf_status sheaf_gguf_open_memory(const void *bytes, size_t size, sheaf_gguf **out);
SHEAF_API void sheaf_gguf_close(sheaf_gguf *g);

SHEAF_API uint32_t sheaf_gguf_version(const sheaf_gguf *g);
SHEAF_API uint32_t sheaf_gguf_alignment(const sheaf_gguf *g);
SHEAF_API int sheaf_gguf_shards(const sheaf_gguf *g);
SHEAF_API const char *sheaf_gguf_path(const sheaf_gguf *g, int shard);
SHEAF_API int sheaf_gguf_fd(const sheaf_gguf *g, int shard); /* open read-only; -1 for memory */
SHEAF_API uint64_t sheaf_gguf_file_bytes(const sheaf_gguf *g, int shard);
SHEAF_API uint64_t sheaf_gguf_data_offset(const sheaf_gguf *g, int shard);

/* --- metadata --- */
SHEAF_API int64_t sheaf_gguf_n_keys(const sheaf_gguf *g);
SHEAF_API sheaf_str sheaf_gguf_key(const sheaf_gguf *g, int64_t i);
SHEAF_API sheaf_gguf_type sheaf_gguf_key_type(const sheaf_gguf *g, int64_t i);
SHEAF_API int64_t sheaf_gguf_find(const sheaf_gguf *g, const char *key); /* -1: absent */

/* Typed lookups. Absent: SHEAF_E_NOT_FOUND with text naming the key and *out untouched; wrong type
 * or out of range: SHEAF_E_FORMAT. Any integer type converts when the value fits; integers convert to floats. */
SHEAF_API sheaf_status sheaf_gguf_get_u32(const sheaf_gguf *g, const char *key, uint32_t *out);
SHEAF_API sheaf_status sheaf_gguf_get_i64(const sheaf_gguf *g, const char *key, int64_t *out);
SHEAF_API sheaf_status sheaf_gguf_get_f32(const sheaf_gguf *g, const char *key, float *out);
SHEAF_API sheaf_status sheaf_gguf_get_bool(const sheaf_gguf *g, const char *key, bool *out);
SHEAF_API sheaf_status sheaf_gguf_get_str(const sheaf_gguf *g, const char *key, sheaf_str *out);
/* Arrays (one level). Element access by index; strings are indexed at open, so each is O(1). */
SHEAF_API sheaf_status sheaf_gguf_array(const sheaf_gguf *g, const char *key, sheaf_gguf_type *element, int64_t *n);
SHEAF_API sheaf_status sheaf_gguf_array_str(const sheaf_gguf *g, const char *key, int64_t i, sheaf_str *out);
SHEAF_API sheaf_status sheaf_gguf_array_i64(const sheaf_gguf *g, const char *key, int64_t i, int64_t *out);
SHEAF_API sheaf_status sheaf_gguf_array_f32(const sheaf_gguf *g, const char *key, int64_t i, float *out);
/* Scalar value by key index, for printing. */
typedef union sheaf_gguf_value {
    int64_t i;
    uint64_t u;
    double f;
    bool b;
    sheaf_str str;
} sheaf_gguf_value;
SHEAF_API sheaf_status sheaf_gguf_scalar(const sheaf_gguf *g, int64_t i, sheaf_gguf_type *type, sheaf_gguf_value *out);
/* Element `j` of the array at key index `i` (its element type in *type); nested arrays: SHEAF_E_UNSUPPORTED. */
SHEAF_API sheaf_status sheaf_gguf_element(const sheaf_gguf *g, int64_t i, int64_t j, sheaf_gguf_type *type,
                                          sheaf_gguf_value *out);
SHEAF_API int64_t sheaf_gguf_array_length(const sheaf_gguf *g,
                                          int64_t i); /* of the array at key index i; -1: no array */

/* --- tensors --- */
SHEAF_API int64_t sheaf_gguf_n_tensors(const sheaf_gguf *g);
SHEAF_API const sheaf_gguf_tensor *sheaf_gguf_tensor_at(const sheaf_gguf *g, int64_t i);
SHEAF_API const sheaf_gguf_tensor *sheaf_gguf_find_tensor(const sheaf_gguf *g,
                                                          const char *name); /* NULL: absent; hashed */
/* Reads `n` bytes at `offset` within tensor `t` by pread; short reads are errors naming tensor and missing bytes. */
SHEAF_API sheaf_status sheaf_gguf_read(const sheaf_gguf *g, const sheaf_gguf_tensor *t, uint64_t offset, void *dst,
                                       size_t n);
/* Maps all shards read-only (once; kept until close). The address of a tensor's bytes in the map.
 * A file that shrinks afterwards is detected at load (size compared again), not at use. */
SHEAF_API sheaf_status sheaf_gguf_map(sheaf_gguf *g);
/* SHEAF_E_IO when a file is no longer as long as it was at open: asked once more after loading. */
SHEAF_API sheaf_status sheaf_gguf_unchanged(const sheaf_gguf *g);
SHEAF_API const void *sheaf_gguf_mapped(const sheaf_gguf *g, const sheaf_gguf_tensor *t); /* NULL if not mapped */
SHEAF_API void sheaf_gguf_mapping(const sheaf_gguf *g, int shard, const void **base, size_t *size);

#ifdef __cplusplus
}
#endif
#endif
