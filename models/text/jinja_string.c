/* Methods of strings, as Python's str has them, on bytes with marks. White space and case are those
 * of Unicode; what none of the models' templates uses is left out and refused by name. */
#include "models/text/jinja.h"

#include <string.h>
#include <utf8proc.h>

/* --- white space ------------------------------------------------------------------------------------------ */

/* Code point at `at` and its length; bad bytes count as themselves. */
static uint32_t code_point(jj_str s, size_t at, size_t *len) {
    utf8proc_int32_t c;
    utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)s.s + at, (utf8proc_ssize_t)(s.n - at), &c);
    *len = n > 0 ? (size_t)n : 1;
    return n > 0 ? (uint32_t)c : 0xfffd;
}

static bool is_white(uint32_t c) {
    if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x1f);
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

/* Is the character at `at` one of `set` (white space where it has no bytes)? */
static bool in_set(jj_str s, size_t at, const jj_str *set, size_t *len) {
    uint32_t c = code_point(s, at, len);
    if (!set) return is_white(c);
    for (size_t i = 0; i < set->n;) {
        size_t n;
        if (code_point(*set, i, &n) == c && memcmp(set->s + i, s.s + at, n < *len ? n : *len) == 0) return true;
        i += n;
    }
    return false;
}

static jj_str strip(jj_str s, const jj_str *set, bool left, bool right) {
    size_t begin = 0, end = s.n, len;
    while (left && begin < end && in_set(s, begin, set, &len)) begin += len;
    while (right && end > begin) {
        size_t at = end - 1;
        while (at > begin && ((uint8_t)s.s[at] & 0xc0) == 0x80) at--;
        if (!in_set(s, at, set, &len) || at + len != end) break;
        end = at;
    }
    return jj_slice(s, begin, end);
}

static sheaf_status method_strip(jj_run *r, jj_str self, jj_str name, const jj_args *a, jj_value *out) {
    jj_str set;
    jj_value given;
    bool has = jj_arg(a, 0, "chars", &given) && given.kind != JJ_NONE;
    sheaf_status s = has ? jj_string_arg(r, a, 0, "chars", "strip", &set) : SHEAF_OK;
    if (s) return s;
    if (has && set.n > 256) return jj_fail(r, SHEAF_E_RANGE, "strip: a set of %zu bytes", set.n);
    *out = jj_string(strip(self, has ? &set : NULL, !jj_is(name, "rstrip"), !jj_is(name, "lstrip")));
    return jj_step(r, 1 + self.n / 8);
}

/* --- finding ------------------------------------------------------------------------------------------------ */

static bool starts(jj_str s, jj_str part) { return s.n >= part.n && memcmp(s.s, part.s, part.n) == 0; }
static bool ends(jj_str s, jj_str part) { return s.n >= part.n && memcmp(s.s + s.n - part.n, part.s, part.n) == 0; }

/* startswith, endswith: a string, or any of a tuple. */
static sheaf_status method_affix(jj_run *r, jj_str self, bool front, const jj_args *a, jj_value *out) {
    jj_value v;
    bool hit = false;
    if (!jj_arg(a, 0, NULL, &v) || a->n != 1)
        return jj_fail(r, SHEAF_E_UNSUPPORTED, "startswith and endswith take one argument here");
    jj_list one = {&v, 1, 1};
    const jj_list *parts = v.kind == JJ_LIST ? v.u.list : &one;
    for (size_t i = 0; i < parts->n && !hit; i++) {
        if (parts->v[i].kind != JJ_STRING)
            return jj_fail(r, SHEAF_E_FORMAT, "startswith and endswith: the argument is %s",
                           jj_kind_name(&parts->v[i]));
        hit = front ? starts(self, parts->v[i].u.str) : ends(self, parts->v[i].u.str);
    }
    *out = jj_bool(hit);
    return jj_step(r, parts->n);
}

