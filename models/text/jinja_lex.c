/* Cuts a template's source into tokens, and decides which white space around tags belongs to the
 * text, with the settings that chat templates are written for: trim_blocks (the line break after a
 * block tag goes) and lstrip_blocks (blanks before a block tag that begins its line go). */
#include "models/text/jinja.h"

#include <stdlib.h>
#include <string.h>

typedef struct lexer {
    sheaf_arena *arena;
    const char *s;
    size_t n, at;
    uint32_t line;
    jj_token *tokens;
    size_t count, capacity;
    bool line_start; /* the text that follows begins a line */
    bool trim_next;  /* a tag ended with "-": leading white space of the text goes */
} lexer;

static sheaf_status no_memory(const lexer *x) {
    return sheaf_error_context(sheaf_arena_status(x->arena), "chat template");
}

static sheaf_status fail(const lexer *x, const char *what) {
    return sheaf_fail(SHEAF_E_FORMAT, "chat template line %u: %s", x->line, what);
}

static sheaf_status add(lexer *x, jj_token t) {
    if (x->count == x->capacity) {
        size_t capacity = x->capacity ? 2 * x->capacity : 256;
        jj_token *grown = sheaf_arena_alloc(x->arena, capacity * sizeof(jj_token));
        if (!grown) return no_memory(x);
        if (x->count) memcpy(grown, x->tokens, x->count * sizeof(jj_token));
        x->tokens = grown;
        x->capacity = capacity;
    }
    t.line = x->line;
    x->tokens[x->count++] = t;
    return SHEAF_OK;
}

static bool looking_at(const lexer *x, const char *text) {
    size_t n = strlen(text);
    return x->n - x->at >= n && memcmp(x->s + x->at, text, n) == 0;
}

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static void advance(lexer *x, size_t n) {
    for (size_t end = x->at + n; x->at < end; x->at++) x->line += x->s[x->at] == '\n';
}

/* --- text between tags ------------------------------------------------------------------------------- */

static size_t find_tag(const lexer *x) {
    for (size_t i = x->at; i + 1 < x->n; i++)
        if (x->s[i] == '{' && (x->s[i + 1] == '{' || x->s[i + 1] == '%' || x->s[i + 1] == '#')) return i;
    return x->n;
}

/* Where the text ends once blanks before the tag at `tag` are taken off. */
static size_t text_end(const lexer *x, size_t begin, size_t tag) {
    if (tag >= x->n) return tag;
    char sign = tag + 2 < x->n ? x->s[tag + 2] : 0;
    size_t end = tag;
    if (sign == '-') {
        while (end > begin && is_space(x->s[end - 1])) end--;
        return end;
    }
    if (sign == '+' || x->s[tag + 1] == '{') return tag;
    while (end > begin && is_space(x->s[end - 1]) && x->s[end - 1] != '\n') end--;
    bool begins_line = end > begin ? x->s[end - 1] == '\n' : x->line_start;
    return begins_line ? end : tag;
}

static sheaf_status lex_data(lexer *x) {
    size_t begin = x->at, tag = find_tag(x), skip = begin;
    while (x->trim_next && skip < tag && is_space(x->s[skip])) skip++;
    bool untouched = skip == begin;
    if (!untouched && x->line_start) x->line_start = false;
    size_t end = text_end(x, skip, tag);
    sheaf_status s = SHEAF_OK;
    if (end > skip) s = add(x, (jj_token){.kind = JJ_T_DATA, .str = {x->s + skip, NULL, end - skip}});
    x->trim_next = false;
    advance(x, tag - begin);
    return s;
}

/* --- inside tags -------------------------------------------------------------------------------------- */

static bool name_char(char c, bool first) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (!first && c >= '0' && c <= '9');
}

static sheaf_status lex_name(lexer *x) {
    size_t begin = x->at;
    while (x->at < x->n && name_char(x->s[x->at], false)) x->at++;
    return add(x, (jj_token){.kind = JJ_T_NAME, .str = {x->s + begin, NULL, x->at - begin}});
}

