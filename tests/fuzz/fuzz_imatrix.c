/* Fuzzes the reader of importance matrices, both forms. */
#include "models/quantize.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const names[] = {"blk.0.ffn_up.weight", "t0", ""};
    sheaf_imatrix *m = NULL;
    if (sheaf_imatrix_open_memory(data, size, &m)) {
        if (!sheaf_error()[0] || m) abort(); /* every refusal says why and keeps nothing */
        return 0;
    }
    if (sheaf_imatrix_entries(m) < 1) abort();
    for (int i = 0; i < 3; i++) {
        int64_t n = 0;
        const float *w = sheaf_imatrix_find(m, (sheaf_str){names[i], __builtin_strlen(names[i])}, &n);
        for (int64_t k = 0; w && k < n; k++)
            if (!isfinite(w[k]) || w[k] < 0) abort();
    }
    sheaf_imatrix_free(m);
    return 0;
}
