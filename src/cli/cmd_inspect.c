/* `sluice inspect MODEL`: what a GGUF file or a Hugging Face directory holds, without loading it. The report
 * is built once, as JSON; --json prints it as it is, and the tables for people are printed from it. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "file/gguf.h"
#include "file/model_file.h"

#define SHOWN_ELEMENTS 8 /* of an array */

/* ---- The report -----------------------------------------------------------------------------------------
 */

/* A JSON string of bytes that may not be UTF-8: what is not becomes U+FFFD. */
static json_t *json_text(const char *s, size_t len)
{
    struct str clean = {0};
    for (size_t i = 0; i < len;) {
        unsigned cp;
        int n = utf8_decode(s + i, len - i, &cp);
        str_add_utf8(&clean, n ? cp : 0xFFFD);
        i += n ? (size_t)n : 1;
    }
    json_t *j = json_stringn(str_text(&clean), clean.len);
    str_free(&clean);
    return j;
}

static json_t *json_number_of(bool is_int, int64_t i, double f)
{
    if (is_int)
        return json_integer(i);
    return isfinite(f) ? json_real(f) : json_null();
}

static json_t *gguf_scalar(const struct gguf *g, const char *key, const char *type)
{
    int64_t i = 0;
    double f = NAN;
    size_t len;
    const char *s = gguf_str(g, key, &len);
    if (s)
        return json_text(s, len);
    bool is_int = gguf_i64(g, key, &i);
    if (strcmp(type, "bool") == 0)
        return json_boolean(i);
    if (!is_int)
        gguf_f64(g, key, &f);
    return json_number_of(is_int, i, f);
}

static json_t *gguf_element(const struct gguf *g, const char *key, int64_t index)
{
    int64_t i = 0;
    double f = NAN;
    size_t len;
    const char *s = gguf_array_str(g, key, index, &len);
    if (s)
        return json_text(s, len);
    bool is_int = gguf_array_i64(g, key, index, &i);
    if (!is_int)
        gguf_array_f64(g, key, index, &f);
    return json_number_of(is_int, i, f);
}

/* {"key", "type", "value"}, or for an array {"key", "type", "length", "first"}. */
static void add_gguf_metadata(json_t *list, const struct gguf *g)
{
    for (int64_t i = 0; i < gguf_count(g); i++) {
        const char *type, *key = gguf_key(g, i);
        char text[2];
        gguf_describe(g, i, &type, text, sizeof text);
        json_t *entry = json_pack("{s:s, s:s}", "key", key, "type", type);
        const int64_t n = gguf_array_len(g, key);
        if (n < 0) {
            json_object_set_new(entry, "value", gguf_scalar(g, key, type));
        } else {
            json_t *first = json_array();
            for (int64_t k = 0; k < n && k < SHOWN_ELEMENTS; k++)
                json_array_append_new(first, gguf_element(g, key, k));
            json_object_set_new(entry, "length", json_integer(n));
            json_object_set_new(entry, "first", first);
        }
        json_array_append_new(list, entry);
    }
}

/* The members of an object of a JSON file, named prefix.member. Objects inside are opened down to `depth`
 * levels, and below that only counted, as arrays are. */
static void add_json_metadata(json_t *list, const char *prefix, const json_t *object, int depth)
{
    static const char *const types[] = {
        [JSON_OBJECT] = "obj", [JSON_ARRAY] = "arr", [JSON_STRING] = "str", [JSON_INTEGER] = "int",
        [JSON_REAL] = "real",  [JSON_TRUE] = "bool", [JSON_FALSE] = "bool", [JSON_NULL] = "null"};
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)object, name, value)
    {
        struct str key = {0};
        str_addf(&key, "%s.%s", prefix, name);
        if (json_is_object(value) && depth > 1) {
            add_json_metadata(list, str_text(&key), value, depth - 1);
        } else {
            json_t *entry = json_pack("{s:s, s:s}", "key", str_text(&key), "type", types[json_typeof(value)]);
            if (json_is_object(value)) {
                json_object_set_new(entry, "length", json_integer((json_int_t)json_object_size(value)));
            } else if (json_is_array(value)) {
                json_t *first = json_array();
                for (size_t k = 0; k < json_array_size(value) && k < SHOWN_ELEMENTS; k++)
                    json_array_append(first, json_array_get(value, k));
                json_object_set_new(entry, "length", json_integer((json_int_t)json_array_size(value)));
                json_object_set_new(entry, "first", first);
            } else {
                json_object_set(entry, "value", value);
            }
            json_array_append_new(list, entry);
        }
        str_free(&key);
    }
}

static json_t *metadata_of(const struct model_file *f)
{
    json_t *list = json_array();
    if (f->kind == MODEL_FILE_GGUF) {
        add_gguf_metadata(list, f->gguf);
        return list;
    }
    add_json_metadata(list, "config", f->config, 3);
    add_json_metadata(list, "generation_config", f->generation_config, 1);
    add_json_metadata(list, "tokenizer_config", f->tokenizer_config, 1);
    add_json_metadata(list, "tokenizer.model", json_object_get(f->tokenizer, "model"), 1);
    if (f->chat_template)
        json_array_append_new(list,
                              json_pack("{s:s, s:s, s:o}", "key", "chat_template", "type", "str", "value",
                                        json_text(f->chat_template, strlen(f->chat_template))));
    return list;
}

