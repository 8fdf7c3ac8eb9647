/* What tensor.c, views.c and ops.c share. */
#ifndef SHEAF_TENSOR_OPS_INTERNAL_H
#define SHEAF_TENSOR_OPS_INTERNAL_H

#include "tensor/tensor.h"

/* Bytes from the first to one past the last byte that this shape and these strides touch, 0 if it
 * is empty. False: a negative size, a partial block, or a wrap. */
bool sheaf_extent(sheaf_type type, const int64_t ne[4], const size_t nb[4], size_t *bytes);

/* For a constructor whose source `i` is NULL: keeps the arena's first error (usually the reason for
 * the NULL), or makes this one. Returns NULL. */
void *sheaf_missing_source(sheaf_arena *a, const char *op, int i);

/* A header that shares the bytes of `t`, `offset` bytes after its first one; the caller sets op,
 * sources and parameters. Checks the range. NULL with the arena's status set. */
sheaf_tensor *sheaf_alias(sheaf_arena *a, const char *op, sheaf_tensor *t, const int64_t ne[4], const size_t nb[4],
                          size_t offset);

#endif
