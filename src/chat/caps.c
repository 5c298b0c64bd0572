/* What a template can do is found by trying: small conversations with unmistakable words in them are
 * rendered, and the text is searched for the words. A probe that fails to render counts as "cannot". */
#include "chat/caps.h"

#include <string.h>

#include "chat/limits.h"

#define WORD_SYSTEM "sluiceprobesystem"
#define WORD_USER   "sluiceprobeuser"
#define WORD_TOOL   "sluiceprobetool"
#define WORD_CALL   "sluiceprobecall"
#define WORD_FIRST  "sluiceprobefirst"
#define WORD_SECOND "sluiceprobesecond"

/* Renders the messages of a JSON text, with more variables from another (an object, or NULL). */
static bool probe(const struct program *p, const char *messages, const char *more, struct chat_text *out)
{
    json_t *context =
        json_pack("{s:s, s:s, s:b}", "bos_token", "<s>", "eos_token", "</s>", "add_generation_prompt", 1);
    json_t *list = json_loads(messages, 0, NULL), *extra = more ? json_loads(more, 0, NULL) : NULL;
    bool ok = context && list && (!more || extra) && !json_object_set(context, "messages", list) &&
              (!extra || !json_object_update(context, extra)) &&
              !program_render(p, context, 0, JINJA_PROBE_STEPS, out, NULL);
    json_decref(extra);
    json_decref(list);
    json_decref(context);
    if (!ok)
        *out = (struct chat_text){0};
    return ok;
}

static bool contains(const struct chat_text *t, const char *word)
{
    return t->text && memmem(t->text, t->len, word, strlen(word));
}

/* Whether the conversation renders and shows both words (the second may be NULL). */
static bool shows(const struct program *p, const char *messages, const char *more, const char *word,
                  const char *other)
{
    struct chat_text t;
    bool yes = probe(p, messages, more, &t) && contains(&t, word) && (!other || contains(&t, other));
    chat_text_free(&t);
    return yes;
}

static const char user_only[] = "[{\"role\":\"user\",\"content\":\"" WORD_USER "\"}]";

static bool probe_parts(const struct program *p)
{
    struct chat_text t;
    bool yes = probe(p,
                     "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"" WORD_FIRST "\"},"
                     "{\"type\":\"text\",\"text\":\"" WORD_SECOND "\"}]}]",
                     NULL, &t) &&
               contains(&t, WORD_FIRST) && contains(&t, WORD_SECOND);
    /* A template that knows only strings may print the list as Python or JSON would. */
    yes = yes && !contains(&t, "'type'") && !contains(&t, "\"type\"");
    chat_text_free(&t);
    return yes;
}

static bool probe_calls(const struct program *p, const char *content)
{
    char messages[600];
    snprintf(messages, sizeof messages,
             "[{\"role\":\"user\",\"content\":\"hi\"},"
             "{\"role\":\"assistant\",\"content\":%s,\"tool_calls\":[{\"id\":\"call00001\",\"type\":"
             "\"function\",\"function\":{\"name\":\"" WORD_CALL "\",\"arguments\":{\"key\":\"value\"}}}]},"
             "{\"role\":\"tool\",\"tool_call_id\":\"call00001\",\"name\":\"" WORD_CALL
             "\",\"content\":\"done\"}]",
             content);
    /* Templates print the call's name again with the result, and the first mention must be the call itself.
     */
    struct chat_text t;
    bool yes = probe(p, messages, NULL, &t) && contains(&t, WORD_CALL) && contains(&t, "key");
    chat_text_free(&t);
    return yes;
}

static void probe_thinking(const struct program *p, struct chat_caps *caps)
{
    struct chat_text on, off, plain;
    bool both = probe(p, user_only, "{\"enable_thinking\":true}", &on);
    both &= probe(p, user_only, "{\"enable_thinking\":false}", &off);
    caps->thinking = both && (on.len != off.len || memcmp(on.text, off.text, on.len) != 0);
    if (probe(p, user_only, NULL, &plain)) {
        /* Only what follows the user's words counts: a system text may explain the tags. */
        const char *from = memmem(plain.text, plain.len, WORD_USER, strlen(WORD_USER));
        const char *open = NULL;
        for (const char *at = from ? from : plain.text; (at = strstr(at, "<think>")); at += strlen("<think>"))
            open = at;
        caps->generation_opens_think = open && !strstr(open, "</think>");
    }
    chat_text_free(&on);
    chat_text_free(&off);
    chat_text_free(&plain);
}

void caps_probe(const struct program *p, struct chat_caps *caps)
{
    *caps = (struct chat_caps){
        .system_role = shows(p,
                             "[{\"role\":\"system\",\"content\":\"" WORD_SYSTEM
                             "\"},{\"role\":\"user\",\"content\":\"" WORD_USER "\"}]",
                             NULL, WORD_SYSTEM, WORD_USER),
        .tools = shows(p, user_only,
                       "{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"" WORD_TOOL
                       "\",\"description\":\"d\",\"parameters\":{\"type\":\"object\",\"properties\":{\"key\":"
                       "{\"type\":\"string\",\"description\":\"d\"}},\"required\":[\"key\"]}}}]}",
                       WORD_TOOL, NULL),
        .tool_calls = probe_calls(p, "\"\"") || probe_calls(p, "null"),
        .content_parts = probe_parts(p),
    };
    probe_thinking(p, caps);
}