static uint64_t weights_of(const struct tensor *t)
{
    uint64_t n = 1;
    for (int d = 0; d < t->n_dims; d++)
        n *= (uint64_t)t->shape[d];
    return n;
}

static json_t *sum_of(const char *type, int tensors, uint64_t weights, uint64_t bytes)
{
    return json_pack("{s:s, s:i, s:I, s:I, s:f}", "type", type, "tensors", tensors, "weights",
                     (json_int_t)weights, "bytes", (json_int_t)bytes, "bits_per_weight",
                     weights ? 8.0 * (double)bytes / (double)weights : 0.0);
}

/* blk.2 before blk.10. */
static int by_number_in_name(const void *a, const void *b)
{
    const struct tensor *const *x = a, *const *y = b;
    return strverscmp((*x)->name, (*y)->name);
}

/* Adds "tensors", "not_read", "types" and "total". */
static void add_tensors(json_t *report, const struct model_file *f)
{
    struct {
        int tensors;
        uint64_t weights, bytes;
    } sums[DT_COUNT + 1] = {0}; /* the last: all of them */
    json_t *tensors = json_array(), *not_read = json_array(), *types = json_array();
    const struct tensor **sorted = mem_zalloc((size_t)f->n_tensors, sizeof *sorted);
    for (int i = 0; i < f->n_tensors; i++)
        sorted[i] = &f->tensors[i];
    qsort(sorted, (size_t)f->n_tensors, sizeof *sorted, by_number_in_name);
    for (int i = 0; i < f->n_tensors; i++) {
        const struct tensor *t = sorted[i];
        json_t *shape = json_array();
        for (int d = 0; d < t->n_dims; d++)
            json_array_append_new(shape, json_integer(t->shape[d]));
        json_array_append_new(tensors, json_pack("{s:s, s:s, s:o, s:I}", "name", t->name, "type",
                                                 dtype_info((int)t->dtype)->name, "shape", shape, "bytes",
                                                 (json_int_t)t->bytes));
        for (int k = 0; k < 2; k++) {
            int to = k ? DT_COUNT : (int)t->dtype;
            sums[to].tensors++;
            sums[to].weights += weights_of(t);
            sums[to].bytes += t->bytes;
        }
    }
    for (int i = 0; i < f->n_unread; i++)
        json_array_append_new(not_read,
                              json_pack("{s:s, s:s}", "name", f->unread[i].name, "why", f->unread[i].why));
    for (int k = 0; k < DT_COUNT; k++)
        if (sums[k].tensors)
            json_array_append_new(
                types, sum_of(dtype_info(k)->name, sums[k].tensors, sums[k].weights, sums[k].bytes));
    free(sorted);
    json_object_set_new(report, "tensors", tensors);
    json_object_set_new(report, "not_read", not_read);
    json_object_set_new(report, "types", types);
    json_object_set_new(
        report, "total",
        sum_of("total", sums[DT_COUNT].tensors, sums[DT_COUNT].weights, sums[DT_COUNT].bytes));
}

static json_t *report_of(const struct model_file *f)
{
    json_t *report = json_object();
    json_object_set_new(report, "path", json_text(f->path, strlen(f->path)));
    if (f->kind == MODEL_FILE_GGUF) {
        json_object_set_new(report, "kind", json_string("gguf"));
        json_object_set_new(report, "version", json_integer(gguf_version(f->gguf)));
    } else {
        json_object_set_new(report, "kind", json_string("huggingface"));
    }
    const struct quantised *q = &f->quantised;
    if (q->format)
        json_object_set_new(report, "quantised",
                            json_pack("{s:o, s:i, s:i, s:s*}", "format",
                                      json_text(q->format, strlen(q->format)), "matrices", q->n_mats,
                                      "rounded", q->n_rounded, "not_read", q->refusal));
    json_object_set_new(report, "files", json_integer(f->n_maps));
    json_object_set_new(report, "metadata", metadata_of(f));
    add_tensors(report, f);
    return report;
}

/* ---- Tables ---------------------------------------------------------------------------------------------
 */

static const char *text_of(const json_t *entry, const char *name)
{
    return json_string_value(json_object_get(entry, name));
}

static long long int_of(const json_t *entry, const char *name)
{
    return (long long)json_integer_value(json_object_get(entry, name));
}

/* The longest text of a column, at most `limit`. */
static int column_width(const json_t *rows, const char *name, int limit)
{
    size_t width = strlen(name), i;
    const json_t *row;
    json_array_foreach(rows, i, row) if (strlen(text_of(row, name)) > width) width =
        strlen(text_of(row, name));
    return width < (size_t)limit ? (int)width : limit;
}

