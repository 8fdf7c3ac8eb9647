/* The communicator: who meets, posting, failure and its spreading, statistics.
 *
 * Owns members, staging, channels, ops. Does not add or copy elements: engines and reduce.c do. What
 * happens in which order, and why members agree, is stated in comm_internal.h. */
#include "collectives/comm_internal.h"
#include "tensor/settings.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

/* --- failure ------------------------------------------------------------------------------------- */

int comm_rank_of(const sheaf_comm *c, int device) {
    int rank = 0;
    while (rank + 1 < c->n_ranks && device >= c->rank_first[rank + 1]) rank++;
    return rank;
}

const char *comm_device_name(const sheaf_comm *c, int device, char *buf, size_t n) {
    int local = device - c->first;
    if (local >= 0 && local < c->n_local) {
        snprintf(buf, n, "device %d (%s)", device, c->members[local].device->name);
    } else {
        snprintf(buf, n, "device %d (rank %d)", device, comm_rank_of(c, device));
    }
    return buf;
}

sheaf_status comm_failure(sheaf_comm *c) {
    int state = atomic_load(&c->failing);
    if (state == FAIL_NONE) return SHEAF_OK;
    while (state != FAIL_WRITTEN) { /* another thread is copying a line of text */
        sheaf_relax();
        state = atomic_load(&c->failing);
    }
    return sheaf_error_restore(&c->failure);
}

static void break_all(sheaf_comm *c) {
    meet_break(&c->meet);
    for (int k = 0; k < c->n_local * c->n_local; k++) meet_break(&c->channels[k].meet);
}

sheaf_status comm_fail(sheaf_comm *c, sheaf_status s, bool tell) {
    int none = FAIL_NONE;
    if (atomic_compare_exchange_strong(&c->failing, &none, FAIL_WRITING)) {
        sheaf_error_save(&c->failure, s);
        atomic_store(&c->failing, FAIL_WRITTEN);
        break_all(c);
        if (tell && c->link) link_notify(c->link, s);
    }
    return comm_failure(c);
}

static void link_failed(void *ctx, sheaf_status s) { comm_fail(ctx, s, false); }

void sheaf_comm_cancel(sheaf_comm *c) {
    if (!c || atomic_load(&c->failing) != FAIL_NONE) return;
    sheaf_error_box before; /* the canceller's own error text is not ours to change */
    sheaf_error_save(&before, SHEAF_OK);
    comm_fail(c, sheaf_fail(SHEAF_E_CANCELLED, "collective cancelled"), true);
    sheaf_error_restore(&before);
}

/* A queue's worker reports its first failure; the text is on this thread and must stay as it is. */
static void queue_failed(void *ctx, sheaf_status s) {
    member *m = ctx;
    char name[64];
    if (atomic_load(&m->comm->failing) != FAIL_NONE) return;
    sheaf_error_box own;
    sheaf_error_save(&own, s);
    sheaf_status told = s == SHEAF_E_CANCELLED ? s : SHEAF_E_PEER;
    sheaf_error_context(told, "%s failed", comm_device_name(m->comm, m->number, name, sizeof name));
    comm_fail(m->comm, told, true);
    sheaf_error_restore(&own);
}

void sheaf_comm_attach(sheaf_comm *c, int i, sheaf_queue *q) {
    if (!c || i < 0 || i >= c->n_local || !q) return;
    q->on_failure = queue_failed;
    q->on_failure_ctx = &c->members[i];
}

static void forget_posts(sheaf_comm_op *op) {
    for (int i = 0; i < op->comm->n_local; i++) {
        op->members[i].posted = 0;
        atomic_store(&op->members[i].done, 0);
    }
}

sheaf_status sheaf_comm_reset(sheaf_comm *c) {
    if (!c) return sheaf_fail(SHEAF_E_ARGUMENT, "resetting a communicator: none given");
    for (int i = 0; i < c->n_local; i++) {
        member *m = &c->members[i];
        m->meetings = 0;
        m->last_slot = -1;
        memset(m->sent, 0, sizeof m->sent);
        memset(m->received, 0, sizeof m->received);
        atomic_store(&m->arrived, 0);
    }
    for (sheaf_comm_op *op = c->ops; op; op = op->next) forget_posts(op);
    for (int k = 0; k < c->n_local * c->n_local; k++) meet_reset(&c->channels[k].meet);
    meet_reset(&c->meet);
    sheaf_status s = c->link ? link_renew(c->link) : SHEAF_OK;
    atomic_store(&c->failing, FAIL_NONE);
    return s;
}

