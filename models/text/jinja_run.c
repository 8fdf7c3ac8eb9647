/* Runs statements: text and values go to the current output, loops and branches walk their blocks.
 * Scopes as in Jinja: a loop's body and a macro have their own, an if has not; {% set %} writes to
 * the innermost one, and only a namespace carries a value out of a loop. */
#include "models/text/jinja.h"

#include <string.h>

static sheaf_status run_print(jj_run *r, const jj_node *n) {
    jj_value v;
    sheaf_status s = jj_eval(r, n->a, &v);
    return s ? s : jj_print(r, r->out, &v, false);
}

static sheaf_status run_if(jj_run *r, const jj_node *n, jj_flow *flow) {
    for (size_t i = 0; i + 1 < n->n; i += 2) {
        jj_value condition;
        sheaf_status s = jj_eval(r, n->list[i], &condition);
        if (s) return s;
        if (jj_truth(&condition)) return jj_block(r, n->list[i + 1], flow);
    }
    return n->c ? jj_block(r, n->c, flow) : SHEAF_OK;
}

/* --- loops -------------------------------------------------------------------------------------------- */

/* One target takes the item whole; several take its parts. */
static sheaf_status bind(jj_run *r, const jj_node *n, const jj_value *item) {
    if (n->n == 1) return jj_assign(r, n->list[0]->name, item);
    if (item->kind != JJ_LIST || item->u.list->n != n->n) {
        size_t parts = item->kind == JJ_LIST ? item->u.list->n : 1;
        return jj_fail(r, SHEAF_E_FORMAT, "%zu names for an item of %zu parts", n->n, parts);
    }
    sheaf_status s = SHEAF_OK;
    for (size_t i = 0; i < n->n && !s; i++) s = jj_assign(r, n->list[i]->name, &item->u.list->v[i]);
    return s;
}

/* The items for which the loop's own condition holds; "loop" is not visible to it. */
static sheaf_status filter_items(jj_run *r, const jj_node *n, jj_list **items) {
    jj_value kept, holds;
    sheaf_status s = jj_new_list(r, &kept);
    for (size_t i = 0; i < (*items)->n && !s; i++) {
        s = bind(r, n, &(*items)->v[i]);
        if (!s) s = jj_eval(r, n->b, &holds);
        if (!s && jj_truth(&holds)) s = jj_push(r, kept.u.list, &(*items)->v[i]);
    }
    *items = kept.u.list;
    return s;
}

static sheaf_status run_items(jj_run *r, const jj_node *n, jj_scope *scope, const jj_list *items) {
    /* In the arena, not on the stack: a namespace may keep it beyond the loop. */
    jj_loop *loop = jj_alloc(r, sizeof(*loop));
    if (!loop) return jj_fail(r, SHEAF_E_NO_MEMORY, "no memory for a loop");
    *loop = (jj_loop){.items = items, .depth = r->loop_depth};
    const jj_value v = {.kind = JJ_LOOP, .u.loop = loop};
    jj_flow flow = JJ_NEXT;
    sheaf_status s = SHEAF_OK;
    for (size_t i = 0, count = items->n; i < count && flow != JJ_BROKE && !s; i++) {
        loop->index = i;
        scope->vars.keys.n = scope->vars.values.n = 0; /* what one turn sets, the next does not see */
        flow = JJ_NEXT;
        s = jj_assign(r, jj_text("loop"), &v);
        if (!s) s = bind(r, n, &items->v[i]);
        if (!s) s = jj_block(r, n->c, &flow);
    }
    return s;
}

static sheaf_status run_for(jj_run *r, const jj_node *n, jj_flow *flow) {
    jj_value over;
    jj_list *items;
    sheaf_status s = jj_eval(r, n->a, &over);
    if (!s) s = jj_items(r, &over, &items);
    if (s) return s;
    jj_scope scope = {.outer = r->scope};
    r->scope = &scope;
    r->loop_depth++;
    if (n->b) s = filter_items(r, n, &items);
    size_t count = s ? 0 : items->n;
    if (!s) s = run_items(r, n, &scope, items);
    r->loop_depth--;
    r->scope = scope.outer;
    return !s && count == 0 && n->d ? jj_block(r, n->d, flow) : s;
}

/* --- set and macros -------------------------------------------------------------------------------------- */

static sheaf_status assign_target(jj_run *r, const jj_node *target, const jj_value *v) {
    jj_value of, key = jj_string(target->name);
    if (target->kind == JJ_N_NAME) return jj_assign(r, target->name, v);
    sheaf_status s = jj_eval(r, target->a, &of);
    if (s) return s;
    if (of.kind != JJ_DICT || !of.u.dict->is_namespace)
        return jj_fail(r, SHEAF_E_FORMAT, "only a namespace's members can be set");
    return jj_dict_set(r, of.u.dict, &key, v);
}

