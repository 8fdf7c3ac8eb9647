/* Errors, log, memory and settings. */
#include "tensor/settings.h"
#include "tests/support/support.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

Test(status, names_texts_and_exit_codes_come_from_one_table, .timeout = 10) {
    static const struct {
        sheaf_status status;
        const char *name, *text;
        int exit_code;
    } rows[] = {
#define X(name, value, text, exit_code) {(sheaf_status)(value), "SHEAF_" #name, text, exit_code},
        SHEAF_STATUS_TABLE(X)
#undef X
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        expect_text(sheaf_status_name(rows[i].status), rows[i].name);
        expect_text(sheaf_status_text(rows[i].status), rows[i].text);
        expect_int(sheaf_status_exit_code(rows[i].status), rows[i].exit_code);
    }
    expect_text(sheaf_status_name((sheaf_status)-99), "SHEAF_?");
    expect_int(sheaf_status_exit_code((sheaf_status)-99), 6);
}

Test(status, text_gathers_context_on_the_way_up, .timeout = 10) {
    expect_int(sheaf_fail(SHEAF_E_FORMAT, "data ends at byte %d", 912), SHEAF_E_FORMAT);
    expect_int(sheaf_error_context(SHEAF_E_FORMAT, "%s", "blk.3.attn_q.weight"), SHEAF_E_FORMAT);
    sheaf_error_context(SHEAF_E_FORMAT, "loading %s", "m.gguf");
    expect_text(sheaf_error(), "loading m.gguf: blk.3.attn_q.weight: data ends at byte 912");
    sheaf_error_hint(SHEAF_E_FORMAT, "fetch it %s", "again");
    expect_text(sheaf_error_hint_text(), "fetch it again");
    sheaf_fail(SHEAF_E_IO, "other");
    expect_text(sheaf_error_hint_text(), ""); /* a hint belongs to its error */
    sheaf_fail(SHEAF_E_IO, "<%s>", sheaf_error());
    expect_text(sheaf_error(), "<other>"); /* its own text may be an argument */
    sheaf_error_clear();
    expect_text(sheaf_error(), "");
    sheaf_error_context(SHEAF_E_IO, "reading");
    expect_text(sheaf_error(), "reading: input/output error");
}

/* Is `s` whole UTF-8 characters? (Enough for two- to four-byte ones of one kind.) */
static bool whole_characters(const char *s, const char *character) {
    size_t n = strlen(character), length = strlen(s);
    if (length % n != 0) return false;
    for (size_t i = 0; i < length; i += n) {
        if (memcmp(s + i, character, n) != 0) return false;
    }
    return true;
}