/* --- meetings -------------------------------------------------------------------------------------- */

void run_barrier(run *r) {
    if (r->n > 1) sheaf_queue_barrier(r->q, r->i);
}

const sheaf_comm_args *run_args_of(const run *r, int other) {
    size_t slot = (size_t)(r->post - r->op->posts) % POST_SLOTS;
    return &r->op->posts[(size_t)other * POST_SLOTS + slot].args;
}

void run_slice(int64_t total, int i, int n, int64_t align, int64_t *from, int64_t *to) {
    int64_t units = (total + align - 1) / align;
    *from = units * i / n * align;
    *to = units * (i + 1) / n * align;
    if (*from > total) *from = total;
    if (*to > total) *to = total;
}

/* Names the members that have not arrived at a meeting. */
static sheaf_status meeting_late(run *r) {
    sheaf_comm *c = r->c;
    char who[256] = "";
    size_t used = 0;
    for (int k = 0; k < c->n_local && used + 1 < sizeof who; k++) {
        if (atomic_load(&c->members[k].arrived) > r->meeting) continue;
        char name[64];
        int more = snprintf(who + used, sizeof who - used, "%s%s", used ? ", " : "",
                            comm_device_name(c, c->members[k].number, name, sizeof name));
        if (more > 0) used += (size_t)more;
    }
    sheaf_status s = sheaf_fail(SHEAF_E_TIMEOUT, "collective '%s': %s did not come within %lld ms", r->op->d.name,
                                used ? who : "a device", (long long)(c->timeout_ns / 1000000));
    return comm_fail(c, s, true);
}

static sheaf_status meet_members(run *r, int64_t grace_ns) {
    sheaf_comm *c = r->c;
    uint64_t target = (r->meeting + 1) * (uint64_t)c->n_local;
    int64_t start = 0;
    if (r->i == 0) {
        atomic_store(&r->m->arrived, r->meeting + 1);
        meet_arrive(&c->meet, target);
        start = sheaf_now_ns();
    }
    meet_state state = meet_wait(&c->meet, target, &c->pace, c->timeout_ns + grace_ns);
    if (state == MEET_LATE) {
        meeting_late(r);
        state = meet_look(&c->meet, target); /* the last one may have come in this instant */
    }
    if (r->i == 0) r->waited += sheaf_now_ns() - start;
    r->meeting++;
    return state == MEET_DONE ? SHEAF_OK : comm_failure(c);
}

sheaf_status run_meet(run *r, int64_t grace_ns) {
    run_barrier(r);
    return meet_members(r, grace_ns);
}

sheaf_status run_enter(run *r) { return meet_members(r, 0); }

sheaf_status run_wait_channel(run *r, meet *m, uint64_t target, int peer) {
    sheaf_comm *c = r->c;
    meet_state state = meet_wait(m, target, &c->pace, c->timeout_ns);
    if (state == MEET_LATE) {
        char name[64];
        comm_fail(c,
                  sheaf_fail(SHEAF_E_TIMEOUT, "'%s': %s did not come within %lld ms", r->op->d.name,
                             comm_device_name(c, peer, name, sizeof name), (long long)(c->timeout_ns / 1000000)),
                  true);
        state = meet_look(m, target);
    }
    return state == MEET_DONE ? SHEAF_OK : comm_failure(c);
}

/* --- posting ---------------------------------------------------------------------------------------- */

static void count(member *m, const run *r, int64_t spent) {
    const sheaf_comm_desc *d = &r->op->d;
    uint64_t bytes = (uint64_t)(d->row * r->post->args.rows) * r->op->element;
    uint64_t waited = (uint64_t)r->waited, total = (uint64_t)spent;
    atomic_fetch_add_explicit(&m->posts, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&m->bytes, bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&m->wait_ns, waited, memory_order_relaxed);
    atomic_fetch_add_explicit(&m->reduce_ns, total > waited ? total - waited : 0, memory_order_relaxed);
}

