/* cut: pieces between collectives, compiled by each member's backend; memory planned on each member's own
 * shapes; and the list of steps.
 *
 * Two graphs are made of a member's nodes. A piece's graph is what its backend prepares: what other pieces
 * compute are leafs there, and what other pieces or collectives read is marked as output, so that no
 * fusion leaves it out. The memory graph has all pieces and a stand-in for each collective, so that lifetimes
 * are those of the whole plan. */
#include <stdio.h>
#include <string.h>

#include "meta/plan_internal.h"
#include "tensor/settings.h"

/* Scratch of one member's cutting, by shard or by node. */
typedef struct cutter {
    meta_plan *p;
    plan_member *m;
    int i;                   /* local member */
    int32_t *piece_of_shard; /* piece whose node makes it, -1: a leaf or a collective's result */
    int32_t *last_piece;     /* last piece that reads it; INT32_MAX: a collective or the outside does */
    sheaf_tensor **local;    /* header in the graph that is being made */
    int32_t *memory_node;    /* by node of the member: node of the memory graph */
    int32_t *first_node;     /* by piece: its first node of the member */
    sheaf_graph *memory;
} cutter;

static sheaf_status no_arena(const cutter *c) { return sheaf_arena_status(c->p->arena); }

/* --- pieces: which items lie between two collectives ------------------------------------------------------------- */

static int32_t count_pieces(const meta_plan *p) {
    int32_t n = 1;
    for (int32_t i = 0; i < p->n_items; i++) n += !p->items[i].dropped && is_collective(p->items[i].kind);
    return n;
}

/* A collective ends a piece; what it needs compacted is still before it, so its item belongs to the piece. */
static sheaf_status list_pieces(meta_plan *p) {
    p->n_pieces = count_pieces(p);
    p->pieces = sheaf_arena_alloc(p->arena, (size_t)p->n_pieces * sizeof *p->pieces);
    if (!p->pieces) return sheaf_arena_status(p->arena);
    int32_t k = 0;
    for (int32_t i = 0; i < p->n_items; i++) {
        if (p->items[i].dropped || !is_collective(p->items[i].kind)) continue;
        p->pieces[k].end_item = i + 1;
        p->pieces[++k].first_item = i + 1;
    }
    p->pieces[k].end_item = p->n_items;
    for (k = 0; k < p->n_pieces; k++) {
        plan_piece *piece = &p->pieces[k];
        piece->graphs = sheaf_arena_alloc(p->arena, (size_t)p->n_local * sizeof(sheaf_graph *));
        piece->prepared = sheaf_arena_alloc(p->arena, (size_t)p->n_local * sizeof(sheaf_prepared *));
        piece->shard_of_slot = sheaf_arena_alloc(p->arena, (size_t)p->n_local * sizeof(int32_t *));
        if (!piece->graphs || !piece->prepared || !piece->shard_of_slot) return sheaf_arena_status(p->arena);
    }
    return SHEAF_OK;
}

/* --- who reads what --------------------------------------------------------------------------------------------------
 */

static void reads(cutter *c, int32_t shard, int32_t piece) {
    for (int32_t s = shard; s >= 0; s = c->m->shards[s].root) {
        if (c->last_piece[s] < piece) c->last_piece[s] = piece;
    }
}

static void read_by_collective(cutter *c, int32_t item) {
    const plan_item *t = &c->p->items[item];
    int32_t in[] = {c->m->compact_of[item], t->residual, t->norm_weight};
    for (int k = 0; k < 3; k++) {
        if (in[k] >= 0) reads(c, in[k], INT32_MAX);
    }
}

