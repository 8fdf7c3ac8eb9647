/* Tensor lists: a model's names, shapes and whole-number keys as text, for tables that are tried without a model. */
#include "splitstate/policy_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ITEMS = 1 << 20, MAX_KEYS = 4096, MAX_REPEATS = 4096 };

typedef struct list_key {
    const char *name;
    int64_t value;
} list_key;

struct sheaf_tensor_list {
    sheaf_arena *arena; /* names, keys and the text that they were cut from */
    sheaf_named *items;
    int n, capacity;
    list_key keys[MAX_KEYS];
    int n_keys;
    const char *architecture;
};

static char *trim(char *s) {
    while (*s == ' ' || *s == '\t') s++;
    for (size_t n = strlen(s); n && strchr(" \t\r", s[n - 1]); n--) s[n - 1] = 0;
    return s;
}

static bool whole_number(const char *word, int64_t *out) {
    char *end;
    errno = 0;
    *out = strtoll(word, &end, 10);
    return end != word && !*end && !errno;
}

static sheaf_status parse_key(sheaf_tensor_list *l, char *line, char *equals, int number) {
    *equals = 0;
    char *key = trim(line), *value = trim(equals + 1);
    int64_t x;
    if (strcmp(key, "general.architecture") == 0) {
        l->architecture = value;
        return SHEAF_OK;
    }
    if (!whole_number(value, &x))
        return sheaf_fail(SHEAF_E_FORMAT, "tensor list line %d: %s = %s: not a whole number", number, key, value);
    for (int i = 0; i < l->n_keys; i++)
        if (strcmp(l->keys[i].name, key) == 0)
            return sheaf_fail(SHEAF_E_FORMAT, "tensor list line %d: %s stands twice", number, key);
    if (l->n_keys == MAX_KEYS)
        return sheaf_fail(SHEAF_E_FORMAT, "tensor list line %d: more than %d keys", number, MAX_KEYS);
    l->keys[l->n_keys++] = (list_key){key, x};
    return SHEAF_OK;
}

/* --- tensors --- */

static sheaf_status add_item(sheaf_tensor_list *l, const sheaf_named *t) {
    if (l->n == MAX_ITEMS) return sheaf_fail(SHEAF_E_FORMAT, "tensor list: more than %d tensors", MAX_ITEMS);
    if (l->n == l->capacity) {
        int capacity = l->capacity ? l->capacity * 2 : 256;
        sheaf_named *grown = sheaf_realloc(l->items, (size_t)capacity * sizeof *grown);
        if (!grown) return sheaf_fail(SHEAF_E_NO_MEMORY, "tensor list: %d tensors", capacity);
        l->items = grown;
        l->capacity = capacity;
    }
    l->items[l->n++] = *t;
    return SHEAF_OK;
}

/* t under the name with `value` in place of the braces [open, close]. */
static sheaf_status add_numbered(sheaf_tensor_list *l, const sheaf_named *t, const char *open, const char *close,
                                 int64_t value) {
    int before = (int)(open - t->name);
    size_t room = strlen(t->name) + 24;
    char *name = sheaf_arena_alloc(l->arena, room);
    sheaf_named one = *t;
    if (!name) return sheaf_arena_status(l->arena);
    snprintf(name, room, "%.*s%lld%s", before, t->name, (long long)value, close + 1);
    one.name = name;
    return add_item(l, &one);
}

/* "blk.{0-3,7}.x": a tensor for each number. */
static sheaf_status add_tensors(sheaf_tensor_list *l, const sheaf_named *t, int number) {
    const char *open = strchr(t->name, '{'), *close = open ? strchr(open, '}') : NULL;
    if (!open) return add_item(l, t);
    const char *at = open + 1;
    while (close && at < close) {
        char *end;
        long long first = strtoll(at, &end, 10), last = first;
        if (end == at || first < 0) break;
        if (*end == '-') {
            at = end + 1;
            last = strtoll(at, &end, 10);
            if (end == at) break;
        }
        if (last < first || last - first >= MAX_REPEATS || (*end != ',' && end != close)) break;
        for (long long i = first; i <= last; i++) {
            sheaf_status s = add_numbered(l, t, open, close, i);
            if (s) return s;
        }
        if (end == close) return SHEAF_OK;
        at = end + 1;
    }
    return sheaf_fail(SHEAF_E_FORMAT, "tensor list line %d: %s: braces hold numbers and ranges: {0-3,7}", number,
                      t->name);
}

/* The next word: up to a blank, or a comma outside of braces. NULL at the end. */
static char *next_word(char **at) {
    char *p = *at;
    while (*p && strchr(", \t\r", *p)) p++;
    if (!*p) return NULL;
    char *word = p;
    for (bool inside = false; *p && (inside || !strchr(", \t\r", *p)); p++) {
        if (*p == '{') inside = true;
        if (*p == '}') inside = false;
    }
    *at = *p ? p + 1 : p;
    *p = 0;
    return word;
}

