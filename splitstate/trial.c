/* A split table tried on a tensor list. */
#include "splitstate/policy_internal.h"

#include <string.h>

struct sheaf_trial {
    sheaf_policy *policy;
    sheaf_tensor_list *list;
    sheaf_arena *arena;         /* runs of the layouts */
    sheaf_placement *placement; /* one a tensor of the list */
    sheaf_shares shares;
};

static sheaf_status open_table(sheaf_trial *t, const char *table) {
    const char *architecture = sheaf_tensor_list_architecture(t->list);
    if (table) return sheaf_policy_new(table, strlen(table), &t->policy);
    if (architecture) return sheaf_policy_builtin(architecture, &t->policy);
    return sheaf_fail(SHEAF_E_NOT_FOUND, "tensor list: no general.architecture, and no split table was given");
}

static sheaf_status place(sheaf_trial *t, int32_t n_devices, const float *weights) {
    int n;
    const sheaf_named *tensors = sheaf_tensor_list_items(t->list, &n);
    const sheaf_policy_env env = {
        .get = sheaf_tensor_list_get, .ctx = t->list, .weights = weights, .n_devices = n_devices, .pack_rows = 1};
    sheaf_status s = sheaf_arena_new((size_t)1 << 14, &t->arena);
    if (s) return s;
    t->placement = sheaf_arena_alloc(t->arena, (size_t)n * sizeof *t->placement);
    if (!t->placement) return sheaf_arena_status(t->arena);
    return sheaf_policy_place(t->policy, &env, tensors, n, t->arena, t->placement, &t->shares);
}

sheaf_status sheaf_trial_new(const char *table, const char *list, int32_t n_devices, const float *weights,
                             sheaf_trial **out) {
    *out = NULL;
    sheaf_trial *t = sheaf_calloc(1, sizeof *t);
    if (!t) return sheaf_fail(SHEAF_E_NO_MEMORY, "trying a split table");
    sheaf_status s = sheaf_tensor_list_new(list, strlen(list), &t->list);
    if (!s) s = open_table(t, table);
    if (!s) s = place(t, n_devices, weights);
    if (s) {
        sheaf_trial_free(t);
        return s;
    }
    *out = t;
    return SHEAF_OK;
}

void sheaf_trial_free(sheaf_trial *t) {
    if (!t) return;
    sheaf_policy_free(t->policy);
    sheaf_tensor_list_free(t->list);
    sheaf_arena_free(t->arena);
    sheaf_free(t);
}

const sheaf_placement *sheaf_trial_placement(const sheaf_trial *t, const char *name) {
    int n;
    const sheaf_named *tensors = sheaf_tensor_list_items(t->list, &n);
    for (int i = 0; i < n; i++)
        if (strcmp(tensors[i].name, name) == 0) return &t->placement[i];
    return NULL;
}

const sheaf_shares *sheaf_trial_shares(const sheaf_trial *t) { return &t->shares; }
