/* Writing JSON documents with cJSON without checking every call: a `jdoc` remembers the first failure. */
#ifndef SHEAF_LAUNCH_JSON_H
#define SHEAF_LAUNCH_JSON_H

#include <cjson/cJSON.h>

#include "launch/launch.h"

typedef struct jdoc {
    cJSON *root;
    bool failed;
} jdoc;

/* Each adds to `to` under `key` (NULL: appends to an array) and returns the new item, or NULL; NULL passes. */
cJSON *j_object(jdoc *d, cJSON *to, const char *key);
cJSON *j_array(jdoc *d, cJSON *to, const char *key);
void j_number(jdoc *d, cJSON *to, const char *key, double value);
void j_integer(jdoc *d, cJSON *to, const char *key, int64_t value); /* all 64 bits, in digits */
void j_unsigned(jdoc *d, cJSON *to, const char *key, uint64_t value);
void j_string(jdoc *d, cJSON *to, const char *key, const char *value);
void j_text(jdoc *d, cJSON *to, const char *key, sheaf_str value); /* bytes: invalid UTF-8 becomes U+FFFD, NULs too */
void j_bool(jdoc *d, cJSON *to, const char *key, bool value);
void j_null(jdoc *d, cJSON *to, const char *key);

jdoc j_new(bool array);
/* Prints to stdout (one line if `line`), frees. SHEAF_E_NO_MEMORY if anything failed on the way. */
sheaf_status j_print(jdoc *d, bool line);

#endif