static bool fits_memory(const sheaf_named *t) {
    size_t bytes = sheaf_row_bytes(t->type, t->ne[0]);
    for (int d = 1; d < SHEAF_MAX_DIMS && bytes != SIZE_MAX; d++)
        if (sheaf_mul_overflow(bytes, (size_t)t->ne[d], &bytes) || bytes > INT64_MAX) bytes = SIZE_MAX;
    return bytes != SIZE_MAX;
}

static sheaf_status parse_tensor(sheaf_tensor_list *l, char *line, int number) {
    sheaf_named t = {.ne = {1, 1, 1, 1}};
    int dims = 0;
    char *word = next_word(&line);
    t.name = word ? word : "";
    while ((word = next_word(&line)) && ((*word >= '0' && *word <= '9') || *word == '-')) {
        int64_t x;
        if (dims == SHEAF_MAX_DIMS || !whole_number(word, &x) || x < 1)
            return sheaf_fail(SHEAF_E_FORMAT, "tensor list line %d: %s: %s: one to four sizes of at least 1", number,
                              t.name, word);
        t.ne[dims++] = x;
    }
    if (!dims || !word || !sheaf_type_from_name(word, &t.type) || next_word(&line))
        return sheaf_fail(SHEAF_E_FORMAT, "tensor list line %d: %s: a line is: name, ne0 [ne1 ...], type", number,
                          t.name);
    if (!fits_memory(&t))
        return sheaf_fail(SHEAF_E_FORMAT, "tensor list line %d: %s: no whole blocks of %s, or more than any memory",
                          number, t.name, word);
    return add_tensors(l, &t, number);
}

/* --- the whole --- */

static int compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static sheaf_status check_names(const sheaf_tensor_list *l) {
    if (l->n == 0) return sheaf_fail(SHEAF_E_FORMAT, "tensor list: it names no tensor");
    const char **names = sheaf_malloc((size_t)l->n * sizeof *names);
    if (!names) return sheaf_fail(SHEAF_E_NO_MEMORY, "tensor list: %d names", l->n);
    for (int i = 0; i < l->n; i++) names[i] = l->items[i].name;
    qsort(names, (size_t)l->n, sizeof *names, compare_names);
    sheaf_status s = SHEAF_OK;
    for (int i = 1; i < l->n && !s; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            s = sheaf_fail(SHEAF_E_FORMAT, "tensor list: %s stands twice", names[i]);
    sheaf_free(names);
    return s;
}

static sheaf_status parse_lines(sheaf_tensor_list *l, char *text) {
    int number = 1;
    for (char *line = text, *next; line; line = next, number++) {
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        line[strcspn(line, "#")] = 0;
        line = trim(line);
        char *equals = strchr(line, '=');
        sheaf_status s = SHEAF_OK;
        if (equals)
            s = parse_key(l, line, equals, number);
        else if (*line)
            s = parse_tensor(l, line, number);
        if (s) return s;
    }
    return check_names(l);
}

sheaf_status sheaf_tensor_list_new(const char *text, size_t n, sheaf_tensor_list **out) {
    *out = NULL;
    if (memchr(text, 0, n)) return sheaf_fail(SHEAF_E_FORMAT, "tensor list: a zero byte");
    sheaf_tensor_list *l = sheaf_calloc(1, sizeof *l);
    if (!l) return sheaf_fail(SHEAF_E_NO_MEMORY, "tensor list: %zu bytes", sizeof *l);
    sheaf_status s = sheaf_arena_new((size_t)1 << 14, &l->arena);
    char *copy = s ? NULL : sheaf_arena_alloc(l->arena, n + 1);
    if (!s && !copy) s = sheaf_arena_status(l->arena);
    if (!s) {
        memcpy(copy, text, n);
        s = parse_lines(l, copy);
    }
    if (s) {
        sheaf_tensor_list_free(l);
        return s;
    }
    *out = l;
    return SHEAF_OK;
}

void sheaf_tensor_list_free(sheaf_tensor_list *l) {
    if (!l) return;
    sheaf_arena_free(l->arena);
    sheaf_free(l->items);
    sheaf_free(l);
}

const sheaf_named *sheaf_tensor_list_items(const sheaf_tensor_list *l, int *n) {
    *n = l->n;
    return l->items;
}

const char *sheaf_tensor_list_architecture(const sheaf_tensor_list *l) { return l->architecture; }

sheaf_status sheaf_tensor_list_get(void *list, const char *key, int64_t *out) {
    const sheaf_tensor_list *l = list;
    for (int i = 0; i < l->n_keys; i++) {
        const char *name = l->keys[i].name, *dot = strchr(name, '.');
        if (strcmp(name, key) != 0 && (!dot || strcmp(dot + 1, key) != 0)) continue;
        *out = l->keys[i].value;
        return SHEAF_OK;
    }
    return sheaf_fail(SHEAF_E_NOT_FOUND, "%s: the list does not say it", key);
}
