/* A context: KV cache, scheduler, and the journey of a batch to its logits.
 *
 *   decode: validate, complete the batch -> tell the other ranks -> for each micro-batch
 *           claim cells -> graph (reused or built) -> inputs -> compute -> rows of logits (outputs.c)
 *
 * In steady state (one token after another inside one KV bucket) that path builds nothing and allocates
 * nothing: the key of the graph stays the same [M4]. The KV length that a graph sees is rounded up to a
 * bucket, so that a plan lives for a whole bucket; the mask hides the rest.
 * Does not sample, does not know text. */
#include "models/model_internal.h"
#include "tensor/wait.h"

#include <string.h>

enum { KV_BUCKET = 256 };

/* --- making --------------------------------------------------------------------------------------------- */

sheaf_context_options sheaf_context_defaults(void) {
    return (sheaf_context_options){
        .n_batch = 2048, .n_ubatch = 512, .n_seq = 1, .n_outputs = 1, .type_k = SHEAF_F16, .type_v = SHEAF_F16};
}

static sheaf_status check_options(sheaf_context *c) {
    sheaf_context_options *o = &c->o;
    const sheaf_hparams *h = &c->model->hp;
    if (o->n_ctx == 0) o->n_ctx = h->n_ctx_train;
    if (o->n_batch == 0) o->n_batch = 2048;
    if (o->n_ubatch == 0) o->n_ubatch = 512;
    if (o->n_seq == 0) o->n_seq = 1;
    if (o->n_best < 0 || o->n_best > SHEAF_MAX_BEST)
        return sheaf_fail(SHEAF_E_ARGUMENT, "context: the %d best logits, 0 to %d are possible", o->n_best,
                          SHEAF_MAX_BEST);
    if (o->n_ctx < 1 || o->n_batch < 1 || o->n_ubatch < 1 || o->n_seq < 1 || o->n_outputs < 0)
        return sheaf_fail(SHEAF_E_ARGUMENT, "context of %d tokens, batch %d, micro-batch %d, %d sequences", o->n_ctx,
                          o->n_batch, o->n_ubatch, o->n_seq);
    if (o->n_batch > o->n_ctx) o->n_batch = o->n_ctx; /* no more can ever fit */
    if (o->n_ubatch > o->n_batch) o->n_ubatch = o->n_batch;
    if (o->n_outputs == 0 || o->n_outputs > o->n_ubatch) o->n_outputs = o->n_ubatch;
    const struct {
        sheaf_type type;
        int32_t head;
        const char *what;
    } kv[] = {{o->type_k, h->head_k, "keys"}, {o->type_v, h->head_v, "values"}};
    for (int i = 0; i < 2; i++) {
        if (!sheaf_type_valid(kv[i].type) || kv[i].type == SHEAF_F64)
            return sheaf_fail(SHEAF_E_UNSUPPORTED, "KV cache: type %d for %s not supported", (int)kv[i].type,
                              kv[i].what);
        if (kv[i].head % sheaf_type_block(kv[i].type))
            return sheaf_fail(SHEAF_E_UNSUPPORTED,
                              "KV cache: type %s for %s: heads of %d are no whole number of blocks",
                              sheaf_type_name(kv[i].type), kv[i].what, kv[i].head);
    }
    return SHEAF_OK;
}

/* Our own headers of the weights: sealing a graph writes into headers [M1]. */
static sheaf_status copy_weights(sheaf_context *c) {
    const sheaf_model *m = c->model;
    sheaf_status s = sheaf_arena_new(64 << 10, &c->arena);
    if (s) return s;
    c->weight = sheaf_calloc((size_t)m->n_weights, sizeof(sheaf_tensor *));
    if (!c->weight) return sheaf_fail(SHEAF_E_NO_MEMORY, "no memory for %d headers", m->n_weights);
    for (int32_t i = 0; i < m->n_weights; i++) {
        c->weight[i] = sheaf_dup(c->arena, m->weight[i]);
        if (!c->weight[i]) return sheaf_arena_status(c->arena);
        *c->weight[i] = *m->weight[i];
        c->weight[i]->index = -1;
    }
    return SHEAF_OK;
}

/* Cells of windowed layers: what a token of each sequence may see, and the tokens that are written meanwhile. */
static int32_t count_window_cells(const sheaf_context *c) {
    if (c->model->n_windowed == 0) return 0;
    int64_t n = (int64_t)c->o.n_seq * c->model->hp.window + c->o.n_ubatch;
    return c->o.full_window || n > c->o.n_ctx ? c->o.n_ctx : (int32_t)n;
}

