/* JSON for templates: reads what a request brings (every byte of its strings marked as input), and
 * writes as the tojson filter of chat templates does. Bounded depth; NULs and long numbers are fine. */
#include "models/text/jinja.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct reader {
    jj_run *r;
    const char *s;
    size_t n, at;
    int depth;
} reader;

static sheaf_status read_value(reader *x, jj_value *out);

static sheaf_status fail(const reader *x, const char *what) {
    return sheaf_fail(SHEAF_E_FORMAT, "JSON: byte %zu: %s", x->at, what);
}

static void skip_blanks(reader *x) {
    while (x->at < x->n && (x->s[x->at] == ' ' || x->s[x->at] == '\t' || x->s[x->at] == '\n' || x->s[x->at] == '\r'))
        x->at++;
}

static bool take(reader *x, const char *text) {
    size_t n = strlen(text);
    if (x->n - x->at < n || memcmp(x->s + x->at, text, n) != 0) return false;
    x->at += n;
    return true;
}

/* --- strings ------------------------------------------------------------------------------------------------ */

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    char low = (char)(c | 32);
    return low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
}

/* Four hex digits at `at`, or -1. */
static int32_t hex4(const reader *x, size_t at) {
    int32_t value = 0;
    if (x->n < at || x->n - at < 4) return -1;
    for (size_t i = 0; i < 4; i++) {
        int digit = hex_digit(x->s[at + i]);
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* A "\uXXXX" (x->at behind the u), with its partner if it is half a pair; half alone is U+FFFD. */
static sheaf_status read_unicode(reader *x, char *out, size_t *wrote) {
    int32_t c = hex4(x, x->at), low;
    if (c < 0) return fail(x, "four hexadecimal digits are expected");
    x->at += 4;
    if (c >= 0xd800 && c <= 0xdfff) {
        bool pair = c < 0xdc00 && x->n - x->at >= 6 && x->s[x->at] == '\\' && x->s[x->at + 1] == 'u' &&
                    (low = hex4(x, x->at + 2)) >= 0xdc00 && low <= 0xdfff;
        if (pair) {
            c = 0x10000 + (c - 0xd800) * 1024 + (low - 0xdc00);
            x->at += 6;
        } else {
            c = 0xfffd;
        }
    }
    size_t n = 0;
    if (c < 0x80)
        out[n++] = (char)c;
    else if (c < 0x800)
        out[n++] = (char)(0xc0 | c >> 6);
    else if (c < 0x10000)
        out[n++] = (char)(0xe0 | c >> 12);
    else
        out[n++] = (char)(0xf0 | c >> 18);
    if (c >= 0x10000) out[n++] = (char)(0x80 | (c >> 12 & 63));
    if (c >= 0x800) out[n++] = (char)(0x80 | (c >> 6 & 63));
    if (c >= 0x80) out[n++] = (char)(0x80 | (c & 63));
    *wrote = n;
    return SHEAF_OK;
}

static sheaf_status read_escape(reader *x, char *out, size_t *wrote) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = x->at < x->n ? x->s[x->at++] : 0;
    if (c == 'u') return read_unicode(x, out, wrote);
    const char *hit = c ? strchr(from, c) : NULL;
    if (!hit) return fail(x, "an escape is not understood");
    out[0] = to[hit - from];
    *wrote = 1;
    return SHEAF_OK;
}

/* At the opening quote. The text is at most as long as its spelling. */
static sheaf_status read_string(reader *x, jj_value *out) {
    size_t begin = ++x->at, end = begin, n = 0;
    while (end < x->n && x->s[end] != '"') end += x->s[end] == '\\' ? 2 : 1;
    if (end >= x->n) return fail(x, "a string does not end");
    char *text = jj_alloc(x->r, end - begin + 1);
    uint8_t *mark = text ? jj_alloc(x->r, end - begin + 1) : NULL;
    if (!mark) return sheaf_fail(SHEAF_E_NO_MEMORY, "JSON: a string of %zu bytes", end - begin);
    while (x->at < end) {
        size_t wrote = 1;
        char c = x->s[x->at];
        if ((uint8_t)c < 0x20) return fail(x, "a control character in a string");
        x->at++;
        if (c != '\\')
            text[n] = c;
        else {
            sheaf_status s = read_escape(x, text + n, &wrote);
            if (s) return s;
        }
        n += wrote;
    }
    size_t bad;
    if (!sheaf_utf8_valid(text, n, &bad)) return fail(x, "a string is not UTF-8");
    x->at = end + 1;
    memset(mark, 1, n);
    *out = jj_string((jj_str){text, mark, n});
    return jj_step(x->r, 1 + n / 16);
}

/* --- the rest -------------------------------------------------------------------------------------------------- */

static sheaf_status read_number(reader *x, jj_value *out) {
    char text[64];
    size_t n = 0;
    bool real = false;
    while (x->at < x->n && strchr("+-.eE0123456789", x->s[x->at]) && x->s[x->at]) {
        if (n + 1 == sizeof(text)) return fail(x, "a number is too long");
        real |= strchr(".eE", x->s[x->at]) != NULL;
        text[n++] = x->s[x->at++];
    }
    text[n] = 0;
    char *end;
    size_t digits = n - (n && text[0] == '-');
    if (real || digits > 18)
        *out = (jj_value){.kind = JJ_FLOAT, .u.f = strtod(text, &end)};
    else
        *out = jj_int(strtoll(text, &end, 10));
    return n && *end == 0 && (text[0] == '-' || (text[0] >= '0' && text[0] <= '9')) ? SHEAF_OK
                                                                                    : fail(x, "a value is expected");
}

static sheaf_status read_list(reader *x, jj_value *out) {
    sheaf_status s = jj_new_list(x->r, out);
    x->at++;
    skip_blanks(x);
    if (s || take(x, "]")) return s;
    while (!s) {
        jj_value item;
        if ((s = read_value(x, &item)) || (s = jj_push(x->r, out->u.list, &item))) break;
        skip_blanks(x);
        if (take(x, "]")) break;
        if (!take(x, ",")) return fail(x, "\",\" or \"]\" is expected");
    }
    return s;
}

static sheaf_status read_dict(reader *x, jj_value *out) {
    sheaf_status s = jj_new_dict(x->r, out);
    x->at++;
    skip_blanks(x);
    if (s || take(x, "}")) return s;
    while (!s) {
        jj_value key, v;
        skip_blanks(x);
        if (x->at >= x->n || x->s[x->at] != '"') return fail(x, "a key is expected");
        if ((s = read_string(x, &key))) break;
        skip_blanks(x);
        if (!take(x, ":")) return fail(x, "\":\" is expected");
        if ((s = read_value(x, &v)) || (s = jj_dict_set(x->r, out->u.dict, &key, &v))) break;
        skip_blanks(x);
        if (take(x, "}")) break;
        if (!take(x, ",")) return fail(x, "\",\" or \"}\" is expected");
    }
    return s;
}

static sheaf_status read_value(reader *x, jj_value *out) {
    skip_blanks(x);
    if (x->at >= x->n) return fail(x, "a value is expected");
    if (take(x, "null")) return *out = jj_none(), SHEAF_OK;
    if (take(x, "true")) return *out = jj_bool(true), SHEAF_OK;
    if (take(x, "false")) return *out = jj_bool(false), SHEAF_OK;
    char c = x->s[x->at];
    if (c == '"') return read_string(x, out);
    if (c != '[' && c != '{') return read_number(x, out);
    if (++x->depth > JJ_MAX_JSON_DEPTH) return fail(x, "nested too deep");
    sheaf_status s = c == '[' ? read_list(x, out) : read_dict(x, out);
    x->depth--;
    return s;
}

sheaf_status jj_json_read(jj_run *r, const char *s, size_t n, jj_value *out) {
    reader x = {.r = r, .s = s, .n = n};
    sheaf_status st = read_value(&x, out);
    if (st) return st;
    skip_blanks(&x);
    return x.at == n ? SHEAF_OK : fail(&x, "something follows the value");
}

/* --- writing ---------------------------------------------------------------------------------------------------- */

static sheaf_status write_string(jj_run *r, jj_buf *b, jj_str s) {
    sheaf_status st = jj_put(r, b, jj_text("\""));
    size_t plain = 0;
    for (size_t i = 0; i < s.n && !st; i++) {
        static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
        uint8_t c = (uint8_t)s.s[i];
        if (c >= 0x20 && c != '"' && c != '\\' && c != 0x7f) continue;
        if (c == 0x7f) continue;
        char escape[8];
        const char *hit = c ? strchr(from, c) : NULL;
        if (hit)
            snprintf(escape, sizeof(escape), "\\%c", to[hit - from]);
        else
            snprintf(escape, sizeof(escape), "\\u%04x", c);
        st = jj_put(r, b, jj_slice(s, plain, i));
        if (!st) st = jj_put_text(r, b, escape, strlen(escape));
        plain = i + 1;
    }
    if (!st) st = jj_put(r, b, jj_slice(s, plain, s.n));
    return st ? st : jj_put(r, b, jj_text("\""));
}

static sheaf_status write_value(jj_run *r, jj_buf *b, const jj_value *v, int indent, int level);

static sheaf_status new_line(jj_run *r, jj_buf *b, int indent, int level) {
    sheaf_status s = jj_put(r, b, jj_text("\n"));
    for (int i = 0; i < indent * level && !s; i++) s = jj_put(r, b, jj_text(" "));
    return s;
}

static sheaf_status write_container(jj_run *r, jj_buf *b, const jj_value *v, int indent, int level) {
    const jj_list *keys = v->kind == JJ_DICT ? &v->u.dict->keys : NULL, *items = keys ? &v->u.dict->values : v->u.list;
    sheaf_status s = jj_put(r, b, jj_text(keys ? "{" : "["));
    for (size_t i = 0; i < items->n && !s; i++) {
        if (i) s = jj_put(r, b, jj_text(indent < 0 ? ", " : ","));
        if (!s && indent >= 0) s = new_line(r, b, indent, level + 1);
        if (!s && keys) {
            jj_str key;
            s = jj_to_string(r, &keys->v[i], &key);
            if (!s) s = write_string(r, b, key);
            if (!s) s = jj_put(r, b, jj_text(": "));
        }
        if (!s) s = write_value(r, b, &items->v[i], indent, level + 1);
    }
    if (!s && indent >= 0 && items->n) s = new_line(r, b, indent, level);
    return s ? s : jj_put(r, b, jj_text(keys ? "}" : "]"));
}

static sheaf_status write_value(jj_run *r, jj_buf *b, const jj_value *v, int indent, int level) {
    if (++r->depth > JJ_MAX_DEPTH) return jj_fail(r, SHEAF_E_RANGE, "tojson: nested deeper than %d", JJ_MAX_DEPTH);
    sheaf_status s;
    switch (v->kind) {
    case JJ_NONE: s = jj_put(r, b, jj_text("null")); break;
    case JJ_BOOL: s = jj_put(r, b, jj_text(v->u.b ? "true" : "false")); break;
    case JJ_INT:
    case JJ_FLOAT: s = jj_print(r, b, v, false); break;
    case JJ_STRING: s = write_string(r, b, v->u.str); break;
    case JJ_LIST:
    case JJ_DICT: s = write_container(r, b, v, indent, level); break;
    default: s = jj_fail(r, SHEAF_E_FORMAT, "tojson of %s", jj_kind_name(v));
    }
    r->depth--;
    return s;
}

sheaf_status jj_json_write(jj_run *r, jj_buf *b, const jj_value *v, int indent) {
    return write_value(r, b, v, indent, 0);
}
