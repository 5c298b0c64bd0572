#include "api/tool_calls.h"

#include <string.h>

#include "api/tool_format.h"

void tool_calls_init(struct tool_calls *t, enum tool_format f, const json_t *tools, bool only_first)
{
    *t = (struct tool_calls){.format = f, .tools = tools, .only_first = only_first};
}

void tool_calls_free(struct tool_calls *t)
{
    str_free(&t->blanks);
    str_free(&t->held);
    str_free(&t->scratch);
    str_free(&t->xml.value);
    str_free(&t->json.raw);
    str_free(&t->json.key);
    str_free(&t->json.name);
    str_free(&t->json.arguments);
}

/* --- what the formats find ------------------------------------------------------------------------- */

void tool_text(struct tool_calls *t, const char *text, size_t len, struct parts *out)
{
    if (t->n_calls) /* what follows calls is no part of the message */
        return;
    size_t end = len;
    while (end > 0 && is_blank(text[end - 1]))
        end--;
    if (end > 0) {
        size_t begin = 0;
        while (!t->text_begun && is_blank(text[begin]))
            begin++;
        if (t->text_begun)
            str_add(&out->content, str_text(&t->blanks), t->blanks.len);
        str_clear(&t->blanks);
        str_add(&out->content, text + begin, end - begin);
        t->text_begun = true;
    }
    str_add(&t->blanks, text + end, len - end);
}

void tool_open(struct tool_calls *t, const char *name, size_t len, struct parts *out)
{
    t->given = t->complete = 0;
    t->muted = t->only_first && t->n_calls > 0;
    if (t->muted)
        return;
    t->open = true;
    str_clear(&t->blanks);
    parts_open_call(out, t->n_calls++, name, len);
}

void tool_arguments(struct tool_calls *t, const char *text, size_t len, struct parts *out)
{
    t->given += len;
    if (!t->muted && len)
        parts_add_arguments(out, t->n_calls - 1, text, len);
}

void tool_member_done(struct tool_calls *t)
{
    t->complete = t->given;
}

void tool_close(struct tool_calls *t)
{
    t->open = t->muted = false;
}

bool tool_calling(const struct tool_calls *t)
{
    return t->open || t->muted;
}

const json_t *tool_find(const struct tool_calls *t, const char *name, size_t len)
{
    for (size_t i = 0; i < json_array_size(t->tools); i++) {
        const json_t *f = json_object_get(json_array_get(t->tools, i), "function");
        const json_t *own = json_object_get(f, "name");
        if (json_string_length(own) == len && memcmp(json_string_value(own), name, len) == 0)
            return f;
    }
    return NULL;
}

/* --- feeding --------------------------------------------------------------------------------------- */

static void feed(struct tool_calls *t, struct parts *out)
{
    size_t used = t->format == TOOLS_QWEN3_CODER ? tool_xml_take(t, t->held.data, t->held.len, out)
                                                 : tool_json_take(t, t->held.data, t->held.len, out);
    memmove(t->held.data, t->held.data + used, t->held.len - used + 1);
    t->held.len -= used;
}

void tool_calls_add(struct tool_calls *t, const char *text, size_t len, struct parts *out)
{
    if (t->format == TOOLS_NONE) {
        str_add(&out->content, text, len);
    } else if (len) {
        str_add(&t->held, text, len);
        feed(t, out);
    }
}

void tool_calls_finish(struct tool_calls *t, enum text_end end, struct parts *out)
{
    t->end = end;
    /* the beginning of a closing mark, held inside a call that was cut, is no argument */
    if (t->held.len && !(end == TEXT_CUT && tool_calling(t)))
        feed(t, out);
    if (t->format == TOOLS_QWEN3_CODER)
        tool_xml_end(t, out);
    else if (t->format != TOOLS_NONE)
        tool_json_end(t, out);
    if (t->n_calls == 0 && t->text_begun)
        str_add(&out->content, str_text(&t->blanks), t->blanks.len);
    str_clear(&t->blanks);
}

void tool_calls_keep_complete(const struct tool_calls *t, struct parts *p)
{
    if (!t->open || p->n_calls == 0)
        return;
    struct str *arguments = &p->calls[p->n_calls - 1].arguments;
    if (t->complete < arguments->len) {
        arguments->data[t->complete] = '\0';
        arguments->len = t->complete;
    }
    str_adds(arguments, t->complete ? "}" : "{}");
}

enum match tool_calls_begin_at(const void *arg, const char *text, size_t len)
{
    const struct tool_calls *t = arg;
    struct cursor c = {text, len, 0}, tag = c, name;
    if (match_literal(&tag, "<tool_call>") == MATCH_NO) /* a thought may well mention a bare <function=…> */
        return MATCH_NO;
    return t->format == TOOLS_QWEN3_CODER ? tool_xml_begins(t, &c, &name)
           : t->format == TOOLS_HERMES    ? tool_hermes_begins(&c)
                                          : MATCH_NO;
}