/* The queue function of every collective: thread i of n of a device's team. */
static sheaf_status run_post(void *ctx, int i, int n, sheaf_queue *q) {
    const comm_post *post = ctx;
    sheaf_comm_op *op = post->op;
    run r = {.c = op->comm, .op = op, .post = post, .m = &op->comm->members[post->i], .q = q, .i = i, .n = n};
    r.meeting = post->base;
    int64_t start = i == 0 ? sheaf_now_ns() : 0;
    sheaf_status s = op->engine->run(&r);
    if (i == 0) {
        count(r.m, &r, sheaf_now_ns() - start);
        atomic_fetch_add(&op->members[post->i].done, 1);
    }
    return s;
}

static bool is_pair(const sheaf_comm_desc *d) { return d->kind == SHEAF_COMM_SEND || d->kind == SHEAF_COMM_RECV; }

static bool reads_in(const sheaf_comm_op *op, int device) {
    switch (op->d.kind) {
    case SHEAF_COMM_ALLREDUCE: return !(op->d.empty >> device & 1);
    case SHEAF_COMM_ALLGATHER: return op->d.share[device] > 0;
    case SHEAF_COMM_BROADCAST: return device == op->d.root;
    case SHEAF_COMM_SEND: return true;
    case SHEAF_COMM_RECV:
    case SHEAF_COMM_BARRIER: return false;
    }
    return false;
}

static sheaf_status check_args(const sheaf_comm_op *op, const member *m, const sheaf_comm_args *a) {
    const sheaf_comm_desc *d = &op->d;
    const char *wrong = NULL;
    if (a->rows < 0 || a->rows > d->max_rows) {
        return sheaf_fail(SHEAF_E_RANGE, "posting '%s': %lld rows, compiled for at most %lld", d->name,
                          (long long)a->rows, (long long)d->max_rows);
    }
    if (d->kind == SHEAF_COMM_BARRIER || a->rows == 0 || d->row == 0) return SHEAF_OK;
    if (!a->in && reads_in(op, m->number)) wrong = "no input";
    if (!a->out && d->kind != SHEAF_COMM_SEND) wrong = "no output";
    if (d->epilogue.add && !a->residual) wrong = "no residual";
    if (d->epilogue.norm && !a->norm_out) wrong = "no output of the norm";
    return wrong ? sheaf_fail(SHEAF_E_ARGUMENT, "posting '%s' on device %d: %s", d->name, m->number, wrong) : SHEAF_OK;
}

/* Which staging slot `in` is, -1 when it is none. */
static int slot_of(const sheaf_comm *c, const member *m, const void *in) {
    if (!m->staging) return -1;
    return in == m->staging ? 0 : in == m->staging + c->staging_bytes ? 1 : -1;
}

/* A staged addend may still be read by a slow peer until the next meeting (invariant 4). */
static sheaf_status check_staged(const sheaf_comm_op *op, const member *m, const sheaf_comm_args *a, int *slot) {
    *slot = -1;
    if (!op->d.staged || a->rows == 0) return SHEAF_OK;
    if (!a->in) { /* an empty device lends nothing */
        *slot = m->last_slot < 0 ? -1 : !m->last_slot;
        return SHEAF_OK;
    }
    *slot = slot_of(op->comm, m, a->in);
    if (*slot < 0) return sheaf_fail(SHEAF_E_ARGUMENT, "posting '%s': its addend is not in staging", op->d.name);
    if (*slot != m->last_slot) return SHEAF_OK;
    return sheaf_fail(SHEAF_E_ARGUMENT, "posting '%s': staging slot %d used twice in turn", op->d.name, *slot);
}

static void place_post(sheaf_comm_op *op, member *m, comm_post *p, const sheaf_comm_args *args) {
    p->args = *args;
    p->base = m->meetings;
    if (op->d.kind == SHEAF_COMM_SEND) {
        p->pair = m->sent[op->d.root]++;
    } else if (op->d.kind == SHEAF_COMM_RECV) {
        p->pair = m->received[op->d.root]++;
    } else {
        m->meetings += (uint64_t)op->engine->meetings(op, args->rows);
    }
}

