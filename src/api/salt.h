/* Digests of cache salts. Prompts share cached keys and values only within equal digests, so one tenant must
 * not be able to find a salt that collides with another's: SipHash with a key drawn when the process starts,
 * or, where prompts are kept on disk, once for the directory. */
#ifndef SLUICE_API_SALT_H
#define SLUICE_API_SALT_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Never all zeros, which stands for no salt. */
void salt_digest(const char *salt, size_t len, uint64_t digest[2]);

/* Digests from now on use the key in this file, which is made (for the user alone) if there is none. Before
 * any digest and any other thread that makes one. -1 and *e if the file is neither readable nor can be made.
 */
int salt_use_key_file(const char *path, struct err *e);

/* SipHash-2-4 with 128 bits of output, for the test against its published vectors. */
void siphash128(const uint64_t key[2], const uint8_t *data, size_t len, uint64_t out[2]);

#endif
