/* What a request says about the form of its answer: response_format, structured_outputs, and calls of tools
 * that must be made (tool_choice "required" or a tool's name) or must fit their schemas (strict). All of it
 * becomes one grammar over the whole answer, with the thought in front where the model thinks: the thought is
 * free, and the form begins behind it. */
#ifndef SLUICE_API_STRUCTURED_H
#define SLUICE_API_STRUCTURED_H

#include "api/errors.h"
#include "api/model.h"
#include "api/tool_calls.h"
#include "sample/grammar.h"

enum tool_choice { TOOL_AUTO, TOOL_NONE, TOOL_REQUIRED, TOOL_NAMED };

/* Reads the field: *choice, and of a named tool *name (borrowed from body). */
int tool_choice_read(const json_t *body, enum tool_choice *choice, const char **name, struct api_error *e);

struct structured_context {
    enum thought start;      /* how the answer begins */
    enum tool_format format; /* TOOLS_NONE = no calls are looked for */
    const json_t *tools;     /* that may be called */
    enum tool_choice choice;
    const char *name; /* of the named tool */
    bool one_call;    /* parallel_tool_calls: false */
    int strictness; /* of tools that do not say: 1 = only names of tools are called, 2 = arguments fit too */
};

/* *g is the grammar, with a reference, or NULL where the body asks for no form. */
int structured_read(const struct api_model *m, const struct structured_context *c, const json_t *body,
                    struct grammar **g, struct api_error *e);

/* tool_grammar.c: calls in the model's own format. */
struct call_grammar {
    grammar_node answer; /* what the request wants: calls, or calls and text, or calls or the form */
    grammar_node resume; /* the same behind a first <tool_call>; -1 in formats without it */
    int failed_tool;     /* index in tools of the one whose schema is at fault; -1 = none */
};
/* `form` is what the answer looks like where it is no call; -1 = any text. */
void call_grammar_build(struct grammar_builder *b, const struct structured_context *c, grammar_node form,
                        struct call_grammar *out);
/* Must calls be held to a grammar, although the model chooses whether it makes any? */
bool tools_are_strict(const json_t *tools);

#endif
