/* The loop that makes text: prompt through the context, draw, show whole characters, stop. */
#include <string.h>
#include <time.h>

#include "launch/generate.h"

/* End tokens are forbidden by bias when they are to be ignored. */
static sheaf_status make_sampler(generator *g) {
    sheaf_sampler_options so = g->o->sampler;
    size_t n = 0;
    const int32_t *ends = sheaf_tokenizer_ends(g->tok, &n);
    float *bias = NULL;
    if (!g->o->seed_given) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        so.seed = (uint64_t)t.tv_sec * 1000000007u ^ (uint64_t)t.tv_nsec;
    }
    if (g->o->ignore_eos && n) {
        bias = sheaf_malloc(n * sizeof *bias);
        if (!bias) return sheaf_fail(SHEAF_E_NO_MEMORY, "sampler: out of memory");
        for (size_t i = 0; i < n; i++) bias[i] = -__builtin_inff();
        so.bias_id = ends;
        so.bias = bias;
        so.n_bias = (int32_t)n;
    }
    if (so.repeat_last_n < 0) so.repeat_last_n = sheaf_n_ctx(g->s->context);
    int32_t n_tokens = sheaf_model_hparams(g->s->model)->n_tokens, needs = sheaf_sampler_needs(&so, n_tokens);
    g->best = needs > 0 && needs <= sheaf_n_best(g->s->context);
    sheaf_status s = sheaf_sampler_new(&so, n_tokens, &g->sampler);
    sheaf_free(bias);
    return s;
}

sheaf_status generator_open(generator *g, session *s, const options *o) {
    memset(g, 0, sizeof *g);
    g->s = s;
    g->o = o;
    g->tok = sheaf_model_tokenizer(s->model);
    sheaf_str stops[MAX_STOPS];
    for (int i = 0; i < o->n_stop; i++) stops[i] = (sheaf_str){o->stop[i], strlen(o->stop[i])};
    sheaf_status status = make_sampler(g);
    if (!status) status = sheaf_stops_new(stops, (size_t)o->n_stop, &g->stops);
    if (!status) status = prompt_cache_open(g);
    return status ? status : dump_open(o, s->context, &g->dump);
}

void generator_close(generator *g) {
    if (!g->s) return;
    dump_close(g->dump, g->s->context);
    sheaf_sampler_free(g->sampler);
    sheaf_stops_free(g->stops);
    sheaf_ids_free(&g->cached);
    sheaf_ids_free(&g->reply);
    sheaf_free(g->text);
    memset(g, 0, sizeof *g);
}

/* --- text ------------------------------------------------------------------------------------------------- */

static sheaf_status keep_text(generator *g, const char *s, size_t n) {
    if (g->text_n + n + 1 > g->text_cap) {
        size_t cap = (g->text_n + n + 1) * 2 + 65536;
        char *grown = sheaf_realloc(g->text, cap);
        if (!grown) return sheaf_fail(SHEAF_E_NO_MEMORY, "reply: %zu bytes of text", cap);
        g->text = grown;
        g->text_cap = cap;
    }
    memcpy(g->text + g->text_n, s, n);
    g->text_n += n;
    g->text[g->text_n] = 0;
    return SHEAF_OK;
}

static sheaf_status show(generator *g, const char *s, size_t n) {
    if (!n) return SHEAF_OK;
    if (g->print && (fwrite(s, 1, n, stdout) != n || fflush(stdout))) return stdout_failed();
    return keep_text(g, s, n);
}

/* Bytes to whole characters, in bites that the scratch surely holds. */
static sheaf_status show_bytes(generator *g, sheaf_str bytes) {
    sheaf_status status = SHEAF_OK;
    while (bytes.n && !status) {
        size_t bite = bytes.n < 1024 ? bytes.n : 1024;
        size_t n = sheaf_stream_push(&g->stream, bytes.s, bite, g->scratch);
        status = show(g, g->scratch, n);
        bytes.s += bite;
        bytes.n -= bite;
    }
    return status;
}

static sheaf_status end_text(generator *g) {
    bool hit = false;
    sheaf_status status = show_bytes(g, sheaf_stops_end(g->stops, &hit));
    if (hit) g->stop = "stop";
    char tail[8];
    size_t n = sheaf_stream_end(&g->stream, tail);
    return status ? status : show(g, tail, n);
}

/* --- tokens ------------------------------------------------------------------------------------------------- */

