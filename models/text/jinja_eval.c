/* Evaluates expressions. One small function per kind of node; depth is counted so that macros that
 * call themselves and tall trees end in an error instead of the end of the stack. */
#include "models/text/jinja.h"

#include <math.h>
#include <string.h>

/* --- names and parts ----------------------------------------------------------------------------------- */

static bool is_global(jj_str name) {
    return jj_is(name, "range") || jj_is(name, "namespace") || jj_is(name, "dict") || jj_is(name, "raise_exception") ||
           jj_is(name, "strftime_now");
}

sheaf_status jj_lookup(jj_run *r, jj_str name, jj_value *out) {
    jj_value key = jj_string(name);
    sheaf_status s = SHEAF_OK;
    for (const jj_scope *scope = r->scope; scope && !s; scope = scope->outer) {
        if (jj_dict_get(&scope->vars, &key, out)) return SHEAF_OK;
        s = jj_step(r, 1 + scope->vars.keys.n / 8);
    }
    *out = jj_undefined(name);
    if (is_global(name)) *out = (jj_value){.kind = JJ_FUNCTION, .u.str = name};
    return s;
}

sheaf_status jj_assign(jj_run *r, jj_str name, const jj_value *v) {
    jj_value key = jj_string(name);
    return jj_dict_set(r, &r->scope->vars, &key, v);
}

static sheaf_status is_undefined(const jj_run *r, const jj_value *v, const char *doing) {
    return jj_fail(r, SHEAF_E_FORMAT, "\"%.*s\" is undefined, but %s", (int)(v->u.str.n < 64 ? v->u.str.n : 64),
                   v->u.str.s, doing);
}

static jj_value loop_attribute(const jj_loop *l, jj_str name) {
    size_t n = l->items->n, i = l->index;
    if (jj_is(name, "index")) return jj_int((int64_t)i + 1);
    if (jj_is(name, "index0")) return jj_int((int64_t)i);
    if (jj_is(name, "revindex")) return jj_int((int64_t)(n - i));
    if (jj_is(name, "revindex0")) return jj_int((int64_t)(n - i) - 1);
    if (jj_is(name, "first")) return jj_bool(i == 0);
    if (jj_is(name, "last")) return jj_bool(i + 1 == n);
    if (jj_is(name, "length")) return jj_int((int64_t)n);
    if (jj_is(name, "depth")) return jj_int(l->depth);
    if (jj_is(name, "depth0")) return jj_int(l->depth - 1);
    if (jj_is(name, "previtem") && i > 0) return l->items->v[i - 1];
    if (jj_is(name, "nextitem") && i + 1 < n) return l->items->v[i + 1];
    return jj_undefined(name);
}

sheaf_status jj_attribute(jj_run *r, const jj_value *v, jj_str name, jj_value *out) {
    jj_value key = jj_string(name);
    *out = jj_undefined(name);
    if (v->kind == JJ_UNDEFINED) return is_undefined(r, v, "a part of it is asked for");
    if (v->kind == JJ_LOOP) *out = loop_attribute(v->u.loop, name);
    if (v->kind != JJ_DICT) return SHEAF_OK;
    jj_dict_get(v->u.dict, &key, out);
    return jj_step(r, 1 + v->u.dict->keys.n / 8);
}

/* Python's index: negative ones count from the end. False: outside. */
static bool resolve_index(int64_t i, size_t n, size_t *at) {
    if (i < 0) i += (int64_t)n;
    *at = (size_t)i;
    return i >= 0 && (size_t)i < n;
}

