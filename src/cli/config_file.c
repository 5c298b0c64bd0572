#include "cli/config_file.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <yaml.h>

#include "base/mem.h"
#include "base/str.h"

#define MAX_NODES 10000 /* values of a file, aliases counted each time */
#define MAX_DEPTH 16

struct reader {
    const char *path;
    yaml_document_t doc;
    int n_nodes;
    int argc; /* the command line */
    char **argv;
    struct expanded *out;
};

static void add_word(struct expanded *x, char *word)
{
    x->argv = mem_realloc(x->argv, (size_t)x->argc + 2, sizeof *x->argv);
    x->argv[x->argc++] = word;
    x->argv[x->argc] = NULL;
}

/* A word of our own making, which is taken over. */
static void add_made(struct expanded *x, char *word)
{
    x->made = mem_realloc(x->made, (size_t)x->n_made + 1, sizeof *x->made);
    x->made[x->n_made++] = word;
    add_word(x, word);
}

void expanded_free(struct expanded *x)
{
    for (int i = 0; i < x->n_made; i++)
        free(x->made[i]);
    free(x->made);
    free(x->argv);
    *x = (struct expanded){0};
}

/* --- what a scalar means ------------------------------------------------------------------------- */

static bool is_word(const char *text, const char *const *words)
{
    for (; *words; words++)
        if (strcasecmp(text, *words) == 0)
            return true;
    return false;
}

enum scalar { SCALAR_TEXT, SCALAR_TRUE, SCALAR_FALSE, SCALAR_NULL };

/* Only unquoted words mean more than their text. */
static enum scalar scalar_kind(const yaml_node_t *n)
{
    static const char *const yes[] = {"true", "yes", "on", NULL};
    static const char *const no[] = {"false", "no", "off", NULL};
    static const char *const null[] = {"null", "~", "", NULL};
    const char *text = (const char *)n->data.scalar.value;
    if (n->data.scalar.style != YAML_PLAIN_SCALAR_STYLE)
        return SCALAR_TEXT;
    return is_word(text, yes)    ? SCALAR_TRUE
           : is_word(text, no)   ? SCALAR_FALSE
           : is_word(text, null) ? SCALAR_NULL
                                 : SCALAR_TEXT;
}

/* The JSON value of a node (new reference), or NULL and *e. */
static json_t *to_json(struct reader *r, const yaml_node_t *n, int depth, struct err *e)
{
    if (depth > MAX_DEPTH || ++r->n_nodes > MAX_NODES) {
        err_set(e, ERR_LIMIT, "--config %s: line %zu: more than %d values, or nested deeper than %d", r->path,
                n->start_mark.line + 1, MAX_NODES, MAX_DEPTH);
        return NULL;
    }
    if (n->type == YAML_SCALAR_NODE) {
        const char *text = (const char *)n->data.scalar.value;
        enum scalar kind = scalar_kind(n);
        if (kind == SCALAR_NULL)
            return json_null();
        if (kind != SCALAR_TEXT)
            return json_boolean(kind == SCALAR_TRUE);
        /* a plain number is one in JSON too */
        json_t *number =
            n->data.scalar.style == YAML_PLAIN_SCALAR_STYLE ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
        if (json_is_number(number))
            return number;
        json_decref(number);
        json_t *string = json_stringn(text, n->data.scalar.length);
        if (!string)
            err_set(e, ERR_INVALID, "--config %s: line %zu: not UTF-8", r->path, n->start_mark.line + 1);
        return string;
    }
    bool is_map = n->type == YAML_MAPPING_NODE;
    json_t *out = is_map ? json_object() : json_array();
    if (is_map) {
        for (yaml_node_pair_t *p = n->data.mapping.pairs.start; p < n->data.mapping.pairs.top; p++) {
            const yaml_node_t *key = yaml_document_get_node(&r->doc, p->key);
            bool text = key->type == YAML_SCALAR_NODE;
            json_t *v = text ? to_json(r, yaml_document_get_node(&r->doc, p->value), depth + 1, e) : NULL;
            if (!v || json_object_set_new(out, (const char *)key->data.scalar.value, v)) {
                if (v || !text)
                    err_set(e, ERR_INVALID, "--config %s: line %zu: the key must be text", r->path,
                            key->start_mark.line + 1);
                json_decref(out);
                return NULL;
            }
        }
        return out;
    }
    for (yaml_node_item_t *i = n->data.sequence.items.start; i < n->data.sequence.items.top; i++) {
        json_t *v = to_json(r, yaml_document_get_node(&r->doc, *i), depth + 1, e);
        if (!v) {
            json_decref(out);
            return NULL;
        }
        json_array_append_new(out, v);
    }
    return out;
}

/* --- keys become options ------------------------------------------------------------------------- */

/* True if `word`, of the command line, spells the option `name` in any of its ways. */
static bool spells(const char *word, const char *name)
{
    if (strncmp(word, "--", 2) != 0)
        return false;
    word += 2;
    if (strncmp(word, "no-", 3) == 0 || strncmp(word, "no_", 3) == 0)
        word += 3;
    /* enable-x and disable-x are one option */
    for (int side = 0; side < 2; side++) {
        const char *s = side ? name : word;
        if (strncmp(s, "enable", 6) == 0)
            s += 6;
        else if (strncmp(s, "disable", 7) == 0)
            s += 7;
        *(side ? &name : &word) = s;
    }
    while (*word && *word != '=' && *name && (*word == *name || (*word == '_' && *name == '-')))
        word++, name++;
    return *name == '\0' && (*word == '\0' || *word == '=');
}

