/* What `split` and `graph` tell about the plan behind a context. */
#ifndef SHEAF_LAUNCH_PLANS_H
#define SHEAF_LAUNCH_PLANS_H

#include "launch/json.h"

typedef struct plan_summary {
    bool known;                /* false on a single device: there is no plan */
    int collectives_per_layer; /* of the layer that has most */
    int collectives, reshards, pieces;
    const sheaf_plan *plan; /* lives until the context's next graph */
    int nodes;
} plan_summary;

/* Builds the graph of `tokens` tokens and looks at its plan. */
sheaf_status plan_summarize(session *s, int tokens, plan_summary *out);

#endif
