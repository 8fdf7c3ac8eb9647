/* How a thread waits for a word to change: spin, then sleep on a futex.
 *
 * A waiter spins for at most `spin_ns` (0 where the threads outnumber the cores they may use, so that
 * the thread waited for gets a core) and then sleeps. It does not yield in between: a thread that
 * yields queues behind every busy stranger on its core, one that is woken goes ahead of them. On two
 * cores that builds kept busy, 5 threads met in 0.1 to 0.25 ms so; with four yields before the sleep
 * the same benchmark did not end within a minute. The one who changes the word wakes sleepers only if
 * there are any, so an uncontended change costs no system call. Words only ever grow (counters), and
 * are compared by difference, so 32 bits may wrap. */
#ifndef SHEAF_CPU_WAIT_H
#define SHEAF_CPU_WAIT_H

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A counter that others wait for. */
typedef struct cpu_word {
    atomic_uint value;
    atomic_uint sleepers;
} cpu_word;

static inline void cpu_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline int64_t cpu_now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* The slow part of a wait: sleeps until the word differs from `old`. */
void cpu_word_sleep(cpu_word *w, unsigned old);

/* Returns when the word is no longer `old`; what was written before the change is then visible. */
static inline void cpu_word_wait(cpu_word *w, unsigned old, int64_t spin_ns) {
    if (spin_ns > 0) {
        int64_t until = 0;
        for (unsigned i = 1;; i++) {
            if (atomic_load_explicit(&w->value, memory_order_acquire) != old) return;
            cpu_relax();
            if (i % 128) continue; /* the clock is read rarely: it costs more than the look at the word */
            int64_t now = cpu_now_ns();
            if (!until) until = now + spin_ns;
            if (now >= until) break;
        }
    }
    cpu_word_sleep(w, old);
}

static inline void cpu_word_wake(cpu_word *w) {
    if (atomic_load(&w->sleepers)) syscall(SYS_futex, &w->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Sets the word and wakes who sleeps on it. */
static inline void cpu_word_set(cpu_word *w, unsigned value) {
    atomic_store(&w->value, value);
    cpu_word_wake(w);
}

#endif