sheaf_status sheaf_comm_post(sheaf_comm_op *op, int i, sheaf_queue *q, const sheaf_comm_args *args) {
    sheaf_comm *c = op->comm;
    if (i < 0 || i >= c->n_local)
        return sheaf_fail(SHEAF_E_ARGUMENT, "posting '%s': no local device %d", op->d.name, i);
    member *m = &c->members[i];
    int slot;
    sheaf_status s = comm_failure(c);
    if (!s) s = check_args(op, m, args);
    if (!s) s = check_staged(op, m, args, &slot);
    if (s) return s;
    op_member *om = &op->members[i];
    if (om->posted - atomic_load(&om->done) >= SHEAF_COMM_IN_FLIGHT) {
        return sheaf_fail(SHEAF_E_RANGE, "posting '%s' on device %d: %d posts of it are in flight", op->d.name,
                          m->number, SHEAF_COMM_IN_FLIGHT);
    }
    comm_post *p = &op->posts[(size_t)i * POST_SLOTS + om->posted % POST_SLOTS];
    place_post(op, m, p, args);
    om->posted++;
    if (!is_pair(&op->d)) m->last_slot = slot;
    return sheaf_queue_call(q, run_post, p);
}

/* What holds words that members share starts on a cache line of its own. */
static void *aligned_zeros(size_t bytes) {
    void *p = sheaf_aligned_alloc(64, bytes);
    if (p) memset(p, 0, bytes);
    return p;
}

/* --- ops ------------------------------------------------------------------------------------------------ */

static sheaf_status check_pieces(const sheaf_comm *c, const sheaf_comm_desc *d) {
    if (d->n_pieces < 0 || (d->n_pieces && !d->pieces) || !d->share) {
        return sheaf_fail(SHEAF_E_ARGUMENT, "compiling '%s': no pieces or shares", d->name);
    }
    for (int k = 0; k < c->n_world; k++) {
        if (d->share[k] < 0) return sheaf_fail(SHEAF_E_ARGUMENT, "compiling '%s': negative share", d->name);
    }
    for (int32_t k = 0; k < d->n_pieces; k++) {
        const sheaf_gather_piece *p = &d->pieces[k];
        bool inside = p->from >= 0 && p->from < c->n_world && p->length >= 0 && p->at >= 0 && p->src_at >= 0 &&
                      p->at <= d->row - p->length && p->src_at <= d->share[p->from] - p->length;
        if (!inside) {
            return sheaf_fail(SHEAF_E_RANGE, "compiling '%s': piece %d (device %d, %lld elements) lies outside its row",
                              d->name, (int)k, (int)p->from, (long long)p->length);
        }
    }
    return SHEAF_OK;
}

static sheaf_status check_desc(const sheaf_comm *c, const sheaf_comm_desc *d) {
    size_t bytes;
    if (d->kind < SHEAF_COMM_ALLREDUCE || d->kind > SHEAF_COMM_BARRIER) {
        return sheaf_fail(SHEAF_E_ARGUMENT, "compiling '%s': unknown kind %d", d->name, (int)d->kind);
    }
    if (d->kind == SHEAF_COMM_BARRIER) return SHEAF_OK;
    if (d->row < 0 || d->max_rows < 0 || sheaf_mul_overflow((size_t)d->row, (size_t)d->max_rows, &bytes) ||
        bytes > (size_t)PTRDIFF_MAX / 16) {
        return sheaf_fail(SHEAF_E_RANGE, "compiling '%s': %lld elements in %lld rows", d->name, (long long)d->row,
                          (long long)d->max_rows);
    }
    if (!sheaf_type_valid(d->type) || sheaf_type_is_quantized(d->type)) {
        return sheaf_fail(SHEAF_E_UNSUPPORTED, "compiling '%s': elements of type %s", d->name,
                          sheaf_type_name(d->type));
    }
    if (d->kind == SHEAF_COMM_ALLREDUCE) {
        bool f32 = d->type == SHEAF_F64 || d->type == SHEAF_F32;
        if (!sum_kind_of(d->type) || ((d->epilogue.add || d->epilogue.norm) && !f32)) {
            return sheaf_fail(SHEAF_E_UNSUPPORTED, "compiling '%s': a sum of %s%s", d->name, sheaf_type_name(d->type),
                              f32 ? "" : " with this epilogue");
        }
        return SHEAF_OK;
    }
    if (d->kind == SHEAF_COMM_ALLGATHER) return check_pieces(c, d);
    if (d->root < 0 || d->root >= c->n_world) {
        return sheaf_fail(SHEAF_E_ARGUMENT, "compiling '%s': no device %d in a world of %d", d->name, (int)d->root,
                          c->n_world);
    }
    return SHEAF_OK;
}

