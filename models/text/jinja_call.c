/* Calls: macros, the global functions, and the methods of dicts and lists (those of strings are in
 * jinja_string.c). What is not here is refused by name. */
#include "models/text/jinja.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* --- arguments ------------------------------------------------------------------------------------------ */

static sheaf_status no_room(const jj_run *r) { return jj_fail(r, SHEAF_E_NO_MEMORY, "no memory for arguments"); }

sheaf_status jj_eval_args(jj_run *r, const jj_node *call, jj_args *out) {
    memset(out, 0, sizeof(*out));
    if (call->n == 0) return SHEAF_OK;
    out->v = jj_alloc(r, call->n * sizeof(jj_value));
    out->named = jj_alloc(r, call->n * sizeof(jj_value));
    out->names = jj_alloc(r, call->n * sizeof(jj_str));
    if (!out->v || !out->named || !out->names) return no_room(r);
    for (size_t i = 0; i < call->n; i++) {
        const jj_node *arg = call->list[i];
        bool keyword = arg->kind == JJ_N_KEYWORD;
        sheaf_status s = jj_eval(r, keyword ? arg->a : arg, keyword ? &out->named[out->n_named] : &out->v[out->n]);
        if (s) return s;
        if (keyword)
            out->names[out->n_named++] = arg->name;
        else
            out->n++;
    }
    return SHEAF_OK;
}

bool jj_arg(const jj_args *a, size_t i, const char *name, jj_value *out) {
    if (i < a->n) {
        *out = a->v[i];
        return true;
    }
    for (size_t k = 0; name && k < a->n_named; k++) {
        if (!jj_is(a->names[k], name)) continue;
        *out = a->named[k];
        return true;
    }
    return false;
}

sheaf_status jj_string_arg(jj_run *r, const jj_args *a, size_t i, const char *name, const char *what, jj_str *out) {
    jj_value v;
    if (!jj_arg(a, i, name, &v)) return jj_fail(r, SHEAF_E_FORMAT, "%s needs argument %zu", what, i + 1);
    if (v.kind != JJ_STRING)
        return jj_fail(r, SHEAF_E_FORMAT, "%s: argument %zu is %s, not a string", what, i + 1, jj_kind_name(&v));
    *out = v.u.str;
    return SHEAF_OK;
}

/* --- functions ------------------------------------------------------------------------------------------- */

static sheaf_status call_range(jj_run *r, const jj_args *a, jj_value *out) {
    int64_t n[3] = {0, 0, 1};
    if (a->n < 1 || a->n > 3) return jj_fail(r, SHEAF_E_FORMAT, "range takes one to three numbers");
    for (size_t i = 0; i < a->n; i++) {
        if (a->v[i].kind != JJ_INT)
            return jj_fail(r, SHEAF_E_FORMAT, "range: argument %zu is %s", i + 1, jj_kind_name(&a->v[i]));
        n[a->n == 1 ? 1 : i] = a->v[i].u.i;
    }
    if (n[2] == 0) return jj_fail(r, SHEAF_E_FORMAT, "range: the step is zero");
    sheaf_status s = jj_new_list(r, out);
    for (int64_t i = n[0]; (n[2] > 0 ? i < n[1] : i > n[1]) && !s;) {
        jj_value v = jj_int(i);
        s = jj_push(r, out->u.list, &v);
        if (__builtin_add_overflow(i, n[2], &i)) break;
    }
    return s;
}

/* dict(a=1) and namespace(a=1), each maybe with a dict to copy first. */
static sheaf_status call_dict(jj_run *r, const jj_args *a, bool is_namespace, jj_value *out) {
    sheaf_status s = jj_new_dict(r, out);
    if (s) return s;
    out->u.dict->is_namespace = is_namespace;
    if (a->n > 1 || (a->n == 1 && a->v[0].kind != JJ_DICT))
        return jj_fail(r, SHEAF_E_FORMAT, "%s takes a dict", is_namespace ? "namespace" : "dict");
    for (size_t i = 0; a->n == 1 && i < a->v[0].u.dict->keys.n && !s; i++)
        s = jj_dict_set(r, out->u.dict, &a->v[0].u.dict->keys.v[i], &a->v[0].u.dict->values.v[i]);
    for (size_t i = 0; i < a->n_named && !s; i++) {
        jj_value key = jj_string(a->names[i]);
        s = jj_dict_set(r, out->u.dict, &key, &a->named[i]);
    }
    return s;
}

static sheaf_status call_raise(jj_run *r, const jj_args *a) {
    jj_str text;
    sheaf_status s = jj_string_arg(r, a, 0, "message", "raise_exception", &text);
    if (s) return s;
    return sheaf_fail(SHEAF_E_FORMAT, "the chat template refuses this conversation: %.*s",
                      (int)(text.n < 600 ? text.n : 600), text.s);
}

static sheaf_status call_strftime(jj_run *r, const jj_args *a, jj_value *out) {
    char format[128], text[512];
    jj_str f;
    struct tm tm;
    time_t now = (time_t)r->now;
    sheaf_status s = jj_string_arg(r, a, 0, "format", "strftime_now", &f);
    if (s) return s;
    if (f.n == 0 || f.n >= sizeof(format)) return jj_fail(r, SHEAF_E_RANGE, "strftime_now: a format of %zu bytes", f.n);
    memcpy(format, f.s, f.n);
    format[f.n] = 0;
    if (!localtime_r(&now, &tm)) return jj_fail(r, SHEAF_E_RANGE, "strftime_now: the time is out of range");
    jj_buf b = {0};
    s = jj_put_text(r, &b, text, strftime(text, sizeof(text), format, &tm));
    *out = jj_string(jj_built(&b));
    return s;
}

