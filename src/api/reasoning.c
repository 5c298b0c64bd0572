#include "api/reasoning.h"

#include <string.h>

static const char open_tag[] = "<think>", close_tag[] = "</think>";

enum thought reasoning_start(enum reasoning_format f, const char *prompt, size_t len, const uint8_t *literal,
                             size_t own)
{
    if (f == REASONING_NONE)
        return THOUGHT_NONE;
    size_t opened = 0, closed = 0; /* behind the last tag of each kind */
    for (size_t i = 0; i < len; i++) {
        if (prompt[i] != '<' || (literal[i] && i < own))
            continue;
        if (len - i >= strlen(open_tag) && memcmp(prompt + i, open_tag, strlen(open_tag)) == 0)
            opened = i + strlen(open_tag);
        if (len - i >= strlen(close_tag) && memcmp(prompt + i, close_tag, strlen(close_tag)) == 0)
            closed = i + strlen(close_tag);
    }
    if (opened > closed)
        return THOUGHT_OPEN;
    if (own < len) /* it goes on in the text of a message */
        return THOUGHT_NONE;
    size_t end = len;
    while (end > 0 && is_blank(prompt[end - 1]))
        end--;
    if (closed > 0 && closed == end)
        return THOUGHT_NONE;
    return f == REASONING_THINK_FIRST ? THOUGHT_OPEN : THOUGHT_MAY_OPEN;
}

void reasoning_init(struct reasoning *r, enum thought start)
{
    *r = (struct reasoning){.state = start == THOUGHT_NONE       ? OFF
                                     : start == THOUGHT_MAY_OPEN ? BEFORE
                                                                 : ENTERING,
                            .end = SIZE_MAX};
}

void reasoning_free(struct reasoning *r)
{
    str_free(&r->held);
    str_free(&r->blanks);
}

static void release_blanks(struct reasoning *r, struct str *out)
{
    str_add(out, str_text(&r->blanks), r->blanks.len);
    str_clear(&r->blanks);
}

/* Does the tag stand at text? With `last` no more will come. */
static enum match tag_at(const char *tag, const char *text, size_t len, bool last)
{
    struct cursor c = {text, len, 0};
    enum match m = match_literal(&c, tag);
    return m == MATCH_PART && last ? MATCH_NO : m;
}

/* The thought ended at `at`, and its closing mark is `mark` bytes long. */
static void leave(struct reasoning *r, size_t at, size_t mark)
{
    r->end = at;
    r->over = at + mark;
    r->state = mark ? LEAVING : BEHIND;
    str_clear(&r->blanks);
}

/* Before or at the start of a thought. Returns the bytes of text that were used. */
static size_t take_start(struct reasoning *r, const char *text, size_t len, bool last, struct str *rest)
{
    if (is_blank(*text)) {
        str_addc(&r->blanks, *text);
        return 1;
    }
    enum match m = tag_at(open_tag, text, len, last);
    if (m == MATCH_PART)
        return 0;
    if (m == MATCH_YES) {
        r->state = INSIDE;
        r->begin = r->decided + strlen(open_tag);
        str_clear(&r->blanks);
        return strlen(open_tag);
    }
    if (r->state == ENTERING) {
        r->state = INSIDE;
        str_clear(&r->blanks);
    } else {
        r->state = OFF;
        release_blanks(r, rest);
    }
    return 0;
}

static size_t take_inside(struct reasoning *r, const char *text, size_t len, bool last, struct str *thought)
{
    if (is_blank(*text)) {
        if (r->begun) /* the first ones are dropped */
            str_addc(&r->blanks, *text);
        return 1;
    }
    if (*text == '<') {
        enum match m = tag_at(close_tag, text, len, last);
        if (m == MATCH_YES) {
            leave(r, r->decided, strlen(close_tag));
            return strlen(close_tag);
        }
        enum match call = r->call_begins ? r->call_begins(r->arg, text, len) : MATCH_NO;
        if (call == MATCH_YES) {
            leave(r, r->decided, 0);
            return 0;
        }
        if (m == MATCH_PART || (call == MATCH_PART && !last))
            return 0;
    }
    r->begun = true;
    release_blanks(r, thought);
    size_t n = 1;
    while (n < len && text[n] != '<' && !is_blank(text[n]))
        n++;
    str_add(thought, text, n);
    return n;
}

/* Behind a thought: models sometimes close it again, and that mark is no text either. */
static size_t take_behind(struct reasoning *r, const char *text, size_t len, bool last, struct str *rest)
{
    if (r->exact) {
        if (r->state == LEAVING && *text == '\n' && r->newlines++ < 2)
            return 1;
        r->state = OFF;
        return 0;
    }
    if (r->state == LEAVING && is_blank(*text))
        return 1;
    if (*text == '<') {
        enum match m = tag_at(close_tag, text, len, last);
        if (m == MATCH_YES)
            return strlen(close_tag);
        if (m == MATCH_PART)
            return 0;
    }
    r->state = BEHIND;
    size_t n = 1;
    while (n < len && text[n] != '<')
        n++;
    str_add(rest, text, n);
    return n;
}

/* Returns the bytes used of text; what is left is to be held. */
static size_t take(struct reasoning *r, const char *text, size_t len, bool last, struct str *thought,
                   struct str *rest)
{
    size_t at = 0;
    while (at < len) {
        size_t used = 0;
        int before = r->state;
        switch (r->state) {
        case BEFORE:
        case ENTERING:
            used = take_start(r, text + at, len - at, last, rest);
            break;
        case INSIDE:
            used = take_inside(r, text + at, len - at, last, thought);
            break;
        case LEAVING:
        case BEHIND:
            used = take_behind(r, text + at, len - at, last, rest);
            break;
        case OFF:
            used = len - at;
            str_add(rest, text + at, used);
            break;
        }
        if (used == 0 && (int)r->state == before)
            break;
        at += used;
        r->decided += used;
    }
    return at;
}

void reasoning_add(struct reasoning *r, const char *text, size_t len, struct str *thought, struct str *rest)
{
    if (len == 0)
        return;
    if (r->state == OFF && r->held.len == 0) {
        str_add(rest, text, len);
        r->decided += len;
        return;
    }
    str_add(&r->held, text, len);
    size_t used = take(r, r->held.data, r->held.len, false, thought, rest);
    memmove(r->held.data, r->held.data + used, r->held.len - used + 1);
    r->held.len -= used;
}

void reasoning_finish(struct reasoning *r, struct str *thought, struct str *rest)
{
    if (r->held.len)
        take(r, r->held.data, r->held.len, true, thought, rest);
    str_clear(&r->held);
    if (r->state == BEFORE)
        release_blanks(r, rest);
    str_clear(&r->blanks); /* a thought's last ones */
    r->decided = SIZE_MAX;
}
