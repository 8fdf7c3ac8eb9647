/* Compiling a graph into a program: lowers each node to steps; schedule.c orders them. */
#include "backends/cpu/compiler.h"

#include <string.h>

const cpu_kernels *cpu_compiler_kernels(const cpu_compiler *c) { return c->kernels; }

void *cpu_compiler_alloc(cpu_compiler *c, size_t size) {
    void *p = sheaf_arena_alloc(c->arena, size);
    if (!p) c->failed = true;
    return p;
}

void *cpu_grow(cpu_compiler *c, void *old, int32_t n, int32_t *max, size_t item) {
    if (n < *max) return old;
    int32_t bigger = *max ? *max * 2 : 64;
    void *p = cpu_compiler_alloc(c, (size_t)bigger * item);
    if (!p) return NULL;
    if (n) memcpy(p, old, (size_t)n * item);
    *max = bigger;
    return p;
}

static const sheaf_tensor *root_of(const sheaf_tensor *t) { return t->view_src ? t->view_src : t; }

static int32_t version_of(const cpu_compiler *c, const sheaf_tensor *t) {
    int32_t slot = cpu_slot_of(c, root_of(t));
    return slot < 0 ? 0 : c->versions[slot];
}

/* --- steps -------------------------------------------------------------------------------------- */

static cpu_operand *operand(cpu_compiler *c, const sheaf_tensor *t) {
    cpu_operand *o = cpu_compiler_alloc(c, sizeof *o);
    if (!o) return NULL;
    o->slot = cpu_slot_of(c, t);
    o->type = t->type;
    memcpy(o->ne, t->ne, sizeof o->ne);
    memcpy(o->nb, t->nb, sizeof o->nb);
    return o;
}

/* `elements`: of the tensor that the step's parts divide. One part is one thread, whatever it touches. */
static void touch_tensor(cpu_compiler *c, const sheaf_tensor *t, bool write, int64_t parts, int64_t elements) {
    const sheaf_tensor *root = root_of(t);
    size_t lo = t->view_src ? t->view_offs : 0;
    bool divided = parts == 1 || (parts > 1 && sheaf_is_contiguous(t) && sheaf_nelements(t) == elements);
    cpu_note_touch(c, (cpu_touch){.root = root,
                                  .lo = lo,
                                  .hi = lo + sheaf_nbytes(t),
                                  .parts = divided ? parts : 0,
                                  .slot = cpu_slot_of(c, root),
                                  .write = write});
}

static void touch_region(cpu_compiler *c, const cpu_region *r, bool write, int64_t parts) {
    if (r) cpu_note_touch(c, (cpu_touch){.root = r, .hi = SIZE_MAX, .parts = parts, .slot = -1, .write = write});
}

cpu_step *cpu_emit(cpu_compiler *c, const sheaf_tensor *node, cpu_step_fn run, const sheaf_tensor *dst,
                   sheaf_tensor *const *src, int n_src, int64_t parts, cpu_region *in, cpu_region *out) {
    cpu_step *s = cpu_compiler_alloc(c, sizeof *s);
    cpu_draft *drafts = cpu_grow(c, c->drafts, c->n_drafts, &c->max_drafts, sizeof *drafts);
    if (!s || !drafts) return NULL;
    c->drafts = drafts;
    drafts[c->n_drafts] = (cpu_draft){.step = s};
    *s = (cpu_step){
        .run = run, .op = node->op, .node = c->node, .params = node->params, .region_in = in, .region_out = out};
    s->n_src = (uint8_t)n_src;
    s->parts = parts;
    const sheaf_tensor *divided = dst ? dst : src[0];
    int64_t elements = sheaf_nelements(divided);
    if (dst) {
        s->dst = operand(c, dst);
        touch_tensor(c, dst, true, parts, elements);
    }
    for (int i = 0; i < n_src; i++) {
        if (!src[i]) continue;
        s->src[i] = operand(c, src[i]);
        touch_tensor(c, src[i], false, parts, elements);
    }
    touch_region(c, in, false, parts == 1 ? 1 : 0);
    touch_region(c, out, true, parts);
    if (c->failed) return NULL;
    c->n_drafts++;
    return s;
}

/* --- regions -------------------------------------------------------------------------------------- */

cpu_region *cpu_region_new(cpu_compiler *c, size_t size) {
    cpu_region *r = cpu_compiler_alloc(c, sizeof *r);
    cpu_region **regions = cpu_grow(c, c->regions, c->n_regions, &c->max_regions, sizeof(cpu_region *));
    if (!r || !regions || !sheaf_align_up(size, 64, &r->size)) return NULL;
    r->first_group = INT32_MAX;
    r->last_group = -1;
    c->regions = regions;
    regions[c->n_regions++] = r;
    return r;
}

cpu_region *cpu_cache_find(cpu_compiler *c, cpu_step_fn run, const sheaf_tensor *x, const sheaf_tensor *extra,
                           const sheaf_params *params) {
    for (const cpu_cached *e = c->cache; e; e = e->next) {
        if (e->run != run || e->x != x || e->extra != extra || e->x_version != version_of(c, x)) continue;
        if (extra && e->extra_version != version_of(c, extra)) continue;
        if (params && memcmp(params, e->params, sizeof *params)) continue;
        return e->region;
    }
    return NULL;
}

void cpu_cache_add(cpu_compiler *c, cpu_step_fn run, const sheaf_tensor *x, const sheaf_tensor *extra,
                   const sheaf_params *params, cpu_region *r) {
    cpu_cached *e = cpu_compiler_alloc(c, sizeof *e);
    if (!e) return;
    *e = (cpu_cached){run, x, extra, version_of(c, x), extra ? version_of(c, extra) : 0, params, r, c->cache};
    c->cache = e;
}

/* --- the whole ------------------------------------------------------------------------------------- */

static void fill_zero(const cpu_step *s, const cpu_task *t) {
    if (t->ith != t->nth - 1) return; /* the thread that cpu_share gives a single part */
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
        cpu_emit(c, node, fill_zero, node, NULL, 0, 1, NULL, NULL);
    else
        cpu_op_get(node->op)->lower(c, node);
    int32_t slot = cpu_slot_of(c, root_of(node));
    if (slot >= 0) c->versions[slot]++;
    return SHEAF_OK;
}

/* Slots outside the graph would have no address: every source of a computed node must be in it. */
static sheaf_status check_slots(const cpu_compiler *c, const sheaf_tensor *node) {
    for (int i = 0; i < SHEAF_MAX_SRC; i++)
        if (node->src[i] && cpu_slot_of(c, node->src[i]) < 0)
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
    cpu_schedule(c);
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
    c->touches = cpu_compiler_alloc(c, (size_t)(slots + 1) * sizeof(cpu_touch *));
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
