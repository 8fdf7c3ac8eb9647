/* A CPU device's threads: a team that lives as long as a backend of the device does, its barrier,
 * and the command ring that feeds it (queue.c).
 *
 * One team, one ring: all queues of a device share them, in the order of posting. That order is one
 * in which every wait refers to an earlier record, so no queue can block another for ever as long as
 * whoever posts meeting commands (collectives) to several devices posts them to all before the next.
 * Every team thread walks every command; thread i of n does its part of it. */
#ifndef SHEAF_CPU_TEAM_H
#define SHEAF_CPU_TEAM_H

#include "backends/backend.h"
#include "backends/cpu/topology.h"
#include "tensor/wait.h"

#include <pthread.h>
#include <stdalign.h>

/* All n threads meet. The last to arrive may do something alone before it lets the others go:
 *     if (cpu_barrier_enter(b)) { alone(); cpu_barrier_release(b); } */
typedef struct cpu_barrier {
    alignas(64) atomic_uint arrived;
    alignas(64) sheaf_word epoch;
    unsigned n;
    const atomic_llong *spin_ns;
} cpu_barrier;

void cpu_barrier_init(cpu_barrier *b, int n, const atomic_llong *spin_ns);
bool cpu_barrier_enter(cpu_barrier *b);
void cpu_barrier_release(cpu_barrier *b);
static inline void cpu_barrier_wait(cpu_barrier *b) {
    if (b->n > 1 && cpu_barrier_enter(b)) cpu_barrier_release(b);
}

typedef struct cpu_team cpu_team;
typedef struct cpu_command cpu_command;

enum { CPU_RING = 1024 };                 /* commands that may wait; posting blocks beyond */
enum { CPU_THREAD_SCRATCH = 512 * 1024 }; /* bytes that each thread has for itself */

typedef enum cpu_command_kind {
    CPU_CMD_RUN,    /* a prepared graph */
    CPU_CMD_CALL,   /* a function on every thread */
    CPU_CMD_COPY,   /* bytes */
    CPU_CMD_RECORD, /* an event happens here */
    CPU_CMD_WAIT,   /* nothing later starts before an event */
    CPU_CMD_QUIT,   /* threads end */
} cpu_command_kind;

typedef struct cpu_queue cpu_queue;
typedef struct cpu_event cpu_event;

struct cpu_command {
    cpu_command_kind kind;
    cpu_queue *queue; /* whose failure this command's is; NULL: nobody's */
    union {
        struct {
            struct cpu_program *program;
            void *const *addr;
            void *scratch;
        } run;
        struct {
            sheaf_queue_fn fn;
            void *ctx;
        } call;
        struct {
            void *dst;
            const void *src;
            size_t size;
        } copy;
        struct {
            sheaf_event *event;
            unsigned ticket;
        } event;
    } u;
};

struct cpu_team {
    int n_threads;
    pthread_t *threads;
    struct cpu_worker *workers;
    char *scratch; /* n_threads * CPU_THREAD_SCRATCH */
    cpu_barrier barrier;
    alignas(64) sheaf_word head; /* commands posted */
    alignas(64) sheaf_word done; /* commands finished by all threads */
    pthread_mutex_t post;        /* who posts */
    const struct cpu_kernels *kernels;
    struct cpu_faults *faults;
    atomic_llong spin_ns; /* how long a thread spins; 0 when oversubscribed */
    cpu_command ring[CPU_RING];
};

/* Where the threads of a team run: cores [core0, core0 + n_cores) of the topology; bind false: anywhere. */
typedef struct cpu_team_place {
    const cpu_topology *topology;
    int core0, n_cores;
    bool bind;
} cpu_team_place;

/* Starts n threads. SHEAF_E_NO_MEMORY when threads or memory are not to be had; nothing stays behind. */
sheaf_status cpu_team_new(int n_threads, const cpu_team_place *place, int64_t spin_ns,
                          const struct cpu_kernels *kernels, struct cpu_faults *faults, cpu_team **out);
/* Ends the threads after all posted commands. */
void cpu_team_free(cpu_team *t);
/* Appends a command; blocks while the ring is full. Returns the number of commands posted so far. */
unsigned cpu_team_post(cpu_team *t, const cpu_command *c);
/* The same under a held t->post (the host device posts to several idle teams at once). */
unsigned cpu_team_post_locked(cpu_team *t, const cpu_command *c);
/* True when every posted command is finished. Call under t->post to keep it so. */
bool cpu_team_idle(cpu_team *t);
/* Waits (sleeping) until command number `ticket` is finished. */
void cpu_team_wait(cpu_team *t, unsigned ticket);
/* Executes one command as thread i of the team; queue.c. `seq` is the command's number. */
void cpu_command_execute(cpu_team *t, const cpu_command *c, unsigned seq, int i);
/* What is left to do when all threads have executed it; the last of them calls this alone. */
void cpu_command_end(const cpu_command *c);

#endif
