/* API keys: "Authorization: Bearer KEY", any of several. */
#ifndef SLUICE_HTTP_AUTH_H
#define SLUICE_HTTP_AUTH_H

#include <stdbool.h>

/* True if the header's value (NULL = absent) carries one of the keys [n_keys], or if there are none. The time
 * taken tells nothing about the keys but their number and lengths. */
bool auth_allows(const char *header, const char *const *keys, int n_keys);
/* The same for a bare key. */
bool auth_allows_key(const char *key, const char *const *keys, int n_keys);
/* True for the paths that need a key. */
bool auth_guards(const char *path);

#endif
