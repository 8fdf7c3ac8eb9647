/* `sheaf bench`: tokens per second of prompt and generation, as llama-bench counts them (random tokens, one warm-up,
 * median of repetitions), beside what the machine could read; and `sheaf bench machine`, the wall itself. */
#include <stdlib.h>
#include <string.h>

#include "launch/json.h"

enum { MAX_LIST = 16, MAX_REPS = 1000 };

typedef struct bench_row {
    const char *devices;
    int threads, n_prompt, n_gen, n_depth;
    double median, min, max; /* tokens per second */
    double gbs, limit;
    double logits_bytes; /* brought out of the devices, a generated token */
    int n_devices;
    struct {
        char name[48];
        double compute, wait, reduce;
    } device[SHEAF_MAX_DEVICES];
} bench_row;

typedef struct bench {
    const options *o;
    session s;
    jdoc doc;
    int rows;
    bool follows; /* another rank than the first: it prints nothing */
    double rates[MAX_REPS];
    int32_t *ids;
} bench;

static int compare_rates(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Tokens that no cache of text could know: a fixed pseudo-random sequence. */
static void random_ids(int32_t *ids, int n, int n_vocab) {
    uint64_t x = 0x9e3779b97f4a7c15u;
    for (int i = 0; i < n; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        ids[i] = (int32_t)(x % (uint64_t)n_vocab);
    }
}

static sheaf_status feed(bench *b, int n, int at_once) {
    for (int at = 0; at < n;) {
        int bite = n - at < at_once ? n - at : at_once;
        sheaf_batch batch = {.n = bite, .token = b->ids + at, .best = sheaf_n_best(b->s.context) > 0};
        sheaf_status s = sheaf_decode(b->s.context, &batch);
        if (!s && (interrupted || terminated)) s = sheaf_fail(SHEAF_E_CANCELLED, "bench: interrupted");
        if (s) return s;
        at += bite;
    }
    return SHEAF_OK;
}

/* One repetition: depth (not timed), then the prompt in batches or the tokens one by one. */
static sheaf_status once(bench *b, const bench_row *r, double *ms) {
    sheaf_status s = sheaf_kv_clear(b->s.context);
    if (!s) s = feed(b, r->n_depth, b->o->n_batch);
    double start = now_ms();
    if (!s) s = r->n_prompt ? feed(b, r->n_prompt, b->o->n_batch) : feed(b, r->n_gen, 1);
    *ms = now_ms() - start;
    return s;
}

static void reset_times(const bench *b) {
    sheaf_backend *be = sheaf_context_backend(b->s.context);
    for (int i = 0; sheaf_meta_is(be->device) && i < b->s.n_devices; i++) (void)sheaf_meta_times(be, i, true);
}

/* Microseconds per token and device since the last reset. */
static void take_times(const bench *b, bench_row *r, double tokens, double device_ns) {
    sheaf_backend *be = sheaf_context_backend(b->s.context);
    r->n_devices = b->s.n_devices;
    for (int i = 0; i < b->s.n_devices; i++) {
        snprintf(r->device[i].name, sizeof r->device[i].name, "%s", b->s.all[b->s.first + i].name);
        if (!sheaf_meta_is(be->device)) {
            r->device[i].compute = device_ns / 1e3 / tokens;
            continue;
        }
        sheaf_member_times t = sheaf_meta_times(be, i, false);
        r->device[i].compute = (double)t.compute_ns / 1e3 / tokens;
        r->device[i].wait = (double)t.wait_ns / 1e3 / tokens;
        r->device[i].reduce = (double)t.reduce_ns / 1e3 / tokens;
    }
}

static sheaf_status measure(bench *b, bench_row *r) {
    double ms;
    int n = r->n_prompt ? r->n_prompt : r->n_gen;
    sheaf_status s = once(b, r, &ms);
    sheaf_context_stats before = sheaf_context_get_stats(b->s.context);
    reset_times(b);
    for (int i = 0; i < b->o->repetitions && !s; i++) {
        s = once(b, r, &ms);
        b->rates[i] = ms > 0 ? n / ms * 1e3 : 0;
    }
    if (s) return s;
    sheaf_context_stats after = sheaf_context_get_stats(b->s.context);
    r->logits_bytes = (double)(after.logits_bytes - before.logits_bytes) / b->o->repetitions / n;
    take_times(b, r, (double)(n + r->n_depth) * b->o->repetitions, (double)(after.device_ns - before.device_ns));
    qsort(b->rates, (size_t)b->o->repetitions, sizeof *b->rates, compare_rates);
    r->min = b->rates[0];
    r->median = (b->rates[b->o->repetitions / 2] + b->rates[(b->o->repetitions - 1) / 2]) / 2;
    r->max = b->rates[b->o->repetitions - 1];
    uint64_t bytes = sheaf_model_hparams(b->s.model)->active_bytes;
    if (r->n_gen) r->gbs = r->median * (double)bytes / 1e9;
    return machine_limit((size_t)bytes, r->threads, r->gbs, &r->limit);
}

/* --- output ---------------------------------------------------------------------------------------------------- */

static void row_json(bench *b, jdoc *d, cJSON *row, const bench_row *r) {
    const sheaf_hparams *h = sheaf_model_hparams(b->s.model);
    j_string(d, row, "model", b->o->model);
    j_string(d, row, "type", h->type);
    j_integer(d, row, "params", h->n_params);
    j_integer(d, row, "bytes", (int64_t)h->bytes);
    j_string(d, row, "devices", r->devices);
    j_string(d, row, "split_mode", b->s.n_all > 1 ? (b->o->split_mode ? b->o->split_mode : "tensor") : "none");
    j_integer(d, row, "threads", r->threads);
    j_integer(d, row, "n_prompt", r->n_prompt);
    j_integer(d, row, "n_gen", r->n_gen);
    j_integer(d, row, "n_depth", r->n_depth);
    cJSON *rate = j_object(d, row, "tokens_per_s");
    j_number(d, rate, "median", r->median);
    j_number(d, rate, "min", r->min);
    j_number(d, rate, "max", r->max);
    if (r->n_gen)
        j_number(d, row, "gb_per_s", r->gbs);
    else
        j_null(d, row, "gb_per_s");
    j_number(d, row, "limit_gb_per_s", r->limit);
    if (r->n_gen) j_number(d, row, "logits_bytes_per_token", r->logits_bytes);
    cJSON *list = j_array(d, row, "device_us");
    for (int i = 0; i < r->n_devices; i++) {
        cJSON *dev = j_object(d, list, NULL);
        j_string(d, dev, "name", r->device[i].name);
        j_number(d, dev, "compute", r->device[i].compute);
        j_number(d, dev, "wait", r->device[i].wait);
        j_number(d, dev, "reduce", r->device[i].reduce);
    }
    j_string(d, row, "version", SHEAF_VERSION);
}

static bool is_form(const bench *b, const char *form) {
    return b->o->output_format && !strcmp(b->o->output_format, form);
}
static bool wants_json(const bench *b) { return b->o->json || is_form(b, "json"); }

static sheaf_status emit(bench *b, const bench_row *r) {
    const char *type = sheaf_model_hparams(b->s.model)->type;
    char test[64], share[64];
    snprintf(test, sizeof test, "%s%d%s", r->n_prompt ? "pp" : "tg", r->n_prompt ? r->n_prompt : r->n_gen, "");
    if (r->n_depth) snprintf(test + strlen(test), sizeof test - strlen(test), " @ d%d", r->n_depth);
    b->rows++;
    if (b->o->jsonl) {
        jdoc d = j_new(false);
        row_json(b, &d, d.root, r);
        return j_print(&d, true);
    }
    if (wants_json(b)) {
        row_json(b, &b->doc, j_object(&b->doc, b->doc.root, NULL), r);
        return SHEAF_OK;
    }
    if (is_form(b, "csv")) {
        if (b->rows == 1) puts("type,devices,threads,test,tokens_per_s,min,max,gb_per_s,limit_gb_per_s");
        printf("%s,%s,%d,%s,%.3f,%.3f,%.3f,%.3f,%.3f\n", type, r->devices, r->threads, test, r->median, r->min, r->max,
               r->gbs, r->limit);
    } else {
        if (b->rows == 1)
            puts("| model | devices | threads | test | tokens/s (median, min-max) | GB/s of limit | compute / wait / "
                 "reduce us a token |\n|---|---|---|---|---|---|---|");
        printf("| %s | %s | %d | %s | %.2f (%.2f-%.2f) | ", type, r->devices, r->threads, test, r->median, r->min,
               r->max);
        if (r->n_gen)
            printf("%.2f of %.2f (%s) |", r->gbs, r->limit, share_text(r->gbs, r->limit, share));
        else
            fputs("- |", stdout);
        for (int i = 0; i < r->n_devices; i++)
            printf("%s %.0f / %.0f / %.0f", i ? ";" : "", r->device[i].compute, r->device[i].wait, r->device[i].reduce);
        puts(" |");
    }
    return fflush(stdout) ? stdout_failed() : SHEAF_OK;
}

/* --- the sweep -------------------------------------------------------------------------------------------------- */

typedef struct sweep {
    int prompt[MAX_LIST], gen[MAX_LIST], depth[MAX_LIST], threads[MAX_LIST];
    int n_prompt, n_gen, n_depth, n_threads;
} sweep;

static int largest(const int *v, int n) {
    int most = 0;
    for (int i = 0; i < n; i++)
        if (v[i] > most) most = v[i];
    return most;
}

static sheaf_status parse_sweep(const options *o, sweep *w) {
    sheaf_status s = parse_int_list(o->n_prompt ? o->n_prompt : "512", "-p", 0, w->prompt, MAX_LIST, &w->n_prompt);
    if (!s) s = parse_int_list(o->n_gen ? o->n_gen : "128", "-n", 0, w->gen, MAX_LIST, &w->n_gen);
    if (!s) s = parse_int_list(o->n_depth ? o->n_depth : "0", "-d", 0, w->depth, MAX_LIST, &w->n_depth);
    w->n_threads = 1; /* 0: by default */
    if (!s && o->threads_list) s = parse_int_list(o->threads_list, "-t", 1, w->threads, MAX_LIST, &w->n_threads);
    const char *f = o->output_format;
    if (!s && f && strcmp(f, "md") && strcmp(f, "csv") && strcmp(f, "json"))
        s = sheaf_fail(SHEAF_E_ARGUMENT, "options: -o %s: not md, csv or json", f);
    if (!s && !largest(w->prompt, w->n_prompt) && !largest(w->gen, w->n_gen)) {
        s = sheaf_fail(SHEAF_E_ARGUMENT, "options: -p 0 -n 0: nothing is left to measure");
        return sheaf_error_hint(s, "-p N measures a prompt of N tokens, -n N the generation of N");
    }
    return s;
}

static sheaf_status run_rows(bench *b, const sweep *w, bench_row *r) {
    sheaf_status s = SHEAF_OK;
    for (int d = 0; d < w->n_depth && !s; d++) {
        r->n_depth = w->depth[d];
        for (int i = 0; i < w->n_prompt + w->n_gen && !s; i++) {
            r->n_prompt = i < w->n_prompt ? w->prompt[i] : 0;
            r->n_gen = i < w->n_prompt ? 0 : w->gen[i - w->n_prompt];
            if (!r->n_prompt && !r->n_gen) continue;
            r->gbs = r->limit = 0;
            s = measure(b, r);
            if (!s) s = emit(b, r);
        }
    }
    return s;
}

static sheaf_status run_devices(bench *b, const sweep *w, const char *list, int threads) {
    options o = *b->o;
    bench_row r = {.devices = b->s.where};
    int most = largest(w->prompt, w->n_prompt), gen = largest(w->gen, w->n_gen);
    o.threads = threads;
    if (gen > most) most = gen;
    most += largest(w->depth, w->n_depth);
    if (!o.n_ctx) o.n_ctx = (most + 255) / 256 * 256;
    sheaf_status s = session_open(&b->s, &o, list, SESSION_MODEL | SESSION_CONTEXT);
    b->follows = !s && !session_leads(&b->s);
    if (b->follows)
        s = session_follow(&b->s);
    else if (!s) {
        b->ids = sheaf_malloc(((size_t)most + 1) * sizeof *b->ids);
        r.threads = session_threads(&b->s);
        if (b->ids) {
            random_ids(b->ids, most, sheaf_model_hparams(b->s.model)->n_vocab);
            s = run_rows(b, w, &r);
        } else {
            s = sheaf_fail(SHEAF_E_NO_MEMORY, "bench: %d tokens", most);
        }
    }
    sheaf_free(b->ids);
    b->ids = NULL;
    session_close(&b->s);
    return s;
}

static sheaf_status bench_model(const options *o) {
    bench b = {.o = o};
    sweep w = {0};
    sheaf_status s = parse_sweep(o, &w);
    if (s) return s;
    if (wants_json(&b)) b.doc = j_new(true);
    for (int i = 0; i < (o->n_devices ? o->n_devices : 1) && !s; i++)
        for (int t = 0; t < w.n_threads && !s; t++)
            s = run_devices(&b, &w, o->n_devices ? o->devices[i] : NULL, w.threads[t]);
    if (wants_json(&b)) {
        if (!s && !b.follows)
            s = j_print(&b.doc, false);
        else
            cJSON_Delete(b.doc.root);
    }
    return s;
}

static sheaf_status bench_machine(const options *o) {
    static const size_t sizes[] = {(size_t)1 << 20, (size_t)3 << 20, (size_t)16 << 20, (size_t)100 << 20,
                                   (size_t)256 << 20};
    int threads = sheaf_default_threads(), n = 0;
    jdoc d = {0};
    sheaf_status s = o->threads_list ? parse_int_list(o->threads_list, "-t", 1, &threads, 1, &n) : SHEAF_OK;
    if (!s && o->json) d = j_new(true);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && !s; i++) {
        double gbs = 0;
        s = machine_read_gbs(sizes[i], threads, &gbs);
        if (s) break;
        if (!o->json) {
            printf("reading %4zu MiB with %d threads: %7.2f GB/s\n", sizes[i] >> 20, threads, gbs);
            continue;
        }
        cJSON *row = j_object(&d, d.root, NULL);
        j_integer(&d, row, "bytes", (int64_t)sizes[i]);
        j_integer(&d, row, "threads", threads);
        j_number(&d, row, "read_gb_per_s", gbs);
    }
    if (o->json && !s) return j_print(&d, false);
    if (o->json) cJSON_Delete(d.root);
    return s;
}

