/* The registry of architectures: general.architecture -> weights and graph. A family is one file that exports a
 * model_arch, a row of MODEL_FAMILIES, and a split table in splitstate/tables/. */
#include "models/model_internal.h"

#include <string.h>

#define X(id, text) &model_##id,
static const model_arch *const known[] = {MODEL_FAMILIES(X) NULL};
#undef X

#define X(id, text) ", " text
static const char names[] = MODEL_FAMILIES(X);
#undef X

const char *sheaf_known_architectures(void) { return names + 2; /* behind the first comma */ }

sheaf_status model_arch_find(sheaf_str name, const char *path, const model_arch **out) {
    for (size_t i = 0; known[i]; i++)
        if (strlen(known[i]->name) == name.n && !memcmp(known[i]->name, name.s, name.n)) {
            *out = known[i];
            return SHEAF_OK;
        }
    char text[64];
    return sheaf_fail(SHEAF_E_UNSUPPORTED, "%s: architecture \"%s\" not supported (known: %s)", path,
                      sheaf_str_text(name, text, sizeof text), sheaf_known_architectures());
}
