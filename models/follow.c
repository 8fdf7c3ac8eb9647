/* Many processes, one stream of batches: rank 0 decides, the others follow.
 *
 * Before rank 0 runs something it broadcasts a small message; then all ranks run the same thing, and
 * meet in the collectives of the plan. Afterwards they exchange their statuses, so that a batch failed
 * anywhere is dropped everywhere and the caches stay equal. A message is of fixed size and holds the
 * tokens of a small batch; a larger one follows in a second broadcast. */
#include "models/model_internal.h"

#include <string.h>

enum { INLINE_TOKENS = 8 };

typedef struct follow_token {
    int32_t token, pos, seq, want;
} follow_token;

typedef struct follow_message {
    int32_t op, n, a, b; /* decode: n tokens, a: their best logits only; remove: sequence n, positions a to b */
    follow_token token[INLINE_TOKENS];
} follow_message;

static int size_of(const sheaf_world *w) { return w ? sheaf_world_size(w) : 1; }
static int world_size(const sheaf_context *c) { return size_of(c->model->world); }

bool follow_leads(const sheaf_context *c) { return world_size(c) > 1 && sheaf_world_rank(c->model->world) == 0; }

sheaf_status follow_send(sheaf_context *c, follow_op op, int32_t a, int32_t b, int32_t d) {
    follow_message m = {.op = (int32_t)op, .n = a, .a = b, .b = d};
    return sheaf_world_broadcast(c->model->world, &m, sizeof m);
}

static follow_token token_of(const full_batch *f, int32_t i) {
    return (follow_token){f->token[i], f->pos[i], f->seq[i], f->want[i]};
}

static void take_token(full_batch *f, int32_t i, const follow_token *t) {
    f->token[i] = t->token;
    f->pos[i] = t->pos;
    f->seq[i] = t->seq;
    f->want[i] = (uint8_t)t->want;
}

sheaf_status follow_send_batch(sheaf_context *c) {
    const full_batch *f = &c->batch;
    follow_message m = {.op = FOLLOW_DECODE, .n = f->n, .a = f->best};
    for (int32_t i = 0; i < f->n && i < INLINE_TOKENS; i++) m.token[i] = token_of(f, i);
    sheaf_status s = sheaf_world_broadcast(c->model->world, &m, sizeof m);
    for (int32_t at = INLINE_TOKENS; at < f->n && !s;) {
        follow_token piece[256];
        int32_t n = 0;
        while (n < 256 && at < f->n) piece[n++] = token_of(f, at++);
        s = sheaf_world_broadcast(c->model->world, piece, (size_t)n * sizeof *piece);
    }
    return s;
}

/* What rank 0 sent is trusted no more than a file: a rank of another build may be speaking. */
static sheaf_status receive_batch(sheaf_context *c, const follow_message *m) {
    full_batch *f = &c->batch;
    if (m->n < 1 || m->n > c->o.n_batch || m->n > c->o.n_ctx - c->cells.used)
        return sheaf_fail(SHEAF_E_PEER, "rank 0 sent a batch of %d tokens, which does not fit here", m->n);
    if (m->a && c->o.n_best < 1) return sheaf_fail(SHEAF_E_PEER, "rank 0 wants the best logits, here none are found");
    f->n = m->n;
    f->best = m->a != 0;
    for (int32_t i = 0; i < f->n && i < INLINE_TOKENS; i++) take_token(f, i, &m->token[i]);
    sheaf_status s = SHEAF_OK;
    for (int32_t at = INLINE_TOKENS; at < f->n && !s;) {
        follow_token piece[256];
        int32_t n = f->n - at < 256 ? f->n - at : 256;
        s = sheaf_world_broadcast(c->model->world, piece, (size_t)n * sizeof *piece);
        for (int32_t i = 0; i < n && !s; i++) take_token(f, at++, &piece[i]);
    }
    for (int32_t i = 0; i < f->n && !s; i++)
        if (f->token[i] < 0 || f->token[i] >= c->model->hp.n_vocab || f->seq[i] < 0 || f->seq[i] >= c->o.n_seq ||
            f->pos[i] < 0)
            s = sheaf_fail(SHEAF_E_PEER, "rank 0 sent token %d, sequence %d, position %d", f->token[i], f->seq[i],
                           f->pos[i]);
    return s;
}

