#include "api/parts.h"

#include <stdlib.h>

#include "base/mem.h"

static void free_calls(struct parts *p)
{
    for (int i = 0; i < p->n_calls; i++) {
        str_free(&p->calls[i].name);
        str_free(&p->calls[i].arguments);
    }
    p->n_calls = 0;
}

void parts_free(struct parts *p)
{
    str_free(&p->reasoning);
    str_free(&p->content);
    free_calls(p);
    free(p->calls);
    *p = (struct parts){0};
}

void parts_clear(struct parts *p)
{
    str_clear(&p->reasoning);
    str_clear(&p->content);
    free_calls(p);
}

bool parts_empty(const struct parts *p)
{
    return p->reasoning.len == 0 && p->content.len == 0 && p->n_calls == 0;
}

static struct call_part *add_call(struct parts *p, int index)
{
    if (p->n_calls == p->cap_calls) {
        p->cap_calls = p->cap_calls ? 2 * p->cap_calls : 4;
        p->calls = mem_realloc(p->calls, (size_t)p->cap_calls, sizeof *p->calls);
    }
    struct call_part *c = &p->calls[p->n_calls++];
    *c = (struct call_part){.index = index};
    return c;
}

void parts_open_call(struct parts *p, int index, const char *name, size_t len)
{
    struct call_part *c = add_call(p, index);
    c->opens = true;
    str_add(&c->name, name, len);
}

void parts_add_arguments(struct parts *p, int index, const char *text, size_t len)
{
    struct call_part *last = p->n_calls ? &p->calls[p->n_calls - 1] : NULL;
    if (!last || last->index != index)
        last = add_call(p, index);
    str_add(&last->arguments, text, len);
}
