/* Values of a rendering: strings whose bytes carry marks, lists, dicts; truth, equality, order,
 * length, and printing as Python prints. All memory is the rendering's arena, freed in one piece. */
#include "models/text/jinja.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

sheaf_status jj_fail(const jj_run *r, sheaf_status s, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return sheaf_fail(s, "chat template line %u: %s", r->line, text);
}

sheaf_status jj_step(jj_run *r, uint64_t n) {
    r->steps += n;
    if (r->steps > JJ_MAX_STEPS) return jj_fail(r, SHEAF_E_RANGE, "rendering takes more than %d steps", JJ_MAX_STEPS);
    return SHEAF_OK;
}

static sheaf_status no_memory(jj_run *r) {
    sheaf_status s = sheaf_arena_status(r->arena);
    if (s) return sheaf_error_context(s, "rendering the chat template");
    return jj_fail(r, SHEAF_E_RANGE, "rendering takes more than %zu MiB", JJ_MAX_MEMORY >> 20);
}

/* NULL: no_memory() says why. */
void *jj_alloc(jj_run *r, size_t n) {
    if (n > JJ_MAX_MEMORY || sheaf_arena_used(r->arena) > JJ_MAX_MEMORY - n) return NULL;
    return sheaf_arena_alloc(r->arena, n ? n : 1);
}

/* --- strings --------------------------------------------------------------------------------------- */

bool jj_is(jj_str s, const char *text) { return s.n == strlen(text) && memcmp(s.s, text, s.n) == 0; }
bool jj_equal_str(jj_str x, jj_str y) { return x.n == y.n && memcmp(x.s, y.s, x.n) == 0; }
jj_str jj_text(const char *literal) { return (jj_str){literal, NULL, strlen(literal)}; }

jj_str jj_slice(jj_str s, size_t begin, size_t end) {
    return (jj_str){s.s + begin, s.mark ? s.mark + begin : NULL, end > begin ? end - begin : 0};
}

static bool is_start(char c) { return ((uint8_t)c & 0xc0) != 0x80; }

size_t jj_char_count(jj_str s) {
    size_t count = 0;
    for (size_t i = 0; i < s.n; i++) count += is_start(s.s[i]);
    return count;
}

size_t jj_char_at(jj_str s, size_t i) {
    size_t at = 0;
    while (at < s.n && !is_start(s.s[at])) at++;
    for (; i > 0 && at < s.n; i--) do
            at++;
        while (at < s.n && !is_start(s.s[at]));
    return at;
}

static sheaf_status reserve(jj_run *r, jj_buf *b, size_t more) {
    size_t need;
    if (sheaf_add_overflow(b->n, more, &need)) return no_memory(r);
    if (need <= b->capacity) return SHEAF_OK;
    size_t capacity = need + need / 2 + 64;
    char *s = jj_alloc(r, capacity);
    uint8_t *mark = s ? jj_alloc(r, capacity) : NULL;
    if (!mark) return no_memory(r);
    if (b->n) {
        memcpy(s, b->s, b->n);
        memcpy(mark, b->mark, b->n);
    }
    *b = (jj_buf){s, mark, b->n, capacity};
    return SHEAF_OK;
}

sheaf_status jj_put(jj_run *r, jj_buf *b, jj_str s) {
    sheaf_status st = jj_step(r, 1 + s.n / 64);
    if (st || (st = reserve(r, b, s.n))) return st;
    if (s.n == 0) return SHEAF_OK;
    memcpy(b->s + b->n, s.s, s.n);
    if (s.mark)
        memcpy(b->mark + b->n, s.mark, s.n);
    else
        memset(b->mark + b->n, 0, s.n);
    b->n += s.n;
    return SHEAF_OK;
}

sheaf_status jj_put_text(jj_run *r, jj_buf *b, const char *s, size_t n) { return jj_put(r, b, (jj_str){s, NULL, n}); }

jj_str jj_built(const jj_buf *b) { return b->n ? (jj_str){b->s, b->mark, b->n} : (jj_str){"", NULL, 0}; }

/* --- making values ----------------------------------------------------------------------------------- */

jj_value jj_none(void) { return (jj_value){.kind = JJ_NONE}; }
jj_value jj_bool(bool b) { return (jj_value){.kind = JJ_BOOL, .u.b = b}; }
jj_value jj_int(int64_t i) { return (jj_value){.kind = JJ_INT, .u.i = i}; }
jj_value jj_string(jj_str s) { return (jj_value){.kind = JJ_STRING, .u.str = s}; }
jj_value jj_undefined(jj_str name) { return (jj_value){.kind = JJ_UNDEFINED, .u.str = name}; }

