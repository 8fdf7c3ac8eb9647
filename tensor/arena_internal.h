/* What the rest of tensor/ needs of an arena beyond the public calls. */
#ifndef SHEAF_TENSOR_ARENA_INTERNAL_H
#define SHEAF_TENSOR_ARENA_INTERNAL_H

#include "tensor/tensor.h"

/* Keeps `s` and this thread's text as the arena's first error, unless it has one. Returns NULL, so
 * that a constructor's failure reads `return sheaf_arena_fail(a, sheaf_fail(...))`. `a` may be NULL. */
void *sheaf_arena_fail(sheaf_arena *a, sheaf_status s);
/* A zeroed header, linked at the end of the arena's list of tensors; NULL as sheaf_arena_alloc. */
sheaf_tensor *sheaf_arena_tensor(sheaf_arena *a);

#endif
