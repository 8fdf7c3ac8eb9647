/* Files of one element type into files of another: which tensor gets which type, and the work.
 *
 * Nouns: a *mix* (what a name like Q4_K_M means: a type, and rules that give some tensors more bits), a *plan* (the
 * type of every tensor; a value that can be printed before anything is done), an *imatrix* (per tensor, how much each
 * input column matters). Types, rules and bytes are llama.cpp's, so that a file made here is the file made there.
 *
 *     sheaf_quantize_options o = {.mix = sheaf_mix_find("Q4_K_M")};
 *     sheaf_quantize_plan(g, &o, NULL, &plan);
 *     sheaf_quantize(g, plan, "out.gguf", &o, NULL);
 *     sheaf_quantize_plan_free(plan);
 *
 * Memory: one piece of at most about a million elements per thread, whatever the file's size. */
#ifndef SHEAF_MODELS_QUANTIZE_H
#define SHEAF_MODELS_QUANTIZE_H

#include "tensor/gguf.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- mixes --- */

typedef struct sheaf_mix {
    const char *name;
    uint32_t file_type; /* general.file_type */
    sheaf_type type;    /* of what no rule speaks about */
    const char *help;
} sheaf_mix;

SHEAF_API const sheaf_mix *sheaf_mix_find(const char *name); /* case-insensitive, or the file type's number; NULL */
SHEAF_API const sheaf_mix *sheaf_mix_at(int i);              /* NULL past the end */

/* --- importance --- */

typedef struct sheaf_imatrix sheaf_imatrix;

/* GGUF (general.type imatrix) or the older .dat; told apart by content. Hostile until checked, like any input. */
SHEAF_API sheaf_status sheaf_imatrix_open(const char *path, sheaf_imatrix **out);
SHEAF_API sheaf_status sheaf_imatrix_open_memory(const void *bytes, size_t n, sheaf_imatrix **out);
SHEAF_API void sheaf_imatrix_free(sheaf_imatrix *m);
/* Weights of a tensor: columns x matrices of them, matrix by matrix. NULL: none. */
SHEAF_API const float *sheaf_imatrix_find(const sheaf_imatrix *m, sheaf_str tensor, int64_t *n);
SHEAF_API int sheaf_imatrix_entries(const sheaf_imatrix *m);
SHEAF_API uint32_t sheaf_imatrix_chunks(const sheaf_imatrix *m);     /* 0: not said */
SHEAF_API const char *sheaf_imatrix_dataset(const sheaf_imatrix *m); /* "" when not said */
SHEAF_API const char *sheaf_imatrix_path(const sheaf_imatrix *m);

/* --- the plan --- */

typedef struct sheaf_tensor_override {
    const char *pattern; /* PCRE2, found anywhere in the name */
    sheaf_type type;
} sheaf_tensor_override;

typedef struct sheaf_quantize_progress {
    const sheaf_gguf_tensor *tensor; /* being worked on */
    sheaf_type to;
    uint64_t done, total; /* bytes of the input */
} sheaf_quantize_progress;

typedef struct sheaf_quantize_options {
    const sheaf_mix *mix;  /* NULL: copy */
    bool allow_requantize; /* of what is quantized already */
    bool pure;             /* the mix's type for every matrix, no rules */
    bool leave_output;     /* output.weight stays as it is */
    bool has_output_type, has_embedding_type;
    sheaf_type output_type, embedding_type;
    const sheaf_tensor_override *overrides; /* the first that matches counts */
    int n_overrides;
    int threads; /* 0: the process's default */
    /* Called now and then on the calling thread; false stops with SHEAF_E_CANCELLED. NULL: never. */
    bool (*progress)(void *ctx, const sheaf_quantize_progress *p);
    void *ctx;
} sheaf_quantize_options;

typedef struct sheaf_quantize_row {
    sheaf_type to;
    uint64_t bytes;  /* in the new file */
    bool fallback;   /* its rows are no whole blocks of the type it should have had */
    bool unweighted; /* an imatrix was given and does not know it */
} sheaf_quantize_row;

/* A row per tensor of g, in its order; free with sheaf_free. Refuses what the file or the options do not allow
 * (a quantized source without allow_requantize, a bad pattern, an imatrix of other shapes) before any work. */
SHEAF_API sheaf_status sheaf_quantize_plan(const sheaf_gguf *g, const sheaf_quantize_options *o, const sheaf_imatrix *m,
                                           sheaf_quantize_row **out);
/* Does it. `path` gets the whole new file or stays as it is; it may not be a file of g. */
SHEAF_API sheaf_status sheaf_quantize(const sheaf_gguf *g, const sheaf_quantize_row *plan, const char *path,
                                      const sheaf_quantize_options *o, const sheaf_imatrix *m);

#ifdef __cplusplus
}
#endif
#endif