/* Ctrl-C is seen between batches; after the last one it is the caller's to see. */
static sheaf_status run_tokens(generator *g, const int32_t *ids, size_t n) {
    for (size_t at = 0; at < n;) {
        size_t bite = n - at < (size_t)g->o->n_batch ? n - at : (size_t)g->o->n_batch;
        sheaf_batch b = {.n = (int32_t)bite, .token = ids + at, .best = g->best};
        sheaf_status s = sheaf_decode(g->s->context, &b);
        if (!s) s = sheaf_ids_append(&g->cached, ids + at, bite);
        if (s) return s;
        at += bite;
        if (at < n && (interrupted || terminated)) return sheaf_fail(SHEAF_E_CANCELLED, "prompt: interrupted");
    }
    return SHEAF_OK;
}

/* A prompt that is empty, or leaves no room for a reply. */
static sheaf_status check_prompt(const generator *g, const sheaf_ids *prompt) {
    int32_t n_ctx = sheaf_n_ctx(g->s->context);
    if (!prompt->n) return sheaf_fail(SHEAF_E_RANGE, "prompt: it is empty");
    if (prompt->n < (size_t)n_ctx) return SHEAF_OK;
    sheaf_status s = sheaf_fail(SHEAF_E_RANGE, "prompt: %zu tokens do not fit the context of %d", prompt->n, n_ctx);
    return sheaf_error_hint(s, "%s-c N gives a longer context (the model was trained for %d)",
                            g->o->interactive ? "/clear forgets the conversation; " : "",
                            sheaf_model_hparams(g->s->model)->n_ctx_train);
}

/* Forgets what comes after *same tokens; all of it where that is not possible: layers with a window keep only the
 * recent past. */
static sheaf_status forget_after(generator *g, size_t *same) {
    sheaf_status s = sheaf_kv_remove(g->s->context, 0, (int32_t)*same, -1);
    if (s != SHEAF_E_RANGE || *same == 0) return s;
    *same = 0;
    return sheaf_kv_remove(g->s->context, 0, 0, -1);
}

/* Keeps of the cache what the new prompt begins with, runs the rest (at least its last token, for its logits). */
static sheaf_status run_prompt(generator *g, const sheaf_ids *prompt) {
    size_t same = 0;
    while (same < g->cached.n && same + 1 < prompt->n && g->cached.v[same] == prompt->v[same]) same++;
    sheaf_status s = forget_after(g, &same);
    if (s) return s;
    g->cached.n = same;
    for (size_t i = 0; i < prompt->n; i++) sheaf_sampler_accept(g->sampler, prompt->v[i]);
    double start = now_ms();
    s = run_tokens(g, prompt->v + same, prompt->n - same);
    g->prompt_ms = now_ms() - start;
    g->prompt_n = (int)prompt->n;
    g->prompt_run = (int)(prompt->n - same);
    if (!s && (interrupted || terminated)) s = sheaf_fail(SHEAF_E_CANCELLED, "prompt: interrupted");
    return s;
}

/* One token that was drawn: shown, then run for the next logits. *done when the reply is over. */
static sheaf_status take(generator *g, int32_t id, bool *done) {
    bool hit = false;
    sheaf_str text;
    sheaf_status s = sheaf_ids_append(&g->reply, &id, 1);
    if (s) return s;
    if (sheaf_token_is_end(g->tok, id)) {
        g->stop = "eos";
        *done = true;
        return SHEAF_OK;
    }
    sheaf_str piece = sheaf_token_piece(g->tok, id, false);
    s = sheaf_stops_push(g->stops, piece.s, piece.n, &text, &hit);
    if (!s) s = show_bytes(g, text);
    if (s) return s;
    bool full = g->cached.n + 1 >= (size_t)sheaf_n_ctx(g->s->context);
    bool enough = g->o->n_predict >= 0 && g->reply.n >= (size_t)g->o->n_predict;
    if (hit)
        g->stop = "stop";
    else if (full || enough)
        g->stop = "length", g->full = !enough;
    else if (interrupted || terminated)
        g->stop = "interrupt";
    *done = g->stop != NULL;
    return *done ? SHEAF_OK : run_tokens(g, &id, 1);
}

static sheaf_status draw(generator *g, int32_t *id) {
    int32_t n;
    if (!g->best) return sheaf_sample(g->sampler, sheaf_logits(g->s->context, 0), id);
    const sheaf_best *best = sheaf_logits_best(g->s->context, 0, &n);
    return sheaf_sample_best(g->sampler, best, n, id);
}

