/* Reading a split table. Every mistake is named with its line; nothing is guessed.
 *
 *     group NAME heads COUNT KV_COUNT [unit=N]      group NAME columns|rows [unit=N]
 *     PATTERN GROUP AXIS [PARTS]                    PATTERN mirrored
 *
 * Words are separated by blanks; '#' at a line's start or after a blank begins a comment. */
#include "splitstate/policy_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORDS = 8, MAX_LINE = 1024, MAX_ROWS = 10000 };

typedef struct line {
    char text[MAX_LINE];
    char *word[MAX_WORDS];
    int n, number;
} line;

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

/* Splits a line into words in place. */
static sheaf_status split_words(line *l) {
    char *p = l->text;
    l->n = 0;
    for (;;) {
        while (is_blank(*p)) *p++ = 0;
        if (*p == 0 || *p == '#') break;
        if (l->n == MAX_WORDS)
            return sheaf_fail(SHEAF_E_FORMAT, "split table line %d: more than %d words", l->number, MAX_WORDS);
        l->word[l->n++] = p;
        while (*p && !is_blank(*p)) p++;
    }
    *p = 0;
    return SHEAF_OK;
}

static sheaf_status copy_word(const line *l, const char *word, char *out, size_t n) {
    size_t length = strlen(word);
    if (length >= n) return sheaf_fail(SHEAF_E_FORMAT, "split table line %d: '%s' is too long", l->number, word);
    memcpy(out, word, length + 1);
    return SHEAF_OK;
}

static sheaf_status parse_unit(const line *l, const char *word, int64_t *out) {
    char *end = NULL;
    errno = 0;
    long long v = strncmp(word, "unit=", 5) == 0 ? strtoll(word + 5, &end, 10) : 0;
    if (!end || end == word + 5 || *end || errno || v < 1 || v > 1 << 24) {
        return sheaf_fail(SHEAF_E_FORMAT, "split table line %d: '%s' where unit=N was expected", l->number, word);
    }
    *out = v;
    return SHEAF_OK;
}

static int find_group(const sheaf_policy *p, const char *name) {
    for (int i = 0; i < p->n_groups; i++) {
        if (strcmp(p->groups[i].name, name) == 0) return i;
    }
    return -1;
}

static sheaf_status group_kind_of(const line *l, group_kind *out, int *n_words) {
    static const struct {
        const char *name;
        group_kind kind;
        int words;
    } kinds[] = {{"heads", GROUP_HEADS, 5}, {"columns", GROUP_COLUMNS, 3}, {"rows", GROUP_ROWS, 3}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (l->n < 3) break;
        if (strcmp(l->word[2], kinds[i].name) != 0) continue;
        *out = kinds[i].kind;
        *n_words = kinds[i].words;
        return SHEAF_OK;
    }
    return sheaf_fail(SHEAF_E_FORMAT, "split table line %d: group %s heads COUNT KV_COUNT, columns or rows", l->number,
                      l->n > 1 ? l->word[1] : "NAME");
}

static sheaf_status parse_group(sheaf_policy *p, const line *l) {
    int n_words = 0;
    if (p->n_groups == MAX_GROUPS)
        return sheaf_fail(SHEAF_E_FORMAT, "split table line %d: more than %d groups", l->number, MAX_GROUPS);
    policy_group *g = &p->groups[p->n_groups];
    *g = (policy_group){.line = l->number};
    sheaf_status s = group_kind_of(l, &g->kind, &n_words);
    if (s || l->n < 3) return s;
    if (l->n != n_words && l->n != n_words + 1) {
        return sheaf_fail(SHEAF_E_FORMAT, "split table line %d: %d words for group %s", l->number, l->n, l->word[1]);
    }
    if (find_group(p, l->word[1]) >= 0 || strcmp(l->word[1], "mirrored") == 0) {
        return sheaf_fail(SHEAF_E_FORMAT, "split table line %d: group %s is taken", l->number, l->word[1]);
    }
    s = copy_word(l, l->word[1], g->name, sizeof g->name);
    if (!s && g->kind == GROUP_HEADS) s = copy_word(l, l->word[3], g->count, sizeof g->count);
    if (!s && g->kind == GROUP_HEADS) s = copy_word(l, l->word[4], g->kv_count, sizeof g->kv_count);
    if (!s && l->n > n_words) s = parse_unit(l, l->word[n_words], &g->unit);
    if (s) return s;
    p->n_groups++;
    return SHEAF_OK;
}

