/* The slow, obvious meaning of every op, in f64, straight from tensor/tensor.h's words. Tests compare
 * backends with it. Reads sources where they lie, so it must run before the op does. */
#ifndef SHEAF_TESTS_REFERENCE_H
#define SHEAF_TESTS_REFERENCE_H

#include "tensor/tensor.h"

/* Element of a tensor in host memory, any type and strides. */
double reference_at(const sheaf_tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3);
/* All elements of the node's result, in contiguous order, into out[sheaf_nelements(node)]. */
void reference_eval(const sheaf_tensor *node, double *out);

#endif
