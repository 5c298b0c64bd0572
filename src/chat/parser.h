/* What the two halves of the parser share: parser.c reads statements, parse_expr.c expressions. */
#ifndef SLUICE_CHAT_PARSER_H
#define SLUICE_CHAT_PARSER_H

#include "chat/ast.h"
#include "chat/lexer.h"
#include "chat/limits.h"

struct parser {
    struct lexer lx;
    struct token tok, ahead; /* the current token and the one after it */
    struct program *program;
    int names_cap;
    int *name_index; /* open addressing: number + 1 of the name, 0 = free */
    size_t n_index;
    int depth;            /* nesting, against JINJA_MAX_NESTING */
    int loops;            /* `for` bodies around the current statement, up to the innermost macro */
    bool soft;            /* inside an `if`: an unknown filter is an error only when it is reached */
    struct node *unknown; /* the first unknown filter or test of this statement that is not soft, or NULL */
    struct open_macro {
        struct node *node;
        struct open_macro *outer;
    } * macro; /* innermost macro or call block around */
    struct {
        const char *tag;
        int line;
    } open[JINJA_MAX_NESTING + 1]; /* blocks not yet closed, for messages */
    int n_open;
};

/* A list under construction, in arena memory. */
struct node_vec {
    struct node_list list;
    size_t cap;
};
void node_push(struct parser *p, struct node_vec *v, struct node *n);

struct node *new_node(struct parser *p, enum node_type type, int line);
const struct jstr *new_jstr(struct parser *p, const char *bytes, size_t len);
/* The number of a variable name. */
int intern(struct parser *p, const char *name, size_t len);

_Noreturn void parse_fail(struct parser *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void parser_advance(struct parser *p);
bool at_op(const struct parser *p, const char *op);
bool at_name(const struct parser *p, const char *name);
bool skip_op(struct parser *p, const char *op);
bool skip_name(struct parser *p, const char *name);
void expect_op(struct parser *p, const char *op);
void expect_type(struct parser *p, enum token_type type);
/* "'x'", "end of statement block" …, for messages; in a buffer of the caller. */
const char *describe(const struct token *t, char *buf, size_t size);
void parser_enter(struct parser *p);
static inline void parser_leave(struct parser *p)
{
    p->depth--;
}

struct node *parse_expression(struct parser *p);
/* a, b, c or a single expression. `cond`: `x if y` is allowed; `end` (may be NULL): a name that ends it. */
struct node *parse_tuple(struct parser *p, bool cond, const char *end);
/* Filters "| f | g(…)" applied to input (NULL: a block's text). `inline_first`: the first has no "|". */
struct node *parse_filters(struct parser *p, struct node *input, bool inline_first);
/* Something that can be assigned to: a name, a tuple of such, or with `ns` a namespace's attribute. */
struct node *parse_target(struct parser *p, bool ns, const char *end);

#endif
