/* Requests of other protocols, told in the words of a chat request (prompt.c, sampling.c read those), so that
 * each rule is written once. Translators check the shape of everything they take apart, and name the client's
 * own field where it is wrong; what the chat reader then refuses is renamed by translate_error. */
#ifndef SLUICE_API_TRANSLATE_H
#define SLUICE_API_TRANSLATE_H

#include <jansson.h>

#include "api/errors.h"
#include "api/request.h"

/* Where a value stands in the client's body, from the inside out: "input.3.content.0". NULL = the body. */
struct place {
    const struct place *in;
    const char *key; /* of an object; NULL: */
    size_t index;    /* of a list */
};

/* The key below `at` must be `expected`, and is not. key may be NULL: `at` itself. Both return -1. */
int place_bad(struct api_error *e, const struct place *at, const char *key, const json_t *value,
              const char *expected);
int place_missing(struct api_error *e, const struct place *at, const char *key);
/* 400: a value of the right type that cannot be served. */
int place_refuse(struct api_error *e, const struct place *at, const char *key, const json_t *value,
                 const char *why);

/* As the readers of fields.h, for objects inside the body: 1 set, 0 absent or null, -1 and *e. */
int place_get(const json_t *object, const struct place *at, const char *key, json_type type,
              const json_t **out, struct api_error *e);
/* The same for what must be there: 0, or -1 and *e. */
int place_need(const json_t *object, const struct place *at, const char *key, json_type type,
               const json_t **out, struct api_error *e);

/* jansson counts owners in the value itself: shares a const value. */
json_t *value_share(const json_t *v);

/* Copies the fields that mean the same in every protocol: the sampling parameters and this server's
 * extensions to them. Their values are checked by the chat reader, under the same names. */
void translate_common(const json_t *from, json_t *chat);

/* {"type": "function", "function": {…}} of a tool's parts, each of which may be NULL. */
json_t *translate_tool(const json_t *name, const json_t *description, const json_t *parameters,
                       const json_t *strict);

/* The choice of the tool of this name. */
json_t *translate_choice(const json_t *name);

/* The messages of a chat request as they are put together. An assistant's turn comes in pieces: thoughts,
 * text, calls. */
struct conversation {
    json_t *messages;
    json_t *turn; /* the assistant's, not yet among the messages; or NULL */
};
void conversation_free(struct conversation *c);
/* Ends the turn, if there is one, and adds a message; `content` is a new reference. */
void conversation_add(struct conversation *c, const char *role, json_t *content);
void conversation_add_result(struct conversation *c, const json_t *call_id, json_t *content);
/* Pieces of the assistant's turn. */
void conversation_think(struct conversation *c, const char *text, size_t len);
void conversation_say(struct conversation *c, const json_t *text);
void conversation_call(struct conversation *c, const json_t *id, const json_t *name, json_t *arguments);
bool conversation_has(const struct conversation *c, const char *field); /* "reasoning", "content", … */
void conversation_end_turn(struct conversation *c);

/* One text of a message's content, as a list of parts. */
void content_add_text(json_t *list, const json_t *text);

/* Names the request as this protocol does: "resp_…" for "chatcmpl-…". */
void translate_id(struct api_request *r, const char *prefix);

/* How a field of the chat request is called by the client. */
struct renamed {
    const char *chat, *client;
};
/* Rewrites the chat reader's refusal: in `param`, and in what the message says about it. The table ends with
 * a NULL; earlier rows go first. */
void translate_error(struct api_error *e, const struct renamed *table);

/* Reads a body that was told as a chat request (api_request_read), or counts the tokens of its prompt: 0, or
 * -1. Refusals are told in the client's words. */
struct api_request *translate_read(const struct api_model *m, const json_t *chat, const char *request_id,
                                   bool id_is_header, const struct renamed *table, struct api_error *e);
int translate_count(const struct api_model *m, const json_t *chat, const struct renamed *table, size_t *n,
                    struct api_error *e);

#endif
