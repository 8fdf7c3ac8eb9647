/* Filters (x | name) and tests (x is name), each a small function in a table. */
#include "models/text/jinja.h"

#include <stdlib.h>
#include <string.h>

typedef sheaf_status (*filter_fn)(jj_run *r, const jj_value *in, const jj_args *a, jj_value *out);

/* --- strings ------------------------------------------------------------------------------------------------- */

/* Filters that are a method of the value's text. */
static sheaf_status as_method(jj_run *r, const char *name, const jj_value *in, const jj_args *a, jj_value *out) {
    jj_str text;
    bool known;
    sheaf_status s = jj_to_string(r, in, &text);
    return s ? s : jj_string_method(r, text, jj_text(name), a, out, &known);
}

static sheaf_status filter_trim(jj_run *r, const jj_value *in, const jj_args *a, jj_value *out) {
    return as_method(r, "strip", in, a, out);
}
static sheaf_status filter_upper(jj_run *r, const jj_value *in, const jj_args *a, jj_value *out) {
    return as_method(r, "upper", in, a, out);
}
static sheaf_status filter_lower(jj_run *r, const jj_value *in, const jj_args *a, jj_value *out) {
    return as_method(r, "lower", in, a, out);
}
static sheaf_status filter_title(jj_run *r, const jj_value *in, const jj_args *a, jj_value *out) {
    return as_method(r, "title", in, a, out);
}
static sheaf_status filter_capital(jj_run *r, const jj_value *in, const jj_args *a, jj_value *out) {
    return as_method(r, "capitalize", in, a, out);
}
static sheaf_status filter_replace(jj_run *r, const jj_value *in, const jj_args *a, jj_value *out) {
    return as_method(r, "replace", in, a, out);
}

static sheaf_status filter_string(jj_run *r, const jj_value *in, const jj_args *a, jj_value *out) {
    jj_str text;
    (void)a;
    sheaf_status s = jj_to_string(r, in, &text);
    *out = jj_string(text);
    return s;
}

static sheaf_status filter_safe(jj_run *r, const jj_value *in, const jj_args *a, jj_value *out) {
    (void)r;
    (void)a;
    *out = *in; /* nothing is ever escaped */
    return SHEAF_OK;
}

static sheaf_status filter_tojson(jj_run *r, const jj_value *in, const jj_args *a, jj_value *out) {
    jj_value indent;
    jj_buf b = {0};
    for (size_t i = 0; i < a->n_named; i++)
        if (!jj_is(a->names[i], "indent") && !jj_is(a->names[i], "ensure_ascii"))
            return jj_fail(r, SHEAF_E_UNSUPPORTED, "tojson: argument \"%.*s\" is not supported", (int)a->names[i].n,
                           a->names[i].s);
    bool has = jj_arg(a, 0, "indent", &indent) && indent.kind == JJ_INT;
    if (has && (indent.u.i < 0 || indent.u.i > 16))
        return jj_fail(r, SHEAF_E_RANGE, "tojson: an indent of %lld", (long long)indent.u.i);
    sheaf_status s = jj_json_write(r, &b, in, has ? (int)indent.u.i : -1);
    *out = jj_string(jj_built(&b));
    return s;
}

/* indent(width=4, first=false): lines after the first, unless they are empty, get blanks in front. */
static sheaf_status filter_indent(jj_run *r, const jj_value *in, const jj_args *a, jj_value *out) {
    static const char blanks[] = "                                ";
    jj_value width = jj_int(4), first = jj_bool(false);
    jj_str text;
    jj_buf b = {0};
    (void)jj_arg(a, 0, "width", &width);
    (void)jj_arg(a, 1, "first", &first);
    if (width.kind != JJ_INT || width.u.i < 0 || width.u.i >= (int64_t)sizeof(blanks))
        return jj_fail(r, SHEAF_E_UNSUPPORTED, "indent: this width is not supported");
    sheaf_status s = jj_to_string(r, in, &text);
    for (size_t at = 0; at < text.n && !s;) {
        const char *nl = memchr(text.s + at, '\n', text.n - at);
        size_t end = nl ? (size_t)(nl - text.s) + 1 : text.n;
        bool pad = (at > 0 && text.s[at] != '\n') || (at == 0 && jj_truth(&first));
        if (pad) s = jj_put_text(r, &b, blanks, (size_t)width.u.i);
        if (!s) s = jj_put(r, &b, jj_slice(text, at, end));
        at = end;
    }
    *out = jj_string(jj_built(&b));
    return s;
}

/* --- numbers --------------------------------------------------------------------------------------------------- */