static sheaf_status eval_index(jj_run *r, const jj_node *n, jj_value *out) {
    jj_value of, key;
    size_t at;
    sheaf_status s = jj_eval(r, n->a, &of);
    if (!s) s = jj_eval(r, n->b, &key);
    if (s) return s;
    if (of.kind == JJ_UNDEFINED) return is_undefined(r, &of, "a part of it is asked for");
    *out = jj_undefined(key.kind == JJ_STRING ? key.u.str : jj_text("an index"));
    if (of.kind == JJ_LIST && key.kind == JJ_INT) {
        if (resolve_index(key.u.i, of.u.list->n, &at)) *out = of.u.list->v[at];
        return SHEAF_OK;
    }
    if (of.kind == JJ_STRING && key.kind == JJ_INT) {
        if (!resolve_index(key.u.i, jj_char_count(of.u.str), &at)) return SHEAF_OK;
        size_t begin = jj_char_at(of.u.str, at);
        *out = jj_string(jj_slice(of.u.str, begin, jj_char_at(of.u.str, at + 1)));
        return jj_step(r, of.u.str.n / 64);
    }
    if (of.kind == JJ_DICT) {
        jj_dict_get(of.u.dict, &key, out);
        return jj_step(r, 1 + of.u.dict->keys.n / 8);
    }
    return key.kind == JJ_STRING ? jj_attribute(r, &of, key.u.str, out) : SHEAF_OK;
}

/* One bound of a slice; `given` false where it is left out or none. */
static sheaf_status eval_bound(jj_run *r, const jj_node *n, int64_t *i, bool *given) {
    jj_value v = jj_none();
    sheaf_status s = n ? jj_eval(r, n, &v) : SHEAF_OK;
    if (s) return s;
    *given = v.kind == JJ_INT;
    if (*given)
        *i = v.u.i;
    else if (v.kind != JJ_NONE)
        return jj_fail(r, SHEAF_E_FORMAT, "a slice's bound is %s", jj_kind_name(&v));
    return SHEAF_OK;
}

static int64_t clamp_bound(int64_t i, int64_t n, int64_t lowest, int64_t highest) {
    if (i < 0) i += n;
    return i < lowest ? lowest : i > highest ? highest : i;
}

/* Python's slice over `n` items: the first index, and how many. */
static sheaf_status slice_range(jj_run *r, const jj_node *node, size_t n, int64_t *first, int64_t *step,
                                size_t *count) {
    int64_t begin = 0, end = 0, len = (int64_t)n;
    *first = 0;
    *count = 0;
    bool has_begin, has_end, has_step;
    *step = 1;
    sheaf_status s = eval_bound(r, node->b, &begin, &has_begin);
    if (!s) s = eval_bound(r, node->c, &end, &has_end);
    if (!s) s = eval_bound(r, node->d, step, &has_step);
    if (s) return s;
    if (*step == 0 || *step == INT64_MIN)
        return jj_fail(r, SHEAF_E_FORMAT, "a slice's step is %s", *step ? "too large" : "zero");
    if (*step > 0) {
        begin = has_begin ? clamp_bound(begin, len, 0, len) : 0;
        end = has_end ? clamp_bound(end, len, 0, len) : len;
        *count = end > begin ? (size_t)((end - begin - 1) / *step + 1) : 0;
    } else {
        begin = has_begin ? clamp_bound(begin, len, -1, len - 1) : len - 1;
        end = has_end ? clamp_bound(end, len, -1, len - 1) : -1;
        *count = begin > end ? (size_t)((begin - end - 1) / -*step + 1) : 0;
    }
    *first = begin;
    return SHEAF_OK;
}

static sheaf_status eval_slice(jj_run *r, const jj_node *n, jj_value *out) {
    jj_value of;
    int64_t first, step;
    size_t count;
    sheaf_status s = jj_eval(r, n->a, &of);
    if (s) return s;
    if (of.kind == JJ_UNDEFINED) return is_undefined(r, &of, "a part of it is asked for");
    if (of.kind != JJ_LIST && of.kind != JJ_STRING)
        return jj_fail(r, SHEAF_E_FORMAT, "%s cannot be sliced", jj_kind_name(&of));
    size_t length = of.kind == JJ_LIST ? of.u.list->n : jj_char_count(of.u.str);
    if ((s = slice_range(r, n, length, &first, &step, &count))) return s;
    if (of.kind == JJ_STRING) {
        if (step == 1) {
            size_t begin = jj_char_at(of.u.str, (size_t)first);
            *out = jj_string(jj_slice(of.u.str, begin, count ? jj_char_at(of.u.str, (size_t)first + count) : begin));
            return jj_step(r, of.u.str.n / 64);
        }
        jj_list *chars;
        jj_buf b = {0};
        s = jj_items(r, &of, &chars);
        for (size_t i = 0; i < count && !s; i++) s = jj_put(r, &b, chars->v[first + (int64_t)i * step].u.str);
        *out = jj_string(jj_built(&b));
        return s;
    }
    s = jj_new_list(r, out);
    for (size_t i = 0; i < count && !s; i++) s = jj_push(r, out->u.list, &of.u.list->v[first + (int64_t)i * step]);
    return s;
}