static sheaf_status run_set(jj_run *r, const jj_node *n) {
    jj_value v;
    sheaf_status s = jj_eval(r, n->a, &v);
    if (s) return s;
    if (n->n == 1) return assign_target(r, n->list[0], &v);
    if (v.kind != JJ_LIST || v.u.list->n != n->n)
        return jj_fail(r, SHEAF_E_FORMAT, "set has %zu names for %s", n->n, jj_kind_name(&v));
    for (size_t i = 0; i < n->n && !s; i++) s = assign_target(r, n->list[i], &v.u.list->v[i]);
    return s;
}

/* What a block prints, as a value. */
static sheaf_status capture(jj_run *r, const jj_node *block, jj_value *out) {
    jj_buf b = {0}, *outer = r->out;
    jj_flow flow = JJ_NEXT;
    r->out = &b;
    sheaf_status s = jj_block(r, block, &flow);
    r->out = outer;
    *out = jj_string(jj_built(&b));
    return s;
}

static sheaf_status run_set_block(jj_run *r, const jj_node *n) {
    jj_value v;
    sheaf_status s = capture(r, n->c, &v);
    return s ? s : assign_target(r, n->list[0], &v);
}

/* Binds the parameters in the macro's own scope, which is already the current one. */
static sheaf_status bind_parameters(jj_run *r, const jj_node *macro, const jj_args *args) {
    sheaf_status s = SHEAF_OK;
    if (args->n > macro->n)
        return jj_fail(r, SHEAF_E_FORMAT, "macro \"%.*s\" takes %zu arguments, %zu were given",
                       (int)(macro->name.n < 40 ? macro->name.n : 40), macro->name.s, macro->n, args->n);
    for (size_t i = 0; i < macro->n && !s; i++) {
        const jj_node *parameter = macro->list[i];
        jj_value v = jj_undefined(parameter->name);
        bool given = i < args->n;
        if (given) v = args->v[i];
        for (size_t k = 0; k < args->n_named && !given; k++) {
            given = jj_equal_str(args->names[k], parameter->name);
            if (given) v = args->named[k];
        }
        if (!given && parameter->a) s = jj_eval(r, parameter->a, &v);
        if (!s) s = jj_assign(r, parameter->name, &v);
    }
    return s;
}

sheaf_status jj_call_macro(jj_run *r, const jj_node *macro, const jj_node *call, jj_value *out) {
    jj_args args;
    sheaf_status s = jj_eval_args(r, call, &args);
    if (s) return s;
    jj_scope scope = {.outer = r->globals}, *outer = r->scope;
    r->scope = &scope;
    s = bind_parameters(r, macro, &args);
    if (!s) s = capture(r, macro->c, out);
    r->scope = outer;
    return s;
}

/* --- blocks -------------------------------------------------------------------------------------------------- */

static sheaf_status run_statement(jj_run *r, const jj_node *n, jj_flow *flow) {
    const jj_value macro = {.kind = JJ_MACRO, .u.macro = n};
    switch (n->kind) {
    case JJ_N_TEXT: return jj_put(r, r->out, n->name);
    case JJ_N_PRINT: return run_print(r, n);
    case JJ_N_BLOCK: return jj_block(r, n, flow);
    case JJ_N_IF: return run_if(r, n, flow);
    case JJ_N_FOR: return run_for(r, n, flow);
    case JJ_N_SET: return run_set(r, n);
    case JJ_N_SET_BLOCK: return run_set_block(r, n);
    case JJ_N_MACRO: return jj_assign(r, n->name, &macro);
    case JJ_N_BREAK: *flow = JJ_BROKE; return SHEAF_OK;
    case JJ_N_CONTINUE: *flow = JJ_CONTINUED; return SHEAF_OK;
    default: return jj_fail(r, SHEAF_E_INTERNAL, "node %d is no statement", n->kind);
    }
}

sheaf_status jj_block(jj_run *r, const jj_node *n, jj_flow *flow) {
    sheaf_status s = SHEAF_OK;
    if (++r->depth > JJ_MAX_DEPTH) return jj_fail(r, SHEAF_E_RANGE, "blocks nested deeper than %d", JJ_MAX_DEPTH);
    for (size_t i = 0; i < n->n && *flow == JJ_NEXT && !s; i++) {
        r->line = n->list[i]->line;
        s = jj_step(r, 1);
        if (!s) s = run_statement(r, n->list[i], flow);
    }
    r->depth--;
    return s;
}
