#include "chat/str_methods.h"

#include "chat/format.h"
#include "chat/jstr.h"
#include "chat/print.h"

/* The mark of the byte at offset i. */
static bool mark_at(const struct jstr *s, size_t i)
{
    return s->marks ? s->marks[i] : s->literal;
}

/* --- case
 * ---------------------------------------------------------------------------------------------------- */

enum word_case { WORDS_UPPER, WORDS_LOWER, WORDS_CAPITALIZE, WORDS_TITLE, WORDS_SWAP };

static const struct jstr *change_case(struct vm *vm, const struct jstr *s, enum word_case how)
{
    size_t start = vm->text_len;
    bool in_word = false;
    unsigned cp;
    for (size_t i = 0; i < s->len;) {
        int len = char_at(s->bytes + i, s->len - i, &cp);
        bool cased = char_is_lower(cp) || char_is_upper(cp);
        enum char_case to = CASE_LOWER;
        if (how == WORDS_UPPER || (how == WORDS_SWAP && char_is_lower(cp)))
            to = CASE_UPPER;
        else if ((how == WORDS_CAPITALIZE && i == 0) || (how == WORDS_TITLE && !in_word))
            to = CASE_TITLE;
        in_word = cased;
        char_put_case(vm, cp, to, mark_at(s, i));
        i += (size_t)len;
    }
    return jstr_mark(vm, vm_take(vm, start), s->markup);
}

const struct jstr *str_upper(struct vm *vm, const struct jstr *s)
{
    return change_case(vm, s, WORDS_UPPER);
}

const struct jstr *str_lower(struct vm *vm, const struct jstr *s)
{
    return change_case(vm, s, WORDS_LOWER);
}

const struct jstr *str_capitalize(struct vm *vm, const struct jstr *s)
{
    return change_case(vm, s, WORDS_CAPITALIZE);
}

#define CASE_METHOD(function, how)                                                        \
    static struct value function(struct vm *vm, struct value self, const struct value *a) \
    {                                                                                     \
        (void)a;                                                                          \
        return val_str(change_case(vm, self.str, how));                                   \
    }
CASE_METHOD(m_upper, WORDS_UPPER)
CASE_METHOD(m_lower, WORDS_LOWER)
CASE_METHOD(m_capitalize, WORDS_CAPITALIZE)
CASE_METHOD(m_title, WORDS_TITLE)
CASE_METHOD(m_swapcase, WORDS_SWAP)

/* --- stripping, padding ------------------------------------------------------------------------------------
 */

static struct value strip(struct vm *vm, struct value self, struct value chars, enum jstr_side sides)
{
    const struct jstr *set =
        chars.type == VAL_MISSING || chars.type == VAL_NONE ? NULL : arg_str(vm, chars, "chars", NULL);
    return val_str(jstr_strip(vm, self.str, set, sides));
}

static struct value m_strip(struct vm *vm, struct value self, const struct value *a)
{
    return strip(vm, self, a[0], JSTR_BOTH);
}

static struct value m_lstrip(struct vm *vm, struct value self, const struct value *a)
{
    return strip(vm, self, a[0], JSTR_LEFT);
}

static struct value m_rstrip(struct vm *vm, struct value self, const struct value *a)
{
    return strip(vm, self, a[0], JSTR_RIGHT);
}

static struct value m_removeprefix(struct vm *vm, struct value self, const struct value *a)
{
    const struct jstr *s = self.str, *p = arg_str(vm, a[0], "prefix", NULL);
    return jstr_starts(vm, s, p) ? val_str(jstr_sub(vm, s, p->len, s->len - p->len)) : self;
}

static struct value m_removesuffix(struct vm *vm, struct value self, const struct value *a)
{
    const struct jstr *s = self.str, *p = arg_str(vm, a[0], "suffix", NULL);
    return jstr_ends(vm, s, p) ? val_str(jstr_sub(vm, s, 0, s->len - p->len)) : self;
}

/* s with `left` and `right` times fill around it. */
static struct value padded(struct vm *vm, const struct jstr *s, wide_int left, wide_int right,
                           const struct jstr *fill)
{
    if (jstr_chars(vm, fill) != 1)
        vm_fail(vm, "the fill character must be exactly one character long");
    size_t start = vm->text_len;
    vm_put_repeat(vm, fill, left);
    vm_put_jstr(vm, s);
    vm_put_repeat(vm, fill, right);
    return val_str(jstr_mark(vm, vm_take(vm, start), s->markup));
}

