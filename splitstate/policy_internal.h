/* A parsed split table, shared by the parser, the cutting of groups, and placement. */
#ifndef SHEAF_SPLITSTATE_POLICY_INTERNAL_H
#define SHEAF_SPLITSTATE_POLICY_INTERNAL_H

#include "splitstate/splitstate.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

struct sheaf_builtin_table {
    const char *name, *text;
};
extern const struct sheaf_builtin_table sheaf_builtin_tables[]; /* made by the build; ends with NULLs */

typedef enum group_kind {
    GROUP_HEADS,   /* cut between query heads; KV heads follow */
    GROUP_COLUMNS, /* cut between blocks of columns */
    GROUP_ROWS,    /* cut between blocks of rows; the last may be short */
} group_kind;

enum { MAX_GROUPS = 16, MAX_PARTS = 8, MAX_KEY = 128, MAX_GROUP_NAME = 32 };

typedef struct policy_group {
    char name[MAX_GROUP_NAME];
    group_kind kind;
    char count[MAX_KEY], kv_count[MAX_KEY]; /* HEADS: keys or numbers, alternatives between '|' */
    int64_t unit;                           /* 0: chosen */
    int line;
} policy_group;

/* One stretch of a tensor's cut dimension: so many elements per query head, KV head or column. */
typedef struct policy_part {
    bool kv;
    char size[MAX_KEY];
} policy_part;

typedef struct policy_row {
    char *pattern;
    pcre2_code *code;
    int group; /* -1: mirrored */
    int axis;
    policy_part parts[MAX_PARTS];
    int n_parts, line;
} policy_row;

struct sheaf_policy {
    policy_group groups[MAX_GROUPS];
    int n_groups;
    policy_row *rows;
    int n_rows, rows_capacity;
};

/* --- cutting one group of one layer (policy_cut.c) --- */

typedef struct policy_member { /* a tensor of the cut */
    const sheaf_named *tensor;
    const policy_row *row;
    int64_t size[MAX_PARTS]; /* elements per head or column of each part */
} policy_member;

typedef struct policy_held { /* bytes of weights on one device */
    double cut;              /* which it alone holds */
    double copies;           /* KV heads, where some live on several devices */
} policy_held;

typedef struct policy_cut {
    const policy_group *group;
    int layer;
    policy_member *members;
    int n_members;
    int64_t n_q, n_kv;         /* HEADS: heads; COLUMNS and ROWS: n_q columns, n_kv 0 */
    int64_t unit;              /* heads or columns that stay together, on the model alone */
    int64_t cut_unit, kv_unit; /* the same with the buffer's packing */
    int64_t *share;            /* [n_devices] heads or columns */
    policy_held *held;         /* [n_devices] */
    double bytes_handed_out;   /* at once: a unit's */
} policy_cut;

/* Counts, sizes and units of a cut; errors name the table's line and the tensor. */
sheaf_status sheaf_policy_measure(const sheaf_policy_env *env, policy_cut *c);
/* A KV cache or the like: placed with the weights, and as long as a context is. */
bool sheaf_policy_is_state(const char *name);
/* Fills share and held; `debt` (bytes each device is owed so far) is read and updated. */
void sheaf_policy_apportion(const sheaf_policy_env *env, const double *weight, double *debt, policy_cut *c);
sheaf_status sheaf_policy_layout(const sheaf_policy_env *env, const policy_cut *c, const policy_member *m,
                                 sheaf_arena *a, sheaf_placement *out);

#endif
