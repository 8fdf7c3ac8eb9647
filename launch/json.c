/* See json.h. cJSON fails only for want of memory; one check at the end is enough. */
#include "launch/json.h"

#include <string.h>

static cJSON *add(jdoc *d, cJSON *to, const char *key, cJSON *item) {
    bool ok = to && item && (key ? cJSON_AddItemToObject(to, key, item) : cJSON_AddItemToArray(to, item));
    if (ok) return item;
    cJSON_Delete(item);
    d->failed = true;
    return NULL;
}

cJSON *j_object(jdoc *d, cJSON *to, const char *key) { return add(d, to, key, cJSON_CreateObject()); }
cJSON *j_array(jdoc *d, cJSON *to, const char *key) { return add(d, to, key, cJSON_CreateArray()); }
void j_number(jdoc *d, cJSON *to, const char *key, double value) { (void)add(d, to, key, cJSON_CreateNumber(value)); }
void j_string(jdoc *d, cJSON *to, const char *key, const char *value) {
    (void)add(d, to, key, cJSON_CreateString(value));
}
void j_bool(jdoc *d, cJSON *to, const char *key, bool value) { (void)add(d, to, key, cJSON_CreateBool(value)); }
void j_null(jdoc *d, cJSON *to, const char *key) { (void)add(d, to, key, cJSON_CreateNull()); }

void j_integer(jdoc *d, cJSON *to, const char *key, int64_t value) {
    char digits[32];
    snprintf(digits, sizeof digits, "%lld", (long long)value);
    (void)add(d, to, key, cJSON_CreateRaw(digits)); /* a double would lose bits above 2^53 */
}

void j_unsigned(jdoc *d, cJSON *to, const char *key, uint64_t value) {
    char digits[32];
    snprintf(digits, sizeof digits, "%llu", (unsigned long long)value);
    (void)add(d, to, key, cJSON_CreateRaw(digits));
}

/* cJSON's strings end at a NUL and would lose what follows: U+FFFD stands in for each. `s` itself if it has none;
 * NULL: out of memory. */
static char *without_nuls(char *s, size_t n) {
    if (strlen(s) == n) return s;
    char *out = sheaf_malloc(3 * n + 1), *p = out;
    for (size_t i = 0; out && i < n; i++) {
        if (s[i]) {
            *p++ = s[i];
        } else {
            memcpy(p, "\xef\xbf\xbd", 3);
            p += 3;
        }
    }
    if (out) *p = 0;
    return out;
}

void j_text(jdoc *d, cJSON *to, const char *key, sheaf_str value) {
    char *clean = sheaf_malloc(SHEAF_STREAM_ROOM(value.n) + 4);
    if (!clean) {
        d->failed = true;
        return;
    }
    sheaf_stream st = {{0}, 0};
    size_t n = sheaf_stream_push(&st, value.s, value.n, clean);
    n += sheaf_stream_end(&st, clean + n);
    clean[n] = 0;
    char *whole = without_nuls(clean, n);
    if (whole)
        j_string(d, to, key, whole);
    else
        d->failed = true;
    if (whole != clean) sheaf_free(whole);
    sheaf_free(clean);
}

jdoc j_new(bool array) {
    jdoc d = {array ? cJSON_CreateArray() : cJSON_CreateObject(), false};
    d.failed = !d.root;
    return d;
}

sheaf_status j_print(jdoc *d, bool line) {
    char *text = d->failed ? NULL : (line ? cJSON_PrintUnformatted(d->root) : cJSON_Print(d->root));
    cJSON_Delete(d->root);
    d->root = NULL;
    if (!text) return sheaf_fail(SHEAF_E_NO_MEMORY, "writing JSON: out of memory");
    puts(text);
    cJSON_free(text);
    return SHEAF_OK;
}