/* "q", "kv:128", "q:attention.key_length" of a heads group; "u" of the others. */
static sheaf_status parse_part(const line *l, group_kind kind, char *text, policy_part *out) {
    char *colon = strchr(text, ':');
    if (colon) *colon++ = 0;
    bool q = strcmp(text, kind == GROUP_HEADS ? "q" : "u") == 0;
    out->kv = kind == GROUP_HEADS && strcmp(text, "kv") == 0;
    if (!q && !out->kv) {
        return sheaf_fail(SHEAF_E_FORMAT, "split table line %d: part '%s' where %s was expected", l->number, text,
                          kind == GROUP_HEADS ? "q or kv" : "u");
    }
    return colon ? copy_word(l, colon, out->size, sizeof out->size) : SHEAF_OK;
}

static sheaf_status parse_parts(const line *l, group_kind kind, char *text, policy_row *r) {
    char *save = NULL;
    for (char *t = strtok_r(text, ",", &save); t; t = strtok_r(NULL, ",", &save)) {
        if (r->n_parts == MAX_PARTS)
            return sheaf_fail(SHEAF_E_FORMAT, "split table line %d: more than %d parts", l->number, MAX_PARTS);
        sheaf_status s = parse_part(l, kind, t, &r->parts[r->n_parts++]);
        if (s) return s;
    }
    if (r->n_parts == 0) return sheaf_fail(SHEAF_E_FORMAT, "split table line %d: no parts", l->number);
    return SHEAF_OK;
}

static sheaf_status parse_place(const sheaf_policy *p, const line *l, policy_row *r) {
    if (l->n == 2 && strcmp(l->word[1], "mirrored") == 0) {
        r->group = -1;
        return SHEAF_OK;
    }
    if (l->n < 3 || l->n > 4) {
        return sheaf_fail(SHEAF_E_FORMAT, "split table line %d: PATTERN GROUP AXIS [PARTS], or PATTERN mirrored",
                          l->number);
    }
    r->group = find_group(p, l->word[1]);
    if (r->group < 0)
        return sheaf_fail(SHEAF_E_FORMAT, "split table line %d: no group '%s' above", l->number, l->word[1]);
    if (strlen(l->word[2]) != 1 || l->word[2][0] < '0' || l->word[2][0] >= '0' + SHEAF_MAX_DIMS) {
        return sheaf_fail(SHEAF_E_FORMAT, "split table line %d: axis '%s', not 0 to %d", l->number, l->word[2],
                          SHEAF_MAX_DIMS - 1);
    }
    r->axis = l->word[2][0] - '0';
    group_kind kind = p->groups[r->group].kind;
    if (l->n == 4) return parse_parts(l, kind, l->word[3], r);
    if (kind == GROUP_HEADS)
        return sheaf_fail(SHEAF_E_FORMAT, "split table line %d: parts (q, kv) are missing", l->number);
    r->n_parts = 1;
    return SHEAF_OK;
}

static sheaf_status compile_pattern(const line *l, policy_row *r) {
    int code;
    size_t at;
    r->pattern = sheaf_strdup(l->word[0]);
    if (!r->pattern) return sheaf_fail(SHEAF_E_NO_MEMORY, "split table");
    r->code = pcre2_compile((PCRE2_SPTR)r->pattern, PCRE2_ZERO_TERMINATED, PCRE2_ANCHORED | PCRE2_ENDANCHORED, &code,
                            &at, NULL);
    if (r->code) return SHEAF_OK;
    if (code == PCRE2_ERROR_HEAP_FAILED)
        return sheaf_fail(SHEAF_E_NO_MEMORY, "split table line %d: no memory", l->number);
    PCRE2_UCHAR text[128];
    pcre2_get_error_message(code, text, sizeof text);
    return sheaf_fail(SHEAF_E_FORMAT, "split table line %d: pattern '%s' at %zu: %s", l->number, r->pattern, at,
                      (char *)text);
}

