/* The order of a program's steps, its barriers, and how long memory must live because of it.
 *
 * Every pair of steps that touch the same bytes, one of them writing, is an edge from the earlier to the
 * later node. The number of groups is the longest chain of hard edges. Within that, each step goes into
 * the latest group that its readers allow, which brings Q, K and V together however the graph was walked;
 * what nobody reads (a write into a cache) stays near where it could first run, so that its sources may die.
 *
 *   nodes   norm  q=mm  rope(q)  k=mm  rope(k)  set(k)  v=mm  set(v)  attention
 *   groups  norm quant | q k v | rope(q) rope(k) set(k) set(v) | attention       | is a barrier
 *
 * Memory: a group's steps run at once, and steps may run in another order than their nodes. A tensor whose
 * last touch is in group G may share memory with a node that comes later only if that node's step is in a
 * group after G. So it is kept until the last node of all groups up to G. Invariant:
 *   S1  for tensors t, u with t's node before u's: if t is not kept past u's node, every step that touches t is
 *       in an earlier group than the step that writes u. */
#include "backends/cpu/compiler.h"

#include <string.h>

/* --- edges ----------------------------------------------------------------------------------------- */

/* Do the same threads touch the same bytes in both? */
static bool part_by_part(const cpu_touch *a, const cpu_touch *b) {
    if (a->parts == 0 || a->parts != b->parts) return false;
    return a->parts == 1 || (a->lo == b->lo && a->hi == b->hi);
}

static void add_edge(cpu_compiler *c, int32_t from, bool soft) {
    cpu_draft *d = &c->drafts[c->n_drafts];
    if (from == c->n_drafts) return; /* a step that reads what it writes: its own affair */
    cpu_edge *e = cpu_compiler_alloc(c, sizeof *e);
    if (!e) return;
    *e = (cpu_edge){from, soft, d->edges};
    d->edges = e;
    int32_t after = c->drafts[from].earliest + (soft ? 0 : 1);
    if (after > d->earliest) d->earliest = after;
}

void cpu_note_touch(cpu_compiler *c, cpu_touch touch) {
    cpu_region *region = touch.slot < 0 && touch.hi == SIZE_MAX ? (cpu_region *)touch.root : NULL;
    cpu_touch **latest = region ? &region->touches : touch.slot < 0 ? &c->strangers : &c->touches[touch.slot];
    cpu_touch *t = cpu_compiler_alloc(c, sizeof *t);
    if (!t) return;
    *t = touch;
    t->step = c->n_drafts;
    t->before = *latest;
    *latest = t;
    for (const cpu_touch *o = t->before; o; o = o->before)
        if ((t->write || o->write) && o->root == t->root && o->lo < t->hi && t->lo < o->hi)
            add_edge(c, o->step, part_by_part(o, t));
}

/* --- groups ------------------------------------------------------------------------------------------ */

enum { UNREAD_DELAY = 2 }; /* groups that a step nobody reads may be put off to join others */

/* Steps of later nodes come after those they depend on, so one walk backwards sees all readers first. */
static void assign_groups(cpu_compiler *c) {
    int32_t n_groups = 0;
    for (int32_t i = 0; i < c->n_drafts; i++) {
        if (c->drafts[i].earliest >= n_groups) n_groups = c->drafts[i].earliest + 1;
        c->drafts[i].group = INT32_MAX;
    }
    for (int32_t i = c->n_drafts - 1; i >= 0; i--) {
        cpu_draft *d = &c->drafts[i];
        if (d->group == INT32_MAX) {
            d->group = d->earliest + UNREAD_DELAY;
            if (d->group >= n_groups) d->group = n_groups - 1;
        }
        for (const cpu_edge *e = d->edges; e; e = e->next) {
            int32_t latest = d->group - (e->soft ? 0 : 1);
            if (c->drafts[e->from].group > latest) c->drafts[e->from].group = latest;
        }
    }
    c->program->n_groups = n_groups;
}

