/* What a run cost, for a person (stderr) and for a machine (stdout, CLI.md's keys). */
#include <cjson/cJSON.h>
#include <string.h>

#include "launch/generate.h"

static double rate(double n, double ms) { return ms > 0 ? n / ms * 1e3 : 0; }

/* Decode tokens: the first token of a reply comes from the prompt's logits. */
static double reply_rate(const generator *g) {
    return g->reply.n > 1 ? rate((double)(g->reply.n - 1), g->reply_ms) : 0;
}

typedef struct speed {
    double gbs, limit, share;
    bool known;
} speed;

/* Weights read per second against what this machine can read from a buffer of that size now. */
static speed measure(const generator *g) {
    speed v = {0};
    uint64_t bytes = sheaf_model_hparams(g->s->model)->active_bytes;
    int threads = 0;
    for (int i = 0; i < g->s->n_devices; i++) threads += g->s->devices[i]->n_threads;
    v.gbs = reply_rate(g) * (double)bytes / 1e9;
    v.known = machine_read_gbs((size_t)bytes, threads, &v.limit) == SHEAF_OK && v.limit > 0;
    v.share = v.known ? v.gbs / v.limit : 0;
    return v;
}

void report(const generator *g, FILE *out) {
    speed v = measure(g);
    fprintf(out, "\nload    %8.1f ms   %s on %s\n", g->s->load_ms, sheaf_model_hparams(g->s->model)->type, g->s->list);
    fprintf(out, "prompt  %8.1f ms   %d tokens (%d run)   %.1f tokens/s\n", g->prompt_ms, g->prompt_n, g->prompt_run,
            rate(g->prompt_run, g->prompt_ms));
    fprintf(out, "reply   %8.1f ms   %zu tokens   %.1f tokens/s   ended by %s\n", g->reply_ms, g->reply.n,
            reply_rate(g), g->stop);
    fprintf(out, "weights %8.2f GB/s of %.2f GB/s that this machine reads from a buffer of that size (%.1f %%)\n",
            v.gbs, v.limit, v.share * 100);
    fprintf(out, "logits  hash %016llx\n", (unsigned long long)g->logits_hash);
}

static cJSON *ids_json(const sheaf_ids *ids) { return cJSON_CreateIntArray(ids->v, (int)ids->n); }

static bool add_timings(cJSON *root, const generator *g) {
    cJSON *t = cJSON_AddObjectToObject(root, "timings");
    return t && cJSON_AddNumberToObject(t, "load_ms", g->s->load_ms) &&
           cJSON_AddNumberToObject(t, "prompt_ms", g->prompt_ms) &&
           cJSON_AddNumberToObject(t, "prompt_per_second", rate(g->prompt_run, g->prompt_ms)) &&
           cJSON_AddNumberToObject(t, "predicted_ms", g->reply_ms) &&
           cJSON_AddNumberToObject(t, "predicted_per_second", reply_rate(g));
}

static bool add_steady(cJSON *root, const generator *g) {
    bool counted = heap_calls() >= 0 && g->steady_tokens > 0;
    bool timed = g->steady_tokens > 0 && g->steady_ms > 0;
    cJSON *a = counted
                   ? cJSON_AddNumberToObject(root, "heap_allocs_per_token", (double)g->steady_calls / g->steady_tokens)
                   : cJSON_AddNullToObject(root, "heap_allocs_per_token");
    cJSON *b = timed ? cJSON_AddNumberToObject(root, "overhead_share", 1 - g->steady_device_ms / g->steady_ms)
                     : cJSON_AddNullToObject(root, "overhead_share");
    return a && b;
}

static bool add_devices(cJSON *root, const session *s) {
    cJSON *list = cJSON_AddArrayToObject(root, "devices");
    for (int i = 0; list && i < s->n_devices; i++)
        if (!cJSON_AddItemToArray(list, cJSON_CreateString(s->devices[i]->name))) return false;
    return list != NULL;
}

static bool fill(cJSON *root, const generator *g, const sheaf_ids *prompt) {
    char hash[24];
    speed v = measure(g);
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)g->logits_hash);
    return root && cJSON_AddStringToObject(root, "text", g->text) &&
           cJSON_AddItemToObject(root, "prompt_tokens", ids_json(prompt)) &&
           cJSON_AddItemToObject(root, "tokens", ids_json(&g->reply)) &&
           cJSON_AddStringToObject(root, "stop", g->stop) && cJSON_AddStringToObject(root, "logits_hash", hash) &&
           add_devices(root, g->s) && add_timings(root, g) && cJSON_AddNumberToObject(root, "read_gb_per_s", v.gbs) &&
           cJSON_AddNumberToObject(root, "limit_gb_per_s", v.limit) && add_steady(root, g);
}

sheaf_status report_json(const generator *g, const sheaf_ids *prompt, bool line) {
    cJSON *root = cJSON_CreateObject();
    char *text = fill(root, g, prompt) ? (line ? cJSON_PrintUnformatted(root) : cJSON_Print(root)) : NULL;
    cJSON_Delete(root);
    if (!text) return sheaf_fail(SHEAF_E_NO_MEMORY, "writing JSON: out of memory");
    puts(text);
    cJSON_free(text);
    return SHEAF_OK;
}
