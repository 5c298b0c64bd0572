/* The syntax tree: nodes that say what a text looks like. It knows nothing of automata; see
 * grammar_compile.c. Nodes name their parts by index, so a part may be used many times, and the whole is
 * freed at once. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sample/grammar_json.h"

void grammar_grow(void *array, int *cap, int n, int more, size_t size)
{
    if (n <= *cap - more)
        return;
    int64_t want = (int64_t)n + more, half = (int64_t)*cap + *cap / 2;
    want = want > half ? want : half;
    want = want < 16 ? 16 : want > INT32_MAX ? INT32_MAX : want;
    void *p;
    memcpy(&p, array, sizeof p); /* array points to a pointer of some other type */
    p = mem_realloc(p, (size_t)want, size);
    memcpy(array, &p, sizeof p);
    *cap = (int)want;
}

struct grammar_builder *grammar_builder_create(void)
{
    return mem_zalloc(1, sizeof(struct grammar_builder));
}

void grammar_builder_free(struct grammar_builder *b)
{
    if (!b)
        return;
    for (int i = 0; i < b->n_rules; i++)
        free(b->rules[i].name);
    free(b->nodes);
    free(b->kids);
    free(b->ranges);
    free(b->edges);
    free(b->rules);
    str_free(&b->bytes);
    json_parts_free(b->json);
    free(b);
}

struct grammar *grammar_builder_finish(struct grammar_builder *b, grammar_node root, struct err *e)
{
    struct grammar *g = NULL;
    if (builder_failed(b)) {
        if (e)
            *e = b->e;
    } else {
        g = grammar_compile(b, root, e);
    }
    grammar_builder_free(b);
    return g;
}

static grammar_node too_large(struct grammar_builder *b)
{
    return builder_fail(b, ERR_INVALID, "the grammar is too large: more than %d parts", GRAMMAR_MAX_PARTS);
}

static grammar_node add_node(struct grammar_builder *b, struct node n)
{
    if (builder_failed(b))
        return -1;
    if (b->n_nodes >= GRAMMAR_MAX_NODES)
        return too_large(b);
    if (n.depth > GRAMMAR_MAX_NODE_DEPTH)
        return builder_fail(b, ERR_INVALID, "the grammar is nested deeper than %d parts",
                            GRAMMAR_MAX_NODE_DEPTH);
    GROW(b->nodes, b->n_nodes, b->cap_nodes, 1);
    b->nodes[b->n_nodes] = n;
    return b->n_nodes++;
}

static uint32_t add_size(uint32_t a, uint64_t more)
{
    uint64_t sum = a + more;
    return sum > UINT32_MAX / 2 ? UINT32_MAX / 2 : (uint32_t)sum;
}

/* Takes what a parent knows of a part over into n. */
static void include(struct grammar_builder *b, struct node *n, grammar_node part)
{
    const struct node *p = &b->nodes[part];
    n->size = add_size(n->size, p->size);
    n->depth = p->depth + 1 > n->depth ? (uint16_t)(p->depth + 1) : n->depth;
    n->has_begin |= p->has_begin;
    n->has_end |= p->has_end;
}

static bool valid(struct grammar_builder *b, grammar_node n)
{
    if (builder_failed(b))
        return false;
    if (n < 0 || n >= b->n_nodes) {
        builder_fail(b, ERR_INVALID, "node %d is not one of this grammar", (int)n);
        return false;
    }
    return true;
}

grammar_node grammar_literal(struct grammar_builder *b, const char *bytes, size_t n)
{
    if (builder_failed(b))
        return -1;
    if (n > (size_t)4 * GRAMMAR_MAX_PARTS || b->bytes.len + n > (size_t)4 * GRAMMAR_MAX_PARTS)
        return too_large(b);
    int32_t first = (int32_t)b->bytes.len;
    str_add(&b->bytes, bytes, n);
    return add_node(
        b, (struct node){.kind = NODE_LITERAL, .first = first, .n = (int32_t)n, .size = (uint32_t)n});
}

grammar_node grammar_text(struct grammar_builder *b, const char *text)
{
    return grammar_literal(b, text, strlen(text));
}

grammar_node grammar_class(struct grammar_builder *b, const struct char_range *r, int n)
{
    if (builder_failed(b))
        return -1;
    if (n > GRAMMAR_MAX_PARTS - b->n_ranges)
        return too_large(b);
    struct node c = {.kind = NODE_CLASS, .first = b->n_ranges, .n = n, .size = 1};
    GROW(b->ranges, b->n_ranges, b->cap_ranges, n);
    for (int i = 0; i < n; i++) {
        b->ranges[b->n_ranges++] = r[i];
        c.size += r[i].hi > 0x7F ? 3 : 0;
    }
    return add_node(b, c);
}