int32_t context_layer_cells(const sheaf_context *c, int32_t il) {
    return c->model->windowed && c->model->windowed[il] ? count_window_cells(c) : c->o.n_ctx;
}

static sheaf_tensor *cache_tensor(sheaf_context *c, sheaf_type type, int64_t row, int32_t il, const char *name) {
    sheaf_tensor *t = sheaf_new_2d(c->state, type, row, context_layer_cells(c, il));
    return sheaf_set_flag(sheaf_set_name(t, "%s", name), SHEAF_FLAG_STATE);
}

static sheaf_status make_cache(sheaf_context *c) {
    const sheaf_model *m = c->model;
    const sheaf_hparams *h = &m->hp;
    sheaf_status s = sheaf_arena_new(16 << 10, &c->state);
    if (s) return s;
    c->cache_k = sheaf_calloc((size_t)h->n_layer, sizeof(sheaf_tensor *));
    c->cache_v = sheaf_calloc((size_t)h->n_layer, sizeof(sheaf_tensor *));
    if (!c->cache_k || !c->cache_v) return sheaf_fail(SHEAF_E_NO_MEMORY, "no memory for a KV cache");
    for (int32_t il = 0; il < h->n_layer; il++) {
        int64_t heads = h->layer[il].n_head_kv;
        c->cache_k[il] = cache_tensor(c, c->o.type_k, heads * h->head_k, il, m->kv_name[2 * il]);
        c->cache_v[il] = cache_tensor(c, c->o.type_v, heads * model_cached_v(m), il, m->kv_name[2 * il + 1]);
        if (!c->cache_k[il] || !c->cache_v[il]) return sheaf_arena_status(c->state);
    }
    if (!m->no_data) s = model_need_memory(m, c->state);
    /* the numbers of cells are written at once: only of a cache that can be */
    if (!s) s = kv_cells_init(&c->cells, c->o.n_ctx, c->o.n_seq);
    if (!s && m->n_windowed > 0) s = kv_cells_init(&c->window_cells, count_window_cells(c), c->o.n_seq);
    if (!s) s = sheaf_arena_place_all(c->state, m->device->buffer_type, SHEAF_USAGE_STATE, &c->kv);
    /* Cells that nobody wrote are masked, but 0 x NaN is NaN: they must hold numbers. */
    if (!s && !m->no_data) s = sheaf_buffer_clear(c->kv, 0);
    return s ? sheaf_error_context(s, "KV cache of %d tokens on %s", c->o.n_ctx, m->device->name) : SHEAF_OK;
}

static sheaf_status make_scheduler(sheaf_context *c) {
    sheaf_status s = sheaf_backend_new(c->model->device, &c->backend);
    if (!s && c->model->is_meta) sheaf_meta_set_strict(c->backend, c->o.strict);
    if (!s) s = sheaf_backend_new(c->model->host, &c->host);
    if (s) return s;
    sheaf_sched_options o = {0};
    return sheaf_sched_new((sheaf_backend *const[]){c->backend, c->host}, 2, &o, &c->sched);
}

static sheaf_status make_batch(sheaf_context *c) {
    size_t n = (size_t)c->o.n_batch, members = (size_t)c->model->n_members;
    full_batch *b = &c->batch;
    b->token = sheaf_malloc(n * sizeof *b->token);
    b->pos = sheaf_malloc(n * sizeof *b->pos);
    b->seq = sheaf_malloc(n * sizeof *b->seq);
    b->want = sheaf_malloc(n);
    c->claimed = sheaf_malloc(n * sizeof *c->claimed);
    c->window_claimed = sheaf_malloc(n * sizeof *c->window_claimed);
    c->plan_compute = sheaf_calloc(members, sizeof *c->plan_compute);
    c->plan_staging = sheaf_calloc(members, sizeof *c->plan_staging);
    if (!b->token || !b->pos || !b->seq || !b->want || !c->claimed || !c->window_claimed || !c->plan_compute ||
        !c->plan_staging)
        return sheaf_fail(SHEAF_E_NO_MEMORY, "no memory for a batch of %zu tokens", n);
    return SHEAF_OK;
}

/* --- graphs --------------------------------------------------------------------------------------------- */

static int32_t bucket(int32_t used, int32_t cells) {
    int64_t up = ((int64_t)used + KV_BUCKET - 1) / KV_BUCKET * KV_BUCKET;
    if (up < KV_BUCKET) up = KV_BUCKET;
    return up > cells ? cells : (int32_t)up;
}