/* Draws and takes until the reply is over, counting what steady tokens cost. */
static sheaf_status run_reply(generator *g) {
    bool done = g->o->n_predict == 0;
    if (done) g->stop = "length";
    double start = now_ms();
    sheaf_status s = SHEAF_OK;
    while (!done && !s) {
        int32_t id;
        sheaf_context_stats before = sheaf_context_get_stats(g->s->context);
        int64_t calls = heap_calls();
        double at = now_ms();
        s = draw(g, &id);
        if (!s) s = take(g, id, &done);
        sheaf_context_stats after = sheaf_context_get_stats(g->s->context);
        if (after.graphs_reused > before.graphs_reused && g->reply.n > 4) {
            g->steady_calls += heap_calls() - calls;
            g->steady_tokens++;
            g->steady_logits_bytes += after.logits_bytes - before.logits_bytes;
            g->steady_ms += now_ms() - at;
            g->steady_device_ms += (double)(after.device_ns - before.device_ns) * 1e-6;
        }
    }
    g->reply_ms = now_ms() - start;
    return s;
}

/* Room for the whole reply up front, so that a steady token asks the heap for nothing. */
static sheaf_status make_room(generator *g, const sheaf_ids *prompt) {
    size_t n_ctx = (size_t)sheaf_n_ctx(g->s->context), left = n_ctx - prompt->n;
    size_t want = g->o->n_predict >= 0 && (size_t)g->o->n_predict < left ? (size_t)g->o->n_predict : left;
    size_t ids_cap = want + 1;
    if (g->reply.capacity < ids_cap) {
        int32_t *v = sheaf_realloc(g->reply.v, ids_cap * sizeof *v);
        if (!v) return sheaf_fail(SHEAF_E_NO_MEMORY, "reply: room for %zu tokens", ids_cap);
        g->reply.v = v;
        g->reply.capacity = ids_cap;
    }
    if (g->cached.capacity < prompt->n + ids_cap) {
        int32_t *v = sheaf_realloc(g->cached.v, (prompt->n + ids_cap) * sizeof *v);
        if (!v) return sheaf_fail(SHEAF_E_NO_MEMORY, "reply: room for %zu tokens", ids_cap);
        g->cached.v = v;
        g->cached.capacity = prompt->n + ids_cap;
    }
    return SHEAF_OK;
}

sheaf_status generate(generator *g, const sheaf_ids *prompt) {
    sheaf_status refused = check_prompt(g, prompt); /* the counters of the last reply stay */
    if (refused) return refused;
    g->text_n = g->reply.n = 0;
    g->stop = NULL;
    g->full = false;
    g->steady_calls = g->steady_tokens = 0;
    g->steady_logits_bytes = 0;
    g->steady_ms = g->steady_device_ms = g->reply_ms = 0;
    g->stream = (sheaf_stream){{0}, 0};
    sheaf_stops_reset(g->stops);
    sheaf_sampler_reset(g->sampler);
    sheaf_status s = keep_text(g, "", 0);
    if (!s) s = run_prompt(g, prompt);
    if (s == SHEAF_E_CANCELLED) g->stop = "interrupt";
    if (!s && !g->o->prompt_cache_all) s = prompt_cache_save(g);
    if (!s) s = make_room(g, prompt);
    if (!s) s = run_reply(g);
    if (!s) s = end_text(g);
    if (!s) s = sheaf_logits_fetch(g->s->context); /* the hash is of a whole row */
    if (!s) g->logits_hash = sheaf_logits_hash(g->s->context, 0);
    if (!s && g->o->prompt_cache_all) s = prompt_cache_save(g);
    return s;
}

sheaf_status render_chat(const session *s, const sheaf_message *m, size_t n, sheaf_ids *out) {
    sheaf_str source = sheaf_model_chat_template(s->model);
    const sheaf_tokenizer *tok = sheaf_model_tokenizer(s->model);
    sheaf_template *t = NULL;
    sheaf_rendered r = {0};
    if (!source.s) return sheaf_fail(SHEAF_E_NOT_FOUND, "chat: the file has no chat template");
    sheaf_chat c = {.messages = m,
                    .n_messages = n,
                    .add_generation_prompt = true,
                    .bos_token = sheaf_token_piece(tok, sheaf_tokenizer_bos(tok), true),
                    .eos_token = sheaf_token_piece(tok, sheaf_tokenizer_eos(tok), true)};
    sheaf_status status = sheaf_template_new(source.s, source.n, &t);
    if (!status) status = sheaf_template_render(t, &c, &r);
    if (!status) status = sheaf_tokenize_rendered(tok, &r, out);
    sheaf_rendered_free(&r);
    sheaf_template_free(t);
    return status ? sheaf_error_context(status, "chat template") : SHEAF_OK;
}
