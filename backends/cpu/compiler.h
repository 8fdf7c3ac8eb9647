/* The compiler's state while it turns a graph into a program; shared by prepare.c (lowering) and
 * schedule.c (order, groups, lifetimes, scratch). */
#ifndef SHEAF_CPU_COMPILER_H
#define SHEAF_CPU_COMPILER_H

#include "backends/cpu/program.h"

/* One step reads or writes [lo, hi) of a root's bytes or a region. Where parts > 0, the thread that does
 * part r of the step touches only the r-th of `parts` equal pieces of that range. */
typedef struct cpu_touch {
    const void *root; /* a tensor that owns bytes, or a region */
    size_t lo, hi;
    int64_t parts;
    int32_t step, slot; /* slot -1: a region, or a root outside the graph */
    bool write;
    struct cpu_touch *before; /* of the same root */
} cpu_touch;

/* `from` must be done before the step that holds this; soft: by the same threads part by part, so that no
 * barrier is needed between them, only the order. */
typedef struct cpu_edge {
    int32_t from;
    bool soft;
    struct cpu_edge *next;
} cpu_edge;

/* A step and what the schedule knows of it. */
typedef struct cpu_draft {
    cpu_step *step;
    cpu_edge *edges;
    int32_t earliest, group;
} cpu_draft;

typedef struct cpu_cached {
    cpu_step_fn run;
    const sheaf_tensor *x, *extra;
    int32_t x_version, extra_version;
    const sheaf_params *params;
    cpu_region *region;
    struct cpu_cached *next;
} cpu_cached;

struct cpu_compiler {
    const sheaf_graph *g;
    const cpu_kernels *kernels;
    cpu_program *program;
    sheaf_arena *arena; /* the program's */
    cpu_draft *drafts;
    int32_t n_drafts, max_drafts;
    cpu_touch **touches;  /* by slot of a root: the latest touch */
    cpu_touch *strangers; /* of roots outside the graph */
    int32_t *versions;    /* by slot of a root: how often it was written in part or whole */
    cpu_cached *cache;
    cpu_region **regions;
    int32_t n_regions, max_regions;
    int32_t node; /* being lowered */
    bool failed;  /* out of memory */
};

/* The slot of a tensor in this graph, -1 if it is not in it. `index` alone may be of another graph. */
static inline int32_t cpu_slot_of(const cpu_compiler *c, const sheaf_tensor *t) {
    int32_t n = c->g->n_leafs + c->g->n_nodes;
    return t->index >= 0 && t->index < n && sheaf_graph_slot(c->g, t->index) == t ? t->index : -1;
}

/* Doubles an array in the arena when it is full (the old one stays behind: prepare is rare). */
void *cpu_grow(cpu_compiler *c, void *old, int32_t n, int32_t *max, size_t item);

/* Notes that the newest draft touches something, with edges to the earlier steps it must wait for. */
void cpu_note_touch(cpu_compiler *c, cpu_touch touch);
/* Groups and orders the drafts, plans regions, and fills the program. */
void cpu_schedule(cpu_compiler *c);

#endif