/* Of the graph for n tokens where cells below n_kv, and of windowed layers below n_window, are in use. */
static graph_key key_of(const sheaf_context *c, int32_t n, int32_t n_kv, int32_t n_window, int32_t n_out,
                        int32_t n_best) {
    const sheaf_model *m = c->model;
    return (graph_key){.n_tokens = n,
                       .n_kv = m->n_windowed < m->hp.n_layer ? bucket(n_kv, c->cells.n) : 0,
                       .n_window = m->n_windowed > 0 ? bucket(n_window, c->window_cells.n) : 0,
                       .n_out = n_out,
                       .n_best = n_best};
}

/* Builds the graph of `key` in the arena whose turn it is. */
static sheaf_status build_graph(sheaf_context *c, graph_key key, graph_build *b) {
    sheaf_arena *a = c->graphs[c->turn ^= 1];
    sheaf_arena_reset(a);
    *b = (graph_build){.model = c->model,
                       .hp = &c->model->hp,
                       .arena = a,
                       .weight = c->weight,
                       .cache_k = c->cache_k,
                       .cache_v = c->cache_v,
                       .n_ctx = c->o.n_ctx,
                       .key = key};
    sheaf_status s = sheaf_graph_new(a, 64 + 32 * c->model->hp.n_layer, &b->graph);
    if (s) return s;
    graph_inputs_make(b);
    c->model->arch->build(b);
    outputs_mark(c, b);
    s = sheaf_arena_status(a);
    if (!s) s = b->status;
    if (!s) s = sheaf_graph_seal(b->graph);
    return s ? sheaf_error_context(s, "building the graph of %d tokens", key.n_tokens) : SHEAF_OK;
}

/* Makes the graph of `key` the allocated one. */
static sheaf_status use_graph(sheaf_context *c, graph_key key) {
    if (!memcmp(&key, &c->key, sizeof key)) {
        c->stats.graphs_reused++;
        return SHEAF_OK;
    }
    graph_build b;
    c->key = (graph_key){0};
    sheaf_status s = build_graph(c, key, &b);
    if (!s) s = sheaf_sched_alloc(c->sched, b.graph);
    if (s) return s;
    c->key = key;
    c->in = b.in;
    c->logits_node = b.logits;
    c->best_node = b.best;
    c->stats.graphs_built++;
    return SHEAF_OK;
}

/* Largest plan so far, per member. */
static void note_plans(sheaf_context *c) {
    sheaf_backend *be;
    const sheaf_prepared *p;
    for (int i = 0; c->model->is_meta && (p = sheaf_sched_prepared(c->sched, i, &be)); i++) {
        if (be != c->backend) continue;
        sheaf_plan_info info = sheaf_plan_get_info(sheaf_meta_plan(p));
        for (int d = 0; d < c->model->n_members; d++) {
            if (info.compute_bytes[d] > c->plan_compute[d]) c->plan_compute[d] = info.compute_bytes[d];
            if (info.staging_bytes[d] > c->plan_staging[d]) c->plan_staging[d] = info.staging_bytes[d];
        }
    }
}

static sheaf_status reserve(sheaf_context *c, int32_t n_tokens, int32_t n_out, int32_t *nodes, int32_t *splits) {
    graph_build b;
    sheaf_status s = build_graph(c, key_of(c, n_tokens, c->cells.n, c->window_cells.n, n_out, c->o.n_best), &b);
    if (!s) s = sheaf_sched_reserve(c->sched, b.graph);
    if (s) return s;
    sheaf_sched_stats st = sheaf_sched_get_stats(c->sched);
    *nodes = b.graph->n_nodes;
    *splits = st.n_splits;
    note_plans(c);
    return SHEAF_OK;
}

/* Prompt, token, prompt: the last one leaves the memory laid out for the larger graph, so that the first
 * prompt finds it so. */
static sheaf_status reserve_all(sheaf_context *c) {
    sheaf_context_stats *st = &c->stats;
    sheaf_status s = reserve(c, c->o.n_ubatch, c->o.n_outputs, &st->nodes_prompt, &st->splits_prompt);
    if (!s) s = reserve(c, 1, 1, &st->nodes_token, &st->splits_token);
    if (!s) s = reserve(c, c->o.n_ubatch, c->o.n_outputs, &st->nodes_prompt, &st->splits_prompt);
    return s ? sheaf_error_context(s, "reserving compute memory on %s", c->model->device->name) : SHEAF_OK;
}

