/* The formats that write a call as a JSON object with "name" and "arguments" (or "parameters"). The object is
 * scanned as it comes. Until it is sure to be a call its text is kept, and becomes text of the answer if it
 * turns out not to be one. Arguments are passed on as the model writes them; JSON that breaks is completed
 * where it broke. */
#include <string.h>

#include "api/tool_format.h"

#define MAX_RAW ((size_t)64 << 10) /* of an object before its name: more is no call */

enum match tool_hermes_begins(struct cursor *c)
{
    enum match m = match_literal(c, "<tool_call>");
    if (m != MATCH_YES)
        return m;
    match_blanks(c);
    return c->at == c->len ? MATCH_PART : c->text[c->at] == '{' ? MATCH_YES : MATCH_NO;
}

static void begin_object(struct tool_calls *t, bool tagged)
{
    struct tool_json *j = &t->json;
    j->tagged = tagged;
    j->only_tagged |= tagged;
    j->state = CALL_OBJECT;
    json_scan_init(&j->scan);
    str_clear(&j->key);
    str_clear(&j->name);
    str_clear(&j->arguments);
    j->in_value = j->is_object = j->has_name = j->has_arguments = false;
    j->complete = 0;
}

/* The object's text was no call after all. */
static void give_up(struct tool_calls *t, struct parts *out)
{
    tool_text(t, str_text(&t->json.raw), t->json.raw.len, out);
    str_clear(&t->json.raw);
    t->json.state = t->format == TOOLS_HERMES ? CALL_AWAITED : CALL_NONE;
    t->json.only_tagged = true;
}

static void close_call(struct tool_calls *t, struct parts *out)
{
    if (t->given == 0)
        tool_arguments(t, "{}", 2, out);
    tool_close(t);
    str_clear(&t->json.raw);
    t->json.state = CALL_AWAITED;
}

/* Gives the call out once it is sure to be one. An object without a tag around it must name a tool of the
 * request and have arguments: the answer might just be JSON. */
static void try_open(struct tool_calls *t, struct parts *out)
{
    struct tool_json *j = &t->json;
    if (!j->has_name || tool_calling(t))
        return;
    if (!j->tagged && !(j->is_object && tool_find(t, str_text(&j->name), j->name.len)))
        return;
    tool_open(t, str_text(&j->name), j->name.len, out);
    str_clear(&j->raw);
    tool_arguments(t, str_text(&j->arguments), j->arguments.len, out);
    t->complete = j->complete;
}

/* --- members --------------------------------------------------------------------------------------- */

