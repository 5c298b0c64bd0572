/* Ctrl-C for commands that write a file: they look at the flag between two pieces of work, and leave nothing
 * behind. */
#ifndef SLUICE_CLI_INTERRUPT_H
#define SLUICE_CLI_INTERRUPT_H

#include <signal.h>

#include "base/error.h"

extern volatile sig_atomic_t interrupted;

/* From here on SIGINT and SIGTERM set the flag. */
void interrupt_watch(void);
/* The error of a command that gave up because of it: -1. */
int interrupt_error(struct err *e);

#endif
