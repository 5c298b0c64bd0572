/* Expressions, by recursive descent in Jinja's order of binding: if-else, or, and, not, comparisons, + and -,
 * ~,
 * * / // and %, **, unary signs, then subscripts, calls, filters and tests. (Unlike in Python, ** is
 * left-associative, binds looser than a sign, and ~ binds tighter than +.) */
#include <stdio.h>
#include <string.h>

#include "chat/call.h"
#include "chat/limits.h"
#include "chat/parser.h"

static struct node *parse_unary(struct parser *p, bool with_filters);
static struct node *parse_primary(struct parser *p, bool ns);

static struct node *binary(struct parser *p, enum node_type type, enum op op, struct node *left,
                           struct node *right)
{
    struct node *n = new_node(p, type, left->line);
    n->binary.op = op;
    n->binary.left = left;
    n->binary.right = right;
    return n;
}

/* --- operators ----------------------------------------------------------------------------------- */

static struct node *parse_pow(struct parser *p)
{
    struct node *left = parse_unary(p, true);
    while (skip_op(p, "**"))
        left = binary(p, NODE_BINARY, OP_POW, left, parse_unary(p, true));
    return left;
}

static bool take_operator(struct parser *p, const char *const *texts, const enum op *ops, int n, enum op *op)
{
    for (int i = 0; i < n; i++)
        if (skip_op(p, texts[i]))
            return *op = ops[i], true;
    return false;
}

static struct node *parse_product(struct parser *p)
{
    static const char *const texts[] = {"*", "/", "//", "%"};
    static const enum op ops[] = {OP_MUL, OP_DIV, OP_FLOORDIV, OP_MOD};
    struct node *left = parse_pow(p);
    enum op op;
    while (take_operator(p, texts, ops, 4, &op))
        left = binary(p, NODE_BINARY, op, left, parse_pow(p));
    return left;
}

static struct node *parse_concat(struct parser *p)
{
    struct node *first = parse_product(p);
    if (!at_op(p, "~"))
        return first;
    struct node_vec parts = {0};
    node_push(p, &parts, first);
    while (skip_op(p, "~"))
        node_push(p, &parts, parse_product(p));
    struct node *n = new_node(p, NODE_CONCAT, first->line);
    n->list = parts.list;
    return n;
}

static struct node *parse_sum(struct parser *p)
{
    static const char *const texts[] = {"+", "-"};
    static const enum op ops[] = {OP_ADD, OP_SUB};
    struct node *left = parse_concat(p);
    enum op op;
    while (take_operator(p, texts, ops, 2, &op))
        left = binary(p, NODE_BINARY, op, left, parse_concat(p));
    return left;
}

static bool take_comparison(struct parser *p, enum op *op)
{
    static const char *const texts[] = {"==", "!=", "<=", "<", ">=", ">"};
    static const enum op ops[] = {OP_EQ, OP_NE, OP_LE, OP_LT, OP_GE, OP_GT};
    if (take_operator(p, texts, ops, 6, op))
        return true;
    if (skip_name(p, "in"))
        return *op = OP_IN, true;
    if (at_name(p, "not") && p->ahead.type == TOKEN_NAME && p->ahead.len == 2 &&
        !memcmp(p->ahead.text, "in", 2)) {
        parser_advance(p);
        parser_advance(p);
        return *op = OP_NOT_IN, true;
    }
    return false;
}

static struct node *parse_compare(struct parser *p)
{
    struct node *first = parse_sum(p);
    struct node_vec rest = {0};
    enum op *ops = NULL, op;
    while (take_comparison(p, &op)) {
        enum op *more = lexer_alloc(&p->lx, rest.list.n + 1, sizeof *more);
        if (rest.list.n)
            memcpy(more, ops, rest.list.n * sizeof *more);
        more[rest.list.n] = op;
        ops = more;
        if (rest.list.n >= JINJA_MAX_NESTING)
            parse_fail(p, "more than %d comparisons in one chain", JINJA_MAX_NESTING);
        node_push(p, &rest, parse_sum(p));
    }
    if (!rest.list.n)
        return first;
    struct node *n = new_node(p, NODE_COMPARE, first->line);
    n->compare.first = first;
    n->compare.rest = rest.list;
    n->compare.ops = ops;
    return n;
}

