/* `sheaf graph`: the plan compiled for a model, without reading a weight. */
#include "launch/plans.h"

#include <stdlib.h>
#include <string.h>

/* "ffn_out-12" belongs to layer 12; -1: to none. */
static int layer_of(const char *name) {
    const char *dash = strrchr(name, '-');
    char *end;
    if (!dash || !dash[1]) return -1;
    long n = strtol(dash + 1, &end, 10);
    return *end || n < 0 || n > 100000 ? -1 : (int)n;
}

static int most_per_layer(const sheaf_plan_info *info) {
    int most = 0;
    for (int i = 0; i < info->n_collectives; i++) {
        int layer = layer_of(info->collectives[i].tensor), count = 0;
        for (int k = 0; layer >= 0 && k < info->n_collectives; k++)
            count += layer_of(info->collectives[k].tensor) == layer;
        if (count > most) most = count;
    }
    return most;
}

sheaf_status plan_summarize(session *s, int tokens, plan_summary *out) {
    sheaf_graph *g = NULL;
    sheaf_backend *b = NULL;
    memset(out, 0, sizeof *out);
    sheaf_status status = sheaf_context_graph(s->context, tokens, tokens, &g);
    if (status) return status;
    out->nodes = g->n_nodes;
    for (int i = 0;; i++) {
        const sheaf_prepared *p = sheaf_sched_prepared(sheaf_context_sched(s->context), i, &b);
        if (!p) return SHEAF_OK;
        if (!sheaf_meta_is(b->device)) continue;
        sheaf_plan_info info = sheaf_plan_get_info(sheaf_meta_plan(p));
        out->known = true;
        out->plan = sheaf_meta_plan(p);
        out->collectives += info.n_collectives;
        out->reshards += info.n_reshards;
        out->pieces += info.n_pieces;
        int most = most_per_layer(&info);
        if (most > out->collectives_per_layer) out->collectives_per_layer = most;
    }
}

static const char *kind_name(sheaf_comm_kind k) {
    static const char *const names[] = {"allreduce", "allgather", "broadcast", "send", "recv", "barrier"};
    return (unsigned)k < sizeof names / sizeof *names ? names[k] : "?";
}

static sheaf_status print_json(const plan_summary *sum) {
    jdoc d = j_new(false);
    sheaf_plan_info info = {0};
    if (sum->plan) info = sheaf_plan_get_info(sum->plan);
    j_integer(&d, d.root, "nodes", sum->nodes);
    j_integer(&d, d.root, "subgraphs", sum->plan ? info.n_pieces : 1);
    cJSON *list = j_array(&d, d.root, "collectives");
    for (int i = 0; i < info.n_collectives; i++) {
        const sheaf_plan_collective *c = &info.collectives[i];
        cJSON *row = j_object(&d, list, NULL);
        j_string(&d, row, "tensor", c->tensor);
        j_string(&d, row, "op", kind_name(c->kind));
        j_integer(&d, row, "bytes", (int64_t)c->bytes);
        (void)j_array(&d, row, "delayed_over"); /* sums of fixed order are moved past nothing */
        j_bool(&d, row, "fused_add", c->fused_add);
        j_bool(&d, row, "fused_norm", c->fused_norm);
    }
    list = j_array(&d, d.root, "reshards");
    for (int i = 0; i < info.n_reshards; i++) {
        const sheaf_plan_reshard *r = &info.reshards[i];
        char from[256], to[256];
        cJSON *row = j_object(&d, list, NULL);
        j_string(&d, row, "tensor", r->tensor);
        j_string(&d, row, "from", sheaf_layout_text(&r->from, from, sizeof from));
        j_string(&d, row, "to", sheaf_layout_text(&r->to, to, sizeof to));
        j_integer(&d, row, "bytes", (int64_t)r->bytes);
        j_string(&d, row, "rule", r->rule ? r->rule : "");
        j_string(&d, row, "node", r->node);
    }
    j_number(&d, d.root, "plan_us", info.compile_us);
    return j_print(&d, false);
}

static sheaf_status print_plan(session *s, const options *o, const plan_summary *sum) {
    if (o->json) return print_json(sum);
    if (!sum->plan) {
        if (o->dot)
            return sheaf_fail(SHEAF_E_ARGUMENT,
                              "options: --dot: it draws the plan of several devices, and there is one");
        printf("one device: %d nodes in one piece, no collectives\n", sum->nodes);
        return sheaf_sched_print(sheaf_context_sched(s->context), o->explain ? 2 : 1, stdout);
    }
    if (o->dot) return sheaf_plan_print(sum->plan, SHEAF_PLAN_DOT, stdout);
    sheaf_status status = sheaf_plan_print(sum->plan, o->explain ? SHEAF_PLAN_EXPLAIN : SHEAF_PLAN_STEPS, stdout);
    if (!status)
        printf("%d nodes, %d pieces, %d collectives (%d a layer), %d reshards\n", sum->nodes, sum->pieces,
               sum->collectives, sum->collectives_per_layer, sum->reshards);
    return status;
}

sheaf_status cmd_graph(const options *o) {
    session s;
    plan_summary sum;
    if (o->memory)
        return sheaf_error_hint(sheaf_fail(SHEAF_E_ARGUMENT, "options: --memory: graph has no such picture yet"),
                                "sheaf split --memory prints the bytes of each device");
    sheaf_status status =
        session_open(&s, o, o->n_devices ? o->devices[0] : NULL, SESSION_MODEL | SESSION_CONTEXT | SESSION_NO_DATA);
    /* compiling is a step of all ranks together: they agree on the plan before it counts */
    if (!status) status = plan_summarize(&s, o->tokens, &sum);
    if (!status) status = session_leads(&s) ? print_plan(&s, o, &sum) : session_follow(&s);
    session_close(&s);
    return status;
}
