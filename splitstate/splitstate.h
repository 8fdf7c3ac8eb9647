/* Layouts: where the elements of one tensor live on N devices; the rules that carry a layout through
 * an op; the policy that gives a named tensor its layout. Pure functions on values: no buffers, no
 * devices, no I/O. Links only tensor/.
 *
 * Nouns: a *layout* (MIRRORED, AXIS with runs, PARTIAL), a *run* (a stretch of the cut dimension and
 * the devices that hold it), a *shard* (one device's elements: compact, in run order), a *rule* (op ->
 * layout), a *policy* (tensor name -> layout).
 *
 *     9 query heads of 64 on 2 devices, 3 KV heads, the middle one on both:
 *        q: AXIS(0) [320:{0}] [256:{1}]            k: AXIS(0) [64:{0}] [64:{0,1}] [64:{1}]
 *
 * Layouts are values whose run list lies in an arena that must outlive them; they are never changed.
 */
#ifndef SHEAF_SPLITSTATE_SPLITSTATE_H
#define SHEAF_SPLITSTATE_SPLITSTATE_H

#include "tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SHEAF_MAX_DEVICES = 64 };
typedef uint64_t sheaf_device_set; /* bit d: device d of the world */

typedef struct sheaf_run {
    int64_t length;           /* elements of the cut dimension, > 0 */
    sheaf_device_set devices; /* never empty */
} sheaf_run;

typedef enum sheaf_layout_kind { SHEAF_MIRRORED, SHEAF_AXIS, SHEAF_PARTIAL } sheaf_layout_kind;

typedef struct sheaf_layout {
    sheaf_layout_kind kind;
    int32_t axis;   /* AXIS only: 0..3 */
    int32_t n_runs; /* AXIS only */
    const sheaf_run *runs;
} sheaf_layout;

/* --- the algebra -------------------------------------------------------------------------------- */

static inline sheaf_layout sheaf_layout_mirrored(void) {
    sheaf_layout l = {SHEAF_MIRRORED, 0, 0, NULL};
    return l;
}
static inline sheaf_layout sheaf_layout_partial(void) {
    sheaf_layout l = {SHEAF_PARTIAL, 0, 0, NULL};
    return l;
}
/* AXIS over a copy of `runs` in `a`, neighbours with equal device sets merged. If every run is on all
 * `n_devices` the result is MIRRORED (its only spelling). */
SHEAF_API sheaf_status sheaf_layout_axis(sheaf_arena *a, int axis, const sheaf_run *runs, int n_runs, int n_devices,
                                         sheaf_layout *out);
/* Contiguous cut: share[d] elements to device d, in device order; zeros are empty shares. */
SHEAF_API sheaf_status sheaf_layout_shares(sheaf_arena *a, int axis, const int64_t *share, int n_devices,
                                           sheaf_layout *out);
SHEAF_API bool sheaf_layout_equal(const sheaf_layout *x, const sheaf_layout *y);
SHEAF_API int64_t sheaf_layout_length(const sheaf_layout *l); /* sum of run lengths; 0 unless AXIS */
SHEAF_API int64_t sheaf_layout_share(const sheaf_layout *l, int device,
                                     int64_t whole); /* device's elements of the cut dimension; `whole` unless AXIS */
/* ne of device's shard of a tensor of shape ne[4]. */
SHEAF_API void sheaf_layout_local_ne(const sheaf_layout *l, int device, const int64_t ne[4], int64_t out[4]);
/* Elements [begin, end) of the cut dimension as a layout of their own. */
SHEAF_API sheaf_status sheaf_layout_slice(sheaf_arena *a, const sheaf_layout *l, int64_t begin, int64_t end,
                                          int n_devices, sheaf_layout *out);
/* Every length times num/den; SHEAF_E_SHAPE if a border does not come out whole. */
SHEAF_API sheaf_status sheaf_layout_scale(sheaf_arena *a, const sheaf_layout *l, int64_t num, int64_t den,
                                          sheaf_layout *out);
SHEAF_API sheaf_layout sheaf_layout_on_axis(const sheaf_layout *l, int axis); /* same runs along another dimension */
/* Run borders of both: out's runs lie inside runs of x and of y; devices of x. Not merged, so only for
 * walking two layouts side by side. Both must be AXIS of one length. */
