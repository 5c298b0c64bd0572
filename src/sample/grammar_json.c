#include "sample/grammar_json.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { MAX_WHITESPACE = 64 };

static grammar_node pattern(struct grammar_builder *b, const char *text)
{
    return grammar_regex(b, text, strlen(text));
}

grammar_node json_any_char(struct grammar_builder *b)
{
    return grammar_class(b, (struct char_range[]){{0, 0xD7FF}, {0xE000, 0x10FFFF}}, 2);
}

/* One character inside a string: itself, an escape, or a surrogate pair of escapes, never half of one. */
static grammar_node string_character(struct grammar_builder *b)
{
    static const struct char_range plain[] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0xD7FF}, {0xE000, 0x10FFFF}};
    grammar_node escape =
        pattern(b, "\\\\([\"\\\\/bfnrt]|u([0-9A-CE-Fa-ce-f][0-9A-Fa-f]{3}|[Dd][0-7][0-9A-Fa-f]{2}|"
                   "[Dd][89ABab][0-9A-Fa-f]{2}\\\\u[Dd][C-Fc-f][0-9A-Fa-f]{2}))");
    return grammar_alt2(b, grammar_class(b, plain, 4), escape);
}

grammar_node json_list(struct json_parts *p, grammar_node item, int min, int max)
{
    struct grammar_builder *b = p->b;
    if (max == 0)
        return grammar_text(b, "");
    if (min <= 1 && max == -1) {
        /* item (comma item)*, with the item's states there only once */
        grammar_node empty = grammar_text(b, "");
        struct graph_edge edges[] = {{0, 2, item}, {2, 0, p->comma}, {2, 1, empty}};
        grammar_node list = grammar_graph(b, 3, edges, 3);
        return min == 0 ? grammar_optional(b, list) : list;
    }
    grammar_node one = grammar_rule(b, NULL);
    grammar_define(b, one, item);
    grammar_node more =
        grammar_repeat(b, grammar_seq2(b, p->comma, one), min > 0 ? min - 1 : 0, max < 0 ? -1 : max - 1);
    grammar_node list = grammar_seq2(b, one, more);
    return min == 0 ? grammar_optional(b, list) : list;
}

static void make_parts(struct json_parts *p)
{
    static const struct char_range space[] = {{'\t', '\n'}, {'\r', '\r'}, {' ', ' '}};
    struct grammar_builder *b = p->b;
    if (p->whitespace_pattern)
        p->ws = grammar_kept(b, "whitespace", pattern(b, p->whitespace_pattern));
    else if (p->no_whitespace)
        p->ws = grammar_text(b, "");
    else
        p->ws = grammar_optional(
            b,
            grammar_kept(b, "whitespace", grammar_repeat(b, grammar_class(b, space, 3), 1, MAX_WHITESPACE)));
    p->comma = grammar_seq3(b, p->ws, grammar_text(b, ","), p->ws);
    p->colon = grammar_seq3(b, p->ws, grammar_text(b, ":"), p->ws);
    p->character = string_character(b);
    p->string_tail = grammar_kept(
        b, "string", grammar_seq2(b, grammar_repeat(b, p->character, 0, -1), grammar_text(b, "\"")));
    p->string = grammar_seq2(b, grammar_text(b, "\""), p->string_tail);
    p->any_number = grammar_kept(b, "number", grammar_number(b, &(struct number_form){0}));
    p->any_integer = grammar_kept(b, "integer", grammar_number(b, &(struct number_form){.integer = true}));

    grammar_node value = grammar_rule(b, "value"), object = grammar_rule(b, "object"),
                 array = grammar_rule(b, "array");
    grammar_node member = grammar_seq3(b, p->string, p->colon, value);
    grammar_node members = grammar_optional(b, grammar_seq2(b, json_list(p, member, 1, -1), p->ws));
    grammar_node items = grammar_optional(b, grammar_seq2(b, json_list(p, value, 1, -1), p->ws));
    grammar_node object_parts[] = {grammar_text(b, "{"), p->ws, members, grammar_text(b, "}")};
    grammar_node array_parts[] = {grammar_text(b, "["), p->ws, items, grammar_text(b, "]")};
    grammar_define(b, object, grammar_seq(b, object_parts, 4));
    grammar_define(b, array, grammar_seq(b, array_parts, 4));
    grammar_node kinds[] = {object,
                            array,
                            p->string,
                            p->any_number,
                            grammar_text(b, "true"),
                            grammar_text(b, "false"),
                            grammar_text(b, "null")};
    grammar_define(b, value, grammar_alt(b, kinds, 7));
    p->value = value;
    p->object = object;
}

struct json_parts *json_parts_of(struct grammar_builder *b, const struct grammar_json_options *o)
{
    const char *space = o ? o->whitespace_pattern : NULL;
    bool none = o && o->no_whitespace && !space;
    for (struct json_parts *p = b->json; p; p = p->next)
        if (p->no_whitespace == none &&
            (space && p->whitespace_pattern ? strcmp(space, p->whitespace_pattern) == 0
                                            : space == p->whitespace_pattern))
            return p;
    struct json_parts *p = mem_zalloc(1, sizeof *p);
    *p = (struct json_parts){
        .b = b, .no_whitespace = none, .whitespace_pattern = mem_strdup(space), .next = b->json};
    b->json = p;
    make_parts(p);
    return p;
}

void json_parts_free(struct json_parts *p)
{
    while (p) {
        struct json_parts *next = p->next;
        free(p->whitespace_pattern);
        free(p);
        p = next;
    }
}

