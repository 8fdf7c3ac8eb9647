/* A plan from graph to value: copying the graph's headers, the five functions in order, and what can be asked. */
#include <inttypes.h>
#include <string.h>

#include "meta/plan_internal.h"
#include "tensor/hash.h"
#include "tensor/settings.h"
#include "tensor/wait.h"

bool plan_grow(sheaf_arena *a, void **items, int32_t n, int32_t *capacity, size_t size) {
    if (n < *capacity) return true;
    int32_t more = *capacity ? 2 * *capacity : 16;
    void *fresh = sheaf_arena_alloc(a, size * (size_t)more);
    if (!fresh) return false;
    if (n > 0) memcpy(fresh, *items, size * (size_t)n);
    *items = fresh;
    *capacity = more;
    return true;
}

static bool is_static_leaf(const sheaf_tensor *t) { return t->buffer && t->buffer->usage != SHEAF_USAGE_COMPUTE; }

static value_home home_of_slot(const meta_plan *p, int32_t slot) {
    if (slot < p->n_leafs) return is_static_leaf(&p->slots[slot]) ? HOME_STATIC : HOME_IO;
    return HOME_WORK;
}

sheaf_status plan_value_new(meta_plan *p, int32_t slot, sheaf_layout layout, int32_t *out) {
    if (!plan_grow(p->arena, (void **)&p->values, p->n_values, &p->values_capacity, sizeof *p->values))
        return sheaf_arena_status(p->arena);
    p->values[p->n_values] = (plan_value){.slot = slot,
                                          .layout = layout,
                                          .type = p->slots[slot].type,
                                          .home = home_of_slot(p, slot),
                                          .root = -1,
                                          .made_by = -1,
                                          .next_version = -1,
                                          .staging = -1};
    *out = p->n_values++;
    return SHEAF_OK;
}

sheaf_status plan_item_new(meta_plan *p, item_kind kind, int32_t node, int32_t out, plan_item **item) {
    if (!plan_grow(p->arena, (void **)&p->items, p->n_items, &p->items_capacity, sizeof *p->items))
        return sheaf_arena_status(p->arena);
    plan_item *t = &p->items[p->n_items];
    *t = (plan_item){.kind = kind,
                     .node = node,
                     .out = out,
                     .root = -1,
                     .residual = -1,
                     .norm_weight = -1,
                     .norm_out = -1,
                     .plain_out = -1,
                     .add_node = -1,
                     .norm_node = -1};
    for (int j = 0; j < SHEAF_MAX_SRC; j++) t->src[j] = -1;
    if (kind != ITEM_CUT_BACK) p->values[out].made_by = p->n_items;
    p->n_items++;
    *item = t;
    return SHEAF_OK;
}

size_t plan_payload(const meta_plan *p, const plan_value *v) {
    const sheaf_tensor *t = &p->slots[v->slot];
    return sheaf_row_bytes(v->type, t->ne[0]) * (size_t)sheaf_nrows(t);
}

/* --- what identifies a plan -------------------------------------------------------------------------------- */

sheaf_layout meta_leaf_layout(const sheaf_tensor *t) {
    const sheaf_tensor *of = t;
    if (!of->ext && of->copy_of && meta_is_buffer(of->copy_of->buffer)) of = of->copy_of;
    if (of->ext && (!of->buffer || meta_is_buffer(of->buffer))) return ((const meta_ext *)of->ext)->layout;
    return sheaf_layout_mirrored();
}

uint64_t meta_plan_key(const meta_backend *b, const sheaf_graph *g) {
    uint64_t h = sheaf_hash_word(g->shape_id, (uint64_t)b->device->n_world << 1 | b->strict);
    for (int32_t i = 0; i < g->n_leafs; i++) {
        sheaf_layout l = meta_leaf_layout(g->leafs[i]);
        h = sheaf_hash_word(h, sheaf_layout_hash(&l) + is_static_leaf(g->leafs[i]));
    }
    return h;
}

bool meta_plan_fits(const meta_plan *p, const meta_backend *b, const sheaf_graph *g) {
    if (p->shape_id != g->shape_id || p->strict != b->strict) return false;
    if (p->n_leafs != g->n_leafs || p->n_slots != g->n_leafs + g->n_nodes) return false;
    for (int32_t i = 0; i < g->n_leafs; i++) {
        sheaf_layout l = meta_leaf_layout(g->leafs[i]);
        if (!sheaf_layout_equal(&l, &p->layout[i])) return false;
        if ((p->values[i].home == HOME_STATIC) != is_static_leaf(g->leafs[i])) return false;
    }
    return true;
}