Test(status, long_text_is_cut_at_a_character, .timeout = 10) {
    static const char *const characters[] = {"x", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x8c\xbe"};
    for (size_t i = 0; i < sizeof characters / sizeof *characters; i++) {
        char wide[3 * SHEAF_ERROR_MAX] = "";
        size_t n = strlen(characters[i]);
        for (size_t at = 0; at + n < sizeof wide - 1; at += n) memcpy(wide + at, characters[i], n + 1);
        sheaf_fail(SHEAF_E_IO, "%s", wide);
        cr_assert(whole_characters(sheaf_error(), characters[i]), "cut inside a character of %zu bytes", n);
        size_t length = strlen(sheaf_error());
        cr_assert(length < SHEAF_ERROR_MAX && length + n >= SHEAF_ERROR_MAX, "%zu bytes are kept of %zu", length,
                  strlen(wide));
        sheaf_error_context(SHEAF_E_IO, "%s", characters[i]);
        cr_assert(strlen(sheaf_error()) < SHEAF_ERROR_MAX, "context grew the text to %zu", strlen(sheaf_error()));
    }
}

static void *fail_elsewhere(void *box) {
    sheaf_error_save(box, sheaf_fail(SHEAF_E_DEVICE, "from the worker"));
    return NULL;
}

Test(status, text_is_of_its_thread_and_travels_in_a_box, .timeout = 10) {
    sheaf_error_box box;
    pthread_t worker;
    sheaf_fail(SHEAF_E_IO, "mine");
    expect_int(pthread_create(&worker, NULL, fail_elsewhere, &box), 0);
    pthread_join(worker, NULL);
    expect_text(sheaf_error(), "mine");
    expect_int(sheaf_error_restore(&box), SHEAF_E_DEVICE);
    expect_text(sheaf_error(), "from the worker");
}

/* --- log --- */

static char last_line[256];
static int n_lines;

static void sink(void *ctx, sheaf_log_level level, const char *line) {
    (void)ctx;
    n_lines++;
    snprintf(last_line, sizeof last_line, "%d %s", (int)level, line);
}

Test(log, lines_above_the_level_are_dropped, .timeout = 10) {
    n_lines = 0;
    sheaf_log_set(sink, NULL, SHEAF_LOG_INFO);
    expect_int(sheaf_log_get_level(), SHEAF_LOG_INFO);
    sheaf_log(SHEAF_LOG_INFO, "%s %d", "shard", 3);
    sheaf_log(SHEAF_LOG_DEBUG, "not this");
    sheaf_log_set(NULL, NULL, SHEAF_LOG_WARN);
    expect_int(n_lines, 1);
    expect_text(last_line, "2 shard 3");
}

/* --- memory --- */

Test(memory, sizes_that_wrap_are_refused, .timeout = 10) {
    size_t huge[] = {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 64, (size_t)PTRDIFF_MAX + 1};
    for (size_t i = 0; i < sizeof huge / sizeof *huge; i++) {
        cr_assert(sheaf_malloc(huge[i]) == NULL, "malloc of %zu", huge[i]);
        cr_assert(sheaf_calloc(1, huge[i]) == NULL, "calloc of %zu", huge[i]);
        cr_assert(sheaf_realloc(NULL, huge[i]) == NULL, "realloc of %zu", huge[i]);
        cr_assert(sheaf_aligned_alloc(64, huge[i]) == NULL, "aligned_alloc of %zu", huge[i]);
    }
    cr_assert(sheaf_calloc(SIZE_MAX / 2, 3) == NULL, "calloc wrapped");
    cr_assert(sheaf_aligned_alloc(24, 8) == NULL, "alignment 24 is no power of two");
    void *empty = sheaf_malloc(0);
    cr_assert(empty != NULL, "no bytes is not no memory");
    sheaf_free(empty);
}

/* Case C15: size + align - 1 must not wrap to something small. */
Test(memory, padding_that_wraps_is_an_error, .timeout = 10) {
    static const struct {
        size_t size, align;
        bool ok;
        size_t padded;
    } rows[] = {
        {0, 64, true, 0},
        {1, 64, true, 64},
        {64, 64, true, 64},
        {65, 64, true, 128},
        {7, 1, true, 7},
        {SIZE_MAX, 64, false, 0},
        {SIZE_MAX - 1, 64, false, 0},
        {SIZE_MAX - 62, 64, false, 0},
        {SIZE_MAX - 63, 64, true, SIZE_MAX - 63},
        {SIZE_MAX, 1, true, SIZE_MAX},
        {8, 0, false, 0},
        {8, 3, false, 0},
        {0, 0, false, 0},
        {1, (size_t)1 << 63, true, (size_t)1 << 63},
        {((size_t)1 << 63) + 1, (size_t)1 << 63, false, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t padded = 0;
        bool ok = sheaf_align_up(rows[i].size, rows[i].align, &padded);
        cr_assert(ok == rows[i].ok && padded == rows[i].padded, "row %zu: %d %zu, expected %d %zu", i, ok, padded,
                  rows[i].ok, rows[i].padded);
    }
}

static bool count_only(void *ctx, size_t size) {
    *(size_t *)ctx += size;
    return true;
}

Test(memory, hook_sees_every_allocation, .timeout = 10) {
    size_t bytes = 0;
    sheaf_alloc_hook(count_only, &bytes);
    void *p = sheaf_malloc(10), *q = sheaf_calloc(3, 5), *r = sheaf_aligned_alloc(64, 7);
    p = sheaf_realloc(p, 20);
    char *s = sheaf_strdup("four");
    sheaf_alloc_hook(NULL, NULL);
    expect_int(bytes, 10 + 15 + 7 + 20 + 5);
    expect_int((uintptr_t)r % 64, 0);
    expect_text(s, "four");
    sheaf_free(p), sheaf_free(q), sheaf_free(r), sheaf_free(s), sheaf_free(NULL);
}

/* --- settings: read once a process, so each look is a child's, which reports by exit code --- */

typedef int (*look_fn)(void);

static int in_child(const char *name, const char *value, look_fn look) {
    pid_t child = fork();
    if (child == 0) {
        if (value) {
            setenv(name, value, 1);
        } else {
            unsetenv(name);
        }
        _exit(look());
    }
    int status = 0;
    cr_assert(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status), "the child did not end well");
    return WEXITSTATUS(status);
}

static int spin_of(void) { return sheaf_settings_error() ? 255 : (int)sheaf_settings()->spin_us; }

static int error_names_it(void) {
    return sheaf_settings_error() == SHEAF_E_ARGUMENT && strstr(sheaf_error(), "SHEAF_SPIN_US") != NULL &&
           sheaf_settings()->spin_us == 2000;
}

static int error_survives_reading(void) {
    sheaf_fail(SHEAF_E_IO, "before");
    sheaf_settings();
    return strcmp(sheaf_error(), "before") == 0;
}

static int level_is_portable(void) { return strcmp(sheaf_settings()->cpu_level, "portable") == 0; }

Test(settings, values_come_from_the_environment_or_the_table, .timeout = 30) {
    expect_int(in_child("SHEAF_SPIN_US", NULL, spin_of), 2000 % 256);
    expect_int(in_child("SHEAF_SPIN_US", "", spin_of), 2000 % 256);
    expect_int(in_child("SHEAF_SPIN_US", "7", spin_of), 7);
    expect_int(in_child("SHEAF_CPU_LEVEL", "portable", level_is_portable), 1);
    expect_int(in_child("SHEAF_CPU_LEVEL", NULL, level_is_portable), 0);
}

Test(settings, bad_values_are_named_and_the_default_stands, .timeout = 30) {
    static const char *const bad[] = {"x", "7x", "-1", "1000001", "99999999999999999999", "1.5"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_assert(in_child("SHEAF_SPIN_US", bad[i], error_names_it) == 1, "SHEAF_SPIN_US=%s was not reported", bad[i]);
    }
    expect_int(in_child("SHEAF_SPIN_US", "x", error_survives_reading), 1);
}

/* 1 if rows end, all texts are there, and the spin row is among them. */
static int rows_are_whole(void) {
    const char *name, *value, *def, *help;
    int n = 0, found = 0;
    while (sheaf_settings_row(n, &name, &value, &def, &help)) {
        if (!name[0] || !help[0] || !value || !def) return 0;
        found += strcmp(name, "SHEAF_SPIN_US") == 0 && strcmp(def, "2000") == 0 && strcmp(value, "7") == 0;
        n++;
    }
    return found == 1 && n > 5 && !sheaf_settings_row(-1, &name, &value, &def, &help);
}

Test(settings, rows_list_the_whole_table, .timeout = 10) {
    expect_int(in_child("SHEAF_SPIN_US", "7", rows_are_whole), 1);
}