SHEAF_API sheaf_status sheaf_layout_refine(sheaf_arena *a, const sheaf_layout *x, const sheaf_layout *y,
                                           sheaf_layout *out);
/* The same with each run on its first device only: every element exactly once. */
SHEAF_API sheaf_status sheaf_layout_single(sheaf_arena *a, const sheaf_layout *l, int n_devices, sheaf_layout *out);
SHEAF_API bool sheaf_layout_is_single(const sheaf_layout *l); /* AXIS with each run on exactly one device */
/* x's runs, then y's, along one axis (concat, fused parts). */
SHEAF_API sheaf_status sheaf_layout_join(sheaf_arena *a, const sheaf_layout *x, const sheaf_layout *y, int n_devices,
                                         sheaf_layout *out);
/* If device holds exactly one unbroken stretch of the cut dimension (or all of it): its first element and
 * length; an empty stretch if it holds nothing; false if it holds several. */
SHEAF_API bool sheaf_layout_stretch(const sheaf_layout *l, int device, int64_t whole, int64_t *first, int64_t *length);
SHEAF_API sheaf_device_set sheaf_all_devices(int n_devices);
/* Does every device hold in `have` all that it holds in `need` (same axis and length)? */
SHEAF_API bool sheaf_layout_covers(const sheaf_layout *have, const sheaf_layout *need, int n_devices);
/* Offset of global element `i` of the cut dimension in device's compact shard; -1 if it has none. */
SHEAF_API int64_t sheaf_layout_local_index(const sheaf_layout *l, int device, int64_t i);
SHEAF_API sheaf_status sheaf_layout_check(const sheaf_layout *l, const int64_t ne[4],
                                          int n_devices); /* every rule of the value (case A27) */
SHEAF_API const char *sheaf_layout_text(const sheaf_layout *l, char *buf,
                                        size_t n); /* "AXIS(0) [320:{0}] [256:{1}]"; returns buf */
SHEAF_API uint64_t sheaf_layout_hash(const sheaf_layout *l);

/* A walk over the pieces of a tensor that one device holds: for set/get/copies of any layout there is
 * one piece of segment arithmetic, this. A piece is a byte range of the *global* contiguous tensor and
 * where it lies in the device's contiguous shard. Pieces come in ascending order of both. */
typedef struct sheaf_piece {
    size_t global, local, bytes;
    int run; /* of the layout; -1: not cut */
} sheaf_piece;
typedef struct sheaf_pieces { /* state of the walk; opaque */
    const sheaf_layout *layout;
    int device;
    size_t unit, unit_elements;  /* bytes of `unit_elements` of the cut dimension */
    size_t period, local_period; /* bytes from one index above the cut dimension to the next */
    size_t begin, end;           /* global range asked for */
    size_t global0, local0;      /* where the current period starts */
    size_t at_global, at_local;
    int run; /* inside the period */
} sheaf_pieces;
/* Pieces of device's shard inside global bytes [offset, offset+size) of contiguous tensor (type, ne). */
SHEAF_API void sheaf_pieces_begin(sheaf_pieces *w, const sheaf_layout *l, int device, sheaf_type type,
                                  const int64_t ne[4], size_t offset, size_t size);
SHEAF_API bool sheaf_pieces_next(sheaf_pieces *w, sheaf_piece *out);

/* --- rules --------------------------------------------------------------------------------------- */

/* Replaces one op by local ops and collectives where that is cheaper than gathering. */
typedef enum sheaf_lowering {
    SHEAF_LOWER_NONE,
    SHEAF_LOWER_NORM,   /* norm over a cut row: sum of squares -> allreduce of one float a row -> scale */
    SHEAF_LOWER_LOOKUP, /* get_rows in a table cut along rows: ids made local, rows elsewhere zero -> PARTIAL */
    SHEAF_LOWER_ARGMAX, /* local best -> gather -> merge */
} sheaf_lowering;

