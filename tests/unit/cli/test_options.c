/* The option parser: spellings, suffixes, bounds, lists, suggestions, and a help that lists every option. */
#include "unit.h"

#include <limits.h>
#include <unistd.h>

#include "cli/options.h"

static struct values {
    const char *model, *dtype, *extra;
    int port, len;
    uint64_t bytes;
    double share;
    bool cache, quiet, stats, given;
    struct option_list keys;
} v;

static const struct option_positional words[] = {
    {"MODEL", &v.model, true, "a model"}, {"EXTRA", &v.extra, false, "one more word"}, {0}};
static const struct option_spec options[] = {
    {.group = "Server"},
    {.name = "port", .num = &v.port, .min = 1, .max = 65535, .value = "N", .help = "TCP port"},
    {.name = "api-key", .list = &v.keys, .value = "KEY", .help = "keys"},
    {.group = "Engine"},
    {.name = "model", .text = &v.model, .value = "MODEL", .help = "the same as the word"},
    {.name = "max-model-len", .num = &v.len, .auto_is = "auto", .value = "N", .help = "longest request"},
    {.name = "kv-cache-bytes", .big = &v.bytes, .value = "BYTES", .initial = "what fits", .help = "pool"},
    {.name = "memory-share", .real = &v.share, .min = 0.1, .max = 1, .value = "F", .help = "share of RAM"},
    {.name = "kv-dtype",
     .alias = "kd",
     .text = &v.dtype,
     .choices = "auto|fp16",
     .help = "how keys and values are kept"},
    {.name = "enable-prefix-caching", .flag = &v.cache, .given = &v.given, .help = "reuse"},
    {.name = "disable-log-stats", .flag = &v.stats, .help = "no statistics"},
    {.name = "quiet", .flag = &v.quiet, .help = "no log"},
    {0},
};
static const struct option_command command = {"serve", "Serves a model.", words, options};

/* Parses the words of `line` (split at spaces) after resetting the variables; the messages go to `said`. */
static char said[4000];

static int parse_captured(const char *line, int fd)
{
    static char copy[1000];
    char *argv[32] = {(char *)"serve"};
    int argc = 1;
    option_list_free(&v.keys);
    v = (struct values){.port = 8000, .len = -1, .share = 0.9, .cache = true};
    snprintf(copy, sizeof copy, "%s", line);
    for (char *p = strtok(copy, " "); p; p = strtok(NULL, " "))
        argv[argc++] = p;

    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stdout);
    fflush(stderr);
    int saved = dup(fd);
    dup2(fileno(file), fd);
    int status = options_parse(&command, argc, argv);
    fflush(stdout);
    fflush(stderr);
    dup2(saved, fd);
    close(saved);
    rewind(file);
    said[fread(said, 1, sizeof said - 1, file)] = '\0';
    fclose(file);
    return status;
}

static int parse(const char *line)
{
    return parse_captured(line, STDERR_FILENO);
}

static void test_values(void **state)
{
    (void)state;
    assert_int_equal(parse("tiny.gguf --port 81 --kv-cache-bytes=2G --memory_share 0.5 -kd fp16 --quiet"),
                     -1);
    assert_string_equal(v.model, "tiny.gguf");
    assert_int_equal(v.port, 81);
    assert_int_equal(v.bytes, 2ull << 30);
    assert_float_equal(v.share, 0.5, 0);
    assert_string_equal(v.dtype, "fp16");
    assert_true(v.quiet);
    assert_false(v.given);
    assert_int_equal(parse("m --max_model_len 4k"), -1);
    assert_int_equal(v.len, 4000);
    assert_int_equal(parse("m --max-model-len=auto"), -1);
    assert_int_equal(v.len, -1);
    assert_int_equal(parse("m --max-model-len -1"), -1);
    assert_int_equal(v.len, -1);
    assert_int_equal(parse("--model m"), -1);
    assert_string_equal(v.model, "m");
    assert_int_equal(parse("-- --port"), -1);
    assert_string_equal(v.model, "--port");
    assert_int_equal(parse("a b"), -1);
    assert_string_equal(v.extra, "b");
}

static void test_flags(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        bool cache, stats;
    } cases[] = {
        {"m", true, false},
        {"m --no-enable-prefix-caching", false, false},
        {"m --disable_prefix_caching", false, false},
        {"m --disable-prefix-caching --enable-prefix-caching", true, false},
        {"m --disable-log-stats", true, true},
        {"m --disable-log-stats --enable-log-stats", true, false},
        {"m --disable-log-stats --no_disable_log_stats", true, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(parse(cases[i].line), -1);
        assert_int_equal(v.cache, cases[i].cache);
        assert_int_equal(v.stats, cases[i].stats);
    }
    assert_int_equal(parse("m --enable-prefix-caching"), -1);
    assert_true(v.given);
    assert_int_equal(parse("m --quiet=yes"), 2);
}

static void test_lists(void **state)
{
    (void)state;
    assert_int_equal(parse("m --api-key a b --port 1 --api-key=c"), -1);
    assert_int_equal(v.keys.n, 3);
    assert_string_equal(v.keys.values[0], "a");
    assert_string_equal(v.keys.values[1], "b");
    assert_string_equal(v.keys.values[2], "c");
}

