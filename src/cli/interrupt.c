#include "cli/interrupt.h"

volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    interrupted = 1;
}

void interrupt_watch(void)
{
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

int interrupt_error(struct err *e)
{
    return err_set(e, ERR_LIMIT, "interrupted; nothing is left of the file");
}
