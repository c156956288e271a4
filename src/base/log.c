#include "base/log.h"

#include "base/mask.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/utc.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <time.h>

static struct {
    adl_log_fn to;
    void *user;
    adl_log_level least;
} logger;

const char *adli_log_mark(adl_log_level level)
{
    return level == ADL_LOG_ERROR     ? "error: "
           : level == ADL_LOG_WARNING ? "warning: "
           : level == ADL_LOG_DEBUG   ? "debug: "
                                      : "";
}

adl_status adli_log_level(int verbose, adl_log_level *out)
{
    static const char *const names[] = {"debug", "info", "warning", "error", "off"};
    const char *text = getenv("ADAPTDL_LOG");
    int level = ADL_LOG_INFO;
    if (text && *text) {
        size_t i = 0;
        while (i < ADLI_COUNT(names) && strcasecmp(text, names[i]) != 0)
            i++;
        if (i == ADLI_COUNT(names))
            return adli_fail(ADL_EINVAL,
                             "ADAPTDL_LOG=%.40s: must be debug, info, warning, error or off", text);
        level = ADL_LOG_DEBUG + (int)i;
    }
    level -= verbose;
    *out = level > ADL_LOG_DEBUG ? (adl_log_level)level : ADL_LOG_DEBUG;
    return ADL_OK;
}

void adli_log_start(adl_log_fn to, void *user, adl_log_level least)
{
    logger.to = to;
    logger.user = user;
    logger.least = least;
}

void adli_say(adl_log_level level, const char *format, ...)
{
    char line[2048];
    if (!logger.to || level < logger.least)
        return;
    va_list args;
    va_start(args, format);
    adli_print_masked(line, sizeof line, format, args);
    va_end(args);
    logger.to(logger.user, level, line);
}

void adli_log_stamped(void *user, adl_log_level level, const char *line)
{
    (void)user;
    struct timespec now;
    char when[ADLI_UTC_SIZE];
    clock_gettime(CLOCK_REALTIME, &now);
    adli_utc_text(&now, 3, when);
    fprintf(stderr, "%s %s%s\n", when, adli_log_mark(level), line);
}

void adl_log_stderr(void *user, adl_log_level level, const char *line)
{
    adl_log_level least;
    (void)user;
    if (adli_log_level(0, &least) != ADL_OK)
        least = ADL_LOG_INFO;
    if (level >= least)
        fprintf(stderr, "adaptdl: %s%s\n", adli_log_mark(level), line);
}