/* --- copying the graph --------------------------------------------------------------------------------------- */

static sheaf_status copy_graph(meta_plan *p, const sheaf_graph *g) {
    size_t n = (size_t)g->n_leafs + (size_t)g->n_nodes;
    p->n_leafs = g->n_leafs;
    p->n_slots = (int32_t)n;
    p->slots = sheaf_arena_alloc(p->arena, n * sizeof *p->slots);
    p->src_slot = sheaf_arena_alloc(p->arena, n * SHEAF_MAX_SRC * sizeof *p->src_slot);
    p->root_slot = sheaf_arena_alloc(p->arena, n * sizeof *p->root_slot);
    p->layout = sheaf_arena_alloc(p->arena, n * sizeof *p->layout);
    p->rules = sheaf_arena_alloc(p->arena, n * sizeof *p->rules);
    p->first_value = sheaf_arena_alloc(p->arena, n * sizeof *p->first_value);
    p->newest_value = sheaf_arena_alloc(p->arena, n * sizeof *p->newest_value);
    if (!p->slots || !p->src_slot || !p->root_slot || !p->layout || !p->rules || !p->first_value || !p->newest_value) {
        return sheaf_arena_status(p->arena);
    }
    for (size_t i = 0; i < n; i++) {
        const sheaf_tensor *t = sheaf_graph_slot(g, (int32_t)i);
        bool leaf = i < (size_t)g->n_leafs;
        p->slots[i] = *t;
        if (leaf) p->slots[i].op = SHEAF_OP_NONE;
        for (int j = 0; j < SHEAF_MAX_SRC; j++) {
            p->src_slot[i * SHEAF_MAX_SRC + (size_t)j] = !leaf && t->src[j] ? t->src[j]->index : -1;
            p->slots[i].src[j] = !leaf && t->src[j] ? &p->slots[t->src[j]->index] : NULL;
        }
        p->root_slot[i] = !leaf && t->view_src ? t->view_src->index : -1;
        p->slots[i].view_src = !leaf && t->view_src ? &p->slots[t->view_src->index] : NULL;
    }
    /* a view that crosses is read in its root */
    for (size_t i = (size_t)p->n_leafs; i < n; i++) {
        if (p->root_slot[i] < 0 || !crosses(&p->slots[i])) continue;
        p->slots[p->root_slot[i]].flags |= SHEAF_FLAG_EXPORT;
        p->slots[i].flags &= ~(uint32_t)(SHEAF_FLAG_OUTPUT | SHEAF_FLAG_EXPORT);
    }
    return SHEAF_OK;
}

/* Headers outlive the graph; what of them points outside is only good while compiling. */
static void forget_places(meta_plan *p) {
    for (int32_t i = 0; i < p->n_slots; i++) {
        p->slots[i].buffer = NULL;
        p->slots[i].data = p->slots[i].ext = NULL;
        p->slots[i].copy_of = NULL;
    }
}

/* --- what ranks must agree on -------------------------------------------------------------------------------- */

/* A collective: who runs it, on how many rows of what, what is done to each row. */
static uint64_t hash_step(uint64_t h, const meta_plan *p, const plan_step *step) {
    const plan_item *t = &p->items[step->item];
    const char *why, *engine = sheaf_comm_op_engine(step->op, &why);
    uint32_t eps;
    memcpy(&eps, &t->eps, sizeof eps);
    h = sheaf_hash_word(h, (uint64_t)step->rows);
    h = sheaf_hash_word(h, plan_payload(p, &p->values[t->src[0]]));
    h = sheaf_hash_word(h, (uint64_t)eps << 2 | (uint64_t)t->add << 1 | t->norm);
    return sheaf_hash_bytes(h, engine, strlen(engine));
}

/* Starts from the key, so from all of the graph (operations, parameters, shapes) and the layouts of its leafs;
 * goes over what was made of it. */