static struct node *parse_not(struct parser *p)
{
    if (!at_name(p, "not"))
        return parse_compare(p);
    struct node *n = new_node(p, NODE_NOT, p->tok.line);
    parser_enter(p);
    parser_advance(p);
    n->operand = parse_not(p);
    parser_leave(p);
    return n;
}

static struct node *parse_and(struct parser *p)
{
    struct node *left = parse_not(p);
    while (skip_name(p, "and"))
        left = binary(p, NODE_AND, OP_EQ, left, parse_not(p));
    return left;
}

static struct node *parse_or(struct parser *p)
{
    struct node *left = parse_and(p);
    while (skip_name(p, "or"))
        left = binary(p, NODE_OR, OP_EQ, left, parse_and(p));
    return left;
}

struct node *parse_expression(struct parser *p)
{
    parser_enter(p);
    struct node *unknown = p->unknown;
    bool soft = p->soft;
    struct node *e = parse_or(p);
    while (at_name(p, "if")) {
        p->unknown =
            unknown; /* what is conditional may name a filter that does not exist, until it is reached */
        p->soft = true;
        struct node *n = new_node(p, NODE_COND, e->line);
        parser_advance(p);
        n->cond.yes = e;
        n->cond.test = parse_or(p);
        n->cond.no = skip_name(p, "else") ? parse_expression(p) : NULL;
        e = n;
    }
    p->soft = soft;
    parser_leave(p);
    return e;
}

/* --- literals and names -------------------------------------------------------------------------- */

static struct node *constant(struct parser *p, int line, struct value v)
{
    struct node *n = new_node(p, NODE_CONST, line);
    n->constant = v;
    return n;
}

static struct node *parse_name(struct parser *p, bool ns)
{
    static const struct {
        const char *name;
        struct value v;
    } words[] = {
        {"true", {.type = VAL_BOOL, .b = true}},
        {"True", {.type = VAL_BOOL, .b = true}},
        {"false", {.type = VAL_BOOL, .b = false}},
        {"False", {.type = VAL_BOOL, .b = false}},
        {"none", {.type = VAL_NONE}},
        {"None", {.type = VAL_NONE}},
    };
    struct token t = p->tok;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (skip_name(p, words[i].name))
            return constant(p, t.line, words[i].v);
    parser_advance(p);
    int name = intern(p, t.text, t.len);
    if (ns && skip_op(p, ".")) {
        struct node *n = new_node(p, NODE_NSREF, t.line);
        n->nsref.object = name;
        struct token attr = p->tok;
        expect_type(p, TOKEN_NAME);
        n->nsref.name = new_jstr(p, attr.text, attr.len);
        return n;
    }
    for (struct open_macro *m = p->macro; m; m = m->outer) {
        m->node->macro.uses_caller |= name == p->program->caller;
        m->node->macro.uses_varargs |= name == p->program->varargs;
        m->node->macro.uses_kwargs |= name == p->program->kwargs;
    }
    struct node *n = new_node(p, NODE_NAME, t.line);
    n->name = name;
    return n;
}

static struct node *parse_strings(struct parser *p)
{
    struct token first = p->tok;
    parser_advance(p);
    if (p->tok.type != TOKEN_STRING)
        return constant(p, first.line, val_str(new_jstr(p, first.text, first.len)));
    char *joined = NULL; /* adjacent strings are one */
    size_t len = 0, cap = 0;
    for (struct token t = first;; t = p->tok, parser_advance(p)) {
        if (len + t.len > cap || !joined) {
            cap = (len + t.len) * 2 + 16;
            char *more = lexer_alloc(&p->lx, cap, 1);
            if (len)
                memcpy(more, joined, len);
            joined = more;
        }
        memcpy(joined + len, t.text, t.len);
        len += t.len;
        if (p->tok.type != TOKEN_STRING)
            break;
    }
    return constant(p, first.line, val_str(new_jstr(p, joined, len)));
}