static sheaf_status filter_int(jj_run *r, const jj_value *in, const jj_args *a, jj_value *out) {
    char text[32] = "";
    *out = jj_int(0);
    (void)jj_arg(a, 0, "default", out);
    if (in->kind == JJ_INT)
        *out = *in;
    else if (in->kind == JJ_BOOL)
        *out = jj_int(in->u.b);
    else if (in->kind == JJ_FLOAT && in->u.f > -9e18 && in->u.f < 9e18)
        *out = jj_int((int64_t)in->u.f);
    else if (in->kind == JJ_STRING && in->u.str.n && in->u.str.n < sizeof(text)) {
        char *end;
        memcpy(text, in->u.str.s, in->u.str.n);
        long long v = strtoll(text, &end, 10);
        if (*end == 0) *out = jj_int(v);
    }
    return jj_step(r, 1);
}

static sheaf_status filter_float(jj_run *r, const jj_value *in, const jj_args *a, jj_value *out) {
    char text[64] = "";
    *out = (jj_value){.kind = JJ_FLOAT, .u.f = 0};
    (void)jj_arg(a, 0, "default", out);
    if (in->kind == JJ_FLOAT)
        *out = *in;
    else if (in->kind == JJ_INT)
        out->u.f = (double)in->u.i;
    else if (in->kind == JJ_STRING && in->u.str.n && in->u.str.n < sizeof(text)) {
        char *end;
        memcpy(text, in->u.str.s, in->u.str.n);
        double v = strtod(text, &end);
        if (*end == 0) *out = (jj_value){.kind = JJ_FLOAT, .u.f = v};
    }
    return jj_step(r, 1);
}

static sheaf_status filter_abs(jj_run *r, const jj_value *in, const jj_args *a, jj_value *out) {
    (void)a;
    *out = *in;
    if (in->kind == JJ_INT && in->u.i > INT64_MIN)
        out->u.i = in->u.i < 0 ? -in->u.i : in->u.i;
    else if (in->kind == JJ_FLOAT)
        out->u.f = in->u.f < 0 ? -in->u.f : in->u.f;
    else
        return jj_fail(r, SHEAF_E_FORMAT, "abs of %s", jj_kind_name(in));
    return SHEAF_OK;
}

/* --- sequences --------------------------------------------------------------------------------------------------- */

static sheaf_status filter_length(jj_run *r, const jj_value *in, const jj_args *a, jj_value *out) {
    size_t n = 0;
    (void)a;
    sheaf_status s = jj_length(r, in, &n);
    *out = jj_int((int64_t)n);
    return s;
}

static sheaf_status filter_list(jj_run *r, const jj_value *in, const jj_args *a, jj_value *out) {
    jj_list *items;
    (void)a;
    sheaf_status s = jj_items(r, in, &items);
    if (!s) *out = (jj_value){.kind = JJ_LIST, .u.list = items};
    return s;
}

static sheaf_status end_item(jj_run *r, const jj_value *in, bool last, jj_value *out) {
    jj_list *items;
    sheaf_status s = jj_items(r, in, &items);
    if (s) return s;
    *out =
        items->n ? items->v[last ? items->n - 1 : 0] : jj_undefined(jj_text(last ? "the last item" : "the first item"));
    return SHEAF_OK;
}

static sheaf_status filter_first(jj_run *r, const jj_value *in, const jj_args *a, jj_value *out) {
    (void)a;
    return end_item(r, in, false, out);
}

static sheaf_status filter_last(jj_run *r, const jj_value *in, const jj_args *a, jj_value *out) {
    (void)a;
    return end_item(r, in, true, out);
}

static sheaf_status filter_reverse(jj_run *r, const jj_value *in, const jj_args *a, jj_value *out) {
    jj_list *items;
    jj_buf b = {0};
    (void)a;
    sheaf_status s = jj_items(r, in, &items);
    if (s) return s;
    if (in->kind == JJ_STRING) {
        for (size_t i = items->n; i-- > 0 && !s;) s = jj_put(r, &b, items->v[i].u.str);
        *out = jj_string(jj_built(&b));
        return s;
    }
    s = jj_new_list(r, out);
    for (size_t i = items->n; i-- > 0 && !s;) s = jj_push(r, out->u.list, &items->v[i]);
    return s;
}

