/* Makes GGUF files for tests: keys of every type, tensors with data, then bytes or a file.
 *
 *     gguf_build *b = gguf_build_new();
 *     gguf_build_str(b, "general.architecture", "llama");
 *     gguf_build_u32(b, "llama.block_count", 2);
 *     gguf_build_tensor_f32(b, "output_norm.weight", SHEAF_F32, 1, (int64_t[]){64}, values);
 *     gguf_build_file(b, "x.gguf");   // or gguf_build_bytes(b, &size)
 *     gguf_build_free(b);
 *
 * Keys and tensors are written in the order given; strings and data are copied. It is test code: when
 * memory or the disk runs out it says so and ends the program. It calls libc's malloc, so that a hook
 * on the library's allocations does not see it. The raw calls write what no honest writer would. */
#ifndef SHEAF_TESTS_GGUF_BUILD_H
#define SHEAF_TESTS_GGUF_BUILD_H

#include "tensor/gguf.h"

typedef struct gguf_build gguf_build;

gguf_build *gguf_build_new(void); /* version 3, alignment 32 */
void gguf_build_free(gguf_build *b);

void gguf_build_u8(gguf_build *b, const char *key, uint8_t v);
void gguf_build_i8(gguf_build *b, const char *key, int8_t v);
void gguf_build_u16(gguf_build *b, const char *key, uint16_t v);
void gguf_build_i16(gguf_build *b, const char *key, int16_t v);
void gguf_build_u32(gguf_build *b, const char *key, uint32_t v);
void gguf_build_i32(gguf_build *b, const char *key, int32_t v);
void gguf_build_u64(gguf_build *b, const char *key, uint64_t v);
void gguf_build_i64(gguf_build *b, const char *key, int64_t v);
void gguf_build_f32(gguf_build *b, const char *key, float v);
void gguf_build_f64(gguf_build *b, const char *key, double v);
void gguf_build_bool(gguf_build *b, const char *key, bool v);
void gguf_build_str(gguf_build *b, const char *key, const char *v);
void gguf_build_str_n(gguf_build *b, const char *key, const char *v, size_t n);
/* An array of n scalars of `type`, given as they lie in memory (int32_t[] for I32, ...). */
void gguf_build_array(gguf_build *b, const char *key, sheaf_gguf_type type, const void *values, int64_t n);
void gguf_build_strs(gguf_build *b, const char *key, const char *const *values, int64_t n);

/* A tensor with its bytes as they are in the file (NULL: zeros). ne is innermost first. */
void gguf_build_tensor(gguf_build *b, const char *name, sheaf_type type, int n_dims, const int64_t *ne,
                       const void *data);
/* A tensor whose f32 values are converted to `type`. */
void gguf_build_tensor_f32(gguf_build *b, const char *name, sheaf_type type, int n_dims, const int64_t *ne,
                           const float *values);

/* The finished file; valid until the next call on b. */
const uint8_t *gguf_build_bytes(gguf_build *b, size_t *size);
void gguf_build_file(gguf_build *b, const char *path);

/* --- dishonest files --- */

void gguf_build_version(gguf_build *b, uint32_t version);
/* Where data is padded to; writes general.alignment only if `key`. */
void gguf_build_alignment(gguf_build *b, uint32_t alignment, bool key);
/* Counts in the header, whatever was really added (-1: the true count). */
void gguf_build_counts(gguf_build *b, int64_t n_tensors, int64_t n_keys);
/* A key as raw bytes: the type and whatever follows it. */
void gguf_build_raw_key(gguf_build *b, const char *key, size_t key_n, uint32_t type, const void *value, size_t n);
/* A tensor info as it stands, with no data of its own. */
void gguf_build_raw_tensor(gguf_build *b, const char *name, size_t name_n, uint32_t n_dims, const uint64_t *ne,
                           uint32_t type, uint64_t offset);
/* Bytes after the last tensor's data. */
void gguf_build_trailing(gguf_build *b, const void *bytes, size_t n);

#endif