static struct node *parse_list(struct parser *p)
{
    struct node *n = new_node(p, NODE_LIST, p->tok.line);
    struct node_vec items = {0};
    expect_op(p, "[");
    while (!at_op(p, "]")) {
        if (items.list.n)
            expect_op(p, ",");
        if (at_op(p, "]"))
            break;
        node_push(p, &items, parse_expression(p));
    }
    expect_op(p, "]");
    n->list = items.list;
    return n;
}

static struct node *parse_dict(struct parser *p)
{
    struct node *n = new_node(p, NODE_DICT, p->tok.line);
    struct node_vec items = {0};
    expect_op(p, "{");
    while (!at_op(p, "}")) {
        if (items.list.n)
            expect_op(p, ",");
        if (at_op(p, "}"))
            break;
        node_push(p, &items, parse_expression(p));
        expect_op(p, ":");
        node_push(p, &items, parse_expression(p));
    }
    expect_op(p, "}");
    n->list = items.list;
    return n;
}

static struct node *parse_items(struct parser *p, bool simple, bool ns, bool cond, const char *end,
                                bool parentheses);

static struct node *parse_primary(struct parser *p, bool ns)
{
    struct token t = p->tok;
    char what[80];
    switch (t.type) {
    case TOKEN_NAME:
        return parse_name(p, ns);
    case TOKEN_STRING:
        return parse_strings(p);
    case TOKEN_NUMBER:
        parser_advance(p);
        return constant(p, t.line, t.number);
    default:
        break;
    }
    if (skip_op(p, "(")) {
        parser_enter(p);
        struct node *n = parse_items(p, false, false, true, NULL, true);
        parser_leave(p);
        expect_op(p, ")");
        return n;
    }
    if (at_op(p, "["))
        return parse_list(p);
    if (at_op(p, "{"))
        return parse_dict(p);
    parse_fail(p, "unexpected %s", describe(&t, what, sizeof what));
}

/* parse_tuple, for all its uses. `simple`: only names and literals (targets), `parentheses`: () is a tuple.
 */
static struct node *parse_items(struct parser *p, bool simple, bool ns, bool cond, const char *end,
                                bool parentheses)
{
    int line = p->tok.line;
    struct node_vec items = {0};
    bool is_tuple = false;
    for (;;) {
        if (items.list.n)
            expect_op(p, ",");
        if (p->tok.type == TOKEN_VARIABLE_END || p->tok.type == TOKEN_BLOCK_END || at_op(p, ")") ||
            (end && at_name(p, end)))
            break;
        struct node *item;
        if (simple)
            item = parse_primary(p, ns);
        else if (cond)
            item = parse_expression(p);
        else
            item = parse_or(p);
        node_push(p, &items, item);
        if (!at_op(p, ","))
            break;
        is_tuple = true;
    }
    if (!is_tuple && items.list.n)
        return items.list.items[0];
    if (!is_tuple && !parentheses) {
        char what[80];
        parse_fail(p, "expected an expression, got %s", describe(&p->tok, what, sizeof what));
    }
    struct node *n = new_node(p, NODE_TUPLE, line);
    n->list = items.list;
    return n;
}

struct node *parse_tuple(struct parser *p, bool cond, const char *end)
{
    return parse_items(p, false, false, cond, end, false);
}

static void check_target(struct parser *p, const struct node *n)
{
    if (n->type == NODE_NAME || n->type == NODE_NSREF)
        return;
    if (n->type != NODE_TUPLE)
        parse_fail(p, "this cannot be assigned to: a name or names are expected");
    for (size_t i = 0; i < n->list.n; i++)
        check_target(p, n->list.items[i]);
}

struct node *parse_target(struct parser *p, bool ns, const char *end)
{
    struct node *n = parse_items(p, true, ns, false, end, false);
    check_target(p, n);
    return n;
}

/* --- what follows a value: subscripts, calls, filters, tests --------------------------------------- */