/* --- operators ------------------------------------------------------------------------------------------ */

static sheaf_status cannot(jj_run *r, const char *what, const jj_value *x, const jj_value *y) {
    if (x->kind == JJ_UNDEFINED) return is_undefined(r, x, "an operator needs its value");
    if (y->kind == JJ_UNDEFINED) return is_undefined(r, y, "an operator needs its value");
    return jj_fail(r, SHEAF_E_FORMAT, "%s %s and %s", what, jj_kind_name(x), jj_kind_name(y));
}

static bool whole(const jj_value *v, int64_t *i) {
    *i = v->kind == JJ_BOOL ? v->u.b : v->u.i;
    return v->kind == JJ_INT || v->kind == JJ_BOOL;
}

static bool real(const jj_value *v, double *f) {
    int64_t i;
    if (v->kind == JJ_FLOAT)
        *f = v->u.f;
    else if (whole(v, &i))
        *f = (double)i;
    else
        return false;
    return true;
}

static sheaf_status int_power(jj_run *r, int64_t x, int64_t y, jj_value *out) {
    int64_t result = 1;
    for (; y > 0; y--) {
        if (__builtin_mul_overflow(result, x, &result)) return jj_fail(r, SHEAF_E_RANGE, "a number is too large");
        if (jj_step(r, 1)) return SHEAF_E_RANGE;
    }
    *out = jj_int(result);
    return SHEAF_OK;
}

static sheaf_status int_arithmetic(jj_run *r, jj_op op, int64_t x, int64_t y, jj_value *out) {
    int64_t v = 0;
    bool wraps = false;
    if ((op == JJ_OP_FLOORDIV || op == JJ_OP_MOD) && y == 0) return jj_fail(r, SHEAF_E_FORMAT, "division by zero");
    switch (op) {
    case JJ_OP_ADD: wraps = __builtin_add_overflow(x, y, &v); break;
    case JJ_OP_SUB: wraps = __builtin_sub_overflow(x, y, &v); break;
    case JJ_OP_MUL: wraps = __builtin_mul_overflow(x, y, &v); break;
    case JJ_OP_POW: return int_power(r, x, y, out);
    default: /* floor division and its remainder, as Python: the remainder has the divisor's sign */
        wraps = y == -1 && x == INT64_MIN;
        if (wraps) break;
        v = op == JJ_OP_MOD ? x % y : x / y;
        if (x % y != 0 && (x < 0) != (y < 0)) v = op == JJ_OP_MOD ? v + y : v - 1;
    }
    if (wraps) return jj_fail(r, SHEAF_E_RANGE, "a number is too large");
    *out = jj_int(v);
    return SHEAF_OK;
}

static sheaf_status arithmetic(jj_run *r, jj_op op, const jj_value *x, const jj_value *y, jj_value *out) {
    int64_t i, j;
    double a, b, v;
    bool ints = whole(x, &i) && whole(y, &j);
    if (ints && op != JJ_OP_DIV && !(op == JJ_OP_POW && j < 0)) return int_arithmetic(r, op, i, j, out);
    if (!real(x, &a) || !real(y, &b)) return cannot(r, "an operator cannot take", x, y);
    if ((op == JJ_OP_DIV || op == JJ_OP_FLOORDIV || op == JJ_OP_MOD) && b == 0)
        return jj_fail(r, SHEAF_E_FORMAT, "division by zero");
    switch (op) {
    case JJ_OP_ADD: v = a + b; break;
    case JJ_OP_SUB: v = a - b; break;
    case JJ_OP_MUL: v = a * b; break;
    case JJ_OP_DIV: v = a / b; break;
    case JJ_OP_FLOORDIV: v = floor(a / b); break;
    case JJ_OP_MOD: v = a - b * floor(a / b); break;
    default: v = pow(a, b); break;
    }
    *out = (jj_value){.kind = JJ_FLOAT, .u.f = v};
    return SHEAF_OK;
}