/* The op's own copies of what the description points at. */
static sheaf_status own_desc(sheaf_comm_op *op, const sheaf_comm_desc *d) {
    op->d.name = sheaf_strdup(d->name && d->name[0] ? d->name : "collective");
    op->d.pieces = NULL;
    op->d.share = NULL;
    if (!op->d.name) goto no_memory;
    if (d->kind != SHEAF_COMM_ALLGATHER) return SHEAF_OK;
    size_t pieces = sizeof *d->pieces * (size_t)d->n_pieces, shares = sizeof *d->share * (size_t)op->comm->n_world;
    op->d.pieces = sheaf_malloc(pieces);
    op->d.share = sheaf_malloc(shares);
    if (!op->d.pieces || !op->d.share) goto no_memory;
    if (pieces) memcpy((void *)op->d.pieces, d->pieces, pieces);
    memcpy((void *)op->d.share, d->share, shares);
    return SHEAF_OK;
no_memory:
    return sheaf_fail(SHEAF_E_NO_MEMORY, "compiling a collective");
}

static sheaf_status own_posts(sheaf_comm_op *op) {
    size_t n = (size_t)op->comm->n_local;
    op->posts = sheaf_calloc(n * POST_SLOTS, sizeof *op->posts);
    op->members = aligned_zeros(n * sizeof *op->members);
    if (!op->posts || !op->members) return sheaf_fail(SHEAF_E_NO_MEMORY, "compiling '%s'", op->d.name);
    for (size_t k = 0; k < n * POST_SLOTS; k++) {
        op->posts[k].op = op;
        op->posts[k].i = (int32_t)(k / POST_SLOTS);
    }
    return SHEAF_OK;
}

static void program_of_devices(sheaf_comm_op *op) {
    canon_node all[MAX_DEVICES];
    int n = op->comm->n_world;
    for (int k = 0; k < n; k++) all[k] = (canon_node){k, 1};
    canon_build(n, (canon_node){0, n}, op->d.empty, all, n, &op->program);
}

sheaf_status sheaf_comm_compile(sheaf_comm *c, const sheaf_comm_desc *desc, sheaf_comm_op **out) {
    *out = NULL;
    sheaf_comm_desc d = *desc;
    if (!d.name) d.name = "collective";
    sheaf_status s = check_desc(c, &d);
    if (s) return s;
    sheaf_comm_op *op = sheaf_calloc(1, sizeof *op);
    if (!op) return sheaf_fail(SHEAF_E_NO_MEMORY, "compiling '%s'", d.name);
    op->comm = c;
    op->d = d;
    op->kind = sum_kind_of(d.type);
    op->element = d.kind == SHEAF_COMM_BARRIER ? 0 : sheaf_type_bytes(d.type);
    s = own_desc(op, &d);
    if (!s) s = own_posts(op);
    if (!s) s = engine_choose(c, &op->d, c->pin, &op->engine, op->reason, sizeof op->reason);
    if (!s) program_of_devices(op);
    if (!s && op->engine->compile) s = op->engine->compile(op);
    op->next = c->ops;
    if (c->ops) c->ops->prev = op;
    c->ops = op;
    if (s) {
        sheaf_comm_op_free(op);
        return s;
    }
    *out = op;
    return SHEAF_OK;
}