static void find_readers(cutter *c) {
    plan_member *m = c->m;
    int32_t piece = 0, n = 0;
    for (int32_t s = 0; s < m->n_shards; s++) {
        c->piece_of_shard[s] = c->last_piece[s] = -1;
        if (m->shards[s].home == HOME_IO) c->last_piece[s] = INT32_MAX;
    }
    for (int32_t item = 0; item < c->p->n_items; item++) {
        while (item >= c->p->pieces[piece].end_item) c->first_node[++piece] = n;
        for (; n < m->n_nodes && m->nodes[n].item == item; n++) {
            const plan_shard *s = &m->shards[m->nodes[n].shard];
            c->piece_of_shard[m->nodes[n].shard] = piece;
            for (int j = 0; j < SHEAF_MAX_SRC; j++) {
                if (s->src[j] >= 0) reads(c, s->src[j], piece);
            }
            if (s->root >= 0) reads(c, s->root, piece);
        }
        if (!c->p->items[item].dropped && is_collective(c->p->items[item].kind)) read_by_collective(c, item);
    }
    while (piece + 1 < c->p->n_pieces) c->first_node[++piece] = n;
    c->first_node[c->p->n_pieces] = m->n_nodes;
}

/* --- graphs ------------------------------------------------------------------------------------------------ */

/* A leaf that stands for what is computed elsewhere. A view still says whose bytes it sees: a later write into them
 * must wait for those who read it here. */
static sheaf_status stand_in(cutter *c, sheaf_graph *g, int32_t shard, sheaf_tensor *root, sheaf_tensor **out) {
    sheaf_tensor *t = sheaf_arena_alloc(c->p->arena, sizeof *t);
    if (!t) return no_arena(c);
    *t = c->m->shards[shard].header;
    t->op = SHEAF_OP_NONE;
    t->view_src = root;
    if (!root) t->view_offs = 0;
    *out = c->local[shard] = t;
    return sheaf_graph_add(g, t, true);
}

static sheaf_status header_of(cutter *c, sheaf_graph *g, int32_t shard, sheaf_tensor **out) {
    sheaf_tensor *root = NULL;
    int32_t of = c->m->shards[shard].root;
    *out = c->local[shard];
    if (*out) return SHEAF_OK;
    if (of >= 0 && !(root = c->local[of])) { /* a root is no view itself */
        sheaf_status s = stand_in(c, g, of, NULL, &root);
        if (s) return s;
    }
    return stand_in(c, g, shard, root, out);
}

static sheaf_status add_member_node(cutter *c, sheaf_graph *g, int32_t shard, uint32_t flags) {
    const plan_shard *s = &c->m->shards[shard];
    sheaf_tensor *t = sheaf_arena_alloc(c->p->arena, sizeof *t);
    if (!t) return no_arena(c);
    *t = s->header;
    t->flags |= flags;
    sheaf_status status = SHEAF_OK;
    for (int j = 0; j < SHEAF_MAX_SRC && !status; j++) {
        if (s->src[j] >= 0) status = header_of(c, g, s->src[j], &t->src[j]);
    }
    if (!status && s->root >= 0) status = header_of(c, g, s->root, &t->view_src);
    if (status) return status;
    c->local[shard] = t;
    return sheaf_graph_add(g, t, false);
}

static void forget_headers(cutter *c) { memset(c->local, 0, (size_t)c->m->n_shards * sizeof(sheaf_tensor *)); }

/* Which shard each slot of the piece's graph is: by the headers just made. */
static sheaf_status list_slots(cutter *c, plan_piece *piece, sheaf_graph *g) {
    int32_t *of = sheaf_arena_alloc(c->p->arena, (size_t)(g->n_leafs + g->n_nodes) * sizeof *of);
    if (!of) return no_arena(c);
    for (int32_t s = 0; s < c->m->n_shards; s++) {
        if (c->local[s]) of[c->local[s]->index] = s;
    }
    piece->shard_of_slot[c->i] = of;
    return SHEAF_OK;
}

