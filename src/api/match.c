#include "api/match.h"

#include <string.h>

bool is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

enum match match_literal(struct cursor *c, const char *literal)
{
    size_t n = strlen(literal), left = c->len - c->at;
    if (memcmp(c->text + c->at, literal, left < n ? left : n) != 0)
        return MATCH_NO;
    if (left < n)
        return MATCH_PART;
    c->at += n;
    return MATCH_YES;
}

void match_blanks(struct cursor *c)
{
    for (int i = 0; i < MATCH_MAX_BLANKS && c->at < c->len && is_blank(c->text[c->at]); i++)
        c->at++;
}
