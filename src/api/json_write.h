/* JSON appended to a string as it is made. A stream sends one small object a token: building a tree for each
 * would cost more than the text. Parsing is jansson's. */
#ifndef SLUICE_API_JSON_WRITE_H
#define SLUICE_API_JSON_WRITE_H

#include <jansson.h>
#include <stdint.h>

#include "base/str.h"

/* "text", quoted. Malformed UTF-8 becomes U+FFFD, so the result is always valid JSON. */
void json_write_string(struct str *out, const char *text, size_t len);
/* "text" or null for a NULL pointer. */
void json_write_text(struct str *out, const char *text);
/* A float with the digits that give it back exactly; infinities and NaN, which JSON has not, as +-9999.0. */
void json_write_float(struct str *out, float v);
/* Any value, without blanks. */
void json_write_value(struct str *out, const json_t *v);
/* [1,2,3] */
void json_write_ids(struct str *out, const int32_t *ids, int n);

#endif