const char *jj_kind_name(const jj_value *v) {
    static const char *const names[] = {"undefined", "none",   "a boolean", "an integer", "a float",   "a string",
                                        "a list",    "a dict", "a loop",    "a macro",    "a function"};
    return names[v->kind];
}

sheaf_status jj_new_list(jj_run *r, jj_value *out) {
    jj_list *l = jj_alloc(r, sizeof(*l));
    *out = (jj_value){.kind = JJ_LIST, .u.list = l};
    return l ? SHEAF_OK : no_memory(r);
}

sheaf_status jj_new_dict(jj_run *r, jj_value *out) {
    jj_dict *d = jj_alloc(r, sizeof(*d));
    *out = (jj_value){.kind = JJ_DICT, .u.dict = d};
    return d ? SHEAF_OK : no_memory(r);
}

sheaf_status jj_push(jj_run *r, jj_list *l, const jj_value *v) {
    sheaf_status s = jj_step(r, 1);
    if (s) return s;
    if (l->n == l->capacity) {
        size_t capacity = l->capacity ? 2 * l->capacity : 8, bytes;
        if (sheaf_mul_overflow(capacity, sizeof(jj_value), &bytes)) return no_memory(r);
        jj_value *grown = jj_alloc(r, bytes);
        if (!grown) return no_memory(r);
        if (l->n) memcpy(grown, l->v, l->n * sizeof(jj_value));
        l->v = grown;
        l->capacity = capacity;
    }
    l->v[l->n++] = *v;
    return SHEAF_OK;
}

/* Keys are simple values: strings and numbers by value, the rest never equal. */
static bool same_key(const jj_value *x, const jj_value *y) {
    if (x->kind != y->kind) return false;
    switch (x->kind) {
    case JJ_STRING: return jj_equal_str(x->u.str, y->u.str);
    case JJ_INT: return x->u.i == y->u.i;
    case JJ_BOOL: return x->u.b == y->u.b;
    case JJ_NONE: return true;
    default: return false;
    }
}

bool jj_dict_get(const jj_dict *d, const jj_value *key, jj_value *out) {
    for (size_t i = 0; i < d->keys.n; i++) {
        if (!same_key(&d->keys.v[i], key)) continue;
        *out = d->values.v[i];
        return true;
    }
    return false;
}

bool jj_dict_get_name(const jj_dict *d, const char *key, jj_value *out) {
    jj_value k = jj_string(jj_text(key));
    return jj_dict_get(d, &k, out);
}

sheaf_status jj_dict_set(jj_run *r, jj_dict *d, const jj_value *key, const jj_value *v) {
    sheaf_status s = jj_step(r, 1 + d->keys.n / 8);
    for (size_t i = 0; i < d->keys.n && !s; i++) {
        if (!same_key(&d->keys.v[i], key)) continue;
        d->values.v[i] = *v;
        return SHEAF_OK;
    }
    if (!s) s = jj_push(r, &d->keys, key);
    if (!s && (s = jj_push(r, &d->values, v))) d->keys.n--; /* both or neither */
    return s;
}

/* --- asking -------------------------------------------------------------------------------------------- */

bool jj_truth(const jj_value *v) {
    switch (v->kind) {
    case JJ_UNDEFINED:
    case JJ_NONE: return false;
    case JJ_BOOL: return v->u.b;
    case JJ_INT: return v->u.i != 0;
    case JJ_FLOAT: return v->u.f != 0;
    case JJ_STRING: return v->u.str.n > 0;
    case JJ_LIST: return v->u.list->n > 0;
    case JJ_DICT: return v->u.dict->is_namespace || v->u.dict->keys.n > 0;
    default: return true;
    }
}

static bool number(const jj_value *v, double *f) {
    if (v->kind == JJ_BOOL)
        *f = v->u.b;
    else if (v->kind == JJ_INT)
        *f = (double)v->u.i;
    else if (v->kind == JJ_FLOAT)
        *f = v->u.f;
    else
        return false;
    return true;
}

static sheaf_status equal_lists(jj_run *r, const jj_list *x, const jj_list *y, bool *out) {
    *out = x->n == y->n;
    sheaf_status s = SHEAF_OK;
    for (size_t i = 0; i < x->n && *out && !s; i++) s = jj_equal(r, &x->v[i], &y->v[i], out);
    return s;
}

static sheaf_status equal_dicts(jj_run *r, const jj_dict *x, const jj_dict *y, bool *out) {
    *out = x->keys.n == y->keys.n;
    sheaf_status s = SHEAF_OK;
    for (size_t i = 0; i < x->keys.n && *out && !s; i++) {
        jj_value other;
        *out = jj_dict_get(y, &x->keys.v[i], &other);
        if (*out) s = jj_equal(r, &x->values.v[i], &other, out);
        if (!s) s = jj_step(r, 1 + y->keys.n / 8);
    }
    return s;
}

