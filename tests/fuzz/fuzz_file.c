#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64];
static char names[8][64]; /* files written, removed at the end */
static int n_names;

static void remove_folder(void)
{
    char path[600];
    for (int i = 0; i < n_names; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

const char *fuzz_file(const char *name, const uint8_t *data, size_t size)
{
    static char path[600];
    if (!folder[0]) {
        const char *base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
        snprintf(folder, sizeof folder, "%s/sluice-fuzz-XXXXXX", base);
        fuzz_check(mkdtemp(folder) != NULL, "a folder for the inputs");
        atexit(remove_folder);
    }
    if (!name)
        return folder;
    int known = 0;
    for (int i = 0; i < n_names; i++)
        known |= strcmp(names[i], name) == 0;
    if (!known)
        snprintf(names[n_names++], sizeof names[0], "%s", name);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    fuzz_check(f && fwrite(data, 1, size, f) == size && fclose(f) == 0, "writing the input");
    return path;
}

void fuzz_check(int holds, const char *property)
{
    if (holds)
        return;
    fprintf(stderr, "does not hold: %s\n", property);
    abort();
}
