/* `sheaf inspect FILE`: metadata, tensors, and with --check what is wrong beyond what opening refuses. */
#include <math.h>
#include <stdlib.h>
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
    char name[160];
    if (!sheaf_type_valid(t->type)) return; /* nothing here can read it */
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
                problem(p, "%s: value %g near byte %llu of its data", sheaf_str_text(t->name, name, sizeof name),
                        (double)f[bad], (unsigned long long)at);
                break;
            }
        }
    }
    sheaf_free(raw);
    sheaf_free(f);
}

static int by_place(const void *a, const void *b) {
    const sheaf_gguf_tensor *x = *(const sheaf_gguf_tensor *const *)a, *y = *(const sheaf_gguf_tensor *const *)b;
    if (x->shard != y->shard) return x->shard < y->shard ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* In order of places, a tensor overlaps an earlier one if it begins before the furthest end so far. */
static void check_overlaps(const sheaf_gguf *g, problems *p) {
    char a[160], b[160];
    size_t n = (size_t)sheaf_gguf_n_tensors(g);
    const sheaf_gguf_tensor **sorted = sheaf_malloc((n + 1) * sizeof *sorted);
    if (!sorted) {
        p->lost = true;
        return;
    }
    for (size_t i = 0; i < n; i++) sorted[i] = sheaf_gguf_tensor_at(g, (int64_t)i);
    qsort(sorted, n, sizeof *sorted, by_place);
    const sheaf_gguf_tensor *last = NULL;
    for (size_t i = 0; i < n; i++) {
        const sheaf_gguf_tensor *t = sorted[i];
        if (last && last->shard == t->shard && t->offset < last->offset + last->bytes)
            problem(p, "%s and %s share bytes of the file", sheaf_str_text(last->name, a, sizeof a),
                    sheaf_str_text(t->name, b, sizeof b));
        if (!last || last->shard != t->shard || t->offset + t->bytes > last->offset + last->bytes) last = t;
    }
    sheaf_free(sorted);
}

/* Would it load? Keys that a family needs, shapes that follow from them, tensors that are missing: without reading
 * data, so that a large file takes no memory. A family that we do not run may still be whole. */
static void check_model(const char *path, problems *p) {
    sheaf_registry *registry = NULL;
    sheaf_device *device;
    sheaf_model *model = NULL;
    int n = 0;
    sheaf_open_options oo = {.n_threads = 1, .n_parts = 1};
    sheaf_status s = sheaf_registry_new(&registry);
    if (!s) s = sheaf_devices_open(registry, "cpu", &oo, &device, 1, &n);
    if (s) {
        p->lost = true;
    } else {
        sheaf_model_options mo = {
            .registry = registry, .devices = &device, .n_devices = 1, .devices_name = "cpu", .no_data = true};
        s = sheaf_model_load(path, &mo, &model);
        if (sheaf_status_exit_code(s) == 4)
            p->lost = true; /* what is missing here is no fault of the file */
        else if (s && s != SHEAF_E_UNSUPPORTED)
            problem(p, "%s", sheaf_error());
    }
    sheaf_model_free(model);
    sheaf_registry_free(registry);
}

static void check_all(const sheaf_gguf *g, const char *path, problems *p) {
    sheaf_str text;
    bool model = sheaf_gguf_get_str(g, "general.type", &text) || (text.n == 5 && !memcmp(text.s, "model", 5));
    if (model && sheaf_gguf_get_str(g, "general.architecture", &text)) problem(p, "%s", sheaf_error());
    if (model && !sheaf_gguf_n_tensors(g)) problem(p, "the file has no tensors");
    check_overlaps(g, p);
    for (int64_t i = 0; i < sheaf_gguf_n_tensors(g); i++) check_values(g, sheaf_gguf_tensor_at(g, i), p);
    sheaf_tokenizer *t = NULL;
    sheaf_status s = SHEAF_OK;
    if (sheaf_gguf_find(g, "tokenizer.ggml.model") >= 0) s = sheaf_tokenizer_new(g, NULL, &t);
    if (s && s != SHEAF_E_UNSUPPORTED) problem(p, "%s", sheaf_error()); /* what we cannot run may still be whole */
    sheaf_tokenizer_free(t);
    if (model && !p->n) check_model(path, p);
}

/* --- a person's view --- */

static void print_value(sheaf_gguf_type type, const sheaf_gguf_value *v) {
    char text[80];
    switch (type) {
    case SHEAF_GGUF_STRING: printf("\"%s\"", sheaf_str_text(v->str, text, sizeof text)); break;
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
        if (j) fputs(", ", stdout);
        if (sheaf_gguf_element(g, key, j, &type, &v))
            fputs("[...]", stdout); /* an array of arrays */
        else
            print_value(type, &v);
    }
    if (n > SHOWN_ELEMENTS) fputs(", ...", stdout);
}

static void print_metadata(const sheaf_gguf *g) {
    for (int64_t i = 0; i < sheaf_gguf_n_keys(g); i++) {
        char key[160];
        sheaf_gguf_type type;
        sheaf_gguf_value v;
        printf("%-44s ", sheaf_str_text(sheaf_gguf_key(g, i), key, sizeof key));
        int64_t n = sheaf_gguf_array_length(g, i);
        if (n >= 0)
            print_array(g, i, n);
        else if (!sheaf_gguf_scalar(g, i, &type, &v))
            print_value(type, &v);
        putchar('\n');
    }
}

/* --- sizes --- */

typedef struct share {
    int64_t tensors, elements;
    uint64_t bytes;
} share;

static int64_t elements_of(const sheaf_gguf_tensor *t) { return t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]; }

