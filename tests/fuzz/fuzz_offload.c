/* A file of the offload directory whose content is the input, read by somebody who wants one certain block:
 * either the file is that block's, byte for byte as it would be written, or it is a miss, and never more is
 * written than the buffer holds. The first 4 bytes of the input are not part of the file: they choose whose
 * name it gets, so that seeds of both kinds find their reader. */
#include "fuzz.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sched/offload_file.h"

enum { TOKENS = 48, BYTES = 200 };

/* The block that is wanted, and its file as offload_file_write makes it [*size]. */
static unsigned char *the_file(int dir, const struct offload_file *want, const unsigned char *data,
                               size_t *size)
{
    char name[OFFLOAD_NAME];
    offload_file_name(want->kind, want->key, name);
    fuzz_check(offload_file_write(dir, want, data) == 0, "a file can be written");
    *size = offload_file_size(want);
    unsigned char *bytes = malloc(*size);
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
    fuzz_check(fd >= 0 && read(fd, bytes, *size) == (ssize_t)*size, "it can be read");
    close(fd);
    return bytes;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int32_t tokens[TOKENS];
    unsigned char block[BYTES], *got = malloc(BYTES); /* exact, so that ASan sees one byte more */
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = i * 7 + 1;
    for (int i = 0; i < BYTES; i++)
        block[i] = (unsigned char)(i * 31);
    if (size < 4) {
        free(got);
        return 0;
    }
    const struct offload_file want = {.kind = data[0] % 2 ? OFFLOAD_STATE : OFFLOAD_KV,
                                      .model = {1, 2},
                                      .key = {3, 4},
                                      .salt = {5, 6},
                                      .tokens = tokens,
                                      .n_tokens = TOKENS,
                                      .bytes = BYTES};
    char name[OFFLOAD_NAME];
    offload_file_name(want.kind, want.key, name);
    fuzz_file(name, data + 4, size - 4);
    int dir = open(fuzz_file(NULL, NULL, 0), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    fuzz_check(dir >= 0, "the folder is there");
    enum offload_result r = offload_file_read(dir, &want, got);
    size_t true_size;
    unsigned char *true_file = the_file(dir, &want, block, &true_size);
    bool same = size - 4 == true_size && memcmp(data + 4, true_file, true_size) == 0;
    if (r == OFFLOAD_OK) { /* other data with a checksum that fits is a file of somebody else's writing */
        fuzz_check(size - 4 == true_size, "a file of another size is a miss");
        fuzz_check(memcmp(data + 4, true_file, 80) == 0, "a file of another block is a miss");
        fuzz_check(memcmp(data + 4 + 96, tokens, sizeof tokens) == 0, "a file of other tokens is a miss");
    }
    if (same)
        fuzz_check(r == OFFLOAD_OK && memcmp(got, block, BYTES) == 0, "the file that was written is a hit");
    free(true_file);
    free(got);
    close(dir);
    return 0;
}
