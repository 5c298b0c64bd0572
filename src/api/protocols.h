/* The protocols in which answers are asked for, by the path of their route. */
#ifndef SLUICE_API_PROTOCOLS_H
#define SLUICE_API_PROTOCOLS_H

#include "api/request.h"

struct protocol {
    const char *path; /* "/v1/…" */
    /* Reads a parsed body: see api_request_read. */
    struct api_request *(*read)(const struct api_model *m, const json_t *body, const char *request_id,
                                bool id_is_header, struct api_error *e);
};

#define PROTOCOL_PATHS "/v1/chat/completions, /v1/completions, /v1/responses or /v1/messages"

/* NULL for a path that is none of theirs. The "/v1" may be missing. */
const struct protocol *protocol_of(const char *path);

#endif
