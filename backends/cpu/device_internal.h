/* The CPU device's own structs; private to backends/cpu/. */
#ifndef SHEAF_CPU_DEVICE_INTERNAL_H
#define SHEAF_CPU_DEVICE_INTERNAL_H

#include "backends/cpu/cpu.h"
#include "backends/cpu/faults.h"
#include "backends/cpu/program.h"
#include "backends/cpu/team.h"

struct cpu_host {
    cpu_topology *topology;
    pthread_mutex_t lock;       /* guards what follows and the devices' teams */
    int total_threads;          /* of the devices opened so far */
    struct cpu_device *devices; /* list of open ones, so that an oversubscription reaches all teams */
};

typedef struct cpu_device {
    sheaf_device base;
    cpu_host *host;
    struct cpu_device *next; /* in host->devices */
    const cpu_kernels *kernels;
    sheaf_row_kernels rows;
    sheaf_buffer_type own, mapped;
    int core0, n_cores;
    int shares;     /* devices that share this machine's memory with it, itself included */
    cpu_team *team; /* NULL while no backend is open */
    int team_users;
    cpu_faults faults;
    /* the host device only */
    bool is_host;
    struct cpu_device **members;
    int n_members;
} cpu_device;

/* A queue of a CPU device: its commands go to the team's ring; its failure is its own. */
struct cpu_queue {
    sheaf_queue base;
    cpu_team *team;
    unsigned last;        /* number of commands posted when its latest one was */
    pthread_mutex_t lock; /* guards failure */
    atomic_bool failed;
    unsigned failed_seq;
    sheaf_error_box failure;
};

struct cpu_event {
    sheaf_event base;
    atomic_uint posted; /* records posted */
    sheaf_word done;    /* records that happened */
    atomic_bool busy;   /* a worker is still touching it */
};

static inline cpu_device *cpu_device_of(sheaf_device *d) { return (cpu_device *)d; }
extern const sheaf_device_iface cpu_device_iface, cpu_host_device_iface;
extern const sheaf_buffer_type_iface cpu_own_type_iface, cpu_mapped_type_iface;
bool cpu_is_mapped_type(const sheaf_buffer_type *t);

/* A reference to the device's team, which is started for the first. */
sheaf_status cpu_team_acquire(cpu_device *d, cpu_team **out);
void cpu_team_release(cpu_device *d);

/* The kernels of the level that the options or, where they are silent, the settings ask for. */
sheaf_status cpu_choose_kernels(const sheaf_open_options *opts, const cpu_kernels **out);

sheaf_status cpu_queue_create(cpu_device *d, cpu_team *team, sheaf_queue **out);
/* Posts a run; for the backend. */
sheaf_status cpu_queue_run(sheaf_queue *q, cpu_program *p, void *const *addr, void *scratch);
sheaf_status cpu_queue_copy(sheaf_queue *q, void *dst, const void *src, size_t size);
sheaf_status cpu_event_create(cpu_device *d, sheaf_event **out);

/* backend.c of the CPU room: a backend of a queue-driven device, and the host's. */
sheaf_status cpu_backend_create(sheaf_device *d, sheaf_backend **out);
sheaf_status cpu_host_backend_create(sheaf_device *d, sheaf_backend **out);

#endif
