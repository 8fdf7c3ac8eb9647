/* Fuzzes chat templates: the input is a template, rendered with a small conversation. Whatever it
 * is, there is a text with spans inside it, or an error that says why. */
#include "models/text/text.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

static const char VARIABLES[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"S\\u00e4 \"},{\"role\":\"user\",\"content\":\" hi\\n\"},"
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"a\":[1,2."
    "5,true]}}}]}],"
    "\"tools\":[{\"name\":\"f\"}],\"add_generation_prompt\":true,\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sheaf_template *t;
    sheaf_rendered r;
    const sheaf_chat chat = {.json = VARIABLES, .json_n = sizeof(VARIABLES) - 1, .now = "0"};
    sheaf_error_clear();
    if (sheaf_template_new((const char *)data, size, &t)) {
        if (!sheaf_error()[0]) abort();
        return 0;
    }
    sheaf_status s = sheaf_template_render(t, &chat, &r);
    if (s && !sheaf_error()[0]) abort();
    if (!s) {
        size_t last = 0;
        for (size_t i = 0; i < r.n_input; i++) {
            if (r.input[i].begin < last || r.input[i].end <= r.input[i].begin || r.input[i].end > r.n) abort();
            last = r.input[i].end;
        }
        sheaf_rendered_free(&r);
    }
    sheaf_template_free(t);
    return 0;
}
