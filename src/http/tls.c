#include "http/tls.h"

#include <event2/bufferevent_ssl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#define REFRESH_SECONDS 1 /* between two looks at the files */

/* What tells a file from its successor. */
struct file_mark {
    struct timespec changed;
    ino_t inode;
    off_t size;
};

struct tls {
    struct tls_options options;
    SSL_CTX *context;
    struct file_mark marks[3]; /* of the files that `context` was made from */
    double looked;             /* when they were last compared */
};

/* OpenSSL's reason for its last failure, in *e. */
static int tls_error(struct err *e, const char *what, const char *file)
{
    unsigned long code = ERR_peek_last_error();
    const char *why = code ? ERR_reason_error_string(code) : NULL;
    err_set(e, ERR_INVALID, "%s %s: %s", what, file, why ? why : "not readable as PEM");
    ERR_clear_error();
    return -1;
}

/* A file that is not there is said plainly, before OpenSSL says it in its own way. */
static int check_readable(const char *option, const char *file, struct err *e)
{
    FILE *f = fopen(file, "rb");
    if (!f)
        return err_set(e, ERR_IO, "%s: cannot open %s: %m", option, file);
    fclose(f);
    return 0;
}

/* Keys with a pass phrase would make OpenSSL ask on the terminal, and a server has none. */
static int no_pass_phrase(char *buf, int size, int writing, void *arg)
{
    (void)buf, (void)size, (void)writing, (void)arg;
    return -1;
}

static SSL_CTX *make_context(const struct tls_options *o, struct err *e)
{
    const char *key = o->key_file ? o->key_file : o->cert_file;
    const char *key_option = o->key_file ? "--ssl-keyfile" : "--ssl-certfile";
    SSL_CTX *c = NULL;
    if (check_readable("--ssl-certfile", o->cert_file, e) || check_readable(key_option, key, e) ||
        (o->ca_file && check_readable("--ssl-ca-certs", o->ca_file, e)))
        return NULL;
    ERR_clear_error();
    c = SSL_CTX_new(TLS_server_method());
    if (!c) {
        err_set(e, ERR_NO_MEMORY, "OpenSSL gives no context");
        return NULL;
    }
    SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION);
    /* clients that hang up without a farewell are ordinary; idle connections keep no buffers */
    SSL_CTX_set_options(c, SSL_OP_IGNORE_UNEXPECTED_EOF | SSL_OP_NO_RENEGOTIATION);
    SSL_CTX_set_mode(c, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_default_passwd_cb(c, no_pass_phrase);
    SSL_CTX_set_session_id_context(c, (const unsigned char *)"sluice", 6);
    if (SSL_CTX_use_certificate_chain_file(c, o->cert_file) != 1) {
        tls_error(e, "--ssl-certfile", o->cert_file);
        goto fail;
    }
    if (SSL_CTX_use_PrivateKey_file(c, key, SSL_FILETYPE_PEM) != 1) {
        tls_error(e,
                  o->key_file ? "--ssl-keyfile"
                              : "--ssl-certfile (which must hold the key too, without "
                                "--ssl-keyfile)",
                  key);
        goto fail;
    }
    if (SSL_CTX_check_private_key(c) != 1) {
        tls_error(e, "--ssl-keyfile is not the key of --ssl-certfile:", key);
        goto fail;
    }
    if (o->ciphers && SSL_CTX_set_cipher_list(c, o->ciphers) != 1) {
        tls_error(e, "--ssl-ciphers", o->ciphers);
        goto fail;
    }
    if (o->ca_file) {
        if (SSL_CTX_load_verify_locations(c, o->ca_file, NULL) != 1) {
            tls_error(e, "--ssl-ca-certs", o->ca_file);
            goto fail;
        }
        SSL_CTX_set_client_CA_list(c, SSL_load_client_CA_file(o->ca_file));
    }
    if (o->client_certificates)
        SSL_CTX_set_verify(
            c, SSL_VERIFY_PEER | (o->client_certificates > 1 ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0), NULL);
    return c;
fail:
    SSL_CTX_free(c);
    return NULL;
}

/* What the files are now. False if one of them is gone (a new one may be on its way). */
static bool look(const struct tls_options *o, struct file_mark marks[3])
{
    const char *const files[3] = {o->cert_file, o->key_file, o->ca_file};
    memset(marks, 0, 3 * sizeof *marks);
    for (int i = 0; i < 3; i++) {
        struct stat st;
        if (!files[i])
            continue;
        if (stat(files[i], &st))
            return false;
        marks[i].changed = st.st_mtim;
        marks[i].inode = st.st_ino;
        marks[i].size = st.st_size;
    }
    return true;
}

struct tls *tls_create(const struct tls_options *o, struct err *e)
{
    struct tls *t = mem_zalloc(1, sizeof *t);
    t->options = *o;
    look(o, t->marks);
    t->looked = clock_now();
    t->context = make_context(o, e);
    if (!t->context) {
        tls_free(t);
        return NULL;
    }
    return t;
}

void tls_free(struct tls *t)
{
    if (!t)
        return;
    SSL_CTX_free(t->context);
    free(t);
}

/* Takes the files' new content, once it is whole: a certificate and its key are two files, and between the
 * writing of one and the other they do not fit. */
static void refresh(struct tls *t)
{
    struct file_mark now[3];
    if (!t->options.refresh || clock_now() - t->looked < REFRESH_SECONDS)
        return;
    t->looked = clock_now();
    if (!look(&t->options, now) || memcmp(now, t->marks, sizeof now) == 0)
        return;
    memcpy(t->marks, now, sizeof now);
    struct err e = {0};
    SSL_CTX *fresh = make_context(&t->options, &e);
    if (!fresh) {
        log_warn("the certificate changed but is not usable, the old one stays: %s", e.msg);
        return;
    }
    SSL_CTX_free(t->context); /* connections hold what they need of it */
    t->context = fresh;
    log_info("the certificate was read again");
}

struct bufferevent *tls_accept(struct tls *t, struct event_base *base, evutil_socket_t fd)
{
    refresh(t);
    SSL *ssl = SSL_new(t->context);
    if (!ssl)
        return NULL;
    /* callbacks from the loop itself: they may free the connection, which OpenSSL's own calls must not see */
    struct bufferevent *bev = bufferevent_openssl_socket_new(base, fd, ssl, BUFFEREVENT_SSL_ACCEPTING,
                                                             BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS);
    if (!bev) {
        SSL_free(ssl);
        return NULL;
    }
    bufferevent_openssl_set_allow_dirty_shutdown(bev, 1);
    return bev;
}

void tls_say_goodbye(struct bufferevent *bev)
{
    SSL *ssl = bufferevent_openssl_get_ssl(bev);
    if (ssl && SSL_is_init_finished(ssl))
        SSL_shutdown(ssl);
    ERR_clear_error();
}