static void parse_args(struct parser *p, struct call_args *args)
{
    struct node_vec positional = {0}, keyword = {0};
    const struct jstr **keyword_names = NULL;
    size_t cap = 0;
    bool comma = false;
    expect_op(p, "(");
    while (!at_op(p, ")")) {
        if (comma) {
            expect_op(p, ",");
            if (at_op(p, ")"))
                break;
        }
        comma = true;
        if (at_op(p, "*") || at_op(p, "**")) {
            bool named = at_op(p, "**");
            if (args->star_star || (!named && args->star))
                parse_fail(p, "invalid order of arguments in a call");
            parser_advance(p);
            *(named ? &args->star_star : &args->star) = parse_expression(p);
        } else if (p->tok.type == TOKEN_NAME && p->ahead.type == TOKEN_OPERATOR && p->ahead.len == 1 &&
                   p->ahead.text[0] == '=') {
            if (args->star_star)
                parse_fail(p, "invalid order of arguments in a call");
            const struct jstr *name = new_jstr(p, p->tok.text, p->tok.len);
            for (size_t i = 0; i < keyword.list.n; i++)
                if (keyword_names[i]->len == name->len &&
                    !memcmp(keyword_names[i]->bytes, name->bytes, name->len))
                    parse_fail(p, "argument '%.*s' is given twice", (int)(name->len & 0xFF), name->bytes);
            parser_advance(p);
            parser_advance(p);
            if (keyword.list.n == cap) {
                cap = cap ? cap * 2 : 4;
                const struct jstr **more = lexer_alloc(&p->lx, cap, sizeof *more);
                if (keyword.list.n)
                    memcpy(more, keyword_names, keyword.list.n * sizeof *more);
                keyword_names = more;
            }
            keyword_names[keyword.list.n] = name;
            node_push(p, &keyword, parse_expression(p));
        } else {
            if (args->star || args->star_star || keyword.list.n)
                parse_fail(p, "a positional argument follows named ones");
            node_push(p, &positional, parse_expression(p));
        }
    }
    expect_op(p, ")");
    args->positional = positional.list;
    args->keyword = keyword.list;
    args->keyword_names = keyword_names;
}

static struct node *parse_call(struct parser *p, struct node *callee)
{
    struct node *n = new_node(p, NODE_CALL, p->tok.line);
    n->call.callee = callee;
    parse_args(p, &n->call.args);
    return n;
}

/* The index between [ and ]: an expression, or a slice of `object`. */
static struct node *parse_index(struct parser *p, struct node *object, int line, bool *is_slice)
{
    struct node *bounds[3] = {NULL};
    if (!at_op(p, ":")) {
        bounds[0] = parse_expression(p);
        if (!at_op(p, ":"))
            return bounds[0];
    }
    *is_slice = true;
    for (int i = 1; i < 3 && skip_op(p, ":"); i++)
        if (!at_op(p, ":") && !at_op(p, "]") && !at_op(p, ","))
            bounds[i] = parse_expression(p);
    struct node *n = new_node(p, NODE_SLICE, line);
    n->slice.object = object;
    n->slice.start = bounds[0];
    n->slice.stop = bounds[1];
    n->slice.step = bounds[2];
    return n;
}

static struct node *parse_subscript(struct parser *p, struct node *object)
{
    int line = p->tok.line;
    if (skip_op(p, ".")) {
        struct token t = p->tok;
        if (t.type == TOKEN_NAME) {
            parser_advance(p);
            struct node *n = new_node(p, NODE_GETATTR, line);
            n->attr.object = object;
            n->attr.name = new_jstr(p, t.text, t.len);
            return n;
        }
        if (t.type != TOKEN_NUMBER || t.number.type != VAL_INT)
            parse_fail(p, "expected a name or a number after '.'");
        parser_advance(p);
        struct node *n = new_node(p, NODE_GETITEM, line);
        n->item.object = object;
        n->item.index = constant(p, line, t.number);
        return n;
    }
    expect_op(p, "[");
    struct node_vec indices = {0};
    bool any_slice = false;
    while (!at_op(p, "]")) {
        if (indices.list.n)
            expect_op(p, ",");
        node_push(p, &indices, parse_index(p, object, line, &any_slice));
    }
    expect_op(p, "]");
    if (any_slice) {
        if (indices.list.n > 1)
            parse_fail(p, "a slice cannot stand among several indices");
        return indices.list.items[0];
    }
    struct node *n = new_node(p, NODE_GETITEM, line);
    n->item.object = object;
    if (indices.list.n == 1) {
        n->item.index = indices.list.items[0];
    } else {
        n->item.index = new_node(p, NODE_TUPLE, line);
        n->item.index->list = indices.list;
    }
    return n;
}

