/* The canonical order of addition: one binary tree over world device numbers, the same in every exact
 * engine, for any number of devices and however they are spread over processes.
 *
 * For N devices let P be the largest power of two that is not above N, and E = N - P. The first 2E
 * devices pair up, so that P *leaves* remain, in device order; above them stands the complete binary
 * tree. For N = 6 (P = 4, E = 2):
 *
 *                 +
 *            /         \
 *           +           +          level 2
 *         /   \        / \
 *        +     +      4   5        leaves: (0+1) (2+3) 4 5
 *       / \   / \
 *      0   1 2   3
 *
 * Every node covers a contiguous range of devices, so a process that holds devices [a, b) can add up
 * the nodes that lie inside its range and pass on fewer of them; whoever adds the rest gets the same
 * bits. It is also what a butterfly adds when the excess is folded in first. An empty device is no
 * addend at all: its sibling passes upward as it is.
 *
 * Pure functions on small values; no memory, no threads. */
#ifndef SHEAF_COLLECTIVES_CANONICAL_H
#define SHEAF_COLLECTIVES_CANONICAL_H

#include <stdbool.h>
#include <stdint.h>

enum { CANON_MAX_DEVICES = 64, CANON_MAX_DEPTH = 8 };

/* Devices [first, first + count) of a node of the tree. */
typedef struct canon_node {
    int32_t first, count;
} canon_node;

/* A sum as a stack program: a number pushes that leaf, CANON_ADD adds the two on top (lower left). */
enum { CANON_ADD = 0xff };
typedef struct canon_program {
    int32_t n;
    uint8_t code[2 * CANON_MAX_DEVICES];
} canon_program;

/* The largest power of two that is at most n (n >= 1). */
int canon_leaves(int n);
/* The leaf that device d is folded into, and the first device of leaf v, of n devices. */
int canon_leaf_of(int n, int d);
int canon_leaf_first(int n, int v);
/* The nodes of the tree over n devices that lie in [first, first + count) and in no larger such node, in
 * device order, without those that are all empty. Returns how many (at most 2 * CANON_MAX_DEPTH). */
int canon_forest(int n, int first, int count, uint64_t empty, canon_node *out);
/* The program that adds up `root` from `given` (disjoint nodes in device order which cover all its devices
 * that are not empty); leaf k is given[k]. An empty program means there is nothing to add. */
void canon_build(int n, canon_node root, uint64_t empty, const canon_node *given, int n_given, canon_program *out);

#endif
