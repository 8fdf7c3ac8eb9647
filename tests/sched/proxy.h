/* A device that passes everything on to a CPU device, but refuses ops: an accelerator with gaps. */
#ifndef SHEAF_TESTS_PROXY_H
#define SHEAF_TESTS_PROXY_H

#include "backends/backend.h"

typedef struct proxy {
    sheaf_device device; /* first: a proxy is a device */
    sheaf_backend backend;
    sheaf_device *inner;
    sheaf_backend *inner_backend;
    uint32_t refused; /* bit (1 << op) */
    int runs;         /* since it was opened */
    int fail_run;     /* this run (1: the next) fails with SHEAF_E_DEVICE; 0: none */
    bool busy;        /* was run, and not waited for since */
    const struct proxy *other;
    int beside; /* runs that began while `other` was busy */
} proxy;

sheaf_status proxy_open(proxy *p, const char *name, sheaf_device *inner);
void proxy_close(proxy *p);

#endif
