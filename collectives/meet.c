/* Arrivals and waits. The count is no word to sleep on (64 bits, and it changes with every arrival), so sleepers
 * sleep on the epoch: announce, look at the count, sleep; tensor/wait.h says why nobody is missed. */
#include "collectives/meet.h"

void meet_wake(meet *m) { sheaf_word_nudge(&m->epoch); }

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

static meet_state sleep_once(meet *m, uint64_t target, int64_t ns) {
    unsigned epoch = sheaf_word_get(&m->epoch);
    bool announced = sheaf_word_announce(&m->epoch, epoch);
    meet_state s = meet_look(m, target);
    if (s == MEET_WAITING && announced) sheaf_word_sleep(&m->epoch, epoch, ns);
    return meet_look(m, target);
}

meet_state meet_wait(meet *m, uint64_t target, const meet_pace *pace, int64_t timeout_ns) {
    sheaf_spin spin = sheaf_spin_new(pace->spin_ns);
    meet_state s;
    do {
        if ((s = meet_look(m, target)) != MEET_WAITING) return s;
    } while (sheaf_spin_more(&spin));
    int64_t until = sheaf_now_ns() + timeout_ns;
    while (s == MEET_WAITING) {
        int64_t left = until - sheaf_now_ns();
        if (left <= 0) return MEET_LATE;
        s = sleep_once(m, target, left);
    }
    sheaf_spin_slept(&spin);
    return s;
}