sheaf_status sheaf_context_new(sheaf_model *m, const sheaf_context_options *o, sheaf_context **out) {
    *out = NULL;
    sheaf_context *c = sheaf_calloc(1, sizeof *c);
    if (!c) return sheaf_fail(SHEAF_E_NO_MEMORY, "no memory for a context");
    c->model = m;
    c->o = *o;
    sheaf_status s = check_options(c);
    if (!s) s = copy_weights(c);
    if (!s) s = make_cache(c);
    if (!s) s = make_batch(c);
    if (!s) s = outputs_init(c);
    if (!s) s = sheaf_arena_new(256 << 10, &c->graphs[0]);
    if (!s) s = sheaf_arena_new(256 << 10, &c->graphs[1]);
    s = follow_agree(m->world, s); /* what follows meets the other ranks */
    if (!s) s = make_scheduler(c);
    if (!s) s = reserve_all(c);
    if (!s) s = outputs_reserve(c, 1, c->o.n_best > 0);
    s = follow_agree(m->world, s);
    if (s) {
        sheaf_error_box box;
        sheaf_error_save(&box, s);
        sheaf_context_free(c);
        return sheaf_error_restore(&box);
    }
    c->ready = true;
    *out = c;
    return SHEAF_OK;
}

void sheaf_context_free(sheaf_context *c) {
    if (!c) return;
    if (c->ready && follow_leads(c)) (void)follow_send(c, FOLLOW_END, 0, 0, 0);
    sheaf_sched_free(c->sched);
    sheaf_backend_free(c->host);
    sheaf_backend_free(c->backend);
    sheaf_arena_free(c->graphs[1]);
    sheaf_arena_free(c->graphs[0]);
    sheaf_buffer_free(c->kv);
    sheaf_free(c->cache_v);
    sheaf_free(c->cache_k);
    sheaf_arena_free(c->state);
    sheaf_free(c->weight);
    sheaf_arena_free(c->arena);
    kv_cells_free(&c->window_cells);
    kv_cells_free(&c->cells);
    sheaf_free(c->window_claimed);
    sheaf_free(c->claimed);
    sheaf_free(c->batch.token);
    sheaf_free(c->batch.pos);
    sheaf_free(c->batch.seq);
    sheaf_free(c->batch.want);
    sheaf_free(c->plan_compute);
    sheaf_free(c->plan_staging);
    outputs_free(c);
    sheaf_free(c);
}

/* --- decode --------------------------------------------------------------------------------------------- */

/* Do windowed layers hold all that a token at `pos` of the sequence sees [M5]? */
static bool context_can_go_on(const sheaf_context *c, int32_t seq, int32_t pos) {
    return c->window_cells.n == 0 || pos == 0 || c->window_cells.lost[seq] <= 0 ||
           c->window_cells.lost[seq] <= pos - c->model->hp.window + 1;
}

static sheaf_status complete_token(sheaf_context *c, const sheaf_batch *b, int32_t i) {
    full_batch *f = &c->batch;
    int32_t token = b->token[i], seq = b->seq ? b->seq[i] : 0;
    if (token < 0 || token >= c->model->hp.n_vocab)
        return sheaf_fail(SHEAF_E_RANGE, "token %d of the batch: id %d is outside the vocabulary of %d", i, token,
                          c->model->hp.n_vocab);
    if (seq < 0 || seq >= c->o.n_seq)
        return sheaf_fail(SHEAF_E_RANGE, "token %d of the batch: sequence %d of %d", i, seq, c->o.n_seq);
    int32_t *next = &c->cells.ahead[seq], pos = b->pos ? b->pos[i] : *next;
    if (pos < *next || pos == INT32_MAX)
        return sheaf_fail(SHEAF_E_ARGUMENT, "token %d of the batch: position %d of sequence %d, expected at least %d",
                          i, pos, seq, *next);
    if (!context_can_go_on(c, seq, pos))
        return sheaf_fail(SHEAF_E_RANGE,
                          "token %d of the batch: position %d of sequence %d sees positions that layers with a window "
                          "hold no longer; remove the whole sequence first",
                          i, pos, seq);
    if (c->model->arch->learned_positions && pos >= c->model->hp.n_ctx_train)
        return sheaf_fail(SHEAF_E_RANGE, "token %d of the batch: position %d, the model has %d", i, pos,
                          c->model->hp.n_ctx_train);
    *next = pos + 1;
    f->token[i] = token;
    f->seq[i] = seq;
    f->pos[i] = pos;
    f->want[i] = b->want ? b->want[i] != 0 : i == b->n - 1;
    return SHEAF_OK;
}

