/* shard: every value and node as one local member sees it. Shapes, strides, offsets and parameters come from
 * sheaf_rule_local; conversions become views and copies; what a member has no elements of is left out. */
#include <string.h>

#include "meta/plan_internal.h"

typedef struct sharder {
    meta_plan *p;
    plan_member *m;
    int device; /* of the world */
} sharder;

static sheaf_status out_of_memory(const sharder *x) { return sheaf_arena_status(x->p->arena); }

/* --- headers -------------------------------------------------------------------------------------------------- */

static void compact_strides(sheaf_tensor *t) {
    t->nb[0] = sheaf_type_bytes(t->type);
    t->nb[1] = sheaf_row_bytes(t->type, t->ne[0]);
    t->nb[2] = t->nb[1] * (size_t)t->ne[1];
    t->nb[3] = t->nb[2] * (size_t)t->ne[2];
}

static bool has_none(const sheaf_tensor *t) { return sheaf_nelements(t) == 0; }

static sheaf_status add_shard(sharder *x, const plan_shard *shard, int32_t *out) {
    plan_member *m = x->m;
    if (!plan_grow(x->p->arena, (void **)&m->shards, m->n_shards, &m->capacity, sizeof *m->shards))
        return out_of_memory(x);
    m->shards[m->n_shards] = *shard;
    *out = m->n_shards++;
    return SHEAF_OK;
}

static sheaf_status add_node(sharder *x, int32_t shard, int32_t item) {
    plan_member *m = x->m;
    if (!plan_grow(x->p->arena, (void **)&m->nodes, m->n_nodes, &m->nodes_capacity, sizeof *m->nodes))
        return out_of_memory(x);
    m->nodes[m->n_nodes++] = (plan_member_node){shard, item};
    return SHEAF_OK;
}

static plan_shard blank(const sheaf_tensor *of, sheaf_type type) {
    plan_shard s = {.root = -1, .place = {.chunk = -1}};
    s.header = (sheaf_tensor){.type = type, .index = -1};
    memcpy(s.header.name, of->name, sizeof s.header.name);
    memcpy(s.header.ne, of->ne, sizeof s.header.ne);
    for (int j = 0; j < SHEAF_MAX_SRC; j++) s.src[j] = -1;
    return s;
}

/* The fresh, compact shard of a value: leafs, conversions, results of collectives. */
static plan_shard whole_shard(const sharder *x, int32_t v) {
    const plan_value *value = &x->p->values[v];
    plan_shard s = blank(&x->p->slots[value->slot], value->type);
    s.home = value->home;
    sheaf_layout_local_ne(&value->layout, x->device, x->p->slots[value->slot].ne, s.header.ne);
    compact_strides(&s.header);
    s.empty = has_none(&s.header);
    return s;
}

/* --- nodes ------------------------------------------------------------------------------------------------------ */

/* The layouts that a node's sources have where it reads them. */
static void source_layouts(const meta_plan *p, const plan_item *t, sheaf_layout out[SHEAF_MAX_SRC]) {
    for (int j = 0; j < SHEAF_MAX_SRC; j++)
        out[j] = t->src[j] >= 0 ? p->values[t->src[j]].layout : sheaf_layout_mirrored();
}

/* Where a writer's destination is named as a source too: the view it was given, over the same root. */
static int32_t into_source(const meta_plan *p, const plan_item *t, int j) {
    int32_t slot = p->src_slot[t->node * SHEAF_MAX_SRC + j];
    if (slot < 0) return -1;
    int32_t v = p->first_value[slot];
    bool same_root = v == t->root || p->values[v].root == t->root;
    return same_root ? v : t->root;
}

/* Does this member add nothing to what value `v` will be summed to? */
static bool owes_nothing(const sharder *x, int32_t v) {
    const plan_value *value = &x->p->values[v];
    return value->layout.kind == SHEAF_PARTIAL && value->empty >> x->device & 1;
}

/* Of two addends that are joined, a member may have only one: it is taken as it is. */
static void keep_what_is_owed(const sharder *x, const plan_item *t, plan_shard *h) {
    if (h->header.op != SHEAF_OP_ADD || x->p->values[t->out].layout.kind != SHEAF_PARTIAL) return;
    for (int j = 0; j < 2; j++) {
        if (!owes_nothing(x, h->src[j])) continue;
        h->header.op = SHEAF_OP_CONT;
        h->src[0] = h->src[!j];
        h->src[1] = -1;
        return;
    }
}

