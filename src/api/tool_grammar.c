/* Calls of tools as grammars, in the format that the model was trained to write, so that it is only kept from
 * mistakes and not led astray. Where calls must be made their arguments always fit the tools' schemas; where
 * the model chooses, those of tools marked strict do, and for the others only the frame is given. */
#include <stdlib.h>
#include <string.h>

#include "api/structured.h"
#include "base/mem.h"

static const char tag[] = "<tool_call>", tag_end[] = "</tool_call>";

static const json_t *function_of(const json_t *tools, size_t i)
{
    return json_object_get(json_array_get(tools, i), "function");
}

bool tools_are_strict(const json_t *tools)
{
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (json_is_true(json_object_get(function_of(tools, i), "strict")))
            return true;
    return false;
}

static grammar_node seq2(struct grammar_builder *b, grammar_node x, grammar_node y)
{
    return grammar_seq(b, (grammar_node[]){x, y}, 2);
}

/* Arguments of which only the frame is known. */
static grammar_node free_arguments(struct grammar_builder *b, enum tool_format f)
{
    if (f != TOOLS_QWEN3_CODER)
        return grammar_json_object(b, NULL);
    const char *end = "</function>\n";
    grammar_node empty = grammar_text(b, "");
    return grammar_free_text(b, &end, &empty, 1);
}

/* The arguments of a function by its schema. One that lists no parameters takes none. */
static grammar_node typed_arguments(struct grammar_builder *b, enum tool_format f, const json_t *function)
{
    const json_t *schema = json_object_get(function, "parameters");
    json_t *none = NULL;
    if (!schema || json_is_null(schema) || json_object_size(schema) == 0)
        schema = none = json_pack("{s:s, s:{}}", "type", "object", "properties");
    grammar_node out = f == TOOLS_QWEN3_CODER ? seq2(b, grammar_xml_parameters(b, schema, NULL),
                                                     grammar_text(b, "</function>\n"))
                                              : grammar_schema(b, schema, NULL);
    json_decref(none);
    return out;
}

/* One call of a function, without the <tool_call> before it. */
static grammar_node call_of(struct grammar_builder *b, enum tool_format f, const json_t *function, bool typed)
{
    const json_t *name = json_object_get(function, "name");
    struct str head = {0};
    if (f == TOOLS_QWEN3_CODER) {
        str_addf(&head, "\n<function=%s>\n", json_string_value(name));
    } else {
        char *quoted = json_dumps(name, JSON_ENCODE_ANY);
        str_addf(&head, "%s{\"name\": %s, \"%s\": ", f == TOOLS_HERMES ? "\n" : "", quoted ? quoted : "\"\"",
                 f == TOOLS_HERMES ? "arguments" : "parameters");
        free(quoted);
    }
    const char *end = f == TOOLS_QWEN3_CODER ? tag_end : f == TOOLS_HERMES ? "}\n</tool_call>" : "}";
    grammar_node parts[] = {grammar_literal(b, str_text(&head), head.len),
                            typed ? typed_arguments(b, f, function) : free_arguments(b, f),
                            grammar_text(b, end)};
    str_free(&head);
    return grammar_seq(b, parts, 3);
}

/* A call of any tool that the choice leaves, as a rule: it is used more than once. */
static grammar_node any_call(struct grammar_builder *b, const struct structured_context *c,
                             struct call_grammar *out)
{
    size_t n = json_array_size(c->tools);
    grammar_node *ways = mem_alloc(n * sizeof *ways), rule = grammar_rule(b, "call");
    int n_ways = 0;
    for (size_t i = 0; i < n && out->failed_tool < 0; i++) {
        const json_t *function = function_of(c->tools, i);
        const char *name = json_string_value(json_object_get(function, "name"));
        if (c->choice == TOOL_NAMED && strcmp(name, c->name) != 0)
            continue;
        bool typed =
            c->choice != TOOL_AUTO || c->strictness > 1 || json_is_true(json_object_get(function, "strict"));
        ways[n_ways] = call_of(b, c->format, function, typed);
        if (ways[n_ways++] < 0)
            out->failed_tool = (int)i;
    }
    grammar_define(b, rule, grammar_alt(b, ways, n_ways));
    free(ways);
    return rule;
}

void call_grammar_build(struct grammar_builder *b, const struct structured_context *c, grammar_node form,
                        struct call_grammar *out)
{
    *out = (struct call_grammar){.answer = -1, .resume = -1, .failed_tool = -1};
    grammar_node call = any_call(b, c, out);
    bool must = c->choice != TOOL_AUTO;
    int more = c->one_call || c->choice == TOOL_NAMED ? 0 : -1; /* calls behind the first */
    if (c->format == TOOLS_LLAMA3_JSON) { /* an answer is one call, or text that does not look like one */
        static const char text[] = "\\s*(?:[^{<\\s][\\s\\S]*)?";
        grammar_node other = form >= 0 ? form : grammar_regex(b, text, strlen(text));
        out->answer = must ? call : grammar_alt(b, (grammar_node[]){call, other}, 2);
        return;
    }
    if (must || form >= 0) {
        grammar_node next = seq2(b, grammar_text(b, "\n<tool_call>"), call);
        out->resume = seq2(b, call, grammar_repeat(b, next, 0, more));
        grammar_node calls = seq2(b, grammar_text(b, tag), out->resume);
        out->answer = must ? calls : grammar_alt(b, (grammar_node[]){form, calls}, 2);
        return;
    }
    /* text in which each <tool_call> begins a call; a bare <function=…> would be read as one too */
    const char *const marks[] = {tag, "<function="};
    int n_marks = c->format == TOOLS_QWEN3_CODER ? 2 : 1;
    grammar_node found[] = {call, grammar_alt(b, NULL, 0)};
    grammar_node piece = grammar_free_text(b, marks, found, n_marks);
    grammar_node last = grammar_free_text(b, marks, NULL, n_marks);
    out->answer = seq2(b, grammar_repeat(b, piece, 0, more < 0 ? -1 : 1), last);
    out->resume = more < 0 ? seq2(b, call, out->answer) : seq2(b, call, last);
}