/* Fills c->batch from the caller's, or says what is wrong with it; changes nothing else. */
static sheaf_status complete_batch(sheaf_context *c, const sheaf_batch *b) {
    if (b->n <= 0 || !b->token) return sheaf_fail(SHEAF_E_ARGUMENT, "a batch of %d tokens, expected at least 1", b->n);
    if (b->n > c->o.n_ctx - c->cells.used)
        return sheaf_fail(SHEAF_E_RANGE, "%d tokens do not fit the context: %d of %d cells are free", b->n,
                          c->o.n_ctx - c->cells.used, c->o.n_ctx);
    if (b->n > c->o.n_batch)
        return sheaf_fail(SHEAF_E_ARGUMENT, "a batch of %d tokens, expected 1 to %d", b->n, c->o.n_batch);
    if (b->best && c->o.n_best < 1)
        return sheaf_fail(SHEAF_E_ARGUMENT, "the best logits are wanted of a context that was made for none (n_best)");
    memcpy(c->cells.ahead, c->cells.next, (size_t)c->o.n_seq * sizeof *c->cells.ahead);
    c->batch.n = b->n;
    c->batch.best = b->best;
    sheaf_status s = SHEAF_OK;
    for (int32_t i = 0; i < b->n && !s; i++) s = complete_token(c, b, i);
    return s;
}

/* How many tokens from `first` run together: a micro-batch, with no more wanted rows than were reserved. */
static int32_t ubatch_length(const sheaf_context *c, int32_t first, int32_t *wanted) {
    int32_t n = 0;
    *wanted = 0;
    while (n < c->o.n_ubatch && first + n < c->batch.n) {
        bool want = c->batch.want[first + n];
        if (want && *wanted == c->o.n_outputs) break;
        *wanted += want;
        n++;
    }
    return n;
}

static void claim_cells(sheaf_context *c, int32_t first, int32_t n) {
    int32_t *next = c->cells.ahead; /* where each sequence is before this micro-batch */
    memcpy(next, c->cells.next, (size_t)c->o.n_seq * sizeof *next);
    for (int32_t i = first; i < first + n; i++) {
        int32_t seq = c->batch.seq[i], pos = c->batch.pos[i];
        c->claimed[c->n_claimed] = kv_cells_claim(&c->cells, seq, pos);
        if (c->window_cells.n)
            c->window_claimed[c->n_claimed] =
                kv_cells_claim_windowed(&c->window_cells, seq, pos, c->model->hp.window, next);
        c->n_claimed++;
    }
}

static sheaf_status run_ubatch(sheaf_context *c, int32_t first, int32_t n, int32_t wanted) {
    claim_cells(c, first, n);
    int32_t n_out = wanted ? wanted : 1, n_best = c->batch.best ? c->o.n_best : 0;
    sheaf_status s = use_graph(c, key_of(c, n, c->cells.high, c->window_cells.high, n_out, n_best));
    if (!s) s = graph_inputs_fill(c, first, n);
    if (!s) s = sheaf_sched_compute(c->sched);
    if (s) return s;
    uint64_t before = (uint64_t)sheaf_now_ns();
    s = sheaf_sched_synchronize(c->sched);
    c->stats.device_ns += (uint64_t)sheaf_now_ns() - before;
    return s ? s : outputs_take(c, wanted);
}

/* Gives back the cells of a batch that failed [M3]: of each sequence, all from its first token in the batch on. */
static void drop_claimed(sheaf_context *c) {
    for (int32_t i = 0; i < c->n_claimed; i++) {
        int32_t seq = c->batch.seq[i], pos = c->batch.pos[i];
        if (pos < c->cells.next[seq]) context_kv_remove(c, seq, pos, -1);
    }
}

