/* The state of one render: its arena, what is left of its budgets, and the text under construction.
 *
 * There is one text buffer. Whatever needs a string made piece by piece (a macro's result, a set block, repr,
 * tojson, join) notes the buffer's length, appends, and takes the tail off again with vm_take.
 *
 * Failing leaves by longjmp to the one setjmp of vm_run: hundreds of small operations can fail, all memory is
 * the arena's and the buffer's, and so nothing between needs to clean up. Outside vm_run errors are values.
 */
#ifndef SLUICE_CHAT_VM_H
#define SLUICE_CHAT_VM_H

#include <jansson.h>
#include <setjmp.h>

#include "base/error.h"
#include "chat/arena.h"
#include "chat/value.h"

struct program;

struct vm {
    struct arena arena;
    jmp_buf escape;
    struct err *err;
    int64_t steps; /* left */
    int depth;     /* of vm_enter */
    int line;      /* of the template, being evaluated */

    char *text;       /* [text_len], text_cap bytes of room */
    uint8_t *literal; /* [text_len] */
    size_t text_len, text_cap;

    const struct program *program;
    const json_t *context;
    int64_t now;
    struct value *globals; /* [program->n_names]: context variables and built-ins; MISSING until looked up */
    struct scope *scope;   /* innermost */
};

/* Runs body(vm) with at most `steps` steps. Returns 0, or -1 and *e if it failed. The caller has set program,
 * context and now, takes text and literal, and calls vm_close. */
int vm_run(struct vm *vm, int64_t steps, void (*body)(struct vm *vm), struct err *e);
void vm_close(struct vm *vm);

/* Ends the render with ERR_INVALID, the template's line put before the message. */
_Noreturn void vm_fail(struct vm *vm, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* raise_exception: ERR_RAISED and the message alone. */
_Noreturn void vm_raise(struct vm *vm, const char *message, size_t len);

/* Arena memory for count items of `size` bytes, uninitialised. */
void *vm_alloc(struct vm *vm, size_t count, size_t size);
/* Takes `work` steps from the budget: loops over items charge one a item, over bytes one per 32. */
void vm_charge(struct vm *vm, size_t work);
static inline void vm_charge_bytes(struct vm *vm, size_t bytes)
{
    vm_charge(vm, bytes / 32 + 1);
}
/* The same for loops that look at each character. */
static inline void vm_charge_chars(struct vm *vm, size_t bytes)
{
    vm_charge(vm, bytes / 8 + 1);
}
/* Around everything that recurses. */
void vm_enter(struct vm *vm);
static inline void vm_leave(struct vm *vm)
{
    vm->depth--;
}

void vm_put(struct vm *vm, const char *bytes, size_t n, bool literal);
void vm_puts(struct vm *vm, const char *text); /* text of our own, not from the context */
void vm_put_jstr(struct vm *vm, const struct jstr *s);
void vm_put_sub(struct vm *vm, const struct jstr *s, size_t offset, size_t len);
void vm_put_repeat(struct vm *vm, const struct jstr *s, wide_int times);
/* The text from `start` on, as a string; the buffer is cut back to start. */
const struct jstr *vm_take(struct vm *vm, size_t start);
static inline struct value vm_take_value(struct vm *vm, size_t start)
{
    return val_str(vm_take(vm, start));
}

#endif
