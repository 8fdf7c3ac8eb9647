/* What most commands open, in order: world, registry, devices, model, context; and close in reverse. */
#include <string.h>
#include <unistd.h>

#include "launch/launch.h"
#include "tensor/settings.h"

bool session_leads(const session *s) { return !s->world || sheaf_world_rank(s->world) == 0; }

typedef struct bar {
    const char *what;
    bool shown;
} bar;

/* A progress bar on a terminal, nothing elsewhere. */
static bool show_progress(void *ctx, float done) {
    bar *b = ctx;
    if (interrupted || terminated) return false;
    if (!b->shown) return true;
    int full = (int)(done * 40);
    fprintf(stderr, "\r%s [%-40.*s] %3d%%", b->what, full, "########################################",
            (int)(done * 100));
    if (done >= 1) fprintf(stderr, "\r%70s\r", "");
    return true;
}

static sheaf_status open_devices(session *s, const options *o, const char *list) {
    sheaf_open_options oo = {.n_threads = o->threads,
                             .cpu_level = o->cpu_level,
                             .n_parts = 1,
                             .idle = (o->bit & (CMD_SPLIT | CMD_GRAPH)) != 0};
    if (s->world) {
        oo.part = sheaf_world_host_rank(s->world);
        oo.n_parts = sheaf_world_host_size(s->world);
    }
    s->list = list ? list : "cpu";
    sheaf_status status = sheaf_registry_new(&s->registry);
    if (!status) status = sheaf_devices_open(s->registry, s->list, &oo, s->devices, SHEAF_MAX_DEVICES, &s->n_devices);
    if (status) return sheaf_error_context(status, "devices");
    if (o->split_mode && !strcmp(o->split_mode, "none") && s->n_devices > 1) { /* the first is all that is used */
        s->n_devices = 1;
        s->list = s->devices[0]->name;
    }
    return session_list_devices(s);
}

static sheaf_status open_model(session *s, const options *o, unsigned parts) {
    char *table = NULL;
    size_t table_bytes = 0;
    bar b = {"loading", isatty(STDERR_FILENO) && !o->quiet && session_leads(s)};
    if (!o->model) {
        sheaf_status status = sheaf_fail(SHEAF_E_ARGUMENT, "options: -m FILE: it is missing");
        return sheaf_error_hint(status, "the repository ships one: -m models/tiny/sheaf-tiny-q8_0.gguf");
    }
    if (o->split_table) {
        sheaf_status status = read_table(o->split_table, &table, &table_bytes);
        if (status) return status;
    }
    sheaf_model_options mo = {
        .registry = s->registry,
        .devices = s->devices,
        .n_devices = s->n_devices,
        .devices_name = s->list,
        .world = s->world,
        .split_mode = SHEAF_SPLIT_TENSOR,
        .tensor_split = o->n_share ? o->share : NULL,
        .n_tensor_split = o->n_share,
        .split_table = table,
        .split_table_bytes = table_bytes,
        .no_mmap = o->no_mmap,
        .no_data = (parts & SESSION_NO_DATA) != 0,
        .force_pretokenizer = o->force_pretokenizer,
        .progress = show_progress,
        .progress_ctx = &b,
    };
    if (o->split_mode && !strcmp(o->split_mode, "none")) mo.split_mode = SHEAF_SPLIT_NONE;
    double start = now_ms();
    sheaf_status status = sheaf_model_load(o->model, &mo, &s->model);
    s->load_ms = now_ms() - start;
    sheaf_free(table);
    if (!status && (o->bit & (CMD_RUN | CMD_PERPLEXITY)) && !sheaf_model_tokenizer(s->model))
        status = sheaf_fail(SHEAF_E_FORMAT, "%s: it has no vocabulary (key tokenizer.ggml.model)", o->model);
    return status ? sheaf_error_context(status, "loading") : SHEAF_OK;
}

/* What llama.cpp takes for a cache: every pair of them is tested. */
static sheaf_status cache_type(const char *name, const char *option, sheaf_type *out) {
    static const sheaf_type types[] = {SHEAF_F16,  SHEAF_F32,  SHEAF_BF16, SHEAF_Q8_0,  SHEAF_Q5_1,
                                       SHEAF_Q5_0, SHEAF_Q4_1, SHEAF_Q4_0, SHEAF_IQ4_NL};
    sheaf_type t;
    if (!name) return SHEAF_OK;
    bool known = sheaf_type_from_name(name, &t);
    for (size_t i = 0; known && i < sizeof types / sizeof *types; i++) {
        if (types[i] != t) continue;
        *out = t;
        return SHEAF_OK;
    }
    sheaf_status s = sheaf_fail(SHEAF_E_ARGUMENT, "options: %s %s: %s", option, name,
                                known ? "no type of a KV cache" : "unknown type");
    return sheaf_error_hint(s, "types of a KV cache: f16, f32, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl");
}

