/* The format of Qwen3-Coder and Qwen3.5. A value is the text between its tags without one newline at either
 * end; it may hold anything but the tags themselves. Models forget closing tags, so the next tag closes too.
 */
#include <string.h>

#include "api/tool_format.h"

#define MAX_NAME 256 /* bytes of a tool's or a parameter's name */

static bool is_name_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr("_-.:/", c)) || (unsigned char)c >= 0x80;
}

/* The bytes up to '>', which is stepped over. `strict`: only those of identifiers. */
static enum match match_name(struct cursor *c, bool strict, struct cursor *name)
{
    *name = (struct cursor){c->text + c->at, 0, 0};
    for (; c->at < c->len; c->at++, name->len++) {
        char b = c->text[c->at];
        if (b == '>' && name->len > 0) {
            c->at++;
            return MATCH_YES;
        }
        if (name->len == MAX_NAME || b == '>' || b == '\n' || b == '<' || (strict && !is_name_byte(b)))
            return MATCH_NO;
    }
    return MATCH_PART;
}

/* <tool_call> <function=NAME>, or <function=NAME> alone where NAME is a tool's. */
enum match tool_xml_begins(const struct tool_calls *t, struct cursor *c, struct cursor *name)
{
    struct cursor start = *c;
    enum match m = match_literal(c, "<tool_call>");
    bool wrapped = m == MATCH_YES;
    if (wrapped)
        match_blanks(c);
    else
        *c = start;
    enum match bare = match_literal(c, "<function=");
    if (bare == MATCH_YES) {
        bare = match_name(c, true, name);
        if (bare == MATCH_YES && !wrapped && !tool_find(t, name->text, name->len))
            bare = MATCH_NO;
    }
    return m == MATCH_PART ? MATCH_PART : bare;
}

/* The end of a value: a newline, then a tag. </parameter> is stepped over, the others are left. </function>
 * may stand in a value as text: inside <tool_call> it counts only with another tag of the format behind it.
 */
static enum match match_value_end(const struct tool_calls *t, struct cursor *c)
{
    static const char *const followers[] = {"</tool_call>", "<tool_call>", "<function="};
    if (c->text[c->at] == '\n')
        c->at++;
    if (c->at == c->len && t->end != TEXT_GOES_ON)
        return MATCH_YES;
    struct cursor tag = *c, after;
    enum match m[4];
    if ((m[0] = match_literal(c, "</parameter>")) == MATCH_YES)
        return MATCH_YES;
    after = tag;
    m[1] = match_literal(&after, "<parameter=");
    after = tag;
    m[2] = match_literal(&after, "</tool_call>");
    after = tag;
    m[3] = match_literal(&after, "</function>");
    if (m[3] == MATCH_YES && t->xml.wrapped) {
        match_blanks(&after);
        m[3] = after.at == after.len && t->end != TEXT_GOES_ON ? MATCH_YES : MATCH_NO;
        for (int i = 0; i < 3 && m[3] == MATCH_NO; i++) {
            struct cursor next = after;
            m[3] = match_literal(&next, followers[i]);
        }
    }
    bool part = false;
    for (int i = 0; i < 4; i++) {
        if (m[i] == MATCH_YES)
            return MATCH_YES;
        part |= m[i] == MATCH_PART;
    }
    return part && t->end == TEXT_GOES_ON ? MATCH_PART : MATCH_NO;
}

/* --- values ---------------------------------------------------------------------------------------- */

static void give(struct tool_calls *t, const char *text, struct parts *out)
{
    tool_arguments(t, text, strlen(text), out);
}

static void give_escaped(struct tool_calls *t, const char *text, size_t len, struct parts *out)
{
    str_clear(&t->scratch);
    json_escape(&t->scratch, text, len);
    tool_arguments(t, str_text(&t->scratch), t->scratch.len, out);
}

static void begin_value(struct tool_calls *t, const char *key, size_t len, struct parts *out)
{
    struct tool_xml *x = &t->xml;
    give(t, t->given ? ", \"" : "{\"", out);
    give_escaped(t, key, len, out);
    give(t, "\": ", out);
    x->types = tool_value_types(x->function, key, len);
    x->as_string = x->types == TYPE_STRING;
    x->value_begun = false;
    str_clear(&x->value);
    if (x->as_string)
        give(t, "\"", out);
    x->state = XML_VALUE;
}

static void add_value(struct tool_calls *t, const char *text, size_t len, struct parts *out)
{
    struct tool_xml *x = &t->xml;
    if (x->as_string) {
        give_escaped(t, text, len, out);
        return;
    }
    str_add(&x->value, text, len);
    /* a string that may be left out is the common kind: it flows too, once it cannot be null */
    if (x->types == (TYPE_STRING | TYPE_NULL) && !tool_value_may_be_null(x->value.data, x->value.len)) {
        give(t, "\"", out);
        give_escaped(t, x->value.data, x->value.len, out);
        x->as_string = true;
    }
}