/* What the caller can do with a rule's answer. */
typedef struct sheaf_rule_env {
    int32_t n_devices;
    uint32_t lowerings; /* bit (1 << SHEAF_LOWER_X): the caller implements it; without, the rule gathers */
    bool reorder_sums;  /* may a float sum be cut where that changes its order of addition? false: same bits for every N
                           (M11) */
} sheaf_rule_env;

typedef struct sheaf_rule_result {
    sheaf_layout result;
    sheaf_layout want[SHEAF_MAX_SRC]; /* what each source must first become; equal to what it is: nothing to do */
    bool reshard[SHEAF_MAX_SRC];      /* want differs from have */
    sheaf_layout want_root;           /* the same for the root of header ops and in-place writers */
    bool reshard_root;
    bool linear; /* a PARTIAL source was asked to be summed, but op-then-sum equals sum-then-op: the sum may be delayed
                  */
    bool writes_all_holders; /* set_rows/cpy/fill into replicated runs */
    sheaf_lowering lowering;
    const char *rule; /* name of the row that fired, for --explain */
} sheaf_rule_result;

/* The rule table, one row per op, complete by construction. `src[i]` is the layout of node->src[i]
 * (PARTIAL where it is not summed yet: the rule asks for the sum unless the op runs on addends).
 * `root` is the layout of node->view_src for header ops and in-place writers, else NULL: a header op is
 * described by its root alone, src[] is not looked at. Never aborts: where no row fits, `want` asks for
 * a form that does (reshard). Errors only for broken nodes and an arena that is out of memory. */
SHEAF_API sheaf_status sheaf_rule_apply(sheaf_arena *a, const sheaf_rule_env *env, const sheaf_tensor *node,
                                        const sheaf_layout *src, const sheaf_layout *root, sheaf_rule_result *out);
/* Name of op's row ("elementwise", "matmul"...); never NULL for an op of the table. */
SHEAF_API const char *sheaf_rule_name(sheaf_op op);

/* What one device's version of `node` looks like: its shape, strides and (for views) offset from the
 * local root, and its op parameters (head numbers, first row of a cut table). `ne`/`nb` are those of a
 * compact shard unless the node is a view. Layouts as they are after resharding. SHEAF_E_SHAPE where
 * the layouts are none that sheaf_rule_apply would have let pass. */
typedef struct sheaf_local {
    int64_t ne[4];
    size_t nb[4];
    size_t view_offs;
    sheaf_params params;
    bool empty; /* no elements: nothing is computed */
} sheaf_local;
SHEAF_API sheaf_status sheaf_rule_local(const sheaf_tensor *node, const sheaf_layout *src, const sheaf_layout *root,
                                        const sheaf_layout *result, int device, sheaf_local *out);

/* --- policy --------------------------------------------------------------------------------------- */

/* A split table: rows of text (docs/split-tables.md has the form; `sheaf split --print-table` prints the
 * built-in ones). Names are matched by PCRE2 over whole GGUF tensor names; keys of the model's
 * hyper-parameters come in through a callback, so that a table can be tested with no model. */
typedef struct sheaf_policy sheaf_policy;

typedef struct sheaf_policy_env {
    /* Integer hyper-parameter by GGUF key with the architecture's prefix dropped ("attention.head_count");
     * SHEAF_E_NOT_FOUND if missing. A value that may differ by layer is asked for as "attention.head_count[3]" first,
     * then plain. */
    sheaf_status (*get)(void *ctx, const char *key, int64_t *out);
    void *ctx;
    const float *weights; /* n_devices shares asked for, or NULL: equal */
    int32_t n_devices;
    int32_t pack_rows; /* buffer type's packing granularity */
} sheaf_policy_env;

/* Parses a table; errors name the line. `text` is copied. */
SHEAF_API sheaf_status sheaf_policy_new(const char *text, size_t n, sheaf_policy **out);
/* The built-in table of an architecture, or SHEAF_E_NOT_FOUND naming it (case A28). */
SHEAF_API sheaf_status sheaf_policy_builtin(const char *architecture, sheaf_policy **out);
SHEAF_API const char *sheaf_policy_builtin_text(const char *architecture); /* NULL: none */
SHEAF_API void sheaf_policy_free(sheaf_policy *p);

