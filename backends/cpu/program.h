/* A sealed graph compiled for the CPU: a flat list of steps that a team walks together.
 *
 * A *step* is one kernel over decoded operands (slot, type, shape, strides); headers vanish. A
 * *group* is a run of steps between two barriers: within it a step depends on another one only part by
 * part, each part being the same thread's in both (a row is added, normed and quantized by one thread).
 * Because groups reorder and overlap nodes, a tensor may still be needed when node order says it is
 * dead; prepare reports such tensors in `keep` (case C17).
 * A *region* is a piece of scratch (quantized activations, rotation tables) that lives over a range
 * of groups.
 *
 * Invariants:
 *   P1  A program holds no address: operands are slots, regions are offsets into the run's scratch.
 *   P2  Nothing in a program depends on the number of threads; a step cuts its work when it runs.
 *   P3  A cut never changes the order of additions, so any number of threads gives the same bits. */
#ifndef SHEAF_CPU_PROGRAM_H
#define SHEAF_CPU_PROGRAM_H

#include "backends/backend.h"
#include "backends/cpu/kernels.h"
#include "backends/cpu/team.h"

typedef struct cpu_operand {
    int32_t slot;
    sheaf_type type;
    int64_t ne[SHEAF_MAX_DIMS];
    size_t nb[SHEAF_MAX_DIMS];
} cpu_operand;

typedef struct cpu_region {
    size_t size, offset;
    int32_t first_group, last_group;
    struct cpu_touch *touches; /* while compiling */
} cpu_region;

typedef struct cpu_step cpu_step;

/* One run of a program. */
typedef struct cpu_run {
    const cpu_kernels *kernels;
    void *const *addr;    /* by slot */
    char *scratch;        /* the program's regions */
    atomic_int *counters; /* by step: next piece of work to take; 0 when a run begins */
} cpu_run;

/* What a thread knows while it does its part of a step. */
typedef struct cpu_task {
    const cpu_run *run;
    int ith, nth;
    char *scratch; /* this thread's own, CPU_THREAD_SCRATCH bytes */
} cpu_task;

typedef void (*cpu_step_fn)(const cpu_step *s, const cpu_task *t);

enum { CPU_MAX_SOURCES = 5 };

struct cpu_step {
    cpu_step_fn run;
    bool barrier; /* threads meet before it */
    uint8_t n_src;
    sheaf_op op;
    int32_t node;    /* the graph node it belongs to */
    int32_t counter; /* its own index in run->counters */
    int32_t group;
    int64_t parts;    /* > 0: work is divided by cpu_share over so many (see cpu_emit) */
    cpu_operand *dst; /* NULL: it writes a region */
    cpu_operand *src[CPU_MAX_SOURCES];
    cpu_region *region_in, *region_out;
    const void *table; /* constants made at prepare (rotation frequencies) */
    sheaf_params params;
};

typedef struct cpu_program {
    sheaf_arena *arena; /* owns everything else here */
    cpu_step **steps;
    int32_t n_steps, n_groups;
    size_t scratch_bytes;
    sheaf_lifetime *keep;
    int32_t n_keep;
    atomic_int *counters;
} cpu_program;

/* Compiles `g`. SHEAF_E_UNSUPPORTED names the first node that no kernel runs. */
sheaf_status cpu_program_new(const sheaf_graph *g, const cpu_kernels *kernels, cpu_program **out);
void cpu_program_free(cpu_program *p);
/* Thread ith of nth walks the whole program; all nth must. They do not meet at its end: whoever runs it
 * must let them, and then one of them calls cpu_program_end before the next walk begins. */
void cpu_program_walk(const cpu_program *p, const cpu_run *r, cpu_barrier *b, int ith, int nth, char *thread_scratch);
void cpu_program_end(cpu_program *p);

/* --- for the ops ------------------------------------------------------------------------------- */

typedef struct cpu_compiler cpu_compiler;

/* Appends a step for `node`. dst NULL: it writes region_out. Sources may be NULL (left out, but keep
 * their position). parts > 0 promises that the step divides its work by cpu_share over that many parts, and that
 * part r touches the r-th equal piece of dst, and of every contiguous source of as many elements, and nothing
 * else that the graph writes; 0 promises nothing. NULL: out of memory, kept in the compiler. */