static wide_int missing_width(struct vm *vm, const struct jstr *s, struct value width)
{
    wide_int room = arg_int(vm, width, "width", 0) - (wide_int)jstr_chars(vm, s);
    return room > 0 ? room : 0;
}

static struct value m_ljust(struct vm *vm, struct value self, const struct value *a)
{
    return padded(vm, self.str, 0, missing_width(vm, self.str, a[0]), arg_str(vm, a[1], "fillchar", " "));
}

static struct value m_rjust(struct vm *vm, struct value self, const struct value *a)
{
    return padded(vm, self.str, missing_width(vm, self.str, a[0]), 0, arg_str(vm, a[1], "fillchar", " "));
}

const struct jstr *str_center(struct vm *vm, const struct jstr *s, wide_int width, const struct jstr *fill)
{
    wide_int room = width - (wide_int)jstr_chars(vm, s);
    if (room <= 0)
        return s;
    wide_int left = room / 2 + (room & width & 1); /* Python's way to share an odd space */
    return padded(vm, s, left, room - left, fill).str;
}

static struct value m_center(struct vm *vm, struct value self, const struct value *a)
{
    return val_str(
        str_center(vm, self.str, arg_int(vm, a[0], "width", 0), arg_str(vm, a[1], "fillchar", " ")));
}

static struct value m_zfill(struct vm *vm, struct value self, const struct value *a)
{
    const struct jstr *s = self.str;
    size_t start = vm->text_len;
    size_t sign = s->len && (s->bytes[0] == '+' || s->bytes[0] == '-');
    vm_put_sub(vm, s, 0, sign);
    vm_put_repeat(vm, jstr_c(vm, "0"), missing_width(vm, s, a[0]));
    vm_put_sub(vm, s, sign, s->len - sign);
    return val_str(jstr_mark(vm, vm_take(vm, start), s->markup));
}

static struct value m_expandtabs(struct vm *vm, struct value self, const struct value *a)
{
    wide_int size = arg_int(vm, a[0], "tabsize", 8), column = 0;
    size_t start = vm->text_len;
    unsigned cp;
    for (size_t i = 0; i < self.str->len;) {
        size_t len = (size_t)char_at(self.str->bytes + i, self.str->len - i, &cp);
        if (cp == '\t') {
            wide_int n = size > 0 ? size - column % size : 0;
            vm_put_repeat(vm, jstr_wrap(vm, " ", 1, mark_at(self.str, i)), n);
            column += n;
        } else {
            vm_put_sub(vm, self.str, i, len);
            column = cp == '\n' || cp == '\r' ? 0 : column + 1;
        }
        i += len;
    }
    return val_str(jstr_mark(vm, vm_take(vm, start), self.str->markup));
}

/* --- searching
 * ------------------------------------------------------------------------------------------------ */

/* The part [start:end] of s that the optional arguments name, as byte offsets. False if it is empty by order.
 */
static bool search_range(struct vm *vm, const struct jstr *s, struct value start, struct value end,
                         size_t *from, size_t *to)
{
    *from = 0;
    *to = s->len;
    if (start.type == VAL_MISSING && end.type == VAL_MISSING)
        return true;
    wide_int n = (wide_int)jstr_chars(vm, s);
    wide_int first = start.type == VAL_NONE ? 0 : arg_int(vm, start, "start", 0);
    wide_int last = end.type == VAL_NONE ? n : arg_int(vm, end, "end", n);
    first = first < 0 ? (first + n < 0 ? 0 : first + n) : first;
    last = last < 0 ? (last + n < 0 ? 0 : last + n) : last > n ? n : last;
    if (first > last)
        return false;
    *from = jstr_offset(vm, s, (size_t)first);
    *to = jstr_offset(vm, s, (size_t)last);
    return true;
}

/* The character index of a byte offset. */
static wide_int char_index(struct vm *vm, const struct jstr *s, size_t offset)
{
    return (wide_int)jstr_chars(vm, jstr_sub(vm, s, 0, offset));
}

static wide_int search(struct vm *vm, struct value self, const struct value *a, bool last)
{
    size_t from, to;
    const struct jstr *needle = arg_str(vm, a[0], "sub", NULL);
    if (!search_range(vm, self.str, a[1], a[2], &from, &to))
        return -1;
    const struct jstr *part = jstr_sub(vm, self.str, from, to - from);
    size_t at = last ? jstr_rfind(vm, part, needle, part->len) : jstr_find(vm, part, needle, 0);
    return at == SIZE_MAX ? -1 : char_index(vm, self.str, from + at);
}

