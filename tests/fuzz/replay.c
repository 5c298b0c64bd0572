/* Runs a fuzz target without a fuzzer: over each seed file as it is, then over mutations of it that a fixed
 * random sequence makes, so that every run does the same. Usage: fuzz_NAME MUTATIONS FILE… */
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 0x9E3779B97F4A7C15u;

static uint64_t random_below(uint64_t n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % n;
}

/* Values that length and offset checks get wrong. */
static const uint64_t edges[] = {0,          1,          0x7F,           0xFF,       0x7FFFFFFF,
                                 0x80000000, 0xFFFFFFFF, INT64_MAX,      UINT64_MAX, (uint64_t)INT64_MAX + 1,
                                 1ull << 32, 1ull << 40, UINT64_MAX - 7, 0x3FFFFFFF, 0xFFFFFFFFFFFFFFE0u};

/* Changes copy [*size] a little: bytes, an edge value, a cut, a doubled or a dropped piece. Most changes fall
 * near the front, where headers are. */
static void mutate(uint8_t *copy, size_t *size, size_t cap)
{
    for (uint64_t changes = 1 + random_below(4); changes && *size > 0; changes--) {
        size_t span = random_below(4) ? (*size < 4096 ? *size : 4096) : *size;
        size_t at = random_below(span), n = 1 + random_below(32);
        if (n > *size - at)
            n = *size - at;
        switch (random_below(6)) {
        case 0:
            copy[at] ^= (uint8_t)(1u << random_below(8));
            break;
        case 1:
            copy[at] = (uint8_t)random_below(256);
            break;
        case 2: {
            uint64_t edge = edges[random_below(sizeof edges / sizeof edges[0])];
            memcpy(copy + at, &edge, n < 8 ? n : 8);
            break;
        }
        case 3:
            memmove(copy + at, copy + at + n, *size - at - n);
            *size -= n;
            break;
        case 4:
            if (*size + n <= cap) {
                memmove(copy + at + n, copy + at, *size - at);
                *size += n;
            }
            break;
        default:
            if (random_below(8) == 0)
                *size = at;
        }
    }
}

int main(int argc, char **argv)
{
    long mutations = argc > 2 ? strtol(argv[1], NULL, 10) : 0;
    if (argc < 3 || mutations < 1) {
        fprintf(stderr, "usage: %s MUTATIONS FILE...\n", argv[0]);
        return 2;
    }
    for (int i = 2; i < argc; i++) {
        FILE *f = fopen(argv[i], "rb");
        if (!f || fseek(f, 0, SEEK_END)) {
            fprintf(stderr, "cannot read %s\n", argv[i]);
            return 2;
        }
        size_t size = (size_t)ftell(f), cap = size + 4096;
        rewind(f);
        uint8_t *seed = malloc(size + 1), *copy = malloc(cap);
        if (!seed || !copy || fread(seed, 1, size, f) != size) {
            fprintf(stderr, "cannot read %s\n", argv[i]);
            return 2;
        }
        fclose(f);
        LLVMFuzzerTestOneInput(seed, size);
        for (long m = 0; m < mutations; m++) {
            size_t n = size;
            memcpy(copy, seed, size);
            mutate(copy, &n, cap);
            /* An exact allocation, so that ASan sees a read past the end. */
            uint8_t *input = malloc(n ? n : 1);
            memcpy(input, copy, n);
            LLVMFuzzerTestOneInput(input, n);
            free(input);
        }
        free(seed);
        free(copy);
    }
    return 0;
}
