/* Refusals, in OpenAI's form: {"error": {"message", "type", "param", "code"}}, code being the HTTP status.
 * Clients sort them by status and by `type`; people read `message`, so it says what is wrong and what would
 * be right. */
#ifndef SLUICE_API_ERRORS_H
#define SLUICE_API_ERRORS_H

#include <jansson.h>

#include "base/error.h"
#include "base/str.h"

struct api_error {
    int status;       /* HTTP */
    const char *type; /* a literal */
    char param[128];  /* the field at fault; "" is written as null */
    char message[1500];
};

/* Each fills *e and returns -1, so that `return api_…(…)` ends a failing function. */

int api_fail(struct api_error *e, int status, const char *type, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* 400: the body is not what the field's type asks for. `path` is below "body" ("messages", "stop.2"). */
int api_bad_type(struct api_error *e, const char *path, const json_t *value, const char *expected);
int api_missing(struct api_error *e, const char *path);
/* 400: the value has the right type but cannot be served. The message ends "(parameter=X, value=Y)". */
int api_bad_value(struct api_error *e, const char *param, const json_t *value, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* 400 for an error of a lower room about what the client sent; 500 where it is our own failure. */
int api_from_err(struct api_error *e, const char *param, const struct err *from);

/* Appends the JSON body. */
void api_error_write(const struct api_error *e, struct str *out);

#endif
