#include "api/json_scan.h"

#include <string.h>

/* Where in a number the scan is; it may end only at those marked. */
enum {
    AT_MINUS,
    AT_ZERO /* ends */,
    AT_INT /* ends */,
    AT_DOT,
    AT_FRACTION /* ends */,
    AT_E,
    AT_SIGN,
    AT_EXP /* ends */
};

void json_scan_init(struct json_scan *s)
{
    *s = (struct json_scan){.state = SCAN_VALUE};
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool in_object(const struct json_scan *s)
{
    return s->depth > 0 && (s->objects[(s->depth - 1) / 64] >> (s->depth - 1) % 64 & 1);
}

static bool open_bracket(struct json_scan *s, bool object)
{
    if (s->depth == JSON_SCAN_DEPTH)
        return false;
    uint64_t bit = (uint64_t)1 << s->depth % 64, *word = &s->objects[s->depth / 64];
    *word = object ? *word | bit : *word & ~bit;
    s->depth++;
    s->state = object ? SCAN_KEY_OR_END : SCAN_VALUE_OR_END;
    return true;
}

static bool end_value(struct json_scan *s)
{
    s->state = s->depth ? SCAN_NEXT : SCAN_DONE;
    return true;
}

static bool close_bracket(struct json_scan *s, char c)
{
    if (s->depth == 0 || c != (in_object(s) ? '}' : ']'))
        return false;
    s->depth--;
    return end_value(s);
}

static bool begin_string(struct json_scan *s, bool is_key)
{
    s->state = SCAN_STRING;
    s->is_key = is_key;
    return true;
}

static bool begin_value(struct json_scan *s, char c)
{
    switch (c) {
    case '{':
    case '[':
        return open_bracket(s, c == '{');
    case '"':
        return begin_string(s, false);
    case 't':
    case 'f':
    case 'n':
        s->literal = c == 't' ? "rue" : c == 'f' ? "alse" : "ull";
        s->state = SCAN_LITERAL;
        return true;
    default:
        if (c != '-' && !is_digit(c))
            return false;
        s->number = c == '-' ? AT_MINUS : c == '0' ? AT_ZERO : AT_INT;
        s->state = SCAN_NUMBER;
        return true;
    }
}

static bool number_may_end(int at)
{
    return at == AT_ZERO || at == AT_INT || at == AT_FRACTION || at == AT_EXP;
}

/* The place behind c in a number, or -1. */
static int number_next(int at, char c)
{
    switch (at) {
    case AT_MINUS:
        return c == '0' ? AT_ZERO : is_digit(c) ? AT_INT : -1;
    case AT_ZERO:
    case AT_INT:
        if (is_digit(c) && at == AT_INT)
            return AT_INT;
        return c == '.' ? AT_DOT : c == 'e' || c == 'E' ? AT_E : -1;
    case AT_DOT:
        return is_digit(c) ? AT_FRACTION : -1;
    case AT_FRACTION:
        return is_digit(c) ? AT_FRACTION : c == 'e' || c == 'E' ? AT_E : -1;
    case AT_E:
        return is_digit(c) ? AT_EXP : c == '+' || c == '-' ? AT_SIGN : -1;
    default:
        return is_digit(c) ? AT_EXP : -1;
    }
}

bool json_scan_byte(struct json_scan *s, char c)
{
    switch (s->state) {
    case SCAN_STRING:
        if (c == '\\')
            s->state = SCAN_ESCAPE;
        else if (c == '"' && s->is_key)
            s->state = SCAN_COLON;
        else if (c == '"')
            end_value(s);
        return true;
    case SCAN_ESCAPE:
        if (!c || !strchr("\"\\/bfnrtu", c))
            return false;
        s->hex = 4;
        s->state = c == 'u' ? SCAN_HEX : SCAN_STRING;
        return true;
    case SCAN_HEX:
        if (!c || !strchr("0123456789abcdefABCDEF", c))
            return false;
        if (--s->hex == 0)
            s->state = SCAN_STRING;
        return true;
    case SCAN_LITERAL:
        if (c != *s->literal)
            return false;
        return *++s->literal ? true : end_value(s);
    case SCAN_NUMBER: {
        int next = number_next(s->number, c);
        if (next >= 0) {
            s->number = next;
            return true;
        }
        if (!number_may_end(s->number))
            return false;
        struct json_scan before = *s;
        end_value(s);
        if (json_scan_byte(s, c))
            return true;
        *s = before;
        return false;
    }
    default:
        break;
    }
    if (is_blank(c))
        return true;
    switch (s->state) {
    case SCAN_VALUE_OR_END:
        if (c == ']')
            return close_bracket(s, c);
        return begin_value(s, c);
    case SCAN_VALUE:
        return begin_value(s, c);
    case SCAN_KEY_OR_END:
        if (c == '}')
            return close_bracket(s, c);
        return c == '"' && begin_string(s, true);
    case SCAN_KEY:
        return c == '"' && begin_string(s, true);
    case SCAN_COLON:
        if (c != ':')
            return false;
        s->state = SCAN_VALUE;
        return true;
    case SCAN_NEXT:
        if (c != ',')
            return close_bracket(s, c);
        s->state = in_object(s) ? SCAN_KEY : SCAN_VALUE;
        return true;
    default:
        return false;
    }
}

void json_scan_complete(const struct json_scan *s, int depth, struct str *out)
{
    switch (s->state) {
    case SCAN_ESCAPE:
        str_addc(out, '\\');
        break;
    case SCAN_HEX:
        str_add(out, "0000", (size_t)s->hex);
        break;
    case SCAN_NUMBER:
        if (!number_may_end(s->number))
            str_addc(out, '0');
        break;
    case SCAN_LITERAL:
        str_adds(out, s->literal);
        break;
    case SCAN_KEY:
        str_adds(out, "\"\": null");
        break;
    case SCAN_COLON:
        str_adds(out, ": null");
        break;
    case SCAN_VALUE:
        str_adds(out, "null");
        break;
    default:
        break;
    }
    if (s->state == SCAN_STRING || s->state == SCAN_ESCAPE || s->state == SCAN_HEX)
        str_adds(out, s->is_key ? "\": null" : "\"");
    for (struct json_scan rest = *s; rest.depth > depth; rest.depth--)
        str_addc(out, in_object(&rest) ? '}' : ']');
}

void json_escape(struct str *out, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)bytes[i];
        if (c == '"' || c == '\\')
            str_addf(out, "\\%c", c);
        else if (c == '\n')
            str_adds(out, "\\n");
        else if (c == '\t')
            str_adds(out, "\\t");
        else if (c == '\r')
            str_adds(out, "\\r");
        else if (c < 0x20)
            str_addf(out, "\\u%04x", c);
        else
            str_addc(out, bytes[i]);
    }
}