/* item.part.part of a dotted name */
static sheaf_status dotted(jj_run *r, const jj_value *item, jj_str path, jj_value *out) {
    sheaf_status s = SHEAF_OK;
    *out = *item;
    for (size_t at = 0; at < path.n && !s;) {
        const char *dot = memchr(path.s + at, '.', path.n - at);
        size_t end = dot ? (size_t)(dot - path.s) : path.n;
        jj_value of = *out;
        s = jj_attribute(r, &of, jj_slice(path, at, end), out);
        at = end + 1;
    }
    return s;
}

static sheaf_status filter_join(jj_run *r, const jj_value *in, const jj_args *a, jj_value *out) {
    jj_list *items;
    jj_buf b = {0};
    jj_value by = jj_string(jj_text("")), attribute, item;
    jj_str text;
    (void)jj_arg(a, 0, "d", &by);
    bool part = jj_arg(a, 1, "attribute", &attribute) && attribute.kind == JJ_STRING;
    if (by.kind != JJ_STRING) return jj_fail(r, SHEAF_E_FORMAT, "join: the separator is %s", jj_kind_name(&by));
    sheaf_status s = jj_items(r, in, &items);
    for (size_t i = 0; !s && i < items->n; i++) {
        item = items->v[i];
        if (part) s = dotted(r, &items->v[i], attribute.u.str, &item);
        if (!s && i) s = jj_put(r, &b, by.u.str);
        if (!s) s = jj_to_string(r, &item, &text);
        if (!s) s = jj_put(r, &b, text);
    }
    *out = jj_string(jj_built(&b));
    return s;
}

static sheaf_status filter_map(jj_run *r, const jj_value *in, const jj_args *a, jj_value *out) {
    jj_list *items;
    jj_value attribute, v;
    bool part = jj_arg(a, SIZE_MAX, "attribute", &attribute);
    if (part ? attribute.kind != JJ_STRING : a->n == 0 || a->v[0].kind != JJ_STRING)
        return jj_fail(r, SHEAF_E_FORMAT, "map needs attribute=NAME or the name of a filter");
    jj_args rest = {a->n ? a->v + 1 : NULL, a->n ? a->n - 1 : 0, a->names, a->named, a->n_named};
    sheaf_status s = jj_items(r, in, &items);
    if (!s) s = jj_new_list(r, out);
    for (size_t i = 0; !s && i < items->n; i++) {
        s = part ? dotted(r, &items->v[i], attribute.u.str, &v) : jj_filter(r, a->v[0].u.str, &items->v[i], &rest, &v);
        if (!s) s = jj_push(r, out->u.list, &v);
    }
    return s;
}

/* select, reject, selectattr, rejectattr: [attribute], [test, its arguments]. */
static sheaf_status choose(jj_run *r, const jj_value *in, const jj_args *a, bool wanted, bool attribute,
                           jj_value *out) {
    jj_list *items;
    size_t skip = attribute ? 1 : 0;
    for (size_t i = 0; i < a->n && i <= skip; i++)
        if (a->v[i].kind != JJ_STRING)
            return jj_fail(r, SHEAF_E_FORMAT, "select: argument %zu is %s", i + 1, jj_kind_name(&a->v[i]));
    if (attribute && a->n == 0) return jj_fail(r, SHEAF_E_FORMAT, "selectattr needs the name of an attribute");
    bool has_test = a->n > skip;
    jj_args rest = {.v = has_test ? a->v + skip + 1 : NULL, .n = has_test ? a->n - skip - 1 : 0};
    sheaf_status s = jj_items(r, in, &items);
    if (!s) s = jj_new_list(r, out);
    for (size_t i = 0; !s && i < items->n; i++) {
        jj_value v = items->v[i];
        if (attribute) s = dotted(r, &items->v[i], a->v[0].u.str, &v);
        bool holds = !s && jj_truth(&v);
        if (!s && has_test) s = jj_test(r, a->v[skip].u.str, &v, &rest, &holds);
        if (!s && holds == wanted) s = jj_push(r, out->u.list, &items->v[i]);
    }
    return s;
}

static sheaf_status filter_select(jj_run *r, const jj_value *in, const jj_args *a, jj_value *out) {
    return choose(r, in, a, true, false, out);
}
static sheaf_status filter_reject(jj_run *r, const jj_value *in, const jj_args *a, jj_value *out) {
    return choose(r, in, a, false, false, out);
}
static sheaf_status filter_selectattr(jj_run *r, const jj_value *in, const jj_args *a, jj_value *out) {
    return choose(r, in, a, true, true, out);
}
static sheaf_status filter_rejectattr(jj_run *r, const jj_value *in, const jj_args *a, jj_value *out) {
    return choose(r, in, a, false, true, out);
}

