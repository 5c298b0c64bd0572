/* The memory plan as a table for people: what each part takes, and what one more request and one more token
 * would. */
#ifndef SLUICE_CLI_PLAN_TABLE_H
#define SLUICE_CLI_PLAN_TABLE_H

#include <stdio.h>

#include "sluice.h"

void plan_table_print(FILE *out, const struct sluice_plan *p, const struct sluice_info *info);

#endif