cpu_step *cpu_emit(cpu_compiler *c, const sheaf_tensor *node, cpu_step_fn run, const sheaf_tensor *dst,
                   sheaf_tensor *const *src, int n_src, int64_t parts, cpu_region *in, cpu_region *out);
cpu_region *cpu_region_new(cpu_compiler *c, size_t size);
/* Zeroed memory of the program. */
void *cpu_compiler_alloc(cpu_compiler *c, size_t size);
const cpu_kernels *cpu_compiler_kernels(const cpu_compiler *c);
/* A region made from tensor x by `run` (and `extra`, NULL or a second tensor) that may be used again: found if x and
 * extra are the same bytes, unchanged since. NULL: none. */
cpu_region *cpu_cache_find(cpu_compiler *c, cpu_step_fn run, const sheaf_tensor *x, const sheaf_tensor *extra,
                           const sheaf_params *params);
void cpu_cache_add(cpu_compiler *c, cpu_step_fn run, const sheaf_tensor *x, const sheaf_tensor *extra,
                   const sheaf_params *params, cpu_region *r);

/* One row per op (ops.c). `lower` emits the steps of a node; a row's `supports` says whether it can. */
typedef struct cpu_op {
    bool (*supports)(const sheaf_tensor *node);
    void (*lower)(cpu_compiler *c, const sheaf_tensor *node);
} cpu_op;
const cpu_op *cpu_op_get(sheaf_op op);
/* Is there a kernel for this node: op, types, strides? */
bool cpu_op_supported(const sheaf_tensor *node);

extern const cpu_op cpu_op_CONT, cpu_op_CPY, cpu_op_ADD, cpu_op_SUB, cpu_op_MUL, cpu_op_DIV, cpu_op_SCALE, cpu_op_UNARY,
    cpu_op_GLU, cpu_op_RMS_NORM, cpu_op_NORM, cpu_op_SOFT_MAX, cpu_op_ROPE, cpu_op_MUL_MAT, cpu_op_GET_ROWS,
    cpu_op_SET_ROWS, cpu_op_ATTENTION, cpu_op_CONCAT, cpu_op_SUM_ROWS, cpu_op_SUM_SQUARES, cpu_op_RMS_NORM_BY,
    cpu_op_FILL, cpu_op_ARGMAX, cpu_op_MUL_MAT_ID, cpu_op_ADD_ID, cpu_op_ARGSORT, cpu_op_PICK, cpu_op_BEST,
    cpu_op_ROUND;

/* Where the k largest of n elements are: largest first, ties by the lower index, NaN after everything else. */
void cpu_top_k(const float *x, int64_t n, int32_t *out, int64_t k);

/* The address of an operand in this run. */
static inline char *cpu_at(const cpu_task *t, const cpu_operand *o) { return t->run->addr[o->slot]; }
static inline char *cpu_region_at(const cpu_task *t, const cpu_region *r) { return t->run->scratch + r->offset; }

/* Thread ith's even share of n pieces of work. */
static inline void cpu_share(const cpu_task *t, int64_t n, int64_t *lo, int64_t *hi) {
    *lo = n * t->ith / t->nth;
    *hi = n * (t->ith + 1) / t->nth;
}

/* The next piece of a step whose pieces are taken one by one; >= the number of pieces when none is left. */
static inline int64_t cpu_take(const cpu_step *s, const cpu_task *t) {
    return atomic_fetch_add_explicit(&t->run->counters[s->counter], 1, memory_order_relaxed);
}

/* Row number r of a shape as indices 1 to 3. */
typedef struct cpu_row {
    int64_t i1, i2, i3;
} cpu_row;
static inline cpu_row cpu_row_of(const int64_t *ne, int64_t r) {
    return (cpu_row){r % ne[1], r / ne[1] % ne[2], r / ne[1] / ne[2]};
}
static inline int64_t cpu_rows(const cpu_operand *o) { return o->ne[1] * o->ne[2] * o->ne[3]; }
/* The address of a row; the operand's shape broadcasts. */
static inline char *cpu_row_at(char *base, const cpu_operand *o, cpu_row i) {
    return base + (size_t)(i.i1 % o->ne[1]) * o->nb[1] + (size_t)(i.i2 % o->ne[2]) * o->nb[2] +
           (size_t)(i.i3 % o->ne[3]) * o->nb[3];
}

#endif
