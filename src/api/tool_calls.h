/* Calls of tools in the text of an answer. Each family of models writes them in a format of its own; clients
 * see one: text, and calls with a name and a JSON text of arguments.
 *
 * - qwen3_coder (Qwen3.5, Qwen3-Coder; tool_xml.c): values are plain text, typed by the tool's JSON schema
 *   <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>
 * - hermes (Qwen2.5, Qwen3; tool_json.c): small models forget the tags, and are understood
 *   <tool_call>\n{"name": …, "arguments": {…}}\n</tool_call>
 * - llama3_json (Llama 3; tool_json.c): as the whole answer
 *   {"name": …, "parameters": {…}}
 *
 * What is given out depends on the text alone, never on how it was cut, and is given out as soon as it is
 * certain: arguments flow while the model writes them. The text of an answer with calls is what precedes
 * them, without the blanks around it. */
#ifndef SLUICE_API_TOOL_CALLS_H
#define SLUICE_API_TOOL_CALLS_H

#include <jansson.h>
#include <stdbool.h>

#include "api/json_scan.h"
#include "api/match.h"
#include "api/parts.h"

enum tool_format { TOOLS_NONE, TOOLS_QWEN3_CODER, TOOLS_HERMES, TOOLS_LLAMA3_JSON };

/* How the text ended: the model had done, or a limit cut it short. */
enum text_end { TEXT_GOES_ON, TEXT_STOPPED, TEXT_CUT };

/* tool_xml.c */
struct tool_xml {
    enum { XML_TEXT, XML_BETWEEN, XML_VALUE } state;
    bool wrapped;           /* the call began with <tool_call> */
    const json_t *function; /* the tool that is called; NULL = unknown */
    unsigned types;         /* that the parameter's schema allows */
    bool value_begun;       /* its first newline is behind */
    bool as_string;         /* the value is given out as it comes */
    struct str value;       /* else it is kept until its end shows the type */
};

/* tool_json.c */
struct tool_json {
    enum { CALL_AWAITED, CALL_OBJECT, CALL_NONE /* all that follows is text */ } state;
    struct json_scan scan; /* of the object {"name": …, "arguments": …} */
    struct str raw;        /* all of it, until it is sure to be a call */
    struct str key, name, arguments;
    enum { MEMBER_OTHER, MEMBER_NAME, MEMBER_ARGUMENTS } member;
    bool tagged;      /* <tool_call> stood before it */
    bool only_tagged; /* there was something else than calls: from now on they need the tag */
    bool in_value;    /* inside the member's value */
    bool is_object;   /* of the arguments: given out as they are */
    bool has_name, has_arguments;
    size_t complete; /* bytes of `arguments` whose members are complete */
};

struct tool_calls {
    enum tool_format format;
    const json_t *tools; /* [{"type", "function": {"name", "parameters", …}}, …] borrowed */
    bool only_first;     /* later calls are dropped */
    enum text_end end;
    bool text_begun;
    struct str blanks; /* of the text: given out when more follows */
    struct str held;   /* fed, undecided */
    int n_calls;       /* given out */
    bool open;         /* the last of them goes on */
    bool muted;        /* a call that is not given out goes on */
    size_t given;      /* bytes of its arguments given out */
    size_t complete;   /* … with which a member ended */
    struct str scratch;
    struct tool_xml xml;
    struct tool_json json;
};

void tool_calls_init(struct tool_calls *t, enum tool_format f, const json_t *tools, bool only_first);
void tool_calls_free(struct tool_calls *t);
void tool_calls_add(struct tool_calls *t, const char *text, size_t len, struct parts *out);
/* The text ended. One that the model ended itself has its open call completed, so that its arguments are
 * JSON. One that was cut keeps its call as it is (t->open stays true): the arguments break off. */
void tool_calls_finish(struct tool_calls *t, enum text_end end, struct parts *out);
/* For a whole answer, after tool_calls_finish: arguments that broke off are reduced to the members that were
 * complete, and so to JSON. */
void tool_calls_keep_complete(const struct tool_calls *t, struct parts *p);
/* Does a call begin at text? For reasoning.h; `arg` is a struct tool_calls. */
enum match tool_calls_begin_at(const void *arg, const char *text, size_t len);

#endif
