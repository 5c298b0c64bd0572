/* Command line options as a table: one entry names an option, its variable, bounds and meaning, and both
 * the parser and --help are made from it. Every command uses it:
 *
 *   int port = 8000;
 *   bool quiet = false;
 *   const char *model = NULL;
 *   const struct option_spec options[] = {
 *       {.group = "Server"},
 *       {.name = "port", .num = &port, .min = 1, .max = 65535, .value = "N", .help = "TCP port"},
 *       {.name = "quiet", .flag = &quiet, .help = "no log lines"},
 *       {0},
 *   };
 *   const struct option_positional words[] = {{"MODEL", &model, true, "a .gguf file or directory"}, {0}};
 *   const struct option_command command = {"serve", "Serves a model over HTTP.", words, options};
 *   int status = options_parse(&command, argc, argv);
 *   if (status >= 0)
 *       return status;
 *
 * Spelling, as in vLLM's server: `_` and `-` are alike; `--x v` and `--x=v`; a flag has `--x` and `--no-x`,
 * and one named enable-… or disable-… also the inverse word; whole numbers take k, m, g, t (1000 and its
 * powers, decimals allowed: 1.5k) and K, M, G, T (1024 and its powers), or kB … (1000) and KiB … (1024); a
 * list takes several values, up to the next option, and adds to those given before; `--` ends the options. */
#ifndef SLUICE_CLI_OPTIONS_H
#define SLUICE_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct option_list {
    const char **values; /* [n], pointing into argv; the array itself is freed with option_list_free */
    int n;
};
void option_list_free(struct option_list *l);

/* One line of the table; {0} ends it. The variable's value before parsing is the default. */
struct option_spec {
    const char *group; /* set alone: a heading for the entries that follow */
    const char *name;  /* "max-num-seqs": no leading dashes, words joined by '-' */
    const char *alias; /* "q" also accepts -q; NULL = none */

    /* Exactly one of these is set: where the value goes, and so its kind. An option that is gone is still
     * accepted, with a warning that says why it does nothing; it takes a value where `value` is set. */
    bool *flag;
    int *num;
    uint64_t *big; /* bytes, seeds; size_t is this type on every system we build for */
    double *real;
    const char **text; /* points into argv */
    struct option_list *list;
    const char *gone;

    double min, max;     /* numbers, both ends included; both 0 = anything from 0 up */
    const char *auto_is; /* num: a word accepted for -1, such as "auto" (-1 is then allowed too) */
    const char *choices; /* text: "auto|fp16|fp32"; NULL = any text */
    const char *initial; /* the default in words, where the variable's own value does not say it (0 = …) */
    const char *value;   /* what --help calls the value: "N", "PATH" */
    const char *help;    /* the meaning: a sentence or two, wrapped by --help */
    bool *given;         /* NULL, or set to true when the option is on the command line */
};

/* A word without dashes; {0} ends the table. */
struct option_positional {
    const char *name;  /* "MODEL" */
    const char **text; /* where it goes */
    bool required;
    const char *help;
};

struct option_command {
    const char *name;                      /* "serve" */
    const char *summary;                   /* a paragraph at the top of --help */
    const struct option_positional *words; /* NULL = none */
    const struct option_spec *options;
};

/* Parses argv[1 … argc-1] (argv[0] is the command's name) into the variables. Returns -1 when the command
 * should go on; otherwise its exit status: 0 after --help (also --help=WORD: only what mentions WORD), 2
 * after a usage error, which is explained on stderr with the nearest option's name. */
int options_parse(const struct option_command *c, int argc, char **argv);

/* Prints the help to stdout; `word` (NULL or "all" = everything) keeps options and groups that mention it. */
void options_help(const struct option_command *c, const char *word);

/* The number that text writes, with its suffix (above). False if it is not one or does not fit. */
bool option_number(const char *text, int64_t *out);

/* Prints "sluice NAME: message" and a hint at --help to stderr. Returns 2, for a check that the table cannot
 * express: `return options_usage_error(&command, "--a needs --b");` */
int options_usage_error(const struct option_command *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Edits (insert, delete, replace, swap of neighbours) that turn a into b: for "did you mean". */
int edit_distance(const char *a, const char *b);

#endif