static struct value m_find(struct vm *vm, struct value self, const struct value *a)
{
    return val_int(search(vm, self, a, false));
}

static struct value m_rfind(struct vm *vm, struct value self, const struct value *a)
{
    return val_int(search(vm, self, a, true));
}

static struct value found(struct vm *vm, wide_int at)
{
    if (at < 0)
        vm_fail(vm, "substring not found");
    return val_int(at);
}

static struct value m_index(struct vm *vm, struct value self, const struct value *a)
{
    return found(vm, search(vm, self, a, false));
}

static struct value m_rindex(struct vm *vm, struct value self, const struct value *a)
{
    return found(vm, search(vm, self, a, true));
}

static struct value m_count(struct vm *vm, struct value self, const struct value *a)
{
    size_t from, to;
    wide_int n = 0;
    const struct jstr *needle = arg_str(vm, a[0], "sub", NULL);
    if (!search_range(vm, self.str, a[1], a[2], &from, &to))
        return val_int(0);
    const struct jstr *part = jstr_sub(vm, self.str, from, to - from);
    if (!needle->len)
        return val_int((wide_int)jstr_chars(vm, part) + 1);
    for (size_t at = 0; (at = jstr_find(vm, part, needle, at)) != SIZE_MAX; at += needle->len)
        n++;
    return val_int(n);
}

static struct value affix(struct vm *vm, struct value self, const struct value *a,
                          bool (*has)(struct vm *, const struct jstr *, const struct jstr *))
{
    size_t from, to;
    if (!search_range(vm, self.str, a[1], a[2], &from, &to))
        return val_bool(false);
    const struct jstr *part = jstr_sub(vm, self.str, from, to - from);
    if (a[0].type != VAL_TUPLE)
        return val_bool(has(vm, part, arg_str(vm, a[0], "prefix or suffix", NULL)));
    for (size_t i = 0; i < a[0].seq->n; i++)
        if (has(vm, part, arg_str(vm, a[0].seq->items[i], "prefix or suffix", NULL)))
            return val_bool(true);
    return val_bool(false);
}

static struct value m_startswith(struct vm *vm, struct value self, const struct value *a)
{
    return affix(vm, self, a, jstr_starts);
}

static struct value m_endswith(struct vm *vm, struct value self, const struct value *a)
{
    return affix(vm, self, a, jstr_ends);
}

/* --- splitting, joining, replacing
 * --------------------------------------------------------------------------- */

void str_list_add(struct vm *vm, struct str_list *l, const struct jstr *s)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 8;
        struct value *items = vm_alloc(vm, cap, sizeof *items);
        if (l->n)
            memcpy(items, l->items, l->n * sizeof *items);
        l->items = items;
        l->cap = cap;
    }
    vm_charge(vm, 1);
    l->items[l->n++] = val_str(s);
}

struct value str_split_space(struct vm *vm, const struct jstr *s, wide_int most)
{
    struct str_list parts = {0};
    size_t at = 0;
    unsigned cp;
    vm_charge_chars(vm, s->len);
    for (;;) {
        while (at < s->len) {
            int len = char_at(s->bytes + at, s->len - at, &cp);
            if (!char_is_space(cp))
                break;
            at += (size_t)len;
        }
        if (at >= s->len)
            break;
        size_t begin = at;
        if (most >= 0 && (wide_int)parts.n >= most) {
            str_list_add(vm, &parts, jstr_sub(vm, s, begin, s->len - begin));
            break;
        }
        while (at < s->len) {
            int len = char_at(s->bytes + at, s->len - at, &cp);
            if (char_is_space(cp))
                break;
            at += (size_t)len;
        }
        str_list_add(vm, &parts, jstr_sub(vm, s, begin, at - begin));
    }
    return val_list_of(vm, parts.items, parts.n);
}

static void reverse(struct str_list *l)
{
    for (size_t i = 0; i < l->n / 2; i++) {
        struct value v = l->items[i];
        l->items[i] = l->items[l->n - 1 - i];
        l->items[l->n - 1 - i] = v;
    }
}

