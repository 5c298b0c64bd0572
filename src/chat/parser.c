/* Template text to syntax tree: statements. Errors leave by longjmp to program_parse; all memory is the
 * program's arena. */
#include "chat/parser.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "chat/limits.h"

/* --- tokens and nodes ------------------------------------------------------------------------------ */

void parse_fail(struct parser *p, const char *fmt, ...)
{
    char msg[600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    lexer_fail(&p->lx, p->tok.line, "%s", msg);
}

void parser_advance(struct parser *p)
{
    p->tok = p->ahead;
    if (p->ahead.type != TOKEN_EOF)
        p->ahead = lexer_next(&p->lx);
}

static bool is(const struct token *t, enum token_type type, const char *text)
{
    size_t n = strlen(text);
    return t->type == type && t->len == n && !memcmp(t->text, text, n);
}

bool at_op(const struct parser *p, const char *op)
{
    return is(&p->tok, TOKEN_OPERATOR, op);
}

bool at_name(const struct parser *p, const char *name)
{
    return is(&p->tok, TOKEN_NAME, name);
}

bool skip_op(struct parser *p, const char *op)
{
    if (!at_op(p, op))
        return false;
    parser_advance(p);
    return true;
}

bool skip_name(struct parser *p, const char *name)
{
    if (!at_name(p, name))
        return false;
    parser_advance(p);
    return true;
}

static const char *type_text(enum token_type type)
{
    switch (type) {
    case TOKEN_EOF:
        return "end of template";
    case TOKEN_TEXT:
        return "text";
    case TOKEN_VARIABLE_BEGIN:
        return "'{{'";
    case TOKEN_VARIABLE_END:
        return "'}}'";
    case TOKEN_BLOCK_BEGIN:
        return "'{%'";
    case TOKEN_BLOCK_END:
        return "'%}'";
    case TOKEN_NAME:
        return "a name";
    case TOKEN_STRING:
        return "a string";
    case TOKEN_NUMBER:
        return "a number";
    case TOKEN_OPERATOR:
        return "an operator";
    }
    return "";
}

const char *describe(const struct token *t, char *buf, size_t size)
{
    if (t->type == TOKEN_NAME || t->type == TOKEN_OPERATOR)
        snprintf(buf, size, "'%.*s'", (int)(t->len > 40 ? 40 : t->len), t->text);
    else
        snprintf(buf, size, "%s", type_text(t->type));
    return buf;
}

void expect_op(struct parser *p, const char *op)
{
    char what[80];
    if (!skip_op(p, op))
        parse_fail(p, "expected '%s', got %s", op, describe(&p->tok, what, sizeof what));
}

void expect_type(struct parser *p, enum token_type type)
{
    char what[80];
    if (p->tok.type != type)
        parse_fail(p, "expected %s, got %s", type_text(type), describe(&p->tok, what, sizeof what));
    parser_advance(p);
}

void parser_enter(struct parser *p)
{
    if (++p->depth > JINJA_MAX_NESTING)
        parse_fail(p, "more than %d blocks and parentheses inside each other", JINJA_MAX_NESTING);
}

struct node *new_node(struct parser *p, enum node_type type, int line)
{
    struct node *n = lexer_alloc(&p->lx, 1, sizeof *n);
    memset(n, 0, sizeof *n);
    n->type = type;
    n->line = line;
    return n;
}

const struct jstr *new_jstr(struct parser *p, const char *bytes, size_t len)
{
    struct jstr *s = lexer_alloc(&p->lx, 1, sizeof *s);
    *s = (struct jstr){.bytes = bytes, .len = len};
    /* Counted now: renders on several threads share the string and must not write to it. */
    for (size_t i = 0; i < len; i++)
        s->chars += ((unsigned char)bytes[i] & 0xC0) != 0x80;
    return s;
}

void node_push(struct parser *p, struct node_vec *v, struct node *n)
{
    if (v->list.n == v->cap) {
        v->cap = v->cap ? v->cap * 2 : 4;
        struct node **items = lexer_alloc(&p->lx, v->cap, sizeof *items);
        if (v->list.n)
            memcpy(items, v->list.items, v->list.n * sizeof *items);
        v->list.items = items;
    }
    v->list.items[v->list.n++] = n;
}

static void grow_names(struct parser *p)
{
    struct program *pr = p->program;
    p->names_cap = p->names_cap ? p->names_cap * 2 : 32;
    const struct jstr **names = lexer_alloc(&p->lx, (size_t)p->names_cap, sizeof *names);
    if (pr->n_names)
        memcpy(names, pr->names, (size_t)pr->n_names * sizeof *names);
    pr->names = names;
    p->n_index = (size_t)p->names_cap * 4;
    p->name_index = lexer_alloc(&p->lx, p->n_index, sizeof *p->name_index);
    memset(p->name_index, 0, p->n_index * sizeof *p->name_index);
}

static int *name_slot(struct parser *p, const char *name, size_t len)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)name[i]) * 0x100000001b3u;
    for (size_t at = h & (p->n_index - 1);; at = (at + 1) & (p->n_index - 1)) {
        int *slot = &p->name_index[at];
        const struct jstr *s = *slot ? p->program->names[*slot - 1] : NULL;
        if (!s || (s->len == len && !memcmp(s->bytes, name, len)))
            return slot;
    }
}

