/* Insertion-ordered dicts with Python's keys: 1, 1.0 and True are one key. */
#include <math.h>
#include <string.h>

#include "chat/jstr.h"
#include "chat/value.h"
#include "chat/vm.h"

#define DICT_SMALL 8

bool val_hashable(struct value v)
{
    switch (v.type) {
    case VAL_LIST:
    case VAL_DICT:
        return false;
    case VAL_TUPLE:
        for (size_t i = 0; i < v.seq->n; i++)
            if (!val_hashable(v.seq->items[i]))
                return false;
        return true;
    default:
        return true;
    }
}

static uint64_t mix(uint64_t h)
{
    h ^= h >> 33;
    h *= 0xff51afd7ed558ccdu;
    h ^= h >> 33;
    h *= 0xc4ceb9fe1a85ec53u;
    return h ^ h >> 33;
}

static uint64_t hash_bytes(const char *bytes, size_t len)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)bytes[i]) * 0x100000001b3u;
    return mix(h);
}

static uint64_t hash_value(struct vm *vm, struct value v)
{
    switch (v.type) {
    case VAL_STR:
        vm_charge_bytes(vm, v.str->len);
        return hash_bytes(v.str->bytes, v.str->len);
    case VAL_BOOL:
    case VAL_INT:
        return mix((uint64_t)val_integer(v));
    case VAL_FLOAT:
        if (v.f == floor(v.f) && fabs(v.f) < 0x1p127)
            return mix((uint64_t)(wide_int)v.f);
        return hash_bytes((const char *)&v.f, sizeof v.f);
    case VAL_TUPLE: {
        uint64_t h = 1;
        vm_enter(vm);
        for (size_t i = 0; i < v.seq->n; i++)
            h = mix(h * 31 + hash_value(vm, v.seq->items[i]));
        vm_leave(vm);
        return h;
    }
    case VAL_LIST:
    case VAL_DICT:
        vm_fail(vm, "unhashable type: '%s'", val_type_name(v));
    case VAL_NONE:
    case VAL_UNDEFINED:
    case VAL_MISSING:
        return (uint64_t)v.type;
    case VAL_RANGE:
        return mix(v.range->n);
    default:
        return mix((uint64_t)(uintptr_t)v.seq);
    }
}

struct dict *dict_new(struct vm *vm, size_t cap)
{
    struct dict *d = vm_alloc(vm, 1, sizeof *d);
    *d = (struct dict){.cap = cap};
    d->entries = vm_alloc(vm, cap, sizeof *d->entries);
    return d;
}

/* The slot of the index that holds the key's entry, or a free one. */
static uint32_t *probe(struct vm *vm, const struct dict *d, struct value key, uint64_t hash)
{
    for (size_t at = hash & (d->n_index - 1);; at = (at + 1) & (d->n_index - 1)) {
        uint32_t *slot = &d->index[at];
        if (!*slot)
            return slot;
        const struct dict_entry *e = &d->entries[*slot - 1];
        if (e->hash == hash && val_equal(vm, e->key, key))
            return slot;
        vm_charge(vm, 1);
    }
}

static const struct dict_entry *find(struct vm *vm, const struct dict *d, struct value key)
{
    if (!d->index) {
        if (!val_hashable(key))
            vm_fail(vm, "unhashable type: '%s'", val_type_name(key));
        for (size_t i = 0; i < d->n; i++)
            if (val_equal(vm, d->entries[i].key, key))
                return &d->entries[i];
        return NULL;
    }
    uint32_t slot = *probe(vm, d, key, hash_value(vm, key));
    return slot ? &d->entries[slot - 1] : NULL;
}

const struct value *dict_get(struct vm *vm, const struct dict *d, struct value key)
{
    const struct dict_entry *e = find(vm, d, key);
    return e ? &e->value : NULL;
}

const struct value *dict_get_str(struct vm *vm, const struct dict *d, const struct jstr *key)
{
    return dict_get(vm, d, val_str(key));
}

static void reindex(struct vm *vm, struct dict *d)
{
    d->n_index = 32;
    while (d->n_index < d->cap * 2)
        d->n_index *= 2;
    d->index = vm_alloc(vm, d->n_index, sizeof *d->index);
    memset(d->index, 0, d->n_index * sizeof *d->index);
    for (size_t i = 0; i < d->n; i++) {
        d->entries[i].hash = hash_value(vm, d->entries[i].key);
        *probe(vm, d, d->entries[i].key, d->entries[i].hash) = (uint32_t)i + 1;
    }
}

void dict_set(struct vm *vm, struct dict *d, struct value key, struct value value)
{
    struct dict_entry *e = (struct dict_entry *)find(vm, d, key);
    if (e) {
        e->value = value;
        return;
    }
    bool grown = d->n == d->cap;
    if (grown) {
        size_t cap = d->cap < 4 ? 4 : d->cap * 2;
        struct dict_entry *entries = vm_alloc(vm, cap, sizeof *entries);
        if (d->n)
            memcpy(entries, d->entries, d->n * sizeof *entries);
        d->entries = entries;
        d->cap = cap;
    }
    e = &d->entries[d->n++];
    *e = (struct dict_entry){key, value, 0};
    if (d->index && !grown) {
        e->hash = hash_value(vm, key);
        *probe(vm, d, key, e->hash) = (uint32_t)d->n;
    } else if (d->index || d->n > DICT_SMALL) {
        reindex(vm, d);
    }
}