static sheaf_status lex_number(lexer *x) {
    char digits[64];
    size_t n = 0;
    bool real = false;
    for (; x->at < x->n; x->at++) {
        char c = x->s[x->at];
        bool point = c == '.' && !real && x->at + 1 < x->n && x->s[x->at + 1] >= '0' && x->s[x->at + 1] <= '9';
        if (c == '_') continue;
        if (!point && (c < '0' || c > '9')) break;
        real |= point;
        if (n + 1 == sizeof(digits)) return fail(x, "a number is too long");
        digits[n++] = c;
    }
    digits[n] = 0;
    jj_token t = {.kind = real ? JJ_T_FLOAT : JJ_T_INT, .str = {"", NULL, 0}};
    if (real)
        t.f = strtod(digits, NULL);
    else if (n > 18)
        return fail(x, "a number is too large");
    else
        t.i = strtoll(digits, NULL, 10);
    return add(x, t);
}

static size_t put_utf8(uint32_t c, char *out) {
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 63));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 63));
        out[2] = (char)(0x80 | (c & 63));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 63));
    out[2] = (char)(0x80 | (c >> 6 & 63));
    out[3] = (char)(0x80 | (c & 63));
    return 4;
}

/* "\xHH", "\uHHHH", "\UHHHHHHHH": n digits from `at`. -1: they are not there. */
static int64_t hex(const lexer *x, size_t at, size_t n) {
    int64_t value = 0;
    if (x->n - at < n) return -1;
    for (size_t i = 0; i < n; i++) {
        char c = x->s[at + i], low = (char)(c | 32);
        if (c >= '0' && c <= '9')
            value = value * 16 + (c - '0');
        else if (low >= 'a' && low <= 'f')
            value = value * 16 + (low - 'a' + 10);
        else
            return -1;
    }
    return value;
}

/* One escape (x->at is behind the backslash): writes its bytes, moves on. 0: not understood. */
static size_t lex_escape(lexer *x, char *out) {
    static const char from[] = "ntr\\'\"abfv0", to[] = "\n\t\r\\'\"\a\b\f\v";
    char c = x->s[x->at];
    const char *simple = c ? strchr(from, c) : NULL;
    if (simple) {
        out[0] = c == '0' ? 0 : to[simple - from];
        x->at++;
        return 1;
    }
    size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits) {
        int64_t value = hex(x, x->at + 1, digits);
        if (value < 0 || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff)) return 0;
        x->at += 1 + digits;
        return put_utf8((uint32_t)value, out);
    }
    if (c == '\n') return 0;
    out[0] = '\\'; /* as Python: an unknown escape stays as it is */
    return 1;
}

static sheaf_status lex_string(lexer *x) {
    char quote = x->s[x->at++];
    size_t end = x->at, n = 0;
    while (end < x->n && x->s[end] != quote) end += x->s[end] == '\\' ? 2 : 1;
    if (end >= x->n) return fail(x, "a string does not end");
    char *out = sheaf_arena_alloc(x->arena, end - x->at + 1);
    if (!out) return no_memory(x);
    uint32_t line = x->line;
    while (x->at < end) {
        char c = x->s[x->at++];
        if (c != '\\') {
            line += c == '\n';
            out[n++] = c;
            continue;
        }
        size_t wrote = lex_escape(x, out + n);
        if (wrote == 0) return fail(x, "an escape in a string is not understood");
        n += wrote;
    }
    x->at = end + 1;
    sheaf_status s = add(x, (jj_token){.kind = JJ_T_STRING, .str = {out, NULL, n}});
    x->line = line;
    return s;
}

static sheaf_status lex_operator(lexer *x) {
    static const char *const two[] = {"**", "//", "==", "!=", "<=", ">="};
    size_t n = 0;
    for (size_t i = 0; i < sizeof(two) / sizeof(*two); i++)
        if (looking_at(x, two[i])) n = 2;
    if (n == 0 && x->s[x->at] && strchr("+-*/%~<>=.:|,()[]{}", x->s[x->at])) n = 1;
    if (n == 0)
        return sheaf_fail(SHEAF_E_FORMAT, "chat template line %u: character '%c' is not understood", x->line,
                          x->s[x->at]);
    x->at += n;
    return add(x, (jj_token){.kind = JJ_T_OP, .str = {x->s + x->at - n, NULL, n}});
}

