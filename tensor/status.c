/* Status names and this thread's error text.
 *
 * Owns: two thread-local buffers (text, hint). Used through tensor/status.h. Never allocates, never
 * fails: an error about lack of memory must still be told. Does not print: the caller at the top
 * decides where an error goes. */
#include "tensor/status.h"

#include <stdio.h>
#include <string.h>

static _Thread_local char text[SHEAF_ERROR_MAX];
static _Thread_local char hint[SHEAF_ERROR_MAX];

/* A switch over the table: one place per column, and no array indexed by a negative number. */
const char *sheaf_status_name(sheaf_status s) {
    switch (s) {
#define X(name, value, words, exit_code)                                                                               \
    case SHEAF_##name: return "SHEAF_" #name;
        SHEAF_STATUS_TABLE(X)
#undef X
    }
    return "SHEAF_?";
}

const char *sheaf_status_text(sheaf_status s) {
    switch (s) {
#define X(name, value, words, exit_code)                                                                               \
    case SHEAF_##name: return words;
        SHEAF_STATUS_TABLE(X)
#undef X
    }
    return "unknown status";
}

int sheaf_status_exit_code(sheaf_status s) {
    switch (s) {
#define X(name, value, words, exit_code)                                                                               \
    case SHEAF_##name: return exit_code;
        SHEAF_STATUS_TABLE(X)
#undef X
    }
    return 6;
}

/* Cuts `s` (a string that filled its buffer) where a UTF-8 character begins, so that a cut message
 * stays printable. Bytes that are no UTF-8 are left: at most three are looked at. */
static void cut_at_character(char *s) {
    size_t n = strlen(s), start = n;
    for (int back = 0; back < 3 && start > 0 && ((unsigned char)s[start - 1] & 0xc0) == 0x80; back++) start--;
    if (start == 0) return;
    unsigned char lead = (unsigned char)s[start - 1];
    size_t want = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
    if (want > 1 && n - (start - 1) < want) s[start - 1] = 0;
}

static void format_into(char *out, const char *format, va_list args) {
    char fresh[SHEAF_ERROR_MAX]; /* the arguments may point into `out` itself */
    int n = vsnprintf(fresh, sizeof fresh, format, args);
    if (n < 0) fresh[0] = 0;
    if (n >= (int)sizeof fresh) cut_at_character(fresh);
    memcpy(out, fresh, strlen(fresh) + 1);
}

sheaf_status sheaf_fail(sheaf_status s, const char *format, ...) {
    va_list args;
    va_start(args, format);
    format_into(text, format, args);
    va_end(args);
    hint[0] = 0;
    return s;
}

sheaf_status sheaf_error_context(sheaf_status s, const char *format, ...) {
    char prefix[SHEAF_ERROR_MAX], whole[SHEAF_ERROR_MAX];
    va_list args;
    va_start(args, format);
    format_into(prefix, format, args);
    va_end(args);
    size_t n = strlen(prefix);
    memcpy(whole, prefix, n);
    int more = snprintf(whole + n, sizeof whole - n, ": %s", text[0] ? text : sheaf_status_text(s));
    if (more < 0) return s;
    if ((size_t)more >= sizeof whole - n) cut_at_character(whole);
    memcpy(text, whole, strlen(whole) + 1);
    return s;
}

sheaf_status sheaf_error_hint(sheaf_status s, const char *format, ...) {
    va_list args;
    va_start(args, format);
    format_into(hint, format, args);
    va_end(args);
    return s;
}

const char *sheaf_error(void) { return text; }

const char *sheaf_error_hint_text(void) { return hint; }

void sheaf_error_clear(void) {
    text[0] = 0;
    hint[0] = 0;
}

void sheaf_error_save(sheaf_error_box *box, sheaf_status s) {
    box->status = s;
    memcpy(box->text, text, strlen(text) + 1);
    memcpy(box->hint, hint, strlen(hint) + 1);
}

sheaf_status sheaf_error_restore(const sheaf_error_box *box) {
    size_t n = strnlen(box->text, sizeof box->text - 1);
    memcpy(text, box->text, n);
    text[n] = 0;
    n = strnlen(box->hint, sizeof box->hint - 1);
    memcpy(hint, box->hint, n);
    hint[n] = 0;
    return box->status;
}
