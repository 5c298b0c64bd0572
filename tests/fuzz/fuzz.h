/* What the fuzz targets share. Each fuzz_NAME.c defines LLVMFuzzerTestOneInput, libFuzzer's entry point: it
 * must accept any bytes, and a crash, a sanitizer's report or a failed check is a bug. In the fuzz build
 * libFuzzer drives it; in the others replay.c does, over its seeds and mutations of them, as a test. */
#ifndef SLUICE_TESTS_FUZZ_H
#define SLUICE_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Writes data to the file `name` in this process's own folder in memory and returns its path, or with NULL
 * the folder's. The folder goes when the process ends. */
const char *fuzz_file(const char *name, const uint8_t *data, size_t size);

/* Ends the process with a message when a property does not hold, so that the fuzzer keeps the input. */
void fuzz_check(int holds, const char *property);

#endif
