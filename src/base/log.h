/* Log lines go to stderr: "12:34:56.789 info  text". The text must not hold prompt text or keys. */
#ifndef SLUICE_BASE_LOG_H
#define SLUICE_BASE_LOG_H

enum log_level { LOG_LEVEL_DEBUG, LOG_LEVEL_INFO, LOG_LEVEL_WARN, LOG_LEVEL_ERROR, LOG_LEVEL_OFF };

/* Lines below `level` are dropped; the default is LOG_LEVEL_INFO. */
void log_set_level(enum log_level level);
void log_line(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define log_debug(...) log_line(LOG_LEVEL_DEBUG, __VA_ARGS__)
#define log_info(...)  log_line(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_warn(...)  log_line(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_error(...) log_line(LOG_LEVEL_ERROR, __VA_ARGS__)

#endif