static const char *find(jj_str s, size_t from, jj_str part) { return memmem(s.s + from, s.n - from, part.s, part.n); }

static sheaf_status method_find(jj_run *r, jj_str self, jj_str name, const jj_args *a, jj_value *out) {
    jj_str part;
    int64_t count = 0;
    sheaf_status s = jj_string_arg(r, a, 0, NULL, "find", &part);
    if (s) return s;
    if (a->n != 1) return jj_fail(r, SHEAF_E_UNSUPPORTED, "%.*s with a range is not supported", (int)name.n, name.s);
    const char *at = find(self, 0, part);
    if (jj_is(name, "count")) {
        if (part.n == 0) return jj_fail(r, SHEAF_E_UNSUPPORTED, "counting empty strings is not supported");
        for (const char *hit = at; hit; hit = find(self, (size_t)(hit - self.s) + part.n, part)) count++;
        *out = jj_int(count);
        return jj_step(r, 1 + self.n / 16);
    }
    if (!at && jj_is(name, "index")) return jj_fail(r, SHEAF_E_FORMAT, "index: the string has no such part");
    *out = jj_int(at ? (int64_t)jj_char_count(jj_slice(self, 0, (size_t)(at - self.s))) : -1);
    return jj_step(r, 1 + self.n / 16);
}

/* --- cutting and joining ------------------------------------------------------------------------------------ */

static sheaf_status push_slice(jj_run *r, jj_list *l, jj_str s, size_t begin, size_t end) {
    jj_value v = jj_string(jj_slice(s, begin, end));
    return jj_push(r, l, &v);
}

/* split() on runs of white space; a front or back run makes no empty part. */
static sheaf_status split_white(jj_run *r, jj_str self, int64_t most, jj_list *l) {
    size_t at = 0, len;
    sheaf_status s = SHEAF_OK;
    while (!s) {
        while (at < self.n && in_set(self, at, NULL, &len)) at += len;
        if (at >= self.n) break;
        size_t begin = at;
        if (most == 0) return push_slice(r, l, self, begin, strip(self, NULL, false, true).n);
        while (at < self.n && !in_set(self, at, NULL, &len)) at += len;
        s = push_slice(r, l, self, begin, at);
        most--;
    }
    return s;
}

static sheaf_status split_on(jj_run *r, jj_str self, jj_str by, int64_t most, jj_list *l) {
    size_t at = 0;
    sheaf_status s = SHEAF_OK;
    for (const char *hit; !s && most != 0 && (hit = find(self, at, by)); most--) {
        s = push_slice(r, l, self, at, (size_t)(hit - self.s));
        at = (size_t)(hit - self.s) + by.n;
    }
    return s ? s : push_slice(r, l, self, at, self.n);
}

/* rsplit(by, most): the last `most` borders only. */
static sheaf_status split_from_end(jj_run *r, jj_str self, jj_str by, int64_t most, jj_list *l) {
    jj_value all;
    sheaf_status s = jj_new_list(r, &all);
    if (!s) s = split_on(r, self, by, -1, all.u.list);
    if (s) return s;
    const jj_list *parts = all.u.list;
    size_t joined = most >= 0 && (size_t)most < parts->n ? parts->n - (size_t)most : 1; /* parts in the first */
    const jj_str *last = &parts->v[joined - 1].u.str;
    s = push_slice(r, l, self, 0, (size_t)(last->s - self.s) + last->n);
    for (size_t i = joined; i < parts->n && !s; i++) s = jj_push(r, l, &parts->v[i]);
    return s;
}

