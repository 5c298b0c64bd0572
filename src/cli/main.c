/* `sluice COMMAND …`: the table of commands. Each command parses its own options (cli/options.h). */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/version.h"
#include "cli/commands.h"
#include "cli/options.h"

static int cmd_version(int argc, char **argv);
static int cmd_help(int argc, char **argv);

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} commands[] = {
    {"serve", cmd_serve, "serve a model over HTTP, with the OpenAI API"},
    {"run", cmd_run, "chat with a model in the terminal, or answer one prompt"},
    {"batch", cmd_batch, "answer a file of requests (OpenAI's batch format)"},
    {"bench", cmd_bench, "measure prefill and decode speed, and the machine's limits"},
    {"plan", cmd_plan, "print the memory that serving a model takes, without loading it"},
    {"inspect", cmd_inspect, "print what a model file holds"},
    {"make-model", cmd_make_model, "write a model of random weights in the shapes of a real one"},
    {"quantize", cmd_quantize, "write a model in fewer bits a weight"},
    {"eval", cmd_eval, "measure how well a model predicts a text, and how near it comes to another"},
    {"tokenize", cmd_tokenize, "turn text into token ids and back"},
    {"version", cmd_version, "print the version"},
    {"help", cmd_help, "print this list, or a command's help"},
};
#define N_COMMANDS (sizeof commands / sizeof commands[0])

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(name, commands[i].name) == 0)
            return &commands[i];
    return NULL;
}

static int unknown_command(const char *name)
{
    const struct command *best = NULL;
    int best_distance = 4; /* more edits than three is another word */
    for (size_t i = 0; i < N_COMMANDS; i++) {
        int distance = edit_distance(name, commands[i].name);
        if (distance < best_distance) {
            best_distance = distance;
            best = &commands[i];
        }
    }
    fprintf(stderr, "sluice: unknown command '%s'", name);
    if (best)
        fprintf(stderr, "; did you mean '%s'?", best->name);
    fputs("\nSee 'sluice help'.\n", stderr);
    return EXIT_USAGE;
}

static void print_commands(FILE *out)
{
    fputs("sluice serves large language models: each step streams the weights once for all requests.\n\n"
          "Usage: sluice COMMAND [options]\n\n",
          out);
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fputs("\n'sluice COMMAND --help' explains a command's options.\n", out);
}

static int cmd_version(int argc, char **argv)
{
    (void)argv;
    if (argc > 1) {
        fputs("sluice version: takes no options\n", stderr);
        return EXIT_USAGE;
    }
    puts("sluice " SLUICE_VERSION);
    return 0;
}

static int cmd_help(int argc, char **argv)
{
    if (argc < 2 || strcmp(argv[1], "--help") == 0) {
        print_commands(stdout);
        return 0;
    }
    const struct command *c = find_command(argv[1]);
    if (!c)
        return unknown_command(argv[1]);
    if (c->run == cmd_version || c->run == cmd_help) {
        printf("sluice %s: %s\n", c->name, c->summary);
        return 0;
    }
    char help[] = "--help";
    char *args[] = {argv[1], help, NULL};
    return c->run(2, args);
}

/* The three standard descriptors must be taken, or the first files and connections get their numbers, and
 * what is logged goes to a client. Opened the wrong way round, they still fail as closed ones do. */
static void keep_standard_files(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0)
            _exit(EXIT_FAILED);
}

/* The command's exit status, which is a failure when what it printed was lost. */
static int run_command(const struct command *c, int argc, char **argv)
{
    int status = c->run(argc, argv);
    if (status || (fflush(stdout) == 0 && !ferror(stdout)))
        return status;
    fprintf(stderr, "sluice %s: cannot write to standard output\n", c->name);
    return EXIT_FAILED;
}

int main(int argc, char **argv)
{
    keep_standard_files();
    /* A reader that goes away (a client, `| head`) is a failed write, not the end of the process. */
    signal(SIGPIPE, SIG_IGN);
    /* A file at the limit that the system sets (ulimit -f) is one too: a server goes on without it. */
    signal(SIGXFSZ, SIG_IGN);
    if (argc < 2) {
        print_commands(stderr);
        return EXIT_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        name = "help";
    else if (strcmp(name, "--version") == 0)
        name = "version";
    const struct command *c = find_command(name);
    return c ? run_command(c, argc - 1, argv + 1) : unknown_command(name);
}
