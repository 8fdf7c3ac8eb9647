/* `sheaf quantize IN OUT TYPE`: words to a plan, the plan to a file, and what it came to. */
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "launch/json.h"
#include "models/quantize.h"

typedef struct quantizing {
    const options *o;
    sheaf_quantize_options q;
    sheaf_tensor_override overrides[MAX_OVERRIDES];
    char patterns[MAX_OVERRIDES][256];
    sheaf_gguf *g;
    sheaf_imatrix *m;
    sheaf_quantize_row *plan;
    uint64_t from, to, elements; /* bytes of all tensors, before and after */
    int fallbacks, unweighted;
    const sheaf_gguf_tensor *shown; /* the last that -v told of */
    double start, drawn;
} quantizing;

/* --- words --- */

static sheaf_status type_named(const char *option, const char *name, sheaf_type *out) {
    bool weight = sheaf_type_from_name(name, out) && (*out < SHEAF_I8 || *out > SHEAF_F64);
    return weight ? SHEAF_OK : sheaf_fail(SHEAF_E_ARGUMENT, "options: %s %s: no element type of weights", option, name);
}

static sheaf_status parse_overrides(quantizing *z) {
    for (int i = 0; i < z->o->n_tensor_type; i++) {
        const char *word = z->o->tensor_type[i], *equals = strrchr(word, '=');
        if (!equals || equals == word || (size_t)(equals - word) >= sizeof z->patterns[i])
            return sheaf_fail(SHEAF_E_ARGUMENT, "options: --tensor-type %s: REGEX=TYPE is wanted", word);
        memcpy(z->patterns[i], word, (size_t)(equals - word));
        z->overrides[i].pattern = z->patterns[i];
        sheaf_status s = type_named("--tensor-type", equals + 1, &z->overrides[i].type);
        if (s) return s;
    }
    z->q.overrides = z->overrides;
    z->q.n_overrides = z->o->n_tensor_type;
    return SHEAF_OK;
}

/* TYPE, and a number of threads behind it as llama-quantize has it. */
static sheaf_status parse_positional(quantizing *z) {
    const options *o = z->o;
    const char *hint = "sheaf quantize IN.gguf OUT.gguf TYPE";
    int n = 0;
    if (o->n_positional < 3)
        return sheaf_error_hint(
            sheaf_fail(SHEAF_E_ARGUMENT, "options: quantize: it takes an input, an output and a type"), "%s", hint);
    z->q.threads = o->threads;
    if (o->n_positional == 4) {
        sheaf_status s = parse_int_list(o->positional[3], "threads", 1, &z->q.threads, 1, &n);
        if (s) return s;
    }
    if (strcasecmp(o->positional[2], "COPY") == 0) return SHEAF_OK;
    z->q.mix = sheaf_mix_find(o->positional[2]);
    if (z->q.mix) return SHEAF_OK;
    return sheaf_error_hint(sheaf_fail(SHEAF_E_ARGUMENT, "options: %s: unknown type", o->positional[2]),
                            "sheaf quantize --help lists them; %s", hint);
}

static bool progress(void *ctx, const sheaf_quantize_progress *p);

static sheaf_status parse(quantizing *z) {
    const options *o = z->o;
    z->q = (sheaf_quantize_options){.allow_requantize = o->allow_requantize,
                                    .pure = o->pure,
                                    .leave_output = o->leave_output,
                                    .has_output_type = o->output_type != NULL,
                                    .has_embedding_type = o->embedding_type != NULL,
                                    .progress = progress,
                                    .ctx = z};
    sheaf_status s = parse_positional(z);
    if (!s && o->output_type) s = type_named("--output-tensor-type", o->output_type, &z->q.output_type);
    if (!s && o->embedding_type) s = type_named("--token-embedding-type", o->embedding_type, &z->q.embedding_type);
    if (!s && o->output_type && o->leave_output)
        s = sheaf_fail(SHEAF_E_ARGUMENT, "options: --output-tensor-type and --leave-output-tensor: exclude each other");
    return s ? s : parse_overrides(z);
}

/* --- while it runs --- */

/* A bar on a terminal, a line a tensor with -v. */
static bool progress(void *ctx, const sheaf_quantize_progress *p) {
    quantizing *z = ctx;
    char name[80];
    if (interrupted || terminated) return false;
    sheaf_str_text(p->tensor->name, name, sizeof name);
    if (z->o->verbose && p->tensor != z->shown) {
        z->shown = p->tensor;
        fprintf(stderr, "%-40s %s -> %s\n", name, sheaf_type_name(p->tensor->type), sheaf_type_name(p->to));
    } else if (!z->o->verbose && !z->o->quiet && isatty(STDERR_FILENO) && now_ms() - z->drawn > 100) {
        z->drawn = now_ms();
        double share = p->total ? (double)p->done / (double)p->total : 1;
        fprintf(stderr, "\rquantizing [%-30.*s] %3.0f %%  %-40.40s", (int)(30 * share),
                "##############################", share * 100, name);
    }
    return true;
}