static sheaf_status method_split(jj_run *r, jj_str self, jj_str name, const jj_args *a, jj_value *out) {
    jj_value by, limit;
    bool has = jj_arg(a, 0, "sep", &by) && by.kind != JJ_NONE;
    int64_t most = jj_arg(a, 1, "maxsplit", &limit) && limit.kind == JJ_INT ? limit.u.i : -1;
    sheaf_status s = jj_new_list(r, out);
    if (!s) s = jj_step(r, 1 + self.n / 8);
    if (s) return s;
    if (has && (by.kind != JJ_STRING || by.u.str.n == 0))
        return jj_fail(r, SHEAF_E_FORMAT, "split: the separator is no string or empty");
    bool from_end = jj_is(name, "rsplit") && most >= 0;
    if (from_end && !has) return jj_fail(r, SHEAF_E_UNSUPPORTED, "rsplit on white space with a limit is not supported");
    if (!has) return split_white(r, self, most, out->u.list);
    return from_end ? split_from_end(r, self, by.u.str, most, out->u.list)
                    : split_on(r, self, by.u.str, most, out->u.list);
}

static sheaf_status method_splitlines(jj_run *r, jj_str self, jj_value *out) {
    sheaf_status s = jj_new_list(r, out);
    for (size_t at = 0; at < self.n && !s;) {
        size_t end = at;
        while (end < self.n && self.s[end] != '\n' && self.s[end] != '\r') end++;
        s = push_slice(r, out->u.list, self, at, end);
        at = end + (end + 1 < self.n && self.s[end] == '\r' && self.s[end + 1] == '\n' ? 2 : 1);
    }
    return s;
}

static sheaf_status method_replace(jj_run *r, jj_str self, const jj_args *a, jj_value *out) {
    jj_str from, to;
    jj_value limit;
    jj_buf b = {0};
    size_t at = 0;
    sheaf_status s = jj_string_arg(r, a, 0, "old", "replace", &from);
    if (!s) s = jj_string_arg(r, a, 1, "new", "replace", &to);
    if (s) return s;
    int64_t most = jj_arg(a, 2, "count", &limit) && limit.kind == JJ_INT ? limit.u.i : -1;
    if (from.n == 0) return jj_fail(r, SHEAF_E_UNSUPPORTED, "replacing the empty string is not supported");
    for (const char *hit; !s && most != 0 && (hit = find(self, at, from)); most--) {
        s = jj_put(r, &b, jj_slice(self, at, (size_t)(hit - self.s)));
        if (!s) s = jj_put(r, &b, to);
        at = (size_t)(hit - self.s) + from.n;
    }
    if (!s) s = jj_put(r, &b, jj_slice(self, at, self.n));
    *out = jj_string(jj_built(&b));
    return s;
}

static sheaf_status method_join(jj_run *r, jj_str self, const jj_args *a, jj_value *out) {
    jj_list *items;
    jj_buf b = {0};
    if (a->n != 1) return jj_fail(r, SHEAF_E_FORMAT, "join takes one argument");
    sheaf_status s = jj_items(r, &a->v[0], &items);
    for (size_t i = 0; !s && i < items->n; i++) {
        if (items->v[i].kind != JJ_STRING)
            return jj_fail(r, SHEAF_E_FORMAT, "join: item %zu is %s", i, jj_kind_name(&items->v[i]));
        if (i) s = jj_put(r, &b, self);
        if (!s) s = jj_put(r, &b, items->v[i].u.str);
    }
    *out = jj_string(jj_built(&b));
    return s;
}

/* --- case ------------------------------------------------------------------------------------------------------ */

typedef enum letter_case { UPPER, LOWER, TITLE, CAPITAL } letter_case;

