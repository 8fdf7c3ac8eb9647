/* The table of ops: one row each, checked at compile time (an op without a row does not link). */
#include "backends/cpu/program.h"

static bool always(const sheaf_tensor *node) {
    (void)node;
    return true;
}

/* Headers compute nothing: always supported, nothing to lower. */
static const cpu_op cpu_op_NONE = {always, NULL}, cpu_op_VIEW = {always, NULL}, cpu_op_RESHAPE = {always, NULL},
                    cpu_op_PERMUTE = {always, NULL}, cpu_op_TRANSPOSE = {always, NULL};

const cpu_op *cpu_op_get(sheaf_op op) {
    static const cpu_op *const table[SHEAF_OP_COUNT] = {
#define X(name, text, nsrc) [SHEAF_OP_##name] = &cpu_op_##name,
        SHEAF_OP_TABLE(X)
#undef X
    };
    return (unsigned)op < SHEAF_OP_COUNT ? table[op] : NULL;
}

bool cpu_op_supported(const sheaf_tensor *node) {
    const cpu_op *op = cpu_op_get(node->op);
    return op && op->supports(node);
}