void sheaf_comm_op_free(sheaf_comm_op *op) {
    if (!op) return;
    if (op->prev) op->prev->next = op->next;
    if (op->next) op->next->prev = op->prev;
    if (op->comm->ops == op) op->comm->ops = op->next;
    if (op->engine && op->engine->op_free) op->engine->op_free(op);
    sheaf_free(op->members);
    sheaf_free(op->posts);
    sheaf_free((void *)op->d.share);
    sheaf_free((void *)op->d.pieces);
    sheaf_free((void *)op->d.name);
    sheaf_free(op);
}

const char *sheaf_comm_op_engine(const sheaf_comm_op *op, const char **reason) {
    if (reason) *reason = op->reason;
    return op->engine->info.name;
}

/* --- staging --------------------------------------------------------------------------------------------- */

sheaf_status sheaf_comm_reserve_staging(sheaf_comm *c, size_t bytes) {
    size_t slot, both;
    if (bytes <= c->staging_bytes) return SHEAF_OK;
    if (!sheaf_align_up(bytes, 4096, &slot) || sheaf_mul_overflow(slot, 2, &both)) {
        return sheaf_fail(SHEAF_E_RANGE, "staging of %zu bytes", bytes);
    }
    char *fresh[MAX_DEVICES];
    for (int i = 0; i < c->n_local; i++) {
        fresh[i] = sheaf_pages_alloc(both);
        if (fresh[i]) continue;
        while (i-- > 0) sheaf_free(fresh[i]);
        return sheaf_fail(SHEAF_E_NO_MEMORY, "staging of %zu bytes for %d devices", both, c->n_local);
    }
    for (int i = 0; i < c->n_local; i++) {
        sheaf_free(c->members[i].staging);
        c->members[i].staging = fresh[i];
        c->members[i].last_slot = -1;
    }
    c->staging_bytes = slot;
    return SHEAF_OK;
}

void *sheaf_comm_staging(const sheaf_comm *c, int i, int slot) {
    if (i < 0 || i >= c->n_local || slot < 0 || slot > 1 || !c->members[i].staging) return NULL;
    return c->members[i].staging + (slot ? c->staging_bytes : 0);
}

/* A device that lends nothing may not know of a slot that the others used. */
int sheaf_comm_next_slot(const sheaf_comm *c) {
    for (int i = 0; i < c->n_local; i++) {
        if (c->members[i].last_slot >= 0) return !c->members[i].last_slot;
    }
    return 0;
}

/* --- making one ------------------------------------------------------------------------------------------ */

/* The reference, for devices that lend none: squares summed in order in F64. */
static void plain_rms_norm(float *out, const float *x, const float *weight, int64_t n, float eps) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    float factor = (float)(1.0 / sqrt(sum / (double)n + (double)eps));
    for (int64_t i = 0; i < n; i++) out[i] = weight ? x[i] * factor * weight[i] : x[i] * factor;
}

static int allowed_cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set)) return 1;
    int n = CPU_COUNT(&set);
    return n > 0 ? n : 1;
}

/* Spinning helps only while everybody who is waited for has a core. */
static void set_pace(sheaf_comm *c) {
    int threads = 0;
    for (int i = 0; i < c->n_local; i++) {
        int n = c->members[i].device->n_threads;
        threads += n > 0 ? n : 1;
    }
    threads *= sheaf_world_host_size(c->world);
    c->pace.spin_ns = threads <= allowed_cores() ? sheaf_settings()->spin_us * 1000 : 0;
}

/* What each rank tells the others of itself. Rank 0's pin is everybody's. */
typedef struct rank_card {
    int32_t n_local;
    char pin[16];
} rank_card;