static sheaf_status node_shard(sharder *x, int32_t item) {
    meta_plan *p = x->p;
    const plan_item *t = &p->items[item];
    const plan_value *v = &p->values[t->out];
    const sheaf_tensor *node = &p->slots[t->node];
    sheaf_layout src[SHEAF_MAX_SRC];
    sheaf_local local;
    source_layouts(p, t, src);
    sheaf_status s =
        sheaf_rule_local(node, src, t->root >= 0 ? &p->values[t->root].layout : NULL, &v->layout, x->device, &local);
    if (s) return s;
    plan_shard h = blank(node, v->type);
    h.home = v->home;
    h.header.op = t->as_view && !sheaf_op_is_header(node->op) ? SHEAF_OP_VIEW : node->op;
    h.header.flags = node->flags & ~(uint32_t)(SHEAF_FLAG_OUTPUT | SHEAF_FLAG_EXPORT);
    h.header.params = local.params;
    memcpy(h.header.ne, local.ne, sizeof local.ne);
    memcpy(h.header.nb, local.nb, sizeof local.nb);
    h.header.view_offs = local.view_offs;
    if (v->type != node->type) compact_strides(&h.header);
    h.root = v->root;
    for (int j = 0; j < SHEAF_MAX_SRC; j++) {
        h.src[j] = t->src[j];
        if (h.src[j] < 0 && t->root >= 0) h.src[j] = t->as_view ? (j == 0 ? t->root : -1) : into_source(p, t, j);
    }
    keep_what_is_owed(x, t, &h);
    bool contributes = !(v->layout.kind == SHEAF_PARTIAL && v->empty >> x->device & 1);
    h.empty = local.empty || has_none(&h.header) || !contributes;
    x->m->shards[t->out] = h;
    return h.empty ? SHEAF_OK : add_node(x, t->out, item);
}

/* --- cutting a part out of what a member has --------------------------------------------------------------------- */

/* A view of shard `of`: elements [first, first + length) of dimension `axis`. */
static sheaf_status part_view(sharder *x, int32_t of, int axis, int64_t first, int64_t length, int32_t item,
                              int32_t *out) {
    const plan_shard *from = &x->m->shards[of];
    plan_shard h = blank(&from->header, from->header.type);
    h.header.op = SHEAF_OP_VIEW;
    h.home = HOME_VIEW;
    h.root = from->root >= 0 ? from->root : of;
    memcpy(h.header.nb, from->header.nb, sizeof h.header.nb);
    h.header.ne[axis] = length;
    size_t steps = (size_t)(axis == 0 ? first / sheaf_type_block(h.header.type) : first);
    h.header.view_offs = from->header.view_offs + steps * from->header.nb[axis];
    h.src[0] = of;
    sheaf_status s = add_shard(x, &h, out);
    return s ? s : add_node(x, *out, item);
}

/* A stretch of the cut dimension: where it lies in the source's shard and in the result's. */
typedef struct stretch {
    int64_t from, to, length;
} stretch;

/* The next stretch of device's part of `want`; false at the end. The device has all of it in `have` too, so it lies
 * there in one piece: shards are compact, in the order of runs. `at` is the walk's state: a global index, 0 at the
 * start. */
static bool next_stretch(const sheaf_layout *have, const sheaf_layout *want, int device, int64_t *at, stretch *out) {
    int64_t begin = 0;
    for (int r = 0; r < want->n_runs; begin += want->runs[r++].length) {
        int64_t end = begin + want->runs[r].length;
        if (!(want->runs[r].devices >> device & 1) || end <= *at) continue;
        *out = (stretch){sheaf_layout_local_index(have, device, begin), sheaf_layout_local_index(want, device, begin),
                         want->runs[r].length};
        *at = end;
        return true;
    }
    return false;
}

/* One fresh copy of a part, or of parts one after another. */
static sheaf_status slice_shard(sharder *x, int32_t item) {
    meta_plan *p = x->p;
    const plan_item *t = &p->items[item];
    const sheaf_layout *have = &p->values[t->src[0]].layout, *want = &p->values[t->out].layout;
    plan_shard out = whole_shard(x, t->out);
    x->m->shards[t->out] = out;
    if (out.empty) return SHEAF_OK;
    int64_t at = 0, done = 0;
    int32_t parts = -1;
    stretch k;
    while (next_stretch(have, want, x->device, &at, &k)) {
        int32_t view;
        sheaf_status s = part_view(x, t->src[0], want->axis, k.from, k.length, item, &view);
        if (s) return s;
        bool last = done + k.length == out.header.ne[want->axis];
        plan_shard h = out;
        h.home = HOME_WORK;
        h.header.op = parts < 0 ? SHEAF_OP_CONT : SHEAF_OP_CONCAT;
        h.src[0] = parts < 0 ? view : parts;
        h.src[1] = parts < 0 ? -1 : view;
        if (parts >= 0) h.header.params.concat.dim = want->axis;
        done += k.length;
        h.header.ne[want->axis] = done;
        compact_strides(&h.header);
        parts = t->out;
        if (last) {
            h.home = out.home;
            x->m->shards[t->out] = h;
        } else {
            s = add_shard(x, &h, &parts);
        }
        if (!s) s = add_node(x, parts, item);
        if (s) return s;
    }
    return SHEAF_OK;
}

