/* Element types: names, block sizes, row sizes. Conversions are in quants.c and kquants.c. */
#include "tensor/tensor.h"

#include <strings.h>

typedef struct type_row {
    const char *name; /* NULL: a hole */
    int32_t block, bytes;
} type_row;

static const type_row types[SHEAF_TYPE_COUNT] = {
#define X(name, id, text, block, bytes) [id] = {text, block, bytes},
    SHEAF_TYPE_TABLE(X)
#undef X
};

bool sheaf_type_valid(int64_t id) { return id >= 0 && id < SHEAF_TYPE_COUNT && types[id].name != NULL; }

const char *sheaf_type_name(sheaf_type t) { return sheaf_type_valid(t) ? types[t].name : "?"; }

bool sheaf_type_from_name(const char *name, sheaf_type *out) {
    for (int i = 0; i < SHEAF_TYPE_COUNT; i++) {
        if (types[i].name && strcasecmp(types[i].name, name) == 0) {
            *out = (sheaf_type)i;
            return true;
        }
    }
    return false;
}

/* An invalid type counts as blocks of one element of zero bytes: callers have checked the id where
 * it came from outside, and a division by zero here would be worse than a tensor without bytes. */
int64_t sheaf_type_block(sheaf_type t) { return sheaf_type_valid(t) ? types[t].block : 1; }

size_t sheaf_type_bytes(sheaf_type t) { return sheaf_type_valid(t) ? (size_t)types[t].bytes : 0; }

bool sheaf_type_is_quantized(sheaf_type t) { return sheaf_type_block(t) > 1; }

size_t sheaf_row_bytes(sheaf_type t, int64_t n) {
    int64_t block = sheaf_type_block(t);
    size_t bytes;
    if (n < 0 || n % block != 0) return SIZE_MAX;
    if (sheaf_mul_overflow((size_t)(n / block), sheaf_type_bytes(t), &bytes)) return SIZE_MAX;
    return bytes;
}