int intern(struct parser *p, const char *name, size_t len)
{
    struct program *pr = p->program;
    if (pr->n_names == p->names_cap) {
        grow_names(p);
        for (int i = 0; i < pr->n_names; i++)
            *name_slot(p, pr->names[i]->bytes, pr->names[i]->len) = i + 1;
    }
    int *slot = name_slot(p, name, len);
    if (!*slot) {
        pr->names[pr->n_names++] = new_jstr(p, name, len);
        *slot = pr->n_names;
    }
    return *slot - 1;
}

static int name_token(struct parser *p)
{
    struct token t = p->tok;
    expect_type(p, TOKEN_NAME);
    return intern(p, t.text, t.len);
}

/* --- blocks ---------------------------------------------------------------------------------------- */

static void check_unknown(struct parser *p)
{
    const struct node *n = p->unknown;
    if (n)
        lexer_fail(&p->lx, n->line, "there is no %s named '%.*s'", n->type == NODE_FILTER ? "filter" : "test",
                   (int)(n->apply.name->len > 100 ? 100 : n->apply.name->len), n->apply.name->bytes);
}

static struct node *parse_statement(struct parser *p);

/* Statements until a tag named as one of `ends` (up to three, NULL-terminated; NULL: until the template
 * ends), of which the name is then the current token. */
static struct node_list parse_until(struct parser *p, const char *const *ends)
{
    struct node_vec body = {0};
    while (p->tok.type != TOKEN_EOF) {
        struct token t = p->tok;
        parser_advance(p);
        if (t.type == TOKEN_TEXT) {
            struct node *n = new_node(p, NODE_TEXT, t.line);
            n->constant = val_str(new_jstr(p, t.text, t.len));
            node_push(p, &body, n);
        } else if (t.type == TOKEN_VARIABLE_BEGIN) {
            struct node *n = new_node(p, NODE_OUTPUT, t.line);
            n->operand = parse_tuple(p, true, NULL);
            check_unknown(p);
            expect_type(p, TOKEN_VARIABLE_END);
            node_push(p, &body, n);
        } else { /* TOKEN_BLOCK_BEGIN */
            for (int i = 0; ends && ends[i]; i++)
                if (at_name(p, ends[i]))
                    return body.list;
            struct node *n = parse_statement(p);
            check_unknown(p);
            if (n)
                node_push(p, &body, n);
            expect_type(p, TOKEN_BLOCK_END);
        }
    }
    if (ends)
        parse_fail(p, "the template ends, but the '%s' of line %d is still open", p->open[p->n_open - 1].tag,
                   p->open[p->n_open - 1].line);
    return body.list;
}

