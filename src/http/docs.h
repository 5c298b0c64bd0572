/* GET /openapi.json and GET /docs: what the server answers, for programs and for people. The description is
 * src/http/openapi.json, built into the program; tests compare it with the table of routes and with answers.
 */
#ifndef SLUICE_HTTP_DOCS_H
#define SLUICE_HTTP_DOCS_H

#include "base/str.h"

/* root_path: where clients find the server behind a proxy, or NULL. */
void docs_write_openapi(const char *root_path, struct str *out);
void docs_write_page(struct str *out);

#endif
