/* Cross-origin requests: which web pages may call this server from a browser. Off unless origins are listed,
 * and then as the Fetch standard asks: a preflight (OPTIONS) is answered here, and replies to requests that
 * carry an Origin say whether their page may read them. */
#ifndef SLUICE_HTTP_CORS_H
#define SLUICE_HTTP_CORS_H

#include <stdbool.h>

#include "base/str.h"
#include "http/head.h"

/* Lists of names, or of "*" alone for all; borrowed. */
struct cors {
    const char *const *origins; /* [n_origins]; none = CORS is off */
    int n_origins;
    const char *const *methods; /* [n_methods]; none = all */
    int n_methods;
    const char *const *headers; /* [n_headers]; none = all */
    int n_headers;
    bool credentials; /* cookies and Authorization of the browser's own may be sent */
};

/* Appends the header lines for a reply to this request, if it is one that CORS speaks of. */
void cors_reply_headers(const struct cors *c, const struct http_head *h, struct str *out);

bool cors_is_preflight(const struct cors *c, const struct http_head *h);
/* The answer to a preflight: its status, header lines besides those above, and text. */
int cors_preflight(const struct cors *c, const struct http_head *h, struct str *headers, struct str *text);

#endif
