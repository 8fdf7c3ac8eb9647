/* The slow halves of waiting. */
#include "tensor/wait.h"

#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LOOKS_A_CLOCK = 128 }; /* the clock is read rarely: it costs more than the look at the word */

enum { LEAST_NS = 10000 }; /* about what a sleep and a wake-up cost */

static _Thread_local int64_t patience; /* of this thread; 0: it has not waited yet */

static const uint64_t ASLEEP = (uint64_t)1 << 32;

/* The half of the word that the kernel compares. */
static uint32_t *futex_of(sheaf_word *w) {
    uint32_t *half = (uint32_t *)(void *)&w->bits;
    return __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? half : half + 1;
}

bool sheaf_spin_more(sheaf_spin *s) {
    if (s->most <= 0) return false;
    sheaf_relax();
    if (++s->looks % LOOKS_A_CLOCK) return true;
    int64_t now = sheaf_now_ns();
    if (!s->began) {
        if (!patience) patience = s->most;
        s->began = now;
        s->until = now + (patience < s->most ? patience : s->most);
    }
    return now < s->until;
}

void sheaf_spin_slept(const sheaf_spin *s) {
    if (!s->began) return;
    bool enough = sheaf_now_ns() - s->began <= s->most;
    patience = enough ? 2 * patience : patience / 2;
    if (patience > s->most) patience = s->most;
    if (patience < LEAST_NS) patience = LEAST_NS;
}

bool sheaf_word_announce(sheaf_word *w, unsigned old) {
    uint64_t bits = atomic_load(&w->bits);
    while ((unsigned)bits == old) {
        if (bits & ASLEEP || atomic_compare_exchange_weak(&w->bits, &bits, bits | ASLEEP)) return true;
    }
    return false;
}

void sheaf_word_sleep(sheaf_word *w, unsigned old, int64_t timeout_ns) {
    struct timespec ts = {.tv_sec = timeout_ns / 1000000000, .tv_nsec = timeout_ns % 1000000000};
    if (!sheaf_word_announce(w, old)) return;
    syscall(SYS_futex, futex_of(w), FUTEX_WAIT_PRIVATE, old, timeout_ns < 0 ? NULL : &ts, NULL, 0);
}

void sheaf_word_wake(sheaf_word *w) { syscall(SYS_futex, futex_of(w), FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0); }

void sheaf_word_nudge(sheaf_word *w) {
    uint64_t bits = atomic_load(&w->bits);
    do {
        if (!(bits & ASLEEP)) return;
    } while (!atomic_compare_exchange_weak(&w->bits, &bits, (uint32_t)(bits + 1)));
    sheaf_word_wake(w);
}

static bool spin_then_sleep(sheaf_word *w, unsigned old, sheaf_spin *spin) {
    do {
        if (sheaf_word_get(w) != old) return false;
    } while (sheaf_spin_more(spin));
    while (sheaf_word_get(w) == old) sheaf_word_sleep(w, old, -1);
    return true;
}

void sheaf_word_wait(sheaf_word *w, unsigned old, int64_t spin_ns) {
    sheaf_spin spin = sheaf_spin_new(spin_ns);
    if (spin_then_sleep(w, old, &spin)) sheaf_spin_slept(&spin);
}

void sheaf_word_idle(sheaf_word *w, unsigned old, int64_t spin_ns) {
    sheaf_spin spin = sheaf_spin_new(spin_ns);
    spin_then_sleep(w, old, &spin);
}