static sheaf_status call_function(jj_run *r, jj_str name, const jj_args *a, jj_value *out) {
    if (jj_is(name, "range")) return call_range(r, a, out);
    if (jj_is(name, "raise_exception")) return call_raise(r, a);
    if (jj_is(name, "strftime_now")) return call_strftime(r, a, out);
    return call_dict(r, a, jj_is(name, "namespace"), out);
}

/* --- methods ---------------------------------------------------------------------------------------------- */

static sheaf_status dict_items(jj_run *r, const jj_dict *d, jj_value *out) {
    sheaf_status s = jj_new_list(r, out);
    for (size_t i = 0; i < d->keys.n && !s; i++) {
        jj_value pair;
        s = jj_new_list(r, &pair);
        if (!s) pair.u.list->tuple = true;
        if (!s) s = jj_push(r, pair.u.list, &d->keys.v[i]);
        if (!s) s = jj_push(r, pair.u.list, &d->values.v[i]);
        if (!s) s = jj_push(r, out->u.list, &pair);
    }
    return s;
}

static sheaf_status dict_method(jj_run *r, jj_dict *d, jj_str name, const jj_args *a, jj_value *out, bool *known) {
    *known = true;
    if (jj_is(name, "items")) return dict_items(r, d, out);
    if (jj_is(name, "keys") || jj_is(name, "values")) {
        *out = (jj_value){.kind = JJ_LIST, .u.list = jj_is(name, "keys") ? &d->keys : &d->values};
        return SHEAF_OK;
    }
    *known = jj_is(name, "get");
    if (!*known) return SHEAF_OK;
    if (a->n == 0) return jj_fail(r, SHEAF_E_FORMAT, "get needs a key");
    *out = jj_none();
    (void)jj_arg(a, 1, "default", out);
    jj_dict_get(d, &a->v[0], out);
    return jj_step(r, 1 + d->keys.n / 8);
}

static sheaf_status list_method(jj_run *r, const jj_list *l, jj_str name, const jj_args *a, jj_value *out,
                                bool *known) {
    bool count = jj_is(name, "count"), same;
    int64_t hits = 0;
    *known = count || jj_is(name, "index");
    if (!*known) return SHEAF_OK;
    if (a->n != 1) return jj_fail(r, SHEAF_E_FORMAT, "%.*s takes one argument", (int)name.n, name.s);
    for (size_t i = 0; i < l->n; i++) {
        sheaf_status s = jj_equal(r, &l->v[i], &a->v[0], &same);
        if (s) return s;
        hits += same;
        if (same && !count) {
            *out = jj_int((int64_t)i);
            return SHEAF_OK;
        }
    }
    *out = jj_int(hits);
    return count ? SHEAF_OK : jj_fail(r, SHEAF_E_FORMAT, "index: the list has no such item");
}

sheaf_status jj_method(jj_run *r, const jj_value *self, jj_str name, const jj_args *a, jj_value *out) {
    bool known = false;
    sheaf_status s = SHEAF_OK;
    if (self->kind == JJ_STRING) s = jj_string_method(r, self->u.str, name, a, out, &known);
    if (self->kind == JJ_DICT) s = dict_method(r, self->u.dict, name, a, out, &known);
    if (self->kind == JJ_LIST) s = list_method(r, self->u.list, name, a, out, &known);
    if (s || known) return s;
    int n = (int)(name.n < 40 ? name.n : 40);
    if (self->kind == JJ_UNDEFINED)
        return jj_fail(r, SHEAF_E_FORMAT, "\"%.*s\" is undefined, but its %.*s is called",
                       (int)(self->u.str.n < 64 ? self->u.str.n : 64), self->u.str.s, n, name.s);
    return jj_fail(r, SHEAF_E_UNSUPPORTED, "method \"%.*s\" of %s is not supported", n, name.s, jj_kind_name(self));
}

/* --- calling ----------------------------------------------------------------------------------------------- */

/* a.name(...): a macro kept in a dict or namespace, else a method. */
static sheaf_status call_attribute(jj_run *r, const jj_node *n, jj_value *out) {
    jj_value self, member = jj_none();
    jj_args args;
    sheaf_status s = jj_eval(r, n->a->a, &self);
    if (s) return s;
    if (self.kind == JJ_DICT && (s = jj_attribute(r, &self, n->a->name, &member))) return s;
    if (member.kind == JJ_MACRO) return jj_call_macro(r, member.u.macro, n, out);
    if ((s = jj_eval_args(r, n, &args))) return s;
    r->line = n->line;
    return jj_method(r, &self, n->a->name, &args, out);
}

sheaf_status jj_call(jj_run *r, const jj_node *n, jj_value *out) {
    jj_value callee;
    jj_args args;
    if (n->a->kind == JJ_N_ATTR) return call_attribute(r, n, out);
    sheaf_status s = jj_eval(r, n->a, &callee);
    if (s) return s;
    if (callee.kind == JJ_MACRO) return jj_call_macro(r, callee.u.macro, n, out);
    if (callee.kind == JJ_UNDEFINED)
        return jj_fail(r, SHEAF_E_UNSUPPORTED, "function \"%.*s\" is not known",
                       (int)(callee.u.str.n < 40 ? callee.u.str.n : 40), callee.u.str.s);
    if (callee.kind != JJ_FUNCTION) return jj_fail(r, SHEAF_E_FORMAT, "%s is called", jj_kind_name(&callee));
    if ((s = jj_eval_args(r, n, &args))) return s;
    r->line = n->line;
    return call_function(r, callee.u.str, &args, out);
}
