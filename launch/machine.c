/* What this machine can read per second: the wall that decode runs against (`sheaf bench machine`, and the
 * closing line of every run). The limit is the best of several patterns, because which one wins differs by CPU. */
#include <pthread.h>
#include <string.h>

#include "launch/launch.h"

enum { MAX_READERS = 64, LINE = 64 };

/* Where the readers of a pass start together: those that were made wait until all are, or until it is off. */
typedef struct start_line {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int waiting, expected;
    bool off;        /* not all threads could be made: nobody reads */
    double begin_ms; /* when the last one came */
} start_line;

typedef struct reader {
    pthread_t thread;
    const char *data;
    size_t bytes;
    int pattern, rounds;
    start_line *start;
    double end_ms;
    uint64_t sum;
} reader;

/* True when all have come and the pass is on. */
static bool line_up(start_line *l) {
    pthread_mutex_lock(&l->lock);
    if (++l->waiting == l->expected) {
        l->begin_ms = now_ms();
        pthread_cond_broadcast(&l->changed);
    }
    while (l->waiting < l->expected && !l->off) pthread_cond_wait(&l->changed, &l->lock);
    bool on = !l->off;
    pthread_mutex_unlock(&l->lock);
    return on;
}

static void call_off(start_line *l) {
    pthread_mutex_lock(&l->lock);
    l->off = true;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

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
    if (!line_up(r->start)) return NULL;
    for (int i = 0; i < r->rounds; i++) r->sum += patterns[r->pattern](r->data, r->bytes);
    r->end_ms = now_ms();
    return NULL;
}

/* One pass of all threads over the buffer; milliseconds, or a negative number if threads cannot be made. */
static double one_pass(reader *readers, int threads, const char *data, size_t bytes, int pattern, int rounds) {
    start_line start = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, threads, false, 0};
    size_t share = bytes / (size_t)threads / 256 * 256;
    int made = 0;
    double end = -1;
    for (int i = 0; i < threads; i++)
        readers[i] = (reader){
            .data = data + (size_t)i * share, .bytes = share, .pattern = pattern, .rounds = rounds, .start = &start};
    while (made < threads - 1 && !pthread_create(&readers[made].thread, NULL, reader_main, &readers[made])) made++;
    if (made < threads - 1) {
        call_off(&start);
    } else {
        (void)reader_main(&readers[threads - 1]);
        end = readers[threads - 1].end_ms;
    }
    for (int i = 0; i < made; i++) {
        pthread_join(readers[i].thread, NULL);
        if (end >= 0 && readers[i].end_ms > end) end = readers[i].end_ms;
    }
    return end < 0 ? -1 : (end - start.begin_ms) / rounds;
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
    /* a buffer that sits in a cache is read several times a pass: waking the threads must not be what is measured */
    int rounds = bytes < (size_t)32 << 20 ? (int)(((size_t)32 << 20) / bytes) : 1;
    double best = 0, until = now_ms() + 60;
    for (int round = 0; round < 2 || now_ms() < until; round++) {
        double ms = one_pass(readers, threads, data, bytes, round % N_PATTERNS, rounds);
        double rate = ms > 0 ? (double)bytes / ms / 1e6 : 0;
        if (rate > best) best = rate;
        if (round > 500) break;
    }
    sheaf_free(data);
    *gbs = best;
    return SHEAF_OK;
}
