/* The tree as functions of device numbers: see canonical.h. Recursion here is bounded by the depth of
 * a tree of CANON_MAX_DEVICES leaves, seven, never by input. */
#include "collectives/canonical.h"

int canon_leaves(int n) {
    int p = 1;
    while (p * 2 <= n) p *= 2;
    return p;
}

int canon_leaf_of(int n, int d) {
    int excess = n - canon_leaves(n);
    return d < 2 * excess ? d / 2 : d - excess;
}

int canon_leaf_first(int n, int v) {
    int excess = n - canon_leaves(n);
    return v < excess ? 2 * v : v + excess;
}

/* The first device of the right child of a node with at least two devices. */
static int middle(int n, canon_node node) {
    int v0 = canon_leaf_of(n, node.first), v1 = canon_leaf_of(n, node.first + node.count - 1);
    if (v0 == v1) return node.first + 1;
    return canon_leaf_first(n, v0 + (v1 - v0 + 1) / 2);
}

static bool all_empty(canon_node node, uint64_t empty) {
    for (int d = node.first; d < node.first + node.count; d++) {
        if (!(empty >> d & 1)) return false;
    }
    return true;
}

static void halves(int n, canon_node node, canon_node *left, canon_node *right) {
    int mid = middle(n, node);
    *left = (canon_node){node.first, mid - node.first};
    *right = (canon_node){mid, node.first + node.count - mid};
}

static int walk_forest(int n, canon_node node, canon_node range, uint64_t empty, canon_node *out, int have) {
    int end = node.first + node.count, range_end = range.first + range.count;
    if (node.first >= range_end || end <= range.first || all_empty(node, empty)) return have;
    if (node.first >= range.first && end <= range_end) {
        out[have] = node;
        return have + 1;
    }
    canon_node left, right;
    halves(n, node, &left, &right);
    have = walk_forest(n, left, range, empty, out, have);
    return walk_forest(n, right, range, empty, out, have);
}

int canon_forest(int n, int first, int count, uint64_t empty, canon_node *out) {
    if (count <= 0) return 0;
    return walk_forest(n, (canon_node){0, n}, (canon_node){first, count}, empty, out, 0);
}

static bool walk_build(int n, canon_node node, uint64_t empty, const canon_node *given, int n_given,
                       canon_program *out) {
    if (all_empty(node, empty)) return false;
    for (int k = 0; k < n_given; k++) {
        if (given[k].first == node.first && given[k].count == node.count) {
            out->code[out->n++] = (uint8_t)k;
            return true;
        }
    }
    if (node.count <= 1) return false;
    canon_node left, right;
    halves(n, node, &left, &right);
    bool l = walk_build(n, left, empty, given, n_given, out);
    bool r = walk_build(n, right, empty, given, n_given, out);
    if (l && r) out->code[out->n++] = CANON_ADD;
    return l || r;
}

void canon_build(int n, canon_node root, uint64_t empty, const canon_node *given, int n_given, canon_program *out) {
    out->n = 0;
    walk_build(n, root, empty, given, n_given, out);
}