/* Positions that training never showed: the text usually falls apart there. */
static void warn_of_long_context(const session *s, const options *o) {
    int32_t trained = sheaf_model_hparams(s->model)->n_ctx_train;
    if (!(o->bit & (CMD_RUN | CMD_PERPLEXITY)) || trained < 1 || o->n_ctx <= trained || !session_leads(s)) return;
    sheaf_log(SHEAF_LOG_WARN, "-c %d: the model was trained for a context of %d; beyond it replies get worse", o->n_ctx,
              trained);
}

/* How many of the best logits decide a reply's next token; 0: all of them. End tokens that are to be ignored are
 * forbidden by a bias each. */
static int32_t best_needed(const session *s, const options *o) {
    size_t ends = 0;
    int32_t needs = sheaf_sampler_needs(&o->sampler, sheaf_model_hparams(s->model)->n_tokens);
    if (needs && o->ignore_eos) (void)sheaf_tokenizer_ends(sheaf_model_tokenizer(s->model), &ends);
    return ends > SHEAF_MAX_BEST || needs + (int32_t)ends > SHEAF_MAX_BEST ? 0 : needs + (int32_t)ends;
}

sheaf_status session_open_context(session *s, const options *o) {
    sheaf_context_options co = sheaf_context_defaults();
    co.n_ctx = o->n_ctx;
    co.n_batch = o->n_batch;
    co.n_ubatch = o->n_ubatch < o->n_batch ? o->n_ubatch : o->n_batch;
    if (o->bit == CMD_PERPLEXITY)
        co.n_batch = co.n_ubatch; /* every row's logits are read: hand over no more than run at once */
    co.n_outputs = o->bit == CMD_PERPLEXITY ? 0 : 1;
    if (o->bit & (CMD_RUN | CMD_GRAPH | CMD_BENCH | CMD_SPLIT)) co.n_best = best_needed(s, o);
    co.strict = o->strict;
    co.full_window = o->swa_full;
    sheaf_status status = cache_type(o->type_k, "-ctk", &co.type_k);
    if (!status) status = cache_type(o->type_v, "-ctv", &co.type_v);
    if (!status) warn_of_long_context(s, o);
    if (!status) status = sheaf_context_new(s->model, &co, &s->context);
    if (!status) session_tell(s, o);
    return status && status != SHEAF_E_ARGUMENT ? sheaf_error_context(status, "making a context") : status;
}

static bool stop_following(void *ctx) {
    (void)ctx;
    return interrupted || terminated;
}

sheaf_status session_follow(session *s) {
    sheaf_world_set_stop(s->world, stop_following, NULL);
    sheaf_status status = sheaf_follow(s->context);
    if (status) { /* rank 0 would otherwise wait for this one until its patience ends */
        sheaf_error_box box;
        sheaf_error_save(&box, status);
        sheaf_world_abandon(s->world, status);
        return sheaf_error_restore(&box);
    }
    return SHEAF_OK;
}

sheaf_status session_open(session *s, const options *o, const char *list, unsigned parts) {
    memset(s, 0, sizeof *s);
    sheaf_status status = SHEAF_OK;
    if (o->comm_timeout) status = sheaf_settings_set("SHEAF_COMM_TIMEOUT_MS", (int64_t)o->comm_timeout * 1000);
    if (!status) status = sheaf_world_open(&s->world);
    if (!status) status = open_devices(s, o, list);
    if (!status && (parts & SESSION_MODEL)) status = open_model(s, o, parts);
    if (!status && (parts & SESSION_CONTEXT)) status = session_open_context(s, o);
    if (status && s->world && sheaf_world_size(s->world) > 1) {
        sheaf_error_box box;
        sheaf_error_save(&box, status);
        sheaf_world_abandon(s->world, status);
        return sheaf_error_restore(&box);
    }
    return status;
}

void session_close(session *s) {
    sheaf_error_box why; /* what is said while parting is not why a command failed */
    sheaf_error_save(&why, SHEAF_OK);
    sheaf_context_free(s->context);
    sheaf_model_free(s->model);
    sheaf_registry_free(s->registry);
    sheaf_world_close(s->world);
    sheaf_error_restore(&why);
    memset(s, 0, sizeof *s);
}