static void test_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t value;
    } good[] = {{"0", 0},
                {"-7", -7},
                {"1k", 1000},
                {"1K", 1024},
                {"2m", 2000000},
                {"2M", 2 << 20},
                {"1g", 1000000000},
                {"1G", 1 << 30},
                {"1T", 1ll << 40},
                {"1.5GiB", 3ll << 29},
                {"2kB", 2000},
                {"2KB", 2000},
                {"0.5KiB", 512},
                {"3kiB", 3072},
                {"25.6k", 25600},
                {"1.000001m", 1000001},
                {"9223372036854775807", INT64_MAX}};
    static const char *const bad[] = {"",
                                      "-",
                                      "k",
                                      "1kk",
                                      "1.5",
                                      "1.5K",
                                      "1.0005k",
                                      "1.0005KiB",
                                      "1.5Ki",
                                      "1iB",
                                      "1GiBs",
                                      "1B",
                                      "0x10",
                                      "1 ",
                                      " 1",
                                      "+1",
                                      "1e3",
                                      "--1",
                                      "9223372036854775808",
                                      "99999999999999999999",
                                      "9000000000T",
                                      "18446744073709551615k",
                                      "1.23456789t"};
    int64_t n;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        if (!option_number(good[i].text, &n) || n != good[i].value)
            fail_msg("'%s' should be %lld", good[i].text, (long long)good[i].value);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (option_number(bad[i], &n))
            fail_msg("'%s' was read as %lld", bad[i], (long long)n);
    assert_int_equal(parse("m --kv-cache-bytes 18446744073709551615"), -1);
    assert_true(v.bytes == UINT64_MAX);
}

static void expect_error(const char *line, const char *message)
{
    int status = parse(line);
    if (status != 2 || !strstr(said, message))
        fail_msg("'%s': status %d, said '%s', expected '%s'", line, status, said, message);
}

static void test_errors(void **state)
{
    (void)state;
    expect_error("", "MODEL is missing");
    expect_error("m a b", "unexpected word 'b'");
    expect_error("m --prot 80", "unknown option '--prot'; did you mean '--port'?");
    expect_error("m --max-model-length 80", "did you mean '--max-model-len'?");
    expect_error("m --enable-log-stat", "did you mean '--enable-log-stats'?");
    expect_error("m --no-quite", "did you mean '--no-quiet'?");
    expect_error("m --xyzzy", "unknown option '--xyzzy'\n");
    expect_error("m -x", "unknown option '-x'");
    expect_error("m --no-port", "unknown option '--no-port'");
    expect_error("m --port", "--port needs a value: N");
    expect_error("m --port --quiet", "--port needs a value");
    expect_error("m --port 0", "--port: '0' is not a whole number (such as 512 or 4k) from 1 to 65535");
    expect_error("m --port 70000", "from 1 to 65535");
    expect_error("m --port 99999999999", "from 1 to 65535");
    expect_error("m --port=", "--port: ''");
    expect_error("m --port eighty", "'eighty'");
    expect_error("m --max-model-len -2", "from 0 up, or 'auto'");
    expect_error("m --memory-share 1.1", "--memory-share: '1.1' is not a number from 0.1 to 1");
    expect_error("m --memory-share nan", "'nan'");
    expect_error("m --kv-dtype int3", "--kv-dtype: 'int3' is not one of auto|fp16");
    expect_error("m --kv-dtype fp1", "not one of");
    expect_error("m --kv-cache-bytes -1", "--kv-cache-bytes: '-1'");
    /* A name longer than any option is a usage error like another. */
    char line[900] = "m --";
    memset(line + 4, 'p', 800);
    expect_error(line, "unknown option");
}

static void test_help(void **state)
{
    (void)state;
    assert_int_equal(parse_captured("--help", STDOUT_FILENO), 0);
    for (const struct option_spec *o = options; o->name || o->group; o++) {
        assert_non_null(strstr(said, o->name ? o->name : o->group));
        if (o->help)
            assert_non_null(strstr(said, o->help));
    }
    assert_non_null(strstr(said, "Usage: sluice serve MODEL [EXTRA] [options]"));
    assert_non_null(strstr(said, "8000"));
    assert_non_null(strstr(said, "what fits"));
    /* Meanings line up: every option's line has its help in the same column. */
    long column = -1;
    for (const struct option_spec *o = options; o->name || o->group; o++) {
        if (!o->name)
            continue;
        char *at = strstr(said, o->help), *start = at;
        while (start > said && start[-1] != '\n')
            start--;
        if (strstr(start, "…") && strstr(start, "…") < at)
            start += 2; /* three bytes, one column */
        if (column >= 0 && at - start != column)
            fail_msg("--%s's help is not in column %ld:\n%s", o->name, column, said);
        column = at - start;
    }
    assert_int_equal(parse_captured("--help=engine", STDOUT_FILENO), 0);
    assert_non_null(strstr(said, "--kv-dtype"));
    assert_null(strstr(said, "--port"));
    assert_int_equal(parse_captured("m --nonsense", STDERR_FILENO), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),  cmocka_unit_test(test_flags),  cmocka_unit_test(test_lists),
        cmocka_unit_test(test_numbers), cmocka_unit_test(test_errors), cmocka_unit_test(test_help),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    option_list_free(&v.keys);
    return failed;
}
