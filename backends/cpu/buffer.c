/* Memory of CPU devices: anonymous and 64-byte aligned, near the device's node, or a wrapped mapping. */
#include "backends/cpu/device_internal.h"

#include <string.h>

enum { BOUND_BYTES = 4 * 1024 * 1024 }; /* smaller buffers are left where they are first written */

static void own_free(sheaf_buffer *b) {
    sheaf_free(b->base);
    sheaf_free(b);
}

static void mapped_free(sheaf_buffer *b) { sheaf_free(b); }

static bool copy_fails(sheaf_buffer *b) {
    cpu_faults *f = b->type->device ? cpu_device_faults(b->type->device) : NULL;
    return f && cpu_fault_hits(&f->copy);
}

static sheaf_status memory_set(sheaf_buffer *b, sheaf_tensor *t, const void *src, size_t offset, size_t size) {
    if (copy_fails(b)) return sheaf_fail(SHEAF_E_DEVICE, "setting %s: injected fault", t->name);
    memcpy((char *)t->data + offset, src, size);
    return SHEAF_OK;
}

static sheaf_status memory_get(sheaf_buffer *b, const sheaf_tensor *t, void *dst, size_t offset, size_t size) {
    if (copy_fails(b)) return sheaf_fail(SHEAF_E_DEVICE, "reading %s: injected fault", t->name);
    memcpy(dst, (const char *)t->data + offset, size);
    return SHEAF_OK;
}

static sheaf_status memory_clear(sheaf_buffer *b, uint8_t value) {
    if (b->size) memset(b->base, value, b->size);
    return SHEAF_OK;
}

/* A mapping is a file's pages: nobody writes them. */
static sheaf_status mapped_set(sheaf_buffer *b, sheaf_tensor *t, const void *src, size_t offset, size_t size) {
    (void)src;
    (void)offset;
    (void)size;
    return sheaf_fail(SHEAF_E_UNSUPPORTED, "setting %s: %s is read only", t->name, b->type->name);
}

static sheaf_status mapped_clear(sheaf_buffer *b, uint8_t value) {
    (void)value;
    return sheaf_fail(SHEAF_E_UNSUPPORTED, "clearing a buffer: %s is read only", b->type->name);
}

static const sheaf_buffer_iface own_iface = {
    .free = own_free, .set = memory_set, .get = memory_get, .clear = memory_clear};
static const sheaf_buffer_iface mapped_iface = {
    .free = mapped_free, .set = mapped_set, .get = memory_get, .clear = mapped_clear};

sheaf_status cpu_buffer_alloc(sheaf_buffer_type *t, size_t size, sheaf_buffer **out);
sheaf_status cpu_buffer_map(sheaf_buffer_type *t, void *p, size_t size, sheaf_buffer **out);

sheaf_status cpu_buffer_alloc(sheaf_buffer_type *t, size_t size, sheaf_buffer **out) {
    cpu_device *d = t->device ? cpu_device_of(t->device) : NULL;
    if (d && cpu_fault_hits(&d->faults.alloc))
        return sheaf_fail(SHEAF_E_NO_MEMORY, "allocating %zu bytes of %s: injected fault", size, t->name);
    sheaf_buffer *b = sheaf_calloc(1, sizeof *b);
    void *base = b && size ? sheaf_pages_alloc(size) : NULL;
    if (!b || (size && !base)) {
        sheaf_free(b);
        return sheaf_fail(SHEAF_E_NO_MEMORY, "allocating %zu bytes of %s: no memory", size, t->name);
    }
    if (size >= BOUND_BYTES && d && d->host) cpu_bind_memory(d->host->topology, d->base.numa, base, size);
    *b = (sheaf_buffer){.iface = &own_iface, .type = t, .base = base, .size = size};
    *out = b;
    return SHEAF_OK;
}

sheaf_status cpu_buffer_map(sheaf_buffer_type *t, void *p, size_t size, sheaf_buffer **out) {
    if (!p && size) return sheaf_fail(SHEAF_E_ARGUMENT, "wrapping memory for %s: no address", t->name);
    sheaf_buffer *b = sheaf_calloc(1, sizeof *b);
    if (!b) return sheaf_fail(SHEAF_E_NO_MEMORY, "wrapping memory for %s: no memory", t->name);
    *b = (sheaf_buffer){.iface = &mapped_iface, .type = t, .base = p, .size = size};
    *out = b;
    return SHEAF_OK;
}