/* One message's worth of work. *end: rank 0 has closed its context. */
static sheaf_status obey(sheaf_context *c, bool *end) {
    follow_message m;
    sheaf_status s = sheaf_world_broadcast(c->model->world, &m, sizeof m);
    if (s) return s;
    switch ((follow_op)m.op) {
    case FOLLOW_DECODE:
        s = receive_batch(c, &m);
        /* A failed batch is rank 0's to report; here it was dropped as everywhere, and we go on. */
        return s ? s : (context_run_batch(c) == SHEAF_E_PEER ? SHEAF_E_PEER : SHEAF_OK);
    case FOLLOW_REMOVE:
        if (m.n < 0 || m.n >= c->o.n_seq) return sheaf_fail(SHEAF_E_PEER, "rank 0 sent sequence %d", m.n);
        context_kv_remove(c, m.n, m.a, m.b);
        return SHEAF_OK;
    case FOLLOW_CLEAR: context_kv_clear(c); return SHEAF_OK;
    case FOLLOW_LOGITS: return outputs_fetch(c) == SHEAF_E_PEER ? SHEAF_E_PEER : SHEAF_OK;
    case FOLLOW_SAVE: return state_follow_save(c) == SHEAF_E_PEER ? SHEAF_E_PEER : SHEAF_OK;
    case FOLLOW_RESTORE: return state_follow_restore(c) == SHEAF_E_PEER ? SHEAF_E_PEER : SHEAF_OK;
    case FOLLOW_END: *end = true; return SHEAF_OK;
    }
    return sheaf_fail(SHEAF_E_PEER, "rank 0 sent an unknown message (%d)", m.op);
}

/* This process's parts, zeros elsewhere. */
static sheaf_status get_own_parts(const sheaf_context *c, const sheaf_tensor *t, size_t offset, size_t n, char *out) {
    const sheaf_layout *l = sheaf_meta_layout(t);
    sheaf_status s = SHEAF_OK;
    memset(out, 0, n);
    for (int i = 0; l && i < c->model->n_members; i++) {
        sheaf_pieces w;
        sheaf_piece p;
        sheaf_pieces_begin(&w, l, sheaf_meta_first(c->model->device) + i, t->type, t->ne, offset, n);
        while (!s && sheaf_pieces_next(&w, &p))
            s = sheaf_tensor_get(sheaf_meta_shard(t, i), out + (p.global - offset), p.local, p.bytes);
    }
    return l ? s : sheaf_fail(SHEAF_E_INTERNAL, "%s: it lies on no meta device", t->name);
}

/* Where several ranks hold a byte they hold the same, and the others zero. */
sheaf_status follow_gather(sheaf_context *c, const sheaf_tensor *t, size_t offset, size_t n, void *out) {
    int size = world_size(c);
    size_t bytes;
    if (size < 2) return sheaf_tensor_get(t, out, offset, n);
    uint8_t *all = sheaf_mul_overflow((size_t)size, n, &bytes) ? NULL : sheaf_malloc(bytes), *to = out;
    sheaf_status s = all ? SHEAF_OK : sheaf_fail(SHEAF_E_NO_MEMORY, "%s: no memory to gather %zu bytes", t->name, n);
    if (!s) s = get_own_parts(c, t, offset, n, out);
    s = follow_agree(c->model->world, s);
    if (!s) s = sheaf_world_allgather(c->model->world, out, n, all);
    for (size_t i = 0; !s && i < n; i++) {
        to[i] = 0;
        for (int r = 0; r < size; r++) to[i] |= all[(size_t)r * n + i];
    }
    sheaf_free(all);
    return s;
}

sheaf_status sheaf_follow(sheaf_context *c) {
    if (world_size(c) < 2 || follow_leads(c))
        return sheaf_fail(SHEAF_E_ARGUMENT, "only ranks other than 0 of several processes follow");
    bool end = false;
    sheaf_status s = SHEAF_OK;
    while (!s && !end) s = obey(c, &end);
    return s;
}

sheaf_status follow_agree(sheaf_world *w, sheaf_status mine) {
    enum { MAX_RANKS = 256 };
    int size = size_of(w);
    if (size < 2) return mine;
    if (size > MAX_RANKS) return sheaf_fail(SHEAF_E_UNSUPPORTED, "%d ranks, at most %d are supported", size, MAX_RANKS);
    int32_t all[MAX_RANKS], value = mine;
    sheaf_error_box box;
    sheaf_error_save(&box, mine);
    /* Who did not come to a sum would not come here either, and each wait for it would last as long again. */
    sheaf_status s = mine == SHEAF_E_TIMEOUT ? mine : sheaf_world_allgather(w, &value, sizeof value, all);
    if (s == SHEAF_E_TIMEOUT) {
        if (!mine) sheaf_error_save(&box, s);
        sheaf_log(SHEAF_LOG_WARN, "giving up: %s", box.text);
        sheaf_world_abandon(w, s);
        return sheaf_error_restore(&box);
    }
    if (mine) return sheaf_error_restore(&box); /* the first failure is the one to tell */
    if (s) return s;
    for (int r = 0; r < size; r++)
        if (all[r])
            return sheaf_fail((sheaf_status)all[r], "rank %d failed: %s", r, sheaf_status_text((sheaf_status)all[r]));
    return SHEAF_OK;
}
