/* What `sheaf split --memory` says beforehand is what a context then has allocated, device by device. */
#include "models/model.h"
#include "tests/launch/spawn.h"

enum { MOST = 8, N_CTX = 200 };

static void expect_bytes(const outcome *o, const cJSON *row, const char *key, size_t allocated) {
    double said = expect_key(o, row, key, cJSON_Number)->valuedouble;
    cr_assert(said == (double)allocated, "sheaf %s: %s of %s is %.0f, allocated were %zu", o->line, key,
              expect_key(o, row, "name", cJSON_String)->valuestring, said, allocated);
}

Test(memory, split_says_what_is_allocated, .timeout = 300) {
    static const char *const lists[] = {"cpu", "cpu/2", "cpu/3", "cpu/5"};
    for (int i = 0; i < 4; i++) {
        outcome o =
            sheaf("split -m " TINY " --memory --json -c %d -b 64 -ub 64 --no-mmap --devices %s", N_CTX, lists[i]);
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
        expect_ok(sheaf_model_load(TINY, &mo, &model));
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
