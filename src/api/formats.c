#include "api/formats.h"

#include <string.h>

static const char *const reasoning_names[] = {"none", "qwen3", "deepseek_r1"};
static const char *const tool_names[] = {"none", "qwen3_coder", "hermes", "llama3_json"};

#define TOOL "sluiceprobetool"
#define WORD "sluiceprobeword"

/* Renders a conversation (JSON text) with one tool. False if the template refuses it. */
static bool render(const struct chat_template *t, const char *messages, bool with_tools,
                   struct chat_text *out)
{
    static const char tools[] = "[{\"type\": \"function\", \"function\": {\"name\": \"" TOOL
                                "\", \"description\": \"d\", \"parameters\": {\"type\": \"object\", "
                                "\"properties\": {\"key\": {\"type\": \"string\", \"description\": \"d\"}}, "
                                "\"required\": [\"key\"]}}}]";
    *out = (struct chat_text){0};
    json_t *context = json_pack("{s:s, s:s, s:b, s:o}", "bos_token", "<s>", "eos_token", "</s>",
                                "add_generation_prompt", 1, "messages", json_loads(messages, 0, NULL));
    if (context && with_tools)
        json_object_set_new(context, "tools", json_loads(tools, 0, NULL));
    bool ok = context && chat_template_render(t, context, 0, out, NULL) == 0;
    json_decref(context);
    return ok;
}

/* Does the template take thoughts out of earlier answers? Then its model writes them. */
static bool drops_thoughts(const struct chat_template *t)
{
    struct chat_text text;
    bool yes = render(t,
                      "[{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"assistant\", \"content\": "
                      "\"<think>\\n" WORD "\\n</think>\\n\\n" TOOL "\"}, {\"role\": \"user\", \"content\": "
                      "\"go on\"}]",
                      false, &text) &&
               strstr(text.text, TOOL) && !strstr(text.text, WORD);
    chat_text_free(&text);
    return yes;
}

enum reasoning_format reasoning_format_choose(const char *name, const struct chat_template *t)
{
    for (int i = 0; name && i < (int)(sizeof reasoning_names / sizeof *reasoning_names); i++)
        if (strcmp(name, reasoning_names[i]) == 0)
            return (enum reasoning_format)i;
    if (!t)
        return REASONING_NONE;
    const struct chat_caps *caps = chat_template_caps(t);
    return caps->thinking || caps->generation_opens_think || drops_thoughts(t) ? REASONING_THINK
                                                                               : REASONING_NONE;
}

/* The format of the text around a call: what precedes the tool's name. */
static enum tool_format format_around(const char *text, const char *name)
{
    size_t before = (size_t)(name - text);
    static const char xml[] = "<function=";
    if (before >= strlen(xml) && memcmp(name - strlen(xml), xml, strlen(xml)) == 0)
        return TOOLS_QWEN3_CODER;
    /* {"name": "… */
    const char *open = name;
    while (open > text && *open != '{' && *open != '\n')
        open--;
    if (*open != '{' || !memmem(open, (size_t)(name - open), "\"name\"", 6))
        return TOOLS_NONE;
    const char *end = open;
    while (end > text && is_blank(end[-1]))
        end--;
    static const char tag[] = "<tool_call>";
    if ((size_t)(end - text) >= strlen(tag) && memcmp(end - strlen(tag), tag, strlen(tag)) == 0)
        return TOOLS_HERMES;
    return strncmp(name + strlen(TOOL), "\", \"parameters\"", 15) == 0 ? TOOLS_LLAMA3_JSON : TOOLS_NONE;
}

/* The format of a call in the history, where the template prints one. */
static enum tool_format printed_format(const struct chat_template *t, const char *content)
{
    char messages[400];
    snprintf(messages, sizeof messages,
             "[{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"assistant\", \"content\": %s, "
             "\"tool_calls\": [{\"id\": \"call00001\", \"type\": \"function\", \"function\": {\"name\": "
             "\"" TOOL "\", \"arguments\": {\"key\": \"" WORD "\"}}}]}]",
             content);
    struct chat_text text;
    enum tool_format f = TOOLS_NONE;
    if (render(t, messages, true, &text)) {
        const char *word = strstr(text.text, WORD), *name = NULL;
        /* the tool's name is also in the list of tools: the call's is the last before its argument */
        for (const char *at = text.text; word && (at = strstr(at, TOOL)) && at < word; at++)
            name = at;
        if (name)
            f = format_around(text.text, name);
    }
    chat_text_free(&text);
    return f;
}

/* The format that the instructions ask for, for templates that print no calls. */
static enum tool_format taught_format(const struct chat_template *t)
{
    struct chat_text text;
    enum tool_format f = TOOLS_NONE;
    if (render(t, "[{\"role\": \"user\", \"content\": \"hi\"}]", true, &text) && strstr(text.text, TOOL) &&
        strstr(text.text, "<tool_call>"))
        f = strstr(text.text, "<function=")                                       ? TOOLS_QWEN3_CODER
            : strstr(text.text, "\"name\"") && strstr(text.text, "\"arguments\"") ? TOOLS_HERMES
                                                                                  : TOOLS_NONE;
    chat_text_free(&text);
    return f;
}

enum tool_format tool_format_choose(const char *name, const struct chat_template *t)
{
    if (name && strcmp(name, "qwen3_xml") == 0)
        return TOOLS_QWEN3_CODER;
    for (int i = 0; name && i < (int)(sizeof tool_names / sizeof *tool_names); i++)
        if (strcmp(name, tool_names[i]) == 0)
            return (enum tool_format)i;
    if (!t)
        return TOOLS_NONE;
    enum tool_format f = printed_format(t, "\"\"");
    if (f == TOOLS_NONE)
        f = printed_format(t, "null");
    return f != TOOLS_NONE ? f : taught_format(t);
}

const char *reasoning_format_name(enum reasoning_format f)
{
    return reasoning_names[f];
}

const char *tool_format_name(enum tool_format f)
{
    return tool_names[f];
}
