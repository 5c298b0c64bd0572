/* Digests of cache salts. Prompts share cached keys and values only within equal digests, so one tenant must
 * not be able to find a salt that collides with another's: SipHash with a key drawn when the process starts.
 */
#ifndef SLUICE_API_SALT_H
#define SLUICE_API_SALT_H

#include <stddef.h>
#include <stdint.h>

/* Never all zeros, which stands for no salt. */
void salt_digest(const char *salt, size_t len, uint64_t digest[2]);

/* SipHash-2-4 with 128 bits of output, for the test against its published vectors. */
void siphash128(const uint64_t key[2], const uint8_t *data, size_t len, uint64_t out[2]);

#endif
