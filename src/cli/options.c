/* The option table's two readers: the parser and --help (see options.h). Parsing finds the entry by name,
 * reads the value by the entry's kind and checks its bounds; a word that names no entry is a usage error that
 * suggests the nearest name, because a mistyped option that is silently ignored costs an afternoon. */
#include "cli/options.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "cli/commands.h"

_Static_assert(sizeof(size_t) == sizeof(uint64_t), "options of kind `big` are used for size_t variables");

#define NAME_MAX_LEN 100 /* longer words name no option */

void option_list_free(struct option_list *l)
{
    free(l->values);
    *l = (struct option_list){0};
}

int options_usage_error(const struct option_command *c, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fprintf(stderr, "sluice %s: ", c->name);
    vfprintf(stderr, fmt, args);
    fprintf(stderr, "\nSee 'sluice %s --help'.\n", c->name);
    va_end(args);
    return EXIT_USAGE;
}

/* --- names ---------------------------------------------------------------------------------------- */

static bool is_end(const struct option_spec *o)
{
    return !o->name && !o->group;
}

/* The other spelling of an enable-… or disable-… flag ("" for all others), in buf [NAME_MAX_LEN + 20]. */
static const char *inverse_name(const struct option_spec *o, char *buf)
{
    const size_t size = NAME_MAX_LEN + 20;
    if (o->flag && strncmp(o->name, "enable-", 7) == 0)
        snprintf(buf, size, "disable-%s", o->name + 7);
    else if (o->flag && strncmp(o->name, "disable-", 8) == 0)
        snprintf(buf, size, "enable-%s", o->name + 8);
    else
        buf[0] = '\0';
    return buf;
}

/* The entry that `name` (dashes stripped, '_' already '-') spells; *negated when it is the --no-x or inverse
 * spelling of a flag. NULL if there is none. */
static const struct option_spec *find_option(const struct option_spec *options, const char *name,
                                             bool *negated)
{
    char inverse[NAME_MAX_LEN + 20];
    for (const struct option_spec *o = options; !is_end(o); o++) {
        if (!o->name)
            continue;
        *negated = false;
        if (strcmp(name, o->name) == 0)
            return o;
        *negated = true;
        if (o->flag && strncmp(name, "no-", 3) == 0 && strcmp(name + 3, o->name) == 0)
            return o;
        if (inverse_name(o, inverse)[0] && strcmp(name, inverse) == 0)
            return o;
    }
    return NULL;
}

static const struct option_spec *find_alias(const struct option_spec *options, const char *alias)
{
    for (const struct option_spec *o = options; !is_end(o); o++)
        if (o->alias && strcmp(alias, o->alias) == 0)
            return o;
    return NULL;
}

int edit_distance(const char *a, const char *b)
{
    size_t na = strnlen(a, NAME_MAX_LEN), nb = strnlen(b, NAME_MAX_LEN);
    int d[3][NAME_MAX_LEN + 1]; /* rows i-2, i-1 and i of the distances between prefixes */
    for (size_t j = 0; j <= nb; j++)
        d[0][j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        int *row = d[i % 3], *up = d[(i + 2) % 3], *up2 = d[(i + 1) % 3];
        row[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            int best = up[j - 1] + (a[i - 1] != b[j - 1]);
            if (up[j] + 1 < best)
                best = up[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && up2[j - 2] + 1 < best)
                best = up2[j - 2] + 1;
            row[j] = best;
        }
    }
    return d[na % 3][nb];
}

static void consider(const char *name, const char *candidate, char *best, int *best_distance)
{
    int distance = edit_distance(name, candidate);
    /* A long common start counts as near: "--max-seqs-num" or a forgotten last word. */
    size_t common = 0;
    while (name[common] && name[common] == candidate[common])
        common++;
    if (common >= 6 && distance > 3)
        distance = 3;
    if (distance < *best_distance) {
        *best_distance = distance;
        snprintf(best, NAME_MAX_LEN + 20, "%s", candidate);
    }
}

static int unknown_option(const struct option_command *c, const char *word, const char *name)
{
    char best[NAME_MAX_LEN + 20] = "", inverse[NAME_MAX_LEN + 20];
    int distance = (int)strlen(name) / 3 + 2; /* more edits than this is another word */
    for (const struct option_spec *o = c->options; !is_end(o); o++) {
        if (!o->name)
            continue;
        consider(name, o->name, best, &distance);
        if (inverse_name(o, inverse)[0])
            consider(name, inverse, best, &distance);
        if (o->flag && strncmp(name, "no-", 3) == 0) {
            snprintf(inverse, sizeof inverse, "no-%s", o->name);
            consider(name, inverse, best, &distance);
        }
    }
    if (best[0])
        return options_usage_error(c, "unknown option '%s'; did you mean '--%s'?", word, best);
    return options_usage_error(c, "unknown option '%s'", word);
}

