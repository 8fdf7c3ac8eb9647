/* delay: makes sums cheaper without changing a bit: what follows a sum on the same rows is done by the
 * collective while each row is still in cache.
 *
 *     p = mul_mat(w, x)      PARTIAL
 *     m = sum(p)             \
 *     y = add(m, residual)    > one collective: y = sum + residual, z = rms_norm(y) * weight
 *     z = rms_norm(y)        /
 *
 * Moving a sum past an operation (bias, mirrored factors, a second partial branch) changes its rounding: a
 * world of one adds in another order. Rules mark where that would be allowed (`linear`); with sums of fixed
 * order, which is what the CPU promises, it is not done. A graph that wants several sums to be one says so
 * itself: its addends stay F64, are joined by F64 additions (splitstate/, "two sums as one") and end in a `round`,
 * on one device as on many. */
#include <string.h>

#include "meta/plan_internal.h"

/* The next item that is not a header op, from `i` on; -1 at the end. */
static int32_t next_work(const meta_plan *p, int32_t i) {
    for (; i < p->n_items; i++) {
        const plan_item *t = &p->items[i];
        if (t->dropped || t->as_view) continue;
        return i;
    }
    return -1;
}

static bool made_before(const meta_plan *p, int32_t v, int32_t item) { return p->values[v].made_by < item; }

/* Is the value made by a sum read by nobody but one item? */
static bool only_for(const meta_plan *p, int32_t v) {
    return p->values[v].uses == 1 && !crosses(&p->slots[p->values[v].slot]);
}

/* sum, round -> sum: that is what rounds. */
static void fuse_round(meta_plan *p, int32_t at) {
    plan_item *sum = &p->items[at];
    int32_t k = next_work(p, at + 1);
    if (k < 0 || p->items[k].kind != ITEM_NODE || p->slots[p->items[k].node].op != SHEAF_OP_ROUND) return;
    plan_item *round = &p->items[k];
    if (round->src[0] != sum->out || !only_for(p, sum->out)) return;
    p->values[sum->out].uses = 0;
    sum->out = round->out;
    p->values[round->out].made_by = at;
    round->dropped = true;
}

/* sum, add -> sum with residual. */
static void fuse_add(meta_plan *p, int32_t at) {
    plan_item *sum = &p->items[at];
    int32_t k = next_work(p, at + 1), m = sum->out;
    if (k < 0 || p->items[k].kind != ITEM_NODE || p->slots[p->items[k].node].op != SHEAF_OP_ADD || !only_for(p, m))
        return;
    plan_item *add = &p->items[k];
    int side = add->src[0] == m ? 0 : add->src[1] == m ? 1 : -1;
    if (side < 0) return;
    int32_t other = add->src[!side];
    const sheaf_tensor *node = &p->slots[add->node];
    bool fits = p->values[other].layout.kind == SHEAF_MIRRORED && made_before(p, other, at) &&
                sheaf_same_shape(&p->slots[p->values[other].slot], node) &&
                sheaf_same_shape(&p->slots[p->values[m].slot], node) &&
                sheaf_is_contiguous(&p->slots[p->values[other].slot]);
    if (!fits) return;
    sum->add = true;
    sum->residual = other;
    sum->add_node = add->node;
    sum->plain_out = m;
    sum->out = add->out;
    p->values[add->out].made_by = at;
    p->values[m].uses = 0;
    add->dropped = true;
}

/* sum, rms_norm -> sum with norm. */
static void fuse_norm(meta_plan *p, int32_t at) {
    plan_item *sum = &p->items[at];
    int32_t k = next_work(p, at + 1);
    if (k < 0 || p->items[k].kind != ITEM_NODE || p->slots[p->items[k].node].op != SHEAF_OP_RMS_NORM) return;
    plan_item *norm = &p->items[k];
    int32_t weight = norm->src[1];
    if (norm->src[0] != sum->out || p->values[norm->out].layout.kind != SHEAF_MIRRORED) return;
    if (weight >= 0 && (p->values[weight].layout.kind != SHEAF_MIRRORED || !made_before(p, weight, at))) return;
    sum->norm = true;
    sum->norm_weight = weight;
    sum->norm_node = norm->node;
    sum->norm_out = norm->out;
    sum->eps = p->slots[norm->node].params.norm.eps;
    p->values[norm->out].made_by = at;
    norm->dropped = true;
}

/* Members whose memory is not the host's have no row kernels to lend. */
static bool members_can_norm(const meta_plan *p) {
    for (int i = 0; i < p->n_local; i++) {
        sheaf_device *d = p->device->members[i];
        if (!d->iface->row_kernels || !d->iface->row_kernels(d)) return false;
    }
    return true;
}

sheaf_status plan_delay(meta_plan *p) {
    bool norms = members_can_norm(p);
    for (int32_t i = 0; i < p->n_items; i++) {
        if (p->items[i].kind != ITEM_SUM) continue;
        fuse_round(p, i);
        fuse_add(p, i);
        if (norms) fuse_norm(p, i);
    }
    return SHEAF_OK;
}
