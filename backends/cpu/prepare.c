/* Compiling a graph into a program: lower each node, group steps, plan scratch, report lifetimes.
 *
 * Grouping is greedy: a step joins the group unless it reads what the group wrote or writes what the
 * group read or wrote. Overlap is judged on (root, byte range), never on addresses: which tensors
 * share memory is decided after prepare, and `keep` makes sure that those of one group do not.
 *
 *   nodes    q=mm(wq,x)   k=mm(wk,x)   v=mm(wv,x)   rope(q)   rope(k)   ...
 *   steps    quant x | mm  mm  mm | table rope rope | ...          | is a barrier
 *   keep     x, q, k, v until the group's last node */
#include "backends/cpu/program.h"

#include <string.h>

enum { MAX_TOUCHES = 512 }; /* a group that touches more gets a barrier: bounds the quadratic check */

typedef struct touch {
    const void *root; /* a tensor that owns bytes, or a region */
    size_t lo, hi;
    int32_t slot, node; /* slot -1: a region */
    bool write;
} touch;

typedef struct cached {
    cpu_step_fn run;
    const sheaf_tensor *x, *extra;
    int32_t x_version, extra_version;
    const sheaf_params *params;
    cpu_region *region;
    struct cached *next;
} cached;

struct cpu_compiler {
    const sheaf_graph *g;
    const cpu_kernels *kernels;
    cpu_program *program;
    sheaf_arena *arena; /* the program's */
    int32_t max_steps;
    touch touches[MAX_TOUCHES]; /* of the open group */
    int32_t n_touches, node;
    int32_t *versions; /* by slot of a root: how often it was written in part or whole */
    cached *cache;
    cpu_region **regions;
    int32_t n_regions, max_regions, max_keep;
    bool failed; /* out of memory */
};

const cpu_kernels *cpu_compiler_kernels(const cpu_compiler *c) { return c->kernels; }

void *cpu_compiler_alloc(cpu_compiler *c, size_t size) {
    void *p = sheaf_arena_alloc(c->arena, size);
    if (!p) c->failed = true;
    return p;
}

/* Doubles an array of pointers or values in the arena (the old one stays behind: prepare is rare). */
static void *grow(cpu_compiler *c, void *old, int32_t n, int32_t *max, size_t item) {
    if (n < *max) return old;
    int32_t bigger = *max ? *max * 2 : 64;
    void *p = cpu_compiler_alloc(c, (size_t)bigger * item);
    if (!p) return NULL;
    if (n) memcpy(p, old, (size_t)n * item);
    *max = bigger;
    return p;
}

/* The slot of a tensor in this graph, -1 if it is not in it. `index` alone may be of another graph. */
static int32_t slot_of(const cpu_compiler *c, const sheaf_tensor *t) {
    int32_t n = c->g->n_leafs + c->g->n_nodes;
    return t->index >= 0 && t->index < n && sheaf_graph_slot(c->g, t->index) == t ? t->index : -1;
}

static const sheaf_tensor *root_of(const sheaf_tensor *t) { return t->view_src ? t->view_src : t; }

static int32_t version_of(const cpu_compiler *c, const sheaf_tensor *t) {
    int32_t slot = slot_of(c, root_of(t));
    return slot < 0 ? 0 : c->versions[slot];
}

/* --- groups ------------------------------------------------------------------------------------ */

static bool conflicts(const touch *a, const touch *b) {
    return (a->write || b->write) && a->root == b->root && a->lo < b->hi && b->lo < a->hi;
}

static bool group_conflicts(const cpu_compiler *c, const touch *a, int n) {
    if (c->n_touches + n > MAX_TOUCHES) return true;
    for (int32_t i = 0; i < c->n_touches; i++)
        for (int k = 0; k < n; k++)
            if (conflicts(&c->touches[i], &a[k])) return true;
    return false;
}

static void add_keep(cpu_compiler *c, int32_t slot, int32_t until) {
    cpu_program *p = c->program;
    if (until >= c->g->n_nodes) until = c->g->n_nodes - 1;
    sheaf_lifetime *keep = grow(c, p->keep, p->n_keep, &c->max_keep, sizeof *keep);
    if (!keep) return;
    p->keep = keep;
    keep[p->n_keep++] = (sheaf_lifetime){slot, until};
}

/* Ends the open group: whatever a step of it touches stays until the group's last node. What two
 * nodes of it touch stays one node longer, lest the last one writes its result over it in place. */
static void close_group(cpu_compiler *c) {
    int32_t last = -1;
    for (int32_t i = 0; i < c->n_touches; i++)
        if (c->touches[i].node > last) last = c->touches[i].node;
    for (int32_t i = 0; i < c->n_touches; i++) {
        const touch *a = &c->touches[i];
        if (a->slot < 0 || a->node == last) continue;
        int32_t until = last;
        for (int32_t k = 0; k < c->n_touches; k++)
            if (c->touches[k].slot == a->slot && c->touches[k].node > a->node) until = last + 1;
        bool told = false;
        for (int32_t k = 0; k < i && !told; k++) told = c->touches[k].slot == a->slot;
        if (!told) add_keep(c, a->slot, until);
    }
    c->n_touches = 0;
}