/* --- values --------------------------------------------------------------------------------------- */

/* 1000 and its powers for a small letter, 1024 and its powers for a capital one; 0 for no suffix. */
static uint64_t suffix_factor(char suffix)
{
    const char *letters = "kmgt";
    const char *at = suffix ? strchr(letters, tolower((unsigned char)suffix)) : NULL;
    if (!at)
        return 0;
    uint64_t factor = 1, base = islower((unsigned char)suffix) ? 1000 : 1024;
    for (const char *p = letters; p <= at; p++)
        factor *= base;
    return factor;
}

static bool parse_magnitude(const char *text, uint64_t *out)
{
    if (!isdigit((unsigned char)*text))
        return false;
    char *end;
    errno = 0;
    uint64_t whole = strtoull(text, &end, 10);
    if (errno)
        return false;
    uint64_t part = 0, part_scale = 1; /* the digits after the point are part / part_scale */
    if (*end == '.') {
        for (end++; isdigit((unsigned char)*end); end++) {
            if (part_scale > 1000000)
                return false;
            part = part * 10 + (uint64_t)(*end - '0');
            part_scale *= 10;
        }
    }
    uint64_t factor = suffix_factor(*end);
    bool decimal = part_scale > 1;
    bool unit = false; /* "GB", "GiB": says itself what the letter may leave open */
    if (factor) {
        bool binary = end[1] == 'i' && end[2] == 'B';
        unit = binary || end[1] == 'B';
        if (unit)
            factor =
                suffix_factor((char)(binary ? toupper((unsigned char)*end) : tolower((unsigned char)*end)));
        end += binary ? 3 : unit ? 2 : 1;
    } else {
        factor = 1;
    }
    if (*end || (decimal && !unit && factor % 1000 != 0)) /* "1.5" and "1.5K" are not whole by intent */
        return false;
    /* part < 10^7 and factor <= 2^40 here, so the product fits. */
    if (part * factor % part_scale != 0 || __builtin_mul_overflow(whole, factor, &whole) ||
        __builtin_add_overflow(whole, part * factor / part_scale, &whole))
        return false;
    *out = whole;
    return true;
}

bool option_number(const char *text, int64_t *out)
{
    bool negative = *text == '-';
    uint64_t magnitude;
    if (!parse_magnitude(text + negative, &magnitude) || magnitude > INT64_MAX)
        return false;
    *out = negative ? -(int64_t)magnitude : (int64_t)magnitude;
    return true;
}

static bool is_choice(const char *choices, const char *text)
{
    size_t n = strlen(text);
    for (const char *p = choices; *p;) {
        size_t len = strcspn(p, "|");
        if (len == n && strncmp(p, text, n) == 0)
            return true;
        p += len + (p[len] == '|');
    }
    return false;
}

static bool in_bounds(const struct option_spec *o, double value)
{
    if (o->min == 0 && o->max == 0)
        return value >= 0;
    return value >= o->min && value <= o->max;
}

static int bounds_error(const struct option_command *c, const struct option_spec *o, const char *text)
{
    char or_auto[NAME_MAX_LEN + 20] = "";
    if (o->auto_is)
        snprintf(or_auto, sizeof or_auto, ", or '%s'", o->auto_is);
    const char *kind = o->real ? "a number" : "a whole number (such as 512 or 4k)";
    if (o->min == 0 && o->max == 0)
        return options_usage_error(c, "--%s: '%s' is not %s from 0 up%s", o->name, text, kind, or_auto);
    return options_usage_error(c, "--%s: '%s' is not %s from %.15g to %.15g%s", o->name, text, kind, o->min,
                               o->max, or_auto);
}

/* Stores one value. Returns -1, or 2 after a message. */
static int set_value(const struct option_command *c, const struct option_spec *o, const char *text)
{
    if (o->num) {
        int64_t v = 0;
        bool is_auto = o->auto_is && (strcmp(text, o->auto_is) == 0 || strcmp(text, "-1") == 0);
        if (!is_auto && (!option_number(text, &v) || v > INT_MAX || v < INT_MIN || !in_bounds(o, (double)v)))
            return bounds_error(c, o, text);
        *o->num = is_auto ? -1 : (int)v;
    } else if (o->big) {
        uint64_t v = 0;
        if (!parse_magnitude(text, &v) || !in_bounds(o, (double)v))
            return bounds_error(c, o, text);
        *o->big = v;
    } else if (o->real) {
        char *end;
        double v = strtod(text, &end);
        if (end == text || *end || !isfinite(v) || !in_bounds(o, v))
            return bounds_error(c, o, text);
        *o->real = v;
    } else if (o->text) {
        if (o->choices && !is_choice(o->choices, text))
            return options_usage_error(c, "--%s: '%s' is not one of %s", o->name, text, o->choices);
        *o->text = text;
    } else {
        struct option_list *l = o->list;
        l->values = mem_realloc(l->values, (size_t)l->n + 1, sizeof *l->values);
        l->values[l->n++] = text;
    }
    return -1;
}

