/* The environment's settings, read once.
 *
 * Owns: the values, and the text of the first variable that did not parse. The only file of the
 * library that calls getenv. Does not know options of the command line: those win, in launch/. */
#include "tensor/settings.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROW_COUNT = 0
#define X(field, env, kind, def, lo, hi, help) +1
    SHEAF_SETTINGS_TABLE(X)
#undef X
};

/* Room for any 64-bit number in decimal: rows print their value without allocating. */
enum { NUMBER_MAX = 24 };

static sheaf_settings_values values;
static char numbers[ROW_COUNT][NUMBER_MAX];
static const char *shown[ROW_COUNT];
static sheaf_error_box bad;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* A variable that is set but empty counts as not set: shells make such ones easily. */
static const char *given(const char *env) {
    const char *v = getenv(env);
    return v && v[0] ? v : NULL;
}

static int64_t read_int(int row, const char *env, const char *def, int64_t lo, int64_t hi) {
    int64_t fallback = strtoll(def, NULL, 10), value = fallback;
    const char *v = given(env);
    if (v) {
        char *end;
        errno = 0;
        long long n = strtoll(v, &end, 10);
        if (errno || *end || n < lo || n > hi) {
            if (!bad.status) {
                sheaf_fail(SHEAF_E_ARGUMENT, "%s=%s: want a whole number from %lld to %lld", env, v, (long long)lo,
                           (long long)hi);
                sheaf_error_save(&bad, SHEAF_E_ARGUMENT);
            }
        } else {
            value = n;
        }
    }
    snprintf(numbers[row], NUMBER_MAX, "%lld", (long long)value);
    shown[row] = numbers[row];
    return value;
}

static const char *read_str(int row, const char *env, const char *def, int64_t lo, int64_t hi) {
    (void)lo, (void)hi;
    const char *v = given(env);
    shown[row] = v ? v : def;
    return shown[row];
}

static void read_all(void) {
    sheaf_error_box before; /* reading settings must not disturb the caller's error text */
    sheaf_error_save(&before, SHEAF_OK);
    int row = 0;
#define SHEAF_READ_INT                         read_int
#define SHEAF_READ_STR                         read_str
#define X(field, env, kind, def, lo, hi, help) values.field = SHEAF_READ_##kind(row++, env, def, lo, hi);
    SHEAF_SETTINGS_TABLE(X)
#undef X
    sheaf_error_restore(&before);
}

const sheaf_settings_values *sheaf_settings(void) {
    pthread_once(&once, read_all);
    return &values;
}

sheaf_status sheaf_settings_error(void) {
    sheaf_settings();
    return bad.status ? sheaf_error_restore(&bad) : SHEAF_OK;
}

static int64_t *place_of_int(int64_t *field) { return field; }
static int64_t *place_of_str(const char **field) {
    (void)field;
    return NULL;
}

sheaf_status sheaf_settings_set(const char *name, int64_t value) {
#define SHEAF_PLACE_INT place_of_int
#define SHEAF_PLACE_STR place_of_str
    const struct {
        const char *name;
        int64_t *place, lo, hi;
    } rows[ROW_COUNT] = {
#define X(field, env, kind, def, lo, hi, help) {env, SHEAF_PLACE_##kind(&values.field), lo, hi},
        SHEAF_SETTINGS_TABLE(X)
#undef X
    };
    sheaf_settings();
    for (int i = 0; i < ROW_COUNT; i++) {
        if (strcmp(rows[i].name, name) != 0 || !rows[i].place) continue;
        if (value < rows[i].lo || value > rows[i].hi)
            return sheaf_fail(SHEAF_E_ARGUMENT, "%s=%lld: want a whole number from %lld to %lld", name,
                              (long long)value, (long long)rows[i].lo, (long long)rows[i].hi);
        *rows[i].place = value;
        snprintf(numbers[i], NUMBER_MAX, "%lld", (long long)value);
        return SHEAF_OK;
    }
    return sheaf_fail(SHEAF_E_ARGUMENT, "%s: no setting with a whole number has this name", name);
}

bool sheaf_settings_row(int i, const char **name, const char **value, const char **def, const char **help) {
    static const struct {
        const char *name, *def, *help;
    } rows[ROW_COUNT] = {
#define X(field, env, kind, default_text, lo, hi, help_text) {env, default_text, help_text},
        SHEAF_SETTINGS_TABLE(X)
#undef X
    };
    if (i < 0 || i >= ROW_COUNT) return false;
    sheaf_settings();
    *name = rows[i].name;
    *value = shown[i];
    *def = rows[i].def;
    *help = rows[i].help;
    return true;
}

bool sheaf_settings_range(int i, int64_t *lo, int64_t *hi) {
    enum { KIND_INT, KIND_STR };
    static const struct {
        int kind;
        int64_t lo, hi;
    } rows[ROW_COUNT] = {
#define X(field, env, kind, def, lowest, highest, help) {KIND_##kind, lowest, highest},
        SHEAF_SETTINGS_TABLE(X)
#undef X
    };
    if (i < 0 || i >= ROW_COUNT || rows[i].kind == KIND_STR) return false;
    *lo = rows[i].lo;
    *hi = rows[i].hi;
    return true;
}

/* Each launcher sets one of these for every rank it starts; the first that holds a number wins. A rank
 * number alone (PMIx) tells that there is a launcher, not how many it started. */
int sheaf_settings_launcher_ranks(void) {
    static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};
    static const char *const marks[] = {"PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK"};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const char *v = given(sizes[i]);
        long n = v ? strtol(v, NULL, 10) : 0;
        if (n > 0 && n < INT32_MAX) return (int)n;
    }
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        if (given(marks[i])) return 0;
    }
    return -1;
}

int sheaf_settings_launcher_rank(void) {
    static const char *const ranks[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
        const char *v = given(ranks[i]);
        long n = v ? strtol(v, NULL, 10) : -1;
        if (n >= 0 && n < INT32_MAX) return (int)n;
    }
    return 0;
}
