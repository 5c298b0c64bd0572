/* The syntax tree of a template. It is made once, never changed, and shared by all renders. Names of
 * variables are numbers: indices into program.names. */
#ifndef SLUICE_CHAT_AST_H
#define SLUICE_CHAT_AST_H

#include "base/error.h"
#include "chat/arena.h"
#include "chat/value.h"

enum node_type {
    /* expressions */
    NODE_CONST,
    NODE_NAME,
    NODE_TUPLE,
    NODE_LIST,
    NODE_DICT,
    NODE_NOT,
    NODE_NEG,
    NODE_POS,
    NODE_BINARY,
    NODE_CONCAT, /* a ~ b ~ c */
    NODE_AND,
    NODE_OR,
    NODE_COMPARE, /* a < b <= c */
    NODE_COND,    /* a if test else b */
    NODE_GETATTR,
    NODE_GETITEM,
    NODE_SLICE,
    NODE_CALL,
    NODE_FILTER,
    NODE_TEST,
    NODE_NSREF, /* target of `set ns.name` only */
    /* statements */
    NODE_TEXT,
    NODE_OUTPUT,
    NODE_IF,
    NODE_FOR,
    NODE_SET,
    NODE_SET_BLOCK,
    NODE_MACRO,
    NODE_CALL_BLOCK,
    NODE_FILTER_BLOCK,
    NODE_WITH,
    NODE_SCOPE, /* a block whose variables stay inside: `block`, `generation` */
    NODE_BREAK,
    NODE_CONTINUE,
};

enum op {
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
    OP_POW,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOT_IN,
};

struct node_list {
    struct node **items; /* [n] */
    size_t n;
};

/* The arguments of a call as written: f(a, b, k=c, *more, **named). */
struct call_args {
    struct node_list positional;
    struct node_list keyword;
    const struct jstr **keyword_names; /* [keyword.n] */
    struct node *star, *star_star;     /* or NULL */
};

struct node {
    enum node_type type;
    int line;
    union {
        struct value constant; /* CONST; TEXT: its string */
        int name;              /* NAME */
        struct node_list list; /* TUPLE, LIST, CONCAT; DICT: key, value, key, value … */
        struct node *operand;  /* NOT, NEG, POS, OUTPUT */
        struct {
            enum op op;
            struct node *left, *right;
        } binary; /* BINARY; AND, OR without op */
        struct {
            struct node *first;
            struct node_list rest;
            const enum op *ops; /* [rest.n] */
        } compare;
        struct {
            struct node *test, *yes, *no; /* no may be NULL */
        } cond;
        struct {
            struct node *object;
            const struct jstr *name;
        } attr; /* GETATTR */
        struct {
            struct node *object, *index;
        } item; /* GETITEM */
        struct {
            struct node *object, *start, *stop, *step; /* bounds may be NULL */
        } slice;
        struct {
            struct node *callee;
            struct call_args args;
        } call;
        struct {
            struct node *input;        /* NULL: the text of the block (SET_BLOCK, FILTER_BLOCK) */
            const struct builtin *def; /* NULL: no such filter or test; an error when reached */
            const struct jstr *name;
            struct call_args args;
        } apply; /* FILTER, TEST */
        struct {
            int object;
            const struct jstr *name;
        } nsref;
        struct {
            struct node_list tests;   /* if, elif … */
            struct node_list *bodies; /* [tests.n] */
            struct node_list otherwise;
        } branches; /* IF */
        struct {
            struct node *target, *iterable, *test; /* test may be NULL */
            struct node_list body, otherwise;
            bool recursive;
        } loop; /* FOR */
        struct {
            struct node *target, *value; /* value: SET's expression, SET_BLOCK's filters or NULL */
            struct node_list body;       /* SET_BLOCK */
        } set;
        struct {
            int name; /* MACRO; -1 for a call block */
            const struct jstr *name_text;
            const int *params; /* [n_params] names */
            int n_params, n_defaults;
            struct node **defaults; /* [n_defaults], of the last parameters */
            struct node_list body;
            struct node *call; /* CALL_BLOCK: what is called with the block as `caller` */
            bool uses_caller, uses_varargs, uses_kwargs;
        } macro; /* MACRO, CALL_BLOCK */
        struct {
            struct node *filter;              /* FILTER_BLOCK */
            struct node_list targets, values; /* WITH */
            struct node_list body;
        } block; /* FILTER_BLOCK, WITH, SCOPE */
    };
};

struct program {
    struct arena arena;
    struct node_list body;
    const struct jstr **names; /* [n_names] */
    int n_names;
    int caller, varargs, kwargs, loop; /* these names' numbers */
};

/* Parses source; NULL and *e (ERR_INVALID, the line named) if it is malformed or past a limit. */
struct program *program_parse(const char *source, size_t len, struct err *e);
void program_free(struct program *p);

#endif
