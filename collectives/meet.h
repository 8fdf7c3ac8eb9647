/* Where members meet: a counter of arrivals that only grows.
 *
 * Each member arrives once a meeting; a meeting of n members is over when the counter has reached its
 * target (n times its number). One word tells everybody, so a waiter looks at one cache line however many
 * members there are, and only the arrival that completes a meeting has anybody to wake.
 *
 * A meeting that is *broken* stays so: the counter freezes, so it either reached a target for all waiters
 * or for none. That is what makes a failure appear to every member in the same step.
 *
 *     meet_arrive(m, target);
 *     if (meet_wait(m, target, &pace, timeout_ns) != MEET_DONE) ...
 *
 * A waiter spins, then sleeps, so that more members than cores still progress (tensor/wait.h).
 * Does not know what members are, nor why a meeting broke: failure.c does. Threads: any. */
#ifndef SHEAF_COLLECTIVES_MEET_H
#define SHEAF_COLLECTIVES_MEET_H

#include "tensor/wait.h"

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define MEET_BROKEN_BIT ((uint64_t)1 << 63)

typedef struct meet {
    alignas(64) _Atomic uint64_t count; /* arrivals; MEET_BROKEN_BIT once broken */
    alignas(64) sheaf_word epoch;       /* what sleepers sleep on: changes with each wake */
} meet;

typedef enum meet_state { MEET_WAITING, MEET_DONE, MEET_BROKEN, MEET_LATE } meet_state;

/* How long a waiter spins before it sleeps; 0 where threads outnumber cores. */
typedef struct meet_pace {
    int64_t spin_ns;
} meet_pace;

/* A completed meeting counts as completed even if a later one broke. */
static inline meet_state meet_look(meet *m, uint64_t target) {
    uint64_t count = atomic_load(&m->count);
    if ((count & ~MEET_BROKEN_BIT) >= target) return MEET_DONE;
    return count & MEET_BROKEN_BIT ? MEET_BROKEN : MEET_WAITING;
}

/* Wakes every sleeper, if there is one. */
void meet_wake(meet *m);
/* Counts one arrival, and wakes when that completes `target`. False when broken: nothing was counted. */
bool meet_arrive(meet *m, uint64_t target);
/* Freezes the counter and wakes all. */
void meet_break(meet *m);
/* Back to no arrivals. Nobody may be inside. */
void meet_reset(meet *m);
/* MEET_DONE, MEET_BROKEN, or MEET_LATE after `timeout_ns` (the meeting is then still open). */
meet_state meet_wait(meet *m, uint64_t target, const meet_pace *pace, int64_t timeout_ns);

#endif
