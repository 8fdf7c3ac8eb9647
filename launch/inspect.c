/* `sheaf inspect FILE`: metadata, tensors, and with --check what is wrong beyond what opening refuses. */
#include <math.h>
#include <string.h>

#include "launch/json.h"

enum { SHOWN_ELEMENTS = 8 }; /* of an array, for a person; JSON has all of short ones */

typedef struct problems {
    char (*line)[256];
    size_t n, cap;
    bool lost;
} problems;

static void problem(problems *p, const char *format, ...) SHEAF_PRINTF(2, 3);
static void problem(problems *p, const char *format, ...) {
    if (p->n == p->cap) {
        size_t cap = p->cap ? p->cap * 2 : 16;
        void *grown = sheaf_realloc(p->line, cap * sizeof *p->line);
        if (!grown) {
            p->lost = true;
            return;
        }
        p->line = grown;
        p->cap = cap;
    }
    va_list ap;
    va_start(ap, format);
    vsnprintf(p->line[p->n++], sizeof *p->line, format, ap);
    va_end(ap);
}

/* --- checks: every byte of every float tensor, and scales of quantized ones, through the reference --- */

static void check_values(const sheaf_gguf *g, const sheaf_gguf_tensor *t, problems *p) {
    enum { BITE = 4096 };
    uint8_t *raw = NULL;
    float *f = sheaf_malloc(BITE * sizeof *f);
    int64_t block = sheaf_type_block(t->type), step = BITE / block * block;
    size_t step_bytes = sheaf_row_bytes(t->type, step);
    raw = sheaf_malloc(step_bytes);
    if (!raw || !f) {
        p->lost = true;
    } else {
        for (uint64_t at = 0; at < t->bytes; at += step_bytes) {
            size_t n = t->bytes - at < step_bytes ? (size_t)(t->bytes - at) : step_bytes;
            int64_t elements = (int64_t)(n / sheaf_type_bytes(t->type)) * block, bad = -1;
            if (sheaf_gguf_read(g, t, at, raw, n)) {
                problem(p, "%s", sheaf_error());
                break;
            }
            if (sheaf_to_float(t->type, raw, f, elements)) break; /* integers: nothing to check */
            for (int64_t i = 0; i < elements && bad < 0; i++)
                if (!isfinite(f[i])) bad = i;
            if (bad >= 0) {
                problem(p, "%.*s: value %g near byte %llu of its data", (int)t->name.n, t->name.s, (double)f[bad],
                        (unsigned long long)at);
                break;
            }
        }
    }
    sheaf_free(raw);
    sheaf_free(f);
}

static void check_overlaps(const sheaf_gguf *g, problems *p) {
    int64_t n = sheaf_gguf_n_tensors(g);
    for (int64_t i = 1; i < n; i++) {
        /* files are written in order; one pass over neighbours finds what a writer gets wrong */
        const sheaf_gguf_tensor *a = sheaf_gguf_tensor_at(g, i - 1), *b = sheaf_gguf_tensor_at(g, i);
        if (a->shard == b->shard && a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes)
            problem(p, "%.*s and %.*s share bytes of the file", (int)a->name.n, a->name.s, (int)b->name.n, b->name.s);
    }
}

static void check_all(const sheaf_gguf *g, problems *p) {
    sheaf_str arch;
    if (sheaf_gguf_get_str(g, "general.architecture", &arch)) problem(p, "%s", sheaf_error());
    if (!sheaf_gguf_n_tensors(g)) problem(p, "the file has no tensors");
    check_overlaps(g, p);
    for (int64_t i = 0; i < sheaf_gguf_n_tensors(g); i++) check_values(g, sheaf_gguf_tensor_at(g, i), p);
    sheaf_tokenizer *t = NULL;
    if (sheaf_gguf_find(g, "tokenizer.ggml.model") >= 0 && sheaf_tokenizer_new(g, NULL, &t))
        problem(p, "%s", sheaf_error());
    sheaf_tokenizer_free(t);
}

/* --- a person's view --- */

static void print_value(sheaf_gguf_type type, const sheaf_gguf_value *v) {
    switch (type) {
    case SHEAF_GGUF_STRING: {
        size_t n = v->str.n < 60 ? v->str.n : 60;
        putchar('"');
        for (size_t i = 0; i < n; i++) putchar((unsigned char)v->str.s[i] < ' ' ? ' ' : v->str.s[i]);
        fputs(n < v->str.n ? "...\"" : "\"", stdout);
        break;
    }
    case SHEAF_GGUF_BOOL: fputs(v->b ? "true" : "false", stdout); break;
    case SHEAF_GGUF_F32:
    case SHEAF_GGUF_F64: printf("%.9g", v->f); break;
    case SHEAF_GGUF_U64: printf("%llu", (unsigned long long)v->u); break;
    default: printf("%lld", (long long)v->i); break;
    }
}

static void print_array(const sheaf_gguf *g, int64_t key, int64_t n) {
    printf("[%lld] ", (long long)n);
    for (int64_t j = 0; j < n && j < SHOWN_ELEMENTS; j++) {
        sheaf_gguf_type type;
        sheaf_gguf_value v;
        if (sheaf_gguf_element(g, key, j, &type, &v)) break;
        if (j) fputs(", ", stdout);
        print_value(type, &v);
    }
    if (n > SHOWN_ELEMENTS) fputs(", ...", stdout);
}

