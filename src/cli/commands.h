/* The commands of the `sluice` program. Each takes what follows `sluice` on the command line (argv[0] is the
 * command's own name), returns the exit status, and lives in cmd_NAME.c; main.c holds the table. */
#ifndef SLUICE_CLI_COMMANDS_H
#define SLUICE_CLI_COMMANDS_H

int cmd_serve(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_batch(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_make_model(int argc, char **argv);
int cmd_quantize(int argc, char **argv);
int cmd_eval(int argc, char **argv);

/* Exit statuses: 0 done, EXIT_FAILED the work failed (the reason is on stderr), EXIT_USAGE the command line
 * is wrong (options_parse). */
#define EXIT_FAILED 1
#define EXIT_USAGE  2

#endif