static sheaf_status change_case(jj_run *r, jj_str self, letter_case to, jj_value *out) {
    jj_buf b = {0};
    bool first = true;
    sheaf_status s = SHEAF_OK;
    for (size_t at = 0, len; at < self.n && !s; at += len) {
        utf8proc_uint8_t bytes[4];
        utf8proc_int32_t c = (utf8proc_int32_t)code_point(self, at, &len);
        bool up = to == UPPER || ((to == TITLE || to == CAPITAL) && first);
        utf8proc_int32_t changed = up ? utf8proc_toupper(c) : utf8proc_tolower(c);
        jj_str piece = jj_slice(self, at, at + len);
        utf8proc_ssize_t n = changed == c ? 0 : utf8proc_encode_char(changed, bytes);
        uint8_t marks[4] = {0};
        if (piece.mark) memset(marks, piece.mark[0], sizeof(marks));
        s = jj_put(r, &b, n ? (jj_str){(const char *)bytes, marks, (size_t)n} : piece);
        utf8proc_category_t category = utf8proc_category(c);
        first = to == TITLE ? category < UTF8PROC_CATEGORY_LU || category > UTF8PROC_CATEGORY_LO : false;
    }
    *out = jj_string(jj_built(&b));
    return s;
}

/* isdigit, isalpha, isalnum, isspace, isupper, islower for ASCII; others are not letters or digits here. */
static bool is_class(jj_str name, uint8_t c) {
    bool digit = c >= '0' && c <= '9', upper = c >= 'A' && c <= 'Z', lower = c >= 'a' && c <= 'z';
    if (jj_is(name, "isdigit") || jj_is(name, "isnumeric") || jj_is(name, "isdecimal")) return digit;
    if (jj_is(name, "isalpha")) return upper || lower;
    if (jj_is(name, "isalnum")) return upper || lower || digit;
    return is_white(c);
}

static bool all_of_class(jj_str self, jj_str name) {
    for (size_t i = 0; i < self.n; i++)
        if (!is_class(name, (uint8_t)self.s[i])) return false;
    return self.n > 0;
}

/* --- by name -------------------------------------------------------------------------------------------------- */

static bool one_of(jj_str name, const char *const *names) {
    for (; *names; names++)
        if (jj_is(name, *names)) return true;
    return false;
}

sheaf_status jj_string_method(jj_run *r, jj_str self, jj_str name, const jj_args *a, jj_value *out, bool *known) {
    static const char *const strips[] = {"strip", "lstrip", "rstrip", NULL}, *const finds[] = {"find", "index", "count",
                                                                                               NULL};
    static const char *const splits[] = {"split", "rsplit", NULL};
    static const char *const classes[] = {"isdigit", "isnumeric", "isdecimal", "isalpha", "isalnum", "isspace", NULL};
    jj_str part;
    sheaf_status s;
    *known = true;
    if (one_of(name, strips)) return method_strip(r, self, name, a, out);
    if (one_of(name, splits)) return method_split(r, self, name, a, out);
    if (one_of(name, finds)) return method_find(r, self, name, a, out);
    if (one_of(name, classes)) return *out = jj_bool(all_of_class(self, name)), jj_step(r, 1 + self.n / 16);
    if (jj_is(name, "startswith") || jj_is(name, "endswith"))
        return method_affix(r, self, jj_is(name, "startswith"), a, out);
    if (jj_is(name, "replace")) return method_replace(r, self, a, out);
    if (jj_is(name, "join")) return method_join(r, self, a, out);
    if (jj_is(name, "splitlines")) return method_splitlines(r, self, out);
    if (jj_is(name, "upper")) return change_case(r, self, UPPER, out);
    if (jj_is(name, "lower")) return change_case(r, self, LOWER, out);
    if (jj_is(name, "title")) return change_case(r, self, TITLE, out);
    if (jj_is(name, "capitalize")) return change_case(r, self, CAPITAL, out);
    if (jj_is(name, "removeprefix") || jj_is(name, "removesuffix")) {
        bool front = jj_is(name, "removeprefix");
        if ((s = jj_string_arg(r, a, 0, NULL, "removeprefix", &part))) return s;
        bool has = front ? starts(self, part) : ends(self, part);
        *out = jj_string(!has ? self : front ? jj_slice(self, part.n, self.n) : jj_slice(self, 0, self.n - part.n));
        return SHEAF_OK;
    }
    *known = false;
    return SHEAF_OK;
}