static sheaf_status filter_unique(jj_run *r, const jj_value *in, const jj_args *a, jj_value *out) {
    jj_list *items;
    (void)a;
    sheaf_status s = jj_items(r, in, &items);
    if (!s) s = jj_new_list(r, out);
    for (size_t i = 0; !s && i < items->n; i++) {
        bool seen = false;
        s = jj_contains(r, out, &items->v[i], &seen);
        if (!s && !seen) s = jj_push(r, out->u.list, &items->v[i]);
    }
    return s;
}

static sheaf_status filter_items(jj_run *r, const jj_value *in, const jj_args *a, jj_value *out) {
    if (in->kind == JJ_UNDEFINED) return jj_new_list(r, out);
    return jj_method(r, in, jj_text("items"), a, out);
}

/* Pairs of a dict by key, as text without regard to case. */
static sheaf_status filter_dictsort(jj_run *r, const jj_value *in, const jj_args *a, jj_value *out) {
    const jj_args none = {0};
    if (a->n || a->n_named) return jj_fail(r, SHEAF_E_UNSUPPORTED, "dictsort with arguments is not supported");
    if (in->kind != JJ_DICT) return jj_fail(r, SHEAF_E_FORMAT, "dictsort of %s", jj_kind_name(in));
    sheaf_status s = jj_method(r, in, jj_text("items"), &none, out);
    if (s) return s;
    jj_value *v = out->u.list->v;
    for (size_t i = 1; i < out->u.list->n; i++) { /* insertion: dicts of templates are small, and steps are paid */
        for (size_t j = i; j > 0; j--) {
            jj_value x, y;
            int order;
            if ((s = filter_lower(r, &v[j - 1].u.list->v[0], &none, &x)) ||
                (s = filter_lower(r, &v[j].u.list->v[0], &none, &y)))
                return s;
            if ((s = jj_compare(r, &x, &y, &order)) || (s = jj_step(r, 1))) return s;
            if (order <= 0) break;
            jj_value swap = v[j];
            v[j] = v[j - 1];
            v[j - 1] = swap;
        }
    }
    return SHEAF_OK;
}

static sheaf_status filter_default(jj_run *r, const jj_value *in, const jj_args *a, jj_value *out) {
    jj_value other = jj_string(jj_text("")), falsy = jj_bool(false);
    (void)jj_arg(a, 0, "default_value", &other);
    (void)jj_arg(a, 1, "boolean", &falsy);
    *out = in->kind == JJ_UNDEFINED || (jj_truth(&falsy) && !jj_truth(in)) ? other : *in;
    return jj_step(r, 1);
}

static const struct {
    const char *name;
    filter_fn fn;
} FILTERS[] = {
    {"trim", filter_trim},
    {"length", filter_length},
    {"count", filter_length},
    {"tojson", filter_tojson},
    {"string", filter_string},
    {"int", filter_int},
    {"float", filter_float},
    {"abs", filter_abs},
    {"list", filter_list},
    {"join", filter_join},
    {"first", filter_first},
    {"last", filter_last},
    {"upper", filter_upper},
    {"lower", filter_lower},
    {"title", filter_title},
    {"capitalize", filter_capital},
    {"replace", filter_replace},
    {"default", filter_default},
    {"d", filter_default},
    {"items", filter_items},
    {"dictsort", filter_dictsort},
    {"select", filter_select},
    {"reject", filter_reject},
    {"selectattr", filter_selectattr},
    {"rejectattr", filter_rejectattr},
    {"map", filter_map},
    {"unique", filter_unique},
    {"reverse", filter_reverse},
    {"indent", filter_indent},
    {"safe", filter_safe},
};

sheaf_status jj_filter(jj_run *r, jj_str name, const jj_value *in, const jj_args *a, jj_value *out) {
    for (size_t i = 0; i < sizeof(FILTERS) / sizeof(*FILTERS); i++) {
        if (!jj_is(name, FILTERS[i].name)) continue;
        sheaf_status s = jj_step(r, 1);
        if (s) return s;
        if (++r->depth > JJ_MAX_DEPTH) return jj_fail(r, SHEAF_E_RANGE, "filters nested deeper than %d", JJ_MAX_DEPTH);
        s = FILTERS[i].fn(r, in, a, out);
        r->depth--;
        return s;
    }
    return jj_fail(r, SHEAF_E_UNSUPPORTED, "filter \"%.*s\" is not supported", (int)(name.n < 40 ? name.n : 40),
                   name.s);
}

/* --- tests ----------------------------------------------------------------------------------------------------------
 */

