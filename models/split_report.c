/* What lies where: one row a tensor, and bytes per device, measured and computed. */
#include "models/model_internal.h"

#include <string.h>

bool sheaf_model_split_row(const sheaf_model *m, int i, sheaf_split_row *out) {
    if (i < 0 || i >= m->n_named) return false;
    const sheaf_named *n = &m->named[i];
    const sheaf_placement *p = &m->placement[i];
    bool kv = i >= m->n_weights;
    *out = (sheaf_split_row){.name = n->name,
                             .type = n->type,
                             .layout = p->layout,
                             .group = p->group,
                             .rule = p->rule,
                             .usage = kv ? SHEAF_USAGE_STATE : SHEAF_USAGE_WEIGHTS};
    memcpy(out->ne, n->ne, sizeof out->ne);
    out->n_dims = 4;
    while (out->n_dims > 1 && out->ne[out->n_dims - 1] == 1) out->n_dims--;
    return true;
}

static size_t shard_bytes(const sheaf_layout *l, int device, sheaf_type type, const int64_t ne[4]) {
    int64_t local[4];
    sheaf_layout_local_ne(l, device, ne, local);
    return local[0] > 0 ? sheaf_row_bytes(type, local[0]) * (size_t)(local[1] * local[2] * local[3]) : 0;
}

/* Bytes of weights that every device holds whole. */
static size_t mirrored_bytes(const sheaf_model *m) {
    size_t bytes = 0;
    for (int32_t i = 0; i < m->n_weights; i++)
        if (m->placement[i].layout.kind == SHEAF_MIRRORED) bytes += (size_t)m->source[i]->bytes;
    return bytes;
}

/* Bytes that tensors of these sizes take one after another in memory of this type. */
static size_t in_a_row(size_t sum, size_t bytes, const sheaf_buffer_type *type) {
    size_t aligned;
    if (!sheaf_align_up(bytes, type->alignment, &aligned)) return sum;
    return sum + aligned;
}

static bool start(const sheaf_context *c, int i, sheaf_memory_row *out) {
    const sheaf_model *m = c->model;
    if (i < 0 || i >= m->n_members) return false;
    *out = (sheaf_memory_row){.mirrored_bytes = m->is_meta ? mirrored_bytes(m) : 0};
    memcpy(out->device, m->members[i]->name, sizeof out->device);
    return true;
}

bool sheaf_context_memory(const sheaf_context *c, int i, sheaf_memory_row *out) {
    const sheaf_model *m = c->model;
    if (!start(c, i, out)) return false;
    if (m->is_meta) {
        out->weight_bytes = sheaf_meta_bytes(m->device, i, SHEAF_USAGE_WEIGHTS);
        out->kv_bytes = sheaf_meta_bytes(m->device, i, SHEAF_USAGE_STATE);
        out->staging_bytes = c->plan_staging[i]; /* the communicator's slots, which the device counts as compute */
        out->compute_bytes = sheaf_meta_bytes(m->device, i, SHEAF_USAGE_COMPUTE) - out->staging_bytes;
    } else {
        out->weight_bytes = m->weight_bytes;
        out->kv_bytes = c->kv ? c->kv->size : 0;
        out->compute_bytes = sheaf_sched_get_stats(c->sched).compute_bytes[0];
    }
    return true;
}

bool sheaf_context_memory_estimate(const sheaf_context *c, int i, sheaf_memory_row *out) {
    const sheaf_model *m = c->model;
    if (!start(c, i, out)) return false;
    int device = m->is_meta ? sheaf_meta_first(m->device) + i : 0;
    const sheaf_buffer_type *type = m->members[i]->buffer_type;
    sheaf_layout whole = sheaf_layout_mirrored();
    for (int32_t k = 0; k < m->n_named; k++) {
        const sheaf_layout *l = m->is_meta ? &m->placement[k].layout : &whole;
        int64_t ne[4];
        memcpy(ne, m->named[k].ne, sizeof ne);
        bool kv = k >= m->n_weights, value = (k - m->n_weights) % 2;
        if (kv) ne[1] = context_layer_cells(c, (k - m->n_weights) / 2);
        sheaf_type t = kv ? (value ? c->o.type_v : c->o.type_k) : m->named[k].type;
        size_t *sum = kv ? &out->kv_bytes : &out->weight_bytes;
        *sum = in_a_row(*sum, shard_bytes(l, device, t, ne), type);
    }
    out->compute_bytes = m->is_meta ? c->plan_compute[i] : sheaf_sched_get_stats(c->sched).compute_bytes[0];
    out->staging_bytes = m->is_meta ? c->plan_staging[i] : 0;
    return true;
}