/* Recurses on the depth of the values, which jj_json_read and the depth of evaluation bound. */
sheaf_status jj_equal(jj_run *r, const jj_value *x, const jj_value *y, bool *out) {
    double a, b;
    *out = false;
    sheaf_status s = jj_step(r, 1);
    if (s) return s;
    if (number(x, &a) && number(y, &b)) {
        *out = x->kind == JJ_INT && y->kind == JJ_INT ? x->u.i == y->u.i : a == b;
        return SHEAF_OK;
    }
    if (x->kind != y->kind) return SHEAF_OK;
    if (++r->depth > JJ_MAX_DEPTH) return jj_fail(r, SHEAF_E_RANGE, "values nested deeper than %d", JJ_MAX_DEPTH);
    switch (x->kind) {
    case JJ_UNDEFINED:
    case JJ_NONE: *out = true; break;
    case JJ_STRING: *out = jj_equal_str(x->u.str, y->u.str); break;
    case JJ_LIST:
        s = x->u.list == y->u.list ? (*out = true, SHEAF_OK) : equal_lists(r, x->u.list, y->u.list, out);
        break;
    case JJ_DICT:
        s = x->u.dict == y->u.dict ? (*out = true, SHEAF_OK) : equal_dicts(r, x->u.dict, y->u.dict, out);
        break;
    default: break;
    }
    r->depth--;
    return s;
}

sheaf_status jj_compare(jj_run *r, const jj_value *x, const jj_value *y, int *out) {
    double a, b;
    if (number(x, &a) && number(y, &b)) {
        *out = a < b ? -1 : a > b;
        if (x->kind == JJ_INT && y->kind == JJ_INT) *out = x->u.i < y->u.i ? -1 : x->u.i > y->u.i;
        return SHEAF_OK;
    }
    if (x->kind != JJ_STRING || y->kind != JJ_STRING)
        return jj_fail(r, SHEAF_E_FORMAT, "%s and %s cannot be ordered", jj_kind_name(x), jj_kind_name(y));
    size_t n = x->u.str.n < y->u.str.n ? x->u.str.n : y->u.str.n;
    int c = memcmp(x->u.str.s, y->u.str.s, n);
    *out = c ? (c < 0 ? -1 : 1) : x->u.str.n < y->u.str.n ? -1 : x->u.str.n > y->u.str.n;
    return SHEAF_OK;
}

sheaf_status jj_contains(jj_run *r, const jj_value *in, const jj_value *what, bool *out) {
    sheaf_status s = SHEAF_OK;
    *out = false;
    if (in->kind == JJ_STRING) {
        if (what->kind != JJ_STRING)
            return jj_fail(r, SHEAF_E_FORMAT, "\"in\" looks for %s in a string", jj_kind_name(what));
        *out = memmem(in->u.str.s, in->u.str.n, what->u.str.s, what->u.str.n) != NULL;
        return jj_step(r, 1 + in->u.str.n / 64);
    }
    if (in->kind == JJ_DICT) {
        jj_value ignored;
        *out = jj_dict_get(in->u.dict, what, &ignored);
        return jj_step(r, 1 + in->u.dict->keys.n / 8);
    }
    if (in->kind == JJ_UNDEFINED) return SHEAF_OK; /* an empty sequence */
    if (in->kind != JJ_LIST) return jj_fail(r, SHEAF_E_FORMAT, "\"in\" looks into %s", jj_kind_name(in));
    for (size_t i = 0; i < in->u.list->n && !*out && !s; i++) s = jj_equal(r, &in->u.list->v[i], what, out);
    return s;
}

sheaf_status jj_length(jj_run *r, const jj_value *v, size_t *out) {
    switch (v->kind) {
    case JJ_STRING: *out = jj_char_count(v->u.str); return jj_step(r, v->u.str.n / 64);
    case JJ_LIST: *out = v->u.list->n; return SHEAF_OK;
    case JJ_DICT: *out = v->u.dict->keys.n; return SHEAF_OK;
    case JJ_UNDEFINED: *out = 0; return SHEAF_OK;
    default: return jj_fail(r, SHEAF_E_FORMAT, "%s has no length", jj_kind_name(v));
    }
}

static sheaf_status characters(jj_run *r, jj_str s, jj_list **out) {
    jj_value list;
    sheaf_status st = jj_new_list(r, &list);
    for (size_t at = 0; at < s.n && !st;) {
        size_t end = at + 1;
        while (end < s.n && !is_start(s.s[end])) end++;
        jj_value c = jj_string(jj_slice(s, at, end));
        st = jj_push(r, list.u.list, &c);
        at = end;
    }
    if (!st) *out = list.u.list;
    return st;
}