/* If the tag ends here: its token, and what the end means for the text behind it. */
static sheaf_status lex_end(lexer *x, bool block, bool *ended) {
    const char *close = block ? "%}" : "}}";
    size_t sign = x->s[x->at] == '-' || x->s[x->at] == '+';
    *ended = x->n - x->at >= sign + 2 && memcmp(x->s + x->at + sign, close, 2) == 0;
    if (!*ended) return SHEAF_OK;
    sheaf_status s = add(x, (jj_token){.kind = block ? JJ_T_BLOCK_END : JJ_T_PRINT_END});
    x->trim_next = x->s[x->at] == '-';
    bool keep = x->s[x->at] == '+';
    x->at += sign + 2;
    x->line_start = false;
    if (block && !keep && !x->trim_next && x->at < x->n && x->s[x->at] == '\n') {
        advance(x, 1);
        x->line_start = true;
    }
    return s;
}

static sheaf_status lex_tag(lexer *x, bool block) {
    sheaf_status s = add(x, (jj_token){.kind = block ? JJ_T_BLOCK : JJ_T_PRINT});
    x->at += 2;
    if (x->at < x->n && (x->s[x->at] == '-' || x->s[x->at] == '+')) x->at++;
    int open = 0; /* brackets: inside them "}}" closes two dicts */
    while (!s) {
        while (x->at < x->n && is_space(x->s[x->at])) advance(x, 1);
        if (x->at >= x->n) return fail(x, "a tag does not end");
        bool ended = false;
        if (open == 0 && (s = lex_end(x, block, &ended))) break;
        if (ended) break;
        char c = x->s[x->at];
        if (c == '(' || c == '[' || c == '{') open++;
        if ((c == ')' || c == ']' || c == '}') && open > 0) open--;
        if (name_char(c, true))
            s = lex_name(x);
        else if (c >= '0' && c <= '9')
            s = lex_number(x);
        else if (c == '\'' || c == '"')
            s = lex_string(x);
        else
            s = lex_operator(x);
    }
    return s;
}

static sheaf_status lex_comment(lexer *x) {
    const char *end = memmem(x->s + x->at, x->n - x->at, "#}", 2);
    if (!end) return fail(x, "a comment does not end");
    bool trim = end[-1] == '-', keep = end[-1] == '+';
    advance(x, (size_t)(end - (x->s + x->at)) + 2);
    x->trim_next = trim;
    x->line_start = false;
    if (!trim && !keep && x->at < x->n && x->s[x->at] == '\n') {
        advance(x, 1);
        x->line_start = true;
    }
    return SHEAF_OK;
}

/* The source with "\r\n" and "\r" as "\n", and without one line break at its end. */
static sheaf_status copy_source(lexer *x, const char *source, size_t n) {
    char *copy = sheaf_arena_alloc(x->arena, n + 1);
    if (!copy) return no_memory(x);
    for (size_t i = 0; i < n; i++) {
        bool pair = source[i] == '\r' && i + 1 < n && source[i + 1] == '\n';
        if (!pair) copy[x->n++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (x->n && copy[x->n - 1] == '\n') x->n--;
    x->s = copy;
    return SHEAF_OK;
}

sheaf_status jj_lex(sheaf_arena *arena, const char *source, size_t n, jj_token **tokens, size_t *n_tokens) {
    lexer x = {.arena = arena, .line = 1, .line_start = true};
    if (n > JJ_MAX_SOURCE) return sheaf_fail(SHEAF_E_RANGE, "chat template: %zu bytes, at most %d", n, JJ_MAX_SOURCE);
    sheaf_status s = copy_source(&x, source, n);
    while (!s && x.at < x.n) {
        s = lex_data(&x);
        if (s || x.at >= x.n) break;
        if (x.s[x.at + 1] == '#')
            s = lex_comment(&x);
        else
            s = lex_tag(&x, x.s[x.at + 1] == '%');
    }
    if (!s) s = add(&x, (jj_token){.kind = JJ_T_END});
    *tokens = x.tokens;
    *n_tokens = x.count;
    return s;
}