grammar_node json_string_node(struct grammar_builder *b, const char *text, size_t len)
{
    grammar_node inside = grammar_json_escaped(b, grammar_literal(b, text, len));
    return grammar_seq3(b, grammar_text(b, "\""), inside, grammar_text(b, "\""));
}

static grammar_node number_node(struct grammar_builder *b, const json_t *v)
{
    char text[64];
    if (json_is_integer(v)) {
        snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
        return grammar_text(b, text);
    }
    for (int precision = 1; precision <= 17; precision++) {
        snprintf(text, sizeof text, "%.*g", precision, json_real_value(v));
        if (strtod(text, NULL) == json_real_value(v))
            break;
    }
    if (!strpbrk(text, ".e"))
        strcat(text, ".0");
    return grammar_text(b, text);
}

grammar_node json_value_node(struct json_parts *p, const json_t *v)
{
    struct grammar_builder *b = p->b;
    switch (json_typeof(v)) {
    case JSON_STRING:
        return json_string_node(b, json_string_value(v), json_string_length(v));
    case JSON_INTEGER:
    case JSON_REAL:
        return number_node(b, v);
    case JSON_TRUE:
        return grammar_text(b, "true");
    case JSON_FALSE:
        return grammar_text(b, "false");
    case JSON_NULL:
        return grammar_text(b, "null");
    case JSON_OBJECT:
    case JSON_ARRAY:
        break;
    }
    bool is_object = json_is_object(v);
    grammar_node *list = NULL;
    int n = 0, cap = 0;
    GROW(list, n, cap, 2);
    list[n++] = grammar_text(b, is_object ? "{" : "[");
    list[n++] = p->ws;
    size_t i;
    const char *key;
    json_t *part;
    json_object_foreach((json_t *)v, key, part)
    {
        GROW(list, n, cap, 4);
        if (n > 2)
            list[n++] = p->comma;
        list[n++] = json_string_node(b, key, strlen(key));
        list[n++] = p->colon;
        list[n++] = json_value_node(p, part);
    }
    json_array_foreach(v, i, part)
    {
        GROW(list, n, cap, 2);
        if (n > 2)
            list[n++] = p->comma;
        list[n++] = json_value_node(p, part);
    }
    GROW(list, n, cap, 2);
    if (n > 2)
        list[n++] = p->ws;
    list[n++] = grammar_text(b, is_object ? "}" : "]");
    grammar_node out = grammar_seq(b, list, n);
    free(list);
    return out;
}

/* --- keys that are none of those listed ---------------------------------------------------------- */

/* A trie of the names, by characters. */
struct key_node {
    uint32_t c;
    int32_t child, sibling;
    bool name; /* a name ends here */
};

grammar_node json_other_key(struct json_parts *p, const char *const *names, int n)
{
    struct grammar_builder *b = p->b;
    if (n == 0 || builder_failed(b))
        return p->string;
    struct key_node *trie = NULL;
    struct graph_edge *edges = NULL;
    int n_nodes = 0, cap_nodes = 0, n_edges = 0, cap_edges = 0;
    grammar_node out = -1;
    GROW(trie, n_nodes, cap_nodes, 1);
    trie[n_nodes++] = (struct key_node){.child = -1, .sibling = -1};
    for (int i = 0; i < n; i++) {
        int32_t at = 0;
        size_t len = strlen(names[i]);
        for (size_t k = 0; k < len;) {
            unsigned c;
            int step = utf8_decode(names[i] + k, len - k, &c);
            if (step == 0) {
                builder_fail(b, ERR_INVALID, "a property's name is not valid UTF-8");
                goto done;
            }
            k += (size_t)step;
            int32_t next = trie[at].child;
            while (next >= 0 && trie[next].c != c)
                next = trie[next].sibling;
            if (next < 0) {
                GROW(trie, n_nodes, cap_nodes, 1);
                next = n_nodes++;
                trie[next] = (struct key_node){.c = c, .child = -1, .sibling = trie[at].child};
                trie[at].child = next;
            }
            at = next;
        }
        trie[at].name = true;
    }
    /* As long as the key spells the beginning of a name, nothing is escaped that need not be: "\u0061" for
     * "a" would be the same key in other letters. Once it differs, any character may follow. */
    grammar_node quote = grammar_text(b, "\"");
    for (int i = 0; i < n_nodes && !builder_failed(b); i++) {
        struct charset rest = {0};
        int from = i == 0 ? 0 : i + 1;
        for (int32_t k = trie[i].child; k >= 0; k = trie[k].sibling) {
            struct char_range one = {trie[k].c, trie[k].c};
            GROW(edges, n_edges, cap_edges, 3);
            edges[n_edges++] =
                (struct graph_edge){from, k + 1, grammar_json_escaped(b, grammar_class(b, &one, 1))};
            charset_add(&rest, trie[k].c, trie[k].c);
        }
        charset_negate(&rest);
        grammar_node other = grammar_json_escaped(b, grammar_class(b, rest.r, rest.n));
        charset_free(&rest);
        GROW(edges, n_edges, cap_edges, 2);
        edges[n_edges++] = (struct graph_edge){from, 1, grammar_seq2(b, other, p->string_tail)};
        if (!trie[i].name)
            edges[n_edges++] = (struct graph_edge){from, 1, quote};
    }
    out = grammar_seq2(b, quote, grammar_graph(b, n_nodes + 1, edges, n_edges));
done:
    free(trie);
    free(edges);
    return out;
}