sheaf_status jj_items(jj_run *r, const jj_value *v, jj_list **out) {
    jj_value empty;
    sheaf_status s;
    switch (v->kind) {
    case JJ_LIST: *out = v->u.list; return SHEAF_OK;
    case JJ_DICT: *out = &v->u.dict->keys; return SHEAF_OK;
    case JJ_STRING: return characters(r, v->u.str, out);
    case JJ_UNDEFINED:
        if ((s = jj_new_list(r, &empty))) return s;
        *out = empty.u.list;
        return SHEAF_OK;
    default: return jj_fail(r, SHEAF_E_FORMAT, "%s cannot be iterated", jj_kind_name(v));
    }
}

/* --- printing ------------------------------------------------------------------------------------------- */

static sheaf_status put_float(jj_run *r, jj_buf *b, double f) {
    char text[40];
    if (isnan(f) || isinf(f)) return jj_put(r, b, jj_text(isnan(f) ? "nan" : f < 0 ? "-inf" : "inf"));
    for (int digits = 1; digits <= 17; digits++) { /* the shortest that reads back, as Python */
        snprintf(text, sizeof(text), "%.*g", digits, f);
        if (strtod(text, NULL) == f) break;
    }
    if (!strpbrk(text, ".en")) strcat(text, ".0");
    return jj_put_text(r, b, text, strlen(text));
}

static sheaf_status put_quoted(jj_run *r, jj_buf *b, jj_str s) {
    bool single = memchr(s.s, '\'', s.n) != NULL, twin = memchr(s.s, '"', s.n) != NULL;
    char quote = single && !twin ? '"' : '\'';
    sheaf_status st = jj_put_text(r, b, &quote, 1);
    for (size_t i = 0; i < s.n && !st; i++) {
        char c = s.s[i];
        const char *escape = c == '\n'    ? "\\n"
                             : c == '\r'  ? "\\r"
                             : c == '\t'  ? "\\t"
                             : c == '\\'  ? "\\\\"
                             : c == quote ? "\\'"
                                          : NULL;
        st = escape ? jj_put_text(r, b, escape, 2) : jj_put(r, b, jj_slice(s, i, i + 1));
    }
    return st ? st : jj_put_text(r, b, &quote, 1);
}

static sheaf_status put_container(jj_run *r, jj_buf *b, const jj_value *v) {
    const jj_list *keys = v->kind == JJ_DICT ? &v->u.dict->keys : NULL;
    const jj_list *items = keys ? &v->u.dict->values : v->u.list;
    const char *brackets = keys ? "{}" : items->tuple ? "()" : "[]";
    sheaf_status s = jj_put_text(r, b, brackets, 1);
    for (size_t i = 0; i < items->n && !s; i++) {
        if (i) s = jj_put(r, b, jj_text(", "));
        if (keys && !s) s = jj_print(r, b, &keys->v[i], true);
        if (keys && !s) s = jj_put(r, b, jj_text(": "));
        if (!s) s = jj_print(r, b, &items->v[i], true);
    }
    if (!s && items->tuple && items->n == 1) s = jj_put(r, b, jj_text(","));
    return s ? s : jj_put_text(r, b, brackets + 1, 1);
}

sheaf_status jj_print(jj_run *r, jj_buf *b, const jj_value *v, bool repr) {
    char text[32];
    sheaf_status s;
    switch (v->kind) {
    case JJ_UNDEFINED: return SHEAF_OK;
    case JJ_NONE: return jj_put(r, b, jj_text("None"));
    case JJ_BOOL: return jj_put(r, b, jj_text(v->u.b ? "True" : "False"));
    case JJ_INT: snprintf(text, sizeof(text), "%lld", (long long)v->u.i); return jj_put_text(r, b, text, strlen(text));
    case JJ_FLOAT: return put_float(r, b, v->u.f);
    case JJ_STRING: return repr ? put_quoted(r, b, v->u.str) : jj_put(r, b, v->u.str);
    case JJ_LIST:
    case JJ_DICT:
        if (++r->depth > JJ_MAX_DEPTH) return jj_fail(r, SHEAF_E_RANGE, "values nested deeper than %d", JJ_MAX_DEPTH);
        s = put_container(r, b, v);
        r->depth--;
        return s;
    default: return jj_fail(r, SHEAF_E_FORMAT, "%s cannot be printed", jj_kind_name(v));
    }
}

sheaf_status jj_to_string(jj_run *r, const jj_value *v, jj_str *out) {
    jj_buf b = {0};
    if (v->kind == JJ_STRING) {
        *out = v->u.str;
        return SHEAF_OK;
    }
    sheaf_status s = jj_print(r, &b, v, false);
    *out = jj_built(&b);
    return s;
}
