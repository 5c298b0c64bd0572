/* Chat templates: messages in, prompt text out, through a Jinja interpreter.
 *
 * Every byte of the result is marked by where it came from: the template's own text, or the context (a
 * message, a tool schema). The tokenizer turns only template bytes into control tokens, so a user who
 * writes "<|im_end|>" writes seven ordinary characters. */
#ifndef SLUICE_CHAT_TEMPLATE_H
#define SLUICE_CHAT_TEMPLATE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct chat_template;

/* Parses a template. NULL and *e (line named) if it is malformed or over the size limits. */
struct chat_template *chat_template_parse(const char *source, size_t len, struct err *e);
void chat_template_free(struct chat_template *t);
/* The text it was parsed from. */
const char *chat_template_source(const struct chat_template *t);

struct chat_text {
    char *text; /* [len] and a NUL; UTF-8 */
    size_t len;
    uint8_t *literal; /* [len]: 1 where the byte came from the context */
};
void chat_text_free(struct chat_text *t);

/* Renders with the variables of `context`, an object such as
 *   {"messages": […], "tools": […], "documents": […], "add_generation_prompt": true, "bos_token": "<s>", …}.
 * Strings under the keys bos_token, eos_token, pad_token, unk_token and the like (any top-level key ending in
 * "_token") count as template text. raise_exception gives ERR_RAISED with exactly its message; other failures
 * (undefined names used, wrong types, limits on steps, depth and output) give ERR_INVALID with the template
 * line. `now` is used by strftime_now (seconds since the epoch, UTC). */
int chat_template_render(const struct chat_template *t, const json_t *context, int64_t now,
                         struct chat_text *out, struct err *e);

/* What the template looks like it can do, found by rendering probes at parse time. */
struct chat_caps {
    bool system_role;            /* accepts a system message */
    bool tools;                  /* prints the tools it is given */
    bool tool_calls;             /* prints assistant tool_calls */
    bool content_parts;          /* loops over content parts: strings need not be joined before */
    bool thinking;               /* reacts to enable_thinking */
    bool generation_opens_think; /* with the default context, the generation prompt ends inside <think> */
};
const struct chat_caps *chat_template_caps(const struct chat_template *t);

#endif