typedef struct sheaf_placement {
    sheaf_layout layout;
    int32_t segment; /* of a matmul by this weight over its dimension 0 (row-parallel), same for every N; 0: plain */
    const char *group, *rule; /* which group and table line decided, for printing */
    int32_t line;
} sheaf_placement;

/* What the cuts come to, in bytes of weights by device (KV caches, named "...cache_...", are not counted). */
typedef struct sheaf_share {
    double asked;      /* its share of what is cut: 0 to 1 */
    uint64_t cut;      /* bytes that it alone holds */
    uint64_t copies;   /* of keys and values of layers in which some KV head lives on several devices */
    uint64_t mirrored; /* of what the table mirrors; 0 on one device */
} sheaf_share;

typedef struct sheaf_shares {
    sheaf_share device[SHEAF_MAX_DEVICES];
    int32_t n_devices;
    uint64_t cut;                /* of all devices */
    uint64_t largest_unit;       /* of what was handed out at once: a head, a block of columns, of rows */
    double error_max, error_min; /* |cut - asked for| / asked for, of the devices that were to hold anything */
} sheaf_shares;

/* All tensors of a model at once, because a group is cut once and rounding is carried from layer to
 * layer: out[i] is tensors[i]'s. State tensors (KV caches) are tensors too, named cache_k.N / cache_v.N
 * ("blk.N.cache_k"). Errors: a tensor that no row matches, rows that overlap, a cut inside a unit: with
 * the table's line and the tensor's name. `shares`: what it comes to, or NULL. */
typedef struct sheaf_named {
    const char *name;
    sheaf_type type;
    int64_t ne[4];
} sheaf_named;
SHEAF_API sheaf_status sheaf_policy_place(const sheaf_policy *p, const sheaf_policy_env *env,
                                          const sheaf_named *tensors, int n, sheaf_arena *a, sheaf_placement *out,
                                          sheaf_shares *shares);

/* --- tables without a model ----------------------------------------------------------------------- */

/* A model's tensors and whole-number hyper-parameters as text:
 *
 *     general.architecture = llama
 *     llama.attention.head_count = 32            "...head_count[3] = 16": of layer 3 alone
 *     token_embd.weight 4096 128256 q4_k         name, sizes from the innermost, type; commas count as blanks
 *     blk.{0-3,7}.attn_q.weight 4096 4096 q4_k   a tensor for each number of the braces
 *
 * '#' begins a comment. What the list hands out lives as long as it. */
typedef struct sheaf_tensor_list sheaf_tensor_list;

/* Mistakes are named with their line; a name that stands twice is one. `text` is copied. */
SHEAF_API sheaf_status sheaf_tensor_list_new(const char *text, size_t n, sheaf_tensor_list **out);
SHEAF_API void sheaf_tensor_list_free(sheaf_tensor_list *l);
SHEAF_API const sheaf_named *sheaf_tensor_list_items(const sheaf_tensor_list *l, int *n);
SHEAF_API const char *sheaf_tensor_list_architecture(const sheaf_tensor_list *l); /* NULL: it does not say */
/* sheaf_policy_env.get, with the list as its ctx. */
SHEAF_API sheaf_status sheaf_tensor_list_get(void *list, const char *key, int64_t *out);

/* A split table tried on a list, with no model and no device: what a unit test of a table asks. */
typedef struct sheaf_trial sheaf_trial;

/* Both texts end with a zero byte. `table` NULL: the built-in one of the list's architecture. `weights`: n_devices
 * shares asked for, NULL: equal. Errors are those of sheaf_policy_new, sheaf_tensor_list_new and sheaf_policy_place. */
SHEAF_API sheaf_status sheaf_trial_new(const char *table, const char *list, int32_t n_devices, const float *weights,
                                       sheaf_trial **out);
SHEAF_API void sheaf_trial_free(sheaf_trial *t);
SHEAF_API const sheaf_placement *sheaf_trial_placement(const sheaf_trial *t,
                                                       const char *name); /* NULL: no such tensor */
SHEAF_API const sheaf_shares *sheaf_trial_shares(const sheaf_trial *t);

#ifdef __cplusplus
}
#endif
#endif
