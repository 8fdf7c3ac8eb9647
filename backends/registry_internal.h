/* A device list, parsed; private to backends/. */
#ifndef SHEAF_BACKENDS_REGISTRY_INTERNAL_H
#define SHEAF_BACKENDS_REGISTRY_INTERNAL_H

#include "backends/backend.h"

/* ITEM = KIND[:INDEX | :FIRST-LAST][/PARTS] (CLI.md). */
typedef struct sheaf_device_item {
    char kind[16];
    int32_t first, last; /* -1: no index given */
    int32_t parts;       /* 0: not given, which is one device that owns all of it */
} sheaf_device_item;

enum { SHEAF_MAX_ITEMS = 64, SHEAF_MAX_PARTS = 1024 };

/* Parses a whole list; SHEAF_E_ARGUMENT says what is wrong with which item. Kinds are not looked up. */
sheaf_status sheaf_device_list_parse(const char *list, sheaf_device_item *items, int max, int *n);

#endif
