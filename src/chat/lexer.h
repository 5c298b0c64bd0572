/* Template text to tokens, as Jinja with trim_blocks and lstrip_blocks does it: a newline after a block tag
 * goes, and so does white space before a block tag that starts a line; "-" in a tag strips all white space on
 * that side,
 * "+" keeps it. */
#ifndef SLUICE_CHAT_LEXER_H
#define SLUICE_CHAT_LEXER_H

#include <setjmp.h>

#include "base/error.h"
#include "chat/arena.h"
#include "chat/value.h"

enum token_type {
    TOKEN_EOF,
    TOKEN_TEXT, /* between tags; never empty */
    TOKEN_VARIABLE_BEGIN,
    TOKEN_VARIABLE_END,
    TOKEN_BLOCK_BEGIN,
    TOKEN_BLOCK_END,
    TOKEN_NAME,
    TOKEN_STRING,
    TOKEN_NUMBER,
    TOKEN_OPERATOR,
};

struct token {
    enum token_type type;
    int line;
    const char *text; /* [len]: TEXT, NAME, OPERATOR as written; STRING with escapes resolved */
    size_t len;
    struct value number; /* INT or FLOAT */
};

struct lexer {
    struct arena *arena;
    struct err *err;
    jmp_buf *escape; /* where errors go */
    const char *src; /* [len], newlines normalised */
    size_t len, pos;
    int line;
    enum { LEX_TEXT, LEX_BLOCK, LEX_VARIABLE } mode;
    bool line_starting;      /* what was read last ended with a newline, or nothing was read */
    enum token_type pending; /* the tag that follows the text just returned, or TOKEN_EOF */
    char open[256];          /* brackets not yet closed in this tag */
    int n_open;
};

/* Starts on source; normalises newlines into arena memory. */
void lexer_init(struct lexer *lx, const char *source, size_t len);
struct token lexer_next(struct lexer *lx);
/* Leaves with ERR_INVALID "chat template, line N: …". */
_Noreturn void lexer_fail(struct lexer *lx, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void *lexer_alloc(struct lexer *lx, size_t count, size_t size);

#endif
