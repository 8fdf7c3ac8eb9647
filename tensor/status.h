/* Status codes, the text behind them, and the log.
 *
 * Nouns: a *status* (what every fallible function returns) and its *text* (thread-local, says what
 * was being done, to what, and what was found). A caller either handles a status or returns it; on
 * the way up it may prefix the text with its own "doing what: " by sheaf_error_context().
 *
 *     if (!file) return sheaf_fail(SHEAF_E_IO, "%s: %s", path, strerror(errno));
 *     ...
 *     sheaf_status s = read_header(f);
 *     if (s) return sheaf_error_context(s, "loading %s", path);
 */
#ifndef SHEAF_TENSOR_STATUS_H
#define SHEAF_TENSOR_STATUS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SHEAF_API               __attribute__((visibility("default")))
#define SHEAF_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define SHEAF_API
#define SHEAF_PRINTF(fmt, args)
#endif

/* name, value, text, exit code of the `sheaf` command (CLI.md). 0 is done, negative is an error. */
#define SHEAF_STATUS_TABLE(X)                                                                                          \
    X(OK, 0, "done", 0)                                                                                                \
    X(IN_PROGRESS, 1, "still in progress", 6)                                                                          \
    X(E_ARGUMENT, -1, "invalid argument", 2)                                                                           \
    X(E_NO_MEMORY, -2, "out of memory", 4)                                                                             \
    X(E_IO, -3, "input/output error", 3)                                                                               \
    X(E_NO_SPACE, -4, "no space left", 4)                                                                              \
    X(E_FORMAT, -5, "malformed input", 3)                                                                              \
    X(E_UNSUPPORTED, -6, "not supported", 3)                                                                           \
    X(E_NOT_FOUND, -7, "not found", 3)                                                                                 \
    X(E_SHAPE, -8, "shapes do not fit", 3)                                                                             \
    X(E_RANGE, -9, "out of range", 3)                                                                                  \
    X(E_DEVICE, -10, "device failed", 4)                                                                               \
    X(E_NO_DEVICE, -11, "device not present", 4)                                                                       \
    X(E_PEER, -12, "peer or collective failed", 5)                                                                     \
    X(E_TIMEOUT, -13, "timed out", 5)                                                                                  \
    X(E_CANCELLED, -14, "cancelled", 130)                                                                              \
    X(E_MISMATCH, -15, "comparison does not hold", 1)                                                                  \
    X(E_INTERNAL, -16, "internal check failed", 6)

typedef enum sheaf_status {
#define X(name, value, text, exit_code) SHEAF_##name = (value),
    SHEAF_STATUS_TABLE(X)
#undef X
} sheaf_status;

/* The constant name ("SHEAF_E_IO") and text ("input/output error") of a status. Any thread. */
SHEAF_API const char *sheaf_status_name(sheaf_status s);
SHEAF_API const char *sheaf_status_text(sheaf_status s);
/* The exit code of the command for this status, as CLI.md lists them. */
SHEAF_API int sheaf_status_exit_code(sheaf_status s);

/* Sets this thread's error text and returns `s`, so that `return sheaf_fail(...)` reads well.
 * Text longer than SHEAF_ERROR_MAX-1 bytes is cut at a character border. Never fails itself. */
SHEAF_API sheaf_status sheaf_fail(sheaf_status s, const char *format, ...) SHEAF_PRINTF(2, 3);
/* Prefixes this thread's text with "<formatted>: " and returns `s`. */
SHEAF_API sheaf_status sheaf_error_context(sheaf_status s, const char *format, ...) SHEAF_PRINTF(2, 3);
/* Adds a hint line, printed after the error as "hint: ..."; replaces an earlier one. */
SHEAF_API sheaf_status sheaf_error_hint(sheaf_status s, const char *format, ...) SHEAF_PRINTF(2, 3);

/* This thread's text and hint ("" when there is none); valid until the next call that sets them. */
SHEAF_API const char *sheaf_error(void);
SHEAF_API const char *sheaf_error_hint_text(void);
SHEAF_API void sheaf_error_clear(void);

enum { SHEAF_ERROR_MAX = 1024 };

/* An error carried from one thread to another (a queue keeps its first failure so). */
typedef struct sheaf_error_box {
    sheaf_status status;
    char text[SHEAF_ERROR_MAX];
    char hint[SHEAF_ERROR_MAX];
} sheaf_error_box;
/* Copies status and this thread's text and hint into a box / makes a box's content this thread's error. */
SHEAF_API void sheaf_error_save(sheaf_error_box *box, sheaf_status s);
SHEAF_API sheaf_status sheaf_error_restore(const sheaf_error_box *box);

/* --- log: lines to stderr, or wherever the host program sends them --- */

typedef enum sheaf_log_level {
    SHEAF_LOG_ERROR = 0,
    SHEAF_LOG_WARN = 1,
    SHEAF_LOG_INFO = 2,
    SHEAF_LOG_DEBUG = 3,
    SHEAF_LOG_TRACE = 4,
} sheaf_log_level;

typedef void (*sheaf_log_sink)(void *ctx, sheaf_log_level level, const char *line);
/* Replaces the sink (NULL: stderr) and the level above which lines are dropped. Call before other
 * threads log; the default level is WARN. */
SHEAF_API void sheaf_log_set(sheaf_log_sink sink, void *ctx, sheaf_log_level max_level);
SHEAF_API sheaf_log_level sheaf_log_get_level(void);
SHEAF_API void sheaf_log(sheaf_log_level level, const char *format, ...) SHEAF_PRINTF(2, 3);

/* --- memory: every allocation of the library goes through these, so that tests can fail each in
 * turn and count those of a token. All return NULL on failure (and on a size that wraps); the
 * caller reports SHEAF_E_NO_MEMORY. Any thread. --- */

SHEAF_API void *sheaf_malloc(size_t size);
SHEAF_API void *sheaf_calloc(size_t count, size_t size);
SHEAF_API void *sheaf_realloc(void *p, size_t size);
SHEAF_API void *sheaf_aligned_alloc(size_t alignment, size_t size); /* free with sheaf_free */
/* Whole cache lines; where it is large, aligned to and advised for huge pages: what is read once a token, or written in
 * columns a page apart, spends several per cent of its time on page walks otherwise. Free with sheaf_free. */
SHEAF_API void *sheaf_pages_alloc(size_t size);
SHEAF_API char *sheaf_strdup(const char *s);
SHEAF_API void sheaf_free(void *p);
/* Test hook: called before each allocation; returning false makes it fail. NULL removes it. */
SHEAF_API void sheaf_alloc_hook(bool (*allow)(void *ctx, size_t size), void *ctx);

/* a*b and a+b that report a wrap instead of wrapping. */
static inline bool sheaf_mul_overflow(size_t a, size_t b, size_t *out) { return __builtin_mul_overflow(a, b, out); }
static inline bool sheaf_add_overflow(size_t a, size_t b, size_t *out) { return __builtin_add_overflow(a, b, out); }
/* Rounds `size` up to a multiple of `align` (a power of two). False when it wraps or `align` is not
 * a power of two (case C15). */
SHEAF_API bool sheaf_align_up(size_t size, size_t align, size_t *out);

#ifdef __cplusplus
}
#endif
#endif
