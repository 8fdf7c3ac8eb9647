/* One device's version of a node: what is written into its shard graph. Pure arithmetic on layouts that
 * the rules have let pass. */
#include "splitstate/rules_internal.h"

#include <inttypes.h>

static void compact_strides(sheaf_type type, sheaf_local *l) {
    l->nb[0] = sheaf_type_bytes(type);
    l->nb[1] = sheaf_row_bytes(type, l->ne[0]);
    l->nb[2] = l->nb[1] * (size_t)l->ne[1];
    l->nb[3] = l->nb[2] * (size_t)l->ne[2];
}

/* First global element of device's stretch of the cut dimension. */
static sheaf_status first_of(const sheaf_layout *l, int device, int64_t whole, int32_t *out) {
    int64_t first, length;
    if (!sheaf_layout_stretch(l, device, whole, &first, &length)) {
        return sheaf_fail(SHEAF_E_SHAPE, "device %d holds several stretches", device);
    }
    *out = (int32_t)first;
    return SHEAF_OK;
}

/* Elements that count on another device: of a whole row beside a cut one, all but on the first device that has a part
 * of the latter. */
static void skip_replicas(const sheaf_tensor *node, const sheaf_layout *src, int device, sheaf_params *p) {
    const sheaf_layout *cut = is_cut(&src[0]) ? &src[0] : &src[1];
    int owner = 0;
    while (owner < device && sheaf_layout_share(cut, owner, 0) == 0) owner++;
    for (int i = 0; i < 2; i++) {
        if (!node->src[i]) continue;
        int64_t skip = is_cut(&src[i])   ? sheaf_counted_elsewhere(&src[i], device)
                       : owner == device ? 0
                                         : node->src[i]->ne[0];
        p->sum_squares.skip[i] = (int32_t)skip;
    }
}

static sheaf_status local_params(const sheaf_tensor *node, const sheaf_layout *src, const sheaf_layout *result,
                                 int device, sheaf_params *p) {
    int32_t first = 0;
    sheaf_status s = SHEAF_OK;
    if (node->op == SHEAF_OP_ATTENTION) {
        if (is_axis(&src[0], 2)) s = first_of(&src[0], device, node->src[0]->ne[2], &first);
        p->attention.q_head0 += first;
        first = 0;
        if (!s && is_axis(&src[1], 2)) s = first_of(&src[1], device, node->src[1]->ne[2], &first);
        p->attention.kv_head0 += first;
    } else if (node->op == SHEAF_OP_SUM_SQUARES && result->kind == SHEAF_PARTIAL) {
        skip_replicas(node, src, device, p);
    } else if (node->op == SHEAF_OP_GET_ROWS && is_axis(&src[0], 1)) {
        s = first_of(&src[0], device, node->src[0]->ne[1], &first);
        p->rows.id_first += first;
    } else if (node->op == SHEAF_OP_BEST && is_axis(&src[0], 0)) {
        s = first_of(&src[0], device, node->src[0]->ne[0], &first);
        p->best.id_first += first;
    } else if (node->op == SHEAF_OP_SET_ROWS && is_axis(result, 1)) {
        s = first_of(result, device, node->ne[1], &first);
        p->rows.id_first += first;
    }
    return s;
}

/* A permutation's parameters name dimensions and stay; everything else is in `local_params`. */
sheaf_status sheaf_rule_local(const sheaf_tensor *node, const sheaf_layout *src, const sheaf_layout *root,
                              const sheaf_layout *result, int device, sheaf_local *out) {
    *out = (sheaf_local){.params = node->params};
    sheaf_status s = SHEAF_OK;
    if (node->view_src) {
        s = sheaf_view_local(node, root, device, out);
    } else {
        sheaf_layout_local_ne(result, device, node->ne, out->ne);
        if (sheaf_row_bytes(node->type, out->ne[0]) == SIZE_MAX) {
            s = sheaf_fail(SHEAF_E_SHAPE, "%s: device %d has %" PRId64 " elements of a row, not whole blocks",
                           node->name, device, out->ne[0]);
        } else {
            compact_strides(node->type, out);
        }
    }
    if (s) return s;
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) out->empty = out->empty || out->ne[i] == 0;
    return local_params(node, src, result, device, &out->params);
}
