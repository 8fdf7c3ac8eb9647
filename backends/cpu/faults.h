/* Fault injection for tests: the k-th kernel, allocation or copy of a CPU device fails. Not installed. */
#ifndef SHEAF_CPU_FAULTS_H
#define SHEAF_CPU_FAULTS_H

#include "backends/backend.h"

#include <stdatomic.h>

/* Each counts down; the operation that takes it from 1 to 0 fails. 0: no fault. */
typedef struct cpu_faults {
    atomic_int kernel; /* steps of a program, counted by the team's first thread */
    atomic_int alloc;  /* buffers of the device's type */
    atomic_int copy;   /* set, get and queued copies */
} cpu_faults;

/* The counters of an open CPU device; NULL for devices of other kinds. */
cpu_faults *cpu_device_faults(sheaf_device *d);

/* Is this the operation that must fail? */
static inline bool cpu_fault_hits(atomic_int *f) {
    return atomic_load_explicit(f, memory_order_relaxed) > 0 && atomic_fetch_sub(f, 1) == 1;
}

#endif