/* Appends a value as JSON, cut to about `limit` bytes between two characters. */
static void add_value(struct str *out, const json_t *value, size_t limit)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(7));
    const size_t len = text ? strlen(text) : 0, kept = len > limit ? utf8_valid_prefix(text, limit) : len;
    str_add(out, text, kept);
    str_adds(out, kept < len ? "…" : "");
    free(text);
}

static void print_metadata(const json_t *list)
{
    const int key_width = column_width(list, "key", 64);
    const json_t *entry, *element;
    size_t i, k;
    printf("\nMetadata\n");
    json_array_foreach(list, i, entry)
    {
        struct str value = {0};
        const json_t *length = json_object_get(entry, "length"), *first = json_object_get(entry, "first");
        if (length)
            str_addf(&value, "%lld element%s", int_of(entry, "length"),
                     int_of(entry, "length") == 1 ? "" : "s");
        json_array_foreach(first, k, element)
        {
            str_adds(&value, k ? ", " : ": ");
            add_value(&value, element, 24);
        }
        if (first && (json_int_t)json_array_size(first) < json_integer_value(length))
            str_adds(&value, ", …");
        if (!length)
            add_value(&value, json_object_get(entry, "value"), 72);
        printf("  %-*s  %-9s  %s\n", key_width, text_of(entry, "key"), text_of(entry, "type"),
               str_text(&value));
        str_free(&value);
    }
}

static void print_tensors(const json_t *list)
{
    const int name_width = column_width(list, "name", 72);
    const json_t *t, *dim;
    size_t i, k;
    printf("\nTensors\n  %-*s  %-8s %-20s %14s\n", name_width, "name", "type", "shape", "bytes");
    json_array_foreach(list, i, t)
    {
        struct str shape = {0};
        json_array_foreach(json_object_get(t, "shape"), k, dim)
            str_addf(&shape, "%s%lld", k ? " x " : "", (long long)json_integer_value(dim));
        printf("  %-*s  %-8s %-20s %14lld\n", name_width, text_of(t, "name"), text_of(t, "type"),
               str_text(&shape), int_of(t, "bytes"));
        str_free(&shape);
    }
}

static void print_sum(const json_t *sum)
{
    printf("  %-8s %8lld %16lld %16lld %12.3f\n", text_of(sum, "type"), int_of(sum, "tensors"),
           int_of(sum, "weights"), int_of(sum, "bytes"),
           json_real_value(json_object_get(sum, "bits_per_weight")));
}

static void print_report(const json_t *report)
{
    const json_t *not_read = json_object_get(report, "not_read"), *entry;
    size_t i;
    printf("%s: ", text_of(report, "path"));
    if (strcmp(text_of(report, "kind"), "gguf") == 0)
        printf("GGUF version %lld", int_of(report, "version"));
    else
        printf("Hugging Face directory");
    if (int_of(report, "files") > 1)
        printf(", weights in %lld files", int_of(report, "files"));
    printf("\n");
    const json_t *q = json_object_get(report, "quantised");
    if (text_of(q, "not_read"))
        printf("\nQuantised: %s\n  not read: %s\n", text_of(q, "format"), text_of(q, "not_read"));
    else if (q)
        printf("\nQuantised: %s\n  %lld matrices, read as the types below: %lld exactly, %lld rounded\n",
               text_of(q, "format"), int_of(q, "matrices"), int_of(q, "matrices") - int_of(q, "rounded"),
               int_of(q, "rounded"));
    print_metadata(json_object_get(report, "metadata"));
    print_tensors(json_object_get(report, "tensors"));
    if (json_array_size(not_read))
        printf("\nNot read\n");
    json_array_foreach(not_read, i, entry) printf("  %s %s\n", text_of(entry, "name"), text_of(entry, "why"));
    printf("\nTotals\n  %-8s %8s %16s %16s %12s\n", "type", "tensors", "weights", "bytes", "bits/weight");
    json_array_foreach(json_object_get(report, "types"), i, entry) print_sum(entry);
    print_sum(json_object_get(report, "total"));
}

int cmd_inspect(int argc, char **argv)
{
    const char *path = NULL;
    bool as_json = false;
    const struct option_positional words[] = {
        {"MODEL", &path, true, "a .gguf file (of a split one, the first part) or a Hugging Face directory"},
        {0}};
    const struct option_spec options[] = {
        {.name = "json", .flag = &as_json, .help = "print it as JSON, with texts in full"},
        {0},
    };
    const struct option_command command = {"inspect",
                                           "Prints what a model file holds: its metadata, its tensors with "
                                           "their types and shapes, and the bytes and bits a "
                                           "weight of each type. Nothing is loaded.",
                                           words, options};
    int status = options_parse(&command, argc, argv);
    if (status >= 0)
        return status;

    struct err e = {0};
    struct model_file *f = model_file_open(path, &e);
    if (!f) {
        fprintf(stderr, "sluice inspect: %s\n", e.msg);
        return EXIT_FAILED;
    }
    json_t *report = report_of(f);
    model_file_close(f);
    if (as_json) {
        json_dumpf(report, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
        putchar('\n');
    } else {
        print_report(report);
    }
    json_decref(report);
    return 0;
}
