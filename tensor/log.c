/* The log: whole lines, to stderr or to the host program's sink.
 *
 * Owns: the sink and the level, set once at start (tensor/status.h says when). A line is formatted
 * on the stack and handed over whole, so lines of several threads do not mix. Does not keep, count
 * or rotate anything. */
#include "tensor/status.h"

#include <stdatomic.h>
#include <stdio.h>

static struct {
    sheaf_log_sink sink;
    void *ctx;
    atomic_int level;
} logger = {.level = SHEAF_LOG_WARN};

void sheaf_log_set(sheaf_log_sink sink, void *ctx, sheaf_log_level max_level) {
    logger.sink = sink;
    logger.ctx = ctx;
    atomic_store_explicit(&logger.level, (int)max_level, memory_order_release);
}

sheaf_log_level sheaf_log_get_level(void) {
    return (sheaf_log_level)atomic_load_explicit(&logger.level, memory_order_acquire);
}

void sheaf_log(sheaf_log_level level, const char *format, ...) {
    static const char *const names[] = {"error", "warning", "info", "debug", "trace"};
    if (level < SHEAF_LOG_ERROR || level > sheaf_log_get_level()) return;
    char line[2 * SHEAF_ERROR_MAX];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (n < 0) return;
    if (logger.sink) {
        logger.sink(logger.ctx, level, line);
    } else {
        fprintf(stderr, "sheaf: %s: %s\n", names[level > SHEAF_LOG_TRACE ? SHEAF_LOG_TRACE : level], line);
    }
}
