/* What the GGUF reader's own files share. Not for other rooms: those include tensor/gguf.h.
 *
 *   gguf_source.c  bytes of one file: opening, a growing header buffer, reading, mapping
 *   gguf_parse.c   header bytes -> entries and tensor infos of one file, all validated
 *   gguf_index.c   name -> number, hashed
 *   gguf_shards.c  one file or a whole split set -> sheaf_gguf
 *   gguf.c         lookups on the result
 *   gguf_foreign.c types that can only be looked at
 *
 * Positions in a header are 32-bit (GGUF_MAX_HEADER), because the header buffer moves while it grows
 * and 4 bytes a string keep the index smaller than the strings themselves.
 */
#ifndef SHEAF_TENSOR_GGUF_INTERNAL_H
#define SHEAF_TENSOR_GGUF_INTERNAL_H

#include "tensor/gguf.h"

/* Metadata beyond this is refused: real headers stay under 20 MiB, and a lying length in a large file
 * must not make us hold that file in memory. */
#define GGUF_MAX_HEADER ((uint64_t)1 << 30)

typedef struct gguf_entry {
    uint32_t key_at, key_n; /* the key's bytes */
    uint32_t value_at;      /* scalar, or a string's length field, or the first array element */
    uint32_t value_end;     /* where the next key begins */
    uint8_t type, element;  /* sheaf_gguf_type; element of arrays only */
    uint32_t first_string;  /* arrays of strings: where its positions begin in gguf_file.strings */
    int64_t n;              /* array length */
} gguf_entry;

/* Names -> numbers. The items stay where they are and are asked for their names. */
typedef sheaf_str (*gguf_name_fn)(const void *items, uint32_t i);
typedef struct gguf_index {
    uint64_t *slots; /* hash << 32 | item + 1; 0: free */
    uint64_t mask, seed;
} gguf_index;

typedef struct gguf_file {
    char *path;
    int fd;       /* -1: bytes in memory */
    bool foreign; /* opened to be looked at: types without kernels may occur */
    uint64_t size;
    const uint8_t *head; /* header bytes; `owned` of a file, the caller's for memory */
    uint8_t *owned;
    uint64_t loaded; /* how many bytes of it are there */
    void *map;       /* whole file, or NULL */

    uint32_t version, alignment;
    uint64_t data_offset;
    gguf_entry *entries;
    uint32_t n_entries, cap_entries;
    uint32_t *strings; /* position of each array string's length field */
    uint32_t n_strings, cap_strings;
    sheaf_gguf_tensor *tensors; /* moved into sheaf_gguf once all shards are there */
    uint32_t *name_at;          /* while parsing: the header buffer still moves */
    uint32_t n_tensors, cap_tensors;
    gguf_index keys;
} gguf_file;

struct sheaf_gguf {
    gguf_file *files; /* by shard number; metadata is that of files[0] */
    int n_files;
    sheaf_gguf_tensor *tensors;
    uint32_t n_tensors;
    gguf_index names;
};

typedef struct gguf_foreign_type {
    uint32_t id;
    const char *name;
    int32_t block, bytes;
} gguf_foreign_type;
const gguf_foreign_type *gguf_foreign(uint32_t id); /* NULL: no such type is known */

/* Opens a regular file read-only and learns its size. On failure nothing is held. */
sheaf_status gguf_file_open(gguf_file *f, const char *path);
sheaf_status gguf_file_memory(gguf_file *f, const void *bytes, size_t size);
void gguf_file_close(gguf_file *f); /* also of a half-made or zeroed one */
/* Makes header bytes [0, end) readable at f->head; end <= f->size is the caller's check. */
sheaf_status gguf_file_load(gguf_file *f, uint64_t end);
/* Gives back header memory beyond `end` bytes: nothing more will be loaded. */
void gguf_file_trim(gguf_file *f, uint64_t end);
/* Reads [offset, offset + n) of the file. Returns bytes got (short at the end of the file) or -1 with errno. */
int64_t gguf_file_pread(const gguf_file *f, uint64_t offset, void *dst, uint64_t n);
sheaf_status gguf_file_map(gguf_file *f);
/* SHEAF_E_IO when the file is no longer as long as when it was opened. */
sheaf_status gguf_file_same_size(const gguf_file *f);

/* Reads and validates the whole header of an opened file. */
sheaf_status gguf_parse(gguf_file *f);

/* Builds the index of n items. SHEAF_E_FORMAT when a name occurs twice (the pair in twice[], no text). */
sheaf_status gguf_index_build(gguf_index *x, gguf_name_fn name, const void *items, uint32_t n, uint32_t twice[2]);
int64_t gguf_index_find(const gguf_index *x, gguf_name_fn name, const void *items, sheaf_str wanted); /* -1: absent */
void gguf_index_free(gguf_index *x);
bool gguf_str_equal(sheaf_str a, sheaf_str b);

sheaf_str gguf_key_name(const void *file, uint32_t i);       /* gguf_name_fn over a gguf_file's keys */
sheaf_str gguf_tensor_name(const void *tensors, uint32_t i); /* gguf_name_fn over sheaf_gguf_tensor[] */
/* A scalar's or string's value at `at` of a parsed header (no checks: parse made them). */
void gguf_value_at(const gguf_file *f, uint8_t type, uint32_t at, sheaf_gguf_value *out);
/* Bytes of a scalar of this type; 0 for strings, arrays and unknown ids. */
uint32_t gguf_scalar_bytes(uint32_t type);
const char *gguf_type_text(uint32_t type);
/* The integer at key `key` of one file; SHEAF_E_NOT_FOUND without text when absent. */
sheaf_status gguf_file_int(const gguf_file *f, const char *key, int64_t *out);

static inline uint32_t gguf_u32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static inline uint64_t gguf_u64(const uint8_t *p) { return (uint64_t)gguf_u32(p) | (uint64_t)gguf_u32(p + 4) << 32; }

#endif