static void end_progress(const quantizing *z) {
    if (z->drawn > 0) fprintf(stderr, "\r%80s\r", "");
}

/* --- what it comes to --- */

static void add_up(quantizing *z) {
    for (int64_t i = 0; i < sheaf_gguf_n_tensors(z->g); i++) {
        const sheaf_gguf_tensor *t = sheaf_gguf_tensor_at(z->g, i);
        z->from += t->bytes;
        z->to += z->plan[i].bytes;
        z->elements += (uint64_t)(t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]);
        z->fallbacks += z->plan[i].fallback;
        z->unweighted += z->plan[i].unweighted;
    }
}

static double bits(uint64_t bytes, uint64_t elements) { return elements ? (double)bytes * 8 / (double)elements : 0; }

static void print_rows(const quantizing *z) {
    for (int64_t i = 0; i < sheaf_gguf_n_tensors(z->g); i++) {
        const sheaf_gguf_tensor *t = sheaf_gguf_tensor_at(z->g, i);
        char name[80];
        printf("%-44s %-7s -> %-7s %12llu bytes%s\n", sheaf_str_text(t->name, name, sizeof name),
               sheaf_type_name(t->type), sheaf_type_name(z->plan[i].to), (unsigned long long)z->plan[i].bytes,
               z->plan[i].fallback ? "  (rows are no whole blocks of a smaller type)" : "");
    }
    printf("%lld tensors, %llu bytes -> %llu bytes, %.2f bits a weight\n", (long long)sheaf_gguf_n_tensors(z->g),
           (unsigned long long)z->from, (unsigned long long)z->to, bits(z->to, z->elements));
}

static sheaf_status print_json(const quantizing *z) {
    jdoc d = j_new(false);
    j_string(&d, d.root, "type", z->q.mix ? z->q.mix->name : "COPY");
    j_integer(&d, d.root, "bytes_before", (int64_t)z->from);
    j_integer(&d, d.root, "bytes", (int64_t)z->to);
    j_number(&d, d.root, "bits_per_weight", bits(z->to, z->elements));
    cJSON *list = j_array(&d, d.root, "tensors");
    for (int64_t i = 0; i < sheaf_gguf_n_tensors(z->g); i++) {
        const sheaf_gguf_tensor *t = sheaf_gguf_tensor_at(z->g, i);
        cJSON *row = j_object(&d, list, NULL);
        j_text(&d, row, "name", t->name);
        j_string(&d, row, "from", sheaf_type_name(t->type));
        j_string(&d, row, "to", sheaf_type_name(z->plan[i].to));
        j_integer(&d, row, "bytes", (int64_t)z->plan[i].bytes);
        j_bool(&d, row, "fallback", z->plan[i].fallback);
    }
    return j_print(&d, false);
}

static void report(const quantizing *z) {
    if (z->fallbacks)
        fprintf(stderr, "sheaf: note: %d tensor%s another type: their rows are no whole blocks\n", z->fallbacks,
                z->fallbacks == 1 ? " got" : "s got");
    if (z->unweighted)
        fprintf(stderr, "sheaf: note: the importance matrix does not know %d tensor%s\n", z->unweighted,
                z->unweighted == 1 ? "" : "s");
    if (z->o->dry_run) return;
    fprintf(stderr, "%s: %.1f MiB -> %.1f MiB, %.2f bits a weight, %.1f s\n", z->o->positional[1],
            (double)z->from / 1048576, (double)z->to / 1048576, bits(z->to, z->elements), (now_ms() - z->start) / 1000);
}

static sheaf_status quantize(quantizing *z) {
    const options *o = z->o;
    sheaf_status s = parse(z);
    if (s) return s;
    s = sheaf_gguf_open(o->positional[0], &z->g);
    if (!s && o->imatrix) s = sheaf_imatrix_open(o->imatrix, &z->m);
    if (!s) s = sheaf_quantize_plan(z->g, &z->q, z->m, &z->plan);
    if (s) return s == SHEAF_E_ARGUMENT ? s : sheaf_error_context(s, "quantizing");
    add_up(z);
    if (!o->dry_run) s = sheaf_quantize(z->g, z->plan, o->positional[1], &z->q, z->m);
    end_progress(z);
    if (s) return s;
    if (!o->quiet) report(z);
    if (o->json) return print_json(z);
    if (o->dry_run) print_rows(z);
    return SHEAF_OK;
}

sheaf_status cmd_quantize(const options *o) {
    quantizing *z = sheaf_calloc(1, sizeof *z);
    if (!z) return sheaf_fail(SHEAF_E_NO_MEMORY, "quantizing: out of memory");
    z->o = o;
    z->start = now_ms();
    sheaf_status s = quantize(z);
    sheaf_free(z->plan);
    sheaf_imatrix_free(z->m);
    sheaf_gguf_close(z->g);
    sheaf_free(z);
    return s;
}
