/* Walking a compiled program. The walk is too simple to be wrong: the thinking is in prepare.c. */
#include "backends/cpu/program.h"

#include <string.h>

_Static_assert((int)CPU_THREAD_SCRATCH >= (int)CPU_MM_SCRATCH && (int)CPU_THREAD_SCRATCH >= (int)CPU_ATTN_SCRATCH,
               "a thread's scratch must hold what a kernel asks for");

void cpu_program_free(cpu_program *p) {
    if (p) sheaf_arena_free(p->arena); /* p itself lies in it */
}

void cpu_program_walk(const cpu_program *p, const cpu_run *r, cpu_barrier *b, int ith, int nth, char *thread_scratch) {
    cpu_task t = {.run = r, .ith = ith, .nth = nth, .scratch = thread_scratch};
    for (int32_t i = 0; i < p->n_steps; i++) {
        const cpu_step *s = p->steps[i];
        if (s->barrier) cpu_barrier_wait(b);
        s->run(s, &t);
    }
}

void cpu_program_end(cpu_program *p) { memset((void *)p->counters, 0, (size_t)p->n_steps * sizeof *p->counters); }