static sheaf_status prepare_piece(cutter *c, int32_t k) {
    plan_piece *piece = &c->p->pieces[k];
    int32_t first = c->first_node[k], end = c->first_node[k + 1];
    sheaf_graph *g;
    if (first == end) return SHEAF_OK;
    sheaf_status s = sheaf_graph_new(c->p->arena, 2 * (end - first) + 8, &g);
    forget_headers(c);
    for (int32_t n = first; n < end && !s; n++) {
        int32_t shard = c->m->nodes[n].shard;
        s = add_member_node(c, g, shard, c->last_piece[shard] > k ? SHEAF_FLAG_OUTPUT : 0);
    }
    if (!s) s = sheaf_graph_seal(g);
    if (!s) s = list_slots(c, piece, g);
    if (!s) s = sheaf_backend_prepare(c->p->backend->members[c->i].backend, g, &piece->prepared[c->i]);
    if (s) return s;
    piece->graphs[c->i] = g;
    size_t scratch = sheaf_prepared_info(c->p->backend->members[c->i].backend, piece->prepared[c->i]).scratch_bytes;
    c->m->scratch_bytes = scratch > c->m->scratch_bytes ? scratch : c->m->scratch_bytes;
    return SHEAF_OK;
}

/* --- the memory graph -------------------------------------------------------------------------------------- */

/* A stand-in for what a collective writes; its sources are what it reads, so that those live until then. */
static sheaf_status add_result(cutter *c, int32_t shard, const int32_t *src, int n) {
    sheaf_tensor *t = sheaf_arena_alloc(c->p->arena, sizeof *t);
    if (!t) return no_arena(c);
    *t = c->m->shards[shard].header;
    t->op = SHEAF_OP_CONT; /* never in place: a peer may read one element while another is written */
    sheaf_status s = SHEAF_OK;
    for (int k = 0; k < n && !s; k++) {
        if (src[k] >= 0) s = header_of(c, c->memory, src[k], &t->src[k]);
    }
    if (s) return s;
    c->local[shard] = t;
    return sheaf_graph_add(c->memory, t, false);
}

static sheaf_status add_collective(cutter *c, int32_t item) {
    const plan_item *t = &c->p->items[item];
    int32_t src[] = {c->m->compact_of[item], t->residual, t->norm_weight, t->out};
    sheaf_status s = add_result(c, t->out, src, 3);
    if (!s && t->norm) s = add_result(c, t->norm_out, src, 4);
    return s;
}

static sheaf_status memory_graph(cutter *c) {
    plan_member *m = c->m;
    int32_t n = 0;
    sheaf_status s = sheaf_graph_new(c->p->arena, m->n_nodes + 2 * c->p->n_pieces + c->p->n_slots + 16, &c->memory);
    forget_headers(c);
    for (int32_t item = 0; item < c->p->n_items && !s; item++) {
        for (; n < m->n_nodes && m->nodes[n].item == item && !s; n++) {
            c->memory_node[n] = c->memory->n_nodes;
            s = add_member_node(c, c->memory, m->nodes[n].shard, 0);
        }
        if (!s && !c->p->items[item].dropped && is_collective(c->p->items[item].kind)) s = add_collective(c, item);
    }
    return s ? s : sheaf_graph_seal(c->memory); /* its stand-ins may lack sources: no graph for sheaf_graph_check */
}

/* Lifetimes that backends asked for, in the memory graph's numbers. */
static sheaf_status lifetimes(cutter *c, sheaf_lifetime **out, int *n) {
    int total = 0;
    sheaf_backend *b = c->p->backend->members[c->i].backend;
    for (int32_t k = 0; k < c->p->n_pieces; k++) {
        if (c->p->pieces[k].prepared[c->i]) total += sheaf_prepared_info(b, c->p->pieces[k].prepared[c->i]).n_keep;
    }
    *n = 0;
    *out = sheaf_arena_alloc(c->p->arena, ((size_t)total + 1) * sizeof **out);
    if (!*out) return no_arena(c);
    for (int32_t k = 0; k < c->p->n_pieces; k++) {
        const plan_piece *piece = &c->p->pieces[k];
        if (!piece->prepared[c->i]) continue;
        sheaf_prepare_info info = sheaf_prepared_info(b, piece->prepared[c->i]);
        for (int j = 0; j < info.n_keep; j++) {
            int32_t shard = piece->shard_of_slot[c->i][info.keep[j].slot];
            sheaf_tensor *t = c->local[shard];
            if (!t) continue;
            (*out)[(*n)++] = (sheaf_lifetime){t->index, c->memory_node[c->first_node[k] + info.keep[j].until_node]};
        }
    }
    return SHEAF_OK;
}

