/* What `sheaf split --memory` says beforehand is what a context then has allocated, device by device. */
#include "fixture.h"
#include "golden.h"
#include "models/model.h"
#include "tests/launch/spawn.h"

enum { MOST = 8, N_CTX = 200 };

static void expect_bytes(const outcome *o, const cJSON *row, const char *key, size_t allocated) {
    double said = expect_key(o, row, key, cJSON_Number)->valuedouble;
    cr_assert(said == (double)allocated, "sheaf %s: %s of %s is %.0f, allocated were %zu", o->line, key,
              expect_key(o, row, "name", cJSON_String)->valuestring, said, allocated);
}

static void check_split(const char *path) {
    static const char *const lists[] = {"cpu", "cpu/2", "cpu/3", "cpu/5"};
    for (int i = 0; i < 4; i++) {
        outcome o =
            sheaf("split -m %s --memory --json -c %d -b 64 -ub 64 --no-mmap --devices %s", path, N_CTX, lists[i]);
        cJSON *j = expect_json(&o);
        const cJSON *rows = expect_key(&o, j, "devices", cJSON_Array);
        sheaf_registry *registry;
        sheaf_device *devices[MOST];
        sheaf_model *model;
        sheaf_context *context;
        int n;
        expect_ok(sheaf_registry_new(&registry));
        expect_ok(sheaf_devices_open(registry, lists[i], &(sheaf_open_options){.n_threads = 1}, devices, MOST, &n));
        expect_int(cJSON_GetArraySize(rows), n);
        sheaf_model_options mo = {
            .registry = registry, .devices = devices, .n_devices = n, .devices_name = lists[i], .no_mmap = true};
        sheaf_context_options co = sheaf_context_defaults();
        co.n_ctx = N_CTX;
        co.n_batch = co.n_ubatch = 64;
        co.n_best = 40; /* as `run` asks of its sampler by default */
        expect_ok(sheaf_model_load(path, &mo, &model));
        expect_ok(sheaf_context_new(model, &co, &context));
        for (int d = 0; d < n; d++) {
            const cJSON *row = cJSON_GetArrayItem(rows, d);
            sheaf_memory_row is;
            cr_assert(sheaf_context_memory(context, d, &is), "device %d", d);
            expect_text(expect_key(&o, row, "name", cJSON_String)->valuestring, is.device);
            expect_bytes(&o, row, "weight_bytes", is.weight_bytes);
            expect_bytes(&o, row, "kv_bytes", is.kv_bytes);
            expect_bytes(&o, row, "compute_bytes", is.compute_bytes);
            expect_bytes(&o, row, "staging_bytes", is.staging_bytes);
        }
        sheaf_context_free(context);
        sheaf_model_free(model);
        sheaf_registry_free(registry);
        cJSON_Delete(j);
        outcome_free(&o);
    }
}

Test(memory, split_says_what_is_allocated, .timeout = 300) { check_split(TINY); }

/* Layers with a window take less than the context is long. */
Test(memory, split_says_what_windows_take, .timeout = 300) {
    fixture_case c;
    char path[512], *folder = make_folder();
    snprintf(path, sizeof path, "%s/m.gguf", folder);
    cr_assert(!fixture_find(GOLDEN_DIR "/cases.txt", "gemma3-q8_0", &c) && !fixture_write(&c, path));
    check_split(path);
    outcome kept = sheaf("split -m %s --memory --json -c 200 -ub 16", path);
    outcome full = sheaf("split -m %s --memory --json -c 200 -ub 16 --swa-full", path);
    cJSON *k = expect_json(&kept), *f = expect_json(&full);
    const cJSON *of_kept = cJSON_GetArrayItem(expect_key(&kept, k, "devices", cJSON_Array), 0);
    const cJSON *of_full = cJSON_GetArrayItem(expect_key(&full, f, "devices", cJSON_Array), 0);
    double less = expect_key(&kept, of_kept, "kv_bytes", cJSON_Number)->valuedouble;
    double all = expect_key(&full, of_full, "kv_bytes", cJSON_Number)->valuedouble;
    cr_assert(less < all / 2, "%.0f bytes, with whole windows %.0f", less, all);
    cJSON_Delete(k);
    cJSON_Delete(f);
    outcome_free(&kept);
    outcome_free(&full);
    remove_folder(folder);
}
