/* The plan cache: a short list, newest first, searched for what fits a graph. Bounded by count; plans in use are never
 * dropped, so that a context with many graphs alive may exceed it for a while, and 10 000 differing graphs one after
 * another leave memory flat. */
#include "meta/plan_internal.h"

enum { MAX_PLANS = 16 };

struct plan_cache {
    meta_plan *newest, *oldest;
    sheaf_plan_cache_stats stats;
};

sheaf_status plan_cache_new(plan_cache **out) {
    *out = sheaf_calloc(1, sizeof **out);
    return *out ? SHEAF_OK : sheaf_fail(SHEAF_E_NO_MEMORY, "a plan cache");
}

static void unlink_plan(plan_cache *c, meta_plan *p) {
    if (p->newer) {
        p->newer->older = p->older;
    } else {
        c->newest = p->older;
    }
    if (p->older) {
        p->older->newer = p->newer;
    } else {
        c->oldest = p->newer;
    }
    p->newer = p->older = NULL;
}

static void link_newest(plan_cache *c, meta_plan *p) {
    p->older = c->newest;
    p->newer = NULL;
    if (c->newest) c->newest->newer = p;
    c->newest = p;
    if (!c->oldest) c->oldest = p;
}

static void drop(plan_cache *c, meta_plan *p) {
    unlink_plan(c, p);
    c->stats.plans--;
    c->stats.bytes -= sheaf_arena_used(p->arena);
    meta_plan_free(p);
}

void plan_cache_free(plan_cache *c) {
    if (!c) return;
    while (c->newest) drop(c, c->newest);
    sheaf_free(c);
}

meta_plan *plan_cache_find(plan_cache *c, const meta_backend *b, const sheaf_graph *g) {
    for (meta_plan *p = c->newest; p; p = p->older) {
        if (!meta_plan_fits(p, b, g)) continue;
        unlink_plan(c, p);
        link_newest(c, p);
        c->stats.hits++;
        return p;
    }
    return NULL;
}

void plan_cache_put(plan_cache *c, meta_plan *p) {
    link_newest(c, p);
    c->stats.compiles++;
    c->stats.plans++;
    c->stats.bytes += sheaf_arena_used(p->arena);
    for (meta_plan *old = c->oldest, *newer; old && c->stats.plans > MAX_PLANS; old = newer) {
        newer = old->newer;
        if (old->refs > 0 || old == p) continue;
        c->stats.evictions++;
        drop(c, old);
    }
}

sheaf_plan_cache_stats plan_cache_stats(const plan_cache *c) { return c->stats; }