/* Tests that only look at the kind of value. False: no such test. */
static bool kind_test(jj_str name, const jj_value *v, bool *out) {
    jj_kind k = v->kind;
    if (jj_is(name, "defined"))
        *out = k != JJ_UNDEFINED;
    else if (jj_is(name, "undefined"))
        *out = k == JJ_UNDEFINED;
    else if (jj_is(name, "none"))
        *out = k == JJ_NONE;
    else if (jj_is(name, "string"))
        *out = k == JJ_STRING;
    else if (jj_is(name, "number"))
        *out = k == JJ_INT || k == JJ_FLOAT || k == JJ_BOOL;
    else if (jj_is(name, "integer"))
        *out = k == JJ_INT;
    else if (jj_is(name, "float"))
        *out = k == JJ_FLOAT;
    else if (jj_is(name, "boolean"))
        *out = k == JJ_BOOL;
    else if (jj_is(name, "true"))
        *out = k == JJ_BOOL && v->u.b;
    else if (jj_is(name, "false"))
        *out = k == JJ_BOOL && !v->u.b;
    else if (jj_is(name, "mapping"))
        *out = k == JJ_DICT && !v->u.dict->is_namespace;
    else if (jj_is(name, "sequence") || jj_is(name, "iterable"))
        *out = k == JJ_STRING || k == JJ_LIST || k == JJ_DICT || k == JJ_UNDEFINED;
    else if (jj_is(name, "callable"))
        *out = k == JJ_MACRO || k == JJ_FUNCTION;
    else
        return false;
    return true;
}

/* Tests of whole numbers. */
static sheaf_status number_test(jj_run *r, jj_str name, const jj_value *v, const jj_args *a, bool *out) {
    if (v->kind != JJ_INT)
        return jj_fail(r, SHEAF_E_FORMAT, "test \"%.*s\" of %s", (int)name.n, name.s, jj_kind_name(v));
    if (jj_is(name, "odd"))
        *out = v->u.i % 2 != 0;
    else if (jj_is(name, "even"))
        *out = v->u.i % 2 == 0;
    else if (a->n == 1 && a->v[0].kind == JJ_INT && a->v[0].u.i != 0)
        *out = a->v[0].u.i == -1 || v->u.i % a->v[0].u.i == 0;
    else
        return jj_fail(r, SHEAF_E_FORMAT, "divisibleby needs a number that is not zero");
    return SHEAF_OK;
}

static sheaf_status order_test(jj_run *r, jj_str name, const jj_value *v, const jj_value *other, bool *out) {
    int c;
    sheaf_status s = jj_compare(r, v, other, &c);
    bool less = jj_is(name, "lt") || jj_is(name, "lessthan") || jj_is(name, "<"),
         or_equal = jj_is(name, "le") || jj_is(name, "<=");
    bool more = jj_is(name, "gt") || jj_is(name, "greaterthan") || jj_is(name, ">");
    if (!s) *out = less ? c < 0 : or_equal ? c <= 0 : more ? c > 0 : c >= 0;
    return s;
}

static bool one_of(jj_str name, const char *const *names) {
    for (; *names; names++)
        if (jj_is(name, *names)) return true;
    return false;
}

sheaf_status jj_test(jj_run *r, jj_str name, const jj_value *v, const jj_args *a, bool *out) {
    static const char *const equal[] = {"equalto", "eq", "==", "sameas", NULL}, *const unequal[] = {"ne", "!=", NULL};
    static const char *const orders[] = {"lt", "lessthan", "<", "le", "<=", "gt", "greaterthan", ">", "ge", ">=", NULL};
    static const char *const numbers[] = {"odd", "even", "divisibleby", NULL};
    sheaf_status s = jj_step(r, 1);
    if (s || kind_test(name, v, out)) return s;
    if (one_of(name, numbers)) return number_test(r, name, v, a, out);
    bool two = one_of(name, equal) || one_of(name, unequal) || one_of(name, orders) || jj_is(name, "in");
    if (!two)
        return jj_fail(r, SHEAF_E_UNSUPPORTED, "test \"%.*s\" is not supported", (int)(name.n < 40 ? name.n : 40),
                       name.s);
    if (a->n != 1) return jj_fail(r, SHEAF_E_FORMAT, "test \"%.*s\" takes one argument", (int)name.n, name.s);
    if (jj_is(name, "in")) return jj_contains(r, &a->v[0], v, out);
    if (one_of(name, orders)) return order_test(r, name, v, &a->v[0], out);
    s = jj_equal(r, v, &a->v[0], out);
    if (one_of(name, unequal)) *out = !*out;
    return s;
}