/* The string that JSON text spells, or NULL. Raw control characters in it are taken as they are. */
static json_t *decode(const struct str *text)
{
    struct str clean = {0};
    for (size_t i = 0; i < text->len; i++)
        if ((unsigned char)text->data[i] < 0x20)
            json_escape(&clean, text->data + i, 1);
        else
            str_addc(&clean, text->data[i]);
    json_t *v = json_loadb(str_text(&clean), clean.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    str_free(&clean);
    if (json_is_string(v))
        return v;
    json_decref(v);
    return NULL;
}

static void end_key(struct tool_json *j)
{
    json_t *key = decode(&j->key);
    const char *name = key ? json_string_value(key) : "";
    j->member = MEMBER_OTHER;
    if (strcmp(name, "name") == 0 && !j->has_name)
        j->member = MEMBER_NAME;
    else if ((strcmp(name, "arguments") == 0 || strcmp(name, "parameters") == 0) && !j->has_arguments)
        j->member = MEMBER_ARGUMENTS;
    str_clear(&j->key);
    json_decref(key);
}

/* Adds to the arguments, given out already or not. */
static void add_arguments(struct tool_calls *t, const char *text, size_t len, struct parts *out)
{
    if (tool_calling(t))
        tool_arguments(t, text, len, out);
    else
        str_add(&t->json.arguments, text, len);
}

static void member_done(struct tool_calls *t)
{
    if (tool_calling(t))
        tool_member_done(t);
    else
        t->json.complete = t->json.arguments.len;
}

/* Arguments that are no object: a string may hold the JSON text of one; null is none. */
static void end_plain_arguments(struct tool_calls *t, struct parts *out)
{
    struct str value = t->json.key; /* where they were kept */
    t->json.key = (struct str){0};
    json_t *string = decode(&value);
    json_t *inner =
        string ? json_loadb(json_string_value(string), json_string_length(string), 0, NULL) : NULL;
    if (json_is_object(inner)) {
        add_arguments(t, json_string_value(string), json_string_length(string), out);
        t->json.is_object = true;
        size_t *complete = tool_calling(t) ? &t->complete : &t->json.complete;
        *complete = (tool_calling(t) ? t->given : t->json.arguments.len) - 1; /* without its bracket */
    } else if (strcmp(str_text(&value), "null") != 0) {
        add_arguments(t, str_text(&value), value.len, out);
    }
    json_decref(inner);
    json_decref(string);
    str_free(&value);
}

static void end_member(struct tool_calls *t, struct parts *out)
{
    struct tool_json *j = &t->json;
    j->in_value = false;
    if (j->member == MEMBER_NAME) {
        json_t *name = decode(&j->name);
        str_clear(&j->name);
        if (name && json_string_length(name) > 0) {
            str_add(&j->name, json_string_value(name), json_string_length(name));
            j->has_name = true;
        }
        json_decref(name);
    } else if (j->member == MEMBER_ARGUMENTS) {
        j->has_arguments = true;
        if (!j->is_object)
            end_plain_arguments(t, out);
    }
    try_open(t, out);
}

/* A byte of a member's value. `before` is the scan's state ahead of it. */
static void add_value(struct tool_calls *t, const struct json_scan *before, char c, struct parts *out)
{
    struct tool_json *j = &t->json;
    bool raw = before->state == SCAN_STRING && (unsigned char)c < 0x20;
    struct str escaped = {0};
    if (raw)
        json_escape(&escaped, &c, 1);
    const char *text = raw ? escaped.data : &c;
    size_t len = raw ? escaped.len : 1;
    if (j->member == MEMBER_NAME) {
        str_add(&j->name, text, len);
    } else if (j->member == MEMBER_ARGUMENTS && !j->is_object) {
        str_add(&j->key, text, len);
    } else if (j->member == MEMBER_ARGUMENTS) {
        if (before->state == SCAN_NUMBER && before->depth == 2 && j->scan.state != SCAN_NUMBER)
            member_done(t); /* a number is seen to end by what follows */
        add_arguments(t, text, len, out);
        if (j->scan.depth == 2 && j->scan.state == SCAN_NEXT && before->state != SCAN_NEXT)
            member_done(t);
    }
    str_free(&escaped);
}

/* --- taking text ----------------------------------------------------------------------------------- */

/* One byte of the object, which the scan has accepted. */
static void take_byte(struct tool_calls *t, const struct json_scan *before, char c, struct parts *out)
{
    struct tool_json *j = &t->json;
    if (!tool_calling(t))
        str_addc(&j->raw, c);
    if (j->in_value) {
        bool ends_number = before->state == SCAN_NUMBER && before->depth == 1 && j->scan.state != SCAN_NUMBER;
        if (!ends_number)
            add_value(t, before, c, out);
        if (ends_number || (j->scan.state == SCAN_NEXT && j->scan.depth == 1))
            end_member(t, out);
    } else if (before->state == SCAN_VALUE && before->depth == 1 && j->scan.state != SCAN_VALUE) {
        j->in_value = true;
        if (j->member == MEMBER_ARGUMENTS && c == '{') {
            j->is_object = true;
            try_open(t, out);
        }
        add_value(t, before, c, out);
    } else if (j->scan.is_key && before->depth == 1 &&
               (j->scan.state == SCAN_STRING || before->state == SCAN_STRING ||
                before->state == SCAN_ESCAPE || before->state == SCAN_HEX)) {
        str_addc(&j->key, c);
        if (j->scan.state == SCAN_COLON)
            end_key(j);
    }
}

/* The JSON broke off inside a call that has been given out: its arguments are completed. */
static void complete_call(struct tool_calls *t, struct parts *out)
{
    struct tool_json *j = &t->json;
    if (j->in_value && j->member == MEMBER_ARGUMENTS && j->is_object) {
        str_clear(&t->scratch);
        json_scan_complete(&j->scan, 1, &t->scratch);
        tool_arguments(t, str_text(&t->scratch), t->scratch.len, out);
    }
    close_call(t, out);
}

static size_t take_object(struct tool_calls *t, const char *text, size_t len, struct parts *out)
{
    struct tool_json *j = &t->json;
    for (size_t i = 0; i < len; i++) {
        struct json_scan before = j->scan;
        if (!json_scan_byte(&j->scan, text[i])) {
            if (tool_calling(t))
                complete_call(t, out);
            else
                give_up(t, out);
            return i;
        }
        take_byte(t, &before, text[i], out);
        if (j->scan.state == SCAN_DONE) {
            if (tool_calling(t))
                close_call(t, out);
            else
                give_up(t, out);
            return i + 1;
        }
        if (j->raw.len > MAX_RAW) {
            give_up(t, out);
            return i + 1;
        }
    }
    return len;
}

static size_t take_tagged(struct tool_calls *t, const char *text, size_t len, struct parts *out)
{
    if (!t->json.only_tagged && *text == '{') {
        begin_object(t, false);
        return 0;
    }
    if (is_blank(*text)) {
        tool_text(t, text, 1, out);
        return 1;
    }
    if (*text != '<') {
        t->json.only_tagged = true;
        const char *tag = memchr(text, '<', len);
        size_t n = tag ? (size_t)(tag - text) : len;
        tool_text(t, text, n, out);
        return n;
    }
    struct cursor c = {text, len, 0};
    enum match m = tool_hermes_begins(&c);
    if (m == MATCH_YES) {
        begin_object(t, true);
        str_add(&t->json.raw, text, c.at);
        return c.at;
    }
    if (m == MATCH_PART && t->end == TEXT_GOES_ON)
        return 0;
    if (m == MATCH_PART && t->end == TEXT_CUT && len > strlen("<tool_call"))
        return len; /* a call that was cut before it had a name */
    t->json.only_tagged = true;
    tool_text(t, text, 1, out);
    return 1;
}

/* Where an object may begin: at the start, and behind another one with a separator. */
static size_t take_untagged(struct tool_calls *t, const char *text, size_t len)
{
    if (is_blank(*text) || (t->n_calls && (*text == ';' || *text == ',')))
        return 1;
    struct cursor c = {text, len, 0};
    enum match m = match_literal(&c, "<|python_tag|>");
    if (m == MATCH_YES)
        return c.at;
    if (m == MATCH_PART && t->end == TEXT_GOES_ON)
        return 0;
    if (*text == '{')
        begin_object(t, false);
    else
        t->json.state = CALL_NONE;
    return 0;
}

size_t tool_json_take(struct tool_calls *t, const char *text, size_t len, struct parts *out)
{
    size_t at = 0;
    while (at < len) {
        int before = t->json.state;
        size_t used = len - at;
        if (before == CALL_OBJECT)
            used = take_object(t, text + at, len - at, out);
        else if (before == CALL_NONE)
            tool_text(t, text + at, len - at, out);
        else if (t->format == TOOLS_HERMES)
            used = take_tagged(t, text + at, len - at, out);
        else
            used = take_untagged(t, text + at, len - at);
        if (used == 0 && (int)t->json.state == before)
            break;
        at += used;
    }
    return at;
}

void tool_json_end(struct tool_calls *t, struct parts *out)
{
    struct tool_json *j = &t->json;
    if (j->state != CALL_OBJECT)
        return;
    if (tool_calling(t)) {
        if (t->end == TEXT_STOPPED)
            complete_call(t, out);
        return;
    }
    /* cut before it was sure: what can only have been a call is not shown as text */
    bool is_call = j->tagged || (j->has_name && tool_find(t, str_text(&j->name), j->name.len));
    if (t->end == TEXT_STOPPED || !is_call)
        give_up(t, out);
}
