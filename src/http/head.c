#include "http/head.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"

static bool is_token(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c != '\0' && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if ((c | 32) >= 'a' && (c | 32) <= 'f')
        return (c | 32) - 'a' + 10;
    return -1;
}

/* Decodes %xx in place. false for malformed escapes and for %00, which would cut the string short. */
static bool percent_decode(char *s)
{
    char *out = s;
    for (; *s; s++) {
        if (*s != '%') {
            *out++ = *s;
            continue;
        }
        int hi = hex_digit(s[1]);
        int lo = hi < 0 ? -1 : hex_digit(s[2]);
        if (lo < 0 || hi * 16 + lo == 0)
            return false;
        *out++ = (char)(hi * 16 + lo);
        s += 2;
    }
    *out = '\0';
    return true;
}

/* "METHOD target HTTP/1.x" */
static int parse_request_line(struct http_head *h, char *line, const char **why)
{
    char *target = strchr(line, ' ');
    char *version = target ? strchr(target + 1, ' ') : NULL;
    *why = "malformed request line";
    if (!version || strchr(version + 1, ' ') || target == line)
        return 400;
    *target++ = '\0';
    *version++ = '\0';
    for (const char *p = line; *p; p++)
        if (!is_token(*p))
            return 400;
    h->method = line;
    if (strncmp(version, "HTTP/", 5) != 0)
        return 400;
    if (strcmp(version, "HTTP/1.1") != 0 && strcmp(version, "HTTP/1.0") != 0) {
        *why = "only HTTP/1.0 and HTTP/1.1 are spoken here";
        return 505;
    }
    h->is_http10 = version[7] == '0';
    h->keep_alive = !h->is_http10;
    if (strncasecmp(target, "http://", 7) == 0) { /* absolute form, as sent to proxies */
        char *slash = strchr(target + 7, '/');
        target = slash ? slash : target + strlen(target);
    }
    char *query = strchr(target, '?');
    if (query)
        *query++ = '\0';
    h->query = query ? query : "";
    *why = "malformed request target";
    if (*target == '\0') {
        h->path = "/";
        return 0;
    }
    if ((*target != '/' && strcmp(target, "*") != 0) || !percent_decode(target))
        return 400;
    h->path = target;
    return 0;
}

static int add_header(struct http_head *h, char *line, const char **why)
{
    char *colon = strchr(line, ':');
    *why = "malformed header line";
    if (!colon || colon == line)
        return 400;
    for (const char *p = line; p < colon; p++)
        if (!is_token(*p))
            return 400; /* also folded lines, and blanks before the colon */
    *colon = '\0';
    char *value = colon + 1;
    value += strspn(value, " \t");
    size_t n = strlen(value);
    while (n > 0 && (value[n - 1] == ' ' || value[n - 1] == '\t'))
        value[--n] = '\0';
    for (const char *p = value; *p; p++)
        if (((unsigned char)*p < 0x20 && *p != '\t') || *p == 0x7F)
            return 400;
    if (h->n_headers == HTTP_MAX_HEADERS) {
        *why = "too many headers";
        return 431;
    }
    h->headers[h->n_headers++] = (struct http_header){line, value};
    return 0;
}

/* True if the comma-separated value holds the word. */
static bool has_word(const char *value, const char *word)
{
    size_t n = strlen(word);
    while (*value) {
        value += strspn(value, " \t,");
        size_t len = strcspn(value, " \t,;");
        if (len == n && strncasecmp(value, word, n) == 0)
            return true;
        value += len;
        value += strcspn(value, ",");
    }
    return false;
}

static int parse_length(struct http_head *h, const char *value, const char **why)
{
    size_t n = strlen(value);
    *why = "malformed Content-Length";
    if (h->content_length >= 0 || n == 0 || n > 18 || value[strspn(value, "0123456789")])
        return 400;
    h->content_length = strtoll(value, NULL, 10);
    return 0;
}

/* What the headers say about the message itself. */
static int read_framing(struct http_head *h, const char **why)
{
    int n_hosts = 0, status = 0;
    for (int i = 0; i < h->n_headers && !status; i++) {
        const char *name = h->headers[i].name, *value = h->headers[i].value;
        if (strcasecmp(name, "Content-Length") == 0) {
            status = parse_length(h, value, why);
        } else if (strcasecmp(name, "Transfer-Encoding") == 0) {
            *why = "the only Transfer-Encoding known here is chunked";
            if (strcasecmp(value, "chunked") != 0 || h->chunked || h->is_http10)
                status = 501;
            h->chunked = true;
        } else if (strcasecmp(name, "Connection") == 0) {
            if (has_word(value, "close"))
                h->keep_alive = false;
            else if (h->is_http10 && has_word(value, "keep-alive"))
                h->keep_alive = true;
        } else if (strcasecmp(name, "Expect") == 0) {
            h->expects_continue = strcasecmp(value, "100-continue") == 0;
        } else if (strcasecmp(name, "Host") == 0) {
            n_hosts++;
        }
    }
    if (status)
        return status;
    *why = "a request must have one Host header";
    if (n_hosts > 1 || (n_hosts == 0 && !h->is_http10))
        return 400;
    *why = "Content-Length and Transfer-Encoding exclude each other";
    return h->chunked && h->content_length >= 0 ? 400 : 0;
}

int http_head_parse(struct http_head *h, const char *text, size_t len, const char **why)
{
    *h = (struct http_head){.content_length = -1};
    h->buffer = mem_strndup(text, len);
    *why = "malformed request";
    if (memchr(text, '\0', len) || len < 4 || memcmp(text + len - 4, "\r\n\r\n", 4) != 0)
        return 400;
    char *line = h->buffer;
    for (bool first = true;; first = false) {
        char *end = strchr(line, '\n');
        char *cr = strchr(line, '\r');
        if (!end || cr != end - 1) { /* a bare CR or LF */
            *why = "lines must end in CR LF";
            return 400;
        }
        *cr = '\0';
        if (*line == '\0' && !first)
            break;
        int status = first ? parse_request_line(h, line, why) : add_header(h, line, why);
        if (status)
            return status;
        line = end + 1;
    }
    return read_framing(h, why);
}

void http_head_free(struct http_head *h)
{
    free(h->buffer);
    *h = (struct http_head){.content_length = -1};
}

const char *http_head_get(const struct http_head *h, const char *name)
{
    for (int i = 0; i < h->n_headers; i++)
        if (strcasecmp(h->headers[i].name, name) == 0)
            return h->headers[i].value;
    return NULL;
}