static sheaf_status exchange_cards(sheaf_comm *c) {
    rank_card mine = {.n_local = c->n_local}, all[MAX_DEVICES];
    snprintf(mine.pin, sizeof mine.pin, "%s", sheaf_settings()->allreduce);
    c->n_ranks = sheaf_world_size(c->world);
    c->rank = sheaf_world_rank(c->world);
    if (c->n_ranks > MAX_DEVICES) {
        return sheaf_fail(SHEAF_E_UNSUPPORTED, "a world of %d ranks, at most %d devices can meet", c->n_ranks,
                          MAX_DEVICES);
    }
    sheaf_status s = sheaf_world_allgather(c->world, &mine, sizeof mine, all);
    if (s) return s;
    for (int k = 0; k < c->n_ranks; k++) {
        if (all[k].n_local < 1 || all[k].n_local > MAX_DEVICES - c->n_world) {
            return sheaf_fail(SHEAF_E_UNSUPPORTED, "rank %d brings %d devices to %d: 1 to %d can meet", k,
                              (int)all[k].n_local, c->n_world, MAX_DEVICES);
        }
        c->rank_first[k] = c->n_world;
        c->n_world += all[k].n_local;
    }
    c->rank_first[c->n_ranks] = c->n_world;
    c->first = c->rank_first[c->rank];
    all[0].pin[sizeof all[0].pin - 1] = 0;
    memcpy(c->pin, all[0].pin, sizeof c->pin);
    return engine_pin_check(c->pin);
}

static sheaf_status make_members(sheaf_comm *c, sheaf_device *const *devices) {
    size_t n = (size_t)c->n_local;
    c->members = aligned_zeros(n * sizeof *c->members);
    c->channels = aligned_zeros(n * n * sizeof *c->channels);
    if (!c->members || !c->channels) return sheaf_fail(SHEAF_E_NO_MEMORY, "a communicator of %d devices", c->n_local);
    for (int i = 0; i < c->n_local; i++) {
        member *m = &c->members[i];
        m->comm = c;
        m->device = devices[i];
        m->last_slot = -1;
        const sheaf_device_iface *iface = devices[i]->iface;
        const sheaf_row_kernels *rows = iface && iface->row_kernels ? iface->row_kernels(devices[i]) : NULL;
        m->rms_norm = rows ? rows->rms_norm : plain_rms_norm;
        m->sum_f64 = rows ? rows->sum_f64 : NULL;
    }
    return SHEAF_OK;
}

sheaf_status sheaf_comm_new(sheaf_world *w, sheaf_device *const *devices, int n_local, sheaf_comm **out) {
    *out = NULL;
    if (!devices || n_local < 1 || n_local > MAX_DEVICES) {
        return sheaf_fail(SHEAF_E_ARGUMENT, "a communicator of %d devices: 1 to %d can meet", n_local, MAX_DEVICES);
    }
    sheaf_comm *c = aligned_zeros(sizeof *c);
    if (!c) return sheaf_fail(SHEAF_E_NO_MEMORY, "a communicator");
    c->world = w;
    c->n_local = n_local;
    c->timeout_ns = sheaf_settings()->comm_timeout_ms * 1000000;
    sheaf_status s = make_members(c, devices);
    if (!s) s = exchange_cards(c);
    if (!s && c->n_ranks > 1) s = link_new(w, link_failed, c, &c->link);
    if (s) {
        sheaf_comm_free(c);
        return s;
    }
    for (int i = 0; i < n_local; i++) c->members[i].number = c->first + i;
    set_pace(c);
    *out = c;
    return SHEAF_OK;
}

void sheaf_comm_free(sheaf_comm *c) {
    if (!c) return;
    while (c->ops) sheaf_comm_op_free(c->ops);
    link_free(c->link);
    hier_blocks_free(c);
    for (int i = 0; c->members && i < c->n_local; i++) sheaf_free(c->members[i].staging);
    sheaf_free(c->channels);
    sheaf_free(c->members);
    sheaf_free(c);
}

int sheaf_comm_devices(const sheaf_comm *c) { return c->n_world; }

int sheaf_comm_first(const sheaf_comm *c) { return c->first; }

sheaf_comm_stats sheaf_comm_stats_of(const sheaf_comm *c, int i) {
    if (i < 0 || i >= c->n_local) return (sheaf_comm_stats){0};
    member *m = &c->members[i];
    return (sheaf_comm_stats){atomic_load_explicit(&m->posts, memory_order_relaxed),
                              atomic_load_explicit(&m->bytes, memory_order_relaxed),
                              atomic_load_explicit(&m->wait_ns, memory_order_relaxed),
                              atomic_load_explicit(&m->reduce_ns, memory_order_relaxed)};
}
