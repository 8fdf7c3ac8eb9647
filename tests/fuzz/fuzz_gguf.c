/* Fuzzes the GGUF reader: opens the input and, when it opens, walks everything that it offers. */
#include "tensor/gguf.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

static uint64_t seen; /* keeps reads alive */

static void walk_value(sheaf_gguf_type type, const sheaf_gguf_value *v) {
    char text[40];
    if (type == SHEAF_GGUF_STRING)
        seen += strlen(sheaf_str_text(v->str, text, sizeof text));
    else
        seen += v->u & 1;
}

static void walk_keys(const sheaf_gguf *g) {
    for (int64_t i = 0; i < sheaf_gguf_n_keys(g); i++) {
        sheaf_gguf_type type;
        sheaf_gguf_value v = {0};
        sheaf_str key = sheaf_gguf_key(g, i);
        walk_value(SHEAF_GGUF_STRING, &(sheaf_gguf_value){.str = key});
        if (!sheaf_gguf_scalar(g, i, &type, &v)) walk_value(type, &v);
        for (int64_t j = 0; j < sheaf_gguf_array_length(g, i); j++)
            if (!sheaf_gguf_element(g, i, j, &type, &v)) walk_value(type, &v);
    }
}

static void walk_tensors(sheaf_gguf *g) {
    if (sheaf_gguf_map(g)) abort();
    for (int64_t i = 0; i < sheaf_gguf_n_tensors(g); i++) {
        const sheaf_gguf_tensor *t = sheaf_gguf_tensor_at(g, i);
        const uint8_t *p = sheaf_gguf_mapped(g, t);
        uint8_t last;
        if (sheaf_gguf_read(g, t, t->bytes - 1, &last, 1) || p[t->bytes - 1] != last) abort();
        seen += p[0];
        char name[SHEAF_MAX_NAME];
        memcpy(name, t->name.s, t->name.n);
        name[t->name.n] = 0;
        if (strlen(name) == t->name.n && sheaf_gguf_find_tensor(g, name) != t) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sheaf_gguf *g = NULL;
    if (sheaf_gguf_open_memory(data, size, &g)) {
        if (!sheaf_error()[0]) abort(); /* every refusal says why */
        return 0;
    }
    walk_keys(g);
    walk_tensors(g);
    sheaf_gguf_close(g);
    return 0;
}