static void end_value(struct tool_calls *t, struct parts *out)
{
    struct tool_xml *x = &t->xml;
    if (x->as_string) {
        give(t, "\"", out);
    } else {
        str_clear(&t->scratch);
        tool_value_write(x->types, str_text(&x->value), x->value.len, &t->scratch);
        tool_arguments(t, str_text(&t->scratch), t->scratch.len, out);
    }
    tool_member_done(t);
    x->state = XML_BETWEEN;
}

static void close_call(struct tool_calls *t, struct parts *out)
{
    give(t, t->given ? "}" : "{}", out);
    tool_close(t);
    t->xml.state = XML_TEXT;
}

/* --- taking text ----------------------------------------------------------------------------------- */

static size_t take_text(struct tool_calls *t, const char *text, size_t len, struct parts *out)
{
    if (*text != '<') {
        const char *tag = memchr(text, '<', len);
        size_t n = tag ? (size_t)(tag - text) : len;
        tool_text(t, text, n, out);
        return n;
    }
    struct cursor c = {text, len, 0}, name;
    enum match m = tool_xml_begins(t, &c, &name);
    if (m == MATCH_YES) {
        t->xml.wrapped = memcmp(text, "<t", 2) == 0;
        t->xml.function = tool_find(t, name.text, name.len);
        t->xml.state = XML_BETWEEN;
        tool_open(t, name.text, name.len, out);
        return c.at;
    }
    if (m == MATCH_PART && t->end == TEXT_GOES_ON)
        return 0;
    if (m == MATCH_PART && t->end == TEXT_CUT && text[1] == 't' && len > strlen("<tool_call"))
        return len; /* a call that was cut before it had a name */
    tool_text(t, text, 1, out);
    return 1;
}

static size_t take_between(struct tool_calls *t, const char *text, size_t len, struct parts *out)
{
    if (*text != '<') {
        const char *tag = memchr(text, '<', len);
        return tag ? (size_t)(tag - text) : len;
    }
    struct cursor c = {text, len, 0}, call = c, name;
    enum match parameter = match_literal(&c, "<parameter=");
    if (parameter == MATCH_YES)
        parameter = match_name(&c, false, &name);
    if (parameter == MATCH_YES) {
        begin_value(t, name.text, name.len, out);
        return c.at;
    }
    struct cursor end = call, outer = call;
    enum match function = match_literal(&end, "</function>");
    enum match wrapper = match_literal(&outer, "</tool_call>");
    enum match next = tool_xml_begins(t, &call, &name);
    if (function == MATCH_YES || wrapper == MATCH_YES || next == MATCH_YES) {
        close_call(t, out);
        return function == MATCH_YES ? end.at : wrapper == MATCH_YES ? outer.at : 0;
    }
    bool part =
        parameter == MATCH_PART || function == MATCH_PART || wrapper == MATCH_PART || next == MATCH_PART;
    return part && t->end == TEXT_GOES_ON ? 0 : 1;
}

static size_t take_value(struct tool_calls *t, const char *text, size_t len, struct parts *out)
{
    struct tool_xml *x = &t->xml;
    if (*text == '<' || (*text == '\n' && x->value_begun)) {
        struct cursor c = {text, len, 0};
        enum match m = match_value_end(t, &c);
        if (m == MATCH_PART)
            return 0;
        x->value_begun = true;
        if (m == MATCH_YES) {
            end_value(t, out);
            return c.at;
        }
        add_value(t, text, 1, out);
        return 1;
    }
    x->value_begun = true;
    if (*text == '\n')
        return 1;
    size_t n = 1;
    while (n < len && text[n] != '<' && text[n] != '\n')
        n++;
    add_value(t, text, n, out);
    return n;
}

size_t tool_xml_take(struct tool_calls *t, const char *text, size_t len, struct parts *out)
{
    size_t at = 0;
    while (at < len) {
        int before = t->xml.state;
        size_t used = before == XML_TEXT      ? take_text(t, text + at, len - at, out)
                      : before == XML_BETWEEN ? take_between(t, text + at, len - at, out)
                                              : take_value(t, text + at, len - at, out);
        if (used == 0 && (int)t->xml.state == before)
            break;
        at += used;
    }
    return at;
}

void tool_xml_end(struct tool_calls *t, struct parts *out)
{
    if (t->end == TEXT_CUT)
        return;
    if (t->xml.state == XML_VALUE)
        end_value(t, out);
    if (t->xml.state == XML_BETWEEN)
        close_call(t, out);
}
