/* The threads of a CPU device, their barrier, and the ring that they walk.
 *
 * Life of a team thread: wait for the ring's head to pass its own position, execute that command's
 * share, meet the others, go on. Between tokens it spins briefly and then sleeps in the kernel.
 * What the commands mean is queue.c's affair. */
#include "backends/cpu/team.h"

#include "tensor/settings.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

/* With nothing to do a thread soon gives its core back: the one who decides what comes next (a sampler) needs
 * one. Inside a computation it spins for longer, since whom it waits for runs already. */
enum { IDLE_SPIN_NS = 50000 };

struct cpu_worker {
    cpu_team *team;
    cpu_team_place place;
    int index;
};

void cpu_barrier_init(cpu_barrier *b, int n, const atomic_llong *spin_ns) {
    atomic_init(&b->arrived, 0);
    atomic_init(&b->epoch.bits, 0);
    b->n = (unsigned)n;
    b->spin_ns = spin_ns;
}

bool cpu_barrier_enter(cpu_barrier *b) {
    unsigned epoch = sheaf_word_get(&b->epoch);
    if (atomic_fetch_add_explicit(&b->arrived, 1, memory_order_acq_rel) + 1 == b->n) {
        atomic_store_explicit(&b->arrived, 0, memory_order_relaxed);
        return true;
    }
    sheaf_word_wait(&b->epoch, epoch, atomic_load_explicit(b->spin_ns, memory_order_relaxed));
    return false;
}

void cpu_barrier_release(cpu_barrier *b) { sheaf_word_set(&b->epoch, sheaf_word_get(&b->epoch) + 1); }

static void *worker_main(void *arg) {
    struct cpu_worker *w = arg;
    cpu_team *t = w->team;
    if (w->place.bind) cpu_bind_thread(w->place.topology, w->place.core0, w->place.n_cores, t->n_threads, w->index);
    for (unsigned next = 0;; next++) {
        int64_t spin = atomic_load_explicit(&t->spin_ns, memory_order_relaxed);
        sheaf_word_idle(&t->head, next, spin < IDLE_SPIN_NS ? spin : IDLE_SPIN_NS);
        const cpu_command *c = &t->ring[next % CPU_RING];
        bool quit = c->kind == CPU_CMD_QUIT; /* read before the barrier: after it the slot may be reused */
        cpu_command_execute(t, c, next, w->index);
        if (cpu_barrier_enter(&t->barrier)) {
            cpu_command_end(c);
            sheaf_word_set(&t->done, next + 1);
            cpu_barrier_release(&t->barrier);
        }
        if (quit) return NULL;
    }
}

/* Waits until `done` has reached `ticket`, both counted modulo 2^32. */
void cpu_team_wait(cpu_team *t, unsigned ticket) {
    for (;;) {
        unsigned done = sheaf_word_get(&t->done);
        if ((int)(done - ticket) >= 0) return;
        sheaf_word_wait(&t->done, done, 0);
    }
}

bool cpu_team_idle(cpu_team *t) { return sheaf_word_get(&t->done) == sheaf_word_get(&t->head); }

unsigned cpu_team_post_locked(cpu_team *t, const cpu_command *c) {
    unsigned head = sheaf_word_get(&t->head);
    cpu_team_wait(t, head - (CPU_RING - 1));
    t->ring[head % CPU_RING] = *c;
    sheaf_word_set(&t->head, head + 1);
    return head + 1;
}

unsigned cpu_team_post(cpu_team *t, const cpu_command *c) {
    pthread_mutex_lock(&t->post);
    unsigned ticket = cpu_team_post_locked(t, c);
    pthread_mutex_unlock(&t->post);
    return ticket;
}

/* Starts the threads with all signals blocked: an interrupt is the program's main thread's affair. Not those that a
 * thread's own instruction raises: blocked, they end the process before the program's handler could say why (a
 * mapped file that shrank). Returns how many started. */
static int start_threads(cpu_team *t, const cpu_team_place *place) {
    sigset_t all, before;
    static const int own[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL};
    sigfillset(&all);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) sigdelset(&all, own[i]);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int started = 0;
    for (; started < t->n_threads; started++) {
        t->workers[started] = (struct cpu_worker){.team = t, .place = *place, .index = started};
        if (pthread_create(&t->threads[started], NULL, worker_main, &t->workers[started])) break;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

static void stop_threads(cpu_team *t, int started) {
    if (started < t->n_threads) t->barrier.n = (unsigned)started; /* nobody has met yet */
    if (started) cpu_team_post(t, &(cpu_command){.kind = CPU_CMD_QUIT});
    for (int i = 0; i < started; i++) pthread_join(t->threads[i], NULL);
}

static void team_release(cpu_team *t) {
    pthread_mutex_destroy(&t->post);
    sheaf_free(t->scratch);
    sheaf_free(t->workers);
    sheaf_free(t->threads);
    sheaf_free(t);
}

sheaf_status cpu_team_new(int n_threads, const cpu_team_place *place, int64_t spin_ns,
                          const struct cpu_kernels *kernels, struct cpu_faults *faults, cpu_team **out) {
    cpu_team *t = sheaf_aligned_alloc(64, sizeof *t);
    if (!t) return sheaf_fail(SHEAF_E_NO_MEMORY, "starting %d threads: no memory", n_threads);
    memset(t, 0, sizeof *t);
    t->n_threads = n_threads;
    t->kernels = kernels;
    t->faults = faults;
    atomic_init(&t->spin_ns, spin_ns);
    cpu_barrier_init(&t->barrier, n_threads, &t->spin_ns);
    pthread_mutex_init(&t->post, NULL);
    t->threads = sheaf_calloc((size_t)n_threads, sizeof *t->threads);
    t->workers = sheaf_calloc((size_t)n_threads, sizeof *t->workers);
    t->scratch = sheaf_aligned_alloc(4096, (size_t)n_threads * CPU_THREAD_SCRATCH);
    if (!t->threads || !t->workers || !t->scratch) {
        team_release(t);
        return sheaf_fail(SHEAF_E_NO_MEMORY, "starting %d threads: no memory", n_threads);
    }
    int started = start_threads(t, place);
    if (started < n_threads) {
        stop_threads(t, started);
        team_release(t);
        return sheaf_fail(SHEAF_E_NO_MEMORY, "starting %d threads: only %d could be created", n_threads, started);
    }
    *out = t;
    return SHEAF_OK;
}

void cpu_team_free(cpu_team *t) {
    if (!t) return;
    stop_threads(t, t->n_threads);
    team_release(t);
}