static sheaf_status join_strings(jj_run *r, const jj_value *x, const jj_value *y, jj_value *out) {
    jj_str a, b;
    jj_buf buf = {0};
    sheaf_status s = jj_to_string(r, x, &a);
    if (!s) s = jj_to_string(r, y, &b);
    if (!s) s = jj_put(r, &buf, a);
    if (!s) s = jj_put(r, &buf, b);
    if (!s) *out = jj_string(jj_built(&buf));
    return s;
}

static sheaf_status join_lists(jj_run *r, const jj_list *x, const jj_list *y, jj_value *out) {
    sheaf_status s = jj_new_list(r, out);
    for (size_t i = 0; i < x->n && !s; i++) s = jj_push(r, out->u.list, &x->v[i]);
    for (size_t i = 0; i < y->n && !s; i++) s = jj_push(r, out->u.list, &y->v[i]);
    return s;
}

static sheaf_status repeat(jj_run *r, jj_str text, int64_t times, jj_value *out) {
    jj_buf b = {0};
    sheaf_status s = SHEAF_OK;
    for (int64_t i = 0; i < times && !s; i++) s = jj_put(r, &b, text);
    *out = jj_string(jj_built(&b));
    return s;
}

static sheaf_status compare(jj_run *r, jj_op op, const jj_value *x, const jj_value *y, jj_value *out) {
    bool b = false;
    int c = 0;
    sheaf_status s;
    switch (op) {
    case JJ_OP_EQ:
    case JJ_OP_NE: s = jj_equal(r, x, y, &b); break;
    case JJ_OP_IN:
    case JJ_OP_NOT_IN: s = jj_contains(r, y, x, &b); break;
    default:
        if (x->kind == JJ_UNDEFINED || y->kind == JJ_UNDEFINED) return cannot(r, "cannot order", x, y);
        s = jj_compare(r, x, y, &c);
        b = op == JJ_OP_LT ? c < 0 : op == JJ_OP_LE ? c <= 0 : op == JJ_OP_GT ? c > 0 : c >= 0;
    }
    *out = jj_bool(b != (op == JJ_OP_NE || op == JJ_OP_NOT_IN));
    return s;
}

static sheaf_status eval_binary(jj_run *r, const jj_node *n, jj_value *out) {
    jj_value x, y;
    sheaf_status s = jj_eval(r, n->a, &x);
    if (!s) s = jj_eval(r, n->b, &y);
    if (s) return s;
    r->line = n->line;
    if (n->op >= JJ_OP_EQ) return compare(r, n->op, &x, &y, out);
    if (n->op == JJ_OP_CONCAT) return join_strings(r, &x, &y, out);
    if (n->op == JJ_OP_ADD && x.kind == JJ_STRING && y.kind == JJ_STRING) return join_strings(r, &x, &y, out);
    if (n->op == JJ_OP_ADD && x.kind == JJ_LIST && y.kind == JJ_LIST) return join_lists(r, x.u.list, y.u.list, out);
    if (n->op == JJ_OP_MUL && x.kind == JJ_STRING && y.kind == JJ_INT) return repeat(r, x.u.str, y.u.i, out);
    if (n->op == JJ_OP_MOD && x.kind == JJ_STRING)
        return jj_fail(r, SHEAF_E_UNSUPPORTED, "formatting with %% is not supported");
    return arithmetic(r, n->op, &x, &y, out);
}

static sheaf_status eval_sign(jj_run *r, const jj_node *n, jj_value *out) {
    const jj_value zero = jj_int(0);
    jj_value v;
    sheaf_status s = jj_eval(r, n->a, &v);
    return s ? s : arithmetic(r, n->kind == JJ_N_NEG ? JJ_OP_SUB : JJ_OP_ADD, &zero, &v, out);
}

/* --- the rest ---------------------------------------------------------------------------------------------- */