static void print_metadata(const sheaf_gguf *g) {
    for (int64_t i = 0; i < sheaf_gguf_n_keys(g); i++) {
        sheaf_str key = sheaf_gguf_key(g, i);
        sheaf_gguf_type type;
        sheaf_gguf_value v;
        printf("%-44.*s ", (int)key.n, key.s);
        int64_t n = sheaf_gguf_array_length(g, i);
        if (n >= 0)
            print_array(g, i, n);
        else if (!sheaf_gguf_scalar(g, i, &type, &v))
            print_value(type, &v);
        putchar('\n');
    }
}

static void print_tensors(const sheaf_gguf *g) {
    uint64_t total = 0;
    for (int64_t i = 0; i < sheaf_gguf_n_tensors(g); i++) {
        const sheaf_gguf_tensor *t = sheaf_gguf_tensor_at(g, i);
        char shape[96];
        int at = 0;
        for (int d = 0; d < t->n_dims; d++)
            at += snprintf(shape + at, sizeof shape - (size_t)at, "%s%lld", d ? " x " : "", (long long)t->ne[d]);
        printf("%-44.*s %-7s %-22s %12llu bytes at %llu\n", (int)t->name.n, t->name.s, sheaf_type_name(t->type), shape,
               (unsigned long long)t->bytes, (unsigned long long)t->offset);
        total += t->bytes;
    }
    printf("%lld tensors, %llu bytes\n", (long long)sheaf_gguf_n_tensors(g), (unsigned long long)total);
}

/* --- a machine's view --- */

static void add_value(jdoc *d, cJSON *to, const char *key, sheaf_gguf_type type, const sheaf_gguf_value *v) {
    switch (type) {
    case SHEAF_GGUF_STRING: j_text(d, to, key, v->str); break;
    case SHEAF_GGUF_BOOL: j_bool(d, to, key, v->b); break;
    case SHEAF_GGUF_F32:
    case SHEAF_GGUF_F64: j_number(d, to, key, v->f); break;
    default: j_integer(d, to, key, v->i); break;
    }
}

static void add_metadata(jdoc *d, const sheaf_gguf *g) {
    cJSON *m = j_object(d, d->root, "metadata");
    for (int64_t i = 0; i < sheaf_gguf_n_keys(g); i++) {
        sheaf_str key = sheaf_gguf_key(g, i);
        char name[512];
        snprintf(name, sizeof name, "%.*s", (int)(key.n < 500 ? key.n : 500), key.s);
        sheaf_gguf_type type;
        sheaf_gguf_value v;
        int64_t n = sheaf_gguf_array_length(g, i);
        if (n < 0) {
            if (!sheaf_gguf_scalar(g, i, &type, &v)) add_value(d, m, name, type, &v);
            continue;
        }
        cJSON *list = j_array(d, m, name);
        for (int64_t j = 0; j < n; j++)
            if (!sheaf_gguf_element(g, i, j, &type, &v)) add_value(d, list, NULL, type, &v);
    }
}

static sheaf_status print_json(const sheaf_gguf *g, const problems *p) {
    jdoc d = j_new(false);
    j_integer(&d, d.root, "version", sheaf_gguf_version(g));
    j_integer(&d, d.root, "alignment", sheaf_gguf_alignment(g));
    add_metadata(&d, g);
    cJSON *list = j_array(&d, d.root, "tensors");
    for (int64_t i = 0; i < sheaf_gguf_n_tensors(g); i++) {
        const sheaf_gguf_tensor *t = sheaf_gguf_tensor_at(g, i);
        cJSON *row = j_object(&d, list, NULL);
        j_text(&d, row, "name", t->name);
        j_string(&d, row, "type", sheaf_type_name(t->type));
        cJSON *ne = j_array(&d, row, "ne");
        for (int k = 0; k < t->n_dims; k++) j_integer(&d, ne, NULL, t->ne[k]);
        j_integer(&d, row, "offset", (int64_t)t->offset);
        j_integer(&d, row, "bytes", (int64_t)t->bytes);
    }
    cJSON *found = j_array(&d, d.root, "problems");
    for (size_t i = 0; i < p->n; i++) j_string(&d, found, NULL, p->line[i]);
    return j_print(&d, false);
}

sheaf_status cmd_inspect(const options *o) {
    sheaf_gguf *g = NULL;
    problems p = {0};
    if (o->n_positional != 1) {
        sheaf_status s = sheaf_fail(SHEAF_E_ARGUMENT, "options: FILE: inspect takes one");
        return sheaf_error_hint(s, "sheaf inspect FILE");
    }
    sheaf_status s = sheaf_gguf_open(o->positional[0], &g);
    if (s) return sheaf_error_context(s, "inspecting");
    if (o->check) check_all(g, &p);
    if (o->json) {
        s = print_json(g, &p);
    } else {
        printf("GGUF version %u, alignment %u, %d file%s\n", sheaf_gguf_version(g), sheaf_gguf_alignment(g),
               sheaf_gguf_shards(g), sheaf_gguf_shards(g) == 1 ? "" : "s");
        print_metadata(g);
        print_tensors(g);
        for (size_t i = 0; i < p.n; i++) printf("problem: %s\n", p.line[i]);
        if (o->check && !p.n) puts("no problems found");
    }
    if (!s && p.lost) s = sheaf_fail(SHEAF_E_NO_MEMORY, "inspecting: %s: out of memory", o->positional[0]);
    if (!s && p.n)
        s = sheaf_fail(SHEAF_E_MISMATCH, "inspecting: %s: %zu problem%s", o->positional[0], p.n, p.n == 1 ? "" : "s");
    sheaf_gguf_close(g);
    sheaf_free(p.line);
    return s;
}
