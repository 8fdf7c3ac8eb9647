/* `--dump-tensors REGEX`: every node whose name matches, after it was computed, on stderr. The scheduler cuts the
 * graph behind such a node and waits for it, so a run that is looked at is slower; its numbers are the same. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "launch/generate.h"

enum { SHOWN = 6 };

struct dump {
    pcre2_code *pattern;
    pcre2_match_data *match;
    long long seen;
    const char *text;
};

static bool wants(void *ctx, const sheaf_tensor *node) {
    const dump *d = ctx;
    return pcre2_match(d->pattern, (PCRE2_SPTR)node->name, strlen(node->name), 0, 0, d->match, NULL) >= 0;
}

/* The first and last values of the first row; floats of any type, or whole numbers. */
static sheaf_status print_values(const sheaf_tensor *t) {
    int64_t block = sheaf_type_block(t->type), n = t->ne[0] < 4096 ? t->ne[0] : 4096 / block * block;
    size_t bytes = sheaf_row_bytes(t->type, n);
    uint8_t raw[16384];
    float f[4096];
    if (n < 1 || bytes > sizeof raw) return SHEAF_OK;
    sheaf_status s = sheaf_tensor_get(t, raw, 0, bytes);
    if (s) return s;
    bool whole = t->type == SHEAF_I32;
    if (!whole && sheaf_to_float(t->type, raw, f, n)) return SHEAF_OK;
    for (int64_t i = 0; i < n && i < SHOWN; i++) {
        int32_t v;
        memcpy(&v, raw + (whole ? (size_t)i * sizeof v : 0), sizeof v);
        if (whole)
            fprintf(stderr, " %d", v);
        else
            fprintf(stderr, " %.9g", (double)f[i]);
    }
    fputs(t->ne[0] > SHOWN ? " ..." : "", stderr);
    return SHEAF_OK;
}

static sheaf_status see(void *ctx, const sheaf_tensor *node) {
    dump *d = ctx;
    int dims = SHEAF_MAX_DIMS;
    while (dims > 1 && node->ne[dims - 1] == 1) dims--;
    if (dims < 2) dims = 2;
    fprintf(stderr, "%s = %s %s [", node->name, sheaf_op_name(node->op), sheaf_type_name(node->type));
    for (int i = 0; i < dims; i++) fprintf(stderr, "%s%lld", i ? " x " : "", (long long)node->ne[i]);
    fputs("]:", stderr);
    sheaf_status s = print_values(node);
    fputc('\n', stderr);
    d->seen++;
    return s;
}

sheaf_status dump_open(const options *o, sheaf_context *c, dump **out) {
    int code;
    PCRE2_SIZE at;
    *out = NULL;
    if (!o->dump_tensors) return SHEAF_OK;
    dump *d = sheaf_calloc(1, sizeof *d);
    if (!d) return sheaf_fail(SHEAF_E_NO_MEMORY, "options: --dump-tensors: out of memory");
    *out = d;
    d->text = o->dump_tensors;
    d->pattern = pcre2_compile((PCRE2_SPTR)o->dump_tensors, PCRE2_ZERO_TERMINATED, 0, &code, &at, NULL);
    if (!d->pattern) {
        PCRE2_UCHAR why[120] = "";
        pcre2_get_error_message(code, why, sizeof why);
        return sheaf_fail(SHEAF_E_ARGUMENT, "options: --dump-tensors %s: at %zu: %s", o->dump_tensors, (size_t)at,
                          (const char *)why);
    }
    d->match = pcre2_match_data_create_from_pattern(d->pattern, NULL);
    if (!d->match) return sheaf_fail(SHEAF_E_NO_MEMORY, "options: --dump-tensors: out of memory");
    sheaf_sched_set_eval(sheaf_context_sched(c), wants, see, d);
    return SHEAF_OK;
}

void dump_close(dump *d, sheaf_context *c) {
    if (!d) return;
    if (d->match) sheaf_sched_set_eval(sheaf_context_sched(c), NULL, NULL, NULL);
    if (d->match && !d->seen)
        sheaf_log(SHEAF_LOG_WARN, "--dump-tensors %s: no node has such a name; sheaf graph lists them", d->text);
    pcre2_match_data_free(d->match);
    pcre2_code_free(d->pattern);
    sheaf_free(d);
}
