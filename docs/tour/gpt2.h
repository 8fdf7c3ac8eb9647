/* What the five programs of the tour share: GPT-2 itself. Where any of its bytes lie is each program's own affair.
 *
 * Nouns: a *gpt2* (an opened file: numbers, and headers of weights and caches that have no bytes yet) and a *graph*
 * (the forward pass of a few tokens, headers only). A program gives the headers bytes, and hands in two functions:
 *
 *     gpt2_open(argc, argv, 1, &m);          the command line, the file, headers in m.weights and m.state
 *     ... give those their bytes ...
 *     gpt2_load(&m, set);                    the file's bytes into the weights, through `set`
 *     gpt2_generate(&m, eval, ctx);          calls eval for each few tokens, prints what comes out
 */
#ifndef TOUR_GPT2_H
#define TOUR_GPT2_H

#include <sheaf.h>

enum { GPT2_BATCH = 16 }; /* tokens that run at once; a longer prompt takes several runs */

typedef struct gpt2 {
    sheaf_gguf *file;
    int64_t n_layer, n_head, n_embd, n_vocab, n_ctx;
    float eps;
    sheaf_arena *weights; /* headers as in the file, by name */
    sheaf_arena *state;   /* blk.N.cache_k and blk.N.cache_v {n_embd, n_ctx}: keys and values of what was seen */
    sheaf_arena *layouts;
    sheaf_named *named; /* all of these, and where each belongs on n_devices */
    sheaf_placement *placement;
    int32_t n_named;
    int32_t *prompt; /* from the command line */
    int32_t n_prompt, n_new;
} gpt2;

/* Copies `size` bytes into a whole tensor. */
typedef sheaf_status (*gpt2_set)(sheaf_tensor *t, const void *bytes, size_t size);
/* Runs n tokens that follow n_past others; logits of the last one, n_vocab floats. */
typedef sheaf_status (*gpt2_eval)(void *ctx, const int32_t *token, int n, int n_past, float *logits);

/* PROGRAM MODEL.gguf N ID...: the prompt's ids, and how many to add. N = 0: prints the prompt's logits instead. */
sheaf_status gpt2_open(int argc, char **argv, int n_devices, gpt2 *m);
void gpt2_close(gpt2 *m);
sheaf_status gpt2_load(const gpt2 *m, gpt2_set set);
sheaf_status gpt2_generate(const gpt2 *m, gpt2_eval eval, void *ctx);

/* The pass of n tokens after n_past, sealed; inputs "tokens", "positions", "cells", "mask", "last", output "logits". */
sheaf_status gpt2_graph(const gpt2 *m, sheaf_arena *a, int n, int n_past, sheaf_graph **out);
/* The largest that ever runs. */
sheaf_status gpt2_worst_graph(const gpt2 *m, sheaf_arena *a, sheaf_graph **out);
sheaf_status gpt2_feed(const sheaf_graph *g, const int32_t *token, int n, int n_past, gpt2_set set);
const sheaf_placement *gpt2_placement(const gpt2 *m, const char *name); /* NULL: no such tensor */

#endif