/* The rest of the opening tag, the body, and the name of the tag that ends it (left as the current token). */
static struct node_list parse_body(struct parser *p, const char *tag, int line, const char *const *ends)
{
    check_unknown(p);
    skip_op(p, ":");
    expect_type(p, TOKEN_BLOCK_END);
    parser_enter(p);
    p->open[p->n_open].tag = tag;
    p->open[p->n_open++].line = line;
    struct node_list body = parse_until(p, ends);
    p->n_open--;
    parser_leave(p);
    return body;
}

/* parse_body to the one end tag `end`, whose name is skipped. */
static struct node_list parse_whole_body(struct parser *p, const char *tag, int line, const char *end)
{
    const char *const ends[] = {end, NULL};
    struct node_list body = parse_body(p, tag, line, ends);
    parser_advance(p);
    return body;
}

static struct node *parse_for(struct parser *p, int line)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    struct node *n = new_node(p, NODE_FOR, line);
    bool soft = p->soft;
    n->loop.target = parse_target(p, false, "in");
    if (n->loop.target->type == NODE_NAME && n->loop.target->name == p->program->loop)
        parse_fail(p, "'loop' is the loop's own variable and cannot be its target");
    if (!skip_name(p, "in"))
        parse_fail(p, "expected 'in' in the for tag");
    n->loop.iterable = parse_tuple(p, false, "recursive");
    p->soft = false; /* a loop is a scope of its own, and there Jinja looks for unknown filters again */
    if (skip_name(p, "if"))
        n->loop.test = parse_expression(p);
    n->loop.recursive = skip_name(p, "recursive");
    p->loops++;
    n->loop.body = parse_body(p, "for", line, ends);
    p->loops--;
    if (skip_name(p, "else"))
        n->loop.otherwise = parse_whole_body(p, "for", line, "endfor");
    else
        parser_advance(p);
    p->soft = soft;
    return n;
}

static struct node *parse_if(struct parser *p, int line)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct node *n = new_node(p, NODE_IF, line);
    struct node_vec tests = {0};
    struct node_list *bodies = NULL;
    size_t cap = 0;
    bool soft = p->soft;
    p->soft = true;
    do {
        node_push(p, &tests, parse_tuple(p, false, NULL));
        if (tests.list.n > cap) {
            cap = cap ? cap * 2 : 4;
            struct node_list *more = lexer_alloc(&p->lx, cap, sizeof *more);
            if (tests.list.n > 1)
                memcpy(more, bodies, (tests.list.n - 1) * sizeof *more);
            bodies = more;
        }
        bodies[tests.list.n - 1] = parse_body(p, "if", line, ends);
    } while (skip_name(p, "elif"));
    n->branches.tests = tests.list;
    n->branches.bodies = bodies;
    if (skip_name(p, "else"))
        n->branches.otherwise = parse_whole_body(p, "if", line, "endif");
    else
        parser_advance(p);
    p->soft = soft;
    return n;
}

static struct node *parse_set(struct parser *p, int line)
{
    struct node *n = new_node(p, NODE_SET, line);
    n->set.target = parse_target(p, true, NULL);
    if (skip_op(p, "=")) {
        n->set.value = parse_tuple(p, true, NULL);
        return n;
    }
    n->type = NODE_SET_BLOCK;
    n->set.value = parse_filters(p, NULL, false);
    n->set.body = parse_whole_body(p, "set", line, "endset");
    return n;
}

/* The body of something that Python would make a function of: no break or continue leaves it. */
static struct node_list parse_function_body(struct parser *p, struct node *macro, const char *tag,
                                            const char *end)
{
    struct open_macro here = {macro, p->macro};
    int loops = p->loops;
    bool soft = p->soft;
    if (macro)
        p->macro = &here;
    p->loops = 0;
    p->soft = false;
    struct node_list body = parse_whole_body(p, tag, macro ? macro->line : p->tok.line, end);
    p->loops = loops;
    p->soft = soft;
    if (macro)
        p->macro = here.outer;
    return body;
}

