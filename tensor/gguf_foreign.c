/* Element types that files hold and nothing here computes with yet: names and block sizes, so that such files can be
 * looked at. A type that gains kernels moves to SHEAF_TYPE_TABLE. */
#include "tensor/gguf_internal.h"

static const gguf_foreign_type types[] = {
    {15, "q8_k", 256, 292}, {16, "iq2_xxs", 256, 66}, {17, "iq2_xs", 256, 74}, {18, "iq3_xxs", 256, 98},
    {19, "iq1_s", 256, 50}, {21, "iq3_s", 256, 110},  {22, "iq2_s", 256, 82},  {29, "iq1_m", 256, 56},
    {34, "tq1_0", 256, 54}, {35, "tq2_0", 256, 66},   {40, "nvfp4", 64, 36},   {41, "q1_0", 128, 18},
    {42, "q2_0", 64, 18},
};

const gguf_foreign_type *gguf_foreign(uint32_t id) {
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].id == id) return &types[i];
    return NULL;
}

const char *sheaf_gguf_element_name(sheaf_type type) {
    const gguf_foreign_type *t = gguf_foreign((uint32_t)type);
    return t && !sheaf_type_valid(type) ? t->name : sheaf_type_name(type);
}
