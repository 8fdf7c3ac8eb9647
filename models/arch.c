/* The registry of architectures: general.architecture -> weights and graph. A family is one file that
 * exports a model_arch, a row here, and a split table in splitstate/tables/. */
#include "models/model_internal.h"

#include <string.h>

static const model_arch *const known[] = {&model_deepseek2, &model_gemma2,   &model_gemma3, &model_gpt2, &model_gpt_oss,
                                          &model_llama,     &model_olmo2,    &model_olmoe,  &model_phi3, &model_qwen2,
                                          &model_qwen3,     &model_qwen3moe, NULL};

const char *sheaf_known_architectures(void) {
    return "deepseek2, gemma2, gemma3, gpt2, gpt-oss, llama, olmo2, olmoe, phi3, qwen2, qwen3, qwen3moe";
}

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
