/* Parsing request heads: what is taken, and what is refused with which status. */
#include "http/auth.h"
#include "http/head.h"
#include "unit.h"

static int parse(const char *text, struct http_head *h)
{
    const char *why = NULL;
    int status = http_head_parse(h, text, strlen(text), &why);
    assert_true(status == 0 || why != NULL);
    return status;
}

static void test_good(void **state)
{
    (void)state;
    struct http_head h;
    assert_int_equal(parse("POST /v1/chat/completions?x=1 HTTP/1.1\r\nHost: a\r\ncontent-length:  12 \r\n"
                           "Authorization:Bearer k\r\n\r\n",
                           &h),
                     0);
    assert_string_equal(h.method, "POST");
    assert_string_equal(h.path, "/v1/chat/completions");
    assert_int_equal(h.content_length, 12);
    assert_true(h.keep_alive && !h.chunked);
    assert_string_equal(http_head_get(&h, "AUTHORIZATION"), "Bearer k");
    assert_null(http_head_get(&h, "Cookie"));
    http_head_free(&h);
    assert_int_equal(parse("GET /v1/models/a%2Fb%20c HTTP/1.0\r\n\r\n", &h), 0);
    assert_string_equal(h.path, "/v1/models/a/b c");
    assert_false(h.keep_alive);
    http_head_free(&h);
    assert_int_equal(parse("GET / HTTP/1.0\r\nConnection: foo, Keep-Alive\r\n\r\n", &h), 0);
    assert_true(h.keep_alive);
    http_head_free(&h);
    assert_int_equal(
        parse("GET http://host:80/health HTTP/1.1\r\nHost: host\r\nConnection: close\r\n\r\n", &h), 0);
    assert_string_equal(h.path, "/health");
    assert_false(h.keep_alive);
    http_head_free(&h);
    assert_int_equal(
        parse("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\nExpect: 100-continue\r\n\r\n", &h),
        0);
    assert_true(h.chunked && h.expects_continue);
    http_head_free(&h);
}

static void test_bad(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int status;
    } cases[] = {
        {"\r\n\r\n", 400},
        {"GET\r\n\r\n", 400},
        {"GET /\r\n\r\n", 400},
        {"GET / x HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {" GET / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"G(T / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET a HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET /%2 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET /%00 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505},
        {"GET / FTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a\r\n: x\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n", 400},
        {"GET / HTTP/1.1\nHost: a\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a\rx\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a\x01\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1,1\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501},
        {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
         501},
        {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 501},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct http_head h;
        int status = parse(cases[i].text, &h);
        if (status != cases[i].status)
            fail_msg("%s gives %d, not %d", cases[i].text, status, cases[i].status);
        http_head_free(&h);
    }
    /* NUL inside */
    struct http_head h;
    const char *why;
    assert_int_equal(http_head_parse(&h, "GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n", 29, &why), 400);
    http_head_free(&h);
}

static void test_too_many_headers(void **state)
{
    (void)state;
    char text[16384] = "GET / HTTP/1.1\r\nHost: a\r\n";
    for (int i = 0; i < HTTP_MAX_HEADERS - 1; i++)
        strcat(text, "A: b\r\n");
    struct http_head h;
    strcat(text, "\r\n");
    assert_int_equal(parse(text, &h), 0);
    http_head_free(&h);
    strcpy(text + strlen(text) - 2, "A: b\r\n\r\n");
    assert_int_equal(parse(text, &h), 431);
    http_head_free(&h);
}

/* Any bytes at all: no crash, and always a status or a parsed head. */
static void test_noise(void **state)
{
    (void)state;
    static const char seed[] = "POST /v1/a%20b?q HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nX: y\r\n\r\n";
    uint32_t random = 1;
    for (int round = 0; round < 20000; round++) {
        char text[sizeof seed];
        memcpy(text, seed, sizeof seed);
        for (int i = 0; i < 3; i++) {
            random = random * 1664525u + 1013904223u;
            text[(random >> 8) % (sizeof seed - 1)] = (char)(random >> 24);
        }
        struct http_head h;
        const char *why = NULL;
        int status = http_head_parse(&h, text, sizeof seed - 1, &why);
        assert_true(status == 0 ? h.method && h.path : status >= 400 && why);
        http_head_free(&h);
    }
}

static void test_auth(void **state)
{
    (void)state;
    static const char *const keys[] = {"sk-one", "sk-two-longer"};
    assert_true(auth_allows(NULL, NULL, 0));
    assert_true(auth_allows("Bearer sk-one", keys, 2));
    assert_true(auth_allows("bearer  sk-two-longer", keys, 2));
    assert_false(auth_allows(NULL, keys, 2));
    assert_false(auth_allows("", keys, 2));
    assert_false(auth_allows("sk-one", keys, 2));
    assert_false(auth_allows("Bearer", keys, 2));
    assert_false(auth_allows("Bearer ", keys, 2));
    assert_false(auth_allows("Bearersk-one", keys, 2));
    assert_false(auth_allows("Bearer sk-on", keys, 2));
    assert_false(auth_allows("Bearer sk-onee", keys, 2));
    assert_false(auth_allows("Bearer sk-oneX", keys, 2));
    assert_false(auth_allows("Basic sk-one", keys, 2));
    assert_true(auth_guards("/v1/models") && auth_guards("/v2/x"));
    assert_false(auth_guards("/health") || auth_guards("/tokenize"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),  cmocka_unit_test(test_bad),  cmocka_unit_test(test_too_many_headers),
        cmocka_unit_test(test_noise), cmocka_unit_test(test_auth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
