/* Includes what a cmocka test needs, and finds the fixtures: the committed set in tests/fixtures, or with
 * SLUICE_FIXTURES=DIR the full set. */
#ifndef SLUICE_TESTS_UNIT_H
#define SLUICE_TESTS_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The path of a fixture, in a static buffer that the next call but three overwrites. */
static inline const char *fixture(const char *name)
{
    static char paths[4][1024];
    static int next;
    char *path = paths[next++ % 4];
    const char *dir = getenv("SLUICE_FIXTURES");
    snprintf(path, sizeof paths[0], "%s/%s", dir ? dir : SLUICE_SOURCE_DIR "/tests/fixtures", name);
    return path;
}

static inline int fixture_exists(const char *name)
{
    FILE *f = fopen(fixture(name), "rb");
    if (f)
        fclose(f);
    return f != NULL;
}

/* Skips the test, saying why, where a fixture is only in the full set. */
static inline void skip_without(const char *name)
{
    if (fixture_exists(name))
        return;
    print_message("skipped: %s is not here: it is in the full set of fixtures (SLUICE_FIXTURES)\n", name);
    skip();
}

/* The whole file at path, NUL-terminated, with its length; NULL if it cannot be read. Caller frees. */
static inline char *read_whole(const char *path, size_t *len)
{
    if (len)
        *len = 0;
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    rewind(f);
    char *data = malloc((size_t)n + 1);
    if (data && fread(data, 1, (size_t)n, f) != (size_t)n) {
        free(data);
        data = NULL;
    }
    fclose(f);
    if (data)
        data[n] = '\0';
    if (len)
        *len = (size_t)n;
    return data;
}

#endif
