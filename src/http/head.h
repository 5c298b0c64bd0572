/* Parsing the head of an HTTP/1.x request. Strict where leniency lets two programs read one message
 * differently (lengths, line ends, folded headers), since a proxy may stand before us. */
#ifndef SLUICE_HTTP_HEAD_H
#define SLUICE_HTTP_HEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HTTP_MAX_HEADERS 256

struct http_header {
    const char *name, *value;
};

/* All strings point into one buffer and end in NUL. */
struct http_head {
    char *buffer; /* owned */
    const char *method;
    const char *path;  /* percent-decoded, without the query */
    const char *query; /* what follows the ?, as it was sent; "" if nothing */
    struct http_header headers[HTTP_MAX_HEADERS];
    int n_headers;
    int64_t content_length; /* -1 = none */
    bool chunked, keep_alive, expects_continue, is_http10;
};

/* Parses text [len], which ends in the blank line. Returns 0, or the HTTP status that refuses it with the
 * reason in *why (a literal). Free with http_head_free in either case. */
int http_head_parse(struct http_head *h, const char *text, size_t len, const char **why);
void http_head_free(struct http_head *h);

/* The value of the first header of that name (any case), or NULL. */
const char *http_head_get(const struct http_head *h, const char *name);

#endif
