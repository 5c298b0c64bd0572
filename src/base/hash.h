/* A 128-bit hash of bytes, about as fast as memory: it finds things and notices damage. Not a secret-keeping
 * hash: whoever chooses the bytes can make two inputs agree, so where that matters the content is compared
 * too.
 *
 *   struct hash h;
 *   hash_init(&h);
 *   hash_add(&h, data, n);      as often as needed; only the joined bytes matter
 *   hash_end(&h, out); */
#ifndef SLUICE_BASE_HASH_H
#define SLUICE_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

struct hash {
    uint64_t lane[4];
    unsigned char tail[32]; /* [n % 32] bytes that do not fill a stripe yet */
    uint64_t n;             /* bytes added */
};

void hash_init(struct hash *h);
void hash_add(struct hash *h, const void *data, size_t n);
void hash_end(const struct hash *h, uint64_t out[2]);

#endif