static struct node *parse_postfix(struct parser *p, struct node *n)
{
    for (;;) {
        if (at_op(p, ".") || at_op(p, "["))
            n = parse_subscript(p, n);
        else if (at_op(p, "("))
            n = parse_call(p, n);
        else
            return n;
    }
}

/* A filter's or test's name, which may have dots. */
static struct token parse_dotted(struct parser *p)
{
    struct token name = p->tok;
    expect_type(p, TOKEN_NAME);
    while (at_op(p, ".")) {
        parser_advance(p);
        name.len = (size_t)(p->tok.text - name.text) + p->tok.len;
        expect_type(p, TOKEN_NAME);
    }
    return name;
}

static struct node *apply(struct parser *p, enum node_type type, struct node *input, int line)
{
    struct token name = parse_dotted(p);
    struct node *n = new_node(p, type, line);
    bool filter = type == NODE_FILTER;
    n->apply.input = input;
    n->apply.name = new_jstr(p, name.text, name.len);
    n->apply.def = filter ? find_filter(name.text, name.len) : find_test(name.text, name.len);
    if (!n->apply.def && !p->soft && !p->unknown)
        p->unknown = n;
    return n;
}

struct node *parse_filters(struct parser *p, struct node *input, bool inline_first)
{
    while (inline_first || at_op(p, "|")) {
        if (!inline_first)
            parser_advance(p);
        inline_first = false;
        input = apply(p, NODE_FILTER, input, p->tok.line);
        if (at_op(p, "("))
            parse_args(p, &input->apply.args);
    }
    return input;
}

static struct node *parse_test(struct parser *p, struct node *input)
{
    int line = p->tok.line;
    parser_advance(p); /* is */
    bool negated = skip_name(p, "not");
    struct node *n = apply(p, NODE_TEST, input, line);
    if (at_op(p, "(")) {
        parse_args(p, &n->apply.args);
    } else if (p->tok.type == TOKEN_STRING || p->tok.type == TOKEN_NUMBER || at_op(p, "[") || at_op(p, "{") ||
               (p->tok.type == TOKEN_NAME && !at_name(p, "else") && !at_name(p, "or") &&
                !at_name(p, "and"))) {
        if (at_name(p, "is"))
            parse_fail(p, "tests with 'is' cannot be chained");
        struct node_vec one = {0};
        node_push(p, &one, parse_postfix(p, parse_primary(p, false)));
        n->apply.args.positional = one.list;
    }
    if (!negated)
        return n;
    struct node *not = new_node(p, NODE_NOT, line);
    not ->operand = n;
    return not ;
}

static struct node *parse_unary(struct parser *p, bool with_filters)
{
    struct node *n;
    if (at_op(p, "-") || at_op(p, "+")) {
        n = new_node(p, at_op(p, "-") ? NODE_NEG : NODE_POS, p->tok.line);
        parser_enter(p);
        parser_advance(p);
        n->operand = parse_unary(p, false);
        parser_leave(p);
    } else {
        n = parse_primary(p, false);
    }
    n = parse_postfix(p, n);
    while (with_filters) {
        if (at_op(p, "|"))
            n = parse_filters(p, n, false);
        else if (at_name(p, "is"))
            n = parse_test(p, n);
        else if (at_op(p, "("))
            n = parse_call(p, n);
        else
            break;
    }
    return n;
}