sheaf_status cmd_bench(const options *o) {
    if (!o->bench_kind) return bench_model(o);
    if (!strcmp(o->bench_kind, "machine")) return bench_machine(o);
    static const struct {
        const char *kind, *hint;
    } not_yet[] = {
        {"collectives", "tests/bench/bench_collectives.c is a program that measures them: ./quickstart test, then "
                        "ninja -C build bench-collectives"},
        {"kernels", "tests/bench/bench_kernels.c is a program that measures them: ./quickstart test, then ninja -C "
                    "build bench-kernels"},
        {"scale", "repeat --devices: sheaf bench -m FILE --devices cpu --devices cpu/2"},
    };
    for (size_t i = 0; i < sizeof not_yet / sizeof *not_yet; i++) {
        if (strcmp(o->bench_kind, not_yet[i].kind)) continue;
        sheaf_status s = sheaf_fail(SHEAF_E_ARGUMENT, "options: bench %s: it is not there yet", o->bench_kind);
        return sheaf_error_hint(s, "%s", not_yet[i].hint);
    }
    sheaf_status s = sheaf_fail(SHEAF_E_ARGUMENT, "options: bench %s: unknown", o->bench_kind);
    return sheaf_error_hint(s, "available: sheaf bench -m FILE, sheaf bench machine");
}