static struct value rsplit_space(struct vm *vm, const struct jstr *s, wide_int most)
{
    struct str_list parts = {0};
    unsigned cp;
    vm_charge_chars(vm, s->len);
    for (;;) {
        s = jstr_strip(vm, s, NULL, JSTR_RIGHT);
        if (!s->len)
            break;
        if (most >= 0 && (wide_int)parts.n >= most) {
            str_list_add(vm, &parts, s);
            break;
        }
        size_t begin = s->len;
        while (begin) {
            int len = char_before(s->bytes, begin, &cp);
            if (char_is_space(cp))
                break;
            begin -= (size_t)len;
        }
        str_list_add(vm, &parts, jstr_sub(vm, s, begin, s->len - begin));
        s = jstr_sub(vm, s, 0, begin);
    }
    reverse(&parts);
    return val_list_of(vm, parts.items, parts.n);
}

static const struct jstr *separator(struct vm *vm, struct value v)
{
    if (v.type == VAL_MISSING || v.type == VAL_NONE)
        return NULL;
    const struct jstr *sep = arg_str(vm, v, "sep", NULL);
    if (!sep->len)
        vm_fail(vm, "empty separator");
    return sep;
}

static struct value m_split(struct vm *vm, struct value self, const struct value *a)
{
    const struct jstr *s = self.str, *sep = separator(vm, a[0]);
    wide_int most = arg_int(vm, a[1], "maxsplit", -1);
    if (!sep)
        return str_split_space(vm, s, most);
    struct str_list parts = {0};
    size_t begin = 0, at;
    while ((most < 0 || (wide_int)parts.n < most) && (at = jstr_find(vm, s, sep, begin)) != SIZE_MAX) {
        str_list_add(vm, &parts, jstr_sub(vm, s, begin, at - begin));
        begin = at + sep->len;
    }
    str_list_add(vm, &parts, jstr_sub(vm, s, begin, s->len - begin));
    return val_list_of(vm, parts.items, parts.n);
}

static struct value m_rsplit(struct vm *vm, struct value self, const struct value *a)
{
    const struct jstr *s = self.str, *sep = separator(vm, a[0]);
    wide_int most = arg_int(vm, a[1], "maxsplit", -1);
    if (!sep)
        return rsplit_space(vm, s, most);
    struct str_list parts = {0};
    size_t end = s->len, at;
    while ((most < 0 || (wide_int)parts.n < most) && (at = jstr_rfind(vm, s, sep, end)) != SIZE_MAX) {
        str_list_add(vm, &parts, jstr_sub(vm, s, at + sep->len, end - at - sep->len));
        end = at;
    }
    str_list_add(vm, &parts, jstr_sub(vm, s, 0, end));
    reverse(&parts);
    return val_list_of(vm, parts.items, parts.n);
}

struct value str_splitlines(struct vm *vm, const struct jstr *s, bool keep)
{
    struct str_list lines = {0};
    size_t begin = 0;
    unsigned cp;
    vm_charge_chars(vm, s->len);
    for (size_t i = 0; i < s->len;) {
        size_t end = i;
        i += (size_t)char_at(s->bytes + i, s->len - i, &cp);
        if (!char_is_line_break(cp))
            continue;
        if (cp == '\r' && i < s->len && s->bytes[i] == '\n')
            i++;
        str_list_add(vm, &lines, jstr_sub(vm, s, begin, (keep ? i : end) - begin));
        begin = i;
    }
    if (begin < s->len)
        str_list_add(vm, &lines, jstr_sub(vm, s, begin, s->len - begin));
    return val_list_of(vm, lines.items, lines.n);
}

static struct value m_splitlines(struct vm *vm, struct value self, const struct value *a)
{
    return str_splitlines(vm, self.str, arg_bool(a[0], false));
}

static struct value partition(struct vm *vm, struct value self, const struct value *a, bool last)
{
    const struct jstr *s = self.str, *sep = separator(vm, a[0]), *none = jstr_sub(vm, s, 0, 0);
    if (!sep)
        vm_fail(vm, "partition needs a separator");
    size_t at = last ? jstr_rfind(vm, s, sep, s->len) : jstr_find(vm, s, sep, 0);
    struct value parts[3] = {val_str(last ? none : s), val_str(none), val_str(last ? s : none)};
    if (at != SIZE_MAX) {
        size_t after = at + sep->len;
        parts[0] = val_str(jstr_sub(vm, s, 0, at));
        parts[1] = val_str(jstr_mark(vm, sep, s->markup));
        parts[2] = val_str(jstr_sub(vm, s, after, s->len - after));
    }
    return val_tuple(vm, parts, 3);
}

