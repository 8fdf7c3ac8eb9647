/* What the registry needs of the CPU backend: open devices of a parsed list, find what is there. */
#ifndef SHEAF_CPU_CPU_H
#define SHEAF_CPU_CPU_H

#include "backends/registry_internal.h"

/* The process's view of its processors, shared by all CPU devices of a registry. Opaque; made on first use. */
typedef struct cpu_host cpu_host;

sheaf_status cpu_host_new(cpu_host **out);
void cpu_host_free(cpu_host *h); /* after its devices; NULL is fine */

/* Opens every CPU item of a list: cores and threads are divided over all of them together. out[] has
 * room for the parts of all items, in order. On failure nothing stays open. */
sheaf_status cpu_devices_open(cpu_host *h, const sheaf_device_item *items, int n_items, const sheaf_open_options *opts,
                              sheaf_device **out);
/* Is `base` a host device that borrows from just these members? */
bool cpu_host_lends(const sheaf_device *base, sheaf_device *const *members, int n);
sheaf_status cpu_host_device_open(cpu_host *h, sheaf_device *const *members, int n, sheaf_device **out);
sheaf_status cpu_devices_find(cpu_host *h, sheaf_found_device *out, int max, int *n);

#endif
