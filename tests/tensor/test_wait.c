/* Waiting: nobody sleeps through a change, whoever wakes and however late.
 *
 * A lost wake-up shows as a hang, so each test here ends by its timeout when it fails. */
#include "tensor/wait.h"
#include "tests/support/support.h"

#include <criterion/criterion.h>
#include <pthread.h>

enum { THREADS = 5, ROUNDS = 4000 };

typedef struct relay {
    sheaf_word turn;     /* whose turn it is, counted on */
    sheaf_word barrier;  /* changes when all have arrived */
    atomic_uint arrived; /* at the barrier */
    int64_t spin_ns;
} relay;

typedef struct runner {
    relay *r;
    unsigned index;
    unsigned wrong; /* changes that came in another order than they were made */
} runner;

/* Sleeping or spinning until the counter has come to `turn`. */
static void wait_for(sheaf_word *w, unsigned turn, int64_t spin_ns) {
    for (;;) {
        unsigned now = sheaf_word_get(w);
        if ((int)(now - turn) >= 0) return;
        sheaf_word_wait(w, now, spin_ns);
    }
}

/* Each in turn moves the word on while the others sleep on different values of it. */
static void *run_relay(void *arg) {
    runner *me = arg;
    relay *r = me->r;
    for (unsigned k = 0; k < ROUNDS; k++) {
        unsigned turn = k * THREADS + me->index;
        wait_for(&r->turn, turn, r->spin_ns);
        if (sheaf_word_get(&r->turn) != turn) me->wrong++;
        sheaf_word_set(&r->turn, turn + 1);
    }
    return NULL;
}

/* The last of them to arrive lets the others go: the waker is another one each time, and can be late. */
static void *run_barrier(void *arg) {
    runner *me = arg;
    relay *r = me->r;
    for (unsigned k = 0; k < ROUNDS; k++) {
        unsigned epoch = sheaf_word_get(&r->barrier);
        if (atomic_fetch_add(&r->arrived, 1) + 1 == THREADS) {
            atomic_store(&r->arrived, 0);
            sheaf_word_set(&r->barrier, epoch + 1);
        } else {
            sheaf_word_wait(&r->barrier, epoch, r->spin_ns);
        }
        if (sheaf_word_get(&r->barrier) - epoch > 2) me->wrong++;
    }
    return NULL;
}

/* Sleepers look at a counter beside the word; whoever counts nudges. */
static void *run_nudges(void *arg) {
    runner *me = arg;
    relay *r = me->r;
    for (unsigned k = 0; k < ROUNDS; k++) {
        unsigned target = (k + 1) * THREADS;
        atomic_fetch_add(&r->arrived, 1);
        sheaf_word_nudge(&r->barrier);
        for (;;) {
            unsigned epoch = sheaf_word_get(&r->barrier);
            bool announced = sheaf_word_announce(&r->barrier, epoch);
            if ((int)(atomic_load(&r->arrived) - target) >= 0) break;
            if (announced) sheaf_word_sleep(&r->barrier, epoch, -1);
        }
    }
    return NULL;
}

static unsigned run_all(void *(*body)(void *), int64_t spin_ns) {
    relay r = {.spin_ns = spin_ns};
    runner runners[THREADS];
    pthread_t threads[THREADS];
    unsigned wrong = 0;
    for (unsigned i = 0; i < THREADS; i++) {
        runners[i] = (runner){.r = &r, .index = i};
        cr_assert_eq(pthread_create(&threads[i], NULL, body, &runners[i]), 0, "no thread");
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        wrong += runners[i].wrong;
    }
    return wrong;
}

/* Never spinning: every wait is a sleep. A little: sleeps begin while wakers are on their way. */
static const int64_t spins[] = {0, 300, 3000};

Test(wait, relay, .timeout = 60) {
    for (size_t k = 0; k < sizeof spins / sizeof *spins; k++)
        cr_expect_eq(run_all(run_relay, spins[k]), 0, "spin %ld ns: turns overtook each other", (long)spins[k]);
}

Test(wait, barrier, .timeout = 60) {
    for (size_t k = 0; k < sizeof spins / sizeof *spins; k++)
        cr_expect_eq(run_all(run_barrier, spins[k]), 0, "spin %ld ns: a barrier opened early", (long)spins[k]);
}

Test(wait, nudges, .timeout = 60) {
    for (size_t k = 0; k < sizeof spins / sizeof *spins; k++) cr_expect_eq(run_all(run_nudges, spins[k]), 0);
}

Test(wait, a_changed_word_is_not_slept_on, .timeout = 10) {
    sheaf_word w = {0};
    sheaf_word_set(&w, 7);
    cr_expect_not(sheaf_word_announce(&w, 6), "announced on a value that is past");
    sheaf_word_sleep(&w, 6, -1); /* returns at once, or this test ends by its timeout */
    cr_expect(sheaf_word_announce(&w, 7));
    sheaf_word_nudge(&w);
    cr_expect_eq(sheaf_word_get(&w), 8, "a nudge moves the word only when somebody announced");
    sheaf_word_nudge(&w);
    cr_expect_eq(sheaf_word_get(&w), 8);
}

Test(wait, a_sleep_ends_by_its_time, .timeout = 10) {
    sheaf_word w = {0};
    int64_t start = sheaf_now_ns();
    while (sheaf_now_ns() - start < 20000000) sheaf_word_sleep(&w, 0, 20000000);
    cr_expect_lt(sheaf_now_ns() - start, 5000000000, "slept far beyond its time");
}
