/* TLS for the connections of a server: one certificate, read at the start so that a bad file fails there, and
 * again when it changes on disk if that is asked for. The connections themselves are libevent's bufferevents,
 * as without TLS; conn.c knows only that making one and closing one are different. */
#ifndef SLUICE_HTTP_TLS_H
#define SLUICE_HTTP_TLS_H

#include <event2/bufferevent.h>
#include <stdbool.h>

#include "base/error.h"

struct tls_options {
    const char *cert_file;   /* PEM, the server's own first, then the chain; NULL = no TLS */
    const char *key_file;    /* PEM; NULL = in cert_file */
    const char *ca_file;     /* PEM: who may sign the certificates of clients */
    const char *ciphers;     /* OpenSSL's list, for TLS 1.2; NULL = its default */
    int client_certificates; /* 0 = not asked for, 1 = checked where given, 2 = required */
    bool refresh;            /* read the files again when they change */
};

struct tls;

/* NULL and *e when a file is missing or wrong. The options are copied, what they point to is not. */
struct tls *tls_create(const struct tls_options *o, struct err *e);
void tls_free(struct tls *t);

/* A bufferevent that takes over the accepted socket and begins the handshake. NULL if there is no memory; the
 * socket is then still the caller's. */
struct bufferevent *tls_accept(struct tls *t, struct event_base *base, evutil_socket_t fd);
/* Tells the other side that nothing more will be written. Never waits: it may not fit, then it is not told.
 */
void tls_say_goodbye(struct bufferevent *bev);

#endif
