#include "http/auth.h"

#include <string.h>
#include <strings.h>

/* Compares without stopping at the first difference. */
static bool equal(const char *given, const char *key)
{
    size_t n_given = strlen(given), n_key = strlen(key);
    volatile unsigned difference = n_given != n_key;
    for (size_t i = 0; i < n_key; i++)
        difference |= (unsigned char)key[i] ^ (unsigned char)(i < n_given ? given[i] : 0);
    return difference == 0;
}

bool auth_allows_key(const char *key, const char *const *keys, int n_keys)
{
    bool allowed = n_keys == 0;
    for (int i = 0; key && i < n_keys; i++)
        allowed |= equal(key, keys[i]);
    return allowed;
}

bool auth_allows(const char *header, const char *const *keys, int n_keys)
{
    if (n_keys == 0)
        return true;
    if (!header || strncasecmp(header, "Bearer", 6) != 0 || (header[6] != ' ' && header[6] != '\t'))
        return false;
    header += 6;
    header += strspn(header, " \t");
    return auth_allows_key(header, keys, n_keys);
}

bool auth_guards(const char *path)
{
    static const char *const prefixes[] = {"/v1", "/v2", "/inference", "/cohere"};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncmp(path, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}