static size_t alloc_size(void *ctx, const sheaf_tensor *t) { return sheaf_alloc_size(ctx, t); }

static sheaf_status take_places(cutter *c, sheaf_galloc *ga) {
    plan_member *m = c->m;
    m->n_chunks = sheaf_galloc_chunks(ga, 0);
    if (m->n_chunks > META_MAX_CHUNKS)
        return sheaf_fail(SHEAF_E_RANGE, "workspace of %d chunks, %d are possible", m->n_chunks, META_MAX_CHUNKS);
    for (int k = 0; k < m->n_chunks; k++) m->chunk_bytes[k] = sheaf_galloc_chunk_bytes(ga, 0, k);
    for (int32_t s = 0; s < m->n_shards; s++) {
        if (!c->local[s] || m->shards[s].home != HOME_WORK) continue;
        sheaf_place at = sheaf_galloc_place(ga, c->local[s]->index);
        m->shards[s].place = (plan_place){at.arena < 0 ? -1 : at.chunk, at.offset};
    }
    return SHEAF_OK;
}

static sheaf_status plan_memory(cutter *c) {
    sheaf_graph *g = c->memory;
    sheaf_galloc *ga = NULL;
    sheaf_lifetime *keep;
    int n_keep;
    sheaf_buffer_type *type = c->p->device->members[c->i]->buffer_type;
    sheaf_galloc_type kind = {
        .alignment = type->alignment, .max_size = type->max_size, .alloc_size = alloc_size, .ctx = type};
    int32_t *arena = sheaf_arena_alloc(c->p->arena, (size_t)(g->n_leafs + g->n_nodes) * sizeof *arena + 1);
    if (!arena) return no_arena(c);
    for (int32_t i = 0; i < g->n_leafs + g->n_nodes; i++) arena[i] = -1;
    for (int32_t s = 0; s < c->m->n_shards; s++) {
        if (c->local[s] && c->m->shards[s].home == HOME_WORK) arena[c->local[s]->index] = 0;
    }
    sheaf_status s = lifetimes(c, &keep, &n_keep);
    if (!s) s = sheaf_galloc_new(&kind, 1, &ga);
    if (!s) s = sheaf_galloc_reserve(ga, g, arena, keep, n_keep);
    if (!s && sheaf_checks_on(g->n_leafs + g->n_nodes)) s = sheaf_galloc_check(ga, g);
    if (!s) s = take_places(c, ga);
    sheaf_galloc_free(ga);
    return s;
}

static sheaf_status cut_member(meta_plan *p, int i) {
    cutter c = {.p = p, .m = &p->members[i], .i = i};
    size_t shards = (size_t)c.m->n_shards + 1, nodes = (size_t)c.m->n_nodes + 1, pieces = (size_t)p->n_pieces + 1;
    c.piece_of_shard = sheaf_arena_alloc(p->arena, shards * sizeof(int32_t));
    c.last_piece = sheaf_arena_alloc(p->arena, shards * sizeof(int32_t));
    c.local = sheaf_arena_alloc(p->arena, shards * sizeof(sheaf_tensor *));
    c.memory_node = sheaf_arena_alloc(p->arena, nodes * sizeof(int32_t));
    c.first_node = sheaf_arena_alloc(p->arena, pieces * sizeof(int32_t));
    if (!c.piece_of_shard || !c.last_piece || !c.local || !c.memory_node || !c.first_node) return no_arena(&c);
    find_readers(&c);
    sheaf_status s = SHEAF_OK;
    for (int32_t k = 0; k < p->n_pieces && !s; k++) s = prepare_piece(&c, k);
    if (!s) s = memory_graph(&c);
    if (!s) s = plan_memory(&c);
    return s ? sheaf_error_context(s, "%s", p->device->members[i]->name) : SHEAF_OK;
}

