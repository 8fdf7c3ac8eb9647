/* The plan checker: the invariants of plan_internal.h, one function each. Always on in debug builds and
 * tests; SHEAF_CHECK=1 turns it on elsewhere. */
#include "meta/plan_internal.h"

static sheaf_status broken(const meta_plan *p, int32_t v, int32_t item, const char *rule) {
    return sheaf_fail(SHEAF_E_INTERNAL, "plan: item %d, value of %s: %s", item,
                      v >= 0 ? p->slots[p->values[v].slot].name : "-", rule);
}

/* Sums that are joined stay owed. */
static bool keeps_owing(const meta_plan *p, const plan_item *t) {
    return t->kind == ITEM_NODE && p->slots[t->node].type == SHEAF_F64 &&
           p->values[t->out].layout.kind == SHEAF_PARTIAL;
}

/* 1 and 2: read after made, addends only by their sum or by an addition of addends. */
static sheaf_status check_read(const meta_plan *p, int32_t v, int32_t item) {
    if (v < 0) return SHEAF_OK;
    if (v >= p->n_values) return broken(p, -1, item, "reads no value");
    if (p->values[v].made_by >= item) return broken(p, v, item, "read before it is made");
    if (p->values[v].layout.kind == SHEAF_PARTIAL && p->items[item].kind != ITEM_SUM &&
        !keeps_owing(p, &p->items[item]))
        return broken(p, v, item, "addends read as a value");
    return SHEAF_OK;
}

static sheaf_status check_items(const meta_plan *p) {
    for (int32_t i = 0; i < p->n_items; i++) {
        const plan_item *t = &p->items[i];
        if (t->dropped) continue;
        for (int j = 0; j < SHEAF_MAX_SRC; j++) {
            sheaf_status s = check_read(p, t->src[j], i);
            if (s) return s;
        }
        sheaf_status s = check_read(p, t->root, i);
        if (!s) s = check_read(p, t->residual, i);
        if (!s) s = check_read(p, t->norm_weight, i);
        if (s) return s;
        if (t->kind != ITEM_CUT_BACK && p->values[t->out].made_by != i)
            return broken(p, t->out, i, "made by another item");
    }
    return SHEAF_OK;
}

/* 3: one list of steps serves all members, so only its order against the items can be wrong. */
static sheaf_status check_steps(const meta_plan *p) {
    int32_t at = -1;
    for (int32_t k = 0; k < p->n_steps; k++) {
        const plan_step *s = &p->steps[k];
        int32_t item = s->is_collective ? s->item : p->pieces[s->piece].first_item;
        if (item < at) return broken(p, -1, item, "steps are out of order");
        at = item;
    }
    return SHEAF_OK;
}

/* 4: inside their chunk. That none overlap while alive was checked in cut.c, where lifetimes are known. */
static sheaf_status check_places(const plan_member *m) {
    for (int32_t s = 0; s < m->n_shards; s++) {
        const plan_shard *x = &m->shards[s];
        if (x->home != HOME_WORK || x->place.chunk < 0) continue;
        if (x->place.chunk >= m->n_chunks ||
            x->place.offset + sheaf_nbytes(&x->header) > m->chunk_bytes[x->place.chunk]) {
            return sheaf_fail(SHEAF_E_INTERNAL, "plan: shard %d (%s) leaves its workspace", s, x->header.name);
        }
    }
    return SHEAF_OK;
}

static sheaf_status check_graphs(const meta_plan *p) {
    for (int32_t k = 0; k < p->n_pieces; k++) {
        for (int i = 0; i < p->n_local; i++) {
            sheaf_status s = p->pieces[k].graphs[i] ? sheaf_graph_check(p->pieces[k].graphs[i]) : SHEAF_OK;
            if (s) return sheaf_error_context(s, "piece %d of member %d", k, i);
        }
    }
    return SHEAF_OK;
}

sheaf_status sheaf_plan_check(const sheaf_plan *plan) {
    const meta_plan *p = (const meta_plan *)plan;
    sheaf_status s = check_items(p);
    if (!s) s = check_steps(p);
    for (int i = 0; i < p->n_local && !s; i++) s = check_places(&p->members[i]);
    return s ? s : check_graphs(p);
}