static uint64_t hash_plan(const meta_plan *p) {
    uint64_t h = sheaf_hash_word(p->key, (uint64_t)p->n_items << 32 | (uint32_t)p->n_pieces);
    for (int32_t i = 0; i < p->n_items; i++) {
        const plan_item *t = &p->items[i];
        if (t->dropped) continue;
        h = sheaf_hash_word(h, (uint64_t)t->kind << 32 | (uint32_t)t->node);
        for (int j = 0; j < SHEAF_MAX_SRC; j++) h = sheaf_hash_word(h, (uint32_t)t->src[j]);
    }
    for (int32_t i = 0; i < p->n_values; i++) {
        const plan_value *v = &p->values[i];
        h = sheaf_hash_word(h, (uint64_t)v->type << 40 | (uint64_t)v->home << 32 | (uint32_t)v->staging);
        h = sheaf_hash_word(h, sheaf_layout_hash(&v->layout));
        h = sheaf_hash_word(h, v->empty);
    }
    for (int32_t k = 0; k < p->n_steps; k++) {
        if (p->steps[k].is_collective) h = hash_step(h, p, &p->steps[k]);
    }
    return h;
}

/* --- compile -------------------------------------------------------------------------------------------------- */

static double now_us(void) { return (double)sheaf_now_ns() / 1e3; }

static sheaf_status compile(meta_plan *p, const sheaf_graph *g) {
    sheaf_status s = copy_graph(p, g);
    if (!s) s = plan_resolve(p);
    if (!s) s = plan_reshard(p);
    if (!s) s = plan_delay(p);
    if (!s) s = plan_shard_members(p);
    if (!s) s = plan_cut(p);
    forget_places(p);
    if (!s) p->hash = hash_plan(p);
    return s;
}

sheaf_status meta_plan_compile(meta_backend *b, const sheaf_graph *g, uint64_t key, meta_plan **out) {
    double start = now_us();
    sheaf_arena *a;
    *out = NULL;
    sheaf_status s = sheaf_arena_new(256 * 1024, &a);
    if (s) return s;
    meta_plan *p = sheaf_calloc(1, sizeof *p);
    if (!p) {
        sheaf_arena_free(a);
        return sheaf_fail(SHEAF_E_NO_MEMORY, "compiling a plan");
    }
    *p = (meta_plan){.key = key,
                     .shape_id = g->shape_id,
                     .strict = b->strict,
                     .arena = a,
                     .backend = b,
                     .device = b->device,
                     .n_local = b->device->n_local,
                     .n_world = b->device->n_world,
                     .first = b->device->first};
    s = compile(p, g);
    if (!s && sheaf_checks_on(p->n_slots)) s = sheaf_plan_check((const sheaf_plan *)p);
    if (s) {
        meta_plan_free(p);
        return sheaf_error_context(s, "%s: compiling a plan", b->base.device->name);
    }
    p->compile_us = now_us() - start;
    *out = p;
    return SHEAF_OK;
}

void meta_plan_free(meta_plan *p) {
    if (!p) return;
    meta_prepared_discard(p->spare);
    for (int32_t k = 0; k < p->n_steps; k++) sheaf_comm_op_free(p->steps[k].op);
    for (int32_t k = 0; k < p->n_pieces; k++) {
        for (int i = 0; p->pieces[k].prepared && i < p->n_local; i++) {
            sheaf_prepared_free(p->backend->members[i].backend, p->pieces[k].prepared[i]);
        }
    }
    sheaf_arena_free(p->arena);
    sheaf_free(p);
}

/* --- asking ------------------------------------------------------------------------------------------------------ */

const sheaf_plan *sheaf_meta_plan(const sheaf_prepared *p) {
    return (const sheaf_plan *)((const meta_prepared *)p)->plan;
}

sheaf_plan_info sheaf_plan_get_info(const sheaf_plan *plan) {
    const meta_plan *p = (const meta_plan *)plan;
    return (sheaf_plan_info){.n_nodes = p->n_slots - p->n_leafs,
                             .n_pieces = p->n_pieces,
                             .n_steps = p->n_steps,
                             .collectives = p->collectives,
                             .n_collectives = p->n_collectives,
                             .reshards = p->reshards,
                             .n_reshards = p->n_reshards,
                             .compute_bytes = p->compute_bytes,
                             .staging_bytes = p->staging_list,
                             .compile_us = p->compile_us,
                             .hash = p->hash};
}
