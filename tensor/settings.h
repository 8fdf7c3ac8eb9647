/* The one table of settings that the environment may give (CLI.md: options win over environment).
 *
 * Read once, at the first sheaf_settings() call; immutable afterwards, so any thread may read. A
 * value that does not parse or is out of range is reported by sheaf_settings_error() and the default
 * stands. `sheaf --help-env` prints the table. Nothing else in the library calls getenv. */
#ifndef SHEAF_TENSOR_SETTINGS_H
#define SHEAF_TENSOR_SETTINGS_H

#include "tensor/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* field, environment name, kind (INT or STR), default, lowest, highest, help */
#define SHEAF_SETTINGS_TABLE(X)                                                                                        \
    X(cpu_level, "SHEAF_CPU_LEVEL", STR, "", 0, 0,                                                                     \
      "force a CPU kernel level: portable, avx2, avx512 (error if the machine lacks it)")                              \
    X(spin_us, "SHEAF_SPIN_US", INT, "2000", 0, 1000000,                                                               \
      "microseconds a thread spins in a computation before it sleeps")                                                 \
    X(same_bits, "SHEAF_SAME_BITS", INT, "1", 0, 1,                                                                    \
      "1: the same bits on any number of CPU devices; 0: plain sums, faster by what docs/performance.md says")         \
    X(sched_debug, "SHEAF_SCHED_DEBUG", INT, "0", 0, 2, "1: print splits, 2: print every node with its cause")         \
    X(sched_debug_realloc, "SHEAF_SCHED_DEBUG_REALLOC", INT, "0", 0, 2,                                                \
      "1: an unexplained reallocation is an error; 2: any is")                                                         \
    X(allreduce, "SHEAF_ALLREDUCE", STR, "", 0, 0, "pin the collective engine: shm, peer, ring, mpi, hier")            \
    X(comm_timeout_ms, "SHEAF_COMM_TIMEOUT_MS", INT, "30000", 1, 86400000,                                             \
      "a collective that takes longer fails and names the peer")                                                       \
    X(cgroup_root, "SHEAF_CGROUP_ROOT", STR, "/sys/fs/cgroup", 0, 0, "where cgroup quotas are read (tests)")           \
    X(topology, "SHEAF_TOPOLOGY", STR, "", 0, 0,                                                                       \
      "a synthetic hwloc topology to plan for (tests); binding is then off")                                           \
    X(module_dir, "SHEAF_MODULE_DIR", STR, "", 0, 0,                                                                   \
      "where modules (libsheaf-mpi.so) are found; empty: beside the library")                                          \
    X(check, "SHEAF_CHECK", INT, "0", 0, 1, "run structure checkers in release builds")

typedef struct sheaf_settings_values {
#define SHEAF_SETTING_INT(field)               int64_t field;
#define SHEAF_SETTING_STR(field)               const char *field;
#define X(field, env, kind, def, lo, hi, help) SHEAF_SETTING_##kind(field)
    SHEAF_SETTINGS_TABLE(X)
#undef X
} sheaf_settings_values;

SHEAF_API const sheaf_settings_values *sheaf_settings(void);
/* SHEAF_OK, or SHEAF_E_ARGUMENT with the first bad variable named. */
SHEAF_API sheaf_status sheaf_settings_error(void);
/* An option that wins over the environment: sets a whole-number row by its environment name. SHEAF_E_ARGUMENT outside
 * its range. Call before other threads run and before what reads the setting is opened. */
SHEAF_API sheaf_status sheaf_settings_set(const char *name, int64_t value);
/* Rows for --help-env: returns false past the end. */
SHEAF_API bool sheaf_settings_row(int i, const char **name, const char **value, const char **def, const char **help);
/* The values that row i takes; false for a row that is no number, and past the end. */
SHEAF_API bool sheaf_settings_range(int i, int64_t *lo, int64_t *hi);

/* Should a structure of that many slots be checked by its checker? In builds with SHEAF_CHECKS, else when the
 * setting `check` says so. Checkers are quadratic: what is larger than any model of the tests is left out. */
enum { SHEAF_CHECK_SLOTS = 4000 };
static inline bool sheaf_checks_on(int64_t slots) {
#ifdef SHEAF_CHECKS
    return slots <= SHEAF_CHECK_SLOTS;
#else
    return slots <= SHEAF_CHECK_SLOTS && sheaf_settings()->check != 0;
#endif
}

/* How many ranks a launcher's environment (Open MPI, PMIx, PMI) says this process is one of: -1 when there
 * is no launcher, 0 when there is one that does not say how many. */
SHEAF_API int sheaf_settings_launcher_ranks(void);
/* Which of them, before MPI is asked: 0 when no launcher says so. */
SHEAF_API int sheaf_settings_launcher_rank(void);

#ifdef __cplusplus
}
#endif
#endif