/* Whether a word of the command line can be a value: "-1" and "-" can, "--port" and "-q" cannot. */
static bool can_be_value(const char *word)
{
    return word[0] != '-' || word[1] == '\0' || isdigit((unsigned char)word[1]) || word[1] == '.';
}

/* --- parsing -------------------------------------------------------------------------------------- */

/* The option at argv[*i] (and its values, over which *i moves). Returns -1, or the exit status. */
static int parse_option(const struct option_command *c, int argc, char **argv, int *i)
{
    const char *word = argv[*i];
    const char *equals = strchr(word, '=');
    const char *inline_value = equals ? equals + 1 : NULL;
    size_t len = equals ? (size_t)(equals - word) : strlen(word);
    char name[NAME_MAX_LEN + 20];
    bool is_long = word[1] == '-', negated = false;
    size_t dashes = is_long ? 2 : 1;
    snprintf(name, sizeof name, "%.*s", (int)(len > NAME_MAX_LEN ? NAME_MAX_LEN : len) - (int)dashes,
             word + dashes);
    if (is_long)
        for (char *p = name; *p; p++)
            if (*p == '_')
                *p = '-';

    if (strcmp(name, "help") == 0 || (!is_long && strcmp(name, "h") == 0)) {
        options_help(c, inline_value);
        return 0;
    }
    const struct option_spec *o =
        is_long ? find_option(c->options, name, &negated) : find_alias(c->options, name);
    if (!o)
        return unknown_option(c, word, name);
    if (o->given)
        *o->given = true;
    if (o->gone) {
        if (o->value && !inline_value && *i + 1 < argc && can_be_value(argv[*i + 1]))
            ++*i;
        fprintf(stderr, "sluice %s: warning: --%s does nothing here: %s\n", c->name, o->name, o->gone);
        return -1;
    }
    if (o->flag) {
        if (inline_value)
            return options_usage_error(c, "--%s takes no value: write --%s or --no-%s", o->name, o->name,
                                       o->name);
        *o->flag = !negated;
        return -1;
    }
    if (inline_value)
        return set_value(c, o, inline_value);
    if (*i + 1 >= argc || !can_be_value(argv[*i + 1]))
        return options_usage_error(c, "--%s needs a value%s%s", o->name, o->value ? ": " : "",
                                   o->value ? o->value : "");
    int status;
    do
        status = set_value(c, o, argv[++*i]);
    while (status < 0 && o->list && *i + 1 < argc && can_be_value(argv[*i + 1]));
    return status;
}

int options_parse(const struct option_command *c, int argc, char **argv)
{
    const struct option_positional *word = c->words;
    bool only_words = false;
    for (int i = 1; i < argc; i++) {
        if (!only_words && strcmp(argv[i], "--") == 0) {
            only_words = true;
        } else if (!only_words && argv[i][0] == '-' && argv[i][1]) {
            int status = parse_option(c, argc, argv, &i);
            if (status >= 0)
                return status;
        } else {
            if (!word || !word->name)
                return options_usage_error(c, "unexpected word '%s'", argv[i]);
            *word->text = argv[i];
            word++;
        }
    }
    for (word = c->words; word && word->name; word++)
        if (word->required && !*word->text)
            return options_usage_error(c, "%s is missing: %s", word->name, word->help);
    return -1;
}

/* --- help ----------------------------------------------------------------------------------------- */

#define HELP_WIDTH   110
#define DEFAULT_MAX  14 /* columns of the default's column; a longer one pushes the meaning down a line */
#define LEFT_MARGIN  2
#define COLUMN_SPACE 2

/* "--port N", "-q, --quantization TYPE", "--[no-]enable-x". */
static void left_column(const struct option_spec *o, struct str *s)
{
    str_clear(s);
    if (o->alias)
        str_addf(s, "-%s, ", o->alias);
    str_addf(s, o->flag ? "--[no-]%s" : "--%s", o->name);
    if (!o->flag)
        str_addf(s, " %s", o->value ? o->value : o->text ? "TEXT" : "N");
    if (o->list)
        str_adds(s, " …");
}