static void parse_signature(struct parser *p, struct node *macro)
{
    struct open_macro here = {macro, p->macro};
    struct node_vec defaults = {0};
    int *params = NULL;
    int n = 0, cap = 0;
    p->macro = &here;
    expect_op(p, "(");
    while (!at_op(p, ")")) {
        if (n)
            expect_op(p, ",");
        if (n == cap) {
            cap = cap ? cap * 2 : 4;
            int *more = lexer_alloc(&p->lx, (size_t)cap, sizeof *more);
            if (n)
                memcpy(more, params, (size_t)n * sizeof *more);
            params = more;
        }
        params[n] = name_token(p);
        for (int i = 0; i < n; i++)
            if (params[i] == params[n])
                parse_fail(p, "the parameter '%.*s' is there twice",
                           (int)(p->program->names[params[n]]->len & 0xFF),
                           p->program->names[params[n]]->bytes);
        n++;
        if (n > JINJA_MAX_NESTING)
            parse_fail(p, "a macro has more than %d parameters", JINJA_MAX_NESTING);
        if (skip_op(p, "="))
            node_push(p, &defaults, parse_expression(p));
        else if (defaults.list.n)
            parse_fail(p, "a parameter without a default follows one with a default");
    }
    expect_op(p, ")");
    macro->macro.params = params;
    macro->macro.n_params = n;
    macro->macro.defaults = defaults.list.items;
    macro->macro.n_defaults = (int)defaults.list.n;
    p->macro = here.outer;
}

static struct node *parse_macro(struct parser *p, int line)
{
    struct node *n = new_node(p, NODE_MACRO, line);
    n->macro.name = name_token(p);
    n->macro.name_text = p->program->names[n->macro.name];
    parse_signature(p, n);
    n->macro.body = parse_function_body(p, n, "macro", "endmacro");
    return n;
}

static struct node *parse_call_block(struct parser *p, int line)
{
    struct node *n = new_node(p, NODE_CALL_BLOCK, line);
    n->macro.name = -1;
    n->macro.name_text = new_jstr(p, "caller", 6);
    if (at_op(p, "("))
        parse_signature(p, n);
    n->macro.call = parse_expression(p);
    if (n->macro.call->type != NODE_CALL)
        parse_fail(p, "expected a call in the call tag");
    n->macro.body = parse_function_body(p, n, "call", "endcall");
    return n;
}

static struct node *parse_with(struct parser *p, int line)
{
    struct node *n = new_node(p, NODE_WITH, line);
    struct node_vec targets = {0}, values = {0};
    while (p->tok.type != TOKEN_BLOCK_END && !at_op(p, ":")) {
        if (targets.list.n)
            expect_op(p, ",");
        node_push(p, &targets, parse_target(p, false, NULL));
        expect_op(p, "=");
        node_push(p, &values, parse_expression(p));
    }
    n->block.targets = targets.list;
    n->block.values = values.list;
    n->block.body = parse_whole_body(p, "with", line, "endwith");
    return n;
}

static struct node *parse_block(struct parser *p, int line)
{
    struct node *n = new_node(p, NODE_SCOPE, line);
    int name = name_token(p);
    skip_name(p, "scoped");
    skip_name(p, "required");
    n->block.body = parse_function_body(p, NULL, "block", "endblock");
    if (p->tok.type == TOKEN_NAME && name_token(p) != name)
        parse_fail(p, "the endblock names another block");
    return n;
}

