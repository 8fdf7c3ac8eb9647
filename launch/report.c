/* What a run cost, for a person (stderr) and for a machine (stdout, CLI.md's keys). */
#include <string.h>

#include "launch/generate.h"
#include "launch/json.h"

static double rate(double n, double ms) { return ms > 0 ? n / ms * 1e3 : 0; }

/* Decode tokens: the first token of a reply comes from the prompt's logits. */
static double reply_rate(const generator *g) {
    return g->reply.n > 1 ? rate((double)(g->reply.n - 1), g->reply_ms) : 0;
}

/* Weights read per second, and what this machine can read from a buffer of that size now. */
static double measure(const generator *g, double *limit) {
    uint64_t bytes = sheaf_model_hparams(g->s->model)->active_bytes;
    double gbs = reply_rate(g) * (double)bytes / 1e9;
    if (machine_limit((size_t)bytes, session_threads(g->s), gbs, limit)) *limit = 0;
    return gbs;
}

void report(const generator *g, FILE *out) {
    double limit, gbs = measure(g, &limit);
    char share[64];
    fprintf(out, "\nload    %8.1f ms   %s on %s\n", g->s->load_ms, sheaf_model_hparams(g->s->model)->type, g->s->where);
    fprintf(out, "prompt  %8.1f ms   %d tokens (%d run)   %.1f tokens/s\n", g->prompt_ms, g->prompt_n, g->prompt_run,
            rate(g->prompt_run, g->prompt_ms));
    fprintf(out, "reply   %8.1f ms   %zu tokens   %.1f tokens/s   ended by %s", g->reply_ms, g->reply.n, reply_rate(g),
            g->stop);
    if (g->full) fprintf(out, ": the context of %d is full", sheaf_n_ctx(g->s->context));
    fprintf(out, "\nweights %8.2f GB/s of %.2f GB/s that this machine reads from a buffer of that size (%s)\n", gbs,
            limit, share_text(gbs, limit, share));
    fprintf(out, "logits  hash %016llx\n", (unsigned long long)g->logits_hash);
}

static void add_ids(jdoc *d, const char *key, const sheaf_ids *ids) {
    cJSON *list = j_array(d, d->root, key);
    for (size_t i = 0; i < ids->n; i++) j_integer(d, list, NULL, ids->v[i]);
}

static void add_timings(jdoc *d, const generator *g) {
    cJSON *t = j_object(d, d->root, "timings");
    j_number(d, t, "load_ms", g->s->load_ms);
    j_number(d, t, "prompt_ms", g->prompt_ms);
    j_number(d, t, "prompt_per_second", rate(g->prompt_run, g->prompt_ms));
    j_number(d, t, "predicted_ms", g->reply_ms);
    j_number(d, t, "predicted_per_second", reply_rate(g));
}

/* Of tokens that reused their graph; null where there were none, or where calls cannot be counted. */
static void add_steady(jdoc *d, const generator *g) {
    bool some = g->steady_tokens > 0;
    if (some && heap_calls() >= 0)
        j_number(d, d->root, "heap_allocs_per_token", (double)g->steady_calls / g->steady_tokens);
    else
        j_null(d, d->root, "heap_allocs_per_token");
    if (some)
        j_number(d, d->root, "logits_bytes_per_token", (double)g->steady_logits_bytes / g->steady_tokens);
    else
        j_null(d, d->root, "logits_bytes_per_token");
    if (some && g->steady_ms > 0)
        j_number(d, d->root, "overhead_share", 1 - g->steady_device_ms / g->steady_ms);
    else
        j_null(d, d->root, "overhead_share");
}

sheaf_status report_json(const generator *g, const sheaf_ids *prompt, bool line) {
    char hash[24];
    double limit, gbs = measure(g, &limit);
    jdoc d = j_new(false);
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)g->logits_hash);
    j_text(&d, d.root, "text", (sheaf_str){g->text, g->text_n});
    add_ids(&d, "prompt_tokens", prompt);
    add_ids(&d, "tokens", &g->reply);
    j_string(&d, d.root, "stop", g->stop);
    j_bool(&d, d.root, "context_full", g->full);
    j_string(&d, d.root, "logits_hash", hash);
    cJSON *devices = j_array(&d, d.root, "devices");
    for (int i = 0; i < g->s->n_all; i++) j_string(&d, devices, NULL, g->s->all[i].name);
    add_timings(&d, g);
    j_number(&d, d.root, "read_gb_per_s", gbs);
    j_number(&d, d.root, "limit_gb_per_s", limit);
    add_steady(&d, g);
    return j_print(&d, line);
}
