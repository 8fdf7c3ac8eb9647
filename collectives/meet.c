/* Arrivals, waits and the futex behind them. The orders that matter, all sequentially consistent:
 * an arriver changes `count`, then reads `sleepers`; a sleeper raises `sleepers`, then reads `count`.
 * So either the sleeper sees the arrival, or the arriver sees the sleeper. */
#include "collectives/meet.h"

#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LOOKS_A_CLOCK = 64 };

void meet_wake(meet *m) {
    if (!atomic_load(&m->sleepers)) return;
    atomic_fetch_add(&m->epoch, 1);
    syscall(SYS_futex, &m->epoch, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

bool meet_arrive(meet *m, uint64_t target) {
    uint64_t count = atomic_load_explicit(&m->count, memory_order_relaxed);
    do {
        if (count & MEET_BROKEN_BIT) return false;
    } while (!atomic_compare_exchange_weak(&m->count, &count, count + 1));
    if (count + 1 >= target) meet_wake(m);
    return true;
}

void meet_break(meet *m) {
    atomic_fetch_or(&m->count, MEET_BROKEN_BIT);
    meet_wake(m);
}

void meet_reset(meet *m) { atomic_store(&m->count, 0); }

static meet_state spin(meet *m, uint64_t target, int64_t spin_ns) {
    int64_t until = 0;
    meet_state s = MEET_WAITING;
    for (unsigned i = 1; (s = meet_look(m, target)) == MEET_WAITING; i++) {
        meet_relax();
        if (i % LOOKS_A_CLOCK) continue; /* the clock costs more than the look */
        int64_t now = meet_now_ns();
        if (!until) until = now + spin_ns;
        if (now >= until) break;
    }
    return s;
}

static meet_state sleep_once(meet *m, uint64_t target, int64_t ns) {
    struct timespec ts = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    atomic_fetch_add(&m->sleepers, 1);
    unsigned epoch = atomic_load(&m->epoch);
    meet_state s = meet_look(m, target);
    if (s == MEET_WAITING) {
        syscall(SYS_futex, &m->epoch, FUTEX_WAIT_PRIVATE, epoch, &ts, NULL, 0);
        s = meet_look(m, target);
    }
    atomic_fetch_sub(&m->sleepers, 1);
    return s;
}

meet_state meet_wait(meet *m, uint64_t target, const meet_pace *pace, int64_t timeout_ns) {
    meet_state s = meet_look(m, target);
    if (s == MEET_WAITING && pace->spin_ns > 0) s = spin(m, target, pace->spin_ns);
    int64_t until = s == MEET_WAITING ? meet_now_ns() + timeout_ns : 0;
    while (s == MEET_WAITING) {
        int64_t left = until - meet_now_ns();
        if (left <= 0) return MEET_LATE;
        s = sleep_once(m, target, left);
    }
    return s;
}