static void default_column(const struct option_spec *o, struct str *s)
{
    str_clear(s);
    if (o->initial)
        str_adds(s, o->initial);
    else if (o->flag)
        str_adds(s, *o->flag ? "on" : "off");
    else if (o->num && *o->num == -1 && o->auto_is)
        str_adds(s, o->auto_is);
    else if (o->num)
        str_addf(s, "%d", *o->num);
    else if (o->big)
        str_addf(s, "%llu", (unsigned long long)*o->big);
    else if (o->real)
        str_addf(s, "%g", *o->real);
    else if (o->text && *o->text)
        str_adds(s, *o->text);
    else
        str_addc(s, '-');
}

/* Columns of UTF-8 text that a terminal shows: bytes that do not continue a character. */
static int columns(const char *text, size_t n)
{
    int count = 0;
    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)text[i] & 0xC0) != 0x80;
    return count;
}

/* Prints text wrapped between column `indent`, where the cursor is at `at`, and HELP_WIDTH; ends the line. */
static void print_wrapped(const char *text, int indent, int at)
{
    while (*text) {
        size_t n = strcspn(text, " ");
        int width = columns(text, n);
        if (at > indent && at + 1 + width > HELP_WIDTH) {
            putchar('\n');
            at = 0;
        }
        if (at < indent)
            at += printf("%*s", indent - at, "");
        else if (at > indent)
            at += printf(" ");
        printf("%.*s", (int)n, text);
        at += width;
        text += n;
        text += strspn(text, " ");
    }
    putchar('\n');
}

static void pad_to(int column, int *at)
{
    if (*at < column)
        *at += printf("%*s", column - *at, "");
}

static bool contains(const char *text, const char *word)
{
    return text && strcasestr(text, word);
}

static void describe(const struct option_spec *o, struct str *s)
{
    str_clear(s);
    str_adds(s, o->help ? o->help : "");
    if (o->choices) {
        str_adds(s, " (");
        for (const char *p = o->choices; *p;) {
            size_t len = strcspn(p, "|");
            str_add(s, p, len);
            p += len + (p[len] == '|');
            str_adds(s, *p ? ", " : ")");
        }
    }
    if (o->auto_is)
        str_addf(s, "; '%s' or a number", o->auto_is);
}

void options_help(const struct option_command *c, const char *word)
{
    struct str s = {0};
    if (word && (!*word || strcmp(word, "all") == 0))
        word = NULL;
    int left = 0;
    printf("Usage: sluice %s", c->name);
    for (const struct option_positional *w = c->words; w && w->name; w++) {
        printf(w->required ? " %s" : " [%s]", w->name);
        left = (int)strlen(w->name) > left ? (int)strlen(w->name) : left;
    }
    puts(" [options]\n");
    print_wrapped(c->summary, 0, 0);

    for (const struct option_spec *o = c->options; !is_end(o); o++) {
        if (!o->name || o->gone)
            continue;
        left_column(o, &s);
        int width = columns(s.data, s.len);
        left = width > left ? width : left;
    }
    const int second = LEFT_MARGIN + left + COLUMN_SPACE, third = second + DEFAULT_MAX + COLUMN_SPACE;
    if (c->words && c->words->name && !word) {
        putchar('\n');
        for (const struct option_positional *w = c->words; w->name; w++) {
            int at = printf("%*s%s", LEFT_MARGIN, "", w->name);
            pad_to(third, &at);
            print_wrapped(w->help, third, at);
        }
    }

    const char *group = NULL;
    bool group_printed = false, group_matches = false;
    for (const struct option_spec *o = c->options; !is_end(o); o++) {
        if (!o->name) {
            group = o->group;
            group_printed = false;
            group_matches = word && contains(group, word);
            continue;
        }
        if (o->gone)
            continue;
        if (word && !group_matches && !contains(o->name, word) && !contains(o->help, word))
            continue;
        if (!group_printed) {
            printf("\n%s:\n", group ? group : "Options");
            group_printed = true;
        }
        left_column(o, &s);
        int at = printf("%*s", LEFT_MARGIN, "") + columns(s.data, s.len);
        fputs(s.data, stdout);
        pad_to(second, &at);
        default_column(o, &s);
        fputs(s.data, stdout);
        at += columns(s.data, s.len);
        if (at + COLUMN_SPACE > third) {
            putchar('\n');
            at = 0;
        }
        pad_to(third, &at);
        describe(o, &s);
        print_wrapped(s.data, third, at);
    }
    printf("\n%*s%-*s  %-*s  %s\n", LEFT_MARGIN, "", left, "-h, --help[=WORD]", DEFAULT_MAX, "",
           "this text, or the part of it that mentions WORD");
    puts("\nColumns: option, default, meaning. '_' and '-' are alike; whole numbers take k m g t (1000) and "
         "K M G T (1024).");
    str_free(&s);
}
