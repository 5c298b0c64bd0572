/* The tensors found in one or several files: collected, then sorted by name so that they can be looked up. */
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "file/internal.h"

/* Makes room for one more item in an array of `n`; returns the array. */
static void *grown(void *items, int n, int *cap, size_t item_size)
{
    if (n < *cap)
        return items;
    *cap = *cap ? (*cap > INT_MAX / 2 ? INT_MAX : *cap * 2) : 64;
    return mem_realloc(items, (size_t)*cap, item_size);
}

void tensor_list_add(struct tensor_list *l, const struct tensor *t)
{
    l->tensors = grown(l->tensors, l->n, &l->cap, sizeof *l->tensors);
    struct tensor *added = &l->tensors[l->n++];
    *added = *t;
    added->name = mem_strdup(t->name);
}

struct unread_tensor *tensor_list_add_unread(struct tensor_list *l, const char *name, const char *why_fmt,
                                             ...)
{
    char why[256];
    va_list ap;
    va_start(ap, why_fmt);
    vsnprintf(why, sizeof why, why_fmt, ap);
    va_end(ap);
    l->unread = grown(l->unread, l->n_unread, &l->cap_unread, sizeof *l->unread);
    l->unread[l->n_unread] = (struct unread_tensor){.name = mem_strdup(name), .why = mem_strdup(why)};
    return &l->unread[l->n_unread++];
}

void tensor_list_free(struct tensor_list *l)
{
    for (int i = 0; i < l->n; i++) {
        free((char *)l->tensors[i].name);
        free(l->tensors[i].packed);
    }
    for (int i = 0; i < l->n_unread; i++) {
        free(l->unread[i].name);
        free(l->unread[i].why);
    }
    free(l->tensors);
    free(l->unread);
    *l = (struct tensor_list){0};
}

/* Both kinds of entry begin with their name, which is all that sorting and searching look at. */
static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int compare_key(const void *key, const void *entry)
{
    return strcmp(key, *(const char *const *)entry);
}

_Static_assert(offsetof(struct tensor, name) == 0 && offsetof(struct unread_tensor, name) == 0,
               "by_name reads the name at the front");

const struct tensor *tensor_list_find(const struct tensor_list *l, const char *name)
{
    return l->n ? bsearch(name, l->tensors, (size_t)l->n, sizeof *l->tensors, compare_key) : NULL;
}

const struct unread_tensor *tensor_list_find_unread(const struct tensor_list *l, const char *name)
{
    return l->n_unread ? bsearch(name, l->unread, (size_t)l->n_unread, sizeof *l->unread, compare_key) : NULL;
}

int tensor_list_sort(struct tensor_list *l, struct err *e)
{
    const char *twice = NULL;
    if (l->n)
        qsort(l->tensors, (size_t)l->n, sizeof *l->tensors, by_name);
    if (l->n_unread)
        qsort(l->unread, (size_t)l->n_unread, sizeof *l->unread, by_name);
    for (int i = 1; i < l->n && !twice; i++)
        if (strcmp(l->tensors[i - 1].name, l->tensors[i].name) == 0)
            twice = l->tensors[i].name;
    for (int i = 0; i < l->n_unread && !twice; i++)
        if ((i && strcmp(l->unread[i - 1].name, l->unread[i].name) == 0) ||
            tensor_list_find(l, l->unread[i].name))
            twice = l->unread[i].name;
    if (twice)
        return err_set(e, ERR_INVALID, "there are two tensors named '%s'", twice);
    return 0;
}

static int by_begin(const void *a, const void *b)
{
    const struct byte_range *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end); /* an empty range before a full one that begins with it */
}

int byte_ranges_check(struct byte_range *r, size_t n, struct err *e)
{
    if (n)
        qsort(r, n, sizeof *r, by_begin);
    for (size_t i = 1; i < n; i++)
        if (r[i].begin < r[i - 1].end)
            return err_set(e, ERR_INVALID, "the tensors '%s' and '%s' lie on the same bytes of the file",
                           r[i - 1].name, r[i].name);
    return 0;
}

bool name_is_valid(const char *name, size_t len)
{
    if (len == 0 || len > 65535 || utf8_valid_prefix(name, len) != len)
        return false;
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7F)
            return false;
    return true;
}
