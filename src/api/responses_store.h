/* Answers of /v1/responses that are kept in memory, so that a request may go on from one (its
 * previous_response_id) and clients may read one again. Bounded in bytes: the one not used for longest makes
 * room. Any thread may call. */
#ifndef SLUICE_API_RESPONSES_STORE_H
#define SLUICE_API_RESPONSES_STORE_H

#include <jansson.h>
#include <stdbool.h>

#include "base/str.h"

struct response_store;

struct response_store *response_store_create(size_t max_bytes);
void response_store_free(struct response_store *s); /* NULL is fine */

/* Keeps an answer: the messages up to and with it (a JSON list, taken over) and the response's body (copied).
 * One that is larger than the store is dropped; an id that is known gets the new answer. */
void response_store_put(struct response_store *s, const char *id, struct str *conversation,
                        const struct str *body);

/* The messages, a new list, or NULL if there is no such response (or no store: s may be NULL). */
json_t *response_store_conversation(struct response_store *s, const char *id);
/* Appends the body; false if there is no such response. */
bool response_store_body(struct response_store *s, const char *id, struct str *out);

#endif