/* The gathered and written copy goes back: for each stretch a copy into the member's own part. */
static sheaf_status cut_back(sharder *x, int32_t item) {
    meta_plan *p = x->p;
    const plan_item *t = &p->items[item];
    const sheaf_layout *have = &p->values[t->src[0]].layout, *own = &p->values[t->out].layout;
    int64_t at = 0;
    stretch k;
    if (x->m->shards[t->out].empty) return SHEAF_OK;
    while (next_stretch(have, own, x->device, &at, &k)) {
        int32_t from = -1, to = -1, node;
        sheaf_status s = part_view(x, t->src[0], own->axis, k.from, k.length, item, &from);
        if (!s) s = part_view(x, t->out, own->axis, k.to, k.length, item, &to);
        if (s) return s;
        plan_shard h = x->m->shards[to];
        h.header.op = SHEAF_OP_CPY;
        h.src[0] = from;
        h.src[1] = to;
        s = add_shard(x, &h, &node);
        if (!s) s = add_node(x, node, item);
        if (s) return s;
    }
    return SHEAF_OK;
}

/* --- collectives -------------------------------------------------------------------------------------------------- */

/* What a collective reads must be compact: a strided view is copied first. */
static sheaf_status collective_shards(sharder *x, int32_t item) {
    meta_plan *p = x->p;
    const plan_item *t = &p->items[item];
    x->m->shards[t->out] = whole_shard(x, t->out);
    if (t->plain_out >= 0) x->m->shards[t->plain_out] = whole_shard(x, t->plain_out);
    if (t->norm_out >= 0) x->m->shards[t->norm_out] = whole_shard(x, t->norm_out);
    int32_t in = t->src[0];
    const plan_shard *from = &x->m->shards[in];
    x->m->compact_of[item] = from->empty ? -1 : in;
    if (from->empty || sheaf_is_contiguous(&from->header)) return SHEAF_OK;
    plan_shard h = blank(&from->header, from->header.type);
    h.header.op = SHEAF_OP_CONT;
    h.home = HOME_WORK;
    h.src[0] = in;
    compact_strides(&h.header);
    sheaf_status s = add_shard(x, &h, &x->m->compact_of[item]);
    return s ? s : add_node(x, x->m->compact_of[item], item);
}

static sheaf_status shard_item(sharder *x, int32_t item) {
    const plan_item *t = &x->p->items[item];
    if (t->dropped) return SHEAF_OK;
    switch (t->kind) {
    case ITEM_NODE: return node_shard(x, item);
    case ITEM_SLICE: return slice_shard(x, item);
    case ITEM_CUT_BACK: return cut_back(x, item);
    case ITEM_SUM:
    case ITEM_GATHER: return collective_shards(x, item);
    }
    return SHEAF_OK;
}

/* --- what is the same for all members -------------------------------------------------------------------------------
 */

/* World devices that have nothing to add: a source that is cut leaves them without elements. Where two addends are
 * joined, those that have neither. */
static uint64_t idle_devices(const meta_plan *p, const plan_item *t) {
    uint64_t set = 0;
    if (p->slots[t->node].op == SHEAF_OP_ADD) return p->values[t->src[0]].empty & p->values[t->src[1]].empty;
    for (int j = 0; j < SHEAF_MAX_SRC; j++) {
        if (t->src[j] < 0) continue;
        const sheaf_layout *l = &p->values[t->src[j]].layout;
        for (int d = 0; d < p->n_world && l->kind == SHEAF_AXIS; d++) {
            if (sheaf_layout_share(l, d, 0) == 0) set |= (uint64_t)1 << d;
        }
    }
    return set;
}