static struct value m_partition(struct vm *vm, struct value self, const struct value *a)
{
    return partition(vm, self, a, false);
}

static struct value m_rpartition(struct vm *vm, struct value self, const struct value *a)
{
    return partition(vm, self, a, true);
}

static struct value m_join(struct vm *vm, struct value self, const struct value *a)
{
    size_t n, start = vm->text_len;
    const struct value *items = val_items(vm, a[0], &n);
    for (size_t i = 0; i < n; i++) {
        if (items[i].type != VAL_STR)
            vm_fail(vm, "join: item %zu is no string but %s", i, val_type_name(items[i]));
        if (i)
            vm_put_jstr(vm, self.str);
        vm_charge(vm, 1);
        if (self.str->markup && !items[i].str->markup)
            jstr_put_escaped(vm, items[i].str);
        else
            vm_put_jstr(vm, items[i].str);
    }
    return val_str(jstr_mark(vm, vm_take(vm, start), self.str->markup));
}

const struct jstr *str_replace(struct vm *vm, const struct jstr *s, const struct jstr *old,
                               const struct jstr *new, wide_int count)
{
    size_t start = vm->text_len, begin = 0, at;
    unsigned cp;
    if (!old->len) { /* between all characters */
        for (;;) {
            if (count--)
                vm_put_jstr(vm, new);
            else
                break;
            if (begin >= s->len)
                break;
            size_t len = (size_t)char_at(s->bytes + begin, s->len - begin, &cp);
            vm_put_sub(vm, s, begin, len);
            begin += len;
        }
    } else {
        if (jstr_find(vm, s, old, 0) == SIZE_MAX)
            return s;
        while (count-- && (at = jstr_find(vm, s, old, begin)) != SIZE_MAX) {
            vm_put_sub(vm, s, begin, at - begin);
            vm_put_jstr(vm, new);
            begin = at + old->len;
        }
    }
    vm_put_sub(vm, s, begin, s->len - begin);
    return jstr_mark(vm, vm_take(vm, start), s->markup);
}

static struct value m_replace(struct vm *vm, struct value self, const struct value *a)
{
    const struct jstr *new = arg_str(vm, a[1], "new", NULL);
    size_t start = vm->text_len;
    if (self.str->markup && !new->markup) {
        jstr_put_escaped(vm, new);
        new = vm_take(vm, start);
    }
    return val_str(
        str_replace(vm, self.str, arg_str(vm, a[0], "old", NULL), new, arg_int(vm, a[2], "count", -1)));
}

static struct value m_format(struct vm *vm, struct value self, const struct args *args)
{
    return format_braces(vm, self.str, args);
}

static struct value m_encode(struct vm *vm, struct value self, const struct value *a)
{
    (void)vm;
    (void)a;
    return (struct value){.type = VAL_BYTES, .str = self.str};
}

/* --- questions
 * ------------------------------------------------------------------------------------------------ */

static bool is_ascii(unsigned cp)
{
    return cp < 0x80;
}

static bool is_alnum(unsigned cp)
{
    return char_is_alpha(cp) || char_is_decimal(cp) || char_is_digit(cp) || char_is_numeric(cp);
}

/* Whether the string's characters, at least one unless `empty`, all are `what`. */
static struct value all(struct vm *vm, struct value self, bool (*what)(unsigned), bool empty)
{
    const struct jstr *s = self.str;
    unsigned cp;
    vm_charge_chars(vm, s->len);
    for (size_t i = 0; i < s->len;) {
        i += (size_t)char_at(s->bytes + i, s->len - i, &cp);
        if (!what(cp))
            return val_bool(false);
    }
    return val_bool(s->len || empty);
}

bool str_all_case(struct vm *vm, const struct jstr *s, bool upper)
{
    vm_charge_chars(vm, s->len);
    bool any = false;
    unsigned cp;
    for (size_t i = 0; i < s->len;) {
        i += (size_t)char_at(s->bytes + i, s->len - i, &cp);
        if (upper ? char_is_lower(cp) : char_is_upper(cp))
            return false;
        any |= upper ? char_is_upper(cp) : char_is_lower(cp);
    }
    return any;
}

#define QUESTION(function, answer)                                                        \
    static struct value function(struct vm *vm, struct value self, const struct value *a) \
    {                                                                                     \
        (void)a;                                                                          \
        return answer;                                                                    \
    }