/* --- steps -------------------------------------------------------------------------------------- */

static cpu_operand *operand(cpu_compiler *c, const sheaf_tensor *t) {
    cpu_operand *o = cpu_compiler_alloc(c, sizeof *o);
    if (!o) return NULL;
    o->slot = slot_of(c, t);
    o->type = t->type;
    memcpy(o->ne, t->ne, sizeof o->ne);
    memcpy(o->nb, t->nb, sizeof o->nb);
    return o;
}

static touch tensor_touch(const cpu_compiler *c, const sheaf_tensor *t, bool write) {
    const sheaf_tensor *root = root_of(t);
    size_t lo = t->view_src ? t->view_offs : 0;
    return (touch){root, lo, lo + sheaf_nbytes(t), slot_of(c, root), c->node, write};
}

static touch region_touch(const cpu_compiler *c, const cpu_region *r, bool write) {
    return (touch){r, 0, SIZE_MAX, -1, c->node, write};
}

static void note_region(cpu_compiler *c, cpu_region *r) {
    int32_t group = c->program->n_groups - 1;
    if (!r) return;
    if (r->first_group < 0) r->first_group = group;
    r->last_group = group;
}

/* Puts the step into the open group or, if it must wait for that, opens the next one. */
static void join_group(cpu_compiler *c, cpu_step *s, const touch *a, int n) {
    cpu_program *p = c->program;
    if (p->n_groups == 0) {
        p->n_groups = 1;
    } else if (group_conflicts(c, a, n)) {
        close_group(c);
        s->barrier = true;
        p->n_groups++;
    }
    memcpy(&c->touches[c->n_touches], a, (size_t)n * sizeof *a);
    c->n_touches += n;
    s->group = p->n_groups - 1;
    note_region(c, s->region_in);
    note_region(c, s->region_out);
}

cpu_step *cpu_emit(cpu_compiler *c, const sheaf_tensor *node, cpu_step_fn run, const sheaf_tensor *dst,
                   sheaf_tensor *const *src, int n_src, cpu_region *in, cpu_region *out) {
    touch a[CPU_MAX_SOURCES + 3];
    int n = 0;
    cpu_program *p = c->program;
    cpu_step *s = cpu_compiler_alloc(c, sizeof *s);
    cpu_step **steps = grow(c, p->steps, p->n_steps, &c->max_steps, sizeof(cpu_step *));
    if (!s || !steps) return NULL;
    p->steps = steps;
    *s = (cpu_step){.run = run, .op = node->op, .node = c->node, .counter = p->n_steps, .params = node->params};
    s->n_src = (uint8_t)n_src;
    s->region_in = in;
    s->region_out = out;
    if (dst) {
        s->dst = operand(c, dst);
        a[n++] = tensor_touch(c, dst, true);
    }
    for (int i = 0; i < n_src; i++) {
        if (!src[i]) continue;
        s->src[i] = operand(c, src[i]);
        a[n++] = tensor_touch(c, src[i], false);
    }
    if (in) a[n++] = region_touch(c, in, false);
    if (out) a[n++] = region_touch(c, out, true);
    if (c->failed) return NULL;
    p->steps[p->n_steps++] = s;
    join_group(c, s, a, n);
    return s;
}

/* --- regions -------------------------------------------------------------------------------------- */

cpu_region *cpu_region_new(cpu_compiler *c, size_t size) {
    cpu_region *r = cpu_compiler_alloc(c, sizeof *r);
    cpu_region **regions = grow(c, c->regions, c->n_regions, &c->max_regions, sizeof(cpu_region *));
    if (!r || !regions || !sheaf_align_up(size, 64, &r->size)) return NULL;
    r->first_group = -1;
    c->regions = regions;
    regions[c->n_regions++] = r;
    return r;
}

cpu_region *cpu_cache_find(cpu_compiler *c, cpu_step_fn run, const sheaf_tensor *x, const sheaf_tensor *extra,
                           const sheaf_params *params) {
    for (const cached *e = c->cache; e; e = e->next) {
        if (e->run != run || e->x != x || e->extra != extra || e->x_version != version_of(c, x)) continue;
        if (extra && e->extra_version != version_of(c, extra)) continue;
        if (params && memcmp(params, e->params, sizeof *params)) continue;
        return e->region;
    }
    return NULL;
}

void cpu_cache_add(cpu_compiler *c, cpu_step_fn run, const sheaf_tensor *x, const sheaf_tensor *extra,
                   const sheaf_params *params, cpu_region *r) {
    cached *e = cpu_compiler_alloc(c, sizeof *e);
    if (!e) return;
    *e = (cached){run, x, extra, version_of(c, x), extra ? version_of(c, extra) : 0, params, r, c->cache};
    c->cache = e;
}

