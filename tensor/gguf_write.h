/* Writing GGUF files (v3, little-endian, one file).
 *
 * Noun: a *writer* (keys, tensor infos, then a file under a temporary name beside its target). Owned by the caller.
 * Metadata and infos are given first; `create` fixes the layout and writes them; tensor data may then be written in
 * any order and from any number of threads; `commit` gives the file its name. Until then, and after any failure,
 * nothing is seen under that name, and freeing the writer leaves nothing behind.
 *
 *     sheaf_gguf_writer *w;
 *     sheaf_gguf_writer_new(&w);
 *     sheaf_gguf_put_str(w, "general.architecture", "llama");
 *     sheaf_gguf_add(w, name, SHEAF_F32, 1, (int64_t[]){64});
 *     s = sheaf_gguf_create(w, "x.gguf");
 *     if (!s) s = sheaf_gguf_write(w, 0, 0, values, 256);
 *     if (!s) s = sheaf_gguf_commit(w);
 *     sheaf_gguf_writer_free(w);
 *
 * Errors: SHEAF_E_NO_MEMORY, _NO_SPACE (a full disk, found at `create` where the file system can say so), _IO,
 * _ARGUMENT (what no GGUF file can hold, or calls out of order). */
#ifndef SHEAF_TENSOR_GGUF_WRITE_H
#define SHEAF_TENSOR_GGUF_WRITE_H

#include "tensor/gguf.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sheaf_gguf_writer sheaf_gguf_writer;

SHEAF_API sheaf_status sheaf_gguf_writer_new(sheaf_gguf_writer **out);
SHEAF_API void sheaf_gguf_writer_free(sheaf_gguf_writer *w); /* NULL: nothing */

/* --- metadata: a key that is there already gets the new value in its old place --- */

/* A scalar or a string. general.alignment must be a power of two; without it 32 holds. */
SHEAF_API sheaf_status sheaf_gguf_put(sheaf_gguf_writer *w, sheaf_str key, sheaf_gguf_type type,
                                      const sheaf_gguf_value *v);
SHEAF_API sheaf_status sheaf_gguf_put_u32(sheaf_gguf_writer *w, const char *key, uint32_t v);
SHEAF_API sheaf_status sheaf_gguf_put_str(sheaf_gguf_writer *w, const char *key, const char *v);
/* n scalars or strings of one type. */
SHEAF_API sheaf_status sheaf_gguf_put_array(sheaf_gguf_writer *w, sheaf_str key, sheaf_gguf_type element,
                                            const sheaf_gguf_value *v, int64_t n);
/* Key i of an opened file with its value as it is, arrays of arrays included. */
SHEAF_API sheaf_status sheaf_gguf_put_from(sheaf_gguf_writer *w, const sheaf_gguf *g, int64_t i);
SHEAF_API void sheaf_gguf_drop(sheaf_gguf_writer *w, const char *key); /* no such key: nothing */

/* --- tensors: numbered in the order of these calls, which is also their order in the file --- */

SHEAF_API sheaf_status sheaf_gguf_add(sheaf_gguf_writer *w, sheaf_str name, sheaf_type type, int n_dims,
                                      const int64_t *ne);

/* --- the file --- */

/* Makes the temporary file at its full size and writes everything but data. The target may be a file, which stays
 * as it is until commit, or absent; anything else is refused. */
SHEAF_API sheaf_status sheaf_gguf_create(sheaf_gguf_writer *w, const char *path);
/* n bytes at `offset` of tensor i. Any thread. */
SHEAF_API sheaf_status sheaf_gguf_write(sheaf_gguf_writer *w, int64_t i, uint64_t offset, const void *bytes, size_t n);
/* All data is written: on the disk first, then under its name. */
SHEAF_API sheaf_status sheaf_gguf_commit(sheaf_gguf_writer *w);
SHEAF_API uint64_t sheaf_gguf_writer_bytes(const sheaf_gguf_writer *w); /* of the whole file, once created */

#ifdef __cplusplus
}
#endif
#endif