/* --- collectives ------------------------------------------------------------------------------------------- */

/* Pieces of one gathered row: a run is read from its first holder. Elements are bytes where the type has blocks. */
static sheaf_status gather_desc(meta_plan *p, const plan_item *t, sheaf_comm_desc *d) {
    const plan_value *from = &p->values[t->src[0]];
    const sheaf_layout *l = &from->layout;
    const sheaf_tensor *node = &p->slots[from->slot];
    bool blocks = sheaf_type_is_quantized(from->type);
    int64_t inner = 1, block = 1;
    for (int i = 0; i < l->axis; i++) inner *= node->ne[i];
    if (blocks) { /* count bytes instead of elements */
        block = sheaf_type_block(from->type);
        inner *= (int64_t)sheaf_type_bytes(from->type);
    }
    sheaf_gather_piece *pieces = sheaf_arena_alloc(p->arena, (size_t)l->n_runs * sizeof *pieces);
    int64_t *share = sheaf_arena_alloc(p->arena, (size_t)p->n_world * sizeof *share);
    if (!pieces || !share) return sheaf_arena_status(p->arena);
    int64_t at = 0;
    for (int r = 0; r < l->n_runs; at += l->runs[r++].length) {
        int holder = __builtin_ctzll(l->runs[r].devices);
        pieces[r] = (sheaf_gather_piece){.at = at * inner / block,
                                         .length = l->runs[r].length * inner / block,
                                         .src_at = sheaf_layout_local_index(l, holder, at) * inner / block,
                                         .from = holder};
    }
    for (int dev = 0; dev < p->n_world; dev++) share[dev] = sheaf_layout_share(l, dev, 0) * inner / block;
    d->type = blocks ? SHEAF_I8 : from->type;
    d->row = at * inner / block;
    d->max_rows = 1;
    for (int i = l->axis + 1; i < SHEAF_MAX_DIMS; i++) d->max_rows *= node->ne[i];
    d->pieces = pieces;
    d->n_pieces = l->n_runs;
    d->share = share;
    return SHEAF_OK;
}

/* What people know the tensor by: its own name, or, as what is summed is often an unnamed step of a layer, that of the
 * sum, alone or with what is added to it. "" where none has one. */
static const char *collective_name(const meta_plan *p, const plan_item *t) {
    const int32_t values[] = {t->src[0], t->plain_out, t->out};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        if (values[i] < 0) continue;
        const char *name = p->slots[p->values[values[i]].slot].name;
        if (name[0]) return name;
    }
    return "";
}

static sheaf_status collective_desc(meta_plan *p, const plan_item *t, sheaf_comm_desc *d) {
    const plan_value *from = &p->values[t->src[0]];
    const sheaf_tensor *node = &p->slots[from->slot];
    *d = (sheaf_comm_desc){.kind = t->kind == ITEM_SUM ? SHEAF_COMM_ALLREDUCE : SHEAF_COMM_ALLGATHER,
                           .type = from->type,
                           .name = collective_name(p, t)};
    if (t->kind == ITEM_GATHER) return gather_desc(p, t, d);
    d->row = node->ne[0];
    d->max_rows = sheaf_nrows(node);
    d->epilogue = (sheaf_comm_epilogue){.add = t->add, .norm = t->norm, .eps = t->eps};
    d->empty = from->empty;
    d->staged = from->home == HOME_STAGING;
    return SHEAF_OK;
}

