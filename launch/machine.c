/* What this machine can read per second: the wall that decode runs against (`sheaf bench machine`, and the
 * closing line of every run). The limit is the best of several patterns, because which one wins differs by CPU. */
#include <pthread.h>
#include <string.h>

#include "launch/launch.h"

enum { MAX_READERS = 64, LINE = 64 };

typedef struct reader {
    pthread_t thread;
    const char *data;
    size_t bytes;
    int pattern;
    pthread_mutex_t *gate; /* held until it is known whether all threads could be made */
    const bool *called_off;
    pthread_barrier_t *meet;
    double end_ms;
    uint64_t sum;
} reader;

typedef uint64_t vec __attribute__((vector_size(64), aligned(64)));

/* One stream, every line loaded. */
static uint64_t read_stream(const char *p, size_t bytes) {
    vec a = {0}, b = {0}, c = {0}, d = {0};
    for (size_t i = 0; i + 4 * LINE <= bytes; i += 4 * LINE) {
        a += *(const vec *)(const void *)(p + i);
        b += *(const vec *)(const void *)(p + i + LINE);
        c += *(const vec *)(const void *)(p + i + 2 * LINE);
        d += *(const vec *)(const void *)(p + i + 3 * LINE);
    }
    a += b + c + d;
    return a[0] + a[1] + a[2] + a[3] + a[4] + a[5] + a[6] + a[7];
}

/* One stream with a near prefetch. */
static uint64_t read_prefetched(const char *p, size_t bytes) {
    vec a = {0}, b = {0}, c = {0}, d = {0};
    for (size_t i = 0; i + 4 * LINE <= bytes; i += 4 * LINE) {
        for (int k = 0; k < 4; k++) __builtin_prefetch(p + i + 1024 + (size_t)k * LINE, 0, 0);
        a += *(const vec *)(const void *)(p + i);
        b += *(const vec *)(const void *)(p + i + LINE);
        c += *(const vec *)(const void *)(p + i + 2 * LINE);
        d += *(const vec *)(const void *)(p + i + 3 * LINE);
    }
    a += b + c + d;
    return a[0] + a[1] + a[2] + a[3] + a[4] + a[5] + a[6] + a[7];
}

/* Four streams, a quarter each. */
static uint64_t read_quarters(const char *p, size_t bytes) {
    vec a = {0}, b = {0}, c = {0}, d = {0};
    size_t quarter = bytes / 4 / LINE * LINE;
    for (size_t i = 0; i < quarter; i += LINE) {
        a += *(const vec *)(const void *)(p + i);
        b += *(const vec *)(const void *)(p + quarter + i);
        c += *(const vec *)(const void *)(p + 2 * quarter + i);
        d += *(const vec *)(const void *)(p + 3 * quarter + i);
    }
    a += b + c + d;
    return a[0] + a[1] + a[2] + a[3] + a[4] + a[5] + a[6] + a[7];
}

static uint64_t (*const patterns[])(const char *, size_t) = {read_stream, read_prefetched, read_quarters};
enum { N_PATTERNS = sizeof patterns / sizeof *patterns };

static void *reader_main(void *arg) {
    reader *r = arg;
    pthread_mutex_lock(r->gate);
    bool off = *r->called_off;
    pthread_mutex_unlock(r->gate);
    if (off) return NULL;
    pthread_barrier_wait(r->meet);
    r->sum = patterns[r->pattern](r->data, r->bytes);
    r->end_ms = now_ms();
    return NULL;
}

/* One pass of all threads over the buffer; milliseconds, or a negative number if threads cannot be made. */
static double one_pass(reader *readers, int threads, const char *data, size_t bytes, int pattern) {
    pthread_barrier_t meet;
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    bool off = false;
    size_t share = bytes / (size_t)threads / 256 * 256;
    int made = 0;
    double end = 0;
    if (pthread_barrier_init(&meet, NULL, (unsigned)threads)) return -1;
    for (int i = 0; i < threads; i++)
        readers[i] = (reader){.data = data + (size_t)i * share,
                              .bytes = share,
                              .pattern = pattern,
                              .gate = &gate,
                              .called_off = &off,
                              .meet = &meet};
    pthread_mutex_lock(&gate);
    while (made < threads - 1 && !pthread_create(&readers[made].thread, NULL, reader_main, &readers[made])) made++;
    off = made < threads - 1;
    pthread_mutex_unlock(&gate);
    if (off) {
        for (int i = 0; i < made; i++) pthread_join(readers[i].thread, NULL);
        pthread_barrier_destroy(&meet);
        return -1;
    }
    pthread_barrier_wait(&meet);
    double start = now_ms();
    readers[threads - 1].sum = patterns[pattern](readers[threads - 1].data, share);
    end = now_ms();
    for (int i = 0; i < made; i++) {
        pthread_join(readers[i].thread, NULL);
        if (readers[i].end_ms > end) end = readers[i].end_ms;
    }
    pthread_barrier_destroy(&meet);
    return end - start;
}

sheaf_status machine_read_gbs(size_t bytes, int threads, double *gbs) {
    static reader readers[MAX_READERS];
    if (threads > MAX_READERS) threads = MAX_READERS;
    if (threads < 1) threads = 1;
    if (bytes > (size_t)256 << 20) bytes = (size_t)256 << 20; /* beyond every cache is enough */
    if (bytes < (size_t)threads * 4096) bytes = (size_t)threads * 4096;
    char *data = sheaf_aligned_alloc(LINE, (bytes + LINE - 1) / LINE * LINE);
    if (!data) return sheaf_fail(SHEAF_E_NO_MEMORY, "measuring the machine: %zu bytes", bytes);
    memset(data, 1, bytes);
    double best = 0, until = now_ms() + 60;
    for (int round = 0; round < 2 || now_ms() < until; round++) {
        double ms = one_pass(readers, threads, data, bytes, round % N_PATTERNS);
        double rate = ms > 0 ? (double)bytes / ms / 1e6 : 0;
        if (rate > best) best = rate;
        if (round > 500) break;
    }
    sheaf_free(data);
    *gbs = best;
    return SHEAF_OK;
}