QUESTION(m_isalpha, all(vm, self, char_is_alpha, false))
QUESTION(m_isalnum, all(vm, self, is_alnum, false))
QUESTION(m_isascii, all(vm, self, is_ascii, true))
QUESTION(m_isdecimal, all(vm, self, char_is_decimal, false))
QUESTION(m_isdigit, all(vm, self, char_is_digit, false))
QUESTION(m_isnumeric, all(vm, self, char_is_numeric, false))
QUESTION(m_isprintable, all(vm, self, char_is_printable, true))
QUESTION(m_isspace, all(vm, self, char_is_space, false))
QUESTION(m_islower, val_bool(str_all_case(vm, self.str, false)))
QUESTION(m_isupper, val_bool(str_all_case(vm, self.str, true)))
QUESTION(m_istitle, val_bool(jstr_eq(self.str, change_case(vm, self.str, WORDS_TITLE)) &&
                             !jstr_eq(self.str, change_case(vm, self.str, WORDS_SWAP))))

const struct builtin str_methods[] = {
    {.name = "strip", .call = m_strip, .params = {"chars"}},
    {.name = "lstrip", .call = m_lstrip, .params = {"chars"}},
    {.name = "rstrip", .call = m_rstrip, .params = {"chars"}},
    {.name = "split", .call = m_split, .params = {"sep", "maxsplit"}},
    {.name = "rsplit", .call = m_rsplit, .params = {"sep", "maxsplit"}},
    {.name = "startswith", .call = m_startswith, .n_required = 1, .params = {"prefix", "start", "end"}},
    {.name = "endswith", .call = m_endswith, .n_required = 1, .params = {"suffix", "start", "end"}},
    {.name = "replace", .call = m_replace, .n_required = 2, .params = {"old", "new", "count"}},
    {.name = "upper", .call = m_upper},
    {.name = "lower", .call = m_lower},
    {.name = "casefold", .call = m_lower},
    {.name = "title", .call = m_title},
    {.name = "capitalize", .call = m_capitalize},
    {.name = "swapcase", .call = m_swapcase},
    {.name = "join", .call = m_join, .n_required = 1, .params = {"iterable"}},
    {.name = "format", .call_raw = m_format},
    {.name = "find", .call = m_find, .n_required = 1, .params = {"sub", "start", "end"}},
    {.name = "rfind", .call = m_rfind, .n_required = 1, .params = {"sub", "start", "end"}},
    {.name = "index", .call = m_index, .n_required = 1, .params = {"sub", "start", "end"}},
    {.name = "rindex", .call = m_rindex, .n_required = 1, .params = {"sub", "start", "end"}},
    {.name = "count", .call = m_count, .n_required = 1, .params = {"sub", "start", "end"}},
    {.name = "splitlines", .call = m_splitlines, .params = {"keepends"}},
    {.name = "partition", .call = m_partition, .n_required = 1, .params = {"sep"}},
    {.name = "rpartition", .call = m_rpartition, .n_required = 1, .params = {"sep"}},
    {.name = "removeprefix", .call = m_removeprefix, .n_required = 1, .params = {"prefix"}},
    {.name = "removesuffix", .call = m_removesuffix, .n_required = 1, .params = {"suffix"}},
    {.name = "ljust", .call = m_ljust, .n_required = 1, .params = {"width", "fillchar"}},
    {.name = "rjust", .call = m_rjust, .n_required = 1, .params = {"width", "fillchar"}},
    {.name = "center", .call = m_center, .n_required = 1, .params = {"width", "fillchar"}},
    {.name = "zfill", .call = m_zfill, .n_required = 1, .params = {"width"}},
    {.name = "expandtabs", .call = m_expandtabs, .params = {"tabsize"}},
    {.name = "encode", .call = m_encode, .params = {"encoding", "errors"}},
    {.name = "isalpha", .call = m_isalpha},
    {.name = "isalnum", .call = m_isalnum},
    {.name = "isascii", .call = m_isascii},
    {.name = "isdecimal", .call = m_isdecimal},
    {.name = "isdigit", .call = m_isdigit},
    {.name = "isnumeric", .call = m_isnumeric},
    {.name = "isprintable", .call = m_isprintable},
    {.name = "isspace", .call = m_isspace},
    {.name = "islower", .call = m_islower},
    {.name = "isupper", .call = m_isupper},
    {.name = "istitle", .call = m_istitle},
    {0},
};