static sheaf_status eval_list(jj_run *r, const jj_node *n, jj_value *out) {
    sheaf_status s = jj_new_list(r, out);
    if (!s) out->u.list->tuple = n->tuple;
    for (size_t i = 0; i < n->n && !s; i++) {
        jj_value item;
        s = jj_eval(r, n->list[i], &item);
        if (!s) s = jj_push(r, out->u.list, &item);
    }
    return s;
}

static sheaf_status eval_dict(jj_run *r, const jj_node *n, jj_value *out) {
    sheaf_status s = jj_new_dict(r, out);
    for (size_t i = 0; i + 1 < n->n && !s; i += 2) {
        jj_value key, v;
        s = jj_eval(r, n->list[i], &key);
        if (!s) s = jj_eval(r, n->list[i + 1], &v);
        if (!s) s = jj_dict_set(r, out->u.dict, &key, &v);
    }
    return s;
}

static sheaf_status eval_logic(jj_run *r, const jj_node *n, jj_value *out) {
    sheaf_status s = jj_eval(r, n->a, out);
    bool stop = jj_truth(out) == (n->kind == JJ_N_OR);
    return s || stop ? s : jj_eval(r, n->b, out);
}

static sheaf_status eval_cond(jj_run *r, const jj_node *n, jj_value *out) {
    jj_value condition;
    sheaf_status s = jj_eval(r, n->b, &condition);
    if (s) return s;
    if (jj_truth(&condition)) return jj_eval(r, n->a, out);
    if (n->c) return jj_eval(r, n->c, out);
    *out = jj_undefined(jj_text("the missing else"));
    return SHEAF_OK;
}

static sheaf_status eval_filter_or_test(jj_run *r, const jj_node *n, jj_value *out) {
    jj_value in;
    jj_args args;
    bool b = false;
    sheaf_status s = jj_eval(r, n->a, &in);
    if (!s) s = jj_eval_args(r, n, &args);
    if (s) return s;
    r->line = n->line;
    if (n->kind == JJ_N_FILTER) return jj_filter(r, n->name, &in, &args, out);
    s = jj_test(r, n->name, &in, &args, &b);
    *out = jj_bool(b);
    return s;
}

static sheaf_status eval_kind(jj_run *r, const jj_node *n, jj_value *out) {
    jj_value v;
    sheaf_status s;
    switch (n->kind) {
    case JJ_N_CONST: *out = n->value; return SHEAF_OK;
    case JJ_N_NAME: return jj_lookup(r, n->name, out);
    case JJ_N_LIST: return eval_list(r, n, out);
    case JJ_N_DICT: return eval_dict(r, n, out);
    case JJ_N_NOT:
        s = jj_eval(r, n->a, &v);
        *out = jj_bool(!s && !jj_truth(&v));
        return s;
    case JJ_N_NEG:
    case JJ_N_POS: return eval_sign(r, n, out);
    case JJ_N_BINARY: return eval_binary(r, n, out);
    case JJ_N_AND:
    case JJ_N_OR: return eval_logic(r, n, out);
    case JJ_N_COND: return eval_cond(r, n, out);
    case JJ_N_ATTR: s = jj_eval(r, n->a, &v); return s ? s : jj_attribute(r, &v, n->name, out);
    case JJ_N_INDEX: return eval_index(r, n, out);
    case JJ_N_SLICE: return eval_slice(r, n, out);
    case JJ_N_CALL: return jj_call(r, n, out);
    case JJ_N_FILTER:
    case JJ_N_TEST: return eval_filter_or_test(r, n, out);
    default: return jj_fail(r, SHEAF_E_INTERNAL, "node %d is no expression", n->kind);
    }
}

sheaf_status jj_eval(jj_run *r, const jj_node *n, jj_value *out) {
    *out = jj_none(); /* callers may look at it whatever the status */
    r->line = n->line;
    sheaf_status s = jj_step(r, 1);
    if (s) return s;
    if (++r->depth > JJ_MAX_DEPTH) return jj_fail(r, SHEAF_E_RANGE, "evaluation nested deeper than %d", JJ_MAX_DEPTH);
    s = eval_kind(r, n, out);
    r->depth--;
    return s;
}
