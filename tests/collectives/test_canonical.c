/* The canonical tree: its shape, and that no spread of devices over processes changes it. */
#include "collectives/canonical.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

/* A program as text: "((0+1)+2)". `name` gives each leaf's own text. */
static void spell(const canon_program *p, char (*name)[512], char *out) {
    static char stack[CANON_MAX_DEPTH + 1][2048];
    int top = 0;
    for (int k = 0; k < p->n; k++) {
        if (p->code[k] != CANON_ADD) {
            snprintf(stack[top++], 2048, "%s", name[p->code[k]]);
            continue;
        }
        char both[4100];
        snprintf(both, sizeof both, "(%s+%s)", stack[top - 2], stack[top - 1]);
        top--;
        memcpy(stack[top - 1], both, 2047);
    }
    strcpy(out, top ? stack[0] : "");
}

static void spell_devices(int n, uint64_t empty, char *out) {
    static char names[CANON_MAX_DEVICES][512];
    canon_node all[CANON_MAX_DEVICES];
    canon_program p;
    for (int k = 0; k < n; k++) {
        all[k] = (canon_node){k, 1};
        snprintf(names[k], 512, "%d", k);
    }
    canon_build(n, (canon_node){0, n}, empty, all, n, &p);
    spell(&p, names, out);
}

Test(canonical, trees_are_those_of_the_documentation, .timeout = 10) {
    static const struct {
        int n;
        uint64_t empty;
        const char *want;
    } cases[] = {
        {1, 0, "0"},
        {2, 0, "(0+1)"},
        {3, 0, "((0+1)+2)"},
        {4, 0, "((0+1)+(2+3))"},
        {5, 0, "(((0+1)+2)+(3+4))"},
        {6, 0, "(((0+1)+(2+3))+(4+5))"},
        {7, 0, "(((0+1)+(2+3))+((4+5)+6))"},
        {8, 0, "(((0+1)+(2+3))+((4+5)+(6+7)))"},
        {9, 0, "((((0+1)+2)+(3+4))+((5+6)+(7+8)))"},
        {3, 2, "(0+2)"},
        {4, 3, "(2+3)"},
        {5, 0x1e, "0"},
        {2, 3, ""},
    };
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        static char got[2048];
        spell_devices(cases[k].n, cases[k].empty, got);
        cr_assert_str_eq(got, cases[k].want, "n=%d empty=%lx: %s, want %s", cases[k].n, (unsigned long)cases[k].empty,
                         got, cases[k].want);
    }
}

/* Cuts n devices into two or three processes in every way, forms each process's nodes, and adds those. */
static void check_cut(int n, uint64_t empty, int a, int b) {
    static char whole[2048], glued[2048], names[CANON_MAX_DEVICES][512], own[CANON_MAX_DEVICES][512];
    canon_node nodes[CANON_MAX_DEVICES], singles[CANON_MAX_DEVICES];
    int borders[4] = {0, a, b, n}, count = 0;
    for (int k = 0; k < n; k++) {
        singles[k] = (canon_node){k, 1};
        snprintf(own[k], 512, "%d", k);
    }
    for (int r = 0; r < 3; r++) {
        int more = canon_forest(n, borders[r], borders[r + 1] - borders[r], empty, nodes + count);
        cr_assert(more <= 2 * CANON_MAX_DEPTH, "%d nodes", more);
        count += more;
    }
    for (int k = 0; k < count; k++) {
        canon_program p;
        canon_build(n, nodes[k], empty, singles, n, &p);
        spell(&p, own, names[k]);
    }
    canon_program last;
    canon_build(n, (canon_node){0, n}, empty, nodes, count, &last);
    spell(&last, names, glued);
    spell_devices(n, empty, whole);
    cr_assert_str_eq(glued, whole, "n=%d cut at %d, %d, empty=%lx: %s, want %s", n, a, b, (unsigned long)empty, glued,
                     whole);
}

Test(canonical, no_spread_over_processes_changes_the_tree, .timeout = 60) {
    for (int n = 1; n <= 17; n++) {
        for (int a = 0; a <= n; a++) {
            for (int b = a; b <= n; b++) {
                check_cut(n, 0, a, b);
                check_cut(n, 0x5 | 1u << (n - 1), a, b);
            }
        }
    }
    check_cut(64, 0, 21, 43);
    check_cut(63, 0, 1, 62);
}

Test(canonical, a_process_passes_on_few_nodes, .timeout = 10) {
    canon_node nodes[CANON_MAX_DEVICES];
    int got = canon_forest(5, 0, 3, 0, nodes);
    cr_assert(got == 1 && nodes[0].first == 0 && nodes[0].count == 3, "devices 0-2 of 5: %d nodes", got);
    got = canon_forest(64, 1, 62, 0, nodes);
    cr_assert_eq(got, 10, "devices 1-62 of 64: %d nodes, want 10", got);
}