static bool on_command_line(const struct reader *r, const char *name)
{
    for (int i = 1; i < r->argc && strcmp(r->argv[i], "--") != 0; i++)
        if (spells(r->argv[i], name))
            return true;
    return false;
}

/* Adds a value as --name=value, which may begin with a dash. */
static void add_pair(struct reader *r, const char *name, const char *value)
{
    struct str s = {0};
    str_addf(&s, "--%s=%s", name, value);
    add_made(r->out, str_take(&s));
}

static int add_option(struct reader *r, const char *key, const yaml_node_t *v, struct err *e)
{
    char name[128];
    size_t n = strlen(key);
    if (n == 0 || n >= sizeof name)
        return err_set(e, ERR_INVALID, "--config %s: line %zu: %.40s is no option's name", r->path,
                       v->start_mark.line + 1, key);
    for (size_t i = 0; i <= n; i++)
        name[i] = key[i] == '_' ? '-' : key[i];
    if (strcmp(name, "config") == 0)
        return err_set(e, ERR_INVALID, "--config %s: a file cannot name another", r->path);
    if (on_command_line(r, name))
        return 0;
    if (v->type == YAML_SCALAR_NODE) {
        enum scalar kind = scalar_kind(v);
        struct str flag = {0};
        if (kind == SCALAR_TEXT) {
            add_pair(r, name, (const char *)v->data.scalar.value);
        } else if (kind != SCALAR_NULL) {
            str_addf(&flag, "--%s%s", kind == SCALAR_TRUE ? "" : "no-", name);
            add_made(r->out, str_take(&flag));
        }
        return 0;
    }
    json_t *json = to_json(r, v, 0, e);
    if (!json)
        return -1;
    bool scalars = json_is_array(json);
    size_t i;
    json_t *item;
    json_array_foreach(json, i, item) scalars = scalars && !json_is_array(item) && !json_is_object(item);
    if (!scalars) {
        char *text = json_dumps(json, JSON_COMPACT | JSON_ENCODE_ANY);
        add_pair(r, name, text);
        free(text);
    } else {
        json_array_foreach(json, i, item)
        {
            char *text = json_is_string(item) ? NULL : json_dumps(item, JSON_ENCODE_ANY);
            add_pair(r, name, text ? text : json_string_value(item));
            free(text);
        }
    }
    json_decref(json);
    return 0;
}

static int read_document(struct reader *r, struct err *e)
{
    const yaml_node_t *root = yaml_document_get_root_node(&r->doc);
    if (!root) /* an empty file */
        return 0;
    if (root->type != YAML_MAPPING_NODE)
        return err_set(e, ERR_INVALID, "--config %s: must be a map of option names to values", r->path);
    for (yaml_node_pair_t *p = root->data.mapping.pairs.start; p < root->data.mapping.pairs.top; p++) {
        const yaml_node_t *key = yaml_document_get_node(&r->doc, p->key);
        if (key->type != YAML_SCALAR_NODE)
            return err_set(e, ERR_INVALID, "--config %s: line %zu: the key must be an option's name", r->path,
                           key->start_mark.line + 1);
        if (add_option(r, (const char *)key->data.scalar.value, yaml_document_get_node(&r->doc, p->value), e))
            return -1;
    }
    return 0;
}

static int read_file(struct reader *r, struct err *e)
{
    const char *dot = strrchr(r->path, '.');
    if (!dot || (strcmp(dot, ".yaml") != 0 && strcmp(dot, ".yml") != 0))
        return err_set(e, ERR_INVALID, "--config %s: the file's name must end in .yaml or .yml", r->path);
    FILE *f = fopen(r->path, "rb");
    if (!f)
        return err_set(e, ERR_IO, "--config: cannot open %s: %s", r->path, strerror(errno));
    yaml_parser_t parser;
    int failed = -1;
    if (!yaml_parser_initialize(&parser)) {
        fclose(f);
        return err_set(e, ERR_NO_MEMORY, "--config %s: no memory", r->path);
    }
    yaml_parser_set_input_file(&parser, f);
    if (!yaml_parser_load(&parser, &r->doc)) {
        err_set(e, ERR_INVALID, "--config %s: line %zu: %s", r->path, parser.problem_mark.line + 1,
                parser.problem ? parser.problem : "not YAML");
    } else {
        failed = read_document(r, e);
        yaml_document_delete(&r->doc);
    }
    yaml_parser_delete(&parser);
    fclose(f);
    return failed;
}

int config_expand(int argc, char **argv, struct expanded *out, struct err *e)
{
    struct reader r = {.argc = argc, .argv = argv, .out = out};
    *out = (struct expanded){0};
    add_word(out, argv[0]);
    bool only_words = false;
    for (int i = 1; i < argc && !only_words; i++) {
        only_words = strcmp(argv[i], "--") == 0;
        if (only_words || strncmp(argv[i], "--config", 8) != 0)
            continue;
        if (argv[i][8] == '=')
            r.path = argv[i] + 9;
        else if (argv[i][8] == '\0' && i + 1 < argc)
            r.path = argv[i + 1];
    }
    int failed = r.path ? read_file(&r, e) : 0;
    for (int i = 1; i < argc; i++)
        add_word(out, argv[i]);
    if (failed)
        expanded_free(out);
    return failed;
}
