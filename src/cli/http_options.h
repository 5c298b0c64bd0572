/* The options of `serve` that shape its HTTP side: TLS, CORS, what is logged and what is offered. The table's
 * entries write into struct http_options; http_options_finish checks what the table cannot express and fills
 * the server's options from them and from the environment. */
#ifndef SLUICE_CLI_HTTP_OPTIONS_H
#define SLUICE_CLI_HTTP_OPTIONS_H

#include "cli/options.h"
#include "http/server.h"

struct http_options {
    struct option_list keys, origins, methods, headers; /* expanded: JSON lists are taken apart */
    int cert_reqs, max_log_len;
    bool log_outputs, keep_alive_given;
    const char *log_level;
    char *environment_keys;
    char **made; /* [n_made] words of JSON lists */
    int n_made;
};

#define HTTP_OPTIONS(h, s)                                                                                   \
    {.name = "ssl-certfile",                                                                                 \
     .text = &(s).tls.cert_file,                                                                             \
     .value = "FILE",                                                                                        \
     .help = "serve HTTPS with this certificate (PEM, its chain behind it)"},                                \
        {.name = "ssl-keyfile",                                                                              \
         .text = &(s).tls.key_file,                                                                          \
         .initial = "in the certificate's file",                                                             \
         .value = "FILE",                                                                                    \
         .help = "its key (PEM, without a pass phrase)"},                                                    \
        {.name = "ssl-ca-certs",                                                                             \
         .text = &(s).tls.ca_file,                                                                           \
         .value = "FILE",                                                                                    \
         .help = "who may sign the certificates of clients (PEM)"},                                          \
        {.name = "ssl-cert-reqs",                                                                            \
         .num = &(h).cert_reqs,                                                                              \
         .min = 0,                                                                                           \
         .max = 2,                                                                                           \
         .value = "N",                                                                                       \
         .help = "certificates of clients: 0 = not asked for, 1 = checked where sent, 2 = required"},        \
        {.name = "ssl-ciphers",                                                                              \
         .text = &(s).tls.ciphers,                                                                           \
         .initial = "OpenSSL's",                                                                             \
         .value = "LIST",                                                                                    \
         .help = "ciphers for TLS 1.2, as OpenSSL writes them"},                                             \
        {.name = "enable-ssl-refresh",                                                                       \
         .flag = &(s).tls.refresh,                                                                           \
         .help = "read certificate and key again when the files change"},                                    \
        {.name = "allowed-origins",                                                                          \
         .list = &(h).origins,                                                                               \
         .initial = "none: CORS is off",                                                                     \
         .value = "ORIGIN",                                                                                  \
         .help = "web pages that may call this server from a browser, as words or as a JSON list; * = all"}, \
        {.name = "allowed-methods",                                                                          \
         .list = &(h).methods,                                                                               \
         .initial = "all",                                                                                   \
         .value = "METHOD",                                                                                  \
         .help = "that those pages may use"},                                                                \
        {.name = "allowed-headers",                                                                          \
         .list = &(h).headers,                                                                               \
         .initial = "all",                                                                                   \
         .value = "NAME",                                                                                    \
         .help = "that those pages may send"},                                                               \
        {.name = "allow-credentials",                                                                        \
         .flag = &(s).cors.credentials,                                                                      \
         .help = "those pages may send the browser's cookies and log-ins"},                                  \
        {.name = "root-path",                                                                                \
         .text = &(s).root_path,                                                                             \
         .value = "PATH",                                                                                    \
         .help = "prefix of a proxy in front, taken off where a request has it"},                            \
        {.name = "sse-keep-alive-interval",                                                                  \
         .real = &(s).sse_keep_alive_seconds,                                                                \
         .initial = "never",                                                                                 \
         .value = "S",                                                                                       \
         .help = "a comment goes into a stream that has been silent for so many seconds"},                   \
        {.name = "disable-fastapi-docs", .flag = &(s).no_docs, .help = "no /openapi.json and /docs"},        \
        {.name = "enable-server-load-tracking",                                                              \
         .flag = &(s).load_tracking,                                                                         \
         .help = "/load counts the requests in flight, instead of saying 0"},                                \
    {                                                                                                        \
        .name = "enable-tokenizer-info-endpoint", .flag = &(s).tokenizer_info,                               \
        .help = "GET /tokenizer_info: special tokens, sizes and the chat template"                           \
    }

#define HTTP_LOG_OPTIONS(h, s)                                                                             \
    {.name = "max-log-len",                                                                                \
     .num = &(h).max_log_len,                                                                              \
     .min = 0,                                                                                             \
     .auto_is = "none",                                                                                    \
     .value = "N",                                                                                         \
     .help = "with --enable-log-requests, show so many characters of the prompt too, and at most so many " \
             "of an answer"},                                                                              \
        {.name = "enable-log-outputs",                                                                     \
         .flag = &(h).log_outputs,                                                                         \
         .help = "with --enable-log-requests, show the text of answers too"},                              \
        {.name = "disable-uvicorn-access-log",                                                             \
         .flag = &(s).no_access_log,                                                                       \
         .help = "with --enable-log-requests, only requests that generate get a line"},                    \
        {.name = "disable-access-log-for-endpoints",                                                       \
         .text = &(s).quiet_paths,                                                                         \
         .value = "PATHS",                                                                                 \
         .help = "with --enable-log-requests, none for these: \"/v1/models,/tokenize\""},                  \
    {                                                                                                      \
        .name = "uvicorn-log-level", .text = &(h).log_level,                                               \
        .choices = "trace|debug|info|warning|error|critical", .initial = "VLLM_LOGGING_LEVEL, or info",    \
        .value = "LEVEL", .help = "lines below it are not written"                                         \
    }

/* What launch scripts of vLLM may still say. */
#define GONE_OPTIONS                                                                                 \
    {.name = "max-num-partial-prefills",                                                             \
     .value = "N",                                                                                   \
     .gone = "prompts share a step's budget as they come; --max-num-prefills caps how many"},        \
        {.name = "max-long-partial-prefills",                                                        \
         .value = "N",                                                                               \
         .gone = "--long-prefill-token-threshold bounds what long prompts take of a step"},          \
        {.name = "mamba-cache-mode", .value = "MODE", .gone = "it follows --enable-prefix-caching"}, \
        {.name = "enable-chunked-prefill", .gone = "prompts are always computed in chunks"},         \
        {.name = "async-scheduling", .gone = "the network never waits for the engine"},              \
        {.name = "enforce-eager", .gone = "nothing is captured or compiled at the start"},           \
        {.name = "trust-remote-code", .gone = "no code that comes with a model is ever run"},        \
    {                                                                                                \
        .name = "disable-custom-all-reduce", .gone = "one process holds the whole model"             \
    }

void http_options_init(struct http_options *h);
/* Returns -1, or the exit status after a message. */
int http_options_finish(struct http_options *h, const struct option_command *c, struct server_options *s);
void http_options_free(struct http_options *h);

/* The environment's value of SLUICE_name, else of VLLM_name; NULL where neither is set. */
const char *environment(const char *name);
/* The same as a number within bounds; `otherwise` where it is not set, with a warning where it is not one. */
double environment_number(const char *name, double min, double max, double otherwise);

#endif