static grammar_node parts(struct grammar_builder *b, enum node_kind kind, const grammar_node *list, int n)
{
    struct node out = {.kind = kind, .first = b->n_kids, .n = n, .depth = 1};
    if (builder_failed(b))
        return -1;
    if (n > GRAMMAR_MAX_PARTS - b->n_kids)
        return too_large(b);
    for (int i = 0; i < n; i++) {
        if (!valid(b, list[i]))
            return -1;
        include(b, &out, list[i]);
    }
    GROW(b->kids, b->n_kids, b->cap_kids, n);
    for (int i = 0; i < n; i++)
        b->kids[b->n_kids++] = list[i];
    return add_node(b, out);
}

grammar_node grammar_seq(struct grammar_builder *b, const grammar_node *list, int n)
{
    return n == 1 ? list[0] : parts(b, NODE_SEQ, list, n);
}

grammar_node grammar_alt(struct grammar_builder *b, const grammar_node *list, int n)
{
    return n == 1 ? list[0] : parts(b, NODE_ALT, list, n);
}

grammar_node grammar_seq2(struct grammar_builder *b, grammar_node x, grammar_node y)
{
    return grammar_seq(b, (grammar_node[]){x, y}, 2);
}

grammar_node grammar_seq3(struct grammar_builder *b, grammar_node x, grammar_node y, grammar_node z)
{
    return grammar_seq(b, (grammar_node[]){x, y, z}, 3);
}

grammar_node grammar_alt2(struct grammar_builder *b, grammar_node x, grammar_node y)
{
    return grammar_alt(b, (grammar_node[]){x, y}, 2);
}

grammar_node grammar_optional(struct grammar_builder *b, grammar_node x)
{
    return grammar_alt2(b, grammar_text(b, ""), x);
}

grammar_node grammar_repeat(struct grammar_builder *b, grammar_node part, int min, int max)
{
    if (!valid(b, part))
        return -1;
    max = max == -1 ? GRAMMAR_NO_END : max;
    if (min < 0 || max < min)
        return builder_fail(b, ERR_INVALID, "a repetition of %d to %d times is impossible", min, max);
    if (min > GRAMMAR_MAX_REPEAT || (max != GRAMMAR_NO_END && max > GRAMMAR_MAX_REPEAT))
        return builder_fail(b, ERR_INVALID, "a repetition may be bounded by at most %d times",
                            GRAMMAR_MAX_REPEAT);
    if (min == 1 && max == 1)
        return part;
    if (max == 0)
        return grammar_text(b, "");
    const struct node *p = &b->nodes[part];
    /* (x{0,}){m,n} and (x{1,}){m,n} with m <= 1: how often the outer one turns makes no difference. */
    if (p->kind == NODE_REPEAT && p->max == GRAMMAR_NO_END && p->min <= 1 && min <= 1) {
        int inner = b->kids[p->first], least = min < p->min ? min : p->min;
        return grammar_repeat(b, inner, least, -1);
    }
    struct node out = {.kind = NODE_REPEAT, .first = b->n_kids, .n = 1, .min = min, .max = max};
    include(b, &out, part);
    GROW(b->kids, b->n_kids, b->cap_kids, 1);
    b->kids[b->n_kids++] = part;
    out.size = add_size(out.size, 2);
    return add_node(b, out);
}

grammar_node grammar_rule(struct grammar_builder *b, const char *name)
{
    if (builder_failed(b))
        return -1;
    if (b->n_rules >= GRAMMAR_MAX_RULES)
        return builder_fail(b, ERR_INVALID, "more than %d rules", GRAMMAR_MAX_RULES);
    GROW(b->rules, b->n_rules, b->cap_rules, 1);
    b->rules[b->n_rules] = (struct rule_def){.name = mem_strdup(name), .body = -1};
    return add_node(b, (struct node){.kind = NODE_RULE, .first = b->n_rules++, .size = 1});
}

void grammar_define(struct grammar_builder *b, grammar_node rule, grammar_node body)
{
    if (!valid(b, rule) || !valid(b, body))
        return;
    if (b->nodes[rule].kind != NODE_RULE)
        builder_fail(b, ERR_INVALID, "only a rule can be defined");
    else
        b->rules[b->nodes[rule].first].body = body;
}

grammar_node grammar_kept(struct grammar_builder *b, const char *name, grammar_node body)
{
    grammar_node rule = grammar_rule(b, name);
    grammar_define(b, rule, body);
    if (!builder_failed(b))
        b->rules[b->nodes[rule].first].keep = true;
    return rule;
}

grammar_node grammar_graph(struct grammar_builder *b, int n_states, const struct graph_edge *edges, int n)
{
    struct node out = {.kind = NODE_GRAPH, .first = b->n_edges, .n = n, .min = n_states, .depth = 1};
    if (builder_failed(b))
        return -1;
    if (n > GRAMMAR_MAX_PARTS - b->n_edges || n_states > GRAMMAR_MAX_PARTS)
        return too_large(b);
    for (int i = 0; i < n; i++) {
        if (!valid(b, edges[i].label))
            return -1;
        include(b, &out, edges[i].label);
    }
    out.size = add_size(out.size, (uint64_t)n_states);
    GROW(b->edges, b->n_edges, b->cap_edges, n);
    for (int i = 0; i < n; i++)
        b->edges[b->n_edges++] = edges[i];
    return add_node(b, out);
}
