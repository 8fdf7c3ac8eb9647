/* What tests of models share: a golden case written as a file, and the journey from it to a context on
 * any list of devices. */
#ifndef SHEAF_TESTS_MODEL_SUPPORT_H
#define SHEAF_TESTS_MODEL_SUPPORT_H

#include "fixture.h"
#include "golden.h"
#include "models/model.h"
#include "tests/support/expect.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

#include <math.h>

/* Under the thread sanitizer a model is fifty times slower, and races do not depend on the types of elements: there the
 * f32 cases stand for all. */
static inline bool case_is_left_out(const fixture_case *c) { return UNDER_TSAN && strcmp(c->type, "f32") != 0; }
#include <stdlib.h>
#include <unistd.h>

/* Rows of cases.txt, counted without its reader: that one ends at a line it cannot read. */
static inline int count_case_rows(void) {
    char *text = read_file(GOLDEN_DIR "/cases.txt", NULL);
    int n = 0;
    for (char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        n += *line != '#' && *line != '\n' && *line != 0;
    }
    free(text);
    return n;
}

typedef struct rig {
    char *folder, path[512];
    sheaf_registry *registry;
    sheaf_device *devices[16];
    int n_devices;
    sheaf_model_options options;
    sheaf_model *model;
    sheaf_context *context;
} rig;

/* Writes the model of a golden case into a folder of its own. */
static inline void rig_file(rig *r, const char *name) {
    fixture_case fc;
    *r = (rig){.folder = make_folder()};
    snprintf(r->path, sizeof r->path, "%s/%s.gguf", r->folder, name);
    cr_assert(fixture_find(GOLDEN_DIR "/cases.txt", name, &fc) == 0 && fixture_write(&fc, r->path) == 0,
              "case %s cannot be written", name);
}

/* Opens `devices` ("cpu", "cpu/2"); rig->options may be changed afterwards, before rig_load. One thread a
 * device, unless a test is about threads: on a crowded machine every barrier costs a time slice. */
static inline void rig_threads(rig *r, const char *devices, int32_t n_threads) {
    sheaf_open_options o = {.n_threads = n_threads};
    expect_ok(sheaf_registry_new(&r->registry));
    expect_ok(sheaf_devices_open(r->registry, devices, &o, r->devices, 16, &r->n_devices));
    r->options = (sheaf_model_options){
        .registry = r->registry, .devices = r->devices, .n_devices = r->n_devices, .devices_name = devices};
}

static inline void rig_devices(rig *r, const char *devices) { rig_threads(r, devices, 1); }

static inline void rig_load(rig *r, const sheaf_context_options *o) {
    sheaf_context_options defaults = sheaf_context_defaults();
    expect_ok(sheaf_model_load(r->path, &r->options, &r->model));
    expect_ok(sheaf_context_new(r->model, o ? o : &defaults, &r->context));
}

/* Ends the model; the file stays, so that it may be loaded again on other devices. */
static inline void rig_unload(rig *r) {
    sheaf_context_free(r->context);
    sheaf_model_free(r->model);
    sheaf_registry_free(r->registry);
    r->context = NULL;
    r->model = NULL;
    r->registry = NULL;
}

static inline void rig_end(rig *r) {
    rig_unload(r);
    remove_folder(r->folder);
}

static inline int32_t best_of(const float *row, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (row[i] > row[best]) best = i;
    return best;
}

#endif