/* First fit over the regions whose groups overlap: each goes to the lowest offset that is free for
 * all its life. Quadratic in the regions, which are a few per layer. */
static void place_regions(cpu_compiler *c) {
    size_t end = 0;
    for (int32_t i = 0; i < c->n_regions; i++) {
        cpu_region *r = c->regions[i];
        for (bool moved = true; moved;) {
            moved = false;
            for (int32_t k = 0; k < i; k++) {
                const cpu_region *o = c->regions[k];
                bool together = o->first_group <= r->last_group && r->first_group <= o->last_group;
                if (!together || o->offset >= r->offset + r->size || r->offset >= o->offset + o->size) continue;
                r->offset = o->offset + o->size;
                moved = true;
            }
        }
        if (r->offset + r->size > end) end = r->offset + r->size;
    }
    c->program->scratch_bytes = end;
}

/* --- the whole ------------------------------------------------------------------------------------- */

static void fill_zero(const cpu_step *s, const cpu_task *t) {
    if (t->ith) return;
    char *base = cpu_at(t, s->dst);
    size_t row = sheaf_row_bytes(s->dst->type, s->dst->ne[0]);
    for (int64_t r = 0; r < cpu_rows(s->dst); r++) memset(cpu_row_at(base, s->dst, cpu_row_of(s->dst->ne, r)), 0, row);
}

static sheaf_status lower_node(cpu_compiler *c, const sheaf_tensor *node) {
    if (sheaf_op_is_header(node->op) || sheaf_nelements(node) == 0) return SHEAF_OK;
    if (!cpu_op_supported(node)) {
        char shape[96];
        return sheaf_fail(SHEAF_E_UNSUPPORTED, "preparing node %d %s: no CPU kernel for %s of type %s, shape %s",
                          c->node, node->name, sheaf_op_name(node->op), sheaf_type_name(node->type),
                          sheaf_shape_text(node, shape, sizeof shape));
    }
    if ((node->flags & SHEAF_FLAG_EMPTY) && !node->view_src)
        cpu_emit(c, node, fill_zero, node, NULL, 0, NULL, NULL);
    else
        cpu_op_get(node->op)->lower(c, node);
    int32_t slot = slot_of(c, root_of(node));
    if (slot >= 0) c->versions[slot]++;
    return SHEAF_OK;
}

/* Slots outside the graph would have no address: every source of a computed node must be in it. */
static sheaf_status check_slots(const cpu_compiler *c, const sheaf_tensor *node) {
    for (int i = 0; i < SHEAF_MAX_SRC; i++)
        if (node->src[i] && slot_of(c, node->src[i]) < 0)
            return sheaf_fail(SHEAF_E_ARGUMENT, "preparing node %d %s: source %d is not in the graph (not sealed?)",
                              c->node, node->name, i);
    return SHEAF_OK;
}

static sheaf_status compile(cpu_compiler *c) {
    for (c->node = 0; c->node < c->g->n_nodes; c->node++) {
        const sheaf_tensor *node = c->g->nodes[c->node];
        sheaf_status s = check_slots(c, node);
        if (!s) s = lower_node(c, node);
        if (s) return s;
        if (c->failed) return sheaf_arena_status(c->arena);
    }
    close_group(c);
    place_regions(c);
    cpu_program *p = c->program;
    p->counters = cpu_compiler_alloc(c, (size_t)(p->n_steps + 1) * sizeof *p->counters);
    return c->failed ? sheaf_arena_status(c->arena) : SHEAF_OK;
}

sheaf_status cpu_program_new(const sheaf_graph *g, const cpu_kernels *kernels, cpu_program **out) {
    sheaf_arena *arena;
    sheaf_status s = sheaf_arena_new(64 * 1024, &arena);
    if (s) return s;
    cpu_compiler *c = sheaf_calloc(1, sizeof *c);
    int32_t slots = g->n_leafs + g->n_nodes;
    if (!c) {
        s = sheaf_fail(SHEAF_E_NO_MEMORY, "preparing a graph of %d nodes: no memory", g->n_nodes);
        goto fail_arena;
    }
    c->g = g;
    c->kernels = kernels;
    c->arena = arena;
    c->program = cpu_compiler_alloc(c, sizeof *c->program);
    c->versions = cpu_compiler_alloc(c, (size_t)(slots + 1) * sizeof *c->versions);
    if (c->failed) {
        s = sheaf_arena_status(arena);
        goto fail_compiler;
    }
    c->program->arena = arena;
    s = compile(c);
    if (s) goto fail_compiler;
    *out = c->program;
    sheaf_free(c);
    return SHEAF_OK;

fail_compiler:
    sheaf_free(c);
fail_arena:
    sheaf_arena_free(arena);
    return s;
}
