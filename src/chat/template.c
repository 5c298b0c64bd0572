/* The public face of the interpreter: parse, render, and find out by rendering what a template can do. */
#include "chat/template.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "chat/ast.h"
#include "chat/caps.h"
#include "chat/eval.h"
#include "chat/limits.h"

struct chat_template {
    char *source;
    struct program *program;
    struct chat_caps caps;
};

static void run_program(struct vm *vm)
{
    size_t n = (size_t)vm->program->n_names;
    vm->globals = vm_alloc(vm, n, sizeof *vm->globals);
    memset(vm->globals, 0, n * sizeof *vm->globals); /* all VAL_MISSING */
    vm->scope = scope_new(vm, NULL);
    exec_list(vm, &vm->program->body);
}

int program_render(const struct program *p, const json_t *context, int64_t now, int64_t steps,
                   struct chat_text *out, struct err *e)
{
    *out = (struct chat_text){0};
    if (!json_is_object(context))
        return err_set(e, ERR_INVALID, "chat template: the context must be a JSON object");
    struct vm *vm = mem_zalloc(1, sizeof *vm);
    vm->program = p;
    vm->context = context;
    vm->now = now;
    int rc = vm_run(vm, steps, run_program, e);
    if (!rc) {
        out->len = vm->text_len;
        out->text = vm->text ? vm->text : mem_strdup("");
        out->literal = vm->literal ? vm->literal : mem_zalloc(1, 1);
        out->text[out->len] = '\0'; /* the buffer has room for it */
        vm->text = NULL;
        vm->literal = NULL;
    }
    vm_close(vm);
    free(vm);
    return rc;
}

struct chat_template *chat_template_parse(const char *source, size_t len, struct err *e)
{
    struct program *p = program_parse(source, len, e);
    if (!p)
        return NULL;
    struct chat_template *t = mem_zalloc(1, sizeof *t);
    t->source = mem_strndup(source, len);
    t->program = p;
    caps_probe(p, &t->caps);
    return t;
}

void chat_template_free(struct chat_template *t)
{
    if (!t)
        return;
    program_free(t->program);
    free(t->source);
    free(t);
}

const char *chat_template_source(const struct chat_template *t)
{
    return t->source;
}

int chat_template_render(const struct chat_template *t, const json_t *context, int64_t now,
                         struct chat_text *out, struct err *e)
{
    return program_render(t->program, context, now, JINJA_MAX_STEPS, out, e);
}

void chat_text_free(struct chat_text *t)
{
    free(t->text);
    free(t->literal);
    *t = (struct chat_text){0};
}

const struct chat_caps *chat_template_caps(const struct chat_template *t)
{
    return &t->caps;
}