static sheaf_status describe_collective(meta_plan *p, const plan_item *t, const sheaf_comm_desc *d,
                                        const sheaf_comm_op *op) {
    enum { ROOM = 256 };
    const char *why, *engine = sheaf_comm_op_engine(op, &why);
    char *reason = sheaf_arena_alloc(p->arena, ROOM);
    if (!reason) return sheaf_arena_status(p->arena);
    snprintf(reason, ROOM, "%s; engine %s (%s)", t->rule ? t->rule : "-", engine, why);
    sheaf_plan_collective *out = &p->collectives[p->n_collectives++];
    *out = (sheaf_plan_collective){.tensor = d->name,
                                   .kind = d->kind,
                                   .row = d->row,
                                   .rows = d->max_rows,
                                   .fused_add = t->add,
                                   .fused_norm = t->norm,
                                   .reason = reason};
    out->bytes = (size_t)(d->row * d->max_rows) * sheaf_type_bytes(d->type);
    return SHEAF_OK;
}

/* --- steps ------------------------------------------------------------------------------------------------- */

static bool has_work(const meta_plan *p, const plan_piece *piece) {
    for (int i = 0; i < p->n_local; i++) {
        if (piece->prepared[i]) return true;
    }
    return false;
}

static sheaf_status add_collective_step(meta_plan *p, int32_t item) {
    sheaf_comm_desc d;
    plan_step *step = &p->steps[p->n_steps];
    sheaf_status s = collective_desc(p, &p->items[item], &d);
    if (!s) s = sheaf_comm_compile(p->backend->comm, &d, &step->op);
    if (s) return s;
    p->n_steps++;
    step->is_collective = true;
    step->item = item;
    step->rows = d.max_rows;
    return describe_collective(p, &p->items[item], &d, step->op);
}

static sheaf_status list_steps(meta_plan *p) {
    p->steps = sheaf_arena_alloc(p->arena, 2 * (size_t)p->n_pieces * sizeof *p->steps);
    p->collectives = sheaf_arena_alloc(p->arena, (size_t)p->n_pieces * sizeof *p->collectives);
    if (!p->steps || !p->collectives) return sheaf_arena_status(p->arena);
    for (int32_t k = 0; k < p->n_pieces; k++) {
        if (has_work(p, &p->pieces[k])) p->steps[p->n_steps++] = (plan_step){.piece = k, .item = -1};
        if (k + 1 == p->n_pieces) break;
        sheaf_status s = add_collective_step(p, p->pieces[k].end_item - 1);
        if (s) return s;
    }
    return SHEAF_OK;
}

static sheaf_status sum_bytes(meta_plan *p) {
    p->compute_bytes = sheaf_arena_alloc(p->arena, (size_t)p->n_local * sizeof *p->compute_bytes);
    p->staging_list = sheaf_arena_alloc(p->arena, (size_t)p->n_local * sizeof *p->staging_list);
    if (!p->compute_bytes || !p->staging_list) return sheaf_arena_status(p->arena);
    for (int i = 0; i < p->n_local; i++) {
        const plan_member *m = &p->members[i];
        p->compute_bytes[i] = m->scratch_bytes;
        for (int k = 0; k < m->n_chunks; k++) p->compute_bytes[i] += m->chunk_bytes[k];
        for (int32_t k = 0; k < p->n_crossings; k++) {
            const sheaf_tensor *t = &m->shards[p->crossing[k]].header;
            if (sheaf_nelements(t) > 0) p->compute_bytes[i] += sheaf_alloc_size(p->device->members[i]->buffer_type, t);
        }
        p->staging_list[i] = 2 * p->staging_bytes;
    }
    return SHEAF_OK;
}

sheaf_status plan_cut(meta_plan *p) {
    sheaf_status s = list_pieces(p);
    for (int i = 0; i < p->n_local && !s; i++) s = cut_member(p, i);
    if (!s) s = list_steps(p);
    return s ? s : sum_bytes(p);
}
