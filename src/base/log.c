#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static _Atomic int threshold = LOG_LEVEL_INFO;

void log_set_level(enum log_level level)
{
    threshold = level;
}

void log_line(enum log_level level, const char *fmt, ...)
{
    static const char *const names[] = {"debug", "info ", "warn ", "error"};
    if ((int)level < threshold || level >= LOG_LEVEL_OFF)
        return;
    struct timespec now;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &tm);
    char line[2000], *longer = NULL;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (n >= (int)sizeof line && (longer = malloc((size_t)n + 1))) {
        va_start(ap, fmt);
        vsnprintf(longer, (size_t)n + 1, fmt, ap);
        va_end(ap);
    }
    /* one call, so that lines of different threads do not mix */
    fprintf(stderr, "%02d:%02d:%02d.%03ld %s %s\n", tm.tm_hour, tm.tm_min, tm.tm_sec, now.tv_nsec / 1000000,
            names[level], longer ? longer : line);
    free(longer);
}