sheaf_status context_run_batch(sheaf_context *c) {
    uint64_t start = (uint64_t)sheaf_now_ns(), waited = c->stats.device_ns;
    int32_t rows = 0;
    for (int32_t i = 0; i < c->batch.n; i++) rows += c->batch.want[i];
    c->n_claimed = 0;
    c->out.n = c->out.last = 0;
    sheaf_status s = outputs_reserve(c, rows, c->batch.best);
    for (int32_t first = 0, n; first < c->batch.n && !s; first += n) {
        int32_t wanted;
        n = ubatch_length(c, first, &wanted);
        s = run_ubatch(c, first, n, wanted);
    }
    s = follow_agree(c->model->world, s);
    if (s) {
        drop_claimed(c);
        c->out.n = c->out.last = 0;
    }
    c->stats.decodes++;
    c->stats.overhead_ns += (uint64_t)sheaf_now_ns() - start - (c->stats.device_ns - waited);
    return s;
}

sheaf_status sheaf_decode(sheaf_context *c, const sheaf_batch *b) {
    sheaf_status s = complete_batch(c, b);
    if (!s && follow_leads(c)) s = follow_send_batch(c);
    return s ? s : context_run_batch(c);
}

/* --- asking --------------------------------------------------------------------------------------------- */

int32_t sheaf_n_ctx(const sheaf_context *c) { return c->o.n_ctx; }
int32_t sheaf_kv_used(const sheaf_context *c, int32_t seq) {
    return seq < 0 || seq >= c->o.n_seq ? 0 : c->cells.count[seq];
}

void context_kv_clear(sheaf_context *c) {
    kv_cells_clear(&c->cells);
    if (c->window_cells.n) kv_cells_clear(&c->window_cells);
}

sheaf_status sheaf_kv_clear(sheaf_context *c) {
    sheaf_status s = follow_leads(c) ? follow_send(c, FOLLOW_CLEAR, 0, 0, 0) : SHEAF_OK;
    if (!s) context_kv_clear(c);
    return s;
}

void context_kv_remove(sheaf_context *c, int32_t seq, int32_t p0, int32_t p1) {
    kv_cells_remove(&c->cells, seq, p0, p1);
    if (!c->window_cells.n) return;
    kv_cells_remove(&c->window_cells, seq, p0, p1);
    if (c->cells.count[seq] == 0) c->window_cells.lost[seq] = 0;
}

/* A removal after which the sequence could not go on changes nothing. */
static sheaf_status check_removal(const sheaf_context *c, int32_t seq, int32_t p0, int32_t p1) {
    if (seq < 0 || seq >= c->o.n_seq) return sheaf_fail(SHEAF_E_RANGE, "sequence %d of %d", seq, c->o.n_seq);
    int32_t next = kv_cells_next_without(&c->cells, seq, p0, p1);
    if (next == c->cells.next[seq] || context_can_go_on(c, seq, next)) return SHEAF_OK;
    return sheaf_fail(
        SHEAF_E_RANGE,
        "sequence %d cannot go on at position %d: layers with a window hold nothing before position %d any "
        "more; remove all of it",
        seq, next, c->window_cells.lost[seq]);
}

sheaf_status sheaf_kv_remove(sheaf_context *c, int32_t seq, int32_t p0, int32_t p1) {
    /* checked before it is sent: a wrong argument here must not end the ranks that follow */
    sheaf_status s = check_removal(c, seq, p0, p1);
    if (!s && follow_leads(c)) s = follow_send(c, FOLLOW_REMOVE, seq, p0, p1);
    if (!s) context_kv_remove(c, seq, p0, p1);
    return s;
}

sheaf_context_stats sheaf_context_get_stats(const sheaf_context *c) { return c->stats; }
sheaf_sched *sheaf_context_sched(sheaf_context *c) { return c->sched; }
sheaf_backend *sheaf_context_backend(sheaf_context *c) { return c->backend; }

sheaf_status sheaf_context_graph(sheaf_context *c, int32_t n_tokens, int32_t n_kv, sheaf_graph **out) {
    if (n_tokens < 1 || n_tokens > c->o.n_ubatch || n_kv < n_tokens || n_kv > c->o.n_ctx)
        return sheaf_fail(SHEAF_E_ARGUMENT, "a graph of %d tokens at %d of %d (micro-batch %d)", n_tokens, n_kv,
                          c->o.n_ctx, c->o.n_ubatch);
    graph_build b;
    c->key = (graph_key){0};
    c->out.n = c->out.last = 0; /* the graph that held them is gone */
    int32_t n_out = n_tokens < c->o.n_outputs ? n_tokens : c->o.n_outputs;
    sheaf_status s = build_graph(c, key_of(c, n_tokens, n_kv, n_kv, n_out, c->o.n_best), &b);
    if (!s) s = sheaf_sched_alloc(c->sched, b.graph);
    if (!s) *out = b.graph;
    return s;
}
