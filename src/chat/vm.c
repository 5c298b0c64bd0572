#include "chat/vm.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "chat/limits.h"

int vm_run(struct vm *vm, int64_t steps, void (*body)(struct vm *vm), struct err *e)
{
    struct err ignored;
    vm->err = e ? e : &ignored;
    vm->steps = steps;
    vm->arena.limit = JINJA_MAX_VALUES;
    vm->line = 1;
    if (setjmp(vm->escape))
        return -1;
    body(vm);
    return 0;
}

void vm_close(struct vm *vm)
{
    free(vm->text);
    free(vm->literal);
    vm->text = NULL;
    vm->literal = NULL;
    jinja_arena_free(&vm->arena);
}

/* Cuts a message that was truncated inside a character back to whole ones. */
static void whole_characters(char *msg)
{
    msg[utf8_valid_prefix(msg, strlen(msg))] = '\0';
}

void vm_fail(struct vm *vm, const char *fmt, ...)
{
    char msg[sizeof vm->err->msg];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    err_set(vm->err, ERR_INVALID, "chat template, line %d: %s", vm->line, msg);
    whole_characters(vm->err->msg);
    longjmp(vm->escape, 1);
}

void vm_raise(struct vm *vm, const char *message, size_t len)
{
    err_set(vm->err, ERR_RAISED, "%.*s", len > 4096 ? 4096 : (int)len, message);
    whole_characters(vm->err->msg);
    longjmp(vm->escape, 1);
}

void *vm_alloc(struct vm *vm, size_t count, size_t size)
{
    void *p = jinja_arena_alloc(&vm->arena, count, size);
    if (!p)
        vm_fail(vm, "the template needs more than %zu MiB of values", JINJA_MAX_VALUES >> 20);
    return p;
}

void vm_charge(struct vm *vm, size_t work)
{
    if (work > (size_t)vm->steps) {
        vm->steps = 0;
        vm_fail(vm, "the template does too much work: its limit of steps is used up");
    }
    vm->steps -= (int64_t)work;
}

void vm_enter(struct vm *vm)
{
    if (++vm->depth > JINJA_MAX_DEPTH)
        vm_fail(vm, "too deep: more than %d expressions, blocks or macro calls inside each other",
                JINJA_MAX_DEPTH);
}

/* Makes room for n more bytes of text. */
static void reserve(struct vm *vm, size_t n)
{
    if (n > JINJA_MAX_OUTPUT - vm->text_len)
        vm_fail(vm, "the text grows past %zu MiB", JINJA_MAX_OUTPUT >> 20);
    size_t need = vm->text_len + n + 1;
    if (need <= vm->text_cap)
        return;
    size_t cap = vm->text_cap ? vm->text_cap : 1024;
    while (cap < need)
        cap *= 2;
    char *text = realloc(vm->text, cap);
    if (text)
        vm->text = text;
    uint8_t *literal = realloc(vm->literal, cap);
    if (literal)
        vm->literal = literal;
    if (!text || !literal)
        vm_fail(vm, "out of memory for %zu bytes of text", cap);
    vm->text_cap = cap;
}

void vm_put(struct vm *vm, const char *bytes, size_t n, bool literal)
{
    if (!n)
        return;
    reserve(vm, n);
    vm_charge_bytes(vm, n);
    memcpy(vm->text + vm->text_len, bytes, n);
    memset(vm->literal + vm->text_len, literal, n);
    vm->text_len += n;
}

void vm_puts(struct vm *vm, const char *text)
{
    vm_put(vm, text, strlen(text), false);
}

void vm_put_sub(struct vm *vm, const struct jstr *s, size_t offset, size_t len)
{
    size_t at = vm->text_len;
    vm_put(vm, s->bytes + offset, len, s->literal);
    if (s->marks && len)
        memcpy(vm->literal + at, s->marks + offset, len);
}

void vm_put_jstr(struct vm *vm, const struct jstr *s)
{
    vm_put_sub(vm, s, 0, s->len);
}

void vm_put_repeat(struct vm *vm, const struct jstr *s, wide_int times)
{
    if (times <= 0 || !s->len)
        return;
    if (times > (wide_int)(JINJA_MAX_OUTPUT / s->len))
        vm_fail(vm, "the text grows past %zu MiB", JINJA_MAX_OUTPUT >> 20);
    reserve(vm, s->len * (size_t)times);
    for (wide_int i = 0; i < times; i++)
        vm_put_jstr(vm, s);
}

const struct jstr *vm_take(struct vm *vm, size_t start)
{
    size_t n = vm->text_len - start;
    struct jstr *s = vm_alloc(vm, 1, sizeof *s);
    *s = (struct jstr){.len = n, .chars = -1};
    char *bytes = vm_alloc(vm, n, 1);
    if (n) {
        vm_charge_bytes(vm, n);
        memcpy(bytes, vm->text + start, n);
        const uint8_t *marks = vm->literal + start;
        s->literal = marks[0];
        if (memchr(marks, !marks[0], n)) {
            uint8_t *copy = vm_alloc(vm, n, 1);
            memcpy(copy, marks, n);
            s->marks = copy;
        }
    }
    s->bytes = bytes;
    vm->text_len = start;
    return s;
}