/* The statement after "{%"; NULL if it does nothing. */
static struct node *parse_statement(struct parser *p)
{
    struct token t = p->tok;
    int line = t.line;
    if (t.type != TOKEN_NAME)
        parse_fail(p, "expected the name of a tag after '{%%'");
    if (skip_name(p, "for"))
        return parse_for(p, line);
    if (skip_name(p, "if"))
        return parse_if(p, line);
    if (skip_name(p, "set"))
        return parse_set(p, line);
    if (skip_name(p, "macro"))
        return parse_macro(p, line);
    if (skip_name(p, "call"))
        return parse_call_block(p, line);
    if (skip_name(p, "with"))
        return parse_with(p, line);
    if (skip_name(p, "block"))
        return parse_block(p, line);
    if (skip_name(p, "filter")) {
        struct node *n = new_node(p, NODE_FILTER_BLOCK, line);
        n->block.filter = parse_filters(p, NULL, true);
        n->block.body = parse_whole_body(p, "filter", line, "endfilter");
        return n;
    }
    if (skip_name(p, "generation")) {
        struct node *n = new_node(p, NODE_SCOPE, line);
        n->block.body = parse_function_body(p, NULL, "generation", "endgeneration");
        return n;
    }
    if (skip_name(p, "print")) {
        struct node *n = new_node(p, NODE_OUTPUT, line);
        struct node_vec parts = {0};
        do
            node_push(p, &parts, parse_expression(p));
        while (skip_op(p, ","));
        n->operand = new_node(p, NODE_CONCAT, line);
        n->operand->list = parts.list;
        return n;
    }
    if (at_name(p, "break") || at_name(p, "continue")) {
        if (!p->loops)
            parse_fail(p, "'%.*s' outside of a loop", (int)t.len, t.text);
        parser_advance(p);
        return new_node(p, t.len == 5 ? NODE_BREAK : NODE_CONTINUE, line);
    }
    if (at_name(p, "include") || at_name(p, "import") || at_name(p, "from") || at_name(p, "extends"))
        parse_fail(p, "'%.*s' is not possible: a chat template is a single file", (int)t.len, t.text);
    if (p->n_open)
        parse_fail(p, "unknown tag '%.*s' (inside the '%s' of line %d)", (int)(t.len > 40 ? 40 : t.len),
                   t.text, p->open[p->n_open - 1].tag, p->open[p->n_open - 1].line);
    parse_fail(p, "unknown tag '%.*s'", (int)(t.len > 40 ? 40 : t.len), t.text);
}

/* --- the whole -------------------------------------------------------------------------------------- */

static void parse_all(struct parser *p, const char *source, size_t len)
{
    struct program *pr = p->program;
    pr->caller = intern(p, "caller", 6);
    pr->varargs = intern(p, "varargs", 7);
    pr->kwargs = intern(p, "kwargs", 6);
    pr->loop = intern(p, "loop", 4);
    lexer_init(&p->lx, source, len);
    p->ahead = lexer_next(&p->lx);
    parser_advance(p);
    pr->body = parse_until(p, NULL);
}

struct program *program_parse(const char *source, size_t len, struct err *e)
{
    struct err ignored;
    jmp_buf escape;
    if (len > JINJA_MAX_SOURCE) {
        err_set(e, ERR_LIMIT, "chat template: %zu bytes, at most %zu are allowed", len, JINJA_MAX_SOURCE);
        return NULL;
    }
    size_t valid = utf8_valid_prefix(source, len);
    if (valid < len) {
        err_set(e, ERR_INVALID, "chat template: byte %zu is not valid UTF-8", valid);
        return NULL;
    }
    struct program *const pr = calloc(1, sizeof *pr);
    struct parser *const p = calloc(1, sizeof *p);
    if (!pr || !p) {
        free(pr);
        free(p);
        err_set(e, ERR_NO_MEMORY, "chat template: out of memory");
        return NULL;
    }
    pr->arena.limit = JINJA_MAX_PARSED;
    p->program = pr;
    p->lx.arena = &pr->arena;
    p->lx.err = e ? e : &ignored;
    p->lx.escape = &escape;
    p->lx.line = 1;
    if (setjmp(escape)) {
        free(p);
        program_free(pr);
        return NULL;
    }
    parse_all(p, source, len);
    free(p);
    return pr;
}

void program_free(struct program *p)
{
    if (!p)
        return;
    jinja_arena_free(&p->arena);
    free(p);
}