/* What each element type has of the file; the sum of all is returned. */
static share shares_of(const sheaf_gguf *g, share by_type[SHEAF_TYPE_COUNT]) {
    share all = {0};
    memset(by_type, 0, SHEAF_TYPE_COUNT * sizeof *by_type);
    for (int64_t i = 0; i < sheaf_gguf_n_tensors(g); i++) {
        const sheaf_gguf_tensor *t = sheaf_gguf_tensor_at(g, i);
        share *to[2] = {&by_type[t->type], &all};
        for (int k = 0; k < 2; k++) {
            to[k]->tensors++;
            to[k]->elements += elements_of(t);
            to[k]->bytes += t->bytes;
        }
    }
    return all;
}

static void print_tensors(const sheaf_gguf *g) {
    share by_type[SHEAF_TYPE_COUNT], all = shares_of(g, by_type);
    for (int64_t i = 0; i < sheaf_gguf_n_tensors(g); i++) {
        const sheaf_gguf_tensor *t = sheaf_gguf_tensor_at(g, i);
        char shape[96], name[160];
        int at = 0;
        for (int d = 0; d < t->n_dims; d++)
            at += snprintf(shape + at, sizeof shape - (size_t)at, "%s%lld", d ? " x " : "", (long long)t->ne[d]);
        printf("%-44s %-7s %-22s %12llu bytes at %llu\n", sheaf_str_text(t->name, name, sizeof name),
               sheaf_gguf_element_name(t->type), shape, (unsigned long long)t->bytes, (unsigned long long)t->offset);
    }
    for (int t = 0; t < SHEAF_TYPE_COUNT; t++)
        if (by_type[t].tensors)
            printf("%-7s %6lld tensors %15lld elements %15llu bytes\n", sheaf_gguf_element_name((sheaf_type)t),
                   (long long)by_type[t].tensors, (long long)by_type[t].elements, (unsigned long long)by_type[t].bytes);
    printf("%lld tensors, %llu bytes, %lld elements, %.2f bits each\n", (long long)all.tensors,
           (unsigned long long)all.bytes, (long long)all.elements,
           all.elements ? (double)all.bytes * 8 / (double)all.elements : 0);
}

/* --- a machine's view --- */

static void add_value(jdoc *d, cJSON *to, const char *key, sheaf_gguf_type type, const sheaf_gguf_value *v) {
    switch (type) {
    case SHEAF_GGUF_STRING: j_text(d, to, key, v->str); break;
    case SHEAF_GGUF_BOOL: j_bool(d, to, key, v->b); break;
    case SHEAF_GGUF_F32:
    case SHEAF_GGUF_F64: j_number(d, to, key, v->f); break;
    case SHEAF_GGUF_U64: j_unsigned(d, to, key, v->u); break;
    default: j_integer(d, to, key, v->i); break;
    }
}

static void add_metadata(jdoc *d, const sheaf_gguf *g) {
    cJSON *m = j_object(d, d->root, "metadata");
    for (int64_t i = 0; i < sheaf_gguf_n_keys(g); i++) {
        sheaf_str key = sheaf_gguf_key(g, i);
        char *name = sheaf_malloc(4 * key.n + 1); /* escaped */
        if (!name) {
            d->failed = true;
            return;
        }
        sheaf_str_text(key, name, 4 * key.n + 1);
        sheaf_gguf_type type;
        sheaf_gguf_value v;
        int64_t n = sheaf_gguf_array_length(g, i);
        cJSON *list = n < 0 ? NULL : j_array(d, m, name);
        if (n < 0 && !sheaf_gguf_scalar(g, i, &type, &v)) add_value(d, m, name, type, &v);
        for (int64_t j = 0; j < n; j++) {
            if (sheaf_gguf_element(g, i, j, &type, &v))
                j_null(d, list, NULL); /* an array of arrays */
            else
                add_value(d, list, NULL, type, &v);
        }
        sheaf_free(name);
    }
}

static void add_types(jdoc *d, const sheaf_gguf *g) {
    share by_type[SHEAF_TYPE_COUNT];
    shares_of(g, by_type);
    cJSON *list = j_array(d, d->root, "types");
    for (int t = 0; t < SHEAF_TYPE_COUNT; t++) {
        if (!by_type[t].tensors) continue;
        cJSON *row = j_object(d, list, NULL);
        j_string(d, row, "type", sheaf_gguf_element_name((sheaf_type)t));
        j_integer(d, row, "tensors", by_type[t].tensors);
        j_integer(d, row, "elements", by_type[t].elements);
        j_integer(d, row, "bytes", (int64_t)by_type[t].bytes);
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
        j_string(&d, row, "type", sheaf_gguf_element_name(t->type));
        cJSON *ne = j_array(&d, row, "ne");
        for (int k = 0; k < t->n_dims; k++) j_integer(&d, ne, NULL, t->ne[k]);
        j_integer(&d, row, "offset", (int64_t)t->offset);
        j_integer(&d, row, "bytes", (int64_t)t->bytes);
    }
    add_types(&d, g);
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
    sheaf_status s = sheaf_gguf_open_to_look(o->positional[0], &g);
    if (s) return sheaf_error_context(s, "inspecting");
    if (o->check) check_all(g, o->positional[0], &p);
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