/* Addends of sums that are rounded once stay F64. */
static void describe_addends(meta_plan *p) {
    for (int32_t i = 0; i < p->n_items; i++) {
        const plan_item *t = &p->items[i];
        if (t->kind != ITEM_NODE || t->dropped || p->values[t->out].layout.kind != SHEAF_PARTIAL) continue;
        plan_value *v = &p->values[t->out];
        const sheaf_tensor *node = &p->slots[t->node];
        bool product = node->op == SHEAF_OP_MUL_MAT || node->op == SHEAF_OP_MUL_MAT_ID;
        if (product && node->params.mul_mat.accumulate == SHEAF_ACC_SEGMENTS) v->type = SHEAF_F64;
        if (node->op == SHEAF_OP_SUM_SQUARES) v->type = SHEAF_F64;
        v->empty = idle_devices(p, t);
    }
}

/* Addends lie where the communicator sums them. Two slots are used in turn: an addend may be written into
 * one only when the sum before it, which used the other, is over; a sum whose addend comes sooner is not staged. */
static void stage_addends(meta_plan *p) {
    int32_t last = -1;
    for (int32_t i = 0; i < p->n_items; i++) {
        const plan_item *t = &p->items[i];
        if (t->kind != ITEM_SUM || t->dropped) continue;
        plan_value *v = &p->values[t->src[0]];
        if (v->home != HOME_WORK || v->uses != 1 || v->made_by <= last || p->items[v->made_by].kind != ITEM_NODE)
            continue;
        v->home = HOME_STAGING;
        v->staging = p->n_staged++;
        size_t bytes = plan_payload(p, v);
        p->staging_bytes = bytes > p->staging_bytes ? bytes : p->staging_bytes;
        last = i;
    }
}

/* The newest version of what crosses is what the outside sees. */
static void describe_crossings(meta_plan *p) {
    for (int32_t i = p->n_leafs; i < p->n_slots; i++) {
        if (!crosses(&p->slots[i]) || p->root_slot[i] >= 0) continue;
        int32_t v = p->first_value[i];
        for (int32_t k = v; k >= 0; k = p->values[k].next_version) {
            if (p->values[k].layout.kind == SHEAF_MIRRORED) v = k;
        }
        p->values[v].home = HOME_IO;
    }
}

static sheaf_status list_crossings(meta_plan *p) {
    int32_t capacity = 0;
    for (int32_t v = 0; v < p->n_values; v++) {
        if (p->values[v].home != HOME_IO) continue;
        if (!plan_grow(p->arena, (void **)&p->crossing, p->n_crossings, &capacity, sizeof *p->crossing))
            return sheaf_arena_status(p->arena);
        p->crossing[p->n_crossings++] = v;
    }
    p->announced = sheaf_arena_alloc(p->arena, (size_t)p->n_crossings * sizeof(meta_ext *) + 1);
    for (int32_t k = 0; p->announced && k < p->n_crossings; k++) {
        meta_ext *e = sheaf_arena_alloc(p->arena, sizeof *e);
        if (!e) break;
        *e = (meta_ext){.device = p->device, .layout = p->values[p->crossing[k]].layout};
        p->announced[k] = e;
    }
    return sheaf_arena_status(p->arena);
}

static sheaf_status shard_member(meta_plan *p, int i) {
    sharder x = {p, &p->members[i], p->first + i};
    plan_member *m = x.m;
    m->capacity = p->n_values + 16;
    m->shards = sheaf_arena_alloc(p->arena, (size_t)m->capacity * sizeof *m->shards);
    m->compact_of = sheaf_arena_alloc(p->arena, (size_t)p->n_items * sizeof *m->compact_of + 1);
    if (!m->shards || !m->compact_of) return sheaf_arena_status(p->arena);
    m->n_shards = p->n_values;
    for (int32_t v = 0; v < p->n_values; v++) {
        if (p->values[v].made_by < 0) m->shards[v] = whole_shard(&x, v);
    }
    for (int32_t k = 0; k < p->n_items; k++) {
        sheaf_status s = shard_item(&x, k);
        if (s) return s;
    }
    return SHEAF_OK;
}

sheaf_status plan_shard_members(meta_plan *p) {
    describe_crossings(p);
    describe_addends(p);
    stage_addends(p);
    sheaf_status s = list_crossings(p);
    if (s) return s;
    p->members = sheaf_arena_alloc(p->arena, (size_t)p->n_local * sizeof *p->members);
    if (!p->members) return sheaf_arena_status(p->arena);
    for (int i = 0; i < p->n_local && !s; i++) s = shard_member(p, i);
    return s;
}
