/* Random graphs, and an interpreter too simple to be wrong, to run them at any addresses. */
#ifndef SHEAF_TESTS_TENSOR_RANDOM_GRAPH_H
#define SHEAF_TESTS_TENSOR_RANDOM_GRAPH_H

#include "tensor/tensor.h"
#include "tests/support/support.h"

/* A sealed graph in `a` of at most `n_nodes` + a few f32 nodes: about a fifth views, a fifth ops that may work in
 * place, some inputs, some constants, some outputs (views among them). */
sheaf_graph *random_graph(rng *r, sheaf_arena *a, int n_nodes);

/* Writes every leaf that has an address: the same numbers for the same slot. */
void fill_leafs(const sheaf_graph *g, void *const *addr);
/* Computes the nodes in order; addr[slot] for every slot, views included. In-place ops write as they
 * read, element by element or row by row, as a kernel would. */
void interpret(const sheaf_graph *g, void *const *addr);

#endif