static void row_clear(policy_row *r) {
    sheaf_free(r->pattern);
    pcre2_code_free(r->code);
}

static sheaf_status parse_row(sheaf_policy *p, const line *l) {
    policy_row r = {.line = l->number};
    sheaf_status s = parse_place(p, l, &r);
    if (!s) s = compile_pattern(l, &r);
    if (!s && p->n_rows == p->rows_capacity) {
        int capacity = p->rows_capacity ? 2 * p->rows_capacity : 32;
        policy_row *rows = capacity > MAX_ROWS ? NULL : sheaf_realloc(p->rows, sizeof *rows * (size_t)capacity);
        if (!rows) s = sheaf_fail(SHEAF_E_NO_MEMORY, "split table line %d: %d rows", l->number, capacity);
        if (rows) p->rows = rows, p->rows_capacity = capacity;
    }
    if (s) {
        row_clear(&r);
        return s;
    }
    p->rows[p->n_rows++] = r;
    return SHEAF_OK;
}

static sheaf_status parse_line(sheaf_policy *p, const char *text, size_t n, int number) {
    line l = {.number = number};
    if (n >= sizeof l.text) return sheaf_fail(SHEAF_E_FORMAT, "split table line %d: %zu characters", number, n);
    if (memchr(text, 0, n)) return sheaf_fail(SHEAF_E_FORMAT, "split table line %d: a zero byte", number);
    memcpy(l.text, text, n);
    sheaf_status s = split_words(&l);
    if (s || l.n == 0) return s;
    return strcmp(l.word[0], "group") == 0 ? parse_group(p, &l) : parse_row(p, &l);
}

sheaf_status sheaf_policy_new(const char *text, size_t n, sheaf_policy **out) {
    *out = NULL;
    sheaf_policy *p = sheaf_calloc(1, sizeof *p);
    if (!p) return sheaf_fail(SHEAF_E_NO_MEMORY, "split table");
    sheaf_status s = SHEAF_OK;
    const char *end = text + n;
    for (int number = 1; text < end && !s; number++) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        if (!stop) stop = end;
        s = parse_line(p, text, (size_t)(stop - text), number);
        text = stop + 1;
    }
    if (!s && p->n_rows == 0) s = sheaf_fail(SHEAF_E_FORMAT, "split table: no rows");
    if (s) {
        sheaf_policy_free(p);
        return s;
    }
    *out = p;
    return SHEAF_OK;
}

void sheaf_policy_free(sheaf_policy *p) {
    if (!p) return;
    for (int i = 0; i < p->n_rows; i++) row_clear(&p->rows[i]);
    sheaf_free(p->rows);
    sheaf_free(p);
}

const char *sheaf_policy_builtin_text(const char *architecture) {
    for (const struct sheaf_builtin_table *t = sheaf_builtin_tables; t->name; t++) {
        if (strcmp(t->name, architecture) == 0) return t->text;
    }
    return NULL;
}

sheaf_status sheaf_policy_builtin(const char *architecture, sheaf_policy **out) {
    *out = NULL;
    const char *text = sheaf_policy_builtin_text(architecture);
    if (!text) {
        sheaf_status s = sheaf_fail(SHEAF_E_NOT_FOUND, "no split table for architecture '%s'", architecture);
        return sheaf_error_hint(s, "--split-table FILE gives one (docs/split-tables.md)");
    }
    sheaf_status s = sheaf_policy_new(text, strlen(text), out);
    return s ? sheaf_error_context(s, "built-in table '%s'", architecture) : SHEAF_OK;
}