static void span_region(cpu_region *r, int32_t group) {
    if (!r) return;
    if (group < r->first_group) r->first_group = group;
    if (group > r->last_group) r->last_group = group;
}

/* Writes the steps out by group, within a group in the order of nodes: a counting sort. */
static void order_steps(cpu_compiler *c) {
    cpu_program *p = c->program;
    int32_t *at = cpu_compiler_alloc(c, (size_t)(p->n_groups + 2) * sizeof *at);
    p->steps = cpu_compiler_alloc(c, (size_t)(c->n_drafts + 1) * sizeof(cpu_step *));
    p->counters = cpu_compiler_alloc(c, (size_t)(c->n_drafts + 1) * sizeof *p->counters);
    if (c->failed) return;
    p->n_steps = c->n_drafts;
    for (int32_t i = 0; i < c->n_drafts; i++) at[c->drafts[i].group + 1]++;
    for (int32_t i = 0; i < p->n_groups; i++) at[i + 1] += at[i];
    for (int32_t i = 0; i < c->n_drafts; i++) {
        cpu_step *s = c->drafts[i].step;
        s->group = c->drafts[i].group;
        s->counter = at[s->group]++;
        p->steps[s->counter] = s;
        span_region(s->region_in, s->group);
        span_region(s->region_out, s->group);
    }
    for (int32_t i = 1; i < p->n_steps; i++) p->steps[i]->barrier = p->steps[i]->group != p->steps[i - 1]->group;
}

/* --- lifetimes ------------------------------------------------------------------------------------------ */

static void add_keep(cpu_compiler *c, int32_t *max_keep, int32_t slot, int32_t until) {
    cpu_program *p = c->program;
    sheaf_lifetime *keep = cpu_grow(c, p->keep, p->n_keep, max_keep, sizeof *keep);
    if (!keep) return;
    p->keep = keep;
    keep[p->n_keep++] = (sheaf_lifetime){slot, until};
}

/* How long a root must live, -1 when node order already says enough. `last_node[g]` is the last node of
 * groups up to g. Where the last node that touches it is not alone in doing so last, the tensor lives one
 * node longer, lest that node writes its result over it in place. */
static int32_t lifetime(const cpu_compiler *c, const cpu_touch *touches, const int32_t *last_node) {
    int32_t group = -1, node = -1, group_of_node = -1;
    for (const cpu_touch *t = touches; t; t = t->before) {
        const cpu_draft *d = &c->drafts[t->step];
        if (d->group > group) group = d->group;
        if (d->step->node > node || (d->step->node == node && d->group < group_of_node)) {
            node = d->step->node;
            group_of_node = d->group;
        }
    }
    if (last_node[group] > node) return last_node[group];
    for (const cpu_touch *t = touches; t; t = t->before)
        if (c->drafts[t->step].step->node != node && c->drafts[t->step].group >= group_of_node) return node + 1;
    return -1;
}

static void report_lifetimes(cpu_compiler *c) {
    int32_t n_groups = c->program->n_groups, max_keep = 0, slots = c->g->n_leafs + c->g->n_nodes;
    int32_t *last_node = cpu_compiler_alloc(c, (size_t)(n_groups + 1) * sizeof *last_node);
    if (!last_node) return;
    for (int32_t i = 0; i < c->n_drafts; i++) {
        int32_t *last = &last_node[c->drafts[i].group];
        if (c->drafts[i].step->node > *last) *last = c->drafts[i].step->node;
    }
    for (int32_t g = 1; g < n_groups; g++)
        if (last_node[g] < last_node[g - 1]) last_node[g] = last_node[g - 1];
    for (int32_t slot = 0; slot < slots; slot++) {
        if (!c->touches[slot]) continue;
        int32_t until = lifetime(c, c->touches[slot], last_node);
        if (until >= 0) add_keep(c, &max_keep, slot, until);
    }
}

/* --- scratch ------------------------------------------------------------------------------------------------ */

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

void cpu_schedule(cpu_compiler *c) {
    assign_groups(c);
    order_steps(c);
    if (c->failed) return;
    report_lifetimes(c);
    place_regions(c);
}
