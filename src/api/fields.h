/* Reading the fields of a request body. Absent and null are the same; types are coerced as Pydantic's lax
 * mode does, because clients rely on it: "3", 3.0 and true are ints, "0.5" a float, "yes" a bool.
 *
 * Every reader returns 1 when the field is set (and *out written), 0 when it is absent or null (*out
 * untouched), -1 with *e filled when the value cannot be read as the type. */
#ifndef SLUICE_API_FIELDS_H
#define SLUICE_API_FIELDS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/errors.h"

/* Parses a request body: an object nested at most `max_depth` deep, of a size in memory that is bounded
 * whatever its text. The text need not end in NUL. */
json_t *fields_parse(const char *text, size_t len, int max_depth, struct api_error *e);

int field_int(const json_t *body, const char *name, int64_t *out, struct api_error *e);
int field_float(const json_t *body, const char *name, double *out, struct api_error *e); /* always finite */
int field_bool(const json_t *body, const char *name, bool *out, struct api_error *e);
/* The JSON string itself (it may hold NULs: json_string_length). Borrowed from body. */
int field_string(const json_t *body, const char *name, const json_t **out, struct api_error *e);
int field_array(const json_t *body, const char *name, const json_t **out, struct api_error *e);
int field_object(const json_t *body, const char *name, const json_t **out, struct api_error *e);
/* A list of token ids, each 0 … vocab-1; at most max. *ids is allocated (free it). */
int field_ids(const json_t *body, const char *name, int vocab, size_t max, int32_t **ids, int *n,
              struct api_error *e);

/* The coercions alone, of a value that is not null: false if it is not readable as that type. */
bool value_int(const json_t *v, int64_t *out);
bool value_float(const json_t *v, double *out);

#endif
