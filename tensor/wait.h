/* How a thread waits for a word that another changes: spin, then sleep on a futex; and the clock that it spins by.
 *
 * A waiter spins for at most `spin_ns` (0 where the threads outnumber the cores they may use, so that
 * the thread waited for gets a core) and then sleeps. It does not yield in between: a thread that
 * yields queues behind every busy stranger on its core, one that is woken goes ahead of them. (What a
 * meeting of a team costs on a machine is what tests/bench/bench_team.c prints.)
 *
 * How long a thread really spins it learns. Where other programs want the same cores, whoever is waited for may not run
 * for milliseconds, and spinning only takes the core from somebody. So after a wait that ended in sleep a thread looks
 * at how long it was: had spin_ns been enough, its patience doubles (up to spin_ns), else it halves.
 *
 * A word carries a flag beside its value: "somebody sleeps on this very value". Both change in one atomic
 * step, so a waker makes a system call only if somebody slept, and only the first change after that does,
 * however long the woken thread takes to run. (A flag in a variable of its own is not enough: a late waker of the
 * change before could take down the flag of one who sleeps on the next.)
 *
 * Words only ever grow (counters), and are compared by difference, so 32 bits may wrap. Threads: any. */
#ifndef SHEAF_WAIT_H
#define SHEAF_WAIT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

/* One wait of a thread, from when it began to look. Zero: none yet. */
typedef struct sheaf_spin {
    int64_t most; /* spin_ns */
    int64_t began, until;
    unsigned looks;
} sheaf_spin;

/* A wait that may spin for `spin_ns` at most. */
static inline sheaf_spin sheaf_spin_new(int64_t spin_ns) { return (sheaf_spin){.most = spin_ns}; }
/* After a look in vain: pauses; false when it is time to sleep. */
bool sheaf_spin_more(sheaf_spin *s);
/* The wait is over, after a sleep: this thread learns from it. */
void sheaf_spin_slept(const sheaf_spin *s);

/* A counter that others wait for. All zeros is a word of value 0. */
typedef struct sheaf_word {
    _Atomic uint64_t bits; /* low half: the value, which is the futex; bit 32: somebody sleeps on it */
} sheaf_word;

/* What the processor wants to hear inside a loop that only looks. */
static inline void sheaf_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Nanoseconds of the clock that never goes back. */
static inline int64_t sheaf_now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* The value; what was written before it was set is visible. */
static inline unsigned sheaf_word_get(const sheaf_word *w) {
    return (unsigned)atomic_load_explicit(&w->bits, memory_order_acquire);
}

/* Says that the caller is going to sleep on the value `old`; false: it has changed. For who waits for more than
 * the word tells: get the value, announce, look at what is waited for, then sleep. */
bool sheaf_word_announce(sheaf_word *w, unsigned old);

/* Sleeps once, unless the value differs from `old` already. Returns when woken, after `timeout_ns` (< 0: never), or
 * for no reason at all: look again. */
void sheaf_word_sleep(sheaf_word *w, unsigned old, int64_t timeout_ns);

/* The system call behind the two below. */
void sheaf_word_wake(sheaf_word *w);

/* Sets the value, which must be a new one, and wakes who sleeps on the one before. */
static inline void sheaf_word_set(sheaf_word *w, unsigned value) {
    if (atomic_exchange(&w->bits, value) >> 32) sheaf_word_wake(w);
}

/* Changes the value by one only if somebody sleeps, and wakes them: for who changed something else that they look at.
 */
void sheaf_word_nudge(sheaf_word *w);

/* Returns when the value is no longer `old`; what was written before the change is then visible. */
void sheaf_word_wait(sheaf_word *w, unsigned old, int64_t spin_ns);
/* The same for who has nothing to do: how long that takes says nothing about the machine, so nothing is learnt. */
void sheaf_word_idle(sheaf_word *w, unsigned old, int64_t spin_ns);

#endif
